"""Banks on disk: a directory of safetensors shards and a manifest with their checksums. No pickle."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.bank import FeatureBank
from ..core.validation import DamagedBank
from ..io.files import sha256_of, sweep, written

# ``manifest.json``: what a bank on disk holds, and the checksums that prove it.


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


def _redo(manifest: Manifest) -> str:
    if manifest.key is None:
        return "Save the bank again with save_bank, or copy it again from where it came."
    return "Call extract(..., out=...) again as before: it redoes these rows only."


def save_bank(bank: FeatureBank, path: Path | str) -> None:
    """Write a bank to the directory ``path``, in one shard so that ``load_bank`` can map it into memory.

    A bank that is already there is replaced. Stopped at any moment, the directory holds the old bank, the new one, or
    one that ``load_bank`` refuses; never a mixture that looks whole.
    """
    folder = open_folder(path)
    rows = len(bank)
    dtype = str(bank.features.dtype).removeprefix("torch.")
    manifest = Manifest(None, bank.width, dtype, bank.labels is not None, shard_rows=rows, rows=rows)
    manifest.shards[0] = write_shard(folder, 0, (bank.features, bank.labels))
    manifest.write(folder)
    for file in folder.glob("features-*.safetensors"):
        if file.name != manifest.shards[0].file:  # left from a bank of several shards
            file.unlink()


def load_bank(path: Path | str, verify: bool = True) -> FeatureBank:
    """Read a bank from the directory ``path``.

    A bank of one shard (``save_bank``) is mapped into memory and read on demand; writing to its tensors does not change
    the file. Several shards (``extract`` with ``out=``) are joined, which takes one copy.

    Args:
        path: The directory.
        verify: Compare every file with its checksum first, at the price of reading it once.

    Raises:
        DamagedBank: Something is missing, unfinished, or not as it was written.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no bank at {folder}: no such directory. Check the path.")
    manifest = read_manifest(folder)
    if not manifest.complete:
        raise DamagedBank(
            f"the bank in {folder} is not finished. Call extract(..., out=...) again: it goes on from there."
        )
    shards = [manifest.shards[index] for index in sorted(manifest.shards)]
    parts = [read_shard(folder, manifest, shard, verify) for shard in shards]
    features = [part[0] for part in parts]
    labels = [part[1] for part in parts if part[1] is not None]
    try:
        return FeatureBank(_joined(features), _joined(labels) if labels else None)
    except (TypeError, ValueError) as error:
        raise DamagedBank(f"the bank in {folder} holds values no bank may have: {error}") from error


def open_folder(path: Path | str) -> Path:
    """Return ``path`` as a directory, made if needed, without the leftovers of a killed run."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"a bank is a directory, but {folder} is a file. Choose another path.")
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    return folder


def write_shard(
    folder: Path, index: int, kept: tuple[Tensor, Tensor | None], unreadable: dict[int, str] | None = None
) -> Shard:
    """Write one shard and return its entry for the manifest.

    Args:
        folder: Of the bank.
        index: Of the shard.
        kept: Features and labels.
        unreadable: Rows that the shard covers but could not be read, and why.
    """
    features, labels = kept
    unreadable = unreadable or {}
    rows = len(features) + len(unreadable)
    tensors = {"features": features.detach().cpu().contiguous()}
    if labels is not None:
        tensors["labels"] = labels.cpu().contiguous()
    shard = Shard(index, rows, "")
    with written(folder / shard.file) as path:
        save_file(tensors, path)
        return Shard(index, rows, sha256_of(path), unreadable)


def read_shard(folder: Path, manifest: Manifest, shard: Shard, verify: bool) -> tuple[Tensor, Tensor | None]:
    """Return the tensors of a shard, mapped into memory."""
    path = folder / shard.file
    if verify and not is_intact(folder, shard):
        raise DamagedBank(f"{path} is not as it was written: it is missing, cut short or altered. {_redo(manifest)}")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise DamagedBank(f"{path} cannot be read: {error}. {_redo(manifest)}") from error
    kept = shard.rows - len(shard.unreadable)
    shapes = {"features": (torch.Size((kept, manifest.width)), DTYPES[manifest.dtype])}
    if manifest.labels:
        shapes["labels"] = (torch.Size((kept,)), torch.int64)
    if {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} != shapes:
        raise DamagedBank(f"{path} does not hold the tensors its manifest promises. {_redo(manifest)}")
    return tensors["features"], tensors.get("labels")


def is_intact(folder: Path, shard: Shard) -> bool:
    """Tell whether the file of a shard has the bytes that were written."""
    path = folder / shard.file
    return path.is_file() and sha256_of(path) == shard.sha256


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
