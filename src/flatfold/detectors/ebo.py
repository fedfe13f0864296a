"""EBO: free energy of the logits.

Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020.
"""

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.validation import check_above_zero
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "liu2020energy",
    "Energy-based Out-of-distribution Detection",
    ("Weitang Liu", "Xiaoyun Wang", "John D. Owens", "Yixuan Li"),
    2020,
    "NeurIPS",
    "https://arxiv.org/abs/2010.03759",
)


@register("ebo", printed="EBO", full_name="Energy score", cite=(PAPER,), grid={"temperature": (1.0,)})
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
