"""Masks in files: the class of every pixel of an image."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import UnreadableImageError
from .decoding import read_image
from .fingerprint import file_statuses, hash_files
from .images import ImageFiles, PathImages
from .sources import ImageSource

PNG = b"\x89PNG\r\n\x1a\n"
GREY, PALETTE = 0, 3  # types of PNG files in which a pixel is one number
COLOURS = {2: "RGB", 4: "grey with alpha", 6: "RGBA"}


class MaskedImages(ImageSource):
    """Image files with a mask each, as batches ``(x, y)`` of images ``(n, c, h, w)`` and masks ``(n, h, w)``.

    The mask of ``street/1.jpg`` is ``street/1.png`` in the folder of the masks: a grey PNG of 8 or 16 bits or one with
    a palette, of the size of the image, whose values are class indices. It is resized and cropped like the image, with
    the nearest class of each pixel. A mask that cannot be used counts as an unreadable image.

    Args:
        source: The images, from a folder, a list or paths. Of paths alone, masks have the name of the file.
        masks: The folder of the masks.
        paths: The mask of each image, relative to ``masks``, where it has another path.

    Raises:
        NotADirectoryError: ``masks`` is not a folder.
        FileNotFoundError: An image has no mask.
        ValueError: Two images would have one mask, or images are decoded at a reduced size.
    """

    masked = True

    def __init__(self, source: ImageFiles, masks: Path | str, paths: Sequence[str] | None = None) -> None:
        super().__init__(source.transform, source.batch_size)
        self.source, self.rows, self.masks = source, source.rows, Path(masks)
        if source.transform.draft:
            raise ValueError(
                "masks belong to the pixels of a file, but the transform decodes large files at a reduced size. Leave "
                "out draft=True."
            )
        if not self.masks.is_dir():
            problem = "is a file" if self.masks.exists() else "does not exist"
            raise NotADirectoryError(f"masks must be a folder, but {self.masks} {problem}. Check the path.")
        if not isinstance(source, PathImages) and self.masks.resolve() == source.root.resolve():
            raise ValueError(f"masks must be in a folder of their own, but {masks} is that of the images. Move them.")
        self.paths = mask_paths(source) if paths is None else tuple(paths)
        missing = [row for row, (_, status) in enumerate(file_statuses(self.masks, self.paths)) if status is None]
        if missing:
            few = "an image has" if len(missing) == 1 else f"{len(missing):,} of {self.rows:,} images have"
            raise FileNotFoundError(
                f"{few} no mask: there is no {self.masks / self.paths[missing[0]]} for {source.name(missing[0])}. A "
                "mask has the path of its image below the folder of the masks, and ends in .png."
            )

    def name(self, row: int) -> str:
        """Return the path of one image."""
        return self.source.name(row)

    def picture(self, row: int) -> tuple[str, Image.Image]:
        """Return the name and the decoded image of one file."""
        return self.source.picture(row)

    def mask(self, row: int, picture: Image.Image | NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the class of each pixel of an image, resized and cropped like it."""
        assert isinstance(picture, Image.Image)
        place = self.masks / self.paths[row]
        mask = read_mask(place)
        if mask.shape[::-1] != picture.size:
            (width, height), (high, wide) = picture.size, mask.shape
            raise ValueError(
                f"the mask {place} must have the size of its image, {width} x {height}, got {wide} x {high}. Resize it "
                "with nearest neighbour."
            )
        return self.transform.place_mask(mask)

    def _identify(self, digest: hashlib._Hash) -> None:
        digest.update(self.source.fingerprint.encode())
        hash_files(digest, self.masks, self.paths)


def with_masks(batches: Any, masks: Path | str) -> ImageSource:
    """Return images with their masks; a source that has masks already is returned as it is."""
    if isinstance(batches, ImageSource) and batches.masked:
        return batches
    if not isinstance(batches, ImageFiles):
        raise TypeError(
            f"masks are found by the paths of images in files: a folder, a list or paths, got "
            f"{type(batches).__name__}. Give other data with its masks, as batches (x, y)."
        )
    return MaskedImages(batches, masks)


def mask_paths(source: ImageFiles) -> tuple[str, ...]:
    """Return the path of the mask of each image, relative to the folder of the masks."""
    places = tuple(map(os.path.basename, source.paths)) if isinstance(source, PathImages) else source.paths
    if outside := [place for place in places if Path(place).anchor or ".." in Path(place).parts]:
        raise ValueError(
            f"the paths of images must be relative, without '..', so that masks can have the same ones, got "
            f"{outside[0]!r}. Write the list relative to a folder that holds all images, and pass it as root=."
        )
    images = dict[str, str]()
    for path, place in zip(source.paths, places, strict=True):
        mask = os.path.splitext(place)[0] + ".png"
        if images.setdefault(mask, path) != path:
            raise ValueError(f"{images[mask]} and {path} would have the same mask, {mask}. Rename one of them.")
    return tuple(os.path.splitext(place)[0] + ".png" for place in places)


def read_mask(path: Path | str) -> NDArray[np.int32]:
    """Return the class indices ``(h, w)`` of a PNG file: its grey values, or the indices of its palette."""
    try:
        with open(path, "rb") as file:
            head = file.read(26)
    except OSError as error:
        raise UnreadableImageError(f"{path} could not be read as a mask: {error.strerror}.") from error
    if not head.startswith(PNG) or len(head) < 26:
        raise UnreadableImageError(f"{path} could not be read as a mask: it is no PNG file. Save it as one.")
    bits, kind = head[24], head[25]
    if kind not in (GREY, PALETTE):
        raise UnreadableImageError(
            f"a mask must hold class indices, as grey values or with a palette, but {path} is "
            f"{COLOURS.get(kind, 'of an unknown kind')}. Replace its colours by the numbers of classes."
        )
    values = np.asarray(read_image(path)).astype(np.int32)
    if kind == GREY and 1 < bits < 8:  # Pillow scales these to 255
        values //= 255 // (2**bits - 1)
    return values
