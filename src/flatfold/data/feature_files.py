"""Precomputed features, used instead of images, and the linear layer that belongs to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head
from ..core.hessian import row_chunks
from ..core.validation import check_finite, listed
from ..errors import brief
from ..io.files import check_regular
from ..io.store import read_checksum
from .banks import DTYPES, load_bank, read_shards, shard_name
from .images import BROKEN_ARRAYS, check_expansion_of_arrays
from .sources import Source

ROWS_AT_ONCE = 4096
_FLOATS = {"float16": torch.float32, "bfloat16": torch.float32, **DTYPES}  # the dtype each is read as, without loss
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}
_Array = Tensor | NDArray[Any]


class FeatureChunk(NamedTuple):
    """Rows of a file, starting at row ``first``: finite features ``(n, d)``, labels ``(n,)`` int64 or None."""

    first: int
    features: Tensor
    labels: Tensor | None


@dataclass(frozen=True)
class FeatureFile:
    """Features ``(rows, width)`` and optional labels in a file or in the directory of a bank.

    They are read as ``dtype``; types narrower than float32 become float32, which is exact. ``_blocks`` yields features
    and labels: the shards of a bank, or a whole file.
    """

    path: Path
    rows: int
    width: int
    dtype: torch.dtype
    has_labels: bool
    _blocks: Callable[[], Iterable[tuple[_Array, _Array | None]]]

    def chunks(self, rows: int = ROWS_AT_ONCE) -> Iterator[FeatureChunk]:
        """Yield all rows in order, ``rows`` at a time; raise on a row that is not finite or cannot be read."""
        first = 0
        for features, labels in self._blocks():
            for part in row_chunks(len(features), rows):
                # A copy: rounding of sums depends on memory alignment, which is arbitrary in a file.
                h = _as_tensor(features[part]).to(self.dtype, copy=True)
                check_finite(h, f"features of {self.path}", first)
                yield FeatureChunk(first, h, None if labels is None else _as_tensor(labels[part]).to(torch.int64))
                first += len(h)

    def bank(self) -> FeatureBank:
        """Load all rows into memory, to fit a detector."""
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
    """Open a file of features without reading it (except ``.npz``); rows are read in chunks, and never by pickle.

    A safetensors file (any name that does not end in ``.npy`` or ``.npz``) or an ``.npz`` file has an array
    ``features`` ``(n, d)``, or a single matrix of floats under any name, and may have integer ``labels`` ``(n,)``; a
    ``.npy`` file is such a matrix; a directory is a bank, as ``save_bank`` or ``extract`` with ``out=`` wrote it.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no features at {path}. Check the path.")
    if path.is_dir():
        shards = [(len(h), h.shape[1], h.dtype, y is not None) for h, y, _ in read_shards(path, verify=False)]
        blocks = lambda: ((h, y) for h, y, _ in read_shards(path, verify=True))  # noqa: E731
        return FeatureFile(path, sum(rows for rows, *_ in shards), *shards[0][1:], blocks)
    arrays = _arrays_in(path)
    types = {name: _type_name(array) for name, array in arrays.items()}
    matrices = [name for name, array in arrays.items() if types[name] in _FLOATS and array.ndim == 2]
    if "features" not in arrays and len(matrices) != 1:
        raise ValueError(
            f"{path} must hold an array 'features' (n, d), or a single matrix of floats; it holds "
            f"{listed([f'{name!r} {tuple(array.shape)} {types[name]}' for name, array in sorted(arrays.items())])}. "
            "Save the features under that name, and their class indices, if known, as 'labels'."
        )
    name = "features" if "features" in arrays else matrices[0]
    features, labels, shape = arrays[name], arrays.get("labels"), tuple(arrays[name].shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{path}: features must have shape (n, d) with n, d > 0, got {shape}. Reshape them.")
    if types[name] not in _FLOATS:
        raise TypeError(f"{path}: features must be {', '.join(_FLOATS)}, got {types[name]}. Convert them.")
    if labels is not None and types["labels"] not in _INTEGERS:
        raise TypeError(f"{path}: labels must be integer class indices, got {types['labels']}. Convert or remove them.")
    if labels is not None and tuple(labels.shape) != shape[:1]:
        raise ValueError(
            f"{path}: labels must have shape ({shape[0]},), one per row of features, got {tuple(labels.shape)}."
        )
    return FeatureFile(path, *shape, _FLOATS[types[name]], labels is not None, lambda: [(features, labels)])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert errors of the readers to a ``ValueError`` that names the file."""
    try:
        yield
    except (*BROKEN_ARRAYS, SafetensorError) as error:
        kind = path.suffix if path.suffix.lower() in (".npy", ".npz") else "safetensors"
        raise ValueError(
            f"{path} must be a {kind} file, but cannot be read: {brief(error)}. Write it again."
        ) from error


def _arrays_in(path: Path) -> dict[str, _Array]:
    check_regular(path)
    with _reading(path):
        if path.suffix.lower() == ".npy":
            return {"features": open_memmap(path, mode="r")}
        if path.suffix.lower() == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
                check_expansion_of_arrays(path, loaded.zip, loaded)
                return dict(loaded)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


def _type_name(array: _Array) -> str:
    return str(array.dtype).removeprefix("torch.") if isinstance(array, Tensor) else array.dtype.name


def _as_tensor(rows: _Array) -> Tensor:
    if isinstance(rows, Tensor):
        return rows
    # A copy: torch needs writable memory in native byte order.
    return torch.from_numpy(np.array(rows, dtype=rows.dtype.newbyteorder("="), order="C"))


class FeatureRows(Source):
    """The rows of a bank on disk as inputs ``(n, d)`` with or without labels, for a network of one linear layer."""

    def __init__(self, path: Path | str, batch_size: int = 64, labels: bool = True) -> None:
        super().__init__(batch_size)
        self.bank = load_bank(path)
        if labels and self.bank.labels is None:
            raise ValueError(f"labels=True needs labels, but the bank in {path} has none. Pass labels=False.")
        self.labels = self.bank.labels if labels else None
        self.rows = len(self.bank)
        self._chosen: Tensor | None = None
        shards = sum(1 for _ in read_shards(path, verify=False))
        self._checksums = [read_checksum(Path(path), shard_name(index)) for index in range(shards)]

    @property
    def whole(self) -> FeatureBank | None:
        """All rows of the file as a bank, None for a subset."""
        if self._chosen is not None:
            return None
        return self.bank if self.labels is self.bank.labels else FeatureBank(self.bank.features)

    def subset(self, rows: NDArray[np.integer]) -> FeatureRows:
        """Return the given rows, in that order, as a new source; the features are not copied."""
        chosen = torch.from_numpy(rows.astype(np.int64))
        part = copy(self)
        part.rows = len(rows)
        part.labels = None if self.labels is None else self.labels[chosen]
        part._chosen = chosen if self._chosen is None else self._chosen[chosen]
        return part

    @property
    def fingerprint(self) -> str:
        """The sha256 of the checksums of the bank's files, the presence of labels, and the rows of a subset."""
        identity = ["features", *self._checksums, "no labels" if self.labels is None else "labels"]
        identity += [] if self._chosen is None else [hashlib.sha256(self._chosen.numpy().tobytes()).hexdigest()]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def read(self, rows: range) -> Tensor | tuple[Tensor, Tensor]:
        """Return the given rows of the bank."""
        where = slice(rows.start, rows.stop)
        x = self.bank.features[where if self._chosen is None else self._chosen[where]]
        return x if self.labels is None else (x, self.labels[where])


def linear_head(path: Path | str) -> nn.Linear:
    """Return the linear layer of ``read_head`` in evaluation mode, with the dtype of the stored weights."""
    head = read_head(path)
    classes, width = head.weight.shape
    # On "meta" no random weights are drawn, since they are replaced at once.
    layer = nn.Linear(width, classes, bias=head.bias is not None, device="meta")
    layer.weight = nn.Parameter(head.weight)
    if head.bias is not None:
        layer.bias = nn.Parameter(head.bias)
    return layer.eval()


def read_head(path: Path | str) -> Head:
    """Read a head from a safetensors file with ``weight`` ``(c, d)``, optional ``bias`` ``(c,)`` and nothing else."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}. Check the path.")
    with _reading(path):
        tensors = load_file(path)
    if "weight" not in tensors or tensors.keys() - {"weight", "bias"}:
        raise ValueError(
            f"{path} must hold the tensors 'weight' and optionally 'bias' of one linear layer; it holds "
            f"{listed([repr(name) for name in sorted(tensors)])}. Save the state dict of the last layer alone."
        )
    try:
        return Head(tensors["weight"], tensors.get("bias"))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error
