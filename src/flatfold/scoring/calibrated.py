"""Features in, decision out: a guard without its model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import ceil
from numbers import Real
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from ..core.conformal import allowed_ranks, p_values, samples_needed
from ..core.hessian import row_chunks
from ..detectors.base import Detector

# Scores of held-out known inputs, and the thresholds and p-values that follow from them.


SHOWN = 3  # classes in a message

GATHERED = 2**24  # calibration scores that are laid out at once, 64 MB: every input takes those of its class

ROUNDING = 1e-5  # relative: how far the scores of one input may be apart, alone and in a batch, here and elsewhere


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
        self.fpr = float(fpr)  # numpy's float32 would give ranks of its own
        ranks = [int(n) - allowed_ranks(self.fpr, int(n)) for n in counts]
        self.register_buffer("scores", scores)
        self.register_buffer("counts", counts.to(scores.device))
        self.register_buffer("threshold", scores[torch.arange(len(counts)), torch.tensor(ranks)])

    @classmethod
    def of(cls, scores: Tensor, fpr: float, predicted: Tensor | None = None, n_classes: int = 1) -> Self:
        """Calibrate on scores ``(n,)``, with a threshold for each class when ``predicted`` classes are given."""
        if unknown := int(scores.isnan().sum()):
            raise ValueError(
                f"calibration scores must be numbers, but {unknown} are NaN, and no score is above or below these. "
                "Look for enormous features among the inputs that were calibrated on."
            )
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
        if not self.per_class:
            return p_values(score, self.scores[0]), ~(score <= self.threshold[0])  # a NaN is an alarm
        size = max(1, GATHERED // self.scores.shape[1])
        if torch.compiler.is_compiling() or len(score) <= size:
            return self._of_each_class(score, predicted)
        parts = [self._of_each_class(score[part], predicted[part]) for part in row_chunks(len(score), size)]
        p, alarm = (torch.cat(column) for column in zip(*parts, strict=True))
        return p, alarm

    def _of_each_class(self, score: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        p = p_values(score, self.scores[predicted], self.counts[predicted])
        return p, ~(score <= self.threshold[predicted])


def lifted(scores: Tensor) -> Tensor:
    r"""Return scores to calibrate on, each higher by what rounding may add to it: :math:`s + 10^{-5} |s|`.

    The same input has other last digits alone than in a batch, or in another runtime. Without this, one that comes
    again and again, such as a black frame, could lie on the threshold when it was calibrated on and above it from then
    on, and all of them would raise an alarm.
    """
    return scores + ROUNDING * scores.abs()


def check_rate(fpr: float) -> None:
    """Raise unless ``fpr`` is a share between 0 and 1, and one that any data could show."""
    if not isinstance(fpr, Real) or not 1e-12 < fpr < 1:
        raise ValueError(f"fpr must lie between 0 and 1, got {fpr!r}. 0.05 allows 5 false alarms in 100 known inputs.")


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


class Judge(nn.Module):
    """A fitted detector and its calibration.

    All that it knows are buffers, so ``.to()``, ``torch.compile`` and ``torch.export`` work. Under autocast it keeps
    the type of the features: a confident score has no digit left in bfloat16.

    Args:
        detector: Fitted.
        calibration: Scores of that detector.
    """

    def __init__(self, detector: Detector, calibration: Calibration) -> None:
        super().__init__()
        self.detector = detector.eval()
        self.calibration = calibration

    def forward(self, features: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return score, p-value and decision of each row of features, ``(n,)`` each.

        Features that are not finite are refused; once compiled or exported, they have a score of NaN, and raise an
        alarm.

        Args:
            features: ``(n, d)``.
            logits: ``(n, c)``, what the head gave for them, if that is known.
        """
        with without_autocast(features):
            score = self.detector(features, logits)
            logits = self.detector.innermost.logits(features) if logits is None else logits
            if torch.compiler.is_compiling():
                # A graph does not refuse such features, and a method may see in an infinity the surest of all inputs.
                score = score.where(features.isfinite().all(dim=-1), torch.nan)
            return score, *self.calibration(score, logits.argmax(dim=-1))

    @classmethod
    def load(cls, path: Path | str) -> Judge:
        """Read the judge of a guard from its file: features can be judged where the model is not."""
        from .guard_file import load_judge  # late: a file is read into a judge

        return load_judge(Path(path))[0]

    def at(self, fpr: float) -> Judge:
        """Return a judge that allows another false-alarm rate, with the same detector."""
        return Judge(self.detector, self.calibration.at(fpr))


def without_autocast(features: Tensor) -> AbstractContextManager[object]:
    """Return a context in which features are computed with in their own type."""
    if not isinstance(features, Tensor):
        return nullcontext()  # the detector says what it takes
    kind = features.device.type
    # Only where there is one: in an exported graph the context would become a node that no other runtime knows.
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


# What a guard says.


class Verdict(NamedTuple):
    """What a guard says about a batch."""

    logits: Tensor
    """``(n, c)``, as the model's last linear layer gives them."""
    score: Tensor
    """``(n,)``, higher = more out-of-distribution."""
    p_value: Tensor
    """``(n,)``, how unusual the score is among known inputs: small = unusual."""
    is_ood: Tensor
    """``(n,)`` bool, True where the p-value is at most the false-alarm rate asked for."""
