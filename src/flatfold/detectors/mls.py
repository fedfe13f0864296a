"""MLS: the largest logit.

Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022.
"""

from torch import Tensor

from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "hendrycks2022scaling",
    "Scaling Out-of-Distribution Detection for Real-World Settings",
    (
        "Dan Hendrycks",
        "Steven Basart",
        "Mantas Mazeika",
        "Andy Zou",
        "Joe Kwon",
        "Mohammadreza Mostajabi",
        "Jacob Steinhardt",
        "Dawn Song",
    ),
    2022,
    "ICML",
    "https://arxiv.org/abs/1911.11132",
)


@register("mls", printed="MLS", full_name="Maximum logit", cite=(PAPER,))
class Mls(Detector):
    r"""Minus the largest logit.

    .. math:: s(h) = -\max_c z_c, \qquad z = W h + b
    """

    def score(self, h: Tensor) -> Tensor:
        return -self.logits(h).amax(dim=-1)
