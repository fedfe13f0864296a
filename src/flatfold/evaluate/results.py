"""Result files of a benchmark: everything that a report or a comparison needs, and nothing that runs.

``results.json`` has all figures and where they come from, ``results.csv`` the rows and ``averages.csv`` their means,
``scores.safetensors`` every score and the norm of every feature, ``thumbnails.safetensors`` small copies of the most
wrong images.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..core.metrics import aupr, auroc, fpr_at_tpr
from ..io.files import write_atomically
from .suites.suite import Group

# One row of a result table: a method, a data set, and how well the first finds the second.


METRICS = ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out", "aupr_in")


OPENOOD, PAPER = "OpenOOD", "FOLD paper"  # who averages so


@dataclass(frozen=True)
class Certainty:
    """How far a figure can be trusted, and whether its method can be told from the best one of its column.

    Attributes:
        intervals: Lower and upper end of the 95 % interval, by metric.
        behind: AUROC of the column's best method minus this one's, with its own 95 % interval: both methods saw the
            same images, so it is narrower than the two intervals make believe.
        p_value: Of the hypothesis that both are equally good.
        best: The method is the best of its column, or cannot be told from it.
    """

    intervals: dict[str, tuple[float, float]]
    behind: float
    behind_low: float
    behind_high: float
    p_value: float
    best: bool


@dataclass(frozen=True)
class Row:
    """A method's figures on one data set, all between 0 and 1. The FPR95 names say which class is positive."""

    method: str
    tuned_on: str
    dataset: str
    group: Group
    auroc: float
    fpr95_ood_positive: float
    fpr95_id_positive: float
    aupr_out: float
    aupr_in: float
    n_id: int
    n_ood: int
    certainty: Certainty | None = None


@dataclass(frozen=True)
class MethodRun:
    """What was done for one method before it was judged.

    Attributes:
        method: How tables and figures call it: the name, hyper-parameters that were asked for, and ``@id`` or ``@ood``
            when others were tuned on such data.
        name: In the registry.
        hyper: All hyper-parameters, tuned ones included.
        fits_on: Which in-distribution split it learnt from.
        tuned_on: Which data chose its hyper-parameters: ``"nothing"``, ``"id"`` or ``"ood"``.
        trials: What was tried in tuning, and how it was judged.
        peak_megabytes: Memory that fitting and scoring took beyond what was in use, where the system tells.
    """

    method: str
    name: str
    hyper: dict[str, Any]
    fits_on: str
    tuned_on: str
    fit_seconds: float
    microseconds_per_sample: float
    learnt: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)
    peak_megabytes: float | None = None

    @property
    def alpha(self) -> str:
        """The exponent of partial normalisation, with a star when AutoFold chose it, or nothing."""
        alpha = self.learnt.get("alpha_", self.hyper.get("alpha"))
        return "" if alpha is None else f"{alpha:g}{'*' if 'alpha_' in self.learnt else ''}"

    @property
    def tuned(self) -> str:
        """What a table says about the tuning: nothing, ``ID`` or ``OOD``."""
        return "" if self.tuned_on == "nothing" else self.tuned_on.upper()


@dataclass(frozen=True)
class Average:
    """Unweighted means of a method's rows over some data sets.

    Attributes:
        over: ``near``, ``far`` or ``all`` data sets.
        as_in: Who averages so: OpenOOD has ``near`` and ``far``; the FOLD paper's "Average" is over ``all``.
    """

    method: str
    tuned_on: str
    over: str
    as_in: str
    auroc: float
    fpr95_ood_positive: float
    fpr95_id_positive: float
    aupr_out: float
    aupr_in: float
    certainty: Certainty | None = None


Scores = NDArray[np.floating]


def make_row(method: str, tuned_on: str, dataset: str, group: Group, id_scores: Scores, ood_scores: Scores) -> Row:
    """Return all metrics of one method on one data set."""
    return Row(
        method,
        tuned_on,
        dataset,
        group,
        auroc(id_scores, ood_scores),
        fpr_at_tpr(id_scores, ood_scores, positive="ood"),
        fpr_at_tpr(id_scores, ood_scores, positive="id"),
        aupr(id_scores, ood_scores, positive="ood"),
        aupr(id_scores, ood_scores, positive="id"),
        len(id_scores),
        len(ood_scores),
    )


def averages(rows: Sequence[Row]) -> list[Average]:
    """Return near, far and overall means per method.

    ``near`` and ``far`` are OpenOOD's, ``all`` is the paper's "Average": the mean over all data sets, not of the two
    groups.
    """
    means = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        for over, as_in in {"near": OPENOOD, "far": OPENOOD, "all": PAPER}.items():
            chosen = [row for row in mine if over in (row.group, "all")]
            if chosen:
                figures = {metric: fmean(getattr(row, metric) for row in chosen) for metric in METRICS}
                means.append(Average(method, mine[0].tuned_on, over, as_in, **figures))  # type: ignore[arg-type]
    return means


def flat(figures: Row | Average) -> dict[str, Any]:
    """Return the figures as the columns of a table, the ends of each interval behind its metric."""
    columns: dict[str, Any] = {}
    for column in fields(figures):
        if column.name == "certainty":
            continue
        columns[column.name] = getattr(figures, column.name)
        if column.name in METRICS and figures.certainty is not None and column.name in figures.certainty.intervals:
            low, high = figures.certainty.intervals[column.name]
            columns |= {f"{column.name}_low": low, f"{column.name}_high": high}
    if figures.certainty is not None:
        columns |= {name: getattr(figures.certainty, name) for name in ("behind", "behind_low", "behind_high", "best")}
    return columns


def in_family(method: str) -> bool:
    """Return whether a method, by its name or its label in tables, is FOLD, AutoFold or one of their variants.

    Example:
        >>> in_family("autofold-r"), in_family("fold@ood"), in_family("knn")
        (True, True, False)
    """
    return method.removeprefix("auto").startswith("fold")


FORMAT, VERSION = "flatfold-results", 3

ID = "id"  # the name of the in-distribution test data among the scores

NORM = "|h|/"  # in scores.safetensors, before the name of a data set

ARRAYS = ("scores.safetensors", "thumbnails.safetensors")


@dataclass(frozen=True)
class AlphaCurve:
    """AutoFold's criterion over its grid, and what each exponent would really have given."""

    method: str
    grid: list[float]
    curve: list[float]
    stderr: list[float]
    chosen: float
    auroc: dict[str, list[float]]
    """True AUROC per data set and on average (``all``); no method ever sees it."""


@dataclass(frozen=True)
class Wrong:
    """An image on which a method was most wrong.

    Attributes:
        dataset: ``id`` for a known image that looked unknown, else the set of an unknown one that looked known.
        row: Its number in the data set; ``dataset/row`` is the key of its thumbnail.
        name: The file, or the number, of the image.
        share: Of the known test images that scored lower, between 0 and 1.
        predicted: The class that the network saw in it.
        label: Its class, for a known image.
    """

    method: str
    dataset: str
    row: int
    name: str
    score: float
    share: float
    predicted: int
    label: int | None = None


@dataclass(frozen=True)
class Results:
    """The outcome of a benchmark."""

    suite: dict[str, Any]
    methods: list[MethodRun]
    refused: dict[str, str]
    """Methods that could not be run on this data, and why."""
    rows: list[Row]
    averages: list[Average]
    alpha_curves: list[AlphaCurve]
    provenance: dict[str, Any]
    scores: dict[str, NDArray[np.float32]]
    """Keyed by ``method/dataset``, with ``id`` for the in-distribution test data."""
    norms: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Norms of the features by data set, row by row as the scores."""
    wrong: list[Wrong] = field(default_factory=list)
    """The images on which each method was most wrong, worst first."""
    thumbnails: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    """Small copies of them, ``(h, w, 3)``, keyed by ``dataset/row``."""
    unreadable: dict[str, dict[str, str]] = field(default_factory=dict)
    """Images that were left out because they could not be read, and why, by data set."""

    @property
    def columns(self) -> list[str]:
        """What a table shows for each method: every data set, then the averages that exist."""
        return [ood["name"] for ood in self.suite["ood"]] + self.groups

    @property
    def groups(self) -> list[str]:
        """The averages worth showing: ``near``, ``far`` and ``all``, or ``all`` alone where it repeats another."""
        here = {mean.over for mean in self.averages}
        return ["near", "far", "all"] if {"near", "far"} <= here else ["all"]

    @property
    def cells(self) -> dict[tuple[str, str], Row | Average]:
        """The figures by method and column."""
        cells: dict[tuple[str, str], Row | Average] = {(row.method, row.dataset): row for row in self.rows}
        return cells | {(mean.method, mean.over): mean for mean in self.averages}

    @property
    def ranked(self) -> list[MethodRun]:
        """The methods, best average AUROC first."""
        average = {mean.method: mean.auroc for mean in self.averages if mean.over == "all"}
        return sorted(self.methods, key=lambda run: -average[run.method])

    def save(self, folder: Path) -> None:
        """Write the files, ``results.json`` last: it knows the others by their sha256, so no mixture passes for one."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for name in ("scores", "norms", "thumbnails"):
            del content[name]
        scores = self.scores | {f"{NORM}{name}": values for name, values in self.norms.items()}
        arrays = dict(zip(ARRAYS, (save(scores), save(self.thumbnails)), strict=True))
        content["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in arrays.items()}
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"  # which may refuse, before anything is written
        for name, data in arrays.items():
            write_atomically(folder / name, data)
        write_atomically(folder / "results.csv", self._csv())
        write_atomically(folder / "averages.csv", as_csv(map(flat, self.averages)))
        write_atomically(folder / "results.json", text)

    def _csv(self) -> str:
        runs = {run.method: asdict(run) for run in self.methods}
        extra = ("hyper", "learnt", "fits_on", "fit_seconds", "microseconds_per_sample", "peak_megabytes")
        return as_csv(flat(row) | {name: runs[row.method][name] for name in extra} for row in self.rows)


def as_csv(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return lines with the same columns as CSV text."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for number, line in enumerate(lines):
        if number == 0:
            table.writerow(line)
        table.writerow(json.dumps(value) if isinstance(value, dict) else value for value in line.values())
    return text.getvalue()


def load_results(folder: Path) -> Results:
    """Read the files that :meth:`Results.save` wrote."""
    path = folder / "results.json"
    if not path.exists():
        inside = ", ".join(str(place.parent) for place in sorted(folder.glob("*/results.json")))
        what = (
            f"It holds several runs: name one of {inside}"
            if inside
            else "Run `flatfold bench` first, or name its --out"
        )
        raise ValueError(f"there is no results.json in {folder}. {what}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of the encoding too
        raise ValueError(f"{path} is not valid JSON ({error}). Run `flatfold bench` again.") from error
    if (
        not isinstance(content, dict)
        or content.pop("format", None) != FORMAT
        or content.pop("version", None) != VERSION
    ):
        raise ValueError(f"{path} is not a {FORMAT} file of version {VERSION}. Run `flatfold bench` again.")
    try:
        results = _from_json(content, *_arrays(folder, content.pop("sha256")))
        _check_whole(results)
        return results
    except (AttributeError, KeyError, OSError, SafetensorError, TypeError, _Mixed) as error:
        raise ValueError(f"the results in {folder} are damaged: {error}. Run `flatfold bench` again.") from error


def _check_whole(results: Results) -> None:
    """Raise a KeyError or TypeError if something is missing that a table or a page needs."""
    results.suite["name"]
    cells = results.cells
    for run in results.ranked:
        for column in results.columns:
            cells[run.method, column]
    if not results.methods or not isinstance(results.unreadable, dict):
        raise TypeError("there are no methods, or what could not be read is of the wrong kind")


class _Mixed(Exception):  # noqa: N818
    """Two files are not of one run."""


def _arrays(folder: Path, sums: Mapping[str, str]) -> list[dict[str, NDArray[Any]]]:
    """Return the tensors of each file that belongs to a ``results.json``."""
    arrays = []
    for name in ARRAYS:
        data = (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != sums[name]:
            raise _Mixed(f"{name} is not the one that was written with results.json")
        arrays.append(load(data))
    return arrays


def _from_json(content: dict[str, Any], scores: dict[str, Any], thumbnails: dict[str, Any]) -> Results:
    return Results(
        methods=[MethodRun(**run) for run in content.pop("methods")],
        rows=[Row(**_certain(row)) for row in content.pop("rows")],
        averages=[Average(**_certain(mean)) for mean in content.pop("averages")],
        alpha_curves=[AlphaCurve(**curve) for curve in content.pop("alpha_curves")],
        wrong=[Wrong(**wrong) for wrong in content.pop("wrong")],
        scores={name: values for name, values in scores.items() if not name.startswith(NORM)},
        norms={name.removeprefix(NORM): values for name, values in scores.items() if name.startswith(NORM)},
        thumbnails=thumbnails,
        **content,
    )


def _certain(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures with their certainty as an object again."""
    told = figures["certainty"]
    if told is None:
        return figures
    intervals = {metric: tuple(ends) for metric, ends in told["intervals"].items()}
    return {**figures, "certainty": Certainty(**{**told, "intervals": intervals})}
