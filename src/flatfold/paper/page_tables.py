"""Tables of the paper, filled with what a run measured."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from ..evaluate.results import ID, METRICS, Average, Results, Row
from ..evaluate.study_results import Name, Space, Statistic, above
from ..evaluate.summary import families
from ..report.curvature import VERDICTS
from ..report.curvature_figures import NAMES, SPACES
from ..report.html import Html, between, column_heads, head_cell, joined, metric_cell, scrolling, table, tag
from ..report.templates import factor, percent, quantity
from .ablations import NORMALISATIONS, Ablations, Cost, Effect
from .claims import Material, number
from .claims_curvature import REGIMES, figure, regimes
from .tables import OTHERS, Line, beside_paper, incomparable, table_of

BOTH: tuple[Name, ...] = ("lambda_max", "trace")


def regime_table(materials: Sequence[Material], space: Space) -> Html:
    """Return a line per network and regime: largest eigenvalue and trace, each with its error and factor."""
    lines = []
    for material in materials:
        for at in regimes(material.study):
            cells = [_statistic(material, at, space, name) for name in BOTH]
            below = [tag("small", material.network)] if material.network else []
            lines.append(tag("tr", tag("th", REGIMES[at], *below, scope="row"), *cells))
    heads = [head_cell("data", text=True), *(head_cell(NAMES[name], f"over {SPACES[space]}") for name in BOTH)]
    return scrolling(table(heads, lines, class_="sortable results"), f"Hessian over {SPACES[space]} by regime")


def methods_table(results: Results, columns: Sequence[str], label: str) -> Html:
    """Return a line per method, best average first: AUROC and FPR95 of some columns.

    Args:
        results: Of a network.
        columns: Data sets or averages, of which the last sorts the table.
        label: What is read out for the table.
    """
    lines = [
        tag("tr", tag("th", run.method, scope="row"), *(_cell(results.cells[run.method, column]) for column in columns))
        for run in results.ranked
    ]
    heads = [head_cell("method", text=True), *column_heads(results, columns)]
    return scrolling(table(heads, lines, class_="sortable results"), label)


def network_table(materials: Sequence[Material]) -> Html:
    """Return a line per method, a column per network and their mean: averages of AUROC and FPR95.

    A method that is not in every run has no mean, and comes last.
    """
    runs = [material.results for material in materials]
    methods = list(dict.fromkeys(run.method for results in runs for run in results.methods))
    means = {method: _mean(runs, method) for method in methods}
    order = sorted(methods, key=lambda method: -(means[method] or {"auroc": 0.0})["auroc"])
    lines = []
    for method in order:
        cells = [run.cells.get((method, "all")) for run in runs]
        shown = [tag("td") if cell is None else _cell(cell) for cell in cells]
        found = means[method]
        last = tag("td") if found is None else metric_cell(found, {})
        lines.append(tag("tr", tag("th", method, scope="row"), *shown, last))
    heads = [head_cell("method", text=True), *(head_cell(each.network or "network") for each in materials)]
    heads.append(head_cell("mean", "over networks", sort="descending"))
    return scrolling(table(heads, lines, class_="sortable results"), "Averages for every network")


def _mean(runs: Sequence[Results], method: str) -> dict[str, float] | None:
    cells = [run.cells.get((method, "all")) for run in runs]
    if any(cell is None for cell in cells):
        return None
    return {metric: fmean(getattr(cell, metric) for cell in cells) for metric in METRICS}


def _cell(cell: Row | Average) -> Html:
    """Return AUROC and FPR95, marked where the AUROC is the best or cannot be told from it."""
    told = cell.certainty
    if told is None:
        return metric_cell(vars(cell), {})
    soft = {metric: between(interval) for metric, interval in told.intervals.items()}
    behind = f"{percent(told.behind)} behind the best ({between((told.behind_low, told.behind_high))})"
    return metric_cell(vars(cell), soft, told.best, "the best, or not to be told from it" if told.best else behind)


def _statistic(material: Material, at: str, space: Space, name: Name) -> Html:
    """Return a figure with its error and, of unknown data, how it compares to the known one."""
    told, known = (figure(material.study, each, space, name) for each in (at, ID))
    verdict = "" if at == ID else VERDICTS[above(told, known)]
    parts: list[object] = [tag("b", quantity(told.value)), tag("small", _error(told))]
    parts += [tag("span", factor(told.value, known.value))] if at != ID else []
    parts += [tag("small", verdict, class_="verdict")] if verdict else []
    return tag("td", *parts, class_="below" if verdict else None, data_sort=told.value)


def _error(told: Statistic) -> str:
    return "exact" if told.stderr is None else f"± {quantity(told.stderr, 2)}"


# The table of normalisations: what each gives to seven methods.


SEVEN = ("msp", "ebo", "react", "ash", "fold", "fold-r", "fold-a")  # which the paper's table has

HEADS = {"none": "none", "partial": "partial", "full": "full"}


def effects_table(ablations: Ablations) -> Html:
    """Return a line per method, a column per normalisation: averages of AUROC and FPR95, and the gain in AUROC.

    A gain is marked where its paired interval lies above 0, and said to be a loss where it lies below.
    """
    methods = list(dict.fromkeys(effect.method for effect in ablations.effects))
    lines = []
    for method in methods:
        cells = [_effect_cell(ablations.effect(method, kind)) for kind in NORMALISATIONS]
        lines.append(tag("tr", tag("th", method, scope="row"), *cells))
    heads = [head_cell("method", text=True)]
    heads += [head_cell(HEADS[kind], f"α = {ablations.alphas[kind]:g}") for kind in NORMALISATIONS]
    told = {method: reason for method, reason in ablations.refused.items() if method in SEVEN}
    refused = [tag("p", f"{method} was left out: {reason}") for method, reason in told.items()]
    shown = scrolling(table(heads, lines, class_="sortable results"), "Normalisation in front of methods")
    return joined([shown, *refused])


def _effect_cell(effect: Effect | None) -> Html:
    if effect is None:
        return tag("td", data_sort="")
    parts: list[object] = [tag("b", percent(effect.auroc)), " ", tag("span", percent(effect.fpr95))]
    mark = None
    if effect.normalisation != "none":
        low, gain, high = (signed(part) for part in (effect.gain_low, effect.gain, effect.gain_high))
        parts.append(tag("small", f"{gain} ({low} to {high})"))
        mark = "best" if effect.gain_low > 0 else "below" if effect.gain_high < 0 else None
        parts += [tag("small", "a loss", class_="verdict")] if mark == "below" else []
    return tag("td", *parts, class_=mark, data_sort=round(effect.auroc, 7))


def signed(share: float) -> str:
    """Return a difference of shares in percentage points with its sign.

    Example:
        >>> signed(0.0123), signed(-0.5)
        ('+1.23', '−50.00')
    """
    return f"{100 * share:+.2f}".replace("-", "−")


# The table of costs: what every method takes to set up and to score a batch, in time and in memory.


MEMORY = "Resident memory that fitting and scoring took beyond what was in use, where the system tells."


def cost_table(costs: Sequence[Cost]) -> Html:
    """Return a line per method, quickest first, folded away.

    Args:
        costs: Of every method, and of ``forward``.
    """
    if not costs:
        return Html()
    heads = [
        head_cell("method", text=True),
        head_cell("set-up", "ms", "To fit it once, with the features of its data at hand."),
        head_cell(
            "inference", f"ms, batch of {costs[0].batch_size}", "The method's own share; below it its quartiles."
        ),
        head_cell("rounds", title="How often scoring was timed; the median counts."),
        head_cell("memory", "MB, peak", MEMORY),
    ]
    lines = [_line(cost) for cost in sorted(costs, key=lambda cost: cost.inference_ms)]
    shown = scrolling(table(heads, lines, class_="sortable results"), "Costs")
    return tag("details", tag("summary", "All costs, with memory"), shown)


def _line(cost: Cost) -> Html:
    spread = tag("small", f"{number(cost.inference_low)} to {number(cost.inference_high)}")
    peak = cost.peak_megabytes
    memory = "" if peak is None else "below 1" if peak < 1 else number(peak)
    return tag(
        "tr",
        tag("th", cost.method, *([tag("small", "runs the network")] if cost.sees != "features" else []), scope="row"),
        tag("td", number(cost.setup_ms) if cost.setup_ms else "", data_sort=cost.setup_ms),
        tag("td", tag("b", number(cost.inference_ms)), spread, data_sort=cost.inference_ms),
        tag("td", cost.rounds, data_sort=cost.rounds),
        tag("td", memory, data_sort="" if peak is None else peak),
    )


# The paper's own numbers beside those of a run, where the two can be compared.


def why_not(materials: Sequence[Material]) -> str:
    """Return why the paper's numbers cannot stand beside those of this run, or nothing."""
    runs = [material.results for material in materials]
    reasons = [
        reason
        for group in families(runs).values()
        for reason in incomparable([run.suite for run in group], table_of(group[0].suite))
    ]
    if not reasons:
        return ""
    told = "; ".join(dict.fromkeys(reasons))
    return f"The paper's own numbers are not put beside these, because {told}. Its claims are tested all the same."


def paper_lines(materials: Sequence[Material]) -> list[Line]:
    """Return every number of the paper that this run has too, none where they cannot be compared."""
    if why_not(materials):
        return []
    try:
        return beside_paper([material.results for material in materials])
    except ValueError:  # nothing in common, or one network twice: there is nothing to show
        return []


def chosen(lines: Sequence[Line], number: str) -> list[Line]:
    """Return the lines that belong to Table 2, Table 5 or Tables 8 to 11."""
    if number == "Table 5":
        return [line for line in lines if line.table == OTHERS]
    averages = number == "Table 2"
    return [line for line in lines if line.table != OTHERS and (line.dataset == "all") == averages]


def paper_table(lines: Sequence[Line]) -> Html:
    """Return the paper's numbers beside those of the run, in percent; nothing without any."""
    if not lines:
        return Html()
    heads = [head_cell(word, text=True) for word in ("method", "data set", "metric")]
    heads += [head_cell(word) for word in ("paper", "this run", "difference", "95 % interval")]
    heads += [head_cell("remark", text=True)]
    rows = []
    for line in lines:
        words = [tag("td", word, class_="text") for word in (line.dataset, line.metric)]
        numbers = [f"{line.reported:.2f}", f"{line.measured:.2f}", f"{line.difference:+.2f}".replace("-", "−")]
        span = "" if line.low is None or line.high is None else f"{line.low:.2f}–{line.high:.2f}"
        cells = [tag("td", told) for told in (*numbers, span)]
        rows.append(
            tag("tr", tag("th", line.method, scope="row"), *words, *cells, tag("td", line.remark, class_="text"))
        )
    inside = sum(line.inside for line in lines)
    summary = f"The paper's numbers: {inside} of {len(lines)} lie in the 95 % interval of this run"
    return tag(
        "details",
        tag("summary", summary),
        scrolling(table(heads, rows, class_="sortable told"), "The paper's numbers beside those of this run"),
    )


# The tables of the paper as lines of CSV files.


FPR95 = "fpr95_ood_positive"

SHOWN: tuple[Space, ...] = ("parameter", "feature")

CsvLine = dict[str, Any]


def regime_lines(materials: Sequence[Material], space: Space) -> Iterator[CsvLine]:
    """Yield the lines of Table 1 or 6."""
    for material in materials:
        for at in regimes(material.study):
            yield {"network": material.network, "data": REGIMES[at], **_figures(material, at, space)}


def dataset_lines(materials: Sequence[Material]) -> Iterator[CsvLine]:
    """Yield the lines of Table 7."""
    for material in materials:
        for space in SHOWN:
            for at in material.study.datasets:
                yield {"network": material.network, "space": space, "data": at, **_figures(material, at, space)}


def average_lines(materials: Sequence[Material]) -> Iterator[CsvLine]:
    """Yield the lines of Tables 2 and 5."""
    for material in materials:
        for mean in material.results.averages:
            yield {"network": material.network, "method": mean.method, "over": mean.over, **_rates(mean)}


def row_lines(materials: Sequence[Material]) -> Iterator[CsvLine]:
    """Yield the lines of Tables 8 to 11."""
    for material in materials:
        for row in material.results.rows:
            yield {"network": material.network, "method": row.method, "dataset": row.dataset, **_rates(row)}


def effect_lines(materials: Sequence[Material]) -> Iterator[CsvLine]:
    """Yield the lines of Table 3."""
    for material in materials:
        for effect in material.ablations.effects:
            yield {"network": material.network, **asdict(effect)}


def cost_lines(materials: Sequence[Material]) -> Iterator[CsvLine]:
    """Yield what Figure 3 shows, with the memory."""
    for material in materials:
        for cost in material.ablations.costs:
            yield {"network": material.network, **asdict(cost)}


def detection_lines(materials: Sequence[Material]) -> Iterator[CsvLine]:
    """Yield the lines of Table 4."""
    for material in materials:
        for told in material.study.detections:
            if told.space != "parameter":
                yield {"network": material.network, **asdict(told)}


def _figures(material: Material, at: str, space: Space) -> CsvLine:
    told = {name: figure(material.study, at, space, name) for name in BOTH}
    return {
        key: value for name in BOTH for key, value in ((name, told[name].value), (f"{name}_stderr", told[name].stderr))
    }


def _rates(cell: Row | Average) -> CsvLine:
    """Return the same columns for every cell, empty where it has no interval."""
    intervals = cell.certainty.intervals if cell.certainty else {}
    line: CsvLine = {}
    for metric in ("auroc", FPR95):
        low, high = intervals.get(metric, (None, None))
        line |= {metric: getattr(cell, metric), f"{metric}_low": low, f"{metric}_high": high}
    return {**line, "best": cell.certainty.best if cell.certainty else None}
