"""Fingerprints of data and files: what a stored result was computed from."""

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
    """Feed relative paths, sizes and times of change (of missing files: none), and bytes of some files."""
    there = []
    for path, status in file_statuses(root, paths):
        entry = [path, None, None] if status is None else [path, status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode())
        there += [] if status is None else [path]
    hash_samples(digest, [root / path for path in evenly_spaced(there)])


def hash_samples(digest: hashlib._Hash, files: Sequence[Path]) -> None:
    """Feed the first and the last 64 kB of up to 20 evenly spaced files: their sizes and times may all be the same."""
    for path in evenly_spaced(files):
        with path.open("rb") as file:
            first = file.read(BLOCK)
            file.seek(max(len(first), file.seek(0, os.SEEK_END) - BLOCK))
            digest.update(hashlib.sha256(first + file.read(BLOCK)).digest())


def evenly_spaced(items: Sequence[Item]) -> list[Item]:
    """Return up to 20 of some items, the first and the last among them."""
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
