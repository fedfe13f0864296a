"""Put a shaping in front of a detector: ``Shaped(ReAct(90), Fold(0.5))`` is FOLD-R."""

from abc import ABC, abstractmethod

from torch import Tensor

from ..core.bank import FeatureBank
from ..core.head import Head
from .base import Detector, Fittable


class Shaping(Fittable, ABC):
    """A function features -> features that may learn something from in-distribution features first."""

    def learn(self, bank: FeatureBank) -> None:
        """Learn from in-distribution features; by default there is nothing to learn."""

    @abstractmethod
    def forward(self, h: Tensor) -> Tensor:
        """Return shaped features ``(n, d)``; the input is not changed."""


class Shaped(Detector):
    """A detector that sees its features through a shaping, while fitting and while scoring.

    Args:
        shaping: What happens to the features.
        detector: What scores them afterwards; it may be ``Shaped`` itself.
    """

    def __init__(self, shaping: Shaping, detector: Detector) -> None:
        super().__init__()
        self.shaping = shaping
        self.detector = detector

    def learn(self, bank: FeatureBank, head: Head) -> None:
        """Fit the shaping on the features and the detector on what comes out of it."""
        self.shaping.learn(bank)
        self.detector.fit(FeatureBank(self.shaping(bank.features), bank.labels), head)

    def score(self, h: Tensor) -> Tensor:
        """Return the detector's scores of the shaped features."""
        return self.detector.score(self.shaping(h))

    @property
    def fitted_weight(self) -> Tensor:
        """Weight of the head the inner detector was fitted with."""
        return self.detector.fitted_weight
