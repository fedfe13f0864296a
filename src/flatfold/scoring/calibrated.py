"""Calibrated detectors: features in, decisions with a bounded false-alarm rate out. No model is needed."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from math import ceil, sqrt
from numbers import Real
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head
from ..core.conformal import allowed_ranks, count_copies_once, p_values, samples_needed
from ..core.hessian import row_chunks
from ..core.neighbours import group_copies
from ..core.shaping import split_norm
from ..detectors import create, get_method
from ..detectors.base import Detector

log = logging.getLogger(__name__)

SHOWN = 3  # classes in a message
GATHERED = 2**24  # calibration scores that are gathered at once, 64 MB: every input takes those of its class
ROUNDING = 1e-4  # how far scores of one input may differ, alone and in a batch, here and in another runtime: relative
# to the score, or to the spread of scores if that is larger
MOVED = 1e-6  # by how much features are moved, relative to their length, to see what rounding does to a score
MOVES, MOVES_MARGIN = 8, 3.0  # in how many directions, and how many times the largest change is allowed for


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

    def columns(self) -> dict[str, Tensor]:
        """Return the columns of a table of verdicts, ``(n,)`` each, on the CPU."""
        columns = {"predicted": self.predicted, "score": self.score, "p_value": self.p_value, "is_ood": self.is_ood}
        return {name: values.detach().cpu() for name, values in columns.items()}


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

    Attributes:
        threshold: ``(g,)``, t of each group.
    """

    scores: Tensor
    counts: Tensor
    threshold: Tensor

    def __init__(self, scores: Tensor, counts: Tensor, fpr: float, confidence: float | None = None) -> None:
        super().__init__()
        check_rate(fpr, confidence)
        _check_counts(counts, fpr, confidence)
        self.fpr = float(fpr)  # a float32 of numpy would give other ranks
        self.confidence = None if confidence is None else float(confidence)
        ranks = [int(n) - allowed_ranks(self.fpr, int(n), self.confidence) for n in counts]
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
    ) -> Self:
        """Calibrate on scores ``(n,)``, with a threshold for each class when ``predicted`` classes are given.

        ``distinct``, a boolean mask ``(n,)``, leaves out copies, of each other or of inputs that the detector has
        learnt from (:func:`flatfold.core.conformal.count_copies_once`).
        """
        if undefined := int((~scores.isfinite()).sum()):
            raise ValueError(
                f"calibration scores must be finite, but {undefined} are NaN or infinite. "
                "Look for enormous features among the calibration inputs."
            )
        distinct = torch.ones_like(scores, dtype=torch.bool) if distinct is None else distinct.to(scores.device)
        if predicted is None:
            groups = [count_copies_once(scores, distinct)]
        else:
            own = [predicted == label for label in range(n_classes)]
            groups = [count_copies_once(scores[rows], distinct[rows]) for rows in own]
        return cls(
            nn.utils.rnn.pad_sequence(groups, batch_first=True, padding_value=torch.inf),
            torch.tensor([len(group) for group in groups]),
            fpr,
            confidence,
        )

    @property
    def per_class(self) -> bool:
        """Whether each predicted class has its own threshold."""
        return len(self.counts) > 1

    @property
    def samples(self) -> int:
        """Number of calibration inputs."""
        return int(self.counts.sum())

    def at(self, fpr: float, confidence: float | None = None) -> Calibration:
        """Return the same scores at another rate, and with another confidence if one is given."""
        return Calibration(self.scores, self.counts.cpu(), fpr, self.confidence if confidence is None else confidence)

    def forward(self, score: Tensor, predicted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the p-value of each score and whether it raises an alarm, both ``(n,)``.

        Args:
            score: ``(n,)``.
            predicted: The likeliest class of each input, ``(n,)``, for thresholds per class.
        """
        score = score.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
        if not self.per_class:
            return p_values(score, self.scores[0]), score > self.threshold[0]
        assert predicted is not None
        size = max(1, GATHERED // self.scores.shape[1])
        if torch.compiler.is_compiling() or len(score) <= size:
            return self._by_class(score, predicted)
        parts = [self._by_class(score[part], predicted[part]) for part in row_chunks(len(score), size)]
        p, alarm = (torch.cat(column) for column in zip(*parts, strict=True))
        return p, alarm

    def _by_class(self, score: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        p = p_values(score, self.scores[predicted], self.counts[predicted])
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
            logits: ``(n, c)``, what the head gave for them, if it has been run already. A model in half precision may
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
        return Verdict(logits, *self(features, logits))

    @classmethod
    def load(cls, path: Path | str) -> CalibratedDetector:
        """Read the calibrated detector of a guard's file, to score features where the model is not available."""
        from .guard_file import read_guard  # late: that module makes calibrated detectors

        return read_guard(Path(path)).calibrated

    def at(self, fpr: float, confidence: float | None = None) -> CalibratedDetector:
        """Return the same detector at another false-alarm rate, and with another confidence if one is given."""
        return CalibratedDetector(self.detector, self.calibration.at(fpr, confidence))


@dataclass(frozen=True)
class FitResult:
    """A fitted detector, and what it was fitted on."""

    detector: Detector
    calibration: Calibration | None
    """None if no false-alarm rate was asked for."""
    samples: int
    """ID inputs to fit on, including the half that is held out if no others were given to calibrate on."""
    accuracy: float | None
    """The share of these inputs that the model classifies correctly; None without labels."""
    runtime: str = ""
    """How the model was run, if it was."""
    copies: int = 0
    """How many of the inputs to fit and to calibrate on have the features of an earlier one, up to rounding."""


def fit_detector(
    detector: Detector,
    bank: FeatureBank | None,
    head: Head,
    fpr: float | None,
    *,
    held_out: FeatureBank | None = None,
    per_class: bool = False,
    confidence: float | None = None,
    seed: int = 0,
    predicted: Tensor | None = None,
    held_out_predicted: Tensor | None = None,
) -> FitResult:
    """Fit a detector in place and calibrate it, on features of ID inputs that the model was not trained on.

    Without a bank the detector only needs the head. Without ``held_out``, a random half of the bank is held out to
    calibrate on; copies stay on one side. Without ``fpr`` nothing is calibrated. ``predicted`` and
    ``held_out_predicted`` are the classes that the model predicts, by default those of the features.
    """
    accuracy = None if bank is None else _check_labels(bank, head, predicted)
    samples = 0 if bank is None else len(bank)
    copies = 0
    if fpr is not None and bank is not None:
        groups = torch.cat(group_copies(bank.features, *([] if held_out is None else [held_out.features])))
        copies = len(groups) - len(torch.unique(groups))
        if held_out is None:
            to_fit, to_hold = _split(groups, fpr, seed)
            check_enough(
                fpr, len(torch.unique(groups[to_hold])), f"half of the data{_WITHOUT_COPIES[copies > 0]}", confidence
            )
            held_out_predicted = None if predicted is None else predicted[to_hold]
            bank, held_out = bank[to_fit], bank[to_hold]
        elif learns(detector) and torch.isin(groups[samples:], groups[:samples]).all():
            raise ValueError(SAME_DATA)
    if bank is None:
        bank = FeatureBank(torch.ones_like(head.weight[:1]))
    with without_autocast(bank.features), torch.no_grad():
        detector.fit(bank, head)
    calibration = None
    if fpr is not None and held_out is not None:
        learnt = bank.features if learns(detector) else None
        calibration = calibrate(
            detector, held_out.features, fpr, per_class, confidence, predicted=held_out_predicted, learnt=learnt
        )
    if copies:
        level = logging.WARNING if copies > MANY_COPIES * samples else logging.INFO
        log.log(level, "%d of the inputs are copies of others: %s", copies, COPIES)
    return FitResult(detector, calibration, samples, accuracy, copies=copies)


@torch.no_grad()
def calibrate(
    detector: Detector,
    features: Tensor,
    fpr: float,
    per_class: bool = False,
    confidence: float | None = None,
    *,
    predicted: Tensor | None = None,
    learnt: Tensor | None = None,
) -> Calibration:
    """Return the calibration of a fitted detector on features ``(n, d)`` of held-out ID inputs.

    ``predicted`` are the classes ``(n,)`` that the model predicts, by default those of the features; ``learnt`` are the
    features that the detector has learnt from, copies of which say nothing about inputs to come.
    """
    groups, *seen = group_copies(features, *([] if learnt is None else [learnt]))
    distinct = torch.zeros(len(groups), dtype=torch.bool)
    distinct[np.unique(groups.numpy(), return_index=True)[1]] = True
    if seen:
        distinct &= ~torch.isin(groups, seen[0])
    check_enough(fpr, int(distinct.sum()), f"the calibration data{_WITHOUT_COPIES[not distinct.all()]}", confidence)
    with without_autocast(features):
        if per_class and predicted is None:
            predicted = detector.innermost.logits(features).argmax(dim=-1)
        scores = with_rounding_margin(detector.eval()(features), distinct)
        scores = torch.maximum(scores, _highest_of_copies(detector, features, groups.to(scores.device)))
        classes = predicted.to(scores.device) if per_class and predicted is not None else None
        return Calibration.of(
            scores, fpr, classes, len(detector.fitted_weight), confidence=confidence, distinct=distinct
        )


def _highest_of_copies(detector: Detector, features: Tensor, groups: Tensor) -> Tensor:
    """Return for each row the highest score that rounding may give to a copy of it; -inf for rows without copies.

    Where a score is a small difference of large numbers, as that of klm near 0, rounding changes it by more than a part
    of itself. So features are moved by a few times what rounding changes in them, in several directions.
    """
    _, first, sizes = np.unique(groups.cpu().numpy(), return_index=True, return_counts=True)
    rows = torch.from_numpy(first[sizes > 1]).to(features.device)
    highest = features.new_full((len(features),), -torch.inf)
    if not len(rows):
        return highest
    h = features[rows]
    score, generator = detector(h), torch.Generator().manual_seed(0)
    change = torch.zeros_like(score)
    step = MOVED * split_norm(h)[0] / h.shape[1] ** 0.5
    for _ in range(MOVES):
        moved = h + step * torch.randn(h.shape, generator=generator).to(h)
        moved = torch.where(moved.sign() == h.sign(), moved, h)  # zeros stay, and nothing becomes negative
        change = torch.maximum(change, (detector(moved) - score).abs().nan_to_num(0.0, posinf=0.0))
    highest[rows] = score + MOVES_MARGIN * change
    return highest[groups]


def _split(groups: Tensor, fpr: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows to fit and the rows to calibrate on: a random half of the groups of copies each.

    What makes up more than a share ``fpr`` of the data, such as a black frame, is calibrated on: the detector might
    give it any score, and only the calibration shows how often it comes.
    """
    _, number, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise ValueError("one sample cannot both fit and calibrate. Give more, or other data as calibration=.")
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    rare = (sizes == 1) | (sizes <= fpr * len(groups))
    to_fit = torch.zeros_like(rare)
    to_fit[order[rare[order]][: len(sizes) // 2]] = True
    rows = order.argsort()[number].argsort(stable=True)
    return rows[to_fit[number[rows]]], rows[~to_fit[number[rows]]]


MANY_COPIES = 0.01  # share of the inputs, above which a warning is logged
COPIES = (
    "they have the same features. Copies stay on one side of the split into fit and calibration data, and the "
    "threshold holds both if inputs to come repeat as often and if they are all different."
)
_WITHOUT_COPIES = ("", ", copies not counted,")

SAME_DATA = (
    "the detector was fitted on this data, so calibration= must be other data, or the false-alarm rate would mean "
    "nothing. Leave it out, and half of the data is held out for that."
)


def make_detector(detector: str | Detector) -> Detector:
    """Return a new detector from a method string, or a copy: the caller may fit the original again."""
    if isinstance(detector, type):
        name = detector.__name__
        raise TypeError(f"a guard takes a detector or the name of one, got the class {name}. Make one: {name}(...).")
    if isinstance(detector, str):
        new: object = create(detector)
    else:
        new = deepcopy(detector)
    if not isinstance(new, Detector):
        raise TypeError(
            f"a guard scores features, but {type(new).__name__} runs the network and its gradient for every input. "
            "Use a method that sees features."
        )
    return new


def learns(detector: Detector) -> bool:
    """Return whether a detector learns from data, not only from the head."""
    return detector.made_by is None or get_method(detector.made_by[0]).fits_on != "nothing"


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
    if not isinstance(features, Tensor):
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
            f"confidence must lie between 0 and 1, got {confidence!r}. With 0.95, 95 of 100 guards keep to their rate."
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


def _check_labels(bank: FeatureBank, head: Head, predicted: Tensor | None) -> float | None:
    """Return the accuracy of the head, and log a warning if it is no better than a guess or classes are permuted."""
    if bank.labels is None or bank.features.shape[1:] != head.weight.shape[1:]:  # which the detector refuses
        return None
    predicted = head.predict(bank.features) if predicted is None else predicted
    pairs = Counter(zip(bank.labels.tolist(), predicted.tolist(), strict=True)).most_common()
    usual = dict(sorted(dict(pair for pair, _ in reversed(pairs)).items()))  # the most frequent prediction of a label
    accuracy = float((predicted == bank.labels).double().mean())
    renamed = sum(count for (label, prediction), count in pairs if usual[label] == prediction) / len(bank)
    most = int(bank.labels.bincount().max()) / len(bank)
    if len(set(usual.values())) == len(usual) > 1 and renamed > max(0.5, 2 * accuracy):
        label = next(label for label, prediction in usual.items() if label != prediction)
        log.warning(
            "the model is right about %.1f %% of the labelled inputs, but about %.1f %% if its classes had another "
            "order: what is labelled %d is mostly predicted as %d. Labels must be in the order of its outputs; class "
            "folders are numbered in the order of their names, 10 before 2.",
            *(100 * accuracy, 100 * renamed, label, usual[label]),
        )
    elif accuracy <= most < 1:
        log.warning(
            "the model is right about %.1f %% of the labelled inputs, where the most frequent class alone makes up "
            "%.1f %%. Are its weights loaded, inputs prepared as in training, labels in the order of its outputs?",
            *(100 * accuracy, 100 * most),
        )
    return accuracy
