"""Where extracted rows go: into memory, or shard by shard to disk, so that a pass stopped at any moment can go on."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.bank import FeatureBank
from .bank_files import NAME, Manifest, is_intact, load_bank, open_folder, read_manifest, read_shard, write_shard

# Extracted rows kept in memory.


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


# Whether a bank on disk may be continued: the same key and form, and a network that still does the same.


logger = logging.getLogger(__name__)


ELSEWHERE = "Choose another directory, or delete this one to start again."

# How far two passes of one network may lie apart, relative to what they gave. Another batch size or device changes the
# order of sums; TF32, which convolutions use on CUDA by default, has 11 bits and some fifty layers to add up.
TOLERANCE = 1e-2

ROUNDING = 1e-5  # of a score itself: where all are nearly equal, their differences are noise

_HALF_TOLERANCE = {torch.bfloat16: 5e-2}  # 8 bits


def resumed(folder: Path, like: Manifest) -> Manifest:
    """Return the manifest in ``folder`` without its damaged shards, or say why it belongs to another bank."""
    manifest = read_manifest(folder)
    _check_same(folder, manifest, like)
    for shard in list(manifest.shards.values()):
        if not is_intact(folder, shard):
            logger.warning("%s is damaged or missing; its rows are extracted again", folder / shard.file)
            del manifest.shards[shard.index]
    if manifest.shards and not manifest.complete:
        there = sum(shard.rows for shard in manifest.shards.values())
        logger.info("going on with the bank in %s: %d rows are there", folder, there)
    return manifest


def check_features(folder: Path, there: Tensor, now: Tensor, dtype: torch.dtype) -> None:
    """Raise if a network gives other features than are stored for the same inputs.

    Its weights may be the same and yet an activation, a pooling or a scale be another.

    Args:
        folder: Of the bank.
        there: Stored features, ``(n, d)``.
        now: What the network gives, ``(n, d)``.
        dtype: In which it computes.
    """
    lengths = torch.maximum(there.norm(dim=-1), now.norm(dim=-1))
    share = _HALF_TOLERANCE.get(dtype, TOLERANCE)
    _check_near(folder, "features", (now - there).norm(dim=-1), lengths, share * lengths)


def check_scores(folder: Path, there: Tensor, now: Tensor, spread: float) -> None:
    """Raise if a network gives other scores than are stored for the same inputs.

    Args:
        folder: Of the scores.
        there: Stored scores, ``(n, 1)``.
        now: What comes now, ``(n, 1)``.
        spread: How far stored scores lie apart: what a score is worth is not seen from its size.
    """
    sizes = torch.maximum(there.abs(), now.abs())
    _check_near(folder, "scores", (now - there).abs(), sizes, TOLERANCE * spread + ROUNDING * sizes)


def _check_near(folder: Path, what: str, gaps: Tensor, sizes: Tensor, allowed: Tensor) -> None:
    wrong = ~(gaps <= allowed)  # NaN is wrong too
    if wrong.any():
        gap, size = (float(values[wrong][0]) for values in (gaps, sizes))
        raise ValueError(
            f"{folder} holds {what} of another network: its weights are the same, but not what it does with them. For "
            f"one input they lie {gap:.3g} apart, at a size of {size:.3g}. Was a layer without weights exchanged, are "
            f"these other inputs under the same key, or does the network draw random numbers? {ELSEWHERE}"
        )


def _check_same(folder: Path, there: Manifest, now: Manifest) -> None:
    if there.key is None or now.key is None:
        raise ValueError(f"{folder} holds a bank that extract did not write, so it cannot be continued. {ELSEWHERE}")
    for part in sorted(now.key.keys() | there.key.keys()):
        was, is_now = there.key.get(part), now.key.get(part)
        if was != is_now:
            raise ValueError(
                f"{folder} holds features of other {part}: {_short(was)} there, {_short(is_now)} now. {ELSEWHERE}"
            )
    for name in ("labels", "width", "dtype"):
        if getattr(there, name) != getattr(now, name):
            raise ValueError(
                f"{folder} was begun with {name}={getattr(there, name)}, now it is {getattr(now, name)}. {ELSEWHERE}"
            )


def _short(part: str | None) -> str:
    return repr(part if part is None or len(part) <= 24 else part[:12] + "...")


__all__ = ["BankWriter", "MemoryBank", "Sink", "Stored"]


class Stored(NamedTuple):
    """Rows of an earlier pass, and their features ``(n, d)``."""

    rows: list[int]
    features: Tensor

    def among(self, wanted: Sequence[int]) -> tuple[list[int], Tensor]:
        """Return the places in ``wanted`` of the rows that are stored, and their features."""
        where = {row: index for index, row in enumerate(self.rows)}
        places = [place for place, row in enumerate(wanted) if row in where]
        return places, self.features[[where[wanted[place]] for place in places]]


@dataclass
class _Pending:
    """A shard that is not complete yet: what was kept, and how many rows were seen."""

    parts: list[Kept] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    covered: int = 0


class BankWriter:
    """Rows written to a directory in shards of fixed size, in any number of passes.

    Shard i always covers the rows from ``i * shard_rows`` on, whatever the batch size. Only one process may write to a
    directory at a time.

    Args:
        path: The directory; when it holds an unfinished bank of the same key, its intact shards are kept, and with
            them its ``shard_rows``.
        like: Key, width, type, labels and ``shard_rows`` of the bank to write.

    Attributes:
        folder: The directory.
        rows: Number of rows when an earlier pass has seen the end of the data, else None.
    """

    def __init__(self, path: Path | str, like: Manifest) -> None:
        self.folder = open_folder(path)
        self._manifest = resumed(self.folder, like) if (self.folder / NAME).exists() else like
        if not self._manifest.complete:  # a finished bank may lie where nobody can write
            self._manifest.write(self.folder)
        self._pending: dict[int, _Pending] = {}

    @property
    def rows(self) -> int | None:
        """Number of rows, if known from an earlier pass."""
        return self._manifest.rows

    @property
    def unreadable(self) -> dict[int, str]:
        """Rows that could not be read, those of earlier passes too, and why."""
        return self._manifest.unreadable | {
            row: reason for pending in self._pending.values() for row, reason in pending.unreadable.items()
        }

    def stored(self) -> Stored:
        """Return what is there from an earlier pass: the first shard that holds a row."""
        for index, shard in sorted(self._manifest.shards.items()):
            start = index * self._manifest.shard_rows
            rows = [row for row in range(start, start + shard.rows) if row not in shard.unreadable]
            if rows:
                return Stored(rows, read_shard(self.folder, self._manifest, shard, verify=False)[0])
        return Stored([], torch.empty(0, self._manifest.width))

    def missing(self, start: int, stop: int) -> list[range]:
        """Return the rows between ``start`` and ``stop`` that lie in no finished shard."""
        size, shards = self._manifest.shard_rows, self._manifest.shards
        numbers = range(start // size, -(-stop // size)) if start < stop else ()
        return [range(max(start, i * size), min(stop, i * size + size)) for i in numbers if i not in shards]

    def add(self, rows: range, kept: Kept, unreadable: dict[int, str]) -> None:
        """Take what could be read of some rows, in ascending order; rows of finished shards are passed over."""
        if self.rows is not None and rows.stop > self.rows:
            raise ValueError(self._changed(f"at least {rows.stop}"))
        features, labels = kept
        read = [row for row in rows if row not in unreadable]
        for part in self.missing(rows.start, rows.stop):
            mine = slice(bisect_left(read, part.start), bisect_left(read, part.stop))
            index = part.start // self._manifest.shard_rows
            pending = self._pending.setdefault(index, _Pending())
            pending.parts.append((features[mine], None if labels is None else labels[mine]))
            pending.unreadable |= {row: reason for row, reason in unreadable.items() if row in part}
            pending.covered += len(part)
            if pending.covered == self._manifest.size_of(index):
                self._flush(index)

    def end(self, rows: int) -> None:
        """Note that the data has ``rows`` rows, and write the last shard, which may be shorter."""
        there = self._manifest.shards
        if self.rows not in (None, rows) or any(i * self._manifest.shard_rows + there[i].rows > rows for i in there):
            raise ValueError(self._changed(str(rows)))
        if self._manifest.complete:
            return
        self._manifest.rows = rows
        for index in list(self._pending):
            self._flush(index)
        self._manifest.write(self.folder)

    def finish(self) -> FeatureBank:
        """Return the bank of all rows."""
        assert self._manifest.complete
        return load_bank(self.folder, verify=False)

    def _flush(self, index: int) -> None:
        pending = self._pending.pop(index)
        labels = [y for _, y in pending.parts if y is not None]
        features = torch.cat([h for h, _ in pending.parts])
        kept = features, torch.cat(labels) if labels else None
        shard = write_shard(self.folder, index, kept, pending.unreadable)
        self._manifest.shards[index] = shard
        self._manifest.write(self.folder)

    def _changed(self, rows: str) -> str:
        known = (
            str(self.rows) if self.rows else f"at least {(max(self._manifest.shards) + 1) * self._manifest.shard_rows}"
        )
        return (
            f"the bank in {self.folder} was begun with data of {known} rows, now there are {rows}. "
            f"The same key must mean the same data in the same order. {ELSEWHERE}"
        )


Sink = MemoryBank | BankWriter
