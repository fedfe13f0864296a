"""Put a shaping in front of a detector: ``Shaped(ReAct(90), Fold(0.5))`` is FOLD-R."""

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

    def fit_without(self, bank: FeatureBank, head: Head, label: int) -> Self:
        """Learn the shaping from everything, for it knows no classes, and the detector without one of them."""
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

    def score_range(self) -> tuple[float, float]:
        """Return the detector's range, which holds for any features and so for shaped ones."""
        return self.detector.score_range()

    @property
    def innermost(self) -> Detector:
        """The detector that keeps the head."""
        return self.detector.innermost


def shaped_factory(
    shaping: Callable[[float], Shaping], detector: Callable[..., Detector], summary: str, percentile: float = 90
) -> Callable[..., Detector]:
    """Return a factory of a detector behind a shaping with a percentile, to be registered under a name of its own.

    Args:
        shaping: Takes the percentile.
        detector: Takes all other hyper-parameters.
        summary: The factory's docstring.
        percentile: Its default.
    """
    return with_percentile(
        lambda value, hyper: Shaped(shaping(value), detector(**hyper)), percentile, detector, summary
    )


def with_percentile(
    build: Callable[[Any, dict[str, Any]], Detector], default: Any, detector: Callable[..., Detector], summary: str
) -> Callable[..., Detector]:
    """Return a factory that takes a ``percentile`` and the hyper-parameters of ``detector``, and tells them.

    Args:
        build: Takes the percentile and the other hyper-parameters.
        default: Of the percentile.
        detector: Whose signature follows it.
        summary: The factory's docstring.
    """

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
    """Return ``detector`` with partial normalisation right in front of its score, behind any other shaping.

    ReAct and ASH speak of the network's own activations, so they come first, as they do in FOLD-R and FOLD-A.
    """
    if isinstance(detector, Shaped):
        return Shaped(detector.shaping, with_partial_normalisation(detector.detector, alpha))
    return Shaped(PartialNorm(alpha), detector)
