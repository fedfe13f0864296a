"""KNN: the distance to the k-th nearest training sample on the unit sphere.

Sun et al., "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022.
"""

from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.neighbours import kth_distance, to_half_precision, unit_scale
from ..core.shaping import partially_normalised
from ..core.validation import check_choice, check_count, check_seed
from ..errors import MethodRefusedError
from .base import PASS, Costs, Detector
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
    printed="KNN",
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
        storage: ``"float16"`` stores a copy of half the size instead; distances are then accurate to about 1e-4.
        share: Share of the samples that is stored, drawn at random from each class, or from all without labels. The
            time of a score is proportional to it.
        seed: Seed of that draw.
    """

    needs_all_features = True

    bank: Tensor
    scale: Tensor

    def __init__(
        self, k: int = 50, storage: Literal["float16"] | None = None, share: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        self.k = k
        self.storage = storage
        self.share = share
        self.seed = seed

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_choice("storage", self.storage, (None, "float16"))
        if not isinstance(self.share, Real) or not 0 < self.share <= 1:
            raise MethodRefusedError(f"share must be above 0 and at most 1, got {self.share!r}. 0.1 is a choice.")
        check_seed(self.seed)
        features = bank.features
        if self.share < 1:
            features = features[_draw_by_class(bank, self.share, self.seed).to(features.device)]
        check_count("k", self.k, len(features), "stored samples")
        stored = to_half_precision(features) if self.storage else features.contiguous()
        self.register_buffers(bank=stored, scale=unit_scale(stored, head.weight.dtype))

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        stored = rows if self.share == 1 else int(self.share * rows) + classes
        bytes_each = 2 if self.storage else 4 if self.share < 1 else 0  # the bank itself is not copied
        return Costs(stored * (bytes_each * width + 8), PASS * stored * width, stored * width)

    def score(self, h: Tensor) -> Tensor:
        return kth_distance(partially_normalised(h, 1.0), self.bank, self.scale, self.k)


def _draw_by_class(bank: FeatureBank, share: float, seed: int) -> Tensor:
    """Return the rows of a share of the samples of each class, rounded up, in order; without labels, of all samples."""
    order = torch.randperm(len(bank), generator=torch.Generator().manual_seed(seed))
    labels = torch.zeros_like(order) if bank.labels is None else bank.labels.cpu()
    order = order[labels[order].argsort(stable=True)]
    counts = labels.bincount()
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[labels[order]]
    wanted = (share * counts.double()).ceil()
    return order[place < wanted[labels[order]]].sort().values
