"""Features that were saved before, in the place of images, and the linear layer that belongs to them."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head
from ..core.hessian import row_chunks
from ..core.validation import check_finite
from ..io.store import read_checksum
from .bank_store import DTYPES, load_bank, read_shards, shard_name
from .sources import Source, check_rows

ROWS_AT_ONCE = 4096
SHOWN = 3  # names of arrays in a message
_FLOATS = {"float16": torch.float32, "bfloat16": torch.float32, **DTYPES}  # the type each is read as: no digit is lost
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}
_SAFETENSORS_TYPES = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint"}


class FeatureChunk(NamedTuple):
    """Some rows of a file from number ``first`` on: finite features ``(n, d)``, labels ``(n,)`` int64 if it has any."""

    first: int
    features: Tensor
    labels: Tensor | None


class _Array(NamedTuple):
    """An array in a file: its shape and type, and a function that yields a given number of rows at a time."""

    shape: tuple[int, ...]
    dtype: str
    parts: Callable[[int], Iterator[Tensor]]


@dataclass(frozen=True)
class FeatureFile:
    """Features ``(rows, width)`` in a file or in the directory of a bank, and labels if it has any."""

    path: Path
    _features: _Array
    _labels: _Array | None

    @property
    def rows(self) -> int:
        """Number of rows n."""
        return self._features.shape[0]

    @property
    def width(self) -> int:
        """Number of features d."""
        return self._features.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """float32 or float64, in which features are read; narrower types become float32, which is exact."""
        return _FLOATS[self._features.dtype]

    @property
    def has_labels(self) -> bool:
        """Whether there are labels."""
        return self._labels is not None

    def chunks(self, rows: int = ROWS_AT_ONCE) -> Iterator[FeatureChunk]:
        """Yield all rows in order, ``rows`` at a time; a row that is not finite or cannot be read is an error."""
        labels = repeat(None) if self._labels is None else self._labels.parts(rows)
        first = 0
        for h, y in zip(self._features.parts(rows), labels, strict=False):
            h = h.to(self.dtype, copy=True)  # sums round by where memory begins, which in a file may be anywhere
            check_finite(h, f"features of {self.path}", first)
            yield FeatureChunk(first, h, None if y is None else y.to(torch.int64))
            first += len(h)

    def bank(self) -> FeatureBank:
        """Return all rows in memory, to fit a detector on."""
        features = torch.empty(self.rows, self.width, dtype=self.dtype)
        labels = torch.empty(self.rows, dtype=torch.int64) if self.has_labels else None
        for first, h, y in self.chunks():
            features[first : first + len(h)] = h
            if labels is not None and y is not None:
                labels[first : first + len(h)] = y
        try:
            return FeatureBank(features, labels)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error


def open_features(path: Path | str) -> FeatureFile:
    """Open a file of features; all but an ``.npz`` file are read later, a few rows at a time. No pickle is read.

    A safetensors file (any name that does not end in ``.npy`` or ``.npz``) or an ``.npz`` file has an array
    ``features`` ``(n, d)``, or a single matrix of floats under any name, and may have integer ``labels`` ``(n,)``; a
    ``.npy`` file is such a matrix; a directory is a bank, as ``save_bank`` or ``extract`` with ``out=`` wrote it.

    Raises:
        DamagedBank: A bank is unfinished, or not as it was written.
        FileNotFoundError: There is no such file.
        TypeError: Features or labels are of another type.
        ValueError: The file is damaged, or holds no features.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there are no features at {path}. Check the path.")
    if path.is_dir():
        arrays = _in_bank(path)
    elif path.suffix.lower() in (".npy", ".npz"):
        arrays = _in_numpy_file(path)
    else:
        arrays = _in_safetensors(path)
    matrices = [array for array in arrays.values() if array.dtype in _FLOATS and len(array.shape) == 2]
    if "features" not in arrays and len(matrices) != 1:
        raise ValueError(
            f"{path} must hold an array 'features' (n, d), or a single matrix of floats; it holds "
            f"{_listed([f'{name!r} {array.shape} {array.dtype}' for name, array in sorted(arrays.items())])}. "
            "Save the features under that name, and their classes, if they are known, as 'labels'."
        )
    features, labels = arrays.get("features") or matrices[0], arrays.get("labels")
    if len(features.shape) != 2 or 0 in features.shape:
        raise ValueError(f"{path}: features must have shape (n, d) with n, d > 0, got {features.shape}. Reshape them.")
    if features.dtype not in _FLOATS:
        raise TypeError(f"{path}: features must be {', '.join(_FLOATS)}, got {features.dtype}. Convert them.")
    if labels is not None and labels.dtype not in _INTEGERS:
        raise TypeError(f"{path}: labels must be integer class indices, got {labels.dtype}. Convert or remove them.")
    if labels is not None and labels.shape != features.shape[:1]:
        raise ValueError(
            f"{path}: labels must have shape ({features.shape[0]},), one per row of features, got {labels.shape}."
        )
    return FeatureFile(path, features, labels)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of readers into one that names the file."""
    try:
        yield
    except (BadZipFile, EOFError, NotImplementedError, OSError, SafetensorError, ValueError, zlib.error) as error:
        kind = path.suffix if path.suffix.lower() in (".npy", ".npz") else "safetensors"
        raise ValueError(f"{path} must be a {kind} file, but cannot be read: {error}. Write it again.") from error


def _in_safetensors(path: Path) -> dict[str, _Array]:
    def parts(name: str, size: int) -> Iterator[Tensor]:
        with _reading(path), safe_open(path, framework="pt") as file:
            array = file.get_slice(name)
            count = array.get_shape()[0]
            for rows in row_chunks(count, size):
                yield array[rows.start : min(rows.stop, count)]

    def dtype(code: str) -> str:
        """Return a type of safetensors as torch calls it."""
        letters = code.rstrip("0123456789")
        return f"{_SAFETENSORS_TYPES[letters]}{code.removeprefix(letters)}" if letters in _SAFETENSORS_TYPES else code

    with _reading(path), safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return {
            name: _Array(tuple(array.get_shape()), dtype(array.get_dtype()), partial(parts, name))
            for name, array in slices.items()
        }


def _in_numpy_file(path: Path) -> dict[str, _Array]:
    with _reading(path):
        if path.suffix.lower() == ".npy":
            arrays: dict[str, NDArray[Any]] = {"features": open_memmap(path, mode="r")}
        else:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
                arrays = dict(loaded)
    return {name: _Array(array.shape, array.dtype.name, partial(_rows_of, array)) for name, array in arrays.items()}


def _rows_of(array: NDArray[Any], size: int) -> Iterator[Tensor]:
    for rows in row_chunks(len(array), size):
        # A copy: torch needs memory that it may write to, in the byte order of the machine.
        yield torch.from_numpy(np.array(array[rows], dtype=array.dtype.newbyteorder("="), order="C"))


def _in_bank(path: Path) -> dict[str, _Array]:
    def parts(name: str, size: int) -> Iterator[Tensor]:
        for shard in read_shards(path, verify=name == "features"):  # each file is compared with its checksum once
            values = getattr(shard, name)
            if len(values):  # else none of its images could be read
                yield from torch.split(values, size)

    shards = list(read_shards(path, verify=False))
    rows, first = sum(len(shard.features) for shard in shards), shards[0].features
    dtype = str(first.dtype).removeprefix("torch.")
    arrays = {"features": _Array((rows, first.shape[1]), dtype, partial(parts, "features"))}
    if shards[0].labels is not None:
        arrays["labels"] = _Array((rows,), "int64", partial(parts, "labels"))
    return arrays


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN]) or 'none'}{more}"


class FeatureRows(Source):
    """The rows of a bank on disk as inputs, so that a network of one linear layer can be run on them.

    Iterating gives ``x`` of shape ``(n, d)``, or pairs ``(x, y)`` with labels. The fingerprint holds the checksums of
    the bank's files, with which they are compared when it is opened.
    """

    def __init__(self, path: Path | str, batch_size: int = 64, labels: bool = True) -> None:
        super().__init__(batch_size)
        self.bank = load_bank(path)
        if labels and self.bank.labels is None:
            raise ValueError(f"labels are wanted, but the bank in {path} has none. Pass labels=False to do without.")
        self.labels = self.bank.labels if labels else None
        self._chosen: Tensor | None = None
        shards = sum(1 for _ in read_shards(path, verify=False))
        self._checksums = [read_checksum(Path(path), shard_name(index)) for index in range(shards)]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.bank) if self._chosen is None else len(self._chosen)

    def subset(self, rows: NDArray[np.integer]) -> FeatureRows:
        """Return some rows, in the order asked for, as a source of their own; the features are not copied."""
        check_rows(rows, self.rows)
        chosen = torch.from_numpy(rows.astype(np.int64))
        part = copy(self)
        part.labels = None if self.labels is None else self.labels[chosen]
        part._chosen = chosen if self._chosen is None else self._chosen[chosen]
        return part

    @property
    def fingerprint(self) -> str:
        """The sha256 of the checksums of the bank's files, of whether labels are given, and of the rows of a subset."""
        identity = ["features", *self._checksums, "no labels" if self.labels is None else "labels"]
        identity += [] if self._chosen is None else [hashlib.sha256(self._chosen.numpy().tobytes()).hexdigest()]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def read(self, rows: range) -> Tensor | tuple[Tensor, Tensor]:
        """Return some rows of the bank."""
        where = slice(rows.start, rows.stop)
        x = self.bank.features[where if self._chosen is None else self._chosen[where]]
        return x if self.labels is None else (x, self.labels[where])


def linear_head(path: Path | str) -> nn.Linear:
    """Return the linear layer of ``read_head`` in evaluation mode, with weights of the type that they have there."""
    head = read_head(path)
    classes, width = head.weight.shape
    # On "meta" nothing is drawn for weights that are replaced at once.
    layer = nn.Linear(width, classes, bias=head.bias is not None, device="meta")
    layer.weight = nn.Parameter(head.weight)
    if head.bias is not None:
        layer.bias = nn.Parameter(head.bias)
    return layer.eval()


def read_head(path: Path | str) -> Head:
    """Return a head from a safetensors file with ``weight`` ``(c, d)``, ``bias`` ``(c,)`` or none, and nothing else."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}. Check the path.")
    with _reading(path):
        tensors = load_file(path)
    if "weight" not in tensors or tensors.keys() - {"weight", "bias"}:
        raise ValueError(
            f"{path} must hold the tensors 'weight' and, if there is one, 'bias', of one linear layer; it holds "
            f"{_listed([repr(name) for name in sorted(tensors)])}. Save the state dict of the last layer alone."
        )
    try:
        return Head(tensors["weight"], tensors.get("bias"))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error
