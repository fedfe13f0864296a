"""Files that are there completely or not at all, whenever the machine stops."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from itertools import count
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"

_OWNER = re.compile(r"\.([0-9]+)" + re.escape(PARTIAL))
_being_written: set[Path] = set()  # by this process
_serial = count()  # two threads may write the same file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` to write to; at the end it replaces ``path`` in one step."""
    partial = path.with_name(f"{path.name}.{next(_serial)}.{os.getpid()}{PARTIAL}")
    _being_written.add(partial)
    try:
        yield partial
        umask = os.umask(0)  # it can only be read by setting it
        os.umask(umask)
        partial.chmod(0o666 & ~umask)  # safetensors makes files that only their owner can read
        _sync(partial, os.O_RDWR)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
        _being_written.discard(partial)
    with suppress(OSError):  # a directory cannot be opened on Windows, where the rename is durable without it
        _sync(path.parent, os.O_RDONLY)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace the file at ``path`` by ``content``; the folder is made if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def sweep(folder: Path, name: str = "") -> None:
    """Remove what killed runs left half-written of files whose name begins with ``name``, of no live process."""
    for partial in folder.glob(f"{escape(name)}*{PARTIAL}"):
        if not _in_use(partial):
            partial.unlink(missing_ok=True)


def open_exclusive(path: Path) -> BinaryIO:
    """Open a file to read and write that no other process has opened in this way; it is made if it does not exist.

    Raise BlockingIOError if another process has opened it; without locks, on Windows and on some file systems, this is
    not noticed.
    """
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            _lock(file, path)
            with suppress(FileNotFoundError):  # the process that had it open may have removed it in between
                if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_use(partial: Path) -> bool:
    """Return whether the process that is named in a partial file may still be writing it."""
    owner = _OWNER.search(partial.name)
    if owner is None:
        return False
    process = int(owner[1])
    if process == os.getpid():  # in a container, a killed run and the next often have the same number
        return partial in _being_written
    if os.name == "nt":
        return True  # nothing can be asked: there, signal 0 is Ctrl+C
    try:
        os.kill(process, 0)
    except PermissionError:  # it exists, and belongs to another user
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return process > 0  # 0 means a group of processes


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # Windows
        return
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(
            f"{path} is being written by another process. Wait for it to end, or choose another place."
        ) from None
    except OSError:  # of a file system without locks
        return


def _sync(path: Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
