"""LTS: energy of logits scaled by how concentrated the features are in few entries.

Djurisic, Liu and Nikolic, "Logit Scaling for Out-of-Distribution Detection", 2024. A variant of SCALE; the bias of the
head is scaled too, so this is not a shaping of features. Negative features count as 0 in the factor, as in the authors'
code; the paper does not mention them.
"""

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.shaping import check_percentile, largest_sum, total_over
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "djurisic2024lts",
    "Logit Scaling for Out-of-Distribution Detection",
    ("Andrija Djurisic", "Rosanne Liu", "Mladen Nikolic"),
    2024,
    "arXiv",
    "https://arxiv.org/abs/2409.01175",
)


@register("lts", printed="LTS", full_name="Logit scaling", cite=(PAPER,), grid={"percentile": (80, 85, 90, 95)})
class Lts(Detector):
    r"""Energy of scaled logits.

    .. math:: s(h) = -\log \sum_c e^{S z_c}, \qquad
        S = \Big( \sum_j h_j^+ \Big/ \sum_{j \in \text{top } k} h_j^+ \Big)^2, \qquad
        k = d - \operatorname{round}(d \cdot \text{percentile} / 100)

    with :math:`h^+ = \max(h, 0)` and k at least 1. S is 0 if no feature is positive.

    Args:
        percentile: Share of entries that do not count among the largest, in percent; the paper's p is the others'.
    """

    def __init__(self, percentile: float = 95) -> None:
        super().__init__()
        self.percentile = percentile

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_percentile(self.percentile)

    def score(self, h: Tensor) -> Tensor:
        k = max(1, h.shape[-1] - round(h.shape[-1] * self.percentile / 100))
        positive = h.relu()
        return -(total_over(positive, largest_sum(positive, k)).square() * self.logits(h)).logsumexp(dim=-1)
