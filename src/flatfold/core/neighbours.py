"""Exact nearest neighbours by matrix products, a chunk of the bank at a time.

Nothing of size (queries, bank) is ever kept, and nothing of the bank is copied but one chunk: a bank may be as large as
the memory.
"""

import torch
from torch import Tensor

from .chunks import row_chunks
from .shaping import partially_normalised

PRODUCTS = 2**25
"""Inner products kept at once, 128 MB in float32."""
BLOCK_ROWS = 1024
"""Rows of the bank in one matrix product."""


def unit_rows(features: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows on the unit sphere, stored as ``dtype``; rows of zeros stay zero.

    Example:
        >>> unit_rows(torch.tensor([[3.0, 4.0]]), torch.float16)
        tensor([[0.6001, 0.7998]], dtype=torch.float16)
    """
    stored = torch.empty(features.shape, dtype=dtype, device=features.device)
    for part in row_chunks(len(features)):
        stored[part] = partially_normalised(features[part], 1.0)
    return stored


def half_squares(bank: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``|b|^2 / 2`` of every row of a bank, ``(m,)``."""
    parts = [bank[part].to(dtype).square().sum(dim=-1) / 2 for part in row_chunks(len(bank))]
    return torch.cat(parts)


def largest_products(queries: Tensor, bank: Tensor, k: int, offsets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Return the k largest of ``q . b - offset`` over the rows b of a bank, and which rows they are.

    With ``|b|^2 / 2`` as offsets these are the k nearest rows, for ``|q - b|^2 = |q|^2 - 2 (q . b - |b|^2 / 2)``.

    Args:
        queries: ``(n, d)``.
        bank: ``(m, d)``, possibly in a shorter floating-point type.
        k: At most m.
        offsets: Subtracted from the products with each row of the bank, ``(m,)``.

    Returns:
        Values and rows of the bank, ``(n, k)`` each, largest first.

    Example:
        >>> largest_products(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]]), 1)
        (tensor([[2.]]), tensor([[1]]))
    """
    best: list[tuple[Tensor, Tensor]] = []
    offsets = queries.new_zeros(len(bank)) if offsets is None else offsets
    multiply = _traced_products if torch.compiler.is_compiling() or queries.requires_grad else _Products(queries)
    for part in row_chunks(len(bank), _chunk_rows(queries, len(bank), k)):
        values, found = multiply(queries, bank[part], offsets[part]).topk(min(k, len(bank[part])))
        best = [_merged([*best, (values, found + part.start)], k)]
    return best[0]


def _traced_products(queries: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    return torch.addmm(offsets, queries, rows.to(queries.dtype).mT, beta=-1)


class _Products:
    """Products in blocks that fit into a processor's cache, into one buffer for all chunks.

    Together this halves what is spent beside the multiplications themselves: large products are written to memory that
    the system has to hand out first.
    """

    def __init__(self, queries: Tensor) -> None:
        self.buffer = queries.new_empty(len(queries), 0)

    def __call__(self, queries: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
        """Return ``queries @ rows.T - offsets``, to be used before the next call."""
        if self.buffer.shape[1] < len(rows):
            self.buffer = queries.new_empty(len(queries), len(rows))
        products = self.buffer[:, : len(rows)]
        for part in row_chunks(len(rows), BLOCK_ROWS):
            block = rows[part].to(queries.dtype).mT
            torch.addmm(offsets[part], queries, block, beta=-1, out=products[:, part])
        return products


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


def kth_distance(queries: Tensor, bank: Tensor, halves: Tensor, k: int) -> Tensor:
    r"""Return the squared distance to the k-th nearest row of the bank, ``(n,)``.

    The neighbour is found by products and its distance taken from differences, which do not cancel.

    Args:
        queries: ``(n, d)``.
        bank: ``(m, d)``, possibly in a shorter floating-point type.
        halves: ``half_squares(bank, queries.dtype)``, ``(m,)``.
        k: At most m.
    """
    _, rows = largest_products(queries, bank, k, halves)
    return (queries - bank[rows[:, -1]].to(queries.dtype)).square().sum(dim=-1)
