"""NNGuide: the energy, weighted by the similarity to the nearest training samples.

Park, Jung and Teoh, "Nearest Neighbor Guidance for Out-of-Distribution Detection", ICCV 2023.
"""

from numbers import Real

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.neighbours import largest_products
from ..core.shaping import partially_normalised
from ..core.validation import check_count, check_seed
from ..errors import MethodRefusedError
from .base import Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "park2023nnguide",
    "Nearest Neighbor Guidance for Out-of-Distribution Detection",
    ("Jaewoo Park", "Yoon Gyo Jung", "Andrew Beng Jin Teoh"),
    2023,
    "ICCV",
    "https://arxiv.org/abs/2309.14888",
)


@register(
    "nnguide",
    printed="NNGuide",
    full_name="Nearest-neighbour guidance",
    cite=(PAPER,),
    fits_on="train",
    needs_labels=False,
)
class NNGuide(Detector):
    r"""Minus the log-sum-exp of the logits times a guidance by neighbours.

    .. math:: s(h) = -g(h) \log \sum_c e^{z_c}, \qquad g(h) = \frac1k \sum_{\text{top } k} \langle \bar h, b_i \rangle,
        \qquad b_i = \bar h_i \log \sum_c e^{z_{ic}}, \qquad \bar h = h / \|h\|

    Args:
        k: Number of the largest inner products averaged in the guidance.
        share: Share of the training features that is stored, but at least k.
        seed: None stores the first ones as OpenOOD does; in data sorted by class these come from few classes. A number
            draws them at random.
        batch_size: The share is rounded up to whole batches: OpenOOD stops reading after the batch that exceeds it, and
            its batches have 200 images.
    """

    bank: Tensor

    def __init__(self, k: int = 100, share: float = 0.01, seed: int | None = None, batch_size: int = 200) -> None:
        super().__init__()
        self.k = k
        self.share = share
        self.seed = seed
        self.batch_size = batch_size

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_count("k", self.k, len(bank), "samples in the bank")
        if not isinstance(self.share, Real) or not 0 < self.share <= 1:
            raise MethodRefusedError(f"share must be above 0 and at most 1, got {self.share!r}. 0.01 is customary.")
        if self.seed is not None:
            check_seed(self.seed)
        check_count("batch_size", self.batch_size)
        count = max(self.k, (int(self.share * len(bank)) // self.batch_size + 1) * self.batch_size)
        rows = torch.arange(len(bank))
        if self.seed is not None:
            rows = torch.randperm(len(bank), generator=torch.Generator().manual_seed(self.seed))
        h = bank.rows[rows[:count].to(head.weight.device)]
        self.register_buffer("bank", partially_normalised(h, 1.0) * head(h).logsumexp(dim=-1, keepdim=True))

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        stored = int(self.share * rows) + self.k + self.batch_size
        return Costs(3 * 4 * stored * width, stored * width * classes, stored * width)

    def score(self, h: Tensor) -> Tensor:
        guidance = largest_products(partially_normalised(h, 1.0), self.bank, self.k)[0].mean(dim=-1)
        return -guidance * self.logits(h).logsumexp(dim=-1)
