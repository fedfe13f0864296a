"""Detectors on shaped features: ``Shaped(ReAct(90), Fold(0.5))`` is FOLD-R."""

from abc import ABC, abstractmethod
from typing import Self

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.shaping import check_alpha, partially_normalised
from ..errors import NotFittedError
from .base import Costs, Detector, Fittable


class Shaping(Fittable, ABC):
    """A function from features to features that may learn from in-distribution features first."""

    def learn(self, bank: FeatureBank) -> None:
        """Learn from in-distribution features; by default there is nothing to learn."""

    @abstractmethod
    def forward(self, h: Tensor) -> Tensor:
        """Return shaped features ``(n, d)`` without modifying the input."""

    def learnt(self, name: str) -> Tensor:
        """Return a fitted buffer; raise NotFittedError if it does not exist yet."""
        buffer = self._buffers.get(name)
        if buffer is None:
            raise NotFittedError(f"this {type(self).__name__} has no {name} yet. Fit the detector it belongs to first.")
        return buffer


class Shaped(Detector):
    """A detector on shaped features, in fitting and in scoring.

    Args:
        shaping: Applied to the features.
        detector: Scores the shaped features; it may be ``Shaped`` itself.
    """

    def __init__(self, shaping: Shaping, detector: Detector) -> None:
        super().__init__()
        self.shaping = shaping
        self.detector = detector

    def learn(self, bank: FeatureBank, head: Head) -> None:
        self.shaping.learn(bank)
        self.detector.fit(bank.shaped(self.shaping), head)

    def fit_without(self, bank: FeatureBank, head: Head, label: int) -> Self:
        """Fit the shaping, which has no classes, on all data, and the detector without one class."""
        self.shaping.learn(bank)
        self.detector.fit_without(bank.shaped(self.shaping), head, label)
        return self

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        inner = self.detector.costs(rows, width, classes)
        copy = 4 * rows * width if self.detector.needs_all_features else 0
        return inner._replace(memory=inner.memory + copy)

    def score(self, h: Tensor) -> Tensor:
        return self.detector.score(self.shaping(h))

    def inner_features(self, h: Tensor) -> Tensor:
        shaped: Tensor = self.shaping(h)
        return shaped

    @property
    def inner(self) -> Detector:
        return self.detector


class PartialNorm(Shaping):
    r"""Divide features by a power of their norm.

    .. math:: \tilde h = h / \|h\|^\alpha

    Args:
        alpha: 0 leaves features unchanged, 1 puts them on the unit sphere.
    """

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = alpha

    def learn(self, bank: FeatureBank) -> None:
        check_alpha(self.alpha)

    def forward(self, h: Tensor) -> Tensor:
        return partially_normalised(h, self.alpha)


def with_partial_normalisation(detector: Detector, alpha: float) -> Detector:
    """Apply partial normalisation directly before the score of ``detector``, after ReAct or ASH as in FOLD-R."""
    if isinstance(detector, Shaped):
        return Shaped(detector.shaping, with_partial_normalisation(detector.detector, alpha))
    return Shaped(PartialNorm(alpha), detector)
