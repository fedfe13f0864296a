"""Image files on disk: find them, label them by folder, decode them."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from ..errors import TooManyPixelsError, UnreadableImageError, brief

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})

# The formats of these extensions, whatever the file name: Pillow also has formats that start another program (EPS).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

# How files of these formats begin: a PPM as text (P1 to P3) or binary, a TIFF also as BigTIFF.
_STARTS = (b"BM", b"GIF87a", b"GIF89a", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_PPM = re.compile(rb"P[1-6][\s#]")
_WEBP = re.compile(rb"RIFF.{4}WEBP", re.DOTALL)

# Operating-system errors about the file itself: it does not exist, is not a file, or (EINVAL) an invalid seek.
# All others may be temporary: too many open files, a disk or a server that did not respond.
_FILE_ERRORS = {None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}

# Every scan of a JPEG may decode all of its pixels again, and takes only a few bytes. Ten scans are usual; libtiff
# reads at most 100.
MOST_SCANS, USUAL_SCANS = 100, 20
SCANNED_PIXELS = 10**9  # over all scans of an image with more than USUAL_SCANS: about two seconds

_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]", re.DOTALL)  # JPEG marker followed by a segment or the end
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9

_NO_FOLDER = {errno.ENOTDIR, errno.EBADF, errno.ELOOP}  # broken link

_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def read_image(
    file: Path | str | BinaryIO, name: str | None = None, most_pixels: int | None = None, draft: int | None = None
) -> Image.Image:
    """Decode an image file: a BMP, GIF, JPEG, PNG, PPM (PGM, PBM), TIFF or WEBP, whatever its name.

    Errors call it ``name``. Images of more than ``most_pixels`` pixels, or more than Pillow allows, and JPEG files with
    too many scans are not decoded: they may be built to exhaust memory or to take hours. An OSError is about the
    system (no permission), not about the image. A JPEG may be decoded at a half, a quarter or an eighth of its
    size, as long as its sides are at least twice ``draft``.
    """
    called = str(name or file)
    try:
        if isinstance(file, (str, Path)) and not stat.S_ISREG(os.stat(file).st_mode):
            raise ValueError("it is not a regular file")  # a pipe or a socket would block
        with Image.open(file, formats=FORMATS) as image:
            width, height = image.size
            most = min(filter(None, (most_pixels, Image.MAX_IMAGE_PIXELS)), default=None)
            if most is not None and width * height > most:
                raise TooManyPixelsError(
                    f"{called} could not be read as an image: it declares {width} x {height} pixels, more than the "
                    f"limit of {most}. Scale it down."
                )
            if isinstance(image, JpegImageFile):
                _check_scans(image, called)
            if draft is not None:
                image.draft(None, (2 * draft, 2 * draft))
            image.load()
            return image
    except TooManyPixelsError:
        raise
    except MemoryError as error:
        raise MemoryError(f"{called} could not be read: out of memory. Use fewer workers.") from error
    except Exception as error:  # decoders raise all kinds on broken bytes: SyntaxError, struct.error, IndexError ...
        if isinstance(error, OSError) and error.errno not in _FILE_ERRORS:
            error.filename = error.filename or called  # a read that fails does not know its file
            raise
        kind = TooManyPixelsError if isinstance(error, _TOO_LARGE) else UnreadableImageError
        reason = getattr(error, "strerror", None) or brief(error)
        if isinstance(error, UnidentifiedImageError):
            reason = "unknown image format"
        raise kind(
            f"{called} could not be read as an image: {reason}. Open it in a viewer; replace or remove the file."
        ) from error


def is_image(content: bytes) -> bool:
    """Return whether bytes begin like an image of one of ``FORMATS``.

    Example:
        >>> is_image(b"P5 2 2 255 1234"), is_image(b"P500")
        (True, False)
    """
    return content.startswith(_STARTS) or any(start.match(content) is not None for start in (_PPM, _WEBP))


def _check_scans(image: JpegImageFile, called: str) -> None:
    file = image.fp
    assert file is not None
    place = file.tell()
    file.seek(0)
    scans = count_scans(file.read())
    file.seek(place)
    most = max(USUAL_SCANS, min(MOST_SCANS, SCANNED_PIXELS // (image.width * image.height)))
    if scans > most:
        raise TooManyPixelsError(
            f"{called} could not be read as an image: it is a JPEG of {scans} scans, and the limit for "
            f"{image.width} x {image.height} pixels is {most}. Save it again."
        )


def count_scans(content: bytes) -> int:
    """Count the scans of a JPEG; if they may be too many, ignore those of embedded and trailing images."""
    if (most := content.count(bytes([0xFF, _START_OF_SCAN]))) <= USUAL_SCANS:  # much faster
        return most
    scans, place = 0, 2
    while found := _MARKER.search(content, place):
        kind, place = found[0][-1], found.end()
        if kind == _END_OF_IMAGE:
            break
        scans += kind == _START_OF_SCAN
        place += int.from_bytes(content[place : place + 2], "big")
    return scans


def find_images(root: Path) -> tuple[str, ...]:
    """Return the paths of all image files below ``root`` except hidden ones, sorted by their parts.

    They are strings relative to ``root``, with ``/`` between their parts: a ``Path`` takes five times the memory.
    """
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise NotADirectoryError(f"the root of the images must be a folder, but {root} {problem}. Check the path.")
    paths = tuple(_walk(str(root), "", frozenset()))
    if not paths:
        raise ValueError(f"{root} holds no image: no file ends in {', '.join(sorted(EXTENSIONS))}. Check the path.")
    return paths


def holds_images(root: Path) -> bool:
    """Return whether ``find_images`` would find an image; the search stops at the first one."""
    return any(True for _ in _walk(str(root), "", frozenset()))


def class_labels(root: Path, paths: tuple[str, ...]) -> tuple[tuple[str, ...], Tensor | None]:
    """Return the names of the class folders, sorted, and the class of each path; ``((), None)`` for a flat folder."""
    loose = next((path for path in paths if "/" not in path), None)
    if loose is not None and not any("/" in path for path in paths):
        return (), None
    if loose is not None:
        raise ValueError(
            f"{root} must hold either images or one sub-folder per class, but has both: {loose} is not in a class "
            "folder. Move it, or pass labels=False to read all images without labels."
        )
    with os.scandir(root) as entries:
        classes = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))
    empty = sorted(set(classes) - {path.partition("/")[0] for path in paths})
    if empty:
        raise ValueError(
            f"every class folder of {root} must hold an image, but {empty[0]!r} has none. Remove it, fill it, or pass "
            "labels=False to read all images without labels."
        )
    index = {name: label for label, name in enumerate(classes)}
    return tuple(classes), torch.tensor([index[path.partition("/")[0]] for path in paths])


def _walk(folder: str, inside: str, above: frozenset[str]) -> Iterator[str]:
    """Yield the images below a folder, prefixed with ``inside`` and sorted folder by folder."""
    here = os.path.realpath(folder)
    if here in above:  # a link to a parent folder, whose images are already included
        return
    names, folders = [], set()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                folders.add(entry.name)
            elif os.path.splitext(entry.name)[1].lower() not in EXTENSIONS:
                continue
            names.append(entry.name)
    for name in sorted(names):
        if name in folders:
            yield from _walk(os.path.join(folder, name), f"{inside}{name}/", above | {here})
        else:
            yield inside + name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        return False
