"""KNN: the distance to the k-th nearest training sample on the unit sphere.

Sun et al., "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022.
"""

from typing import Literal

from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.neighbours import kth_distance, to_half_precision, unit_scale
from ..core.shaping import partially_normalised
from ..core.validation import check_choice, check_count
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "sun2022knn",
    "Out-of-Distribution Detection with Deep Nearest Neighbors",
    ("Yiyou Sun", "Yifei Ming", "Xiaojin Zhu", "Yixuan Li"),
    2022,
    "ICML",
    "https://arxiv.org/abs/2204.06507",
)


@register(
    "knn",
    full_name="k-th nearest neighbour",
    cite=(PAPER,),
    fits_on="train",
    needs_labels=False,
    grid={"k": (50, 100, 200, 500, 1000)},
)
class Knn(Detector):
    r"""Squared distance to the k-th nearest training feature, all of unit length.

    .. math:: s(h) = \| \bar h - \bar h_{(k)} \|^2, \qquad \bar h = h / \|h\|

    Exact, by matrix products over chunks of the bank. The features of the bank are not copied: do not modify them
    afterwards. Zero features stay zero, at distance 1 from all others. Neighbours whose distances agree to about 1e-7
    may be interchanged.

    Args:
        k: Rank of the neighbour.
        storage: ``"float16"`` stores a copy of half the size instead; distances are then accurate to about 1e-3.
    """

    bank: Tensor
    scale: Tensor

    def __init__(self, k: int = 50, storage: Literal["float16"] | None = None) -> None:
        super().__init__()
        self.k = k
        self.storage = storage

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_count("k", self.k, len(bank), "samples in the bank")
        check_choice("storage", self.storage, (None, "float16"))
        stored = to_half_precision(bank.features) if self.storage else bank.features.contiguous()
        self.register_buffers(bank=stored, scale=unit_scale(stored, head.weight.dtype))

    def score(self, h: Tensor) -> Tensor:
        return kth_distance(partially_normalised(h, 1.0), self.bank, self.scale, self.k)
