"""NCI: alignment of the centred feature with the weight of its predicted class.

Liu and Qin, "Detecting Out-of-Distribution Through the Lens of Neural Collapse", CVPR 2025.
"""

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import mean_row
from ..core.shaping import SMALLEST_DIVISOR, row_norms
from ..core.validation import check_above_zero
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "liu2025nci",
    "Detecting Out-of-Distribution Through the Lens of Neural Collapse",
    ("Litian Liu", "Yao Qin"),
    2025,
    "CVPR",
    "https://arxiv.org/abs/2311.01479",
)


@register(
    "nci",
    printed="NCI",
    full_name="Neural collapse inspired",
    cite=(PAPER,),
    fits_on="train",
    needs_labels=False,
    grid={"strength": (1e-4, 1e-3, 1e-2, 1e-1)},
)
class Nci(Detector):
    r"""Minus the proximity to the class weight, minus a multiple of the feature's L1 norm.

    .. math:: s(h) = -\frac{\langle w_{\hat y},\, h - \mu \rangle}{\|h - \mu\|} - \lambda \|h\|_1

    with :math:`\mu` the mean of the training features.

    Args:
        strength: :math:`\lambda`, the weight of the L1 norm.
    """

    centre: Tensor

    def __init__(self, strength: float = 1e-4) -> None:
        super().__init__()
        self.strength = strength

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_above_zero("strength", self.strength, "1e-4", or_zero=True)
        self.register_buffer("centre", mean_row(bank.rows))

    def score(self, h: Tensor) -> Tensor:
        weight = self.weight[self.logits(h).argmax(dim=-1)]
        moved = h - self.centre
        reach = row_norms(moved).squeeze(-1).clamp_min(SMALLEST_DIVISOR)
        proximity = (weight * moved).sum(dim=-1) / reach
        return -proximity - self.strength * h.abs().sum(dim=-1)
