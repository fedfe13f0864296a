"""Which rows a process scores: its share of all batches, cut into parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

PART_ROWS = 1024  # at most so many, and at least a batch, are computed again after a kill


@dataclass(frozen=True)
class Shard:
    """The share of one of several processes that score the same images.

    Shards consist of whole batches, in the order of the rows. So every image meets the same neighbours in its batch,
    and has the same score to the last digit, however many shards there are.

    Args:
        number: From 1.
        of: How many there are.
    """

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(
                f"shards are counted from 1, as in 1/{max(self.of, 1)}, got {self}. "
                "A scheduler that counts from 0 needs a 1 added."
            )

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the shard that is written ``i/n``."""
        if not (found := re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)):
            raise ValueError(f"a shard is written i/n, the i-th of n, such as 1/4, got {text!r}.")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def parts(self, rows: int, batch_size: int) -> list[range]:
        """Return the rows of each part of this shard.

        Args:
            rows: Of all shards together.
            batch_size: Rows in a batch; only the very last may be shorter.

        Example:
            >>> Shard(2, 2).parts(rows=10, batch_size=3)
            [range(6, 10)]
        """
        batches = -(-rows // batch_size)
        first, behind = (
            min(batches * number // self.of * batch_size, rows) for number in (self.number - 1, self.number)
        )
        size = max(1, PART_ROWS // batch_size) * batch_size
        return [range(start, min(start + size, behind, rows)) for start in range(first, behind, size)]
