"""The page of a reproduction, and the files of its tables and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, get_args

from markupsafe import Markup

from ..evaluate.results import ID, METRICS, Average, Row, as_csv
from ..evaluate.study import detections
from ..evaluate.study_results import NAMES, SPACES, Space, above
from ..evaluate.summary import families, family_of
from ..io.artifacts import write_json
from ..io.files import write_atomically
from ..report.curvature import VERDICTS, detection_table, statistics_table
from ..report.curvature_figures import spectral_densities, top_eigenvalues, trace_densities
from ..report.figure import Drawing
from ..report.figures import TALL
from ..report.page import columns_of
from ..report.templates import factor, percent, render
from . import figures
from .ablations import NORMALISED_METHODS
from .claims import BOTH, REGIMES, SHOWN, NetworkRun, list_regimes, statistic
from .comparison import COMPARED, SEEDS, SeedRow, average_seeds, compare_curvature, list_seed_means
from .exhibits import Agreement, Verdict
from .run import Reproduction
from .tables import OTHERS, Line, compare_with_paper, incomparable, table_of

TEMPLATES = Path(__file__).parent / "templates"
PAGE, JSON, FILES = "reproduction.html", "reproduction.json", "exhibits"
FULL = "the exponent of partial normalisation is 1, so that it is full normalisation"
COMPUTED = "Errors in this table are of the computation alone; the checks also cover the sampling of images."
ALL_IMAGES = "AUROC in percent of the traces at partially normalised features, on all images, as in the check above."

CsvLine = dict[str, Any]


class Content(NamedTuple):
    """The content of an exhibit."""

    layout: str  # macro of exhibits.html
    values: Any  # its argument
    drawings: Sequence[Drawing] = ()  # for files
    lines: Sequence[CsvLine] = ()  # of a CSV file; none for an exhibit that is a figure alone


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of a reproduction as a JSON document."""

    FORMAT: ClassVar[str] = "flatfold-reproduction"
    VERSION: ClassVar[int] = 1

    networks: list[str]
    verdicts: list[Verdict]


def write_reproduction(folder: Path, reproduction: Reproduction) -> Path:
    """Write ``reproduction.html`` and return its path.

    Other files are ``reproduction.json`` with all verdicts, and in ``exhibits`` a CSV file per table and an SVG and a
    PDF file per figure and network. The same measurements give the same bytes.
    """
    runs = reproduction.runs
    contents = {verdict.number: build_content(verdict.number, runs) for verdict in reproduction.verdicts}
    for number, content in contents.items():
        for drawing in content.drawings:
            drawing.save(folder / FILES)
        if content.lines:
            write_atomically(folder / FILES / f"{slug(number)}.csv", as_csv(content.lines))
    numbers = [line for chosen in find_paper_numbers(runs).values() for line in chosen]
    if numbers:
        write_atomically(folder / FILES / "paper-numbers.csv", as_csv(map(asdict, numbers)))
    write_json(folder / JSON, Verdicts([run.network for run in runs], reproduction.verdicts))
    write_atomically(folder / PAGE, render_reproduction(reproduction, contents))
    return folder / PAGE


def render_reproduction(reproduction: Reproduction, contents: Mapping[str, Content]) -> Markup:
    """Return the page, with the content of exhibits by their number."""
    runs, verdicts = reproduction.runs, reproduction.verdicts
    suite, agreements = runs[0].results.suite, [verdict.agreement for verdict in verdicts]
    selected = find_paper_numbers(runs)
    facts = [
        (len(runs), "network" + "s" * (len(runs) > 1)),
        (f"{' / '.join(percent(run.results.suite['accuracy']) for run in runs)} %", "accuracy"),
        (max(len(run.results.methods) for run in runs), "methods"),
        (f"{suite['n_test']:,}", "ID test images"),
        (f"{sum(ood['n'] for ood in suite['ood']):,}", f"OOD images in {len(suite['ood'])} data sets"),
        (sum(len(verdict.checks) for verdict in verdicts), "checks"),
    ]
    return render(
        "reproduction.html",
        TEMPLATES,
        title=f"The FOLD paper on {suite['name']}",
        about=suite["about"],
        facts=facts,
        counts=[(agreements.count(kind), kind) for kind in get_args(Agreement) if kind in agreements],
        warnings=_list_warnings(runs),
        verdicts=verdicts,
        slugs={verdict.number: slug(verdict.number) for verdict in verdicts},
        contents=contents,
        paper_numbers=selected,
        seeds={number: _seed_table(number, rows) for number, rows in list_seed_means(runs)},
    )


def slug(number: str) -> str:
    """Return the number of an exhibit for ids and file names, ``figures-8-10`` for example."""
    return "-".join(word for word in number.lower().split() if word not in ("and", "to"))


def build_content(number: str, runs: Sequence[NetworkRun]) -> Content:
    """Return the tables and figures of an exhibit."""
    if number in BUILDERS:
        return BUILDERS[number](runs)
    if number == "Theorem 1":  # the same for all networks
        drawings = [("", figures.theorem_figure(slug(number)))]
    else:
        drawings = [(run.network, DRAWINGS[number](run, _file_name(slug(number), run.network))) for run in runs]
    return Content("drawings", drawings, [drawing for _, drawing in drawings])


DRAWINGS: dict[str, Callable[[NetworkRun, str], Drawing]] = {
    "Figure 2": lambda run, name: figures.typical_traces(run.study, name),
    "Figure 4": lambda run, name: figures.alpha_sensitivity(run.ablations.sensitivities, name),
    "Figure 6": lambda run, name: replace(top_eigenvalues(run.study), name=name),
    "Figure 7": lambda run, name: figures.typical_spectra(run.study, name),
    "Figures 8 and 10": lambda run, name: replace(spectral_densities(run.study, "parameter"), name=name),
    "Figures 9 and 11": lambda run, name: replace(spectral_densities(run.study, "feature"), name=name),
    "Figures 12 to 15": lambda run, name: replace(trace_densities(run.study), name=name),
}


def _file_name(stem: str, network: str) -> str:
    return f"{stem}-{network}" if network else stem


def _build_figure_1(runs: Sequence[NetworkRun]) -> Content:
    trend = figures.trace_by_regime(runs, "figure-1a")
    wide = [figures.cost_against_auroc(run, _file_name("figure-1b", run.network)) for run in runs]
    tall = [figures.cost_against_auroc(run, _file_name("figure-1b-tall", run.network), TALL) for run in runs]
    pairs = [(run.network, both) for run, *both in zip(runs, wide, tall, strict=True)]
    return Content("figure_1", {"trend": trend, "costs": pairs}, [trend, *wide])


def _build_regimes(runs: Sequence[NetworkRun], space: Space) -> Content:
    rows, lines = [], list[CsvLine]()
    for run in runs:
        for at in list_regimes(run.study):
            cells = []
            for name in BOTH:
                value, known = (statistic(run.study, regime, space, name) for regime in (at, ID))
                verdict = "" if at == ID else VERDICTS[above(value, known)]
                ratio = "" if at == ID else factor(value.value, known.value)
                cells.append({"value": value.value, "stderr": value.stderr, "ratio": ratio, "verdict": verdict})
            rows.append({"network": run.network, "regime": REGIMES[at], "cells": cells})
            lines.append({"network": run.network, "data": REGIMES[at], **_statistics(run, at, space)})
    lines += _seed_lines(runs, (space,), by_data_set=False)
    values = {"space": SPACES[space], "names": [NAMES[name] for name in BOTH], "rows": rows}
    return Content("regimes", values, lines=lines)


def _build_methods(runs: Sequence[NetworkRun], averages: bool) -> Content:
    parts, lines = [], _average_lines(runs) if averages else list[CsvLine]()
    for run in runs:
        columns = run.results.groups if averages else run.results.columns
        heads = columns_of(run.results, columns)
        parts.append((run.network, {"results": run.results, "columns": columns, "heads": heads}))
        for row in () if averages else run.results.rows:
            lines.append({"network": run.network, "method": row.method, "dataset": row.dataset, **_rates(row)})
    return Content("methods", {"label": "Averages" if averages else "Every data set", "parts": parts}, lines=lines)


def _build_networks(runs: Sequence[NetworkRun]) -> Content:
    """Return the averages of every method and network, and their mean for methods that all networks have."""
    if len({family_of(run.results) for run in runs}) == 1:
        return Content("nothing", None)
    rows: list[dict[str, Any]] = []
    for method in dict.fromkeys(method.method for run in runs for method in run.results.methods):
        cells = [run.results.cells.get((method, "all")) for run in runs]
        mean = {metric: fmean(getattr(cell, metric) for cell in cells) for metric in METRICS} if all(cells) else None
        rows.append({"method": method, "cells": cells, "mean": mean})
    rows.sort(key=lambda row: -(row["mean"] or {"auroc": 0.0})["auroc"])
    values = {"networks": [run.network or "network" for run in runs], "rows": rows}
    return Content("networks", values, lines=[line for line in _average_lines(runs) if line["over"] == "all"])


def _build_effects(runs: Sequence[NetworkRun]) -> Content:
    parts = []
    for run in runs:
        refused = {name: why for name, why in run.ablations.refused.items() if name in NORMALISED_METHODS}
        parts.append((run.network, {"ablations": run.ablations, "refused": refused}))
    lines = [{"network": run.network, **asdict(effect)} for run in runs for effect in run.ablations.effects]
    return Content("effects", parts, lines=lines)


def _build_detections(runs: Sequence[NetworkRun]) -> Content:
    parts, lines = [], list[CsvLine]()
    for run in runs:
        ablations, groups = run.ablations, {ood["name"]: ood["group"] for ood in run.results.suite["ood"]}
        traces = {f"logit/{name}": values for name, values in ablations.logits.items()}
        traces |= {f"feature/{name}": ablations.scores[f"partial/{name}"] for name in ablations.logits}
        alpha, spaces = ablations.alphas["partial"], ("feature", "logit")
        shown = [row for space in spaces for row in detections(space, alpha, traces, groups)]  # type: ignore[arg-type]
        parts.append((run.network, detection_table(replace(run.study, detections=shown, suite=run.results.suite))))
        lines += [{"network": run.network, **asdict(detection)} for detection in shown]
    return Content("tables", {"text": ALL_IMAGES, "parts": parts}, lines=lines)


def _build_separations(runs: Sequence[NetworkRun]) -> Content:
    drawings = [
        figures.norm_scatter(run.ablations, run.study.datasets[1:], _file_name("figure-5", run.network)) for run in runs
    ]
    parts = []
    for run, drawing in zip(runs, drawings, strict=True):
        together = [row for row in run.ablations.separations if row.dataset == "all"]
        parts.append((run.network, {"drawing": drawing, "rows": together}))
    lines = [{"network": run.network, **asdict(row)} for run in runs for row in run.ablations.separations]
    return Content("separations", parts, drawings, lines)


def _build_statistics(runs: Sequence[NetworkRun]) -> Content:
    parts, lines = [], list[CsvLine]()
    for run in runs:
        shown = [value for value in run.study.statistics if value.space in SHOWN]
        parts.append((run.network, statistics_table(replace(run.study, statistics=shown))))
        for space in SHOWN:
            for at in run.study.datasets:
                lines.append({"network": run.network, "space": space, "data": at, **_statistics(run, at, space)})
    for space in SHOWN:
        lines += [{**line, "space": space} for line in _seed_lines(runs, (space,), by_data_set=True)]
    return Content("tables", {"text": COMPUTED, "parts": parts}, lines=lines)


def _build_costs(runs: Sequence[NetworkRun]) -> Content:
    bars = [figures.cost_bars(run.ablations.costs, _file_name("figure-3", run.network)) for run in runs]
    parts = [(run.network, {"bars": b, "costs": run.ablations.costs}) for run, b in zip(runs, bars, strict=True)]
    lines = [{"network": run.network, **asdict(cost)} for run in runs for cost in run.ablations.costs]
    return Content("costs", parts, bars, lines)


BUILDERS: dict[str, Callable[[Sequence[NetworkRun]], Content]] = {
    "Figure 1": _build_figure_1,
    "Table 1": lambda runs: _build_regimes(runs, "parameter"),
    "Table 2": lambda runs: _build_methods(runs, averages=True),
    "Figure 3": _build_costs,
    "Figure 5": _build_separations,
    "Table 3": _build_effects,
    "Table 4": _build_detections,
    "Table 5": _build_networks,
    "Table 6": lambda runs: _build_regimes(runs, "feature"),
    "Table 7": _build_statistics,
    "Tables 8 to 11": lambda runs: _build_methods(runs, averages=False),
}


def _average_lines(runs: Sequence[NetworkRun]) -> list[CsvLine]:
    return [
        {"network": run.network, "method": mean.method, "over": mean.over, **_rates(mean)}
        for run in runs
        for mean in run.results.averages
    ]


def _statistics(run: NetworkRun, at: str, space: Space) -> CsvLine:
    line: CsvLine = {}
    for name in BOTH:
        value = statistic(run.study, at, space, name)
        error = value.stderr if value.stderr is None or isfinite(value.stderr) else None
        line |= {name: value.value, f"{name}_stderr": error, f"{name}_std": None}
    return line


def _seed_lines(runs: Sequence[NetworkRun], spaces: Sequence[Space], by_data_set: bool) -> list[CsvLine]:
    """Return the means over networks that differ by their seed, with the deviation, as lines of a CSV file."""
    lines = list[CsvLine]()
    for row in average_seeds(runs, spaces, by_data_set):
        line: CsvLine = {"network": f"mean of {row.n}: {row.family}", "data": REGIMES.get(row.data, row.data)}
        for name, (mean, deviation) in zip(BOTH, row.cells, strict=True):
            line |= {name: mean, f"{name}_stderr": None, f"{name}_std": deviation}
        lines.append(line)
    return lines


def _rates(cell: Row | Average) -> CsvLine:
    """Return the same columns for every cell, empty without an interval."""
    intervals = cell.certainty.intervals if cell.certainty else {}
    line: CsvLine = {}
    for metric in ("auroc", "fpr95_ood_positive"):
        low, high = intervals.get(metric, (None, None))
        line |= {metric: getattr(cell, metric), f"{metric}_low": low, f"{metric}_high": high}
    return {**line, "best": cell.certainty.best if cell.certainty else None}


def explain_missing_numbers(runs: Sequence[NetworkRun]) -> str:
    """Return why the paper's numbers are not compared with those of this run, or nothing."""
    reasons = list[str]()
    for group in families([run.results for run in runs]).values():
        reasons += incomparable([run.suite for run in group], table_of(group[0].suite))
    if not reasons:
        return ""
    why = "; ".join(dict.fromkeys(reasons))
    return f"The paper's own numbers are not compared with these, because {why}. Its claims are tested all the same."


def find_paper_lines(runs: Sequence[NetworkRun]) -> list[Line]:
    """Return every number of the paper that this run has too, none if they cannot be compared."""
    if explain_missing_numbers(runs):
        return []
    try:
        return compare_with_paper([run.results for run in runs])
    except ValueError:  # nothing in common, or one network twice
        return []


def find_paper_numbers(runs: Sequence[NetworkRun]) -> dict[str, list[Line]]:
    """Return the lines of every table of the paper that has any."""
    lines = find_paper_lines(runs)
    found = {number: select_lines(lines, number) for number in ("Table 2", "Table 5", "Tables 8 to 11")}
    if lines:  # the suite is the paper's
        found |= {number: compare_curvature(runs, number) for number in COMPARED}
    return {number: chosen for number, chosen in found.items() if chosen}


def _seed_table(number: str, rows: Sequence[SeedRow]) -> dict[str, Any]:
    """Return the values of a table of means over seeds."""
    heads = [(NAMES[name], f"over {SPACES[space]}") for space in SEEDS[number][0] for name in BOTH]
    return {"heads": heads, "rows": rows, "n": rows[0].n}


def select_lines(lines: Sequence[Line], number: str) -> list[Line]:
    """Return the lines that belong to Table 2, Table 5 or Tables 8 to 11."""
    if number == "Table 5":
        return [line for line in lines if line.table == OTHERS]
    averages = number == "Table 2"
    return [line for line in lines if line.table != OTHERS and (line.dataset == "all") == averages]


def _list_warnings(runs: Sequence[NetworkRun]) -> list[str]:
    """Return everything that limits the comparison with the paper, each sentence once with its networks."""
    networks: dict[str, list[str]] = {}
    for run in runs:
        refused = run.results.left_out | run.ablations.refused
        sentences = [f"{method} was left out: {reason}" for method, reason in refused.items()]
        sentences += run.results.suite.get("deviations") or []
        sentences += [FULL] * (run.ablations.alphas["partial"] == 1)
        sentences += [f"curvature study: {text}" for text in run.study.suite.get("deviations") or []]
        for sentence in dict.fromkeys(sentences):
            networks.setdefault(sentence, []).append(run.network)
    reason = explain_missing_numbers(runs)
    return [reason] * bool(reason) + [
        sentence if len(names) == len(runs) else f"{', '.join(names)}: {sentence}"
        for sentence, names in networks.items()
        if len(names) != len(runs) or sentence.rstrip(".") not in reason
    ]
