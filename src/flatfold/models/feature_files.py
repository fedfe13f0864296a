"""Features in files of other programs, a few rows at a time: safetensors, ``.npy``, ``.npz``, and banks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.bank import FeatureBank
from ..core.check import check_finite
from .feature_arrays import Array, in_bank, in_npy, in_npz, in_safetensors
from .manifest import DTYPES

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
