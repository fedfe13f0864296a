"""Tune hyper-parameters on OOD inputs, as OpenOOD does, or on in-distribution data alone.

**On OOD data.** Every point of a grid is fitted and evaluated by its AUROC between ID validation data and a validation
set of OOD inputs; the first maximum is chosen (OpenOOD's "APS"). Features are precomputed, so no network runs.

**On ID data.** AutoFold turns a sample into a pseudo-OOD input by masking the logit of its own class. For any method on
features this means: remove the class from the head and from the data that the method learns from, and score the
samples of that class as OOD inputs. The mean AUROC over classes is the criterion for one or several hyper-parameters;
for FOLD's exponent it is AutoFold's own curve.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal, get_args

import torch

from ..core.autofold import (
    Groups,
    calibration_classes,
    flatness,
    group_rows,
    middle_of_maximum,
    one_vs_rest_auroc,
    paired_auroc,
)
from ..core.bank import FeatureBank, Head
from ..core.metrics import auroc
from ..core.validation import check_fit
from ..detectors import create, get_method
from ..detectors.base import Detector
from ..errors import MethodRefusedError, warn

Criterion = Literal["paired", "one_vs_rest"]


@dataclass(frozen=True)
class Trial:
    """One point of a grid and its value, or the reason why the method rejected it."""

    hyper: dict[str, Any]
    value: float | None
    stderr: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Tuning:
    """The outcome of a search.

    Attributes:
        method: Name in the registry.
        hyper: The best hyper-parameters together with the fixed ones: ``create(method, **hyper)``.
        tuned_on: ``"id"`` or ``"ood"``.
        trials: Every point of the grid, in the order of evaluation.
    """

    method: str
    hyper: dict[str, Any]
    tuned_on: Literal["id", "ood"]
    trials: tuple[Trial, ...]


def tune(
    method: str,
    head: Head,
    val: FeatureBank,
    *,
    train: FeatureBank | None = None,
    ood: FeatureBank | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    criterion: Criterion = "paired",
    max_classes: int | None = 20,
    seed: int = 0,
    **hyper: Any,
) -> Tuning:
    """Tune hyper-parameters of a method on features.

    Args:
        method: Name in the registry.
        head: Head of the model.
        val: ID validation data; labels are required unless ``ood`` is given.
        train: ID training data, for methods that learn from it.
        ood: OOD inputs to tune on. By default only ID data is used.
        grid: Values of each hyper-parameter, the first of which varies fastest; ``alpha`` prepends partial
            normalisation. By default OpenOOD's grid for the method.
        criterion: On ID data, ``"paired"`` compares samples with their masked versions; ``"one_vs_rest"`` compares the
            samples of a masked class with all others.
        max_classes: On ID data, average over at most this many classes: each needs a separate fit.
        seed: Random seed for the choice of classes.
        **hyper: Fixed hyper-parameters.

    Example:
        >>> head, labels = Head(torch.eye(3)), torch.arange(3).repeat(5)
        >>> val = FeatureBank(torch.rand(15, 3, generator=torch.manual_seed(0)) + torch.eye(3)[labels], labels)
        >>> tune("fold", head, val, grid={"alpha": [0.0, 0.9]}).hyper
        {'alpha': 0.0}
    """
    entry = get_method(method)
    for bank in (val, *(bank for bank in (train, ood) if bank is not None)):
        check_fit(bank, head)
    if entry.sees != "features":
        raise ValueError(f"tune needs a method on features, but {method} uses inputs. Use a benchmark: {method}@ood.")
    if entry.fits_on == "train" and train is None:
        raise MethodRefusedError(f"{method} learns from training data. Pass train=.")
    fit_bank = train if entry.fits_on == "train" and train is not None else val
    grid = {key: values for key, values in entry.grid.items() if key not in hyper} if grid is None else grid
    if criterion not in get_args(Criterion):
        raise ValueError(f"criterion must be paired or one_vs_rest, got {criterion!r}.")
    points = grid_points(grid, method)

    def make(point: dict[str, Any]) -> Detector:
        return create(method, **hyper, **point)

    if ood is not None:

        def value(point: dict[str, Any]) -> tuple[float, float | None]:
            detector = make(point).fit(fit_bank, head)
            return auroc(detector(val.features), detector(ood.features)), None

        return search(method, hyper, points, value, "ood")
    groups = _choose_classes(fit_bank, val, max_classes, seed)

    def masked(point: dict[str, Any]) -> tuple[float, float | None]:
        return _masked_auroc(partial(make, point), head, fit_bank, val, groups, criterion)

    return search(method, hyper, points, masked, "id")


def grid_points(grid: Mapping[str, Sequence[Any]], method: str = "this method") -> list[dict[str, Any]]:
    """Return every combination of a grid; the first hyper-parameter varies fastest, as in OpenOOD."""
    if not grid or not all(isinstance(values, Sequence) and len(values) for values in grid.values()):
        raise ValueError(f"{method} has no values to choose from. Pass grid={{'name': [value, ...]}}.")
    names = list(grid)
    return [dict(zip(names, reversed(point), strict=True)) for point in product(*reversed(list(grid.values())))]


def search(
    method: str,
    hyper: dict[str, Any],
    points: Sequence[dict[str, Any]],
    value: Callable[[dict[str, Any]], tuple[float, float | None]],
    tuned_on: Literal["id", "ood"],
) -> Tuning:
    """Compute the value and standard error of every point and choose the best.

    The best is the first maximum on OOD data, the middle of exact ties on ID data. Points that a method rejects (such
    as more neighbours than samples) are stored with the reason; if all are rejected, the first reason is raised.
    """
    trials = []
    for point in points:
        try:
            trials.append(Trial(point, *value(point)))
        except MethodRefusedError as error:
            trials.append(Trial(point, None, refused=str(error)))
    valid = [trial for trial in trials if trial.value is not None]
    if not valid:
        raise MethodRefusedError(f"no point of the grid can be used: {trials[0].refused}")
    curve = torch.tensor([trial.value for trial in valid], dtype=torch.float64)
    best = valid[int(curve.argmax()) if tuned_on == "ood" else middle_of_maximum(curve)].hyper
    stderr = torch.tensor([trial.stderr or 0.0 for trial in valid], dtype=torch.float64)
    if tuned_on == "id" and (why := flatness(curve, stderr)):
        warn(
            f"tuning {method} made little difference: the criterion is flat, {why}. "
            f"Chose {', '.join(f'{key} = {value}' for key, value in best.items())}.",
        )
    return Tuning(method, {**hyper, **best}, tuned_on, tuple(trials))


def _choose_classes(fit_bank: FeatureBank, val: FeatureBank, max_classes: int | None, seed: int) -> Groups:
    """Return the classes to mask, and their rows."""
    if val.labels is None:
        raise MethodRefusedError("tuning on ID data masks the class of each sample, but val has no labels. Pass them.")
    labels = val.labels if fit_bank.labels is None else val.labels[torch.isin(val.labels, fit_bank.labels)]
    if len(labels) < len(val):
        warn("samples of classes that are not in the training data are ignored.")
    return group_rows(val.labels, calibration_classes(labels, max_classes, seed, "tuning on ID data"))


@torch.no_grad()
def _masked_auroc(
    make: Callable[[], Detector], head: Head, fit_bank: FeatureBank, val: FeatureBank, groups: Groups, criterion: str
) -> tuple[float, float]:
    """Return the mean AUROC over classes between samples and pseudo-OOD inputs, and its standard error."""
    classes = groups.classes.tolist()
    without = ((val.labels == label, make().fit_without(fit_bank, head, label)) for label in classes)
    if criterion == "one_vs_rest":
        masked = torch.stack([detector(val.features) for _, detector in without])
        value, stderr = one_vs_rest_auroc(masked.double(), groups).mean()
    else:
        scores = make().fit(fit_bank, head)(val.features)
        masked = scores.clone()
        for rows, detector in without:
            masked[rows] = detector(val.features[rows])
        value, stderr = paired_auroc(scores.double(), masked.double(), groups).mean()
    return float(value), float(stderr)
