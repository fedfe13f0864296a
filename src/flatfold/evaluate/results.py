"""Results of a benchmark and their files.

``results.json`` has all metrics and their provenance, ``results.csv`` the rows and ``averages.csv`` their means,
``scores.safetensors`` every score and the norm of every feature, ``thumbnails.safetensors`` thumbnails of the worst
cases.
"""

import csv
import io
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ..core.histograms import histogram_metrics, rounding
from ..core.metrics import auroc, fpr_at_tpr
from ..detectors.registry import printed_name
from ..display.numbers import count
from ..display.table import Table, fitting_text
from ..io.artifacts import read_document, write_document
from .latex import LatexCell, interval_after, latex_table
from .metrics import FIELDS, SHOWN, describe_metrics, find_metrics, rank
from .suites.suite import Group

METRICS = FIELDS
OPENOOD, PAPER = "OpenOOD", "FOLD paper"  # conventions for averages: near and far, or over all data sets
FIGURES = ("alpha", "costs", "histograms", "norms-best", "norms-fold", "roc", "threshold")  # figure files of a report
CHECKED = {"auroc": "AUROC", "fpr95_ood_positive": "FPR95"}  # what is computed again when a file is read
TOLERANCE = 1e-6  # between these and the values of the file
BEST = "the best AUROC of a column, and others without significant difference (paired test)."
BEFORE = "Before you compare"
TITLES = {"near": "Near-OOD", "far": "Far-OOD", "all": "Average"}  # of averages, in tables for papers
ID = "id"  # the name of the in-distribution test data among the scores

Choice = tuple[tuple[str, ...], tuple[str, ...]]  # columns and metrics of a table
Share = Annotated[float, Meta(ge=0, le=1)]
Difference = Annotated[float, Meta(ge=-1, le=1)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]

log = logging.getLogger(__name__)


class OodFacts(msgspec.Struct):
    """An OOD data set in the suite of a result file."""

    name: str
    group: Group
    n: Positive
    about: str
    printed: str = ""


class SuiteFacts(msgspec.Struct):
    """The entries of ``Results.suite``: those without a default are in every result file."""

    name: str
    network: str
    about: str
    n_classes: Positive
    accuracy: Share
    n_test: Positive
    ood: Annotated[list[OodFacts], Meta(min_length=1)]
    family: str = ""
    architecture: str = ""
    protocol: str = ""
    classes: list[str] = []
    deviations: list[str] = []
    fingerprints: dict[str, str] = {}


@dataclass(frozen=True)
class Certainty:
    """95 % intervals by metric, and the lead of the column's best method in AUROC with its paired test.

    ``best`` marks the best method of the column, and those not significantly different from it.
    """

    intervals: dict[str, tuple[Share, Share]]
    behind: Difference
    behind_low: Difference
    behind_high: Difference
    p_value: Share
    best: bool


@dataclass(frozen=True)
class Row:
    """Metrics of a method on one data set, all between 0 and 1. The names of FPR95 contain the positive class."""

    method: str
    tuned_on: str
    dataset: str
    group: Group
    auroc: Share
    fpr95_ood_positive: Share
    fpr95_id_positive: Share
    aupr_out: Share
    aupr_in: Share
    n_id: Positive
    n_ood: Positive
    certainty: Certainty | None = None
    over_images: dict[str, Share] = field(default_factory=dict)  # of pixels: means of metrics of single images


@dataclass(frozen=True)
class Average:
    """Means of a method's rows over ``near``, ``far`` or ``all`` data sets by a given convention."""

    method: str
    tuned_on: str
    over: str
    as_in: str
    auroc: Share
    fpr95_ood_positive: Share
    fpr95_id_positive: Share
    aupr_out: Share
    aupr_in: Share
    certainty: Certainty | None = None


@dataclass(frozen=True)
class MethodRun:
    """The settings and costs of one method.

    ``method`` is its label in tables, ``name`` its name in the registry; ``tuned_on`` is ``"nothing"``, ``"id"`` or
    ``"ood"``. Peak memory is relative to the start of the method, if the system reports it.
    """

    method: str
    name: str
    hyper: dict[str, Any]
    fits_on: str
    tuned_on: str
    fit_seconds: Seconds
    microseconds_per_sample: Seconds
    learnt: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)
    peak_megabytes: float | None = None

    @property
    def alpha(self) -> str:
        """The exponent of partial normalisation, with a star if chosen by AutoFold, or an empty string."""
        alpha = self.learnt.get("alpha_", self.hyper.get("alpha"))
        text = f"{alpha:g}" if isinstance(alpha, (int, float)) else str(alpha)
        return "" if alpha is None else f"{text}{'*' if 'alpha_' in self.learnt else ''}"

    @property
    def printed(self) -> str:
        """The method as papers print it, with the settings of its label, such as ``KNN (k=10, tuned on OOD)``."""
        settings, _, data = self.method.removeprefix(self.name).partition("@")
        notes = [note for note in settings.split(":") if note] + [f"tuned on {data.upper()}"] * bool(data)
        name = printed_name(self.name) if self.method.startswith(self.name) else ""
        return f"{name} ({', '.join(notes)})" if name and notes else name or self.method

    @property
    def tuned(self) -> str:
        """The tuning data for tables: empty, ``ID`` or ``OOD``."""
        return "" if self.tuned_on == "nothing" else self.tuned_on.upper()


@dataclass(frozen=True)
class AlphaCurve:
    """AutoFold's criterion over its grid, and the true AUROC at each exponent.

    ``auroc`` is per data set and on average (``all``); it is never used by a method.
    """

    method: str
    grid: list[float]
    curve: list[float]
    stderr: list[float]
    chosen: float
    auroc: dict[str, list[float]]


@dataclass(frozen=True)
class WorstCase:
    """An image with a misleading score; ``dataset/row`` is the key of its thumbnail.

    ``share`` is the fraction of ID test images with a lower score, ``predicted`` the predicted class.
    """

    method: str
    dataset: str
    row: Count
    name: str
    score: float
    share: Share
    predicted: Count
    label: Count | None = None


@dataclass(frozen=True)
class Overlay:
    """Scores of a method drawn on an image: one of the best or of the worst of a data set by the AUROC of its pixels.

    Keys of the thumbnails: ``dataset/row`` for the image, ``method/dataset/row`` with the scores.
    """

    method: str
    dataset: str
    row: Count
    name: str
    auroc: Share
    best: bool


@dataclass(frozen=True)
class Results:
    """The outcome of a benchmark.

    Attributes:
        suite: Name, network, data sets and sizes (see :func:`~flatfold.evaluate.runner.describe`).
        refused: Methods that do not apply to this data, with the reason.
        scores: Keyed by ``method/dataset``, with ``id`` for the in-distribution test data.
        norms: Norms of the features by data set, in the same order as the scores.
        wrong: The worst cases of each method, worst first.
        thumbnails: Their thumbnails, ``(h, w, 3)``, keyed by ``dataset/row``.
        unreadable: Errors of skipped unreadable images by row, by data set.
        failed: Methods that failed with an unexpected error, with that error.
        pixels: If methods were evaluated on pixels, by ``method/dataset``: how many ID and OOD pixels have a score in
            each of 1,024 bins, ``(2, bins)``. There are no ``scores`` then.
        overlays: Images with the scores of their pixels.
    """

    FORMAT: ClassVar[str] = "flatfold-results"
    VERSION: ClassVar[int] = 4
    ARRAYS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "scores": ("scores.safetensors", ""),
        "norms": ("scores.safetensors", "|h|/"),
        "pixels": ("scores.safetensors", "pixels/"),
        "thumbnails": ("thumbnails.safetensors", ""),
    }

    suite: dict[str, Any]
    methods: list[MethodRun]
    refused: dict[str, str]
    rows: list[Row]
    averages: list[Average]
    alpha_curves: list[AlphaCurve]
    provenance: dict[str, Any]
    scores: dict[str, NDArray[np.float32]]
    norms: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    wrong: list[WorstCase] = field(default_factory=list)
    thumbnails: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    unreadable: dict[str, dict[str, str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    pixels: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    overlays: list[Overlay] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """The columns of a table: every data set, then the averages that exist."""
        return [ood["name"] for ood in self.suite["ood"]] + self.groups

    @property
    def groups(self) -> list[str]:
        """The averages to show: ``all``, and ``near`` and ``far`` unless they equal it or a single data set."""
        sizes = {column: len(members) for column, members in self.members.items()}
        return [over for over in ("near", "far") if 1 < sizes.get(over, 0) < sizes["all"]] + ["all"]

    @cached_property
    def members(self) -> dict[str, tuple[str, ...]]:
        """The data sets of every column that has values, sorted; tables may omit some columns."""
        members = columns_of({row.dataset: row.group for row in self.rows})
        averages = ["near", "far", "all"] if {"near", "far"} <= members.keys() else ["all"]
        datasets = [ood["name"] for ood in self.suite["ood"]]
        return {column: tuple(sorted(members[column])) for column in (*datasets, *averages)}

    def find_columns(self, names: Iterable[str] | None = None) -> list[str]:
        """Return columns by name, by default all that a table shows; ``average`` is another name of ``all``."""
        return self.columns if names is None else select_columns(names, self.members)

    def title_of(self, column: str) -> str:
        """Return the title of a column in tables for papers."""
        printed = {ood["name"]: ood.get("printed") or ood["name"] for ood in self.suite["ood"]} | TITLES
        return str(printed[column])

    @property
    def left_out(self) -> dict[str, str]:
        """The methods without results (refused or failed), with the reason."""
        return self.refused | {method: f"it failed with {error}" for method, error in self.failed.items()}

    @cached_property
    def cells(self) -> dict[tuple[str, str], Row | Average]:
        """The metrics by method and column."""
        cells: dict[tuple[str, str], Row | Average] = {(row.method, row.dataset): row for row in self.rows}
        return cells | {(mean.method, mean.over): mean for mean in self.averages}

    @cached_property
    def ranked(self) -> list[MethodRun]:
        """The methods, best average AUROC first."""
        return self.ranked_by("auroc")

    def ranked_by(self, metric: str) -> list[MethodRun]:
        """Return the methods, the best average of a metric first."""
        return sorted(self.methods, key=lambda run: rank(metric, getattr(self.cells[run.method, "all"], metric)))

    def __repr__(self) -> str:
        found = f"{count(len(self.methods), 'method')}, {count(len(self.suite['ood']), 'OOD data set')}"
        means = {mean.method: mean.auroc for mean in self.averages if mean.over == "all"}
        best = max(means, key=means.__getitem__, default="")
        led = f"; best: {best}, average AUROC {100 * means[best]:.2f} %" if best else ""
        return f"{type(self).__name__}({self.suite['name']}: {found}{led})"

    def __str__(self) -> str:
        return "\n".join([fitting_text([self.table(*choice) for choice in self.choices()]), *self.notes])

    def _repr_html_(self) -> str:
        tested = any(cell.certainty is not None for cell in self.cells.values())
        return self.table().html([*([f"Bold: {BEST}"] if tested else []), *self.notes])

    def choices(self, metrics: Sequence[str] = SHOWN, columns: Sequence[str] | None = None) -> list[Choice]:
        """Return the columns and metrics of tables, each narrower than the one before.

        First the later metrics are left out and then, unless ``columns`` are given, single data sets.
        """
        return list_choices(metrics, *((self.columns, self.groups) if columns is None else (columns,)))

    def table(self, columns: Sequence[str] | None = None, metrics: Sequence[str] = SHOWN) -> Table:
        """Return metrics of each method, the best average first, as ``flatfold bench`` prints them.

        Args:
            columns: OOD data sets, ``near``, ``far`` and ``average``; by default all that a table shows.
            metrics: Some of ``auroc``, ``fpr95``, ``fpr95-id``, ``aupr-out`` and ``aupr-in``; by default the first two.
        """
        suite, columns, metrics = self.suite, self.find_columns(columns), find_metrics(metrics)
        names = ["average" if column == "all" else column for column in columns]
        settings = [name for name in ("alpha", "tuned") if any(getattr(run, name) for run in self.methods)]
        rows, best = [], []
        for place, run in enumerate(self.ranked_by(metrics[0])):
            cells = [self.cells[run.method, column] for column in columns]
            values = [" / ".join(f"{100 * getattr(cell, metric):.2f}" for metric in metrics) for cell in cells]
            rows.append([run.method, *values, *(getattr(run, name) for name in settings)])
            best += [
                (place, i) for i, cell in enumerate(cells, 1) if cell.certainty is not None and cell.certainty.best
            ]
        title = f"{suite['name']}, {suite['network']}" if suite["network"] else suite["name"]
        about = " ".join([suite["about"]] * bool(suite["about"]) + [f"ID accuracy {100 * suite['accuracy']:.2f} % on"])
        title = f"{title}: {about} {suite['n_test']} images."
        heads = ["method", *names, *settings]
        left = [0, len(heads) - 1] if "tuned" in settings else [0]
        return Table(heads, rows, title, describe_metrics(metrics), left, best)

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know: one sentence each."""
        notes = []
        if any("alpha_" in run.learnt for run in self.methods):
            notes.append("* chosen by AutoFold on ID validation data")
        if any(run.tuned_on != "nothing" for run in self.methods):
            notes.append("tuned: the data used to choose hyper-parameters, ID or OOD.")
        for reason in dict.fromkeys(self.left_out.values()):
            methods = [method for method, other in self.left_out.items() if other == reason]
            notes.append(f"{', '.join(methods)} {'was' if len(methods) == 1 else 'were'} left out: {reason}")
        return notes + [f"{BEFORE}: {deviation}." for deviation in self.suite.get("deviations", ())]

    def to_pandas(self) -> Any:
        """Convert to a ``pandas.DataFrame`` with the columns of ``results.csv`` and one row per method and data set.

        Reshape it with ``frame.pivot(index="method", columns="dataset", values="auroc")``.
        """
        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]
        except ModuleNotFoundError as error:
            message = "to_pandas needs pandas, which is not installed. Run: pip install pandas"
            raise ModuleNotFoundError(message) from error
        return pandas.DataFrame(self._lines())

    def _lines(self) -> list[dict[str, Any]]:
        """Return the rows with intervals, settings and costs as columns."""
        runs = {run.method: asdict(run) for run in self.methods}
        extra = ("hyper", "learnt", "fits_on", "fit_seconds", "microseconds_per_sample", "peak_megabytes")
        return [_flatten(row) | {name: runs[row.method][name] for name in extra} for row in self.rows]

    def to_latex(
        self,
        metrics: Sequence[str] = SHOWN,
        intervals: bool = False,
        caption: str = "",
        label: str = "",
        columns: Sequence[str] | None = None,
    ) -> str:
        """Format the results as a LaTeX table: best average first, the best of each column in bold.

        Methods and data sets have the names that papers print, such as ReAct and CIFAR-100.

        Args:
            metrics: Some of ``auroc``, ``fpr95``, ``fpr95-id``, ``aupr-out`` and ``aupr-in``; by default the first two.
            intervals: Append the 95 % interval to each value that has one.
            caption: Caption in LaTeX. With a caption or label the table is a ``table`` environment, else a ``tabular``.
            label: Label of the ``table`` environment.
            columns: OOD data sets, ``near``, ``far`` and ``average``; by default all that a table shows.
        """
        lines, shown = [], self.find_columns(columns)
        for run in self.ranked_by(find_metrics(metrics)[0]):
            cells = [self.cells[run.method, column] for column in shown]
            texts = [
                LatexCell(
                    {metric: getattr(cell, metric) for metric in METRICS},
                    {metric: interval_after(ends) for metric, ends in cell.certainty.intervals.items()}
                    if intervals and cell.certainty is not None
                    else {},
                )
                for cell in cells
            ]
            lines.append((run.printed, texts))
        notes = [f"{self.suite['name']}: {note}" for note in self.suite.get("deviations", ())]
        return latex_table([self.title_of(column) for column in shown], lines, metrics, caption, label, notes)

    def check(self) -> None:
        """Raise a KeyError or ValueError unless the content is complete and consistent, as tables and pages need it."""
        suite = msgspec.convert(self.suite, SuiteFacts)
        groups, methods = {ood.name: ood.group for ood in suite.ood}, [run.method for run in self.methods]
        cells = Counter((mean.method, mean.over) for mean in self.averages)
        cells.update((row.method, row.dataset) for row in self.rows)
        missing = [place for place in product(methods, columns_of(groups)) if cells[place] != 1]
        if missing or not methods or len(set(methods)) < len(methods) or len(groups) < len(suite.ood):
            raise ValueError(f"methods or values are missing or there twice: {missing[:3] or methods}")
        if any(row.method not in methods or groups.get(row.dataset) != row.group for row in self.rows):
            raise ValueError("the rows are not those of the methods and data sets")
        if self.scores:
            self._check_scores()
        if self.pixels:
            self._check_pixels()
        for curve in self.alpha_curves:
            lengths = {len(curve.grid), len(curve.curve), len(curve.stderr), *map(len, curve.auroc.values())}
            if len(lengths) > 1 or not curve.grid or not curve.auroc.keys() >= {*groups, "all"}:
                raise ValueError(f"the curve of {curve.method} is incomplete")
        if not all(case.method in methods and case.dataset in (ID, *groups) for case in self.wrong):
            raise ValueError("the worst cases are of other methods or data sets")
        if not isinstance(self.provenance.get("seconds", 0.0), (int, float)):
            raise ValueError("the provenance has no number of seconds")

    def _check_pixels(self) -> None:
        """Raise ValueError unless the histograms belong to these methods and data sets and give their metrics."""
        wanted = {f"{run.method}/{name}" for run in self.methods for name in (ID, *self.members["all"])}
        if self.pixels.keys() != wanted:
            raise ValueError("the histograms of pixels are those of other methods or data sets")
        for key, counts in self.pixels.items():
            if counts.ndim != 2 or counts.shape[0] != 2 or counts.dtype != np.int64 or counts.min() < 0:
                raise ValueError(f"the histogram of {key} is no pair of counts")
        for row in self.rows:
            known, unknown = self.pixels[f"{row.method}/{row.dataset}"]
            if (known.sum(), unknown.sum()) != (row.n_id, row.n_ood):
                raise ValueError(f"the histogram of {row.method} on {row.dataset} has another number of pixels")
            bounds = rounding(known, unknown)
            for name, value in histogram_metrics(known, unknown).items():
                if not abs(getattr(row, name) - float(value)) <= bounds[name] + TOLERANCE:
                    raise ValueError(
                        f"{name} of {row.method} on {row.dataset} is {getattr(row, name):.6g}, but its histogram gives "
                        f"{float(value):.6g}"
                    )
        keys = {f"{it.dataset}/{it.row}" for it in self.overlays}
        keys |= {f"{it.method}/{it.dataset}/{it.row}" for it in self.overlays}
        if not keys <= self.thumbnails.keys():
            raise ValueError("the images of some overlays are missing")

    def require_scores(self) -> None:
        """Raise a ValueError if the results hold the metrics alone, or histograms of pixels."""
        if self.pixels:
            raise ValueError(
                f"the results of {self.suite['name']} are of pixels, whose scores are not kept, so runs or methods "
                "cannot be compared or extended afterwards. Run all methods together: the table marks those that do "
                "not differ significantly from the best."
            )
        if not self.scores:
            raise ValueError(
                f"the results of {self.suite['name']} must hold the scores of its images, got none. "
                "Run `flatfold bench` again."
            )

    def _check_scores(self) -> None:
        """Raise unless all scores are there, and give the metrics."""
        sizes = {(row.method, row.dataset, row.n_ood) for row in self.rows}
        sizes |= {(row.method, ID, row.n_id) for row in self.rows}
        for method, dataset, size in sizes:
            scores = self.scores.get(f"{method}/{dataset}", np.empty(0))
            if scores.shape != (size,) or not np.isfinite(scores).all():
                raise ValueError(f"the scores of {method} on {dataset} are not {size} finite numbers")
            norms = self.norms.get(dataset, scores)
            if norms.shape != scores.shape or not np.isfinite(norms).all():
                raise ValueError(f"the norms of {dataset} are not {size} finite numbers")
        with ThreadPoolExecutor() as pool:  # numpy releases the lock while sorting
            found = pool.map(self._recompute, self.rows)
            singles = {(row.method, row.dataset): each for row, each in zip(self.rows, found, strict=True)}
        for (method, column), cell in self.cells.items():
            parts = [singles[method, dataset] for dataset in self.members.get(column, ())]
            for metric, title in CHECKED.items() if parts else ():
                there, expected = getattr(cell, metric), fmean(part[metric] for part in parts)
                if not abs(there - expected) <= TOLERANCE:
                    raise ValueError(
                        f"{title} of {method} on {column} is {there:.6g}, but its scores give {expected:.6g}"
                    )

    def _recompute(self, row: Row) -> dict[str, float]:
        """Return the metrics of a row from the scores."""
        known, unknown = (self.scores[f"{row.method}/{name}"] for name in (ID, row.dataset))
        return {"auroc": auroc(known, unknown), "fpr95_ood_positive": fpr_at_tpr(known, unknown)}

    def save(self, folder: Path | str) -> None:
        """Write the files, ``results.json`` last, which identifies the arrays by sha256.

        An outdated report in the folder is removed.
        """
        tables = {"results.csv": as_csv(self._lines()), "averages.csv": as_csv(map(_flatten, self.averages))}
        write_document(Path(folder) / "results.json", self, tables)
        remove_pages(folder, "report.html", *(f"figures/{name}.*" for name in FIGURES))


def load_results(folder: Path | str) -> Results:
    """Read the files that :meth:`Results.save` wrote.

    Raises:
        ValueError: The folder has no results, or they are damaged, mixed or of another version.
    """
    return read_document(Path(folder) / "results.json", Results, "flatfold bench")


def remove_pages(folder: Path | str, *patterns: str) -> None:
    """Remove outdated pages and figures of a folder."""
    for path in (path for pattern in patterns for path in Path(folder).glob(pattern)):
        path.unlink()
        log.debug("removed outdated %s", path)


def columns_of(groups: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the data sets of each column: one column per data set, then near, far and all."""
    means = {over: tuple(name for name in groups if over in (groups[name], "all")) for over in ("near", "far", "all")}
    return {name: (name,) for name in groups} | {over: members for over, members in means.items() if members}


def select_columns(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the columns with these names; ``average`` is another name of ``all``."""
    columns, known = list(dict.fromkeys("all" if name == "average" else name for name in names)), list(known)
    if not columns or not set(columns) <= set(known):
        shown = ", ".join("average" if name == "all" else name for name in known)
        unknown = ", ".join(repr(name) for name in columns if name not in known) or "none"
        raise ValueError(f"columns must be some of {shown}, got {unknown}.")
    return columns


def list_choices(metrics: Sequence[str], *columns: Sequence[str]) -> list[Choice]:
    """Return each of some columns with all metrics, and then with the first."""
    return list(dict.fromkeys((tuple(some), tuple(metrics[:n])) for some in columns for n in (len(metrics), 1)))


def in_family(method: str) -> bool:
    """Return whether a method, given by name or label, is FOLD, AutoFold or one of their variants."""
    return method.removeprefix("auto").startswith("fold")


def as_csv(lines: Iterable[Mapping[str, Any]]) -> str:
    """Format rows as CSV; all must have the columns of the first, in any order."""
    text = io.StringIO()
    table: csv.DictWriter[str] | None = None
    for line in lines:
        if table is None:
            table = csv.DictWriter(text, list(line), lineterminator="\n")
            table.writeheader()
        if line.keys() != set(table.fieldnames):
            raise ValueError(
                f"rows of a table must have the columns {', '.join(table.fieldnames)}, got {', '.join(line)}. "
                "Give all rows the same columns."
            )
        table.writerow({name: json.dumps(value) if isinstance(value, dict) else value for name, value in line.items()})
    return text.getvalue()


def _flatten(figures: Row | Average) -> dict[str, Any]:
    """Return the values as columns of a table, each metric followed by the ends of its interval."""
    certainty = figures.certainty
    columns: dict[str, Any] = {}
    for name in (column.name for column in fields(figures) if column.name not in ("certainty", "over_images")):
        columns[name] = getattr(figures, name)
        if certainty is not None and name in certainty.intervals:
            columns[f"{name}_low"], columns[f"{name}_high"] = certainty.intervals[name]
    if certainty is not None:
        columns |= {name: getattr(certainty, name) for name in ("behind", "behind_low", "behind_high", "best")}
    if isinstance(figures, Row):
        columns |= {f"{name}_over_images": value for name, value in figures.over_images.items()}
    return columns
