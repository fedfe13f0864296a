"""Exact nearest neighbours by matrix products, a chunk of the bank at a time.

At most ``PRODUCTS`` inner products are kept, and nothing of the bank is copied but one block: a bank may be as large as
the memory. Its rows stay as they are; what scales them is kept beside them.
"""

import torch
from torch import Tensor

from .hessian import row_chunks
from .shaping import partially_normalised, row_norms

PRODUCTS = 2**24

"""Inner products kept at once, 64 MB in float32."""

BLOCK_ROWS = 512

"""Rows of the bank in one matrix product."""


def unit_scale(bank: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what every row of a bank must be multiplied with to have length 1, ``(m,)``; 0 for rows of zeros.

    Example:
        >>> unit_scale(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.float32)
        tensor([0.2000, 0.0000])
    """
    norms = torch.cat([row_norms(bank[part].to(dtype)).squeeze(-1) for part in row_chunks(len(bank))])
    return torch.where(norms > torch.finfo(dtype).tiny, 1 / norms, 0.0)


def in_half_precision(bank: Tensor) -> Tensor:
    """Return the rows of a bank on the unit sphere in float16, which their own length might not fit into."""
    stored = torch.empty(bank.shape, dtype=torch.float16, device=bank.device)
    for part in row_chunks(len(bank)):
        stored[part] = partially_normalised(bank[part], 1.0)
    return stored


def largest_products(
    queries: Tensor, bank: Tensor, k: int, scale: Tensor | None = None, offsets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Return the k largest of ``scale q . b - offset`` over the rows b of a bank, and which rows they are.

    Args:
        queries: ``(n, d)``.
        bank: ``(m, d)``, possibly in a shorter floating-point type.
        k: At most m.
        scale: A factor of each row, ``(m,)``, 1 by default.
        offsets: Subtracted from the products with each row, ``(m,)``, 0 by default.

    Returns:
        Values and rows of the bank, ``(n, k)`` each, largest first.

    Example:
        >>> largest_products(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]]), 1)
        (tensor([[2.]]), tensor([[1]]))
    """
    best: list[tuple[Tensor, Tensor]] = []
    scale = queries.new_ones(len(bank)) if scale is None else scale
    multiply = _traced_products if torch.compiler.is_compiling() or queries.requires_grad else _Products(queries)
    for part in row_chunks(len(bank), _chunk_rows(queries, len(bank), k)):
        products = multiply(queries, bank[part], scale[part], None if offsets is None else offsets[part])
        values, found = products.topk(min(k, products.shape[1]))
        best = [_merged([*best, (values, found + part.start)], k)]
    return best[0]


def _traced_products(queries: Tensor, rows: Tensor, scale: Tensor, offsets: Tensor | None) -> Tensor:
    products = queries @ _scaled(rows, scale).mT
    return products if offsets is None else products - offsets


def _scaled(rows: Tensor, scale: Tensor) -> Tensor:
    return rows.to(scale.dtype) * scale[:, None]


class _Products:
    """Products in blocks that fit into a processor's cache, into one buffer for all chunks.

    Together this halves what is spent beside the multiplications themselves: large products are written to memory that
    the system has to hand out first.
    """

    def __init__(self, queries: Tensor) -> None:
        self.buffer = queries.new_empty(len(queries), 0)
        self.block = queries.new_empty(BLOCK_ROWS, queries.shape[1])

    def __call__(self, queries: Tensor, rows: Tensor, scale: Tensor, offsets: Tensor | None) -> Tensor:
        """Return ``queries @ (scale * rows).T - offsets``, to be used before the next call."""
        if self.buffer.shape[1] < len(rows):
            self.buffer = queries.new_empty(len(queries), len(rows))
        products = self.buffer[:, : len(rows)]
        for part in row_chunks(len(rows), BLOCK_ROWS):
            factors = scale[part, None]
            block = torch.mul(rows[part], factors, out=self.block[: len(factors)])
            torch.mm(queries, block.mT, out=products[:, part])
        return products if offsets is None else products.sub_(offsets)


def _chunk_rows(queries: Tensor, rows: int, k: int) -> int:
    """Return how many rows of the bank to take at once: parts of equal size, in steps that matrix products like."""
    most = max(k, PRODUCTS // (1024 if torch.compiler.is_compiling() else max(len(queries), 1)))
    parts = -(-rows // most)
    return max(k, -(-rows // parts // 1024) * 1024)


def _merged(parts: list[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    if len(parts) == 1:
        return parts[0]
    values, rows = (torch.cat(pieces, dim=-1) for pieces in zip(*parts, strict=True))
    values, order = values.topk(min(k, values.shape[-1]))
    return values, rows.gather(-1, order)


def kth_distance(queries: Tensor, bank: Tensor, scale: Tensor, k: int) -> Tensor:
    r"""Return the squared distance to the k-th nearest row of a bank of directions, ``(n,)``.

    The neighbour is found by products, for ``|q - b|^2 = |q|^2 - 2 (q . b - |b|^2 / 2)``, and its distance is taken
    from differences, which do not cancel.

    Args:
        queries: ``(n, d)``.
        bank: ``(m, d)``, possibly in a shorter floating-point type.
        scale: ``unit_scale(bank, queries.dtype)``, ``(m,)``.
        k: At most m.
    """
    unit = scale > 0
    # Among rows of length 1 the offset is the same for all, and the order does not need it.
    plain = not torch.compiler.is_compiling() and bool(unit.all())
    rows = largest_products(queries, bank, k, scale, None if plain else unit.to(scale.dtype) / 2)[1][:, -1]
    return (queries - _scaled(bank[rows], scale[rows])).square().sum(dim=-1)
