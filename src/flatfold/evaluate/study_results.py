"""Result files of a curvature study: ``curvature.json``, ``curvature.csv`` and ``curvature.safetensors``.

The first has all figures and where they come from, the second the table, the third everything about single inputs and
the spectra.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot, isfinite
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..curvature.estimate import LOSSES, MATRICES
from ..io.files import write_atomically
from .results import ID, as_csv

# The figures of a curvature study: one statistic of a data set, one trace as a detector.


Space = Literal["parameter", "feature", "logit"]

Name = Literal["lambda_max", "trace"]


@dataclass(frozen=True)
class Statistic:
    """One figure of the table.

    Attributes:
        dataset: ``id`` for the known test images, else the name of an unknown data set.
        group: ``id``, ``near`` or ``far``.
        space: In what the loss bends: parameters, features, or logits.
        name: ``lambda_max`` or ``trace``, of the mean over the inputs.
        value: The figure.
        stderr: As in :class:`~flatfold.curvature.Estimate`; None where it is exact.
        method: How it was computed.
        matrix: ``hessian`` or ``ggn``.
        loss: Of which this is the curvature.
        matvecs: Products of the matrix with a vector that it took.
        n: Number of inputs.
    """

    dataset: str
    group: str
    space: Space
    name: Name
    value: float
    stderr: float | None
    method: str
    matrix: str
    loss: str
    matvecs: int
    n: int


@dataclass(frozen=True)
class Detection:
    """How well the trace of single inputs tells one unknown data set from the known one.

    Attributes:
        space: Whose Hessian.
        alpha: Exponent of partial normalisation; 0 for parameters.
        dataset: The unknown data set, or ``near``, ``far``, ``all`` for the unweighted mean over some.
        auroc: Between 0 and 1, with its 95 % interval.
    """

    space: Space
    alpha: float
    dataset: str
    auroc: float
    low: float
    high: float


def mean_statistic(members: Sequence[Statistic]) -> Statistic:
    """Return the unweighted mean of some figures; all of a data set are there, so none means a damaged file."""
    first, errors = members[0], [each.stderr or 0.0 for each in members]
    bound = first.name == "lambda_max"  # bounds add up at worst, standard errors of independent probes by their squares
    stderr = fmean(errors) if bound else hypot(*errors) / len(errors)
    return Statistic(
        first.group,
        first.group,
        first.space,
        first.name,
        fmean(each.value for each in members),
        None if all(each.stderr is None for each in members) else stderr,
        first.method,
        first.matrix,
        first.loss,
        sum(each.matvecs for each in members),
        sum(each.n for each in members),
    )


# Whether a study that was read from files has all that a table and a page need.


DRAWN: tuple[Space, ...] = ("parameter", "feature")  # the spaces whose spectra there are

TEXTS = ("name", "network", "about")

COUNTS = ("n_classes", "n_features", "n_parameters", "accuracy")


def check_whole(study: Study) -> None:
    """Raise a KeyError, IndexError or TypeError if something is missing, or is not what it should be."""
    _check_suite(study.suite)
    for each in study.statistics:
        _check_statistic(each)
    for told in study.detections:
        _check_numbers(f"the AUROC on {told.dataset}", *_figures(told))
    if not study.columns or set(study.alphas) != {"none", "partial", "full"}:
        raise TypeError("there are no statistics, or not three exponents")
    _check_numbers("an exponent", *study.alphas.values())
    for dataset in study.datasets:
        _check_data_set(study, dataset)


def _check_suite(suite: dict[str, Any]) -> None:
    for name in TEXTS:
        _check_text(f"the suite's {name}", suite[name])
    _check_numbers("a number about the suite", *(suite[name] for name in COUNTS))
    for ood in suite["ood"]:
        for name in ("name", "group", "about"):
            _check_text(f"the {name} of an unknown data set", ood[name])


def _check_statistic(each: Statistic) -> None:
    told = f"the {each.space} {each.name} of {each.dataset}"
    _check_numbers(told, each.value, each.n, each.matvecs, *(() if each.stderr is None else (each.stderr,)))
    if each.matrix not in MATRICES or each.loss not in LOSSES:
        raise TypeError(f"{told} is of the matrix {each.matrix!r} and the loss {each.loss!r}")


def _check_data_set(study: Study, dataset: str) -> None:
    cells = study.cells
    for column in study.columns:
        cells[dataset, *column]
    for space in get_args(Space):
        study.traces[f"{space}/{dataset}"]
        cells[ID, space, "trace"]
    for space in DRAWN:
        study.nodes[f"{space}/{dataset}"], study.weights[f"{space}/{dataset}"], study.sizes[space]
    for alpha in study.alphas:
        study.eigenvalues[f"{alpha}/{dataset}"]


def _figures(told: Detection) -> tuple[float, ...]:
    return told.alpha, told.auroc, told.low, told.high


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r}")


def _check_numbers(what: str, *values: object) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
            raise TypeError(f"{what} is {value!r}")


FORMAT, VERSION = "flatfold-curvature", 1

JSON, CSV, ARRAYS = "curvature.json", "curvature.csv", "curvature.safetensors"

STORED = ("traces", "trace_stderr", "nodes", "weights", "eigenvalues")  # fields that are arrays

AGAIN = "Run `flatfold curvature` again."


@dataclass(frozen=True)
class Study:
    """The outcome of a curvature study.

    Attributes:
        suite: As in :class:`~flatfold.evaluate.results.Results`: name, network, about, n_classes, n_features, accuracy,
            n_test, ood (name, group, n, about), deviations, ...; and ``n_parameters``.
        statistics: The table.
        detections: Traces as detectors.
        alphas: The exponents of the top eigenvalues by name: ``none`` 0, ``partial`` AutoFold's choice, ``full`` 1.
        traces: Of single inputs, ``(n,)``, keyed by ``space/dataset`` for parameter, feature and logit.
        trace_stderr: Their standard errors by the same keys, where they are not exact.
        nodes, weights: Spectra, ``(probes, m)``, keyed by ``space/dataset`` for parameter and feature.
        sizes: Number of eigenvalues by space.
        eigenvalues: Largest feature eigenvalues of single inputs, largest first, ``(n, k)``, keyed by ``alpha/dataset``
            with the names of ``alphas``.
        provenance: Where the numbers come from; ``loss``, ``matrix``, ``probes``, ``steps``, ``samples`` among it.

    A ``dataset`` below may also be ``near`` or ``far``, for the unweighted mean over the data sets of the group.
    """

    suite: dict[str, Any]
    statistics: list[Statistic]
    detections: list[Detection]
    alphas: dict[str, float]
    traces: dict[str, NDArray[np.float64]]
    trace_stderr: dict[str, NDArray[np.float64]]
    nodes: dict[str, NDArray[np.float64]]
    weights: dict[str, NDArray[np.float64]]
    sizes: dict[str, int]
    eigenvalues: dict[str, NDArray[np.float64]]
    provenance: dict[str, Any]

    @property
    def datasets(self) -> list[str]:
        """The known test images, then every unknown data set."""
        return [ID, *(ood["name"] for ood in self.suite["ood"])]

    @property
    def groups(self) -> list[str]:
        """Those of ``near`` and ``far`` that there are."""
        return [group for group in ("near", "far") if any(ood["group"] == group for ood in self.suite["ood"])]

    @property
    def columns(self) -> list[tuple[Space, Name]]:
        """What a table shows of each data set."""
        return list(dict.fromkeys((each.space, each.name) for each in self.statistics))

    @property
    def means(self) -> dict[tuple[str, Space, Name], Statistic]:
        """The unweighted means over the data sets of each group, as the paper takes them."""
        return {
            (group, space, name): mean_statistic(
                [s for s in self.statistics if (s.group, s.space, s.name) == (group, space, name)]
            )
            for group in self.groups
            for space, name in self.columns
        }

    @property
    def cells(self) -> dict[tuple[str, Space, Name], Statistic]:
        """Every figure by data set or group, space and name."""
        return {(each.dataset, each.space, each.name): each for each in self.statistics} | self.means

    def cell(self, dataset: str, space: Space, name: Name) -> Statistic:
        """Return one figure of the table."""
        found = self.cells.get((dataset, space, name))
        if found is None:
            have = f"{', '.join(self.datasets + self.groups)}; {', '.join(' '.join(column) for column in self.columns)}"
            raise ValueError(f"there is no {space} {name} of {dataset} in this study. It has {have}.")
        return found

    def factor(self, dataset: str, space: Space, name: Name) -> float | None:
        """Return how many times the figure of the known images one figure is; None unless both are above 0."""
        figure, known = self.cell(dataset, space, name).value, self.cell(ID, space, name).value
        return figure / known if figure > 0 and known > 0 else None

    def save(self, folder: Path) -> None:
        """Write the files, ``curvature.json`` last: it knows the arrays by their sha256, so a mixture is found."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        arrays = {f"{name}/{key}": values for name in STORED for key, values in content.pop(name).items()}
        data = save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
        content["sha256"] = hashlib.sha256(data).hexdigest()
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"  # which may refuse, before anything is written
        lines = ({**asdict(s), "factor": self.factor(s.dataset, s.space, s.name)} for s in self.statistics)
        write_atomically(folder / ARRAYS, data)
        write_atomically(folder / CSV, as_csv(lines))
        write_atomically(folder / JSON, text)


def load_study(folder: Path) -> Study:
    """Read the files that :meth:`Study.save` wrote."""
    path = folder / JSON
    if not path.exists():
        inside = ", ".join(str(place.parent) for place in sorted(folder.glob(f"*/{JSON}")))
        what = (
            f"It holds several studies: name one of {inside}"
            if inside
            else "Run `flatfold curvature` first, or name its --out"
        )
        raise ValueError(f"there is no {JSON} in {folder}. {what}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of the encoding too
        raise ValueError(f"{path} is not valid JSON ({error}). {AGAIN}") from error
    if (
        not isinstance(content, dict)
        or content.pop("format", None) != FORMAT
        or content.pop("version", None) != VERSION
    ):
        raise ValueError(f"{path} is not a {FORMAT} file of version {VERSION}. {AGAIN}")
    try:
        study = _from_json(content, _arrays(folder, content.pop("sha256")))
        check_whole(study)
        return study
    except (AttributeError, IndexError, KeyError, OSError, SafetensorError, TypeError, _Mixed) as error:
        raise ValueError(f"the study in {folder} is damaged: {error}. {AGAIN}") from error


class _Mixed(Exception):  # noqa: N818
    """Two files are not of one study."""


def _arrays(folder: Path, checksum: str) -> Mapping[str, NDArray[np.float64]]:
    data = (folder / ARRAYS).read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise _Mixed(f"{ARRAYS} is not the one that was written with {JSON}")
    arrays: dict[str, NDArray[np.float64]] = load(data)
    return arrays


def _from_json(content: dict[str, Any], arrays: Mapping[str, NDArray[np.float64]]) -> Study:
    stored: dict[str, Any] = {
        name: {key.removeprefix(f"{name}/"): values for key, values in arrays.items() if key.startswith(f"{name}/")}
        for name in STORED
    }
    return Study(
        statistics=[Statistic(**each) for each in content.pop("statistics")],
        detections=[Detection(**each) for each in content.pop("detections")],
        **stored,
        **content,
    )


# What the errors of a study allow to be said: which figure is larger, and how far a trace of a single input is off.


ERRORS = 2  # standard errors, of both figures together, that must lie between them


def above(figure: Statistic, known: Statistic) -> int:
    """Return 1 if a figure lies above the known one, -1 if below, 0 if their errors do not tell."""
    room = ERRORS * ((figure.stderr or 0.0) + (known.stderr or 0.0))
    return (figure.value - known.value > room) - (known.value - figure.value > room)


def typical_error(study: Study, space: Space) -> float | None:
    """Return the error of a single input's trace as a share of that trace, the median over all inputs.

    Traces that are zero or not finite have no such share.

    Returns:
        None where the traces are exact, or none has a size to compare its error to.
    """
    shares = []
    for name in study.datasets:
        error = study.trace_stderr.get(f"{space}/{name}")
        if error is not None:
            trace = np.abs(study.traces[f"{space}/{name}"])
            shares.append(error / np.where(trace == 0, np.nan, trace))
    finite = np.concatenate([*shares, np.empty(0)])
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if finite.size else None
