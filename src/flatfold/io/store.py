"""Store for resumable work: a directory of named parts, each either complete or absent.

Feature banks, curvature studies and scoring runs are computed in parts. Each part is one safetensors file, written
atomically with its own checksum; ``manifest.json`` records what the parts were computed from. A run that was killed
resumes with the parts that are missing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, Self

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import DamagedFileError
from .artifacts import Blocks, checksum, decode, encode, header_length, read_json, write_json, write_tensors
from .files import lock_folder, locked, sweep, unlock_folder

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SUFFIX = ".safetensors"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.@=+-]{0,150}")


class Manifest(msgspec.Struct):
    """The ``key`` that identifies what the parts were computed from, and ``info`` that later runs reuse."""

    FORMAT: ClassVar[str] = "flatfold-parts"
    VERSION: ClassVar[int] = 1

    key: dict[str, str]
    info: dict[str, Any] = {}


class Part(NamedTuple):
    """The content of one part: metadata and tensors."""

    info: dict[str, Any]
    tensors: dict[str, Tensor]


class _Header(msgspec.Struct):
    """The header of a part."""

    FORMAT: ClassVar[str] = "flatfold-part"
    VERSION: ClassVar[int] = 1

    name: str
    key: dict[str, str]
    info: dict[str, Any]
    sha256: str = ""


class PartStore:
    """A directory of parts, created when the first part is written.

    A directory with parts of another ``key`` is rejected with the names that differ; without parts, its key is
    replaced. The ``info`` of a store with parts is kept. ``restart`` removes all existing parts, whatever their key.
    ``lock`` locks the directory at once, not only when a part is written, and raises BlockingIOError if another process
    writes to it.
    """

    def __init__(
        self,
        folder: Path,
        key: Mapping[str, str],
        info: Mapping[str, Any] | None = None,
        *,
        restart: bool = False,
        lock: bool = False,
    ) -> None:
        _check_directory(folder)
        sweep(folder)  # if all parts are complete, nothing will be written, which would do it
        self.folder = folder
        self._lock: BinaryIO | None = None
        self._intact: dict[str, bool] = {}
        if lock:
            self.lock()
        try:
            if restart:
                self.clear()
            there = read_manifest(folder) if (folder / MANIFEST).exists() else None
            if there is not None and there.key == dict(key):
                self._manifest, self._written = there, True
            elif there is not None and any(self._files()):
                raise ValueError(_key_mismatch(folder, there.key, key))
            else:
                self._manifest, self._written = Manifest(dict(key), dict(info or {})), False
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def key(self) -> dict[str, str]:
        """The key of all parts."""
        return self._manifest.key

    @property
    def info(self) -> dict[str, Any]:
        """Metadata of the store; :meth:`update` changes it."""
        return self._manifest.info

    def update(self, **info: Any) -> None:
        """Update the metadata of the store and write it."""
        self._manifest.info.update(info)
        self._write_manifest()

    def __contains__(self, name: str) -> bool:
        """Return whether a part exists and is intact; a damaged one is logged once and counts as absent."""
        if name not in self._intact:
            path = self._path(name)
            try:
                self._intact[name] = path.is_file() and bool(read_part(self.folder, name, self.key))
            except (DamagedFileError, OSError) as error:
                log.warning("%s will be recomputed: %s", path, error)
                self._intact[name] = False
        return self._intact[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all intact parts, in order."""
        return (name for name in sorted(path.name.removesuffix(SUFFIX) for path in self._files()) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def write(self, name: str, tensors: Mapping[str, Tensor], info: Mapping[str, Any] | None = None) -> None:
        """Write a part atomically, replacing any part of the same name."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid part name.")
        self.lock()
        if not self._written:
            self._write_manifest()
        self._intact.pop(name, None)  # an interrupt may come after the file is written and before this call returns
        _write_part(self._path(name), self.key, tensors, info)
        self._intact[name] = True

    def read(self, name: str) -> Part:
        """Return a part; its checksum is verified unless that was done before. See ``read_part``."""
        return read_part(self.folder, name, self.key, verify=name not in self._intact)

    def clear(self) -> None:
        """Remove all parts and the manifest, but no foreign safetensors file."""
        for path in [*filter(_is_part, self._files()), self.folder / MANIFEST]:
            path.unlink(missing_ok=True)
        self._intact.clear()
        self._written = False

    def remove(self) -> None:
        """Remove all parts, and the directory if it is then empty."""
        self.clear()
        self.close()
        if self.folder.is_dir():
            sweep(self.folder)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def lock(self) -> None:
        """Lock the directory against other processes until this store is closed."""
        if self._lock is None:
            self._lock = lock_folder(self.folder)

    def close(self) -> None:
        """Release the lock on the directory."""
        if self._lock is not None:
            unlock_folder(self.folder, self._lock)
            self._lock = None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def _files(self) -> Iterator[Path]:
        return self.folder.glob(f"*{SUFFIX}")

    def _write_manifest(self) -> None:
        self.lock()
        write_json(self.folder / MANIFEST, self._manifest)
        self._written = True


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a store; raise FileNotFoundError or DamagedFileError."""
    return read_json(folder / MANIFEST, Manifest)


def read_part(folder: Path, name: str, key: Mapping[str, str], verify: bool = True) -> Part:
    """Return a part of the store in ``folder``; its tensors are memory-mapped, and writing to them changes no file.

    Raise DamagedFileError if it is missing, truncated, altered, or belongs to another store.
    """
    header, tensors = _open_part(folder / f"{name}{SUFFIX}", tensors=True)
    if header.name != name or header.key != dict(key):
        raise DamagedFileError("it belongs to another store")
    if verify:
        expected, header.sha256 = header.sha256, ""
        if checksum(encode(header, indent=0), tensors) != expected:
            raise DamagedFileError("its checksum does not match its content")
    return Part(header.info, tensors)


def _is_part(path: Path) -> bool:
    """Return whether a file has the header of a part."""
    try:
        _open_part(path, tensors=False)
    except (DamagedFileError, OSError):
        return False
    return True


def read_checksum(folder: Path, name: str) -> str:
    """Return the checksum in the header of a part, without reading its tensors."""
    return _open_part(folder / f"{name}{SUFFIX}", tensors=False)[0].sha256


def replace_parts(
    folder: Path, manifest: Manifest, name: str, tensors: Mapping[str, Blocks], info: Mapping[str, Any]
) -> None:
    """Replace any store in ``folder`` by a store of one part.

    The part is written first: if the disk is full, the old store stays. A store interrupted between two steps has a
    manifest and parts that do not match.
    """
    _check_directory(folder)
    with locked(folder):
        _write_part(folder / f"{name}{SUFFIX}", manifest.key, tensors, info)
        write_json(folder / MANIFEST, manifest)
        remove_others(folder, name)


def remove_others(folder: Path, name: str) -> None:
    """Remove all parts but one, and no foreign safetensors file."""
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name != f"{name}{SUFFIX}" and _is_part(path):
            path.unlink()


def _write_part(path: Path, key: dict[str, str], tensors: Mapping[str, Blocks], info: Mapping[str, Any] | None) -> None:
    header = _Header(path.name.removesuffix(SUFFIX), key, dict(info or {}))
    header.sha256 = checksum(encode(header, indent=0), tensors)
    write_tensors(path, encode(header, indent=0), tensors)


def _open_part(path: Path, tensors: bool) -> tuple[_Header, dict[str, Tensor]]:
    try:
        with path.open("rb") as file:
            header_length(file.read(8))
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("flatfold", "")
            return decode(text, _Header), {key: file.get_tensor(key) for key in (file.keys() if tensors else ())}
    except (SafetensorError, FileNotFoundError) as error:
        raise DamagedFileError(f"it cannot be read ({error})") from error


def _check_directory(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} must be a directory, but it is a file. Choose another path.")


def _key_mismatch(folder: Path, there: Mapping[str, str], now: Mapping[str, str]) -> str:
    names = [name for name in sorted({*there, *now}) if there.get(name) != now.get(name)]
    before, after = (f"{values.get(names[0])!s:.24}" for values in (there, now))  # hashes are longer
    return (
        f"{folder} belongs to a run with another {' and '.join(names)}: {names[0]} was {before}, now it is {after}. "
        "Choose another folder, or delete this one to start again."
    )
