"""Fingerprints of weights, data and files: what a stored result was computed from."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .forward import evaluating, plain_name
from .sources import Source

MOST_FILES = 20
BLOCK = 2**16
Item = TypeVar("Item")


def weights_hash(model: nn.Module) -> str:
    """Return the sha256 of the names, shapes, types and bytes in a model's ``state_dict``, compiled or not.

    They are those of evaluation mode: a layer may have others while it is trained (LoRA merges its own there).

    Example:
        >>> weights_hash(nn.Linear(2, 2)) == weights_hash(nn.Linear(2, 2))
        False
    """
    digest = hashlib.sha256()
    with evaluating(model):
        state = {plain_name(key): value for key, value in model.state_dict().items()}
        for name in sorted(state):
            for value in _tensors(state[name]):
                digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
                plain = value.dequantize() if value.is_quantized else value
                digest.update(plain.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(entry: Any) -> Iterator[Tensor]:
    """Yield the tensors of an entry; a module's private state, which may be in it too, may change at any time."""
    if isinstance(entry, Tensor):
        yield entry
    elif isinstance(entry, (tuple, list)):  # a quantised layer packs weight and bias into one entry
        for part in entry:
            yield from _tensors(part)


def data_key(loader: Iterable[Any], key: str | None) -> str:
    """Return a string that identifies the data of ``loader``: the fingerprint of a source, and the user's ``key``."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler) if isinstance(loader, DataLoader) else None
    if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
        raise ValueError(
            "out= needs a loader that gives the same order in every run, but this one shuffles: rows of an interrupted "
            "run could not be identified. Use shuffle=False."
        )
    if isinstance(loader, Source):
        return loader.fingerprint if key is None else f"{loader.fingerprint} {key}"
    if not key:
        raise ValueError(
            f"out= needs an identity of the data, which a {type(loader).__name__} does not have. Pass key='...', any "
            "string that changes with the data and its preparation, or use FolderImages or NpzImages."
        )
    return key


def hash_files(digest: hashlib._Hash, root: Path, paths: Sequence[str]) -> None:
    """Feed relative paths, sizes and times of change of files below ``root``, and some bytes.

    A path at which there is no file has neither size nor time.
    """
    there = []
    for path, status in file_statuses(root, paths):
        entry = [path, None, None] if status is None else [path, status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode())
        if status is not None:
            there.append(path)
    hash_samples(digest, [root / path for path in evenly_spaced(there)])


def hash_samples(digest: hashlib._Hash, files: Sequence[Path]) -> None:
    """Feed the first and the last 64 kB of up to 20 evenly spaced files.

    Archives and copies may have one time of change for all files, and images that are not compressed one size. So few
    files take no time, however many there are.
    """
    for path in evenly_spaced(files):
        with path.open("rb") as file:
            first = file.read(BLOCK)
            file.seek(max(len(first), file.seek(0, os.SEEK_END) - BLOCK))
            digest.update(hashlib.sha256(first + file.read(BLOCK)).digest())


def evenly_spaced(items: Sequence[Item]) -> list[Item]:
    """Return up to 20 of some items, the first and the last among them.

    Example:
        >>> evenly_spaced(range(39))
        [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38]
    """
    if len(items) <= MOST_FILES:
        return list(items)
    return [items[step * (len(items) - 1) // (MOST_FILES - 1)] for step in range(MOST_FILES)]


def file_statuses(root: Path, paths: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield each path with the status of the file there, None if there is none."""
    for path in paths:
        try:
            status = os.stat(os.path.join(root, path))  # a Path for each would take longer than the question
        except (OSError, ValueError):  # ValueError: no file can have this name
            yield path, None
        else:
            yield path, status if stat.S_ISREG(status.st_mode) else None
