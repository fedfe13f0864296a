"""Features that were saved before, in the place of images, and the linear layer that goes with them."""

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
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head
from ..core.hessian import row_chunks
from ..core.validation import check_finite
from ..io.store import read_checksum
from .bank_store import DTYPES, StoredBank, load_bank
from .sources import Source, check_rows

# Arrays in files of other programs, known without reading them, and read a few rows at a time.


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
    bank = StoredBank.open(path)
    rows = sum(len(shard.features) for shard in bank.shards(verify=False))
    arrays = {"features": Array((rows, int(bank.key["width"])), bank.key["dtype"], partial(_shards, bank, 0))}
    if bank.key["labels"] == "yes":
        arrays["labels"] = Array((rows,), "int64", partial(_shards, bank, 1))
    return arrays


def _shards(bank: StoredBank, which: int, size: int) -> Iterator[Tensor]:
    """Yield features (0) or labels (1) of a bank, whose files are compared with their checksums once."""
    for shard in bank.shards(verify=which == 0):
        values = (shard.features, shard.labels)[which]
        if values is not None and len(values):  # else none of its images could be read
            yield from torch.split(values, size)


# Features in files of other programs, a few rows at a time: safetensors, ``.npy``, ``.npz``, and banks.


ROWS_AT_ONCE = 4096

SHOWN = 3  # names of arrays in a message

_FLOATS = {"float16": torch.float32, "bfloat16": torch.float32, **DTYPES}  # as which each is read: no digit is lost

_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}


class FeatureChunk(NamedTuple):
    """Some rows of a file."""

    first: int
    """The number of the first of them, from 0."""
    features: Tensor
    """``(n, d)``, finite."""
    labels: Tensor | None
    """``(n,)`` int64, as they are in the file."""


@dataclass(frozen=True)
class FeatureFile:
    """Features in a file, and classes if there are any; made by :func:`open_features`.

    Attributes:
        path: The file, or the directory of a bank.
    """

    path: Path
    _features: Array
    _labels: Array | None

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
        """Whether there are classes."""
        return self._labels is not None

    def chunks(self, rows: int = ROWS_AT_ONCE) -> Iterator[FeatureChunk]:
        """Yield all rows in their order, ``rows`` at a time, in memory that does not grow with their number.

        Raises:
            ValueError: A row has a NaN or infinite entry, which is named, or the file turns out to be damaged.
        """
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
    """Open a file of features without reading them.

    A safetensors or ``.npz`` file has an array ``features`` ``(n, d)``, or a single matrix of floats under any name,
    and may have integer ``labels`` ``(n,)``; a ``.npy`` file is such a matrix; a directory is a bank, as ``save_bank``
    or ``extract`` with ``out=`` wrote it. No pickle is read. An array in a ``.npz`` file that is stored column by
    column is read at once.

    Args:
        path: The file or directory. What is neither a directory nor ends in ``.npy`` or ``.npz`` is taken for
            safetensors.

    Raises:
        DamagedBank: A bank is unfinished, or not as it was written.
        FileNotFoundError: There is no such file.
        TypeError: Features or labels are of another type.
        ValueError: The file is damaged, or holds no features.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> with TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/f.npy", np.eye(5, 3, dtype=np.float32))
        ...     [(chunk.first, tuple(chunk.features.shape)) for chunk in open_features(f"{folder}/f.npy").chunks(2)]
        [(0, (2, 3)), (2, (2, 3)), (4, (1, 3))]
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there are no features at {path}. Check the path.")
    if path.is_dir():
        arrays = in_bank(path)
    else:
        arrays = {".npy": in_npy, ".npz": in_npz}.get(path.suffix.lower(), in_safetensors)(path)
    return FeatureFile(path, *_picked(path, arrays))


def _picked(path: Path, arrays: dict[str, Array]) -> tuple[Array, Array | None]:
    """Return features and labels among the arrays of a file."""
    matrices = [array for array in arrays.values() if array.dtype in _FLOATS and len(array.shape) == 2]
    if "features" in arrays:
        features = arrays["features"]
    elif len(matrices) == 1:
        features = matrices[0]
    else:
        raise ValueError(
            f"{path} must hold an array 'features' (n, d), or a single matrix of floats; it holds {_listed(arrays)}. "
            "Save the features under that name, and their classes, if they are known, as 'labels'."
        )
    if len(features.shape) != 2 or 0 in features.shape:
        raise ValueError(f"{path}: features must have shape (n, d) with n, d > 0, got {features.shape}. Reshape them.")
    if features.dtype not in _FLOATS:
        raise TypeError(f"{path}: features must be {', '.join(_FLOATS)}, got {features.dtype}. Convert them.")
    labels = arrays.get("labels")
    if labels is not None and labels.dtype not in _INTEGERS:
        raise TypeError(f"{path}: labels must be whole class indices, got {labels.dtype}. Convert or remove them.")
    if labels is not None and labels.shape != features.shape[:1]:
        raise ValueError(
            f"{path}: labels must have shape ({features.shape[0]},), one per row of features, got {labels.shape}."
        )
    return features, labels


def _listed(arrays: dict[str, Array]) -> str:
    some = [f"{name!r} {array.shape} {array.dtype}" for name, array in sorted(arrays.items())[:SHOWN]]
    more = f" and {len(arrays) - SHOWN} more" if len(arrays) > SHOWN else ""
    return f"{', '.join(some) or 'none'}{more}"


class FeatureRows(Source):
    """The rows of a bank on disk as inputs, so that a network of one linear layer can be run on them.

    Iterating gives ``x`` of shape ``(n, d)``, or pairs ``(x, y)`` with labels. The fingerprint holds the checksums in
    the bank's manifest, with which its files are compared when it is opened.

    Args:
        path: The directory of the bank, as ``save_bank`` or ``extract`` with ``out=`` wrote it.
        batch_size: Rows in a batch.
        labels: False to leave out the labels of the bank; True needs a bank that has them.

    Attributes:
        bank: The features, ``(n, d)``, and all labels that there are.
        labels: ``(n,)`` int64, or None when they are not wanted.

    Raises:
        DamagedBank: Something is missing, unfinished, or not as it was written.
        ValueError: Labels are wanted of a bank without any.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> from flatfold import FeatureBank, save_bank
        >>> with TemporaryDirectory() as folder:
        ...     save_bank(FeatureBank(torch.eye(3)), folder)
        ...     [tuple(x.shape) for x in FeatureRows(folder, batch_size=2, labels=False)]
        [(2, 3), (1, 3)]
    """

    def __init__(self, path: Path | str, batch_size: int = 64, labels: bool = True) -> None:
        super().__init__(batch_size)
        self.bank = load_bank(path)
        if labels and self.bank.labels is None:
            raise ValueError(f"labels are wanted, but the bank in {path} has none. Pass labels=False to do without.")
        self.labels = self.bank.labels if labels else None
        self._chosen: Tensor | None = None
        self._checksums = [read_checksum(Path(path), name) for name in StoredBank.open(path).names()]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.bank) if self._chosen is None else len(self._chosen)

    def picked(self, rows: NDArray[np.integer]) -> FeatureRows:
        """Return some rows, in the order asked for, as a source of their own; the features are not copied."""
        check_rows(rows, self.rows)
        chosen = torch.from_numpy(rows.astype(np.int64))
        some = copy(self)
        some.labels = None if self.labels is None else self.labels[chosen]
        some._chosen = chosen if self._chosen is None else self._chosen[chosen]
        return some

    @property
    def fingerprint(self) -> str:
        """The sha256 of the checksums of the bank's files, of whether labels are given, and of picked rows."""
        identity = ["features", *self._checksums, "no labels" if self.labels is None else "labels"]
        identity += [] if self._chosen is None else [hashlib.sha256(self._chosen.numpy().tobytes()).hexdigest()]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def read(self, rows: range) -> Tensor | tuple[Tensor, Tensor]:
        """Return some rows of the bank."""
        where = slice(rows.start, rows.stop)
        x = self.bank.features[where if self._chosen is None else self._chosen[where]]
        return x if self.labels is None else (x, self.labels[rows.start : rows.stop])


def linear_head(path: Path | str) -> nn.Linear:
    """Return a linear layer in evaluation mode from a safetensors file.

    Args:
        path: A file with the tensors ``weight`` ``(c, d)`` and, for a layer with one, ``bias`` ``(c,)``, and no
            others; float32 or float64, which the layer keeps.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: The tensors are of another type.
        ValueError: The file is damaged, or its tensors make no head.
    """
    head = read_head(path)
    classes, width = head.weight.shape
    # On "meta" nothing is drawn for weights that are replaced at once.
    layer = nn.Linear(width, classes, bias=head.bias is not None, device="meta")
    layer.weight = nn.Parameter(head.weight)
    if head.bias is not None:
        layer.bias = nn.Parameter(head.bias)
    return layer.eval()


def read_head(path: Path | str) -> Head:
    """Return the weight and bias in a file that :func:`linear_head` takes; it raises the same."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}. Check the path.")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} must be a safetensors file, but cannot be read: {error}. Write it again.") from error
    if "weight" not in tensors or tensors.keys() - {"weight", "bias"}:
        names = sorted(tensors)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ValueError(
            f"{path} must hold the tensors 'weight' and, if there is one, 'bias', of one linear layer; it holds "
            f"{', '.join(map(repr, names[:SHOWN])) or 'none'}{more}. Save the state dict of the last layer alone."
        )
    try:
        return Head(tensors["weight"], tensors.get("bias"))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error
