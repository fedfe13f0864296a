"""Squared lengths and products of gradients, beyond the range of the type that they come in.

In float32 the square of 1e-23 is 0 and that of 1e20 infinite, while the gradients of a deep or steep network may well
be as small or as large. Here whatever a gradient can hold has a square.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.precision import as_double


def row_products(rows: Tensor, pairs: bool) -> Tensor:
    r"""Return the squared length of each row, or the products of all pairs of rows.

    .. math:: r_i^\top r_j = s_i s_j\, \Big(\frac{r_i}{s_i}\Big)^{\!\top} \frac{r_j}{s_j}, \qquad s_i = \max_m |r_{im}|

    Args:
        rows: ``(..., k, m)``.
        pairs: Whether all pairs are wanted.

    Returns:
        ``(..., k)``, or ``(..., k, k)`` for pairs, in float64.

    Example:
        >>> row_products(torch.tensor([[3e-30, 4e-30]]), pairs=False)
        tensor([2.5000e-59], dtype=torch.float64)
    """
    if not rows.shape[-1]:
        return as_double(rows @ rows.mT if pairs else rows.sum(dim=-1))
    largest = rows.abs().amax(dim=-1, keepdim=True)
    size = torch.where(largest > 0, largest, torch.ones_like(largest))
    scaled, size = rows / size, as_double(size)
    if pairs:
        return as_double(scaled @ scaled.mT) * size * size.mT
    return as_double(scaled.square().sum(dim=-1)) * size.squeeze(-1).square()
