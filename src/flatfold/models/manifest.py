"""``manifest.json``: what a bank on disk holds, and the checksums that prove it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..core.errors import DamagedBank
from ..files import written

NAME = "manifest.json"
FORMAT = "flatfold-bank"
VERSION = 2
DTYPES = {"float32": torch.float32, "float64": torch.float64}
_MOST_BYTES = 64 * 2**20  # a shard takes about 150 bytes: room for 400,000 of them
_FILE = re.compile(r"features-([0-9]{5,9})\.safetensors")
_AGAIN = "Delete the directory and extract again."


@dataclass(frozen=True)
class Shard:
    """One file of a bank.

    Attributes:
        rows: How many it covers, those that could not be read included.
        unreadable: Those that could not be read, and why. The file does not have them.
    """

    index: int
    rows: int
    sha256: str
    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Name of the file inside the bank's directory."""
        return f"features-{self.index:05d}.safetensors"


@dataclass
class Manifest:
    """What a bank holds.

    Attributes:
        key: What the features were computed from, part by part; None for a bank that was given and not extracted.
        width: Number of features d.
        dtype: ``"float32"`` or ``"float64"``.
        labels: Whether there are labels.
        shard_rows: Shard i covers the rows from ``i * shard_rows`` on.
        rows: Number of rows; None as long as the end of the data has not been seen.
        shards: The finished ones by their number.
    """

    key: dict[str, str] | None
    width: int
    dtype: str
    labels: bool
    shard_rows: int
    rows: int | None = None
    shards: dict[int, Shard] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all rows are there."""
        if self.rows is None:
            return False
        count = -(-self.rows // self.shard_rows)
        return len(self.shards) == count and all(index < count for index in self.shards)

    @property
    def unreadable(self) -> dict[int, str]:
        """All rows that could not be read, and why."""
        return {row: reason for _, shard in sorted(self.shards.items()) for row, reason in shard.unreadable.items()}

    def size_of(self, index: int) -> int:
        """Return how many rows shard ``index`` covers, as far as is known."""
        start = index * self.shard_rows
        return self.shard_rows if self.rows is None else min(self.shard_rows, self.rows - start)

    def write(self, folder: Path) -> None:
        """Put this manifest in the place of the one in ``folder``."""
        shards = [
            {"file": s.file, "rows": s.rows, "sha256": s.sha256, "unreadable": s.unreadable}
            for _, s in sorted(self.shards.items())
        ]
        values = {"format": FORMAT, "version": VERSION, "complete": self.complete, **vars(self), "shards": shards}
        with written(folder / NAME) as path:
            path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in ``folder``, or raise `DamagedBank`. Nothing in the file is trusted."""
    path = folder / NAME
    if not path.is_file():
        raise DamagedBank(f"{folder} is no bank: it has no {NAME}. Check the path, or extract again.")
    if path.stat().st_size > _MOST_BYTES:
        raise DamagedBank(f"{path} is larger than any manifest of flatfold. {_AGAIN}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedBank(f"{path} is damaged: {error}. {_AGAIN}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DamagedBank(f"{path} does not describe a bank: its format must be {FORMAT!r}. Check the path.")
    if values.get("version") != VERSION:
        raise DamagedBank(
            f"{path} has version {values.get('version')!r}, this flatfold reads version {VERSION}. "
            "Upgrade flatfold or extract again."
        )
    try:
        return _checked(values)
    except (TypeError, ValueError) as error:
        raise DamagedBank(f"{path} is damaged: {error}. {_AGAIN}") from error


def _checked(values: dict[str, Any]) -> Manifest:
    _need(values, "key", "rows", "width", "dtype", "labels", "shard_rows", "complete", "shards")
    rows = None if values["rows"] is None else _count(values, "rows")
    manifest = Manifest(
        _key(values["key"]),
        _count(values, "width"),
        values["dtype"],
        values["labels"],
        _count(values, "shard_rows"),
        rows,
    )
    if manifest.dtype not in DTYPES or type(manifest.labels) is not bool or not isinstance(values["shards"], list):
        raise ValueError("'dtype', 'labels' or 'shards' is of the wrong kind")
    for entry in values["shards"]:
        shard = _shard(entry)
        first = shard.index * manifest.shard_rows
        apart = any(row not in range(first, first + shard.rows) for row in shard.unreadable)
        if apart or shard.index in manifest.shards or shard.rows != manifest.size_of(shard.index):
            raise ValueError(f"{shard.file} does not fit the other shards")
        manifest.shards[shard.index] = shard
    if values["complete"] is not manifest.complete:
        raise ValueError("'complete' does not agree with the shards that are listed")
    return manifest


def _shard(entry: Any) -> Shard:
    if not isinstance(entry, dict):
        raise TypeError("a shard is of the wrong kind")
    _need(entry, "file", "rows", "sha256", "unreadable")
    match = _FILE.fullmatch(str(entry["file"]))
    if match is None:  # also every path that leads out of the directory
        raise ValueError(f"{entry['file']!r} is no name of a shard")
    if not re.fullmatch("[0-9a-f]{64}", str(entry["sha256"])):
        raise ValueError(f"{entry['file']!r} has no sha256")
    return Shard(int(match[1]), _count(entry, "rows"), entry["sha256"], _reasons(entry["unreadable"]))


def _reasons(value: Any) -> dict[int, str]:
    if not isinstance(value, dict) or not all(isinstance(reason, str) for reason in value.values()):
        raise TypeError("'unreadable' is of the wrong kind")
    return {int(row): reason for row, reason in value.items()}  # a row that is no number is a ValueError


def _need(values: dict[str, Any], *names: str) -> None:
    for name in names:
        if name not in values:
            raise ValueError(f"{name!r} is missing")


def _count(values: dict[str, Any], name: str) -> int:
    value = values[name]
    if type(value) is not int or not 0 < value < 2**53:  # a bool is an int in Python
        raise ValueError(f"{name!r} must be a positive whole number, not {value!r}")
    return value


def _key(value: Any) -> dict[str, str] | None:
    if value is not None and not (isinstance(value, dict) and all(isinstance(part, str) for part in value.values())):
        raise TypeError("'key' is of the wrong kind")
    return value
