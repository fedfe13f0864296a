"""Image sources: folders, lists, ``.npz`` files, parquet tables and arrays, and a function that opens any of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import UnreadableImageError
from .decoding import EXTENSIONS, class_labels, find_images, holds_images, read_image
from .fingerprint import file_statuses, hash_files
from .labels import class_indices
from .sources import ImageSource
from .tables import NULL, ParquetColumn, parquet_files
from .transform import Transform

__all__ = [
    "ArrayImages",
    "FolderImages",
    "ListImages",
    "NpzImages",
    "PathImages",
    "Pictures",
    "TableImages",
    "Transform",
    "open_images",
    "read_image",
]

LISTS = (".txt", ".lst", ".list")
OPENED = (OSError, SyntaxError, ValueError)  # what Pillow raises for a broken image that is decoded late
FILES = (".parquet", ".npz", *LISTS)
SHOWN = 80  # characters of a line in a message

_LABEL = re.compile(r"\s*-?[0-9]{1,18}\s*")  # almost the range of int64
_ADVICE = "Pass image='...' for the images and label='...' (or label=None) for the labels."
_SUSPECT = re.compile(r"^[/\\]|\.\.|:")  # only these paths need to be parsed


def open_images(
    place: Path | str,
    transform: Transform,
    batch_size: int = 64,
    *,
    labels: bool | str,
    kind: str | None = None,
    root: Path | str | None = None,
    images: str | None = None,
) -> ImageSource:
    """Open an image, a folder, a table, an ``.npz`` file or a list; ``kind`` is inferred from ``place`` by default.

    The paths of a list are relative to ``root``, by default its own folder. ``labels`` may name their column or array;
    False ignores all labels. ``images`` names the column or array of the images.
    """
    place = Path(place)
    kind = image_kind(place) if kind is None else kind
    if root is not None and kind != "list":
        raise ValueError(f"root= applies to lists of paths, but {place} is not a list. Leave it out.")
    if kind == "folder":
        return FolderImages(place, transform, batch_size, bool(labels))
    if kind == "list":
        return ListImages(place, root, transform, batch_size, bool(labels))
    if kind == "image":
        return PathImages([place], transform, batch_size)
    columns = {"npz": ("x", "y"), "table": ("image", "label")}[kind]
    names = images or columns[0], labels if isinstance(labels, str) else columns[1] if labels else None
    return (NpzImages if kind == "npz" else TableImages)(place, transform, batch_size, *names)


def image_kind(place: Path) -> str:
    """Return the kind of images at a path: ``"folder"``, ``"table"``, ``"npz"``, ``"list"`` or ``"image"``."""
    if not os.path.exists(place):  # Path.exists would raise for a name that is too long
        raise FileNotFoundError(f"no images at {place}: it does not exist. Check the path.")
    if place.is_dir():
        tables = parquet_files(place)
        if tables and holds_images(place):
            raise ValueError(
                f"{place} must hold either images or parquet files, but has both: {tables[0].name} is among images. "
                "Pass the parquet file itself, or move either to a folder of its own."
            )
        return "table" if tables else "folder"
    suffix = place.suffix.lower()
    if suffix in EXTENSIONS:
        return "image"
    if suffix not in FILES:
        raise ValueError(
            f"images must be in a folder or in a file that ends in {', '.join(FILES)} (the last three for lists of "
            f"paths), got {place}. Pass the folder of the images, or a list of their paths."
        )
    return "table" if suffix == ".parquet" else "npz" if suffix == ".npz" else "list"


class ImageFiles(ImageSource):
    """Image files below a folder ``root``, at ``paths`` relative to it."""

    root: Path
    paths: tuple[str, ...]

    def name(self, row: int) -> str:
        """Return the path of one file, including ``root``."""
        return str(self.root / self.paths[row])

    def picture(self, row: int) -> tuple[str, Image.Image]:
        """Return the name and the decoded image of one file."""
        name = self.name(row)
        return name, read_image(name, draft=self.transform.draft_size)

    def _identify(self, digest: hashlib._Hash) -> None:
        hash_files(digest, self.root, self.paths)


class PathImages(ImageFiles):
    """Image files at some paths, in their order, as batches of inputs.

    Args:
        paths: The files; an image may occur more than once.
        transform: Applied to every image.
        batch_size: Images in a batch.
        labels: ``(n,)`` class indices, or None.
    """

    def __init__(
        self, paths: Sequence[Path | str], transform: Transform, batch_size: int = 64, labels: Tensor | None = None
    ) -> None:
        super().__init__(transform, batch_size)
        self.root, self.paths, self.rows, self.labels = Path(), tuple(map(str, paths)), len(paths), labels


class Pictures(ImageSource):
    """Images in memory: PIL images and uint8 arrays ``(h, w)`` or ``(h, w, 3)`` of any sizes.

    Args:
        images: The images. A PIL image that was opened from a file has the name of the file.
        transform: Applied to every image.
        batch_size: Images in a batch.
        labels: ``(n,)`` class indices, or None.
    """

    def __init__(
        self,
        images: Sequence[Image.Image | NDArray[np.uint8]],
        transform: Transform,
        batch_size: int = 64,
        labels: Tensor | None = None,
    ) -> None:
        super().__init__(transform, batch_size)
        self._images, self.rows, self.labels = images, len(images), labels

    def name(self, row: int) -> str:
        """Return the file of one image, or else its number."""
        return getattr(self._images[row], "filename", "") or f"image {range(self.rows)[row]}"

    def picture(self, row: int) -> tuple[str, Image.Image | NDArray[np.uint8]]:
        """Return the name and the pixels of one image."""
        name, image = self.name(row), self._images[row]
        try:
            if isinstance(image, Image.Image):
                image.load()
        except OPENED as error:
            raise UnreadableImageError(
                f"{name} could not be read as an image: {error}. Open the file again."
            ) from error
        return name, image

    def _identify(self, digest: hashlib._Hash) -> None:
        for row in range(self.rows):
            pixels = np.asarray(self.picture(row)[1])
            digest.update(f"{pixels.shape} {getattr(self._images[row], 'mode', '')}".encode() + pixels.tobytes())


class FolderImages(ImageFiles):
    """The images of a folder, searched recursively, in a fixed order; hidden files are ignored.

    The fingerprint covers paths, sizes and modification times, and bytes of some twenty files, not all pixels: it
    changes if files are touched or copied.

    Args:
        root: A folder with one sub-folder per class (sorted names give labels 0, 1, ...), or with images and no labels.
        transform: Applied to every image.
        batch_size: Images in a batch.
        labels: False to ignore sub-folders and yield no labels.

    Attributes:
        paths: The files, one per row, relative to ``root`` and with ``/`` between their parts.
        classes: Names of the class folders, empty without labels.
    """

    def __init__(self, root: Path | str, transform: Transform, batch_size: int = 64, labels: bool = True) -> None:
        super().__init__(transform, batch_size)
        self.root = Path(root)
        self.paths = find_images(self.root)
        self.rows = len(self.paths)
        self.classes, self.labels = class_labels(self.root, self.paths) if labels else ((), None)


class ListImages(ImageFiles):
    """The images of a list of paths, in its order; an image may occur more than once.

    A line is ``<relative path> <integer>``, split at the first space; blank lines are skipped. The integer is the
    class, and -1 marks an image without a class. With ``labels=False`` a line may also be a path alone: the whole line,
    without trailing blanks, if the text after the first space is not an integer. No image is opened
    before it is read, so a list may contain paths that do not exist: ``missing`` returns them.

    The fingerprint covers paths, sizes and modification times, and bytes of some twenty files, as that of
    ``FolderImages`` does; an image that does not exist has neither size nor time.

    Args:
        path: The list, in UTF-8.
        root: The folder that the paths are relative to; no path may leave it. With None they are relative to the folder
            of the list, may lead anywhere, and may be absolute.
        transform: Applied to every image.
        batch_size: Images in a batch.
        labels: False to ignore the numbers and yield no labels. True needs a class, 0 or more, on every line.

    Attributes:
        root: The folder that the paths are relative to.
        paths: The paths as written in the list, one per row.

    Raises:
        FileNotFoundError: The list does not exist.
        NotADirectoryError: ``root`` is not a folder.
        ValueError: A line is malformed, or the list is empty; the message names the list and the line.
    """

    def __init__(
        self, path: Path | str, root: Path | str | None, transform: Transform, batch_size: int = 64, labels: bool = True
    ) -> None:
        super().__init__(transform, batch_size)
        self.root = Path(path).parent if root is None else Path(root)
        if root is not None and not self.root.is_dir():
            problem = "is a file" if self.root.exists() else "does not exist"
            raise NotADirectoryError(f"root must be a folder, but {root} {problem}. Check the path.")
        self.paths, classes = _parse_list(Path(path), labels, inside=root is not None)
        self.rows = len(self.paths)
        self.labels = torch.tensor(classes) if labels else None

    def missing(self) -> list[str]:
        """Return the paths of the list that do not exist, in its order."""
        return [path for path, status in file_statuses(self.root, self.paths) if status is None]


def _parse_list(path: Path, labelled: bool, inside: bool) -> tuple[tuple[str, ...], list[int]]:
    """Return the path and, if ``labelled``, the class of every line."""
    paths, numbers = [], []
    for place, line in _lines(path):
        name, _, rest = line.partition(" ")
        numbered = _LABEL.fullmatch(rest) is not None
        if not labelled and not numbered:
            name = line.rstrip()
        elif not name or not numbered:
            raise ValueError(
                f"{path}:{place}: a line must be '<relative path> <integer>', split at the first space, got "
                f"{line[:SHOWN]!r}. Rename images that have a space in their path."
            )
        if inside and _SUSPECT.search(name) and (Path(name).anchor or ".." in Path(name).parts):
            raise ValueError(
                f"{path}:{place}: a path must be relative to root, without '..', got {name[:SHOWN]!r}. "
                "Write it relative to root, or choose a parent folder as root."
            )
        paths.append(name)
        if labelled and int(rest) < 0:
            raise ValueError(
                f"{path}:{place}: labels must be class indices from 0, got {int(rest)}, which marks an image of no "
                "class. Pass labels=False to read the images without labels."
            )
        numbers += [int(rest)] if labelled else []
    if not paths:
        raise ValueError(f"{path} must name at least one image, but all of its lines are blank. Check the path.")
    return tuple(paths), numbers


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines with their line numbers, counted from 1."""
    if not path.is_file():
        raise FileNotFoundError(f"no list of images at {path}. Check the path.")
    try:
        with path.open(encoding="utf-8-sig") as file:
            for place, line in enumerate(file, 1):
                if not line.isspace():
                    yield place, line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, but is not: {error}. Save it in that encoding.") from error


class _Pixels(ImageSource):
    """Images that are already decoded."""

    def __init__(self, x: NDArray[np.uint8], y: Any, transform: Transform, batch_size: int = 64) -> None:
        super().__init__(transform, batch_size)
        if x.dtype != np.uint8 or x.ndim not in (3, 4) or x.shape[3:] not in ((), (3,)) or len(x) == 0:
            raise ValueError(
                f"images must be a uint8 array of shape (n, h, w) or (n, h, w, 3) with n > 0, got {x.dtype} of shape "
                f"{x.shape}. Move the channels last and scale the values to 0..255."
            )
        self.x, self.rows = x, len(x)
        if y is not None:
            self.labels, self.label_classes = class_indices(y, len(x))

    def name(self, row: int) -> str:
        """Return the number of one image."""
        return f"image {range(self.rows)[row]}"

    def picture(self, row: int) -> tuple[str, NDArray[np.uint8]]:
        """Return the number and the pixels of one image."""
        return f"image {row}", self.x[row]

    def _identify(self, digest: hashlib._Hash) -> None:
        digest.update(str(self.x.shape).encode())
        digest.update(np.ascontiguousarray(self.x).data)


class ArrayImages(_Pixels):
    """Images in a uint8 array ``(n, h, w, 3)`` or ``(n, h, w)``, with integer labels ``(n,)`` or none."""


class NpzImages(_Pixels):
    """Images in a ``.npz`` file, read without pickle.

    Args:
        path: The file.
        transform: Applied to every image.
        batch_size: Images in a batch.
        x: Name of the array of images, uint8, ``(n, h, w, 3)`` or ``(n, h, w)``.
        y: Name of the array of labels ``(n,)``, or None for no labels.
    """

    def __init__(
        self, path: Path | str, transform: Transform, batch_size: int = 64, x: str = "x", y: str | None = "y"
    ) -> None:
        self.path = Path(path)
        arrays = _read_npz(self.path, [x] if y is None else [x, y])
        super().__init__(arrays[x], None if y is None else arrays[y], transform, batch_size)

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
        raise FileNotFoundError(f"no file {path}. Check the path.") from None
    except (BadZipFile, EOFError, OSError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} must be a .npz file of plain arrays: {error}. Write it with numpy.savez.") from error
    labels = " and y='...' (or y=None) for the labels" if len(names) > 1 else ""
    raise ValueError(f"{path} has no array {missing[0]!r}; it has {present}. Pass x='...' for the images{labels}.")


class TableImages(ImageSource):
    """The images in a column of a table, in the order of its rows.

    Rows have random access. Each reader thread caches one decoded row group, and no file stays open,
    so a source can be copied to other processes.

    The fingerprint covers the names of the files and columns, sizes and modification times, and bytes of some twenty
    files, not all pixels.

    Args:
        path: A parquet file, or a folder of parquet files, read in the order of their names.
        transform: Applied to every image.
        batch_size: Images in a batch.
        image: Column of the images: encoded bytes, or a struct of ``bytes`` and ``path``, where the path is only used
            as a name.
        label: Column of integer class indices, or None for no labels.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        FileNotFoundError: ``path`` does not exist.
        ValueError: It is not a table, is damaged, or lacks these columns. A single damaged image raises only when it
            is read.
    """

    def __init__(
        self,
        path: Path | str,
        transform: Transform,
        batch_size: int = 64,
        image: str = "image",
        label: str | None = "label",
    ) -> None:
        super().__init__(transform, batch_size)
        self.path, self.image, self.label = Path(path), image, label
        self._column = ParquetColumn(self.path, image, "encoded images", _holds_images, _ADVICE)
        self.files, self.rows = self._column.files, self._column.rows
        if label is not None:
            values = self._column.whole_numbers(label)
            if values.min() < 0:
                row = int((values < 0).argmax())
                raise ValueError(
                    f"column {label!r} of {path} must hold a class index from 0 in every row, but row {row} has "
                    f"{'null' if values[row] == NULL else values[row]}. Pass label=None to read the images without "
                    "labels."
                )
            self.labels = torch.from_numpy(values)

    def name(self, row: int) -> str:
        """Return the table and the number of the row, ``photos.parquet:7``."""
        return f"{self.path}:{range(self.rows)[row]}"

    def picture(self, row: int) -> tuple[str, Image.Image]:
        """Return the number, with the path if there is one, and the decoded image of one row."""
        row = range(self.rows)[row]
        value = self._column.value(row)
        content, place = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        name = f"{self.path}, row {row}" + (f" ({place})" if place else "")
        if content is None:
            raise UnreadableImageError(f"{name} does not hold the bytes of an image. Write them into the table.")
        return name, read_image(io.BytesIO(content), name, draft=self.transform.draft_size)

    def _identify(self, digest: hashlib._Hash) -> None:
        digest.update(json.dumps([self.image, self.label]).encode())
        hash_files(digest, self.files[0].parent, [file.name for file in self.files])


def _holds_images(kind: Any) -> bool:
    if not str(kind).startswith("struct<"):
        return str(kind) in ("binary", "large_binary")
    parts = {part.name: str(part.type) for part in kind}
    return (
        len(parts) == kind.num_fields  # a struct with duplicate names cannot be read
        and parts.get("bytes") in ("binary", "large_binary")
        and parts.get("path", "string") in ("string", "large_string")
    )
