"""NECO: share of a feature in the principal space of the training features, times the largest logit.

Ben Ammar et al., "NECO: NEural Collapse Based Out-of-distribution detection", ICLR 2024.
"""

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.shaping import SMALLEST_DIVISOR, row_norms
from ..core.validation import check_choice
from ..errors import MethodRefusedError
from .base import Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "benammar2024neco",
    "NECO: NEural Collapse Based Out-of-distribution detection",
    ("Mouïn Ben Ammar", "Nacim Belkhir", "Sebastian Popescu", "Antoine Manzanera", "Gianni Franchi"),
    2024,
    "ICLR",
    "https://arxiv.org/abs/2310.06823",
)
MOST_DIMENSIONS = 100


@register(
    "neco",
    printed="NECO",
    full_name="Neural collapse, principal space",
    cite=(PAPER,),
    fits_on="train",
    needs_labels=False,
    grid={"dim": (10, 50, 100)},
)
class Neco(Detector):
    r"""Minus the share of the standardised feature in the principal space, times the largest logit.

    .. math:: s(h) = -\frac{\|V^\top x\|}{\|x\|} \max_c z_c, \qquad x_j = (h_j - \mu_j) / \sigma_j

    V spans the ``dim`` directions in which the standardised training features vary most. A feature that is constant on
    the training data is not divided. The authors tune ``dim`` for each network.

    Args:
        dim: None means the number of classes minus one, the dimension of collapsed class means, but at most 100 and
            less than the number of features.
        times_logit: False omits the largest logit, as the authors do for ResNets.
    """

    centre: Tensor
    spread: Tensor
    principal: Tensor

    def __init__(self, dim: int | None = None, times_logit: bool = True) -> None:
        super().__init__()
        self.dim = dim
        self.times_logit = times_logit

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_choice("times_logit", self.times_logit, (True, False))
        most = head.width - 1
        dim = max(1, min(head.n_classes - 1, MOST_DIMENSIONS, most)) if self.dim is None else self.dim
        if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim <= most:
            raise MethodRefusedError(f"dim must be a whole number from 1 to {most}, got {dim!r}. None uses a default.")
        moments = bank.moments(by_class=False)
        centre, scatter = moments.means[0], moments.scatter
        spread = (scatter.diagonal() / len(bank)).sqrt()
        varies = spread > 10 * torch.finfo(bank.dtype).eps * centre.abs()  # by more than rounding
        if not bool(varies.any()):
            raise MethodRefusedError("NECO needs features that vary, but all samples of the bank are equal.")
        spread = torch.where(varies, spread, 1.0)
        principal = torch.linalg.eigh(scatter / spread / spread[:, None]).eigenvectors[:, -dim:]
        learnt = {"centre": centre, "spread": spread, "principal": principal.contiguous()}
        self.register_buffers(**{name: tensor.to(head.weight) for name, tensor in learnt.items()})

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(8 * 6 * width**2, rows * width**2, width * (100 + classes))

    def score(self, h: Tensor) -> Tensor:
        x = (h - self.centre) / self.spread
        share = (row_norms(x @ self.principal) / row_norms(x).clamp_min(SMALLEST_DIVISOR)).squeeze(-1)
        return -share * self.logits(h).amax(dim=-1) if self.times_logit else -share
