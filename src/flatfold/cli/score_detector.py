"""What judges rows of features: the guard of a file, or a method fitted to a head and known features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from .checks import FPR, parsed_method
from .notes import noted

if TYPE_CHECKING:
    from ..core.head import Head
    from ..detectors.base import Detector
    from ..evaluate.spec import Spec
    from ..models.feature_files import FeatureFile
    from ..scoring.calibration import Calibration


@dataclass(frozen=True)
class Fitting:
    """What a detector is made from where there is no guard.

    Args:
        head: File of the model's last layer.
        method: Its name, with hyper-parameters behind colons.
        fit: Known features to learn from.
        calibration: Known features to compare with.
        per_class: Whether each predicted class has a threshold.
    """

    head: Path
    method: str
    fit: Path | None
    calibration: Path | None
    per_class: bool


class Known(NamedTuple):
    """Features of known inputs: those to fit on, and those to calibrate on."""

    fit: FeatureFile | None
    calibration: FeatureFile | None


def opened_with(
    features: Path, judged_by: Path | Fitting, fpr: float | None
) -> tuple[FeatureFile, Detector, Calibration | None]:
    """Return the features to score, what scores them, and its calibration if there is one.

    Args:
        features: File of the features.
        judged_by: File of a guard, or what a detector is made from.
        fpr: The false-alarm rate, unless the default or that of the guard.
    """
    from ..models.feature_files import open_features

    if isinstance(judged_by, Path):
        return open_features(features), *_from_guard(judged_by, fpr)
    spec = parsed_method(judged_by.method, judged_by.fit, judged_by.calibration)
    opened = open_features(features)
    used = (_used(spec, judged_by.fit), judged_by.calibration)
    known = Known(*(None if path is None else open_features(path) for path in used))
    rate = FPR if fpr is None else fpr
    return opened, *_from_head(judged_by.head, spec, opened, known, rate, judged_by.per_class)


def _used(spec: Spec, fit: Path | None) -> Path | None:
    """Return --fit if the method learns from it."""
    from ..detectors import get_method

    if fit is None or get_method(spec.name).fits_on != "nothing":
        return fit
    typer.echo(f"note: {spec.name} learns nothing from data: --fit is not used", err=True)
    return None


def _from_guard(path: Path, fpr: float | None) -> tuple[Detector, Calibration | None]:
    from ..scoring.artefact import load_judge

    judge = load_judge(path)[0]
    judge = judge if fpr is None else judge.at(fpr)
    return judge.detector, judge.calibration


def _from_head(
    path: Path, spec: Spec, features: FeatureFile, known: Known, fpr: float, per_class: bool
) -> tuple[Detector, Calibration | None]:
    """Return a fitted detector, and its calibration if there is data for one, in the widest type of all files."""
    import torch

    from ..models.features import read_head
    from ..scoring.rows import calibrate

    head = read_head(path)
    dtype = head.weight.dtype
    for source in (features, *known):  # widening is exact, rounding the others would not be
        dtype = dtype if source is None else torch.promote_types(dtype, source.dtype)
    detector = _fitted(spec, head.to(dtype), known.fit)
    if known.calibration is None:
        return detector, None
    return detector, calibrate(known.calibration, detector, fpr, per_class)


def _fitted(spec: Spec, head: Head, known: FeatureFile | None) -> Detector:
    """Return a detector that has learnt what there is to learn, and pass on what it remarks."""
    import torch

    from ..core.bank import FeatureBank
    from ..detectors import create

    detector = create(spec.name, **spec.hyper)
    if known is None:  # only the head matters, but every fit looks at a bank
        return detector.fit(FeatureBank(torch.ones(1, head.width, dtype=head.weight.dtype)), head)
    bank = known.bank()
    with noted():
        try:
            detector.fit(FeatureBank(bank.features.to(head.weight.dtype), bank.labels), head)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{known.path}: {error}") from error
    return detector
