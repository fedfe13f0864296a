"""The page of a reproduction, and the files of its tables and figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

from markupsafe import Markup

from ..display.figure import Drawing
from ..evaluate.results import ID, METRICS, Average, Row, as_csv
from ..evaluate.study import detections
from ..evaluate.study_results import NAMES, SPACES, Space, above
from ..evaluate.summary import family_of
from ..io.artifacts import write_json
from ..io.files import write_atomically
from ..report.curvature import VERDICTS, detection_table, statistics_table
from ..report.curvature_figures import spectral_densities, top_eigenvalues, trace_densities
from ..report.figures import TALL
from ..report.page import columns_of
from ..report.templates import factor, percent, render
from . import figures
from .ablations import NORMALISED_METHODS
from .comparison import SEED_TABLES, average_seeds, explain_missing_numbers, find_paper_numbers
from .measurements import REGIMES, SPACES_SHOWN, STATISTICS, NetworkRun, list_regimes, statistic
from .run import Reproduction
from .verdicts import Agreement, ClaimVerdict

TEMPLATES = Path(__file__).parent / "templates"
PAGE, JSON, FILES = "reproduction.html", "reproduction.json", "exhibits"
FULL = "the exponent of partial normalisation is 1, so that it is full normalisation"
COMPUTED = "Errors in this table are of the computation alone; the checks also cover the sampling of images."
ALL_IMAGES = "AUROC in percent of the traces at partially normalised features, on all images, as in the check above."

T = TypeVar("T")
CsvLine = dict[str, Any]


class Content(NamedTuple):
    """The content of an exhibit."""

    layout: str  # macro of exhibits.html
    values: Any  # its argument
    drawings: Sequence[Drawing] = ()  # for files
    lines: Sequence[CsvLine] = ()  # of a CSV file; empty for an exhibit that is a figure alone


@dataclass(frozen=True)
class _Document:
    """The verdicts of a reproduction as a JSON document."""

    FORMAT: ClassVar[str] = "flatfold-reproduction"
    VERSION: ClassVar[int] = 1

    networks: list[str]
    verdicts: list[ClaimVerdict]


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
    write_json(folder / JSON, _Document([run.network for run in runs], reproduction.verdicts))
    write_atomically(folder / PAGE, render_reproduction(reproduction, contents))
    return folder / PAGE


def render_reproduction(reproduction: Reproduction, contents: Mapping[str, Content]) -> Markup:
    """Return the page, with the content of exhibits by their number."""
    runs, verdicts = reproduction.runs, reproduction.verdicts
    suite, agreements = runs[0].results.suite, [verdict.agreement for verdict in verdicts]
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
        paper_numbers=find_paper_numbers(runs),
        seeds={number: table for number in SEED_TABLES if (table := _seed_table(runs, number))["rows"]},
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
        drawings = _per_network(runs, lambda run: replace(DRAWINGS[number](run), name=_file_name(slug(number), run)))
    return Content("drawings", drawings, [drawing for _, drawing in drawings])


DRAWINGS: dict[str, Callable[[NetworkRun], Drawing]] = {
    "Figure 2": lambda run: figures.typical_traces(run.study),
    "Figure 4": lambda run: figures.alpha_sensitivity(run.ablations.sensitivities),
    "Figure 6": lambda run: top_eigenvalues(run.study),
    "Figure 7": lambda run: figures.typical_spectra(run.study),
    "Figures 8 and 10": lambda run: spectral_densities(run.study, "parameter"),
    "Figures 9 and 11": lambda run: spectral_densities(run.study, "feature"),
    "Figures 12 to 15": lambda run: trace_densities(run.study),
}


def _per_network(runs: Sequence[NetworkRun], make: Callable[[NetworkRun], T]) -> list[tuple[str, T]]:
    return [(run.network, make(run)) for run in runs]


def _csv_lines(runs: Sequence[NetworkRun], rows: Callable[[NetworkRun], Iterable[Any]]) -> list[CsvLine]:
    """Return rows, which are dataclasses or mappings, as lines that begin with their network."""
    return [
        {"network": run.network, **(row if isinstance(row, Mapping) else asdict(row))}
        for run in runs
        for row in rows(run)
    ]


def _file_name(stem: str, run: NetworkRun) -> str:
    return f"{stem}-{run.network}" if run.network else stem


def _build_figure_1(runs: Sequence[NetworkRun]) -> Content:
    trend = figures.trace_by_regime(runs, "figure-1a")
    wide = [figures.cost_against_auroc(run, _file_name("figure-1b", run)) for run in runs]
    tall = [figures.cost_against_auroc(run, _file_name("figure-1b-tall", run), TALL) for run in runs]
    pairs = [(run.network, both) for run, *both in zip(runs, wide, tall, strict=True)]
    return Content("figure_1", {"trend": trend, "costs": pairs}, [trend, *wide])


def _build_regimes(runs: Sequence[NetworkRun], space: Space) -> Content:
    rows, lines = [], list[CsvLine]()
    for run in runs:
        for at in list_regimes(run.study):
            cells = []
            for name in STATISTICS:
                value, known = (statistic(run.study, regime, space, name) for regime in (at, ID))
                verdict = "" if at == ID else VERDICTS[above(value, known)]
                ratio = "" if at == ID else factor(value.value, known.value)
                cells.append({"value": value.value, "stderr": value.stderr, "ratio": ratio, "verdict": verdict})
            rows.append({"network": run.network, "regime": REGIMES[at], "cells": cells})
            lines.append({"network": run.network, "data": REGIMES[at], **_statistics(run, at, space)})
    lines += _seed_lines(runs, space, by_data_set=False)
    values = {"space": SPACES[space], "names": [NAMES[name] for name in STATISTICS], "rows": rows}
    return Content("regimes", values, lines=lines)


def _build_methods(runs: Sequence[NetworkRun], averages: bool) -> Content:
    def show(run: NetworkRun) -> dict[str, Any]:
        columns = run.results.groups if averages else run.results.columns
        return {"results": run.results, "columns": columns, "heads": columns_of(run.results, columns)}

    lines = _average_lines(runs)
    if not averages:
        key = ("method", "dataset")
        lines = _csv_lines(runs, lambda run: [_rates(row, key) for row in run.results.rows])
    parts = _per_network(runs, show)
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
    def show(run: NetworkRun) -> dict[str, Any]:
        refused = {name: why for name, why in run.ablations.refused.items() if name in NORMALISED_METHODS}
        return {"ablations": run.ablations, "refused": refused}

    lines = _csv_lines(runs, lambda run: run.ablations.effects)
    return Content("effects", _per_network(runs, show), lines=lines)


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
    def show(run: NetworkRun) -> dict[str, Any]:
        drawing = figures.norm_scatter(run.ablations, run.study.datasets[1:], _file_name("figure-5", run))
        return {"drawing": drawing, "rows": [row for row in run.ablations.separations if row.dataset == "all"]}

    parts = _per_network(runs, show)
    lines = _csv_lines(runs, lambda run: run.ablations.separations)
    return Content("separations", parts, [values["drawing"] for _, values in parts], lines)


def _build_statistics(runs: Sequence[NetworkRun]) -> Content:
    def show(run: NetworkRun) -> Markup:
        shown = [value for value in run.study.statistics if value.space in SPACES_SHOWN]
        return statistics_table(replace(run.study, statistics=shown))

    def rows(run: NetworkRun) -> list[CsvLine]:
        places = [(space, at) for space in SPACES_SHOWN for at in run.study.datasets]
        return [{"space": space, "data": at, **_statistics(run, at, space)} for space, at in places]

    lines = _csv_lines(runs, rows)
    for space in SPACES_SHOWN:
        for line in _seed_lines(runs, space, by_data_set=True):
            lines.append({"network": line.pop("network"), "space": space, **line})
    return Content("tables", {"text": COMPUTED, "parts": _per_network(runs, show)}, lines=lines)


def _build_costs(runs: Sequence[NetworkRun]) -> Content:
    def show(run: NetworkRun) -> dict[str, Any]:
        bars = figures.cost_bars(run.ablations.costs, _file_name("figure-3", run))
        return {"bars": bars, "costs": run.ablations.costs}

    parts = _per_network(runs, show)
    lines = _csv_lines(runs, lambda run: run.ablations.costs)
    return Content("costs", parts, [values["bars"] for _, values in parts], lines)


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
    return _csv_lines(runs, lambda run: [_rates(mean, ("method", "over")) for mean in run.results.averages])


def _statistics(run: NetworkRun, at: str, space: Space) -> CsvLine:
    line: CsvLine = {}
    for name in STATISTICS:
        value = statistic(run.study, at, space, name)
        error = value.stderr if value.stderr is None or isfinite(value.stderr) else None
        line |= {name: value.value, f"{name}_stderr": error, f"{name}_std": None}
    return line


def _seed_lines(runs: Sequence[NetworkRun], space: Space, by_data_set: bool) -> list[CsvLine]:
    """Return the means over networks that differ by their seed, with the deviation, as lines of a CSV file."""
    lines = list[CsvLine]()
    for row in average_seeds(runs, (space,), by_data_set):
        line: CsvLine = {"network": f"mean of {row.n}: {row.family}", "data": REGIMES.get(row.data, row.data)}
        for name, (mean, deviation) in zip(STATISTICS, row.cells, strict=True):
            line |= {name: mean, f"{name}_stderr": None, f"{name}_std": deviation}
        lines.append(line)
    return lines


def _seed_table(runs: Sequence[NetworkRun], number: str) -> dict[str, Any]:
    """Return the values of a table of means over seeds."""
    spaces, by_data_set = SEED_TABLES[number]
    heads = [(NAMES[name], f"over {SPACES[space]}") for space in spaces for name in STATISTICS]
    return {"heads": heads, "rows": average_seeds(runs, spaces, by_data_set)}


def _rates(cell: Row | Average, names: Sequence[str]) -> CsvLine:
    """Return the named columns, then the same columns of rates for every cell, empty without an interval."""
    intervals = cell.certainty.intervals if cell.certainty else {}
    line: CsvLine = {name: getattr(cell, name) for name in names}
    for metric in ("auroc", "fpr95_ood_positive"):
        low, high = intervals.get(metric, (None, None))
        line |= {metric: getattr(cell, metric), f"{metric}_low": low, f"{metric}_high": high}
    return {**line, "best": cell.certainty.best if cell.certainty else None}


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
