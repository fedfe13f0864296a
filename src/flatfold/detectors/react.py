"""ReAct: clip unusually large activations before computing the energy.

Sun, Guo and Li, "ReAct: Out-of-distribution Detection With Rectified Activations", NeurIPS 2021.
"""

from torch import Tensor

from ..core.bank import FeatureBank
from ..core.shaping import percentile_threshold
from .base import Detector
from .citations import Work
from .ebo import Ebo
from .registry import register
from .shaped import Shaped, Shaping

PAPER = Work(
    "sun2021react",
    "ReAct: Out-of-distribution Detection With Rectified Activations",
    ("Yiyou Sun", "Chuan Guo", "Yixuan Li"),
    2021,
    "NeurIPS",
    "https://arxiv.org/abs/2111.12797",
)


class ReAct(Shaping):
    r"""Clip features at a percentile of all in-distribution activations.

    .. math:: h' = \min(h, c)

    The threshold is computed on the bank passed to ``fit``. As in OpenOOD that should be the ID validation data; the
    paper used training data.

    Args:
        percentile: Share of in-distribution activations, in percent, that stay unchanged.
    """

    threshold_: Tensor

    def __init__(self, percentile: float = 90) -> None:
        super().__init__()
        self.percentile = percentile

    def learn(self, bank: FeatureBank) -> None:
        threshold = percentile_threshold(bank.features, self.percentile)
        self.register_buffer("threshold_", bank.features.new_tensor(threshold))

    def forward(self, h: Tensor) -> Tensor:
        return h.clamp(max=self.learnt("threshold_"))

    def kept(self, h: Tensor) -> Tensor:
        """Return True where an entry lies below the threshold."""
        return h < self.learnt("threshold_")


PERCENTILES = (85, 90, 95, 99)


@register(
    "react",
    printed="ReAct",
    full_name="Rectified activations",
    cite=(PAPER,),
    fits_on="val",
    needs_labels=False,
    grid={"percentile": PERCENTILES},
)
def make_react(percentile: float = 90, temperature: float = 1.0) -> Detector:
    """Energy of clipped features."""
    return Shaped(ReAct(percentile), Ebo(temperature))
