"""From the settings and tensors of a file to a judge, with every check on the way that needs more than one of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...detectors import create
from ...detectors.base import Detector
from ...detectors.registry import METHODS
from ...models.transform import Transform
from ..calibration import Calibration
from ..judge import Judge
from .probes import check_probes
from .settings import following
from .sound import check_calibration, check_shapes
from .strict_json import canonical

LEARNT = "detector."
"""What the names of a detector's tensors begin with."""
MOST_PIXELS = 2**16


def rebuilt(settings: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Judge, Transform | None]:
    """Return the judge and the transform of a file, once they have passed its self-test."""
    scores, counts = tensors["calibration.scores"], tensors["calibration.counts"]
    check_calibration(scores, counts)
    check_shapes(tensors, settings["classes"], settings["features"])
    detector = _detector(settings)
    learnt = {name.removeprefix(LEARNT): value for name, value in tensors.items() if name.startswith(LEARNT)}
    detector.load_state_dict(learnt, assign=True)  # a bank of features is not copied
    judge = Judge(detector, Calibration(scores, counts, settings["fpr"]))
    _check_following(judge, settings)
    check_probes(judge, tensors["probe.features"], tensors["probe.scores"])
    return judge, _transform(settings)


def _detector(settings: dict[str, Any]) -> Detector:
    """Return the unfitted detector that settings name; only registered methods that see features can be named."""
    name, hyper = settings["detector"], settings["hyper"]
    if name not in METHODS or METHODS[name].sees != "features":
        raise ValueError(
            f"its method is {ascii(name)[:60]}, and no method that sees features has this name here. If it is one of "
            "your own, register it before the guard is loaded"
        )
    if {"name", "preset"} & set(hyper):
        raise ValueError("its hyper-parameters have names that no method can have")
    detector = create(name, **hyper)
    if not isinstance(detector, Detector) or detector.made_by is None:
        raise ValueError(f"what {name} makes here is no detector of features")
    if canonical(detector.made_by[1]) != canonical(hyper):
        raise ValueError(f"its hyper-parameters are not all that {name} has")
    return detector


def _transform(settings: dict[str, Any]) -> Transform | None:
    """Return the transform in settings, if there is one."""
    values = settings["transform"]
    if values is None:
        return None
    transform = Transform(**values)
    if (
        canonical(transform.as_dict()) != canonical(values)
        or max(transform.resize or 0, transform.crop or 0) > MOST_PIXELS
    ):
        raise ValueError("its transform is none that a guard can have")
    return transform


def _check_following(judge: Judge, settings: dict[str, Any]) -> None:
    """Raise unless the settings that follow from the tensors do."""
    for name, value in following(judge).items():
        if settings[name] != value:
            raise ValueError(f"the setting {name} does not follow from its tensors")
