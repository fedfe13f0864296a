"""Scores of held-out known inputs, and the thresholds and p-values that follow from them."""

from __future__ import annotations

from math import ceil
from typing import Self

import torch
from torch import Tensor, nn

from ..core.conformal import allowed_ranks, p_values, samples_needed

SHOWN = 3  # classes in a message


class Calibration(nn.Module):
    r"""Split-conformal calibration, of all inputs together or of each predicted class (Mondrian).

    A group is all inputs, or those of one predicted class. With n scores in a group, an alarm is a score above

    .. math:: t = s_{(n + 1 - k)}, \qquad k = \lfloor \text{fpr}\,(n + 1) \rfloor

    the k-th largest of them, which is the same as a p-value of at most ``fpr`` (:mod:`flatfold.core.conformal`). Then
    at most a share ``fpr`` of the known inputs *of every group* raises an alarm.

    Args:
        scores: ``(g, m)``, a row for each group in ascending order, which may end in infinities that do not count.
        counts: ``(g,)`` int64, how many of a row count.
        fpr: The share of known inputs that may raise an alarm.

    Attributes:
        threshold: ``(g,)``, t of each group.
    """

    scores: Tensor
    counts: Tensor
    threshold: Tensor

    def __init__(self, scores: Tensor, counts: Tensor, fpr: float) -> None:
        super().__init__()
        check_rate(fpr)
        _check_counts(counts, fpr)
        self.fpr = fpr
        ranks = [int(n) - allowed_ranks(fpr, int(n)) for n in counts]
        self.register_buffer("scores", scores)
        self.register_buffer("counts", counts)
        self.register_buffer("threshold", scores[torch.arange(len(counts)), torch.tensor(ranks)])

    @classmethod
    def of(cls, scores: Tensor, fpr: float, predicted: Tensor | None = None, n_classes: int = 1) -> Self:
        """Calibrate on scores ``(n,)``, with a threshold for each class when ``predicted`` classes are given."""
        if predicted is None:
            return cls(scores.sort().values[None], torch.tensor([len(scores)]), fpr)
        counts = torch.bincount(predicted, minlength=n_classes).cpu()
        rows = scores.new_full((n_classes, int(counts.max())), torch.inf)
        for label in range(n_classes):
            rows[label, : counts[label]] = scores[predicted == label].sort().values
        return cls(rows, counts, fpr)

    @property
    def per_class(self) -> bool:
        """Whether each predicted class has a threshold of its own."""
        return len(self.counts) > 1

    @property
    def samples(self) -> int:
        """How many inputs were calibrated on."""
        return int(self.counts.sum())

    def at(self, fpr: float) -> Calibration:
        """Return the same scores at another rate."""
        return Calibration(self.scores, self.counts.cpu(), fpr)

    def forward(self, score: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the p-value of each score and whether it raises an alarm, both ``(n,)``.

        Args:
            score: ``(n,)``.
            predicted: The likeliest class of each input, ``(n,)``; without thresholds per class it is not looked at.
        """
        if self.per_class:
            p = p_values(score, self.scores[predicted], self.counts[predicted])
            return p, ~(score <= self.threshold[predicted])
        return p_values(score, self.scores[0]), ~(score <= self.threshold[0])  # a NaN is an alarm


def check_rate(fpr: float) -> None:
    """Raise unless ``fpr`` is a share between 0 and 1, and one that any data could show."""
    if not 1e-12 < fpr < 1:
        raise ValueError(f"fpr must lie between 0 and 1, got {fpr:g}. 0.05 allows 5 false alarms in 100 known inputs.")


def check_enough(fpr: float, samples: int, where: str) -> None:
    """Raise unless ``samples`` calibration inputs are enough for a false-alarm rate."""
    if samples < samples_needed(fpr):
        raise ValueError(
            f"a false-alarm rate of {fpr:g} takes {samples_needed(fpr)} calibration samples, {where} has {samples}. "
            "Give more in-distribution data, or allow a higher rate."
        )


def _check_counts(counts: Tensor, fpr: float) -> None:
    """Raise unless every group has enough samples for a false-alarm rate."""
    if len(counts) == 1:
        check_enough(fpr, int(counts[0]), "the calibration data")
        return
    needed, least = samples_needed(fpr), int(counts.min())
    if least >= needed:
        return
    short = (counts < needed).nonzero().flatten().tolist()
    named = ", ".join(f"class {label}: {int(counts[label])}" for label in short[:SHOWN])
    more = f", and {len(short) - SHOWN} more" if len(short) > SHOWN else ""
    total = f", about {ceil(int(counts.sum()) * needed / least)} samples in all," if least else ","
    raise ValueError(
        f"a false-alarm rate of {fpr:g} for each class takes {needed} calibration samples that are predicted as it, "
        f"but {len(short)} of {len(counts)} classes have fewer ({named}{more}). Give more in-distribution data"
        f"{total} allow a higher rate, or use one threshold for all classes."
    )
