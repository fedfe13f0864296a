"""SHE: similarity of a feature to the stored pattern of its predicted class.

Zhang et al., "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with Modern Hopfield
Energy", ICLR 2023.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import class_templates
from ..core.shaping import row_norms
from ..core.validation import check_choice, require_labels
from ..errors import warn
from .base import PASS, Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "zhang2023she",
    "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with Modern Hopfield Energy",
    (
        "Jinsong Zhang",
        "Qiang Fu",
        "Xu Chen",
        "Lun Du",
        "Zelin Li",
        "Gang Wang",
        "Xiaoguang Liu",
        "Shi Han",
        "Dongmei Zhang",
    ),
    2023,
    "ICLR",
    "https://openreview.net/forum?id=KkazG4lgKL",
)

Metric = Literal["inner_product", "euclidean", "cosine"]


@register("she", printed="SHE", full_name="Simplified Hopfield energy", cite=(PAPER,), fits_on="train")
class She(Detector):
    r"""Minus the inner product with the mean feature of the predicted class.

    .. math:: s(h) = -\langle h,\, T_{\hat y} \rangle, \qquad T_c = \operatorname{mean}
        \{ h_i : y_i = \hat y_i = c \}

    A class without a correctly classified sample uses all its samples, with a warning. ``fit`` needs labels.

    Args:
        metric: ``"euclidean"`` scores by the distance from the pattern, ``"cosine"`` by minus the cosine.
    """

    templates: Tensor

    def __init__(self, metric: Metric = "inner_product") -> None:
        super().__init__()
        self.metric = metric

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_choice("metric", self.metric, get_args(Metric))
        predicted = head.predict(bank.rows)
        patterns = class_templates(bank.rows, require_labels(bank, "SHE"), predicted, head.n_classes, "SHE")
        self.register_buffer("templates", patterns.means.to(head.weight))
        if patterns.note:
            warn(patterns.note)

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(40 * rows + 8 * 2 * classes * width, rows * width * (classes + PASS), width * classes)

    def score(self, h: Tensor) -> Tensor:
        pattern = self.templates[self.logits(h).argmax(dim=-1)]
        if self.metric == "euclidean":
            return row_norms(h - pattern).squeeze(-1)
        if self.metric == "cosine":
            return -torch.cosine_similarity(h, pattern, dim=-1)
        return -(h * pattern).sum(dim=-1)
