"""DICE: energy of a head sparsified to the weights with the largest contribution.

Sun and Li, "DICE: Leveraging Sparsification for Out-of-Distribution Detection", ECCV 2022.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import mean_row
from ..core.shaping import percentile_threshold
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "sun2022dice",
    "DICE: Leveraging Sparsification for Out-of-Distribution Detection",
    ("Yiyou Sun", "Yixuan Li"),
    2022,
    "ECCV",
    "https://arxiv.org/abs/2111.09805",
)


@register(
    "dice", printed="DICE", full_name="Directed sparsification", cite=(PAPER,), fits_on="train", needs_labels=False
)
class Dice(Detector):
    r"""Energy under the weights with the largest mean contribution.

    .. math:: s(h) = -\log \sum_c \exp \Big( \sum_j M_{cj} W_{cj} h_j + b_c \Big), \qquad
        M_{cj} = 1\big[ W_{cj} \bar h_j > q \big]

    with :math:`\bar h` the mean training feature and q a percentile of all contributions :math:`W_{cj} \bar h_j`.

    Args:
        percentile: Share of weights to drop, in percent.
    """

    sparse: Tensor

    def __init__(self, percentile: float = 90) -> None:
        super().__init__()
        self.percentile = percentile

    def learn(self, bank: FeatureBank, head: Head) -> None:
        contribution = head.weight * mean_row(bank.rows)
        threshold = percentile_threshold(contribution, self.percentile)
        self.register_buffer("sparse", head.weight * (contribution > threshold))

    def score(self, h: Tensor) -> Tensor:
        return -torch.nn.functional.linear(h, self.sparse, self._buffers.get("bias")).logsumexp(dim=-1)
