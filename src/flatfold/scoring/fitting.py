"""Features of known inputs to a judge: half of them fit a detector, the others calibrate it."""

from __future__ import annotations

import logging
from collections import Counter
from copy import deepcopy

import torch
from torch import Tensor

from ..core.bank import FeatureBank
from ..core.head import Head
from ..detectors import create, get_method
from ..detectors.base import Detector
from .calibration import Calibration, check_enough, lifted
from .judge import Judge, without_autocast

log = logging.getLogger(__name__)


def fit_judge(
    detector: Detector,
    bank: FeatureBank,
    head: Head,
    fpr: float,
    *,
    held_out: FeatureBank | None = None,
    per_class: bool = False,
    seed: int = 0,
) -> Judge:
    """Fit a detector and calibrate it on features of inputs that the model was not trained on.

    Args:
        detector: It is fitted, and kept by the judge.
        bank: Features of known inputs, with labels if the detector needs them.
        head: The model's last layer.
        fpr: The share of known inputs that may raise an alarm.
        held_out: Features of others to calibrate on. Without them half of ``bank``, drawn at random, is kept for that.
        per_class: Give each predicted class a threshold of its own.
        seed: Of the draw.
    """
    _note_labels(bank, head)
    where = "half of the data" if held_out is None else "the calibration data"
    if held_out is None:
        bank, held_out = _halves(bank, seed)
    else:
        check_apart(detector, torch.equal(bank.features, held_out.features))
    check_enough(fpr, len(held_out), where)
    with without_autocast(bank.features), torch.no_grad():
        detector.fit(bank, head)
        predicted = head(held_out.features).argmax(dim=-1) if per_class else None
        scores = lifted(detector(held_out.features))
        return Judge(detector, Calibration.of(scores, fpr, predicted, head.n_classes))


def fresh_detector(detector: str | Detector) -> Detector:
    """Return a new detector by its name, or a copy: the caller may fit the original again."""
    made = create(detector) if isinstance(detector, str) else deepcopy(detector)
    if isinstance(made, type):
        raise TypeError(
            f"a guard takes a detector or the name of one, got the class {made.__name__}. "
            f"Make one: {made.__name__}(...)."
        )
    if not isinstance(made, Detector):
        raise TypeError(
            f"a guard scores features, which costs next to nothing, but {type(made).__name__} runs the network "
            "and its gradient again for every input. Use a method that sees features."
        )
    return made


def check_apart(detector: Detector, same: bool) -> None:
    """Raise if a detector that learns from data would be calibrated on the same data."""
    learns = detector.made_by is None or get_method(detector.made_by[0]).fits_on != "nothing"
    if learns and same:
        raise ValueError(
            "the detector has seen what is in the loader, so calibration= must be other data, or the false-alarm rate "
            "would mean nothing. Leave it out, and half of the data is kept for that."
        )


def _note_labels(bank: FeatureBank, head: Head) -> None:
    """Say so when the model knows the labels no better than a guess, or knows them under other numbers."""
    if bank.labels is None:
        return
    predicted = head(bank.features).argmax(dim=-1)
    usual = _usual_prediction(bank.labels, predicted)
    right = _share(predicted == bank.labels)
    renamed = _share(predicted == torch.tensor([usual[label] for label in bank.labels.tolist()]).to(predicted))
    most = int(bank.labels.bincount().max()) / len(bank)
    if len(set(usual.values())) == len(usual) > 1 and renamed > max(0.5, 2 * right):
        label = next(label for label, prediction in usual.items() if label != prediction)
        log.warning(
            "the model is right about %.1f %% of the labelled inputs, but about %.1f %% if its classes had another "
            "order: what is labelled %d is mostly predicted as %d. Labels must be in the order of its outputs; class "
            "folders are numbered in that of their names, 10 before 2.",
            *(100 * right, 100 * renamed, label, usual[label]),
        )
    elif right <= most < 1:
        log.warning(
            "the model is right about %.1f %% of the labelled inputs, where the most frequent class alone makes up "
            "%.1f %%. Are its weights loaded, inputs prepared as in training, labels in the order of its outputs?",
            *(100 * right, 100 * most),
        )


def _usual_prediction(labels: Tensor, predicted: Tensor) -> dict[int, int]:
    """Return what the inputs of each label are predicted as most often, in the order of the labels."""
    counts = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
    usual = dict(pair for pair, _ in reversed(counts.most_common()))  # of several predictions the last one is kept
    return dict(sorted(usual.items()))


def _share(those: Tensor) -> float:
    return float(those.double().mean())


def _halves(bank: FeatureBank, seed: int) -> tuple[FeatureBank, FeatureBank]:
    if len(bank) < 2:
        raise ValueError(
            "one sample cannot both fit and calibrate. Give more data, or a second loader as calibration=."
        )
    order = torch.randperm(len(bank), generator=torch.Generator().manual_seed(seed))
    return bank[order[: len(bank) // 2]], bank[order[len(bank) // 2 :]]
