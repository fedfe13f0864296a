"""Exact nearest neighbours by matrix products, a chunk of the bank at a time.

At most ``PRODUCTS`` inner products are kept, and only one block of the bank is copied, so a bank may be as large as
the memory. Its rows stay unscaled; their scales are a separate vector.
"""

import torch
from torch import Tensor

from .hessian import row_chunks
from .shaping import partially_normalised, row_norms

PRODUCTS = 2**24  # inner products kept at once, 64 MB in float32
BLOCK_ROWS = 512  # rows of the bank in one matrix product


def unit_scale(bank: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the factors ``(m,)`` that bring the rows of a bank to length 1; 0 for rows of zeros."""
    norms = torch.cat([row_norms(bank[part].to(dtype)).squeeze(-1) for part in row_chunks(len(bank))])
    return torch.where(norms > torch.finfo(dtype).tiny, 1 / norms, 0.0)


def to_half_precision(bank: Tensor) -> Tensor:
    """Return the rows of a bank on the unit sphere in float16, into which unscaled rows might not fit."""
    stored = torch.empty(bank.shape, dtype=torch.float16, device=bank.device)
    for part in row_chunks(len(bank)):
        stored[part] = partially_normalised(bank[part], 1.0)
    return stored


def largest_products(
    queries: Tensor, bank: Tensor, k: int, scale: Tensor | None = None, offsets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Return the k largest of ``scale q . b - offset`` over the rows b of a bank, and which rows they are."""
    best: list[tuple[Tensor, Tensor]] = []
    scale = queries.new_ones(len(bank)) if scale is None else scale
    multiply = _traced_products if torch.compiler.is_compiling() or queries.requires_grad else _Products(queries)
    for part in row_chunks(len(bank), _chunk_rows(queries, len(bank), k)):
        products = multiply(queries, bank[part], scale[part], None if offsets is None else offsets[part])
        values, rows = products.topk(min(k, products.shape[1]))
        best.append((values, rows + part.start))
        if len(best) > 1:
            values, rows = (torch.cat(pieces, dim=-1) for pieces in zip(*best, strict=True))
            values, order = values.topk(min(k, values.shape[-1]))
            best = [(values, rows.gather(-1, order))]
    return best[0]


def _traced_products(queries: Tensor, rows: Tensor, scale: Tensor, offsets: Tensor | None) -> Tensor:
    products = queries @ _scaled(rows, scale).mT
    return products if offsets is None else products - offsets


def _scaled(rows: Tensor, scale: Tensor) -> Tensor:
    return rows.to(scale.dtype) * scale[:, None]


class _Products:
    """Products in blocks that fit into a processor's cache, written to one buffer for all chunks.

    This halves the time that is not spent on multiplications: large new outputs have to be allocated first.
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
    """Return how many rows of the bank to take at once: parts of equal size, in multiples of 1024."""
    most = max(k, PRODUCTS // (1024 if torch.compiler.is_compiling() else max(len(queries), 1)))
    parts = -(-rows // most)
    return max(k, -(-rows // parts // 1024) * 1024)


def kth_distance(queries: Tensor, bank: Tensor, scale: Tensor, k: int) -> Tensor:
    r"""Return the squared distance to the k-th nearest row of a bank of directions, ``(n,)``.

    The neighbour is found by products, for ``|q - b|^2 = |q|^2 - 2 (q . b - |b|^2 / 2)``, and its distance is taken
    from differences, which do not cancel.
    """
    unit = scale > 0
    # Among rows of length 1 the offset is the same for all, and the order does not need it.
    plain = not torch.compiler.is_compiling() and bool(unit.all())
    rows = largest_products(queries, bank, k, scale, None if plain else unit.to(scale.dtype) / 2)[1][:, -1]
    return (queries - _scaled(bank[rows], scale[rows])).square().sum(dim=-1)
