"""Exact nearest neighbours by matrix products over blocks of a bank.

At most ``PRODUCTS`` inner products are stored, and only one block of the bank is copied, so a bank may fill the
memory. Its rows stay unscaled; their scales are a separate vector.
"""

import numpy as np
import torch
from torch import Tensor

from .hessian import entry_chunks, row_chunks
from .shaping import partially_normalised, row_norms

PRODUCTS = 2**20  # inner products at once, 4 MB in float32: they fit in a processor's cache
BLOCK_ROWS = 1024  # rows of the bank scaled at once, and the minimum multiplied at once
FEW_QUERIES = 8  # up to this number inner products are computed one by one
GROUP = 8  # products reduced to their maximum when the first floor is computed
SPARE = 128  # table slots for candidates beyond 3 k
CHUNK = 2**24  # inner products at once in graphs and on other devices


def unit_scale(bank: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the factors ``(m,)`` that scale the rows of a bank to length 1; 0 for rows of zeros."""
    norms = torch.empty(len(bank), dtype=dtype, device=bank.device)
    for part in entry_chunks(*bank.shape):
        # Not concatenated at the end: small tensors kept in between would fragment the memory of the next rows.
        norms[part] = row_norms(bank[part].to(dtype)).squeeze(-1)
    return torch.where(norms > torch.finfo(dtype).tiny, 1 / norms, 0.0)


def to_half_precision(bank: Tensor) -> Tensor:
    """Return the rows of a bank on the unit sphere in float16; unscaled rows might overflow."""
    stored = torch.empty(bank.shape, dtype=torch.float16, device=bank.device)
    for part in entry_chunks(*bank.shape):
        stored[part] = partially_normalised(bank[part], 1.0)
    return stored


def largest_products(
    queries: Tensor, bank: Tensor, k: int, scale: Tensor | None = None, offsets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Return the k largest values of ``scale q . b - offset`` over the rows b of a bank, and the row indices."""
    k = min(k, len(bank))
    scale = queries.new_ones(len(bank)) if scale is None else scale
    numpy_can = queries.device.type == "cpu" and queries.dtype in (torch.float32, torch.float64)
    if torch.compiler.is_compiling() or queries.requires_grad or not numpy_can or len(queries) == 0:
        return _largest_by_chunks(queries, bank, k, scale, offsets)
    rows = BLOCK_ROWS * max(-(-k // BLOCK_ROWS), PRODUCTS // (len(queries) * BLOCK_ROWS), 1)
    products = _Products(queries, min(rows, len(bank)))
    if rows >= len(bank):
        return products(bank, scale, offsets).topk(k)
    largest = _Largest(queries, rows, k)
    for part in row_chunks(len(bank), rows):
        largest.add(products(bank[part], scale[part], None if offsets is None else offsets[part]), part.start)
    return largest.sorted()


def _largest_by_chunks(
    queries: Tensor, bank: Tensor, k: int, scale: Tensor, offsets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute :func:`largest_products` in graphs, with gradients and on all devices: merge the k largest per chunk."""
    best: list[tuple[Tensor, Tensor]] = []
    for part in row_chunks(len(bank), _chunk_rows(queries, len(bank), k)):
        products = queries @ _scaled(bank[part], scale[part]).mT
        products = products if offsets is None else products - offsets[part]
        values, rows = products.topk(min(k, products.shape[1]))
        best.append((values, rows + part.start))
        if len(best) > 1:
            values, rows = (torch.cat(pieces, dim=-1) for pieces in zip(*best, strict=True))
            values, order = values.topk(min(k, values.shape[-1]))
            best = [(values, rows.gather(-1, order))]
    return best[0]


def _scaled(rows: Tensor, scale: Tensor) -> Tensor:
    return rows.to(scale.dtype) * scale[:, None]


def _chunk_rows(queries: Tensor, rows: int, k: int) -> int:
    """Return the number of rows of the bank per chunk: chunks of equal size, in multiples of 1024."""
    most = max(k, CHUNK // (1024 if torch.compiler.is_compiling() else max(len(queries), 1)))
    parts = -(-rows // most)
    return max(k, -(-rows // parts // 1024) * 1024)


class _Products:
    """Products with one part of the bank at a time, in a reused buffer: large outputs are slow to allocate."""

    def __init__(self, queries: Tensor, rows: int) -> None:
        self.queries = queries
        self.buffer = queries.new_empty(len(queries) * rows)
        self.block = queries.new_empty(min(rows, BLOCK_ROWS), queries.shape[1])

    def __call__(self, rows: Tensor, scale: Tensor, offsets: Tensor | None) -> Tensor:
        """Return ``queries @ (scale * rows).T - offsets``, valid until the next call."""
        n, width = self.queries.shape
        products = self.buffer[: n * len(rows)].view(n, len(rows))
        if n > 4 * width or rows.dtype != self.queries.dtype:  # rows are read from memory, products stay in the cache
            for part in row_chunks(len(rows), BLOCK_ROWS):
                block = torch.mul(rows[part], scale[part, None], out=self.block[: len(rows[part])])
                torch.mm(self.queries, block.mT, out=products[:, part])
        else:
            if n <= FEW_QUERIES:
                self._multiply_rows(rows, products)
            else:
                torch.mm(self.queries, rows.mT, out=products)
            products.mul_(scale)
        return products if offsets is None else products.sub_(offsets)

    def _multiply_rows(self, rows: Tensor, products: Tensor) -> None:
        """Compute inner products one by one; for few queries this takes half the time of a matrix product."""
        factors, matrix, out = self.queries.numpy(), rows.numpy(), products.numpy()
        for part in row_chunks(len(rows), BLOCK_ROWS):
            np.matmul(matrix[part, None, :], factors[:, None, :, None], out=out[:, part, None, None])


class _Largest:
    """Accumulate the k largest products of every query from blocks of products ``(n, rows)``.

    A product matters only above the floor of its query, a value that k others are known to reach. With a bank in random
    order these are about ``k log(rows / k)``. They are appended to a table, whose k-th largest value is the next floor.
    """

    def __init__(self, queries: Tensor, rows: int, k: int) -> None:
        n, places = len(queries), 3 * k + SPARE
        self.k = k
        self.values = queries.new_full((n, places), -torch.inf).numpy()
        self.rows = np.zeros((n, places), dtype=np.int64)
        self.used = np.zeros(n, dtype=np.int64)
        self.floor = np.full((n, 1), -np.inf, dtype=self.values.dtype)
        self.above = torch.empty(n * rows, dtype=torch.bool)
        self.update_at = 0

    def add(self, block: Tensor, start: int) -> None:
        """Add the products with rows of the bank starting at ``start``; the first block has at least k."""
        if start == 0 or not self._append(block, start):
            self._raise_floor(block)
            if not self._append(block, start):
                self._merge(block, start)
        if start >= self.update_at:
            self._update_floor()
            self.update_at = 2 * start

    def sorted(self) -> tuple[Tensor, Tensor]:
        """Return the k largest products and their rows, largest first."""
        self._compact()
        values, order = torch.from_numpy(self.values[:, : self.k]).sort(descending=True)
        return values, torch.from_numpy(self.rows).gather(1, order)

    def _append(self, block: Tensor, start: int) -> bool:
        """Append all products above the floor; return False if a query has too many for the table."""
        n, places = self.values.shape
        products = block.numpy()
        # With torch, in several threads: idle threads are late for the next matrix product.
        marks = torch.gt(block, torch.from_numpy(self.floor), out=self.above[: block.numel()].view(block.shape))
        above = np.flatnonzero(marks.numpy())
        query = above // block.shape[1]
        counts = np.bincount(query, minlength=n)
        if counts.max() > places - self.k:
            return False
        if (self.used + counts).max() > places:
            self._compact()
        # Candidates are sorted by query: number them within each query, starting at its first free slot.
        first_free = np.arange(0, n * places, places) + self.used
        place = (first_free - counts.cumsum() + counts)[query] + np.arange(len(query))
        self.values.reshape(-1)[place] = products.reshape(-1)[above]
        self.rows.reshape(-1)[place] = above - query * block.shape[1] + start
        self.used += counts
        return True

    def _raise_floor(self, block: Tensor) -> None:
        """Raise the floor to just below a value that k products of this block reach."""
        groups = block.shape[1] // GROUP
        if groups >= self.k:  # use the k-th largest maximum over groups
            reached = block[:, : groups * GROUP].view(-1, GROUP, groups).amax(dim=1).numpy()
        else:
            reached = block.numpy()
        nth = reached.shape[1] - self.k
        if nth >= 0:
            kth = np.partition(reached, nth, axis=1)[:, nth, None]
            self.floor = np.maximum(self.floor, np.nextafter(kth, -np.inf, dtype=kth.dtype))

    def _merge(self, block: Tensor, start: int) -> None:
        """Append the k largest products of a block with too many candidates, because many are equal."""
        self._compact()
        values, columns = block.topk(min(self.k, block.shape[1]))
        end = self.k + values.shape[1]
        self.values[:, self.k : end] = values.numpy()
        self.rows[:, self.k : end] = columns.numpy() + start
        self.used[:] = end
        self._update_floor()

    def _compact(self) -> None:
        """Keep the k largest values of the table."""
        most = max(self.used.max(), self.k)
        order = np.argpartition(self.values[:, :most], most - self.k, axis=1)[:, most - self.k :]
        values = np.take_along_axis(self.values, order, axis=1)
        self.rows[:, : self.k] = np.take_along_axis(self.rows, order, axis=1)
        self.values[:, : self.k], self.values[:, self.k :] = values, -np.inf
        self.used[:] = self.k

    def _update_floor(self) -> None:
        """Raise the floor to the k-th largest value of the table."""
        nth = max(self.used.max(), self.k) - self.k
        self.floor = np.partition(self.values[:, : nth + self.k], nth, axis=1)[:, nth, None]


def kth_distance(queries: Tensor, bank: Tensor, scale: Tensor, k: int) -> Tensor:
    r"""Return the squared distance to the k-th nearest row of a bank of directions, ``(n,)``.

    The neighbour is found by products, because ``|q - b|^2 = |q|^2 - 2 (q . b - |b|^2 / 2)``, and its distance is
    computed from differences, which do not cancel.
    """
    unit = scale > 0
    # If all rows have length 1, the offset is the same for all and does not change the order.
    plain = not torch.compiler.is_compiling() and bool(unit.all())
    rows = largest_products(queries, bank, k, scale, None if plain else unit.to(scale.dtype) / 2)[1][:, -1]
    return (queries - _scaled(bank[rows], scale[rows])).square().sum(dim=-1)


def relation_sums(
    queries: Tensor, probs: Tensor, bank: Tensor, scale: Tensor, bank_probs: Tensor, power: float, threshold: float
) -> Tensor:
    """Sum powers of ``(q . b)(p . p_b)`` over a bank, where they exceed a non-negative threshold: ``(n,)``."""
    sums = queries.new_zeros(queries.shape[0])
    for part in row_chunks(len(bank), _chunk_rows(queries, len(bank), 1)):
        products = (queries @ _scaled(bank[part], scale[part]).mT) * (probs @ bank_probs[part].mT)
        sums = sums + torch.where(products > threshold, products, 0.0).pow(power).sum(dim=-1)
    return sums
