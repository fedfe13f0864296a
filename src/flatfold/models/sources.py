"""A data set that can give any of its batches again without reading the others."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from .transform import Transform


class Source(ABC):
    """Batches on a fixed grid: batch i holds the rows from ``i * batch_size`` on.

    ``extract`` takes any iterable of batches. From a source it also takes the identity of the data, and after an
    interruption it does not even read the rows that are already there.

    Args:
        batch_size: Rows in a batch; the last may be shorter.
    """

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

    def touched(self, ranges: Iterable[range]) -> list[range]:
        """Return the rows of each batch that holds a row of ``ranges``, in order."""
        size = self.batch_size
        numbers = {i for rows in ranges if rows for i in range(rows[0] // size, rows[-1] // size + 1)}
        return [range(i * size, min(i * size + size, self.rows)) for i in sorted(numbers)]

    def touching(self, ranges: Iterable[range]) -> Iterator[tuple[int, Any]]:
        """Yield each batch that holds a row of ``ranges``, with the number of its first row, in order."""
        return ((rows.start, self.read(rows)) for rows in self.touched(ranges))

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        return (batch for _, batch in self.touching([range(self.rows)]))


class ImageSource(Source):
    """Images prepared by one transform, each with a label or all without.

    Iterating gives ``x`` of shape ``(n, c, h, w)``, or pairs ``(x, y)`` when there are labels.
    """

    labels: Tensor | None

    def __init__(self, transform: Transform, batch_size: int) -> None:
        super().__init__(batch_size)
        self.transform = transform

    @abstractmethod
    def picture(self, row: int) -> tuple[str, Image.Image | NDArray[np.uint8]]:
        """Return the name and the pixels of one image."""

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
        """Decode and prepare some images."""
        tensors = [self._prepared(row) for row in rows]
        sizes = sorted({tuple(tensor.shape[1:]) for tensor in tensors})
        if len(sizes) > 1:
            raise ValueError(
                f"the images of a batch must have one size, got (h, w) = {sizes[0]} and {sizes[1]}. "
                "Give the transform a resize and a crop."
            )
        x = torch.stack(tensors)
        return x if self.labels is None else (x, self.labels[rows.start : rows.stop])

    def _prepared(self, row: int) -> Tensor:
        name, pixels = self.picture(row)
        try:
            return self.transform(pixels)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
