"""Fit a detector on features of ID inputs and calibrate it, with copies of inputs counted as the theory allows."""

from __future__ import annotations

import logging
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.copies import distinct_rows, group_copies, join_groups, share_near_copies
from ..core.shaping import split_norm
from ..core.validation import check_fit
from ..detectors import create, get_method
from ..detectors.base import Detector
from ..display.numbers import count
from .calibrated import Calibration, check_enough, with_rounding_margin, without_autocast

log = logging.getLogger(__name__)

MOVED = 1e-6  # by how much features are moved, relative to their length, to see what rounding does to a score
MOVES, MOVES_MARGIN = 8, 3.0  # in how many directions, and how many times the largest change is allowed for
MANY_COPIES = 0.01  # share of the inputs, above which a warning is logged
COPIES = (
    "they have the same features. Copies stay on one side of the split into fit and calibration data, and the "
    "threshold holds both if inputs to come repeat as often and if they are all different."
)
MANY_NEAR_COPIES = 0.03  # share of near copies, above which a warning is logged; chance explains 0.01
NEAR_COPIES = (
    "%.1f %% of the inputs are much closer to others of their class than chance explains (1 %%), as views or "
    "recordings of the same thing are. The false-alarm rate holds for inputs that are independent of each other. If "
    "these are not, pass groups=, a number or name for each input that says what belongs together: whole groups then "
    "stay on one side of the split."
)
_WITHOUT_COPIES = ("", ", copies not counted,")

SAME_DATA = (
    "the calibration data is the data that the detector was fitted on, so the false-alarm rate would not be valid. "
    "Give other data as calibration=; Guard.fit without it holds out half of the data."
)


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
    near_copies: float | None = None
    """Share of the inputs that are near copies of others; by chance it is 0.01. None if unknown or groups are given."""

    def __repr__(self) -> str:
        name = self.detector.method_text or type(self.detector).__name__
        facts = [name, count(self.samples, "sample")]
        facts += [] if self.accuracy is None else [f"accuracy of the model {100 * self.accuracy:.1f} %"]
        facts += [f"{self.copies:,} with the features of another"] if self.copies else []
        facts += [] if self.calibration is None else [self.calibration.extra_repr()]
        return f"FitResult({', '.join(facts)})"


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
    grouping: Tensor | None = None,
) -> FitResult:
    """Fit a detector in place and calibrate it, on features of ID inputs that the model was not trained on.

    Without a bank the detector only needs the head. Without ``held_out``, a random half of the bank is held out to
    calibrate on; copies stay on one side. Without ``fpr`` nothing is calibrated. ``predicted`` and
    ``held_out_predicted`` are the classes that the model predicts, by default those of the features. With a
    ``grouping`` ``(n,)``, equal numbers for rows of the bank that belong together, whole groups are held out and every
    group counts the same.
    """
    if bank is not None:
        check_fit(bank, head)  # before labels are counted
    accuracy = None if bank is None else check_labels_fit(bank, head, predicted)
    samples = 0 if bank is None else len(bank)
    copies, near = 0, None
    if fpr is not None and bank is not None:
        groups = torch.cat(group_copies(bank.features, *([] if held_out is None else [held_out.features])))
        first = distinct_rows(groups)
        copies = int((~first).sum())
        if grouping is None:
            classes = head.predict(bank.features) if predicted is None else predicted
            near = share_near_copies(bank.features[first[:samples]], classes[first[:samples]])
        if held_out is None:
            together = groups if grouping is None else join_groups(groups, grouping)
            to_fit, to_hold = split_groups(together, fpr if grouping is None else 1.0, seed)
            count, what = int(distinct_rows(together[to_hold]).sum()), _WITHOUT_COPIES[copies > 0]
            where = f"half of the data{what}" if grouping is None else "half of the groups"
            check_enough(fpr, count, where, confidence)
            held_out_predicted = None if predicted is None else predicted[to_hold]
            bank, held_out = bank[to_fit], bank[to_hold]
            grouping = None if grouping is None else together[to_hold]
        elif learns(detector) and not distinct_rows(groups[samples:], groups[:samples]).any():
            raise ValueError(SAME_DATA)
    if bank is None:
        bank = FeatureBank(torch.ones_like(head.weight[:1]))
    with without_autocast(bank.features), torch.no_grad():
        detector.fit(bank, head)
    calibration = None
    if fpr is not None and held_out is not None:
        learnt = bank.features if learns(detector) else None
        calibration = _calibrate(
            detector, held_out.features, fpr, per_class, confidence, held_out_predicted, learnt, grouping
        )
    if copies:
        level = logging.WARNING if copies > MANY_COPIES * samples else logging.INFO
        log.log(level, "%d of the inputs are copies of others: %s", copies, COPIES)
    if near is not None and near > MANY_NEAR_COPIES:
        log.warning(NEAR_COPIES, 100 * near)
    return FitResult(detector, calibration, samples, accuracy, copies=copies, near_copies=near)


@torch.no_grad()
def _calibrate(
    detector: Detector,
    features: Tensor,
    fpr: float,
    per_class: bool,
    confidence: float | None,
    predicted: Tensor | None,
    learnt: Tensor | None,
    grouping: Tensor | None,
) -> Calibration:
    """Return the calibration of a fitted detector on features ``(n, d)`` of held-out ID inputs.

    ``predicted`` are the classes ``(n,)`` that the model predicts, by default those of the features; ``learnt`` are the
    features that the detector has learnt from; rows with equal numbers in ``grouping`` belong together.
    """
    groups, *seen = group_copies(features, *([] if learnt is None else [learnt]))
    distinct = distinct_rows(groups, *seen)
    if grouping is None:
        check_enough(fpr, int(distinct.sum()), f"the calibration data{_WITHOUT_COPIES[not distinct.all()]}", confidence)
    with without_autocast(features):
        if per_class and predicted is None:
            predicted = detector.innermost.logits(features).argmax(dim=-1)
        scores = with_rounding_margin(detector.eval()(features), distinct)
        scores = torch.maximum(scores, _highest_of_copies(detector, features, groups.to(scores.device)))
        classes = predicted.to(scores.device) if per_class and predicted is not None else None
        return Calibration.of(
            scores,
            fpr,
            classes,
            len(detector.fitted_weight),
            confidence=confidence,
            distinct=distinct,
            grouping=grouping,
        )


def _highest_of_copies(detector: Detector, features: Tensor, groups: Tensor) -> Tensor:
    """Return for each row the highest score that rounding may give to a copy of it; -inf for rows without copies.

    Where a score is a small difference of large numbers, as that of klm near 0, rounding changes it by more than a part
    of itself. So features are moved by a few times what rounding changes in them, in several directions.
    """
    rows = torch.unique(groups[groups != torch.arange(len(groups), device=groups.device)])  # the first of each group
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


def split_groups(groups: Tensor, most: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows to fit and the rows to calibrate on: a random half of the groups each.

    What makes up more than a share ``most`` of the data, such as a black frame, is calibrated on: the detector might
    give it any score, and only the calibration shows how often it comes.
    """
    _, number, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise ValueError("one sample cannot both fit and calibrate. Give more, or other data as calibration=.")
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    rare = (sizes == 1) | (sizes <= most * len(groups))
    to_fit = torch.zeros_like(rare)
    to_fit[order[rare[order]][: len(sizes) // 2]] = True
    rows = order.argsort()[number].argsort(stable=True)
    return rows[to_fit[number[rows]]], rows[~to_fit[number[rows]]]


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


def check_labels_fit(bank: FeatureBank, head: Head, predicted: Tensor | None) -> float | None:
    """Return the accuracy of the head, and log a warning if it is no better than a guess or classes are permuted."""
    if bank.labels is None:
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
