"""Tables of the paper, filled with what a run measured."""

from collections.abc import Sequence
from statistics import fmean

from ...evaluate.reproduce.claims.curvature import REGIMES, figure, regimes
from ...evaluate.reproduce.verdict import Material
from ...evaluate.results import ID, Results
from ...evaluate.rows import METRICS, Average, Row
from ...evaluate.study.certainty import above
from ...evaluate.study.rows import Name, Space, Statistic
from ..cells import between, head_cell, metric_cell, percent, table
from ..curvature.compare import NAMES, SPACES
from ..curvature.numbers import factor, quantity
from ..curvature.table import VERDICTS
from ..markup import Html, scrolling, tag
from ..results_table import column_heads

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
