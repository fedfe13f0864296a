"""GEN: a generalised entropy of the class probabilities.

Liu, Lochman and Zach, "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection", CVPR 2023.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import widen
from ..core.validation import check_above_zero, check_count
from .base import Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "liu2023gen",
    "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection",
    ("Xixi Liu", "Yaroslava Lochman", "Christopher Zach"),
    2023,
    "CVPR",
    "https://openaccess.thecvf.com/content/CVPR2023/papers/Liu_GEN_Pushing_the_Limits_of_Softmax-Based_Out-of-Distribution_Detection_CVPR_2023_paper.pdf",
)

_GRID = {"gamma": (0.01, 0.1, 0.5, 1, 2, 5, 10), "top": (10, 50, 100, 200, 500, 1000)}


@register("gen", printed="GEN", full_name="Generalised entropy", cite=(PAPER,), grid=_GRID)
class Gen(Detector):
    r"""Generalised entropy of the largest class probabilities.

    .. math:: s(h) = \sum_{c \in \text{top } M} p_c^\gamma (1 - p_c)^\gamma, \qquad p = \operatorname{softmax}(W h + b)

    A small power amplifies :math:`1 - p`, which float32 rounds to 0 near p = 1; it is computed from the probabilities
    of the other classes, in float64 unless the head is very large.

    Args:
        gamma: The power, above 0.
        top: M, the number of the largest probabilities that count; all if there are fewer classes.
    """

    def __init__(self, gamma: float = 0.1, top: int = 100) -> None:
        super().__init__()
        self.gamma = gamma
        self.top = top

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_above_zero("gamma", self.gamma, "0.1")
        check_count("top", self.top)

    def score(self, h: Tensor) -> Tensor:
        weight, wide = widen(self.weight, h)
        bias = self._buffers.get("bias")
        logits = wide @ weight.mT if bias is None else wide @ weight.mT + bias
        probs = logits.softmax(dim=-1).topk(min(self.top, logits.shape[-1]), dim=-1).values
        best = logits.argmax(dim=-1, keepdim=True)
        margin = logits.amax(dim=-1, keepdim=True) - logits.scatter(-1, best, -torch.inf).logsumexp(-1, keepdim=True)
        others = torch.cat([torch.sigmoid(-margin), 1 - probs[:, 1:]], dim=-1)
        return (probs * others).pow(self.gamma).sum(dim=-1).to(h.dtype)
