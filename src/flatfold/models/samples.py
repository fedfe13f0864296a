"""What tells one set of files from another: names, sizes and times of change, and some bytes of some of them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

MOST_FILES = 20
BLOCK = 2**16

Item = TypeVar("Item")


def feed_files(digest: hashlib._Hash, root: Path, paths: Sequence[str]) -> None:
    """Feed relative paths, sizes and times of change of files below ``root``, and some bytes.

    Args:
        digest: Takes them.
        root: The folder in which the paths start.
        paths: In a fixed order. One at which there is no file has neither size nor time.
    """
    there = []
    for path, status in statuses(root, paths):
        entry = [path, None, None] if status is None else [path, status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode())
        if status is not None:
            there.append(path)
    feed_samples(digest, [root / path for path in evenly_spaced(there)])


def feed_samples(digest: hashlib._Hash, files: Sequence[Path]) -> None:
    """Feed the first and the last 64 kB of up to 20 evenly spaced files.

    Archives and copies may have one time of change for all files, and images that are not compressed one size. So few
    files take no time, however many there are.

    Args:
        digest: Takes what tells the bytes from others.
        files: In a fixed order.
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


def statuses(root: Path, paths: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield each path with what the system knows of the file there, None if there is none; each is asked for once."""
    for path in paths:
        try:
            status = os.stat(os.path.join(root, path))  # a Path for each would take longer than the question
        except (OSError, ValueError):  # ValueError: no file can have this name
            yield path, None
        else:
            yield path, status if stat.S_ISREG(status.st_mode) else None
