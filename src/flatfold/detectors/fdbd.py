"""fDBD: distance of a feature from the decision boundaries, relative to that from the mean of the training data.

Liu and Qin, "Fast Decision Boundary based Out-of-Distribution Detector", ICML 2024.
"""

from typing import Literal

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import mean_row
from ..core.hessian import affordable_distances
from ..core.signs import margin
from ..core.validation import check_choice
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "liu2024fdbd",
    "Fast Decision Boundary based Out-of-Distribution Detector",
    ("Litian Liu", "Yao Qin"),
    2024,
    "ICML",
    "https://arxiv.org/abs/2312.11536",
)

Relative = Literal["centre", "norm"]
RELATIVE = ("centre", "norm")


@register(
    "fdbd",
    printed="fDBD",
    full_name="Fast decision boundary",
    cite=(PAPER,),
    fits_on="train",
    needs_labels=False,
    grid={"relative_to": RELATIVE},
)
class Fdbd(Detector):
    r"""Minus the sum of distances to the decision boundaries, over the distance from the mean training feature.

    .. math:: s(h) = -\frac{1}{\|h - \mu\|} \sum_{c \neq \hat y} \frac{|z_{\hat y} - z_c|}{\|w_{\hat y} - w_c\|}

    Args:
        relative_to: ``"norm"`` divides by :math:`\|h\|` instead.
    """

    centre: Tensor
    distances: Tensor | None

    def __init__(self, relative_to: Relative = "centre") -> None:
        super().__init__()
        self.relative_to = relative_to

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_choice("relative_to", self.relative_to, RELATIVE)
        self.register_buffer("centre", mean_row(bank.rows))
        self.register_buffer("distances", affordable_distances(head.weight))

    def score(self, h: Tensor) -> Tensor:
        offset = h - self.centre if self.relative_to == "centre" else h
        return margin(offset, self.logits(h), self.weight, self._buffers.get("distances"))
