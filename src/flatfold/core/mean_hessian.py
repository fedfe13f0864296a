"""The mean of the feature Hessian over a data set, with its whole spectrum, from one c x c matrix."""

import torch
from torch import Tensor

from .chunks import row_chunks
from .eigenvalues import centred_weights
from .hessian import class_distances
from .precision import as_double


class MeanHessian:
    r"""The mean over a data set of the logit Hessian, and through it of the feature Hessian.

    .. math:: \bar S = \operatorname{diag}(L 1) - L, \qquad L_{ij} = \frac1n \sum p_i p_j \;(i \ne j), \quad L_{ii} = 0

    which is ``diag(mean p) - P'P / n`` without its differences: only the products of two classes are added up, in
    float64. The order and the size of the batches make no difference but of rounding.

    Args:
        n_classes: Number of classes c.

    Attributes:
        rows: Number of samples seen.

    Example:
        >>> mean = MeanHessian(2)
        >>> mean.add(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        >>> mean.trace(), mean.eigenvalues()
        (0.25, tensor([0.2500, 0.0000], dtype=torch.float64))
    """

    def __init__(self, n_classes: int) -> None:
        self.rows = 0
        self._products = torch.zeros(n_classes, n_classes, dtype=torch.float64)

    def add(self, probs: Tensor) -> None:
        """Take in class probabilities ``(n, c)``."""
        self._check(probs.shape[1])
        for part in row_chunks(len(probs)):
            p = as_double(probs[part])
            self._products += (p.T @ p).cpu()
        self.rows += len(probs)

    def merge(self, other: "MeanHessian") -> None:
        """Take in everything that another one has seen."""
        self._check(len(other._products))
        self._products += other._products
        self.rows += other.rows

    def trace(self, weight: Tensor | None = None) -> float:
        """Return the trace of the mean feature Hessian for weights ``(c, d)``: the mean of ``1/2 p' D p``.

        Without weights it is that of the mean logit Hessian.
        """
        pairs = self._pairs()
        return float(
            pairs.sum() if weight is None else 0.5 * (pairs * class_distances(centred_weights(weight).cpu())).sum()
        )

    def eigenvalues(self, weight: Tensor | None = None) -> Tensor:
        """Return the largest ``min(c, d)`` eigenvalues of the mean feature Hessian for weights ``(c, d)``.

        The other ``d - c`` are zero, and so is the last one returned where ``d >= c``. Without weights they are the c
        eigenvalues of the mean logit Hessian.

        Returns:
            In float64 on the CPU, largest first, never negative.
        """
        pairs = self._pairs()
        mean = pairs.sum(dim=1).diag() - pairs
        if weight is not None:
            # W' = Q R with orthonormal Q: W' S W and R S R' have the same eigenvalues but for zeros.
            triangle = torch.linalg.qr(centred_weights(weight).cpu().T, mode="r").R
            mean = triangle @ mean @ triangle.T
        values: Tensor = torch.linalg.eigvalsh(mean).flip(0).clamp_min(0.0)
        if len(values) == len(pairs):
            values[-1] = 0.0  # S maps the vector of ones to zero, exactly
        return values

    def _check(self, n_classes: int) -> None:
        if n_classes != len(self._products):
            raise ValueError(
                f"a mean Hessian over {len(self._products)} classes cannot take in {n_classes} classes. "
                "Do all come from the same network?"
            )

    def _pairs(self) -> Tensor:
        """Return L."""
        if self.rows == 0:
            raise ValueError("a mean Hessian needs at least one sample, got none. Call add(probs) first.")
        pairs = self._products / self.rows
        pairs.fill_diagonal_(0.0)
        return pairs
