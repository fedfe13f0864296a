"""GradNorm: norm of the gradient of the divergence between the prediction and the uniform distribution.

Huang, Geng and Li, "On the Importance of Gradients for Detecting Distributional Shifts in the Wild", NeurIPS 2021.
"""

from torch import Tensor

from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "huang2021gradnorm",
    "On the Importance of Gradients for Detecting Distributional Shifts in the Wild",
    ("Rui Huang", "Andrew Geng", "Yixuan Li"),
    2021,
    "NeurIPS",
    "https://arxiv.org/abs/2110.00218",
)


@register("gradnorm", printed="GradNorm", full_name="Gradient norm", cite=(PAPER,))
class GradNorm(Detector):
    r"""Minus the L1 norm of the gradient, in the head's weight, of the cross-entropy with all classes at once.

    .. math:: s(h) = -\Big\| \frac{\partial}{\partial W} \sum_c -\log p_c \Big\|_1 = -\|h\|_1 \sum_c |C p_c - 1|

    In closed form, without a backward pass.
    """

    def score(self, h: Tensor) -> Tensor:
        probs = self.logits(h).softmax(dim=-1)
        return -h.abs().sum(dim=-1) * (probs.shape[-1] * probs - 1).abs().sum(dim=-1)
