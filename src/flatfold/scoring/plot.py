"""Figure of the scores of new inputs beside those that a guard was calibrated on."""

from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..display.figure import (
    LIGHT_GREY,
    THRESHOLD,
    Drawing,
    Key,
    LineStyle,
    Numbers,
    Panel,
    draw_scores,
    draw_threshold,
    line_style,
)
from ..display.numbers import count, rate
from .calibrated import CalibratedDetector, Verdict

SIZE = (7.0, 2.4)  # inches


def plot_scores(calibrated: CalibratedDetector, verdict: Verdict | None = None) -> Figure:
    """Draw the scores of the calibration inputs, the threshold unless each class has its own, and the new scores."""
    calibration = calibrated.calibration
    padded, counts = calibration.scores.cpu(), calibration.counts.cpu()
    known = padded[torch.arange(padded.shape[1]) < counts[:, None]]
    scores, keys = [_finite(known)], [Key(f"calibration: {count(len(known), 'ID input')}", LineStyle(LIGHT_GREY), True)]
    if verdict is not None:
        new, alarms = verdict.score.detach().flatten().cpu(), int(verdict.is_ood.sum())
        scores += [_finite(new, largest=float(known.max()))] if len(new) else []
        keys.append(Key(f"new: {count(len(new), 'input')}, {count(alarms, 'alarm')}", line_style(0)))
    name = calibrated.detector.method_text or type(calibrated.detector).__name__
    low, high = (f"{float(end):.3g}" for end in calibration.threshold.aminmax())
    if calibration.per_class:
        panel = Panel(f"Scores of {name}", partial(draw_scores, scores), f"alarm above {low} to {high}, by class")
    else:
        threshold = float(calibration.threshold[0])
        panel = Panel(f"Scores of {name}", partial(draw_threshold, scores, threshold, name), f"alarm above {low}")
        keys.append(Key(f"threshold at {rate(calibration.fpr)} false alarms", THRESHOLD))
    return Drawing("scores", [panel], keys, columns=1, size=SIZE).figure()


def _finite(scores: Tensor, largest: float = -np.inf) -> Numbers:
    """Return scores with those that are not finite, which are alarms, among the highest."""
    values: Numbers = scores.double().numpy()
    finite = np.isfinite(values)
    return np.where(finite, values, max(largest, values[finite].max(initial=largest)))
