"""MSP: the softmax probability of the predicted class, the standard baseline.

Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks",
ICLR 2017.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.validation import check_choice
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "hendrycks2017msp",
    "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks",
    ("Dan Hendrycks", "Kevin Gimpel"),
    2017,
    "ICLR",
    "https://arxiv.org/abs/1610.02136",
)


@register("msp", printed="MSP", full_name="Maximum softmax probability", cite=(PAPER,))
class Msp(Detector):
    r"""Minus the largest class probability.

    .. math:: s(h) = -\max_c \operatorname{softmax}(W h + b)_c

    In float32 a confident sample saturates at exactly -1, which creates ties; the reference does the same.

    Args:
        logarithm: Score by :math:`\log (1 / \max_c p_c - 1)` instead: the same ranking, without ties.
    """

    def __init__(self, logarithm: bool = False) -> None:
        super().__init__()
        self.logarithm = logarithm

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_choice("logarithm", self.logarithm, (True, False))

    def score(self, h: Tensor) -> Tensor:
        logits = self.logits(h)
        if not self.logarithm:
            return -logits.softmax(dim=-1).amax(dim=-1)
        top = logits.argmax(dim=-1, keepdim=True)
        others = logits.scatter(-1, top, -torch.inf).logsumexp(dim=-1)
        return others - logits.amax(dim=-1)

    def score_range(self) -> tuple[float, float]:
        """Return -1 and minus one over the number of classes; the logarithm is unbounded."""
        c, eps = len(self.fitted_weight), torch.finfo(self.fitted_weight.dtype).eps
        if self.logarithm:
            return -torch.inf, torch.inf
        return -1.0, -(1 - c * eps) / c  # with equal classes, the denominator is a sum of c rounded terms
