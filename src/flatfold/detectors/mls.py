"""MLS: the largest logit.

Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022.
"""

from torch import Tensor

from .base import Detector
from .registry import register


@register("mls")
class Mls(Detector):
    r"""Minus the largest logit.

    .. math:: s(h) = -\max_c z_c, \qquad z = W h + b
    """

    def score(self, h: Tensor) -> Tensor:
        return -self.logits(h).amax(dim=-1)
