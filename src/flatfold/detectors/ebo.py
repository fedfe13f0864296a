"""EBO: the free energy of the logits.

Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020.
"""

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.validation import check_above_zero
from .base import Detector
from .registry import register


@register("ebo", grid={"temperature": (1.0,)})
class Ebo(Detector):
    r"""Energy of the logits.

    .. math:: s(h) = -T \log \sum_c \exp(z_c / T), \qquad z = W h + b

    Args:
        temperature: T, above 0.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_above_zero("temperature", self.temperature, "1")

    def score(self, h: Tensor) -> Tensor:
        return -self.temperature * (self.logits(h) / self.temperature).logsumexp(dim=-1)
