"""Whether the tensors in a guard's file can be what they are called."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...core.check import FLOATS
from .probes import COUNT


def check_shapes(tensors: Mapping[str, Tensor], classes: int, width: int) -> None:
    """Raise unless calibration and probes are those of a head with so many classes and features."""
    groups = len(tensors["calibration.counts"].flatten())
    if groups not in (1, classes):
        raise ValueError(
            f"it has calibration scores of {groups} groups, and a model with {classes} classes has 1 or {classes}"
        )
    features, scores = tensors["probe.features"], tensors["probe.scores"]
    if features.shape != (COUNT, width) or scores.shape != (COUNT,):
        raise ValueError(f"its self-test must have {COUNT} rows of {width} features")
    dtype = tensors["calibration.scores"].dtype
    if dtype not in FLOATS or features.dtype != dtype or scores.dtype != dtype:
        raise ValueError("its scores must have one type, float32 or float64")


def check_calibration(scores: Tensor, counts: Tensor) -> None:
    """Raise unless scores ``(g, m)`` ascend, finite as far as ``counts`` ``(g,)`` says and infinite from there on."""
    if scores.ndim != 2 or counts.shape != scores.shape[:1] or counts.dtype != torch.int64 or counts.numel() == 0:
        raise ValueError("its calibration must have a row of scores and a count for each group")
    if int(counts.min()) < 1 or int(counts.max()) != scores.shape[1]:
        raise ValueError("its calibration counts must go from 1 to the length of the longest row")
    counted = torch.arange(scores.shape[1], device=scores.device) < counts.to(scores.device)[:, None]
    if not torch.equal(scores.isfinite(), counted) or not (scores[~counted] == torch.inf).all():
        raise ValueError("its calibration scores must be finite numbers, as many as are counted")
    if not (scores[:, 1:] >= scores[:, :-1]).all():
        raise ValueError("its calibration scores are not in order")
