"""Rows a chunk at a time, so that a memory-mapped bank is never in memory whole."""

from collections.abc import Iterator

ROWS_AT_ONCE = 65_536


def row_chunks(n: int, size: int = ROWS_AT_ONCE) -> Iterator[slice]:
    """Yield slices that cover n rows.

    Example:
        >>> list(row_chunks(5, 3))
        [slice(0, 3, None), slice(3, 6, None)]
    """
    return (slice(start, start + size) for start in range(0, n, size))
