"""Image files on disk: find them, tell their classes, decode them."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ..core.errors import UnreadableImage

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
# Errors of the system that speak of the file: it is not there, is none, or (EINVAL) leads to a place outside of itself.
# All others pass - a full table of open files, a disk or a server that did not answer - and would come back otherwise.
_OF_THE_FILE = {None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}


def read_image(file: Path | str | BinaryIO, name: str | None = None) -> Image.Image:
    """Return the decoded image in a file.

    Args:
        file: A path or an open binary file.
        name: What to call it in an error message; the path unless given.

    Raises:
        UnreadableImage: It is not there, or no image, or only part of one, or so large that it may be meant to fill the
            memory.
        OSError: The system could not read it (no permission, too many open files, a failing disk), which says nothing
            about the image.
        MemoryError: Likewise.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                image.load()
                return image
    except MemoryError as error:
        raise MemoryError(f"{name or file} could not be read: there was no memory left. Try fewer workers.") from error
    except Exception as error:  # decoders raise all kinds on broken bytes: SyntaxError, struct.error, IndexError ...
        if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
            error.filename = error.filename or str(name or file)  # a read that fails does not know its file
            raise
        raise UnreadableImage(
            f"{name or file} could not be read as an image: {_reason(error)}. "
            "Open it in a viewer; replace or remove the file."
        ) from error


def _reason(error: Exception) -> str:
    """Return what is wrong with a file, without its name."""
    if isinstance(error, UnidentifiedImageError):
        return "it has the form of no known kind of image"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def find_images(root: Path) -> tuple[Path, ...]:
    """Return all image files below ``root`` in a fixed order, without hidden files and folders."""
    if not root.is_dir():
        came = "is a file" if root.exists() else "does not exist"
        raise NotADirectoryError(f"images are read from a folder, but {root} {came}. Check the path.")
    found = sorted(_walk(root, frozenset()), key=lambda path: path.relative_to(root).parts)
    if not found:
        raise ValueError(f"{root} holds no image: no file ends in {', '.join(sorted(EXTENSIONS))}. Check the path.")
    return tuple(found)


def class_labels(root: Path, paths: tuple[Path, ...]) -> tuple[tuple[str, ...], Tensor | None]:
    """Return the names of the class folders, sorted, and the class of each path; ``((), None)`` for a flat folder."""
    owners = [path.relative_to(root).parts[:-1][:1] for path in paths]
    if not any(owners):
        return (), None
    if not all(owners):
        loose = paths[owners.index(())]
        raise ValueError(
            f"{root} must hold either images or one sub-folder per class, but has both: {loose.name} lies beside class "
            "folders. Move it, or pass labels=False to read all images without labels."
        )
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    empty = sorted(set(classes) - {owner for (owner,) in owners})
    if empty:
        raise ValueError(
            f"every class folder of {root} must hold an image, but {empty[0]!r} has none. Remove it, fill it, or pass "
            "labels=False to read all images without labels."
        )
    index = {name: label for label, name in enumerate(classes)}
    return tuple(classes), torch.tensor([index[owner] for (owner,) in owners])


def _walk(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    here = folder.resolve()
    if here in above:  # a link that points back up: its images are already there
        return
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry, above | {here})
        elif entry.suffix.lower() in EXTENSIONS:
            yield entry
