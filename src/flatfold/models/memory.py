"""Extracted rows kept in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.bank import FeatureBank

Kept = tuple[Tensor, Tensor | None]
"""Features ``(n, d)`` and, if there are any, labels ``(n,)`` of the rows that could be read."""


class MemoryBank:
    """Rows kept in memory until the end of the pass."""

    rows: int | None = None

    def __init__(self) -> None:
        self.unreadable: dict[int, str] = {}
        self._features: list[Tensor] = []
        self._labels: list[Tensor] = []

    def missing(self, start: int, stop: int) -> list[range]:
        """Return all of it: nothing is there from an earlier pass."""
        return [range(start, stop)] if start < stop else []

    def add(self, rows: range, kept: Kept, unreadable: dict[int, str]) -> None:
        """Take what could be read of some rows, and why not the others."""
        features, labels = kept
        self._features.append(features)
        self._labels += [] if labels is None else [labels]
        self.unreadable |= unreadable

    def end(self, rows: int) -> None:
        """Note that the data has ``rows`` rows."""
        self.rows = rows

    def finish(self) -> FeatureBank:
        """Return the bank of all rows."""
        return FeatureBank(torch.cat(self._features), torch.cat(self._labels) if self._labels else None)
