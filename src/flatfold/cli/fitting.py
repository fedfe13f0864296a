"""Known images and a model to a guard, and what the model makes of them on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from ..core.bank import FeatureBank
    from ..core.head import Head
    from ..detectors.base import Detector
    from ..models.heads import FoundHead
    from ..models.sources import ImageSource
    from ..scoring.guard import Guard


@dataclass(frozen=True)
class Reading:
    """How images are run through a model.

    Args:
        head: Name of its last layer, None to find it.
        device: Where it runs.
        workers: Processes that read images ahead.
        unreadable: Share of the images that may be left out because they are broken.
    """

    head: str | None
    device: str
    workers: int
    unreadable: float


@dataclass(frozen=True)
class Fitted:
    """A guard, and what it was fitted on.

    Args:
        guard: With its model.
        images: How many images could be read, without those of a calibration set of their own.
        accuracy: The share of them that the model is right about, None without labels.
    """

    guard: Guard
    images: int
    accuracy: float | None


def fitted(
    model: nn.Module,
    known: ImageSource,
    held_out: ImageSource | None,
    detector: Detector,
    reading: Reading,
    *,
    fpr: float,
    per_class: bool,
    seed: int,
) -> Fitted:
    """Return the guard of a model.

    Args:
        model: A classifier.
        known: Images that it was not trained on.
        held_out: Others to calibrate on; without them half of ``known`` is kept for that.
        detector: From ``create``, so that the guard can be saved.
        reading: How images are run through the model.
        fpr: The share of known inputs that may raise an alarm.
        per_class: Whether each predicted class has a threshold of its own.
        seed: Of the draw of the halves.
    """
    from ..models.extract import one_pass
    from ..scoring.calibration import check_enough
    from ..scoring.fitting import fit_judge
    from ..scoring.guard import Guard

    def run(source: ImageSource, head: str | None) -> tuple[FeatureBank, FoundHead]:
        return one_pass(model, source, reading.device, head, workers=reading.workers, unreadable=reading.unreadable)

    if held_out is None:  # asked once more of what could be read, but not before all of it is
        check_enough(fpr, known.rows - known.rows // 2, "half of the data")
    else:
        check_enough(fpr, held_out.rows, "the calibration data")
    bank, found = run(known, reading.head)
    more = None if held_out is None else run(held_out, found.name)[0]
    judge = fit_judge(detector, bank, found.head, fpr, held_out=more, per_class=per_class, seed=seed)
    return Fitted(Guard(model, found, judge, known.transform), len(bank), _accuracy(bank, found.head))


def _accuracy(bank: FeatureBank, head: Head) -> float | None:
    if bank.labels is None:
        return None
    return float((head(bank.features).argmax(dim=-1) == bank.labels).double().mean())


def needs_labels(detector: Detector) -> bool:
    """Tell whether a detector can be fitted with labels only, by trying it on a few made-up features."""
    import warnings
    from copy import deepcopy

    import torch

    from ..core.bank import FeatureBank
    from ..core.head import Head

    features, labels = torch.rand(64, 8, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 4
    head = Head(torch.eye(4, 8))
    features += 3 * head.weight[labels]  # classes that the head tells apart: some methods learn from nothing else

    def works(labels: torch.Tensor | None) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about made-up features there is nothing to warn of
                deepcopy(detector).fit(FeatureBank(features, labels), head)
        except ValueError:
            return False
        return True

    return not works(None) and works(labels)
