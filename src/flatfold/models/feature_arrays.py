"""Arrays in files of other programs, known without reading them, and read a few rows at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.chunks import row_chunks
from ..core.errors import DamagedBank
from .manifest import Manifest, read_manifest
from .store import read_shard

_KINDS = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint"}  # of safetensors


class Array(NamedTuple):
    """An array in a file: what is known without reading it, and its rows, so many at a time."""

    shape: tuple[int, ...]
    dtype: str
    parts: Callable[[int], Iterator[Tensor]]


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except (BadZipFile, EOFError, NotImplementedError, OSError, SafetensorError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} must be a {kind} file, but cannot be read: {error}. Write it again.") from error


def in_safetensors(path: Path) -> dict[str, Array]:
    """Return the arrays of a safetensors file."""
    with _readable(path, "safetensors"), safe_open(path, framework="pt") as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return {
            name: Array(tuple(part.get_shape()), _type_name(part.get_dtype()), partial(_slices, path, name))
            for name, part in found.items()
        }


def _type_name(code: str) -> str:
    """Return a type of safetensors as numpy and torch call it."""
    return f"{_KINDS[code[:-2]]}{code[-2:]}" if code[:-2] in _KINDS else {"I8": "int8", "U8": "uint8"}.get(code, code)


def _slices(path: Path, name: str, size: int) -> Iterator[Tensor]:
    with _readable(path, "safetensors"), safe_open(path, framework="pt") as file:
        array = file.get_slice(name)
        rows = array.get_shape()[0]
        for start in range(0, rows, size):
            yield array[start : min(start + size, rows)]


def in_npy(path: Path) -> dict[str, Array]:
    """Return the arrays of a ``.npy`` file, which is one."""
    with _readable(path, ".npy"):
        array = npy.open_memmap(path, mode="r")
    return {"features": Array(array.shape, array.dtype.name, partial(_pieces, array))}


def _pieces(array: NDArray[Any], size: int) -> Iterator[Tensor]:
    for part in row_chunks(len(array), size):
        # A copy: torch wants memory that it may write to, in the byte order of the machine.
        yield torch.from_numpy(np.array(array[part], dtype=array.dtype.newbyteorder("="), order="C"))


def in_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of a ``.npz`` file."""
    with _readable(path, ".npz"), ZipFile(path) as archive:
        arrays = {}
        for entry in archive.namelist():
            with archive.open(entry) as file:
                shape, _, dtype = _npy_header(file)
            arrays[entry.removesuffix(".npy")] = Array(shape, dtype.name, partial(_unzipped, path, entry))
        return arrays


def _unzipped(path: Path, entry: str, size: int) -> Iterator[Tensor]:
    with _readable(path, ".npz"), ZipFile(path) as archive, archive.open(entry) as file:
        shape, by_column, dtype = _npy_header(file)
        at_once = shape[0] if by_column else size
        for start in range(0, shape[0], at_once):
            part = (min(at_once, shape[0] - start), *shape[1:])
            content = file.read(prod(part) * dtype.itemsize)
            array = np.frombuffer(content, dtype).reshape(part, order="F" if by_column else "C")
            yield from _pieces(array, size)


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns follow each other, and type of an array; the file is left at its first value."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(npy.read_magic(file))
    if read is None:
        raise ValueError("an array has a header of another version of numpy")
    return read(file)


def in_bank(path: Path) -> dict[str, Array]:
    """Return the arrays of a bank on disk."""
    manifest = read_manifest(path)
    if not manifest.complete:
        raise DamagedBank(
            f"the bank in {path} is not finished. Call extract(..., out=...) again: it goes on from there."
        )
    rows = sum(shard.rows - len(shard.unreadable) for shard in manifest.shards.values())
    arrays = {"features": Array((rows, manifest.width), manifest.dtype, partial(_shards, path, manifest, 0))}
    if manifest.labels:
        arrays["labels"] = Array((rows,), "int64", partial(_shards, path, manifest, 1))
    return arrays


def _shards(path: Path, manifest: Manifest, which: int, size: int) -> Iterator[Tensor]:
    """Yield features (0) or labels (1) of a bank, whose files are compared with their checksums once."""
    for _, shard in sorted(manifest.shards.items()):
        values = read_shard(path, manifest, shard, verify=which == 0)[which]
        assert values is not None
        if len(values):  # else none of its images could be read
            yield from torch.split(values, size)
