"""Detectors on shaped features: ``Shaped(ReAct(90), Fold(0.5))`` is FOLD-R."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, Self

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.pairs import Pairs
from ..core.shaping import check_alpha, partially_normalised
from ..core.validation import check_features
from .base import Detector, Fittable


class Shaping(Fittable, ABC):
    """A function from features to features that may learn from in-distribution features first."""

    def learn(self, bank: FeatureBank) -> None:
        """Learn from in-distribution features; by default there is nothing to learn."""

    @abstractmethod
    def forward(self, h: Tensor) -> Tensor:
        """Return shaped features ``(n, d)``; the input is not changed."""


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
        """Fit the shaping on the features and the detector on the shaped features."""
        self.shaping.learn(bank)
        self.detector.fit(FeatureBank(self.shaping(bank.features), bank.labels), head)

    def fit_without(self, bank: FeatureBank, head: Head, label: int) -> Self:
        """Fit the shaping on everything, because it has no classes, and the detector without one class."""
        self.shaping.learn(bank)
        self.detector.fit_without(FeatureBank(self.shaping(bank.features), bank.labels), head, label)
        return self

    def score(self, h: Tensor) -> Tensor:
        """Return the detector's scores of the shaped features."""
        return self.detector.score(self.shaping(h))

    def pairs(self, h: Tensor, k: int) -> Pairs:
        """Return the detector's pairs of classes for the shaped features."""
        check_features(h, self.fitted_weight)
        return self.detector.pairs(self.shaping(h), k)

    @property
    def inner(self) -> Detector:
        """The detector that scores the shaped features."""
        return self.detector


def shaped_factory(
    shaping: Callable[[float], Shaping], detector: Callable[..., Detector], summary: str, percentile: float = 90
) -> Callable[..., Detector]:
    """Return a factory of a detector on features that are shaped with a percentile, to be registered under a name."""
    return with_percentile(
        lambda value, hyper: Shaped(shaping(value), detector(**hyper)), percentile, detector, summary
    )


def with_percentile(
    build: Callable[[Any, dict[str, Any]], Detector], default: Any, detector: Callable[..., Detector], summary: str
) -> Callable[..., Detector]:
    """Return a factory that takes a ``percentile`` and the hyper-parameters of ``detector``, with that signature."""

    def factory(percentile: Any = default, **hyper: Any) -> Detector:
        return build(percentile, hyper)

    first = Parameter("percentile", Parameter.POSITIONAL_OR_KEYWORD, default=default)
    factory.__signature__ = signature(detector).replace(  # type: ignore[attr-defined]
        parameters=[first, *signature(detector).parameters.values()]
    )
    factory.__doc__ = summary
    return factory


class PartialNorm(Shaping):
    r"""Features divided by a power of their norm.

    .. math:: \tilde h = h / \|h\|^\alpha

    Args:
        alpha: 0 leaves features as they are, 1 puts them on the unit sphere.
    """

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = alpha

    def learn(self, bank: FeatureBank) -> None:
        """Check the exponent; there is nothing to learn."""
        check_alpha(self.alpha)

    def forward(self, h: Tensor) -> Tensor:
        """Return the partially normalised features."""
        return partially_normalised(h, self.alpha)


def with_partial_normalisation(detector: Detector, alpha: float) -> Detector:
    """Return ``detector`` with partial normalisation directly before its score, after ReAct or ASH as in FOLD-R."""
    if isinstance(detector, Shaped):
        return Shaped(detector.shaping, with_partial_normalisation(detector.detector, alpha))
    return Shaped(PartialNorm(alpha), detector)
