"""Partial normalisation as a plug-in: h / |h|^alpha in front of any score.

Park et al., "Exploiting Local Flatness for Efficient Out-of-Distribution Detection", ECCV 2026, section on partial
normalisation.
"""

from torch import Tensor

from ..core.bank import FeatureBank
from ..core.shaping import check_alpha, partially_normalised
from .base import Detector
from .shaped import Shaped, Shaping


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
