"""Banks on disk: a directory of safetensors shards and a manifest with their checksums. No pickle."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.bank import FeatureBank
from ..core.errors import DamagedBank
from ..files import sha256_of, sweep, written
from .manifest import DTYPES, Manifest, Shard, read_manifest


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
