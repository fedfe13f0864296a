"""VRA: zero unusually small activations and clip unusually large ones before computing the energy.

Xu et al., "VRA: Variational Rectified Activation for Out-of-distribution Detection", NeurIPS 2023.

There are three variants. The authors set entries below the lower threshold to zero, with thresholds per feature on
CIFAR (60 % and 90 to 95 %) and fixed numbers on ImageNet: the default here, with percentiles. OpenOOD raises such
entries to the threshold, with percentiles of all activations: ``vra:low=10:high=90:below=raise:pooled=true``.
pytorch-ood does that per feature: ``vra:low=1:high=99:below=raise``.
"""

from typing import Literal

import torch
from torch import Tensor

from ..core.bank import FeatureBank
from ..core.shaping import column_percentiles, percentile_threshold
from ..core.validation import check_choice
from ..errors import MethodRefusedError
from .base import Detector
from .citations import Work
from .ebo import Ebo
from .registry import register
from .shaped import Shaped, Shaping

PAPER = Work(
    "xu2023vra",
    "VRA: Variational Rectified Activation for Out-of-distribution Detection",
    ("Mingyu Xu", "Zheng Lian", "Bin Liu", "Jianhua Tao"),
    2023,
    "NeurIPS",
    "https://arxiv.org/abs/2302.11716",
)

Below = Literal["zero", "raise"]


class Vra(Shaping):
    r"""Rectify features at two percentiles of in-distribution activations.

    .. math:: h'_j = \begin{cases} 0 & h_j < a_j \\ h_j & a_j \le h_j \le c_j \\ c_j & h_j > c_j \end{cases}

    Args:
        low: Percentile of the lower threshold a.
        high: Percentile of the upper threshold c, not below ``low``.
        below: ``"raise"`` sets entries below a to a instead of 0.
        pooled: Use one pair of thresholds for all features instead of one pair per feature.
    """

    low_: Tensor
    high_: Tensor

    def __init__(self, low: float = 60, high: float = 95, below: Below = "zero", pooled: bool = False) -> None:
        super().__init__()
        self.low = low
        self.high = high
        self.below = below
        self.pooled = pooled

    def learn(self, bank: FeatureBank) -> None:
        check_choice("below", self.below, ("zero", "raise"))
        check_choice("pooled", self.pooled, (True, False))
        of = percentile_threshold if self.pooled else column_percentiles
        thresholds = {}
        for name, percentile in (("low", self.low), ("high", self.high)):
            try:
                thresholds[f"{name}_"] = torch.as_tensor(of(bank.features, percentile)).to(bank.features)
            except MethodRefusedError as error:
                raise MethodRefusedError(f"{name}: {error}") from error
        if self.low > self.high:
            raise MethodRefusedError(f"low must not be above high, got {self.low:g} and {self.high:g}. Swap them.")
        self.register_buffers(**thresholds)

    def forward(self, h: Tensor) -> Tensor:
        low, clipped = self.learnt("low_"), torch.minimum(h, self.learnt("high_"))
        return torch.maximum(clipped, low) if self.below == "raise" else torch.where(h < low, 0.0, clipped)


@register(
    "vra",
    printed="VRA",
    full_name="Two-sided rectification",
    cite=(PAPER,),
    fits_on="val",
    needs_labels=False,
    grid={"high": (85, 90, 95, 99), "low": (1, 10, 30, 60)},
)
def make_vra(
    low: float = 60, high: float = 95, below: Below = "zero", pooled: bool = False, temperature: float = 1.0
) -> Detector:
    """Energy of features that are zeroed below one percentile and clipped above another."""
    return Shaped(Vra(low, high, below, pooled), Ebo(temperature))
