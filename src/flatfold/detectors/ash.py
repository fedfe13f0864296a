"""ASH: energy of the few largest activations, all set to the same value.

Djurisic et al., "Extremely Simple Activation Shaping for Out-of-Distribution Detection", ICLR 2023; the variant ASH-B
on the pooled feature vector, as OpenOOD evaluates it.
"""

from torch import Tensor

from ..core.bank import FeatureBank
from ..core.shaping import ash_b, kept_entries
from ..core.validation import check_not_negative
from .base import Detector
from .citations import Work
from .ebo import Ebo
from .registry import register
from .shaped import Shaped, Shaping

PAPER = Work(
    "djurisic2023ash",
    "Extremely Simple Activation Shaping for Out-of-Distribution Detection",
    ("Andrija Djurisic", "Nebojsa Bozanic", "Arjun Ashok", "Rosanne Liu"),
    2023,
    "ICLR",
    "https://arxiv.org/abs/2209.09858",
)


class Ash(Shaping):
    r"""Set the k largest entries of features to S / k and all others to 0.

    .. math:: S = \sum_j h_j, \qquad k = d - \operatorname{round}(d \cdot \text{percentile} / 100)

    Args:
        percentile: Share of entries to drop, in percent.
    """

    def __init__(self, percentile: float = 90) -> None:
        super().__init__()
        self.percentile = percentile

    def learn(self, bank: FeatureBank) -> None:
        kept_entries(bank.width, self.percentile)
        check_not_negative(bank.features, "ASH")

    def forward(self, h: Tensor) -> Tensor:
        """Return the shaped features; raise for negative ones, for which S is meaningless."""
        check_not_negative(h, "ASH")
        return ash_b(h, self.percentile)


PERCENTILES = (65, 70, 75, 80, 85, 90, 95)


@register("ash", printed="ASH", full_name="Activation shaping (ASH-B)", cite=(PAPER,), grid={"percentile": PERCENTILES})
def make_ash(percentile: float = 90, temperature: float = 1.0) -> Detector:
    """Energy of pruned and flattened features."""
    return Shaped(Ash(percentile), Ebo(temperature))
