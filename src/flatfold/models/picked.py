"""Some images of a data set as a data set of their own."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from .sources import ImageSource


class PickedImages(ImageSource):
    """Some rows of another source, with its transform, its batch size and, if it has any, its labels.

    The fingerprint holds that of the whole source and the rows: when only an image that was left out changes, the
    picked images still count as changed.

    Args:
        source: Where the images come from.
        rows: Numbers of rows of the source, ``(n,)`` with n > 0, in the order in which they are wanted.
    """

    def __init__(self, source: ImageSource, rows: NDArray[np.integer]) -> None:
        super().__init__(source.transform, source.batch_size)
        check_picked(rows, source.rows)
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


def check_picked(picked: NDArray[np.integer], available: int) -> None:
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
