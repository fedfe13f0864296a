"""Images from folders, ``.npz`` files and arrays, as batches that can be read again from any row."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..core.check import check_labels
from .folders import class_labels, find_images, read_image
from .samples import feed_files
from .sources import ImageSource
from .transform import Transform

__all__ = ["ArrayImages", "FolderImages", "NpzImages", "Transform", "read_image"]


class FolderImages(ImageSource):
    """The images of a folder, searched recursively, in a fixed order; hidden files are left out.

    The fingerprint holds paths, sizes and times of change, and bytes of some twenty files, not all pixels: a bank of
    files that were touched or copied is not taken for theirs.

    Args:
        root: A folder with one sub-folder per class (sorted names give labels 0, 1, ...), or with images and no labels.
        transform: Applied to every image.
        batch_size: Images in a batch.
        labels: False to take sub-folders as they come and give no labels.

    Attributes:
        paths: The files, one per row, relative to ``root`` and with ``/`` between their parts.
        classes: Names of the class folders, empty without labels.
    """

    def __init__(self, root: Path | str, transform: Transform, batch_size: int = 64, labels: bool = True) -> None:
        super().__init__(transform, batch_size)
        self.root = Path(root)
        self.paths = find_images(self.root)
        self.classes, self.labels = class_labels(self.root, self.paths) if labels else ((), None)

    @property
    def rows(self) -> int:
        """Number of images."""
        return len(self.paths)

    def name(self, row: int) -> str:
        """Return the path of one file, from ``root`` on."""
        return str(self.root / self.paths[row])

    def picture(self, row: int) -> tuple[str, Image.Image]:
        """Return the name and the decoded image of one file."""
        name = self.name(row)
        return name, read_image(name)

    def identify(self, digest: hashlib._Hash) -> None:
        """Feed relative paths, sizes and times of change, and some bytes."""
        feed_files(digest, self.root, self.paths)


class _Pixels(ImageSource):
    """Images that are already decoded; the finals below only differ in where the arrays come from."""

    def __init__(self, x: NDArray[np.uint8], y: NDArray[np.integer] | None, transform: Transform, size: int) -> None:
        super().__init__(transform, size)
        if x.dtype != np.uint8 or x.ndim not in (3, 4) or x.shape[3:] not in ((), (3,)) or len(x) == 0:
            raise ValueError(
                f"images must be a uint8 array of shape (n, h, w) or (n, h, w, 3) with n > 0, got {x.dtype} of shape "
                f"{x.shape}. Bring the channels last and the values to 0..255."
            )
        self.x = x
        self.labels = None if y is None else _class_indices(y, len(x))

    @property
    def rows(self) -> int:
        """Number of images."""
        return len(self.x)

    def name(self, row: int) -> str:
        """Return the number of one image."""
        return f"image {range(self.rows)[row]}"

    def picture(self, row: int) -> tuple[str, NDArray[np.uint8]]:
        """Return the number and the pixels of one image."""
        return f"image {row}", self.x[row]

    def identify(self, digest: hashlib._Hash) -> None:
        """Feed the shape and all pixels."""
        digest.update(str(self.x.shape).encode())
        digest.update(np.ascontiguousarray(self.x).data)


class ArrayImages(_Pixels):
    """Images in an array.

    Args:
        x: uint8, ``(n, h, w, 3)`` or ``(n, h, w)``.
        y: Integer labels ``(n,)``, or None.
        transform: Applied to every image.
        batch_size: Images in a batch.
    """

    def __init__(
        self, x: NDArray[np.uint8], y: NDArray[np.integer] | None, transform: Transform, batch_size: int = 64
    ) -> None:
        super().__init__(x, y, transform, batch_size)


class NpzImages(_Pixels):
    """Images in a ``.npz`` file, read without pickle.

    Args:
        path: The file.
        transform: Applied to every image.
        batch_size: Images in a batch.
        x: Name of the images in the file, uint8, ``(n, h, w, 3)`` or ``(n, h, w)``.
        y: Name of the labels ``(n,)`` in the file, or None for no labels.
    """

    def __init__(
        self, path: Path | str, transform: Transform, batch_size: int = 64, x: str = "x", y: str | None = "y"
    ) -> None:
        arrays = _read_npz(Path(path), [x] if y is None else [x, y])
        super().__init__(arrays[x], None if y is None else arrays[y], transform, batch_size)
        self.path = Path(path)

    def name(self, row: int) -> str:
        """Return the file and the number of one image, ``photos.npz:7``."""
        return f"{self.path}:{range(self.rows)[row]}"


def _read_npz(path: Path, names: list[str]) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in names if name not in arrays]
            if not missing:
                return {name: arrays[name] for name in names}
            present = ", ".join(map(repr, arrays)) or "nothing"
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}. Check the path.") from None
    except (BadZipFile, EOFError, OSError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} must be a .npz file of plain arrays: {error}. Write it with numpy.savez.") from error
    labels = " and y='...' (or y=None) for the labels" if len(names) > 1 else ""
    raise ValueError(f"{path} has no array {missing[0]!r}; it has {present}. Pass x='...' for the images{labels}.")


def _class_indices(y: NDArray[np.integer], rows: int) -> Tensor:
    if not np.issubdtype(y.dtype, np.integer):
        raise TypeError(f"labels must be integer class indices, got {y.dtype}. Convert them, or pass y=None.")
    labels = torch.from_numpy(y.astype(np.int64))
    check_labels(labels, rows)
    return labels
