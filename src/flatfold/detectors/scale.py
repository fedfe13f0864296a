"""SCALE: energy of features scaled by how concentrated they are in few entries.

Xu et al., "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement", ICLR 2024.
"""

from torch import Tensor

from ..core.bank import FeatureBank
from ..core.shaping import kept_entries, scale
from ..core.validation import check_not_negative
from .ash import PERCENTILES
from .base import Detector
from .citations import Work
from .ebo import Ebo
from .registry import register
from .shaped import Shaped, Shaping

PAPER = Work(
    "xu2024scale",
    "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement",
    ("Kai Xu", "Rongyu Chen", "Gianni Franchi", "Angela Yao"),
    2024,
    "ICLR",
    "https://arxiv.org/abs/2310.00227",
)


class Scale(Shaping):
    r"""Features multiplied by :math:`e^r`.

    .. math:: r = \sum_j h_j \Big/ \sum_{j \in \text{top } k} h_j, \qquad
        k = d - \operatorname{round}(d \cdot \text{percentile} / 100)

    Args:
        percentile: Share of entries that do not count among the largest, in percent.
    """

    def __init__(self, percentile: float = 85) -> None:
        super().__init__()
        self.percentile = percentile

    def learn(self, bank: FeatureBank) -> None:
        kept_entries(bank.width, self.percentile)
        check_not_negative(bank.features, "SCALE")

    def forward(self, h: Tensor) -> Tensor:
        """Return the scaled features; raise for negative ones, for which the ratio is meaningless."""
        check_not_negative(h, "SCALE")
        return scale(h, self.percentile)


@register("scale", printed="SCALE", full_name="Activation scaling", cite=(PAPER,), grid={"percentile": PERCENTILES})
def make_scale(percentile: float = 85, temperature: float = 1.0) -> Detector:
    """Energy of scaled features."""
    return Shaped(Scale(percentile), Ebo(temperature))
