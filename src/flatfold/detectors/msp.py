"""MSP: the softmax probability of the predicted class, the baseline of all baselines.

Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks",
ICLR 2017.
"""

from torch import Tensor

from .base import Detector
from .registry import register


@register("msp")
class Msp(Detector):
    r"""Minus the largest class probability.

    .. math:: s(h) = -\max_c \operatorname{softmax}(W h + b)_c

    In float32 a confident sample saturates at exactly -1, which creates ties; the reference does the same.
    """

    def score(self, h: Tensor) -> Tensor:
        """Return minus the largest class probability."""
        return -self.logits(h).softmax(dim=-1).amax(dim=-1)
