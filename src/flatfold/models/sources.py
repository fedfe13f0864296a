"""A data set that can give any of its batches again without reading the others."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..core.validation import UnreadableImage
from .transform import Transform


class Source(ABC):
    """Batches on a fixed grid: batch i holds the rows from ``i * batch_size`` on.

    ``extract`` takes any iterable of batches. From a source it also takes the identity of the data, and after an
    interruption it does not even read the rows that are already there.

    Args:
        batch_size: Rows in a batch; the last may be shorter.
    """

    labels: Tensor | None = None

    def __init__(self, batch_size: int) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a positive whole number, got {batch_size!r}. 64 is customary.")
        self.batch_size = batch_size

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of inputs."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A sha256 that changes whenever the inputs or their preparation do; the batch size is no part of it."""

    @abstractmethod
    def read(self, rows: range) -> Any:
        """Return the batch that holds these rows."""

    def attempt(self, rows: range) -> tuple[Any, dict[int, str]]:
        """Return the batch of those rows that can be read, None if there are none, and why not the others."""
        return self.read(rows), {}

    def batch_ranges(self, ranges: Iterable[range]) -> list[range]:
        """Return the rows of each batch that holds a row of ``ranges``, in order."""
        size = self.batch_size
        numbers = {i for rows in ranges if rows for i in range(rows[0] // size, rows[-1] // size + 1)}
        return [range(i * size, min(i * size + size, self.rows)) for i in sorted(numbers)]

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        return (self.read(rows) for rows in self.batch_ranges([range(self.rows)]))


class ImageSource(Source):
    """Images prepared by one transform, each with a label or all without.

    Iterating gives ``x`` of shape ``(n, c, h, w)``, or pairs ``(x, y)`` when there are labels.
    """

    def __init__(self, transform: Transform, batch_size: int) -> None:
        super().__init__(batch_size)
        self.transform = transform

    @abstractmethod
    def name(self, row: int) -> str:
        """Return what a table calls an image, without reading it."""

    @abstractmethod
    def picture(self, row: int) -> tuple[str, Image.Image | NDArray[np.uint8]]:
        """Return what an error calls one image, and its pixels."""

    @abstractmethod
    def identify(self, digest: hashlib._Hash) -> None:
        """Feed what tells these images from others into ``digest``."""

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the transform, the images and their labels."""
        digest = hashlib.sha256(json.dumps(self.transform.as_dict(), sort_keys=True).encode())
        self.identify(digest)
        digest.update(b"no labels" if self.labels is None else self.labels.numpy().tobytes())
        return digest.hexdigest()

    def read(self, rows: range) -> Tensor | tuple[Tensor, Tensor]:
        """Decode and prepare some images; raise `UnreadableImage` if one of them is broken."""
        batch, unreadable = self.attempt(rows)
        for reason in unreadable.values():
            raise UnreadableImage(reason)
        assert batch is not None
        return batch

    def attempt(self, rows: range) -> tuple[Tensor | tuple[Tensor, Tensor] | None, dict[int, str]]:
        """Decode and prepare those of some images that are sound, and say what is wrong with the others.

        Sound is what can be decoded, what the transform takes, and what then has the size of most of these images.
        """
        prepared, unreadable = {}, {}
        for row in rows:
            try:
                prepared[row] = self._prepared(row)
            except UnreadableImage as error:
                unreadable[row] = str(error)
        unreadable |= _odd_sizes(prepared)
        kept = {row: tensor for row, (_, tensor) in prepared.items() if row not in unreadable}
        return (self._stacked(kept) if kept else None), dict(sorted(unreadable.items()))

    def _stacked(self, prepared: dict[int, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        x = torch.stack(list(prepared.values()))
        return x if self.labels is None else (x, self.labels[list(prepared)])

    def _prepared(self, row: int) -> tuple[str, Tensor]:
        name, pixels = self.picture(row)
        try:
            return name, self.transform(pixels)
        except ValueError as error:  # too small for the crop, or 16 bits: it may be this image alone
            raise UnreadableImage(f"{name}: {error}") from error


def _odd_sizes(prepared: dict[int, tuple[str, Tensor]]) -> dict[int, str]:
    """Say of each image of a batch that has another size than most why it cannot be in it."""
    sizes = {row: tuple(tensor.shape[1:]) for row, (_, tensor) in prepared.items()}
    count = Counter(sizes.values())
    usual = max(sizes, key=lambda row: count[sizes[row]], default=None)  # the first of those that are most frequent
    return {
        row: f"the images of a batch must have one size, got (h, w) = {sizes[usual]} for {prepared[usual][0]} and "
        f"{size} for {prepared[row][0]}. Give the transform a resize and a crop."
        for row, size in sizes.items()
        if usual is not None and size != sizes[usual]
    }


# Some images of a data set as a data set of their own.


class ImageSubset(ImageSource):
    """Some rows of another source, with its transform, its batch size and, if it has any, its labels.

    The fingerprint holds that of the whole source and the rows: when only an image that was left out changes, the
    picked images still count as changed.

    Args:
        source: Where the images come from.
        rows: Numbers of rows of the source, ``(n,)`` with n > 0, in the order in which they are wanted.
    """

    def __init__(self, source: ImageSource, rows: NDArray[np.integer]) -> None:
        super().__init__(source.transform, source.batch_size)
        check_rows(rows, source.rows)
        self.source = source
        self.picked = rows.astype(np.int64)
        self.labels = None if source.labels is None else source.labels[torch.from_numpy(self.picked)]

    @property
    def rows(self) -> int:
        """Number of images."""
        return len(self.picked)

    def name(self, row: int) -> str:
        """Return what the source calls an image."""
        return self.source.name(int(self.picked[row]))

    def picture(self, row: int) -> tuple[str, Image.Image | NDArray[np.uint8]]:
        """Return what an error of the source calls an image, and its pixels."""
        return self.source.picture(int(self.picked[row]))

    def identify(self, digest: hashlib._Hash) -> None:
        """Feed the fingerprint of the source and the rows."""
        digest.update(self.source.fingerprint.encode())
        digest.update(self.picked.astype("<i8").tobytes())


def check_rows(picked: NDArray[np.integer], available: int) -> None:
    """Raise unless these are rows of a source that has ``available`` of them."""
    if not np.issubdtype(picked.dtype, np.integer) or picked.ndim != 1 or len(picked) == 0:
        raise ValueError(
            f"picked rows must be whole numbers of shape (n,) with n > 0, got {picked.dtype} of shape {picked.shape}. "
            "Turn a mask with numpy.flatnonzero."
        )
    if picked.min() < 0 or picked.max() >= available:
        raise ValueError(
            f"picked rows must lie between 0 and {available - 1}, got {picked.min()} to {picked.max()}. "
            "Count them in the source that they are picked from."
        )
