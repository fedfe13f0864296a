"""ASH: keep a few large activations, flatten them, then take the energy.

Djurisic et al., "Extremely Simple Activation Shaping for Out-of-Distribution Detection", ICLR 2023; the variant ASH-B
on the pooled feature vector, as OpenOOD evaluates it.
"""

from torch import Tensor

from ..core.shaping import ash_b
from .ebo import Ebo
from .registry import register
from .shaped import Shaping, behind


class Ash(Shaping):
    r"""Features whose k largest entries become S / k and all others 0.

    .. math:: S = \sum_j h_j, \qquad k = d - \operatorname{round}(d \cdot \text{percentile} / 100)

    Args:
        percentile: Share of entries to drop, in percent.
    """

    def __init__(self, percentile: float = 90) -> None:
        super().__init__()
        self.percentile = percentile

    def forward(self, h: Tensor) -> Tensor:
        """Return the shaped features."""
        return ash_b(h, self.percentile)


register("ash")(behind(Ash, Ebo, "Energy of pruned and flattened features."))
