"""Fingerprints of data and files, which identify what a stored result was computed from."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .sources import Source

MOST_FILES = 20
BLOCK = 2**16
Item = TypeVar("Item")


def data_key(loader: Iterable[Any], key: str | None) -> str:
    """Return a string that identifies the data of ``loader``: the fingerprint of a source, and the user's ``key``."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler) if isinstance(loader, DataLoader) else None
    if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
        raise ValueError(
            "out= needs a loader with the same order in every run, but this one shuffles: rows of an interrupted "
            "run could not be identified. Use shuffle=False."
        )
    if isinstance(loader, Source):
        return loader.fingerprint if key is None else f"{loader.fingerprint} {key}"
    if not key:
        raise ValueError(
            f"out= must identify the data, but a {type(loader).__name__} has no fingerprint. Pass key='...', any "
            "string that changes with the data and its preprocessing, or use FolderImages or NpzImages."
        )
    return key


def hash_files(digest: hashlib._Hash, root: Path, paths: Sequence[str]) -> None:
    """Hash relative paths, sizes and modification times (null for missing files), and bytes of some files."""
    there = []
    for path, status in file_statuses(root, paths):
        entry = [path, None, None] if status is None else [path, status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode())
        there += [] if status is None else [path]
    hash_samples(digest, [root / path for path in evenly_spaced(there)])


def hash_samples(digest: hashlib._Hash, files: Sequence[Path]) -> None:
    """Hash the first and last 64 kB of up to 20 evenly spaced files, whose sizes and times may all be equal."""
    for path in evenly_spaced(files):
        with path.open("rb") as file:
            first = file.read(BLOCK)
            file.seek(max(len(first), file.seek(0, os.SEEK_END) - BLOCK))
            digest.update(hashlib.sha256(first + file.read(BLOCK)).digest())


def evenly_spaced(items: Sequence[Item]) -> list[Item]:
    """Return up to 20 evenly spaced items, including the first and the last."""
    if len(items) <= MOST_FILES:
        return list(items)
    return [items[step * (len(items) - 1) // (MOST_FILES - 1)] for step in range(MOST_FILES)]


def file_statuses(root: Path, paths: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield each path with the status of its file, None if there is no such file."""
    for path in paths:
        try:
            status = os.stat(os.path.join(root, path))  # creating a Path is slower than the call itself
        except (OSError, ValueError):  # ValueError: no file can have this name
            yield path, None
        else:
            yield path, status if stat.S_ISREG(status.st_mode) else None
