"""Atomic writes: after a crash at any time, a file is either complete or absent.

Unfinished files are in a hidden folder next to their target, whose name holds a marker, the host and the process:
``.flatfold-tmp-HOST-PROCESS-RANDOM``. Folders of processes that have ended are removed; no other path is.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import re
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from typing import BinaryIO

LOCK = ".flatfold-lock"

_MARKER = ".flatfold-tmp"
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]  # host names may be long
_OURS = re.compile(rf"{re.escape(_MARKER)}-{_HOST}-([0-9]{{1,18}})-\w+")
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_in_use: dict[str, Path] = {}  # temporary folders of this process, by name
_swept: set[Path] = set()  # sweep each folder once: it may hold a million files
_creation_lock = Lock()  # otherwise one thread could remove a folder that another has just created


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on exit the file there replaces ``path`` atomically.

    The path is in a new folder that no other user can write to, so no symbolic link can redirect the write.
    """
    with _replacing_all(path.parent, [path.name]) as folder:
        yield folder / path.name


@contextmanager
def publishing(path: Path, watched: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; on exit it becomes ``path``, which must be new or empty, atomically.

    A server that watches the folder ``watched``, ``path`` or one of its parents, may load half-written files from it.
    So the temporary folder is outside of it, unless that is another file system or not writable by this user.
    """
    inside, outside = (next(place for place in start.absolute().parents if place.exists()) for start in (path, watched))
    usable = outside.stat().st_dev == inside.stat().st_dev and os.access(outside, os.W_OK)
    with _replacing_all(path.parent, [path.name], outside if usable else inside) as folder:
        (folder / path.name).mkdir()
        yield folder / path.name


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace the file at ``path`` by ``content``, creating the folder if needed."""
    write_together(path.parent, {path.name: content})


def write_together(folder: Path, contents: Mapping[str, bytes | str]) -> None:
    """Replace several files of a folder, but none before all are on disk; create the folder if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    with _replacing_all(folder, contents) as partial:
        for name, content in contents.items():
            (partial / name).write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def _replacing_all(target: Path, names: Collection[str], place: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder to write to; on exit its entries replace those of the same name in ``target``.

    The folder is created in ``place``, by default ``target``.
    """
    folder = _make_folder(place or target)
    try:
        yield folder
        umask = os.umask(0)  # reading the umask requires setting it
        os.umask(umask)
        for path in (path for name in names for path in (folder / name, *(folder / name).rglob("*"))):
            if path.is_dir():
                _sync_folder(path)
            else:
                path.chmod(0o666 & ~umask)  # safetensors creates files that only their owner can read
                _sync(path, os.O_RDWR)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).replace(target / name)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise _write_error(target / next(iter(names)), error) from error
    finally:
        _remove_folder(folder)
    _sync_folder(target)


def check_writable(folder: Path) -> None:
    """Raise an OSError unless files can be created in a folder, which may not exist yet; call it before long work."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise NotADirectoryError(f"{folder} cannot be created: {place} is a file. Choose another folder.")
    _remove_folder(_make_folder(place))


def sweep(folder: Path) -> None:
    """Remove temporary folders left behind by killed processes of this machine."""
    for path in folder.glob(f"{_MARKER}-{_HOST}-*"):
        owner = _OURS.fullmatch(path.name)
        if owner is not None and not path.is_symlink() and path.is_dir() and not _is_alive(int(owner[1]), path.name):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, and remove it on exit if it is new and empty; see :func:`lock_folder`."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = lock_folder(folder)
    try:
        yield
    finally:
        unlock_folder(folder, lock)
        with suppress(OSError):  # not empty
            for path in new:
                path.rmdir()


def lock_folder(folder: Path) -> BinaryIO:
    """Lock a folder against other processes until :func:`unlock_folder` or the end of this process.

    The folder is created if needed. Raise BlockingIOError if another process holds the lock; where locks are not
    supported, on Windows and some file systems, this is not detected.
    """
    path = folder / LOCK
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666), "r+b")
        except OSError as error:
            raise _write_error(folder, error) from error
        try:
            _lock(file, folder)
            with suppress(FileNotFoundError):  # the previous holder may have removed it in the meantime
                if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def unlock_folder(folder: Path, lock: BinaryIO) -> None:
    """Release the lock on a folder."""
    if os.name != "nt":  # Windows cannot remove an open file
        (folder / LOCK).unlink(missing_ok=True)
    lock.close()


def check_regular(path: Path) -> None:
    """Raise a ValueError if a path is a pipe, which would block, a device, which may never end, or a folder."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe, a socket or a device"
        raise ValueError(f"{path} must be a regular file, but is {kind}. Copy its content to a file.")


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_folder(place: Path) -> Path:
    """Create a temporary folder of this process after removing those of killed processes in the same place."""
    with _creation_lock:
        if place.absolute() not in _swept:
            sweep(place)
            _swept.add(place.absolute())
        try:
            folder = Path(mkdtemp(prefix=f"{_MARKER}-{_HOST}-{os.getpid()}-", dir=place.absolute()))
        except OSError as error:
            raise _write_error(place, error) from error
        _in_use[folder.name] = folder
    return folder


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _in_use.pop(folder.name, None)


@atexit.register
def _remove_interrupted() -> None:
    """Remove what an interrupt in the middle of the removal, or just before it, has left."""
    for folder in [each for each in _in_use.values() if f"-{os.getpid()}-" in each.name]:  # not those of a parent
        _remove_folder(folder)


def _write_error(path: Path, error: OSError) -> OSError:
    problem = os.strerror(error.errno) if error.errno else str(error)
    advice = "Free some space" if error.errno in _NO_ROOM else "Change its permissions"
    return type(error)(f"{path} cannot be written: {problem}. {advice}, or choose another folder.")


def _is_alive(process: int, folder: str) -> bool:
    """Return whether the process that created a temporary folder may still be writing to it."""
    if process == os.getpid():  # in a container, a killed run and the next often have the same id
        return folder in _in_use
    if os.name == "nt":
        return True  # unknown: on Windows, signal 0 is Ctrl+C
    try:
        os.kill(process, 0)
    except PermissionError:  # it exists but belongs to another user
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return process > 0  # 0 means a group of processes


def _lock(file: BinaryIO, folder: Path) -> None:
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # Windows
        return
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise BlockingIOError(
            f"{folder} is being written by another process. Wait for it to end, or choose another folder."
        ) from None
    except OSError:  # file system without locks
        return


def _sync_folder(path: Path) -> None:
    with suppress(OSError):  # a directory cannot be opened on Windows, where the rename is durable without it
        _sync(path, os.O_RDONLY)


def _sync(path: Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
