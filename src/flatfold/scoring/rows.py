"""Features to rows of a table, a chunk at a time, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..core.check import check_finite, check_width
from ..detectors.base import ROWS_AT_ONCE, Detector
from ..models.feature_files import FeatureChunk, FeatureFile
from .calibration import Calibration, lifted
from .writers import Columns


@torch.no_grad()
def score_features(
    source: FeatureFile, detector: Detector, calibration: Calibration | None = None
) -> Iterator[Columns]:
    """Yield the rows of a table, one for each row of features, some thousand at a time.

    The columns are ``row``, its number from 0; ``predicted``, the likeliest class; ``score``, higher for more
    out-of-distribution; with a calibration ``p_value`` and ``is_ood``; and ``label`` if there are labels.

    Args:
        source: The features. Where the detector was fitted in float64, float32 is widened, which is exact.
        detector: Fitted.
        calibration: Scores of that detector on held-out known inputs.

    Raises:
        TypeError: The features have more digits than the detector was fitted with.
        ValueError: The features do not fit the detector, or a feature or a score is not finite.
    """
    for chunk, score, predicted in _scored(source, detector):
        rows = np.arange(chunk.first, chunk.first + len(score))
        columns = {"row": rows, "predicted": predicted.numpy(), "score": score.numpy()}
        if calibration is not None:
            p_value, is_ood = calibration(score, predicted)
            columns |= {"p_value": p_value.numpy(), "is_ood": is_ood.numpy()}
        if chunk.labels is not None:
            columns["label"] = chunk.labels.numpy()
        yield columns


@torch.no_grad()
def calibrate(source: FeatureFile, detector: Detector, fpr: float, per_class: bool = False) -> Calibration:
    """Return what a fitted detector's scores of held-out known inputs say about others.

    Args:
        source: Features of known inputs that neither the model nor the detector has seen.
        detector: Fitted.
        fpr: The share of known inputs that may raise an alarm.
        per_class: Give each predicted class a threshold of its own.

    Raises:
        TypeError: The features have more digits than the detector was fitted with.
        ValueError: The features do not fit the detector, are too few, or a feature or a score is not finite.
    """
    parts = [(score, predicted) for _, score, predicted in _scored(source, detector)]
    scores, predicted = (torch.cat(column) for column in zip(*parts, strict=True))
    try:
        return Calibration.of(lifted(scores), fpr, predicted if per_class else None, len(detector.fitted_weight))
    except ValueError as error:
        raise ValueError(f"{source.path}: {error}") from error


def _scored(source: FeatureFile, detector: Detector) -> Iterator[tuple[FeatureChunk, Tensor, Tensor]]:
    """Yield chunks of features with their scores and likeliest classes."""
    weight = detector.fitted_weight
    try:
        check_width(torch.empty(0, source.width), weight)
    except ValueError as error:
        raise ValueError(f"{source.path}: {error}") from error
    if torch.promote_types(source.dtype, weight.dtype) != weight.dtype:
        raise TypeError(
            f"{source.path} holds features in {source.dtype}, but what judges them was fitted in {weight.dtype}, and "
            "they are not rounded for you. Save them in that type, or fit again."
        )
    detector.eval()
    for chunk in source.chunks(ROWS_AT_ONCE):
        features = chunk.features.to(weight)
        score = detector(features).cpu()
        check_finite(score[:, None], f"scores of {source.path}", chunk.first)
        yield chunk, score, detector.innermost.logits(features).argmax(dim=-1).cpu()
