"""Whether a study that was read from files has all that a table and a page need."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, get_args

from ...curvature.estimate import LOSSES, MATRICES
from ..results import ID
from .rows import Detection, Space, Statistic

if TYPE_CHECKING:
    from .files import Study

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
