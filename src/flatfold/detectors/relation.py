"""Relation: similarity of a sample to the training data, in features and in predictions.

Kim, Yun and Song, "Neural Relation Graph: A Unified Framework for Identifying Label Noise and Outlier Data", NeurIPS
2023; the outlier score as OpenOOD computes it.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import entry_chunks
from ..core.neighbours import relation_sums, unit_scale
from ..core.shaping import partially_normalised
from ..core.validation import check_above_zero
from ..errors import MethodRefusedError
from .base import Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "kim2023relation",
    "Neural Relation Graph: A Unified Framework for Identifying Label Noise and Outlier Data",
    ("Jang-Hyun Kim", "Sangdoo Yun", "Hyun Oh Song"),
    2023,
    "NeurIPS",
    "https://arxiv.org/abs/2301.12321",
)
MOST_ENTRIES = 2**31  # probabilities that are stored, 8 GB: those of ImageNet-1K take 5.1 GB


@register(
    "relation",
    printed="Relation",
    full_name="Relation graph",
    cite=(PAPER,),
    fits_on="train",
    needs_labels=False,
    grid={"power": (1, 2, 4, 6, 8)},
)
class Relation(Detector):
    r"""Minus the summed relations to all training samples.

    .. math:: s(h) = -\sum_{i:\, r_i > t} r_i^{\,q}, \qquad r_i = \max(0, \langle \bar h, \bar h_i \rangle)\,
        \langle p, p_i \rangle, \qquad \bar h = h / \|h\|, \quad p = \operatorname{softmax}(W h + b)

    Computed by matrix products over chunks of the bank. The features of the bank are not copied: do not modify them
    afterwards. The probabilities of all samples are stored, up to 8 GB. Rounding may move a relation within about 1e-7
    of t to its other side.

    Args:
        power: q, above 0.
        threshold: t, at least 0; weaker relations do not count.
    """

    needs_all_features = True

    bank: Tensor
    scale: Tensor
    probs: Tensor

    def __init__(self, power: float = 1, threshold: float = 0.03) -> None:
        super().__init__()
        self.power = power
        self.threshold = threshold

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_above_zero("power", self.power, "1")
        check_above_zero("threshold", self.threshold, "0.03", or_zero=True)
        if len(bank) * head.n_classes > MOST_ENTRIES:
            raise MethodRefusedError(
                f"relation would store {len(bank)} x {head.n_classes} probabilities, more than {MOST_ENTRIES}. "
                "Fit it on fewer training samples."
            )
        stored = bank.features.contiguous()
        probs = stored.new_empty(len(bank), head.n_classes)
        for part in entry_chunks(len(bank), head.n_classes):
            torch.softmax(head(stored[part]), dim=-1, out=probs[part])
        self.register_buffers(bank=stored, scale=unit_scale(stored, stored.dtype), probs=probs)

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(4 * rows * (classes + 2), rows * width * classes, rows * (width + classes))

    def score(self, h: Tensor) -> Tensor:
        probs = self.logits(h).softmax(dim=-1)
        units = partially_normalised(h, 1.0)
        return -relation_sums(units, probs, self.bank, self.scale, self.probs, self.power, self.threshold)
