"""Files that are there completely or not at all, whenever the machine stops."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial"


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` to write to; at the end it takes the place of ``path`` in one step."""
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield partial
        partial.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner can read
        _sync(partial, os.O_RDWR)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    with suppress(OSError):  # a directory cannot be opened on Windows, where the rename is durable without it
        _sync(path.parent, os.O_RDONLY)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Put ``content`` in the place of the file at ``path``; the folder is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def sweep(folder: Path) -> None:
    """Remove what a killed run left half-written in ``folder``."""
    for partial in folder.glob(f"*{PARTIAL}"):
        partial.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)  # it can only be read by setting it
    os.umask(mask)
    return mask


def _sync(path: Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
