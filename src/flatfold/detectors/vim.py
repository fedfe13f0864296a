"""ViM: a virtual logit from the component of the features outside the principal space of the training data.

Wang et al., "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022.
"""

from typing import Literal

import torch
from torch import Tensor

from ..core.bank import FeatureBank, Head
from ..core.hessian import as_double, entry_chunks
from ..core.shaping import row_norms
from ..errors import MethodRefusedError
from .base import Costs, Detector
from .citations import Work
from .registry import register

PAPER = Work(
    "wang2022vim",
    "ViM: Out-Of-Distribution with Virtual-logit Matching",
    ("Haoqi Wang", "Zhizhong Li", "Litong Feng", "Wayne Zhang"),
    2022,
    "CVPR",
    "https://arxiv.org/abs/2203.10807",
)

REFERENCE_DIM = 256


@register(
    "vim",
    printed="ViM",
    full_name="Virtual-logit matching",
    cite=(PAPER,),
    fits_on="train",
    needs_labels=False,
    grid={"dim": (256, 1000)},
)
class Vim(Detector):
    r"""Residual of the features, on the scale of the logits, minus the log-sum-exp of the logits.

    .. math:: s(h) = \alpha \|R^\top (h - u)\| - \log \sum_c e^{z_c}, \qquad u = -W^{+} b, \qquad
        \alpha = \frac{\sum_i \max_c z_{ic}}{\sum_i \|R^\top (h_i - u)\|}

    R spans the directions of the smallest eigenvalues of :math:`\frac1n \sum_i (h_i - u)(h_i - u)^\top`, all but the
    largest ``dim``. ``fit`` sets ``dim_`` and ``alpha_virtual_``.

    Args:
        dim: Dimension of the principal space, below the number of features. None means 256 as in OpenOOD, or the
            paper's rule if 256 is too large. ``"paper"`` means that rule: 1000 for 2048 features and more, 512 for 768
            and more, else half of them.
    """

    origin: Tensor
    residual: Tensor
    alpha_virtual_: Tensor
    dim_: Tensor

    def __init__(self, dim: int | Literal["paper"] | None = None) -> None:
        super().__init__()
        self.dim = dim

    def learn(self, bank: FeatureBank, head: Head) -> None:
        dim = _dimension(self.dim, head.width)
        weight = as_double(head.weight)
        bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.to(weight)
        origin = -(torch.linalg.pinv(weight) @ bias)
        scatter = bank.moments(by_class=False).scatter_about(origin)
        residual = torch.linalg.eigh(scatter).eigenvectors[:, : head.width - dim].contiguous()
        largest = norms = 0.0
        for part in entry_chunks(len(bank), max(head.n_classes, head.width)):
            h = as_double(bank.rows[part])
            largest += float((h @ weight.mT + bias).amax(dim=-1).sum())
            norms += float(row_norms((h - origin) @ residual).sum())
        if norms <= len(bank) * 1e-12 * float(scatter.diagonal().sum().sqrt()):
            raise MethodRefusedError(
                f"ViM has no residual: the features span only {dim} dimensions. Use a smaller dim."
            )
        alpha = origin.new_tensor(largest / norms)
        self.register_buffers(origin=origin, residual=residual, alpha_virtual_=alpha, dim_=torch.tensor(dim))

    def costs(self, rows: int, width: int, classes: int) -> Costs:
        return Costs(8 * 6 * width**2, rows * width * (2 * width + classes), width * (width + classes))

    def score(self, h: Tensor) -> Tensor:
        residual = row_norms((h.to(self.origin.dtype) - self.origin) @ self.residual).squeeze(-1)
        return (self.alpha_virtual_ * residual - self.logits(h).logsumexp(dim=-1)).to(h.dtype)


def _dimension(dim: int | str | None, width: int) -> int:
    """Return the dimension of the principal space."""
    rule = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    if dim == "paper":
        return rule
    if dim is None:
        return REFERENCE_DIM if width > REFERENCE_DIM else rule
    if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim < width:
        raise MethodRefusedError(
            f"dim must be a whole number from 1 to {width - 1}, got {dim!r}. The paper's is {rule}."
        )
    return dim
