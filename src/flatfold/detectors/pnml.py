"""pNML: regret of the last layer, large for features in directions that are rare in the training data.

Bibas, Feder and Hassner, "Single Layer Predictive Normalized Maximum Likelihood for Out-of-Distribution Detection",
NeurIPS 2021.
"""

from math import log

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.class_statistics import whitening_of
from ..core.hessian import as_double, entry_chunks
from ..core.shaping import partially_normalised
from ..core.validation import check_choice
from ..errors import MethodRefusedError
from .base import Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "bibas2021pnml",
    "Single Layer Predictive Normalized Maximum Likelihood for Out-of-Distribution Detection",
    ("Koby Bibas", "Meir Feder", "Tal Hassner"),
    2021,
    "NeurIPS",
    "https://arxiv.org/abs/2110.09246",
)
SMALLEST = 1e-12  # probability, as in pytorch-ood


@register(
    "pnml",
    printed="pNML",
    full_name="Single-layer pNML regret",
    cite=(PAPER,),
    fits_on="train",
    needs_labels=False,
    grid={"unit_logits": (True, False)},
)
class Pnml(Detector):
    r"""Logarithm of the sum of the probabilities that each class could reach, relative to log C for C classes.

    .. math:: s(h) = \frac{1}{\log C} \log \sum_c \frac{p_c}{p_c + (1 - p_c)\, p_c^{\kappa}}, \qquad
        \kappa = \max\Big( \frac{q}{1 + q}, \|u_\perp\|^2 \Big), \qquad
        q = u^\top \Big( \sum_i u_i u_i^\top \Big)^{\!+} u, \qquad u = h / \|h\|

    with :math:`p = \operatorname{softmax}(W u + b)` and :math:`u_\perp` the component of u outside the span of the
    training features. It is 0 if the training features span all directions; otherwise, pytorch-ood omits it, so that a
    feature outside the span has regret 0 there.

    Args:
        unit_logits: False uses the network's own probabilities, :math:`p = \operatorname{softmax}(W h + b)`. These
            were better on each network that we tried.
    """

    whitening: Tensor

    def __init__(self, unit_logits: bool = True) -> None:
        super().__init__()
        self.unit_logits = unit_logits

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_choice("unit_logits", self.unit_logits, (True, False))
        gram = as_double(head.weight.new_zeros(head.width, head.width))
        for part in entry_chunks(len(bank), head.width):
            units = partially_normalised(as_double(bank.rows[part]), 1.0)
            gram.addmm_(units.mT, units)
        if not bool(gram.any()):
            raise MethodRefusedError("pNML needs non-zero features, but all features are 0. Check the bank.")
        self.register_buffer("whitening", whitening_of(gram))

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(8 * 6 * width**2, rows * width**2, width * (width + classes))

    def score(self, h: Tensor) -> Tensor:
        units = partially_normalised(h, 1.0)
        wide = units.to(self.whitening.dtype)
        parts = (wide @ self.whitening).square()
        q = parts.sum(dim=-1, keepdim=True)
        inside = (parts / self.whitening.square().sum(dim=0)).sum(dim=-1, keepdim=True)
        kappa = torch.maximum(q / (1 + q), wide.square().sum(dim=-1, keepdim=True) - inside)
        logits = self.logits(units if self.unit_logits else h).to(q.dtype)
        p = logits.softmax(dim=-1).clamp(SMALLEST, 1 - SMALLEST)
        reached = p / (p + (1 - p) * p**kappa)
        return (reached.sum(dim=-1).log() / log(p.shape[-1])).to(h.dtype)
