"""Calibrated detectors: features in, decisions with a bounded false-alarm rate out. No model is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import ceil, sqrt
from numbers import Real
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from ..core.conformal import allowed_ranks, p_values, pool_groups, samples_needed
from ..core.copies import count_copies_once
from ..core.hessian import row_chunks
from ..detectors.base import Detector
from ..display.numbers import count, rate
from ..display.table import Table

SHOWN = 3  # classes in a message
SHOWN_ROWS = 10  # inputs of a verdict in a notebook
GATHERED = 2**24  # calibration scores that are gathered at once, 64 MB: every input takes those of its class
POOLED, FINEST = 2**16, 1024  # calibration scores of groups: in all, and of each group at most
ROUNDING = 1e-4  # how far scores of one input may differ, alone and in a batch, here and in another runtime: relative
# to the score, or to the spread of scores if that is larger
GROUPS_WITH_CONFIDENCE = (
    "a confidence needs independent calibration inputs, but these come in groups. Leave it out: the rate then holds on "
    "average over draws of the groups."
)


class Verdict(NamedTuple):
    """What a guard says about a batch."""

    logits: Tensor
    """``(n, c)``, as the model's last linear layer gives them; a single logit z as ``(-z/2, z/2)``."""
    score: Tensor
    """``(n,)``, higher = more out-of-distribution."""
    p_value: Tensor
    """``(n,)``, how unusual the score is among ID inputs: small = unusual."""
    is_ood: Tensor
    """``(n,)`` bool, True where the score is above the threshold, which without a ``confidence`` means a p-value of at
    most the false-alarm rate asked for; and where it is not finite."""

    @property
    def predicted(self) -> Tensor:
        """The likeliest class of each input, ``(n,)``."""
        return self.logits.argmax(dim=-1)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the inputs, such as the files of images; None if they have none."""
        return None

    def columns(self) -> dict[str, Tensor]:
        """Return the columns of a table of verdicts, ``(n,)`` each, on the CPU."""
        columns = {"predicted": self.predicted, "score": self.score, "p_value": self.p_value, "is_ood": self.is_ood}
        return {name: values.detach().cpu() for name, values in columns.items()}

    @property
    def fpr(self) -> float | None:
        """The false-alarm rate of the guard; None for a verdict of a graph, which holds tensors alone."""
        return None

    def __repr__(self) -> str:
        try:
            inputs, alarms = len(self.is_ood), int(self.is_ood.sum())
        except Exception:  # while a graph is traced there are no numbers yet
            return f"Verdict{tuple.__repr__(self)}"
        at = "" if self.fpr is None else f" at {rate(self.fpr)}"
        return f"Verdict({count(inputs, 'input')}, {count(alarms, 'alarm')}{at})"

    def _repr_html_(self) -> str:
        columns = {name: values[:SHOWN_ROWS].tolist() for name, values in self.columns().items()}
        rows = [
            (str(row), str(predicted), f"{score:.4g}", f"{p_value:.2g}", "alarm" * is_ood)
            for row, (predicted, score, p_value, is_ood) in enumerate(zip(*columns.values(), strict=True))
        ]
        rest = len(self.is_ood) - len(rows)
        table = Table(("row", *columns), rows, repr(self), left=(4,))
        return table.html([f"and {count(rest, 'more input')}"] if rest else [])


class GuardVerdict(Verdict):
    """A verdict that knows the false-alarm rate of its guard, and the names of inputs that have some."""

    _fpr: float | None = None
    _names: tuple[str, ...] | None = None

    @property
    def fpr(self) -> float | None:
        """The false-alarm rate of the guard."""
        return self._fpr

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the inputs, such as the files of images; None if they have none."""
        return self._names

    @classmethod
    def of(cls, columns: Iterable[Tensor], fpr: float | None, names: Sequence[str] = ()) -> Self:
        """Create the verdict with these columns."""
        verdict = cls(*columns)
        verdict._fpr, verdict._names = fpr, tuple(names) or None
        return verdict


def join_verdicts(verdicts: Sequence[Verdict], names: Sequence[str] = ()) -> Verdict:
    """Join verdicts on several batches, with the names of all inputs if they have any."""
    return GuardVerdict.of((torch.cat(column) for column in zip(*verdicts, strict=True)), verdicts[0].fpr, names)


class Calibration(nn.Module):
    r"""Split-conformal calibration, of all inputs together or of each predicted class (Mondrian).

    A group is all inputs, or those of one predicted class. With n scores in a group, an alarm is a score above

    .. math:: t = s_{(n + 1 - k)}, \qquad k = \lfloor \text{fpr}\,(n + 1) \rfloor

    the k-th largest of them, which is the same as a p-value of at most ``fpr`` (:mod:`flatfold.core.conformal`). Then
    at most a share ``fpr`` of the ID inputs *of every group* raises an alarm, on average over draws of the calibration
    inputs. With a ``confidence``, k is the smaller rank of :func:`flatfold.core.conformal.allowed_ranks`: then the
    share is at most ``fpr`` for this calibration itself with that probability, in each group on its own.

    A score that is not finite raises an alarm and has the smallest p-value.

    Args:
        scores: ``(g, m)``, a row for each group in ascending order, padded with infinities that do not count.
        counts: ``(g,)`` int64, how many scores of a row count.
        fpr: The share of ID inputs that may raise an alarm.
        confidence: Probability with which that holds for this calibration; None for the average over calibrations.
        above: Number of scores of each row that are larger than all others and not stored. It is not 0 where inputs
            come in groups, such as views of one patient: then the rate is the expected share of alarms among the inputs
            of a new group (:func:`flatfold.core.conformal.pool_groups`).

    Attributes:
        threshold: ``(g,)``, t of each group.
    """

    scores: Tensor
    counts: Tensor
    threshold: Tensor

    def __init__(
        self, scores: Tensor, counts: Tensor, fpr: float, confidence: float | None = None, above: int = 0
    ) -> None:
        super().__init__()
        check_rate(fpr, confidence)
        if above and confidence is not None:
            raise ValueError(GROUPS_WITH_CONFIDENCE)
        self.above = above
        _check_counts(counts // (above + 1), fpr, confidence)
        self.fpr = float(fpr)  # a float32 of numpy would give other ranks
        self.confidence = None if confidence is None else float(confidence)
        ranks = [int(n) - allowed_ranks(self.fpr, int(n), self.confidence, above) for n in counts]
        self.register_buffer("scores", scores)
        self.register_buffer("counts", counts.to(scores.device))
        self.register_buffer("threshold", scores[torch.arange(len(counts)), torch.tensor(ranks)])

    @classmethod
    def of(
        cls,
        scores: Tensor,
        fpr: float,
        predicted: Tensor | None = None,
        n_classes: int = 1,
        *,
        confidence: float | None = None,
        distinct: Tensor | None = None,
        grouping: Tensor | None = None,
    ) -> Self:
        """Calibrate on scores ``(n,)``, with a threshold for each class when ``predicted`` classes are given.

        ``distinct``, a boolean mask ``(n,)``, leaves out copies, of each other or of inputs that the detector has
        learnt from (:func:`flatfold.core.copies.count_copies_once`). With a ``grouping`` ``(n,)``, equal numbers for
        inputs that belong together, every group counts the same, and copies are not looked at.
        """
        if undefined := int((~scores.isfinite()).sum()):
            raise ValueError(
                f"calibration scores must be finite, but {undefined} are NaN or infinite. "
                "Look for enormous features among the calibration inputs."
            )
        distinct = torch.ones_like(scores, dtype=torch.bool) if distinct is None else distinct.to(scores.device)
        own = [slice(None)] if predicted is None else [predicted == label for label in range(n_classes)]
        each = 1
        if grouping is None:
            rows = [count_copies_once(scores[part], distinct[part]) for part in own]
        else:
            grouping = grouping.to(scores.device)
            each = max(1, min(FINEST, POOLED // len(torch.unique(grouping))))
            rows = [pool_groups(scores[part], grouping[part], each) for part in own]
        return cls(
            nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=torch.inf),
            torch.tensor([len(row) for row in rows]),
            fpr,
            confidence,
            each - 1,
        )

    @property
    def per_class(self) -> bool:
        """Whether each predicted class has its own threshold."""
        return len(self.counts) > 1

    @property
    def samples(self) -> int:
        """Number of calibration inputs; of their groups where they come in groups."""
        return int(self.counts.sum()) // (self.above + 1)

    def extra_repr(self) -> str:
        """Describe rate, threshold and samples in one line."""
        low, high = (f"{float(end):.4g}" for end in self.threshold.aminmax())
        thresholds = f"thresholds {low} to {high} by class" if self.per_class else f"threshold {low}"
        sure = "" if self.confidence is None else f", confidence={self.confidence:g}"
        samples = count(self.samples, "calibration group" if self.above else "calibration sample")
        return f"fpr={self.fpr:g}{sure}, {thresholds}, {samples}"

    def at(self, fpr: float, confidence: float | None = None) -> Calibration:
        """Return the same scores at another rate, and with another confidence if one is given."""
        confidence = self.confidence if confidence is None else confidence
        return Calibration(self.scores, self.counts.cpu(), fpr, confidence, self.above)

    def forward(self, score: Tensor, predicted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the p-value of each score and whether it raises an alarm, both ``(n,)``.

        Args:
            score: ``(n,)``.
            predicted: The likeliest class of each input, ``(n,)``, for thresholds per class.
        """
        score = score.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
        if not self.per_class:
            return p_values(score, self.scores[0], above=self.above), score > self.threshold[0]
        assert predicted is not None
        size = max(1, GATHERED // self.scores.shape[1])
        if torch.compiler.is_compiling() or len(score) <= size:
            return self._by_class(score, predicted)
        parts = [self._by_class(score[part], predicted[part]) for part in row_chunks(len(score), size)]
        p, alarm = (torch.cat(column) for column in zip(*parts, strict=True))
        return p, alarm

    def _by_class(self, score: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        p = p_values(score, self.scores[predicted], self.counts[predicted], self.above)
        return p, score > self.threshold[predicted]


class CalibratedDetector(nn.Module):
    """A fitted detector and its calibration.

    All of its state is in buffers, so ``.to()``, ``torch.compile`` and ``torch.export`` work. Under autocast it keeps
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
        alarm. So do features that are too large to be squared in their type, in float32 those from about 1e18 on.

        Args:
            features: ``(n, d)``.
            logits: ``(n, c)``, the output of the head for them, if it was run already. A model in half precision may
                predict another class than its features in float32: give its logits where thresholds are per class.
        """
        with without_autocast(features):
            score = self.detector(features, logits)
            # A norm that overflows makes of enormous features the smallest ones. A NaN is not within the limit either.
            limit = sqrt(torch.finfo(features.dtype).max / features.shape[1])
            score = score.where(features.abs().amax(dim=-1) < limit, torch.nan)
            if not self.calibration.per_class:
                return score, *self.calibration(score)
            logits = self.detector.innermost.logits(features) if logits is None else logits
            return score, *self.calibration(score, logits.argmax(dim=-1))

    @torch.no_grad()
    def decide(self, features: Tensor, logits: Tensor) -> Verdict:
        """Return the verdict on rows of features and their logits; this moves to their device."""
        if self.calibration.scores.device != features.device:
            self.to(features.device)
        return GuardVerdict.of((logits, *self(features, logits)), self.calibration.fpr)

    @classmethod
    def load(cls, path: Path | str) -> CalibratedDetector:
        """Read the calibrated detector of a guard's file, to score features where the model is not available."""
        from .guard_file import read_guard  # late: that module makes calibrated detectors

        return read_guard(Path(path)).calibrated

    def at(self, fpr: float, confidence: float | None = None) -> CalibratedDetector:
        """Return the same detector at another false-alarm rate, and with another confidence if one is given."""
        return CalibratedDetector(self.detector, self.calibration.at(fpr, confidence))


def with_rounding_margin(scores: Tensor, distinct: Tensor | None = None) -> Tensor:
    r"""Return scores to calibrate on, each raised by what rounding may add to it.

    .. math:: s + 10^{-4} \max(|s|, q_{75} - q_{25})

    with the quartiles q of the scores, those of ``distinct`` inputs if these are given: where one input comes again and
    again, the quartiles of all may be equal. The last digits of a score differ between an input alone and in a batch,
    and between runtimes. Without this margin, such an input, a black frame say, could have a score at the threshold
    when it was calibrated on and above it from then on, and all of them would raise an alarm.
    """
    spread = spread_of(scores if distinct is None else scores[distinct.to(scores.device)])
    return scores + ROUNDING * scores.abs().clamp_min(spread)


def spread_of(scores: Tensor) -> float:
    """Return the distance of the quartiles of the finite scores: what errors of small scores are relative to."""
    ranked = scores[scores.isfinite()].sort().values
    return float(ranked[3 * len(ranked) // 4] - ranked[len(ranked) // 4]) if len(ranked) else 0.0


def without_autocast(features: Tensor) -> AbstractContextManager[object]:
    """Return a context in which features are computed with in their own type."""
    if not isinstance(features, Tensor) or features.is_meta:
        return nullcontext()  # the detector raises the error
    kind = features.device.type
    # Only under autocast: in an exported graph the context would become a node that other runtimes do not have.
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def check_rate(fpr: float, confidence: float | None = None) -> None:
    """Raise unless ``fpr`` is a share between 0 and 1 that some amount of data could show, and so is ``confidence``."""
    if not isinstance(fpr, Real) or not 1e-12 < fpr < 1:
        raise ValueError(f"fpr must lie between 0 and 1, got {fpr!r}. 0.05 allows 5 false alarms in 100 ID inputs.")
    if confidence is not None and (not isinstance(confidence, Real) or not 0 < confidence < 1 - 1e-12):
        raise ValueError(
            f"confidence must lie between 0 and 1, got {confidence!r}. "
            "With 0.95, the rate of 95 of 100 guards is at most fpr."
        )


def check_enough(fpr: float, samples: int, where: str, confidence: float | None = None) -> None:
    """Raise unless ``samples`` calibration inputs are enough for a false-alarm rate."""
    if samples < samples_needed(fpr, confidence):
        sure = "" if confidence is None else f" with confidence {confidence:g}"
        raise ValueError(
            f"a false-alarm rate of {fpr:g}{sure} takes {samples_needed(fpr, confidence)} calibration samples, {where} "
            f"has {samples}. Give more in-distribution data, or allow a higher rate{sure and ' or a lower confidence'}."
        )


def _check_counts(counts: Tensor, fpr: float, confidence: float | None) -> None:
    """Raise unless every group has enough samples for a false-alarm rate."""
    if len(counts) == 1:
        check_enough(fpr, int(counts[0]), "the calibration data", confidence)
        return
    needed, least = samples_needed(fpr, confidence), int(counts.min())
    short = (counts < needed).nonzero().flatten().tolist()
    if not short:
        return
    named = ", ".join(f"class {label}: {int(counts[label])}" for label in short[:SHOWN])
    more = f", and {len(short) - SHOWN} more" if len(short) > SHOWN else ""
    total = f", about {ceil(int(counts.sum()) * needed / least)} samples in all," if least else ","
    raise ValueError(
        f"a false-alarm rate of {fpr:g} for each class takes {needed} calibration samples that are predicted as it, "
        f"but {len(short)} of {len(counts)} classes have fewer ({named}{more}). Give more in-distribution data"
        f"{total} allow a higher rate, or use one threshold for all classes."
    )
