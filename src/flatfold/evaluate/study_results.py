"""Results of a curvature study and their files.

``curvature.json`` has all values and their provenance, ``curvature.csv`` the table, ``curvature.safetensors`` the
traces and eigenvalues of single inputs and the spectra.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import hypot
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ..curvature.estimate import Loss, Matrix
from ..io.artifacts import read_document, write_document
from .results import ID, Positive, SuiteFacts, as_csv, remove_pages

Space = Literal["parameter", "feature", "logit"]
Name = Literal["lambda_max", "trace"]
SPACES: dict[Space, str] = {"parameter": "parameters", "feature": "features", "logit": "logits"}
NAMES: dict[Name, str] = {"lambda_max": "λmax", "trace": "trace"}

JSON, CSV, ARRAYS = "curvature.json", "curvature.csv", "curvature.safetensors"
STORED = ("traces", "trace_stderr", "nodes", "weights", "eigenvalues", "top_shares", "square_shares")  # arrays
LARGEST = 1e150  # ratios and products of larger values would be infinite
ERRORS = 2  # difference required between two values, in units of the sum of their standard errors


@dataclass(frozen=True)
class Statistic:
    """One value of the table: the largest eigenvalue or the trace of the mean Hessian over ``n`` inputs.

    ``dataset`` and ``group`` are ``id`` for the ID test images; ``stderr`` is None if the value is exact.
    """

    dataset: str
    group: str
    space: Space
    name: Name
    value: Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
    stderr: float | None
    method: str
    matrix: Matrix
    loss: Loss
    matvecs: int
    n: int


@dataclass(frozen=True)
class Detection:
    """AUROC, with 95 % interval, of the trace of single inputs as an OOD score.

    ``alpha`` is the exponent of partial normalisation, 0 for parameters; ``dataset`` is an OOD data set, or ``near``,
    ``far`` or ``all`` for an unweighted mean.
    """

    space: Space
    alpha: float
    dataset: str
    auroc: float
    low: float
    high: float


@dataclass(frozen=True)
class Study:
    """The outcome of a curvature study."""

    FORMAT: ClassVar[str] = "flatfold-curvature"
    VERSION: ClassVar[int] = 2
    ARRAYS: ClassVar[Mapping[str, tuple[str, str]]] = {name: (ARRAYS, f"{name}/") for name in STORED}

    suite: dict[str, Any]  # as in Results, with n_parameters
    statistics: list[Statistic]  # the table
    detections: list[Detection]
    alphas: dict[str, float]  # none: 0, partial: given or AutoFold's choice, full: 1
    traces: dict[str, NDArray[np.float64]]  # of single inputs, (n,), keyed by space/dataset
    trace_stderr: dict[str, NDArray[np.float64]]  # by the same keys, if not exact
    nodes: dict[str, NDArray[np.float64]]  # of spectra, (probes, m), keyed by space/dataset, without logits
    weights: dict[str, NDArray[np.float64]]
    sizes: dict[str, Positive]  # number of eigenvalues by space
    eigenvalues: dict[str, NDArray[np.float64]]  # the largest of single inputs, (n, k), keyed by alpha/dataset
    provenance: dict[str, Any]
    top_shares: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Curvatures of single inputs along the eigenvector of λmax, ``(n,)``, keyed by space/dataset; without logits."""
    square_shares: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Shares of single inputs in the sum of squared eigenvalues over features, ``(n,)``, keyed by feature/dataset."""

    @property
    def datasets(self) -> list[str]:
        """The ID test images, then every OOD data set."""
        return [ID, *(ood["name"] for ood in self.suite["ood"])]

    @property
    def groups(self) -> list[str]:
        """The groups present, of ``near`` and ``far``."""
        return [group for group in ("near", "far") if any(ood["group"] == group for ood in self.suite["ood"])]

    @cached_property
    def columns(self) -> list[tuple[Space, Name]]:
        """The columns of the table."""
        return list(dict.fromkeys((figure.space, figure.name) for figure in self.statistics))

    @cached_property
    def cells(self) -> dict[tuple[str, Space, Name], Statistic]:
        """Every value by data set or group, space and name; groups have the unweighted mean, as in the paper."""
        cells = {(figure.dataset, figure.space, figure.name): figure for figure in self.statistics}
        for group in self.groups:
            for space, name in self.columns:
                members = [s for s in self.statistics if (s.group, s.space, s.name) == (group, space, name)]
                cells[group, space, name] = mean_statistic(members)
        return cells

    def factor(self, dataset: str, space: Space, name: Name) -> float | None:
        """Return the ratio of a value to that of the ID images; None unless both are positive."""
        figure, reference = self.cells[dataset, space, name].value, self.cells[ID, space, name].value
        return figure / reference if figure > 0 and reference > 0 else None

    def check(self) -> None:
        """Raise unless all values that a page needs are present."""
        msgspec.convert(self.suite, _Suite)
        if not self.columns or set(self.alphas) != {"none", "partial", "full"}:
            raise ValueError("statistics are missing, or there are not three exponents")
        for dataset in self.datasets:
            for space in SPACES:
                self.cells[dataset, space, "trace"], self.traces[f"{space}/{dataset}"]
            for column in self.columns:
                self.cells[dataset, *column]
            for space in ("parameter", "feature"):  # which have spectra
                self.nodes[f"{space}/{dataset}"], self.weights[f"{space}/{dataset}"], self.sizes[space]
            for alpha in self.alphas:
                self.eigenvalues[f"{alpha}/{dataset}"]

    def save(self, folder: Path | str) -> None:
        """Write the files, ``curvature.json`` last, which identifies the arrays by sha256.

        Outdated pages in the folder are removed.
        """
        lines = ({**asdict(s), "factor": self.factor(s.dataset, s.space, s.name)} for s in self.statistics)
        write_document(Path(folder) / JSON, self, {CSV: as_csv(lines)})
        remove_pages(folder, "curvature.html", "report.html", "figures/curvature-*")


class _Suite(SuiteFacts, kw_only=True):
    """The entries of the suite of a study."""

    n_features: Positive
    n_parameters: Positive


def load_study(folder: Path | str) -> Study:
    """Read the files that :meth:`Study.save` wrote; raise ValueError if they are missing or invalid."""
    return read_document(Path(folder) / JSON, Study, "flatfold curvature")


def mean_statistic(members: Sequence[Statistic]) -> Statistic:
    """Return the unweighted mean of the values of a group."""
    first, errors = members[0], [figure.stderr or 0.0 for figure in members]
    bound = first.name == "lambda_max"  # bounds add up, independent standard errors in quadrature
    stderr = fmean(errors) if bound else hypot(*errors) / len(errors)
    return replace(
        first,
        dataset=first.group,
        value=fmean(figure.value for figure in members),
        stderr=None if all(figure.stderr is None for figure in members) else stderr,
        matvecs=sum(figure.matvecs for figure in members),
        n=sum(figure.n for figure in members),
    )


def above(figure: Statistic, reference: Statistic) -> int:
    """Return 1 if a value is above the reference, -1 if below, 0 if the difference is within their errors."""
    room = ERRORS * ((figure.stderr or 0.0) + (reference.stderr or 0.0))
    return (figure.value - reference.value > room) - (reference.value - figure.value > room)


def typical_error(study: Study, space: Space) -> float | None:
    """Return the median relative error of the finite non-zero traces; None if all are exact."""
    shares = []
    for name in study.datasets:
        error = study.trace_stderr.get(f"{space}/{name}")
        if error is not None:
            trace = np.abs(study.traces[f"{space}/{name}"])
            shares.append(error / np.where(trace == 0, np.nan, trace))
    finite = np.concatenate([*shares, np.empty(0)])
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if finite.size else None
