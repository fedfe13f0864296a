"""What a folder or file looks like, to whoever wants to judge a network on its images."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ...core.errors import UnreadableImage
from ...models.images import FolderImages, NpzImages, Transform
from ...models.lists import ListImages
from ...models.sources import ImageSource
from ...models.tables import TableImages
from .keys import SPLITS

LOOKED_AT = 20  # images that are opened to learn their size
ASKED = 10  # images of a list that are looked for
SUFFIXES = {".npz": "npz", ".txt": "list", ".parquet": "table"}


@dataclass(frozen=True)
class Seen:
    """What was seen of a data set.

    Args:
        kind: The key of a suite file that names such a source.
        path: Where it lies.
        images: Where the paths of a list start, None for another kind.
        rows: Number of images.
        classes: Number of classes, 0 without labels.
        smallest: Number of images of the smallest class, 0 without labels.
        sizes: Widths and heights of some images, from the smallest to the largest.
        grey: Whether all of these are grey.
    """

    kind: str
    path: Path
    images: Path | None
    rows: int
    classes: int
    smallest: int
    sizes: tuple[tuple[int, int], ...]
    grey: bool

    def __str__(self) -> str:
        words = f"{self.rows} images" + (f" of {self.classes} classes" if self.classes else "")
        if not self.sizes:
            return words
        width, height = self.sizes[len(self.sizes) // 2]
        different = "of different sizes such as " if len(set(self.sizes)) > 1 else ""
        return f"{words}, {different}{width} x {height} pixels"


class Looks(NamedTuple):
    """What was seen of the four sections with images, by name, and of the unknown sets, with their group and name."""

    sections: dict[str, Seen]
    unknown: list[tuple[str, str, Seen]]

    @property
    def grey(self) -> bool:
        """Whether there are known images and all of them are grey."""
        known = [seen for name, seen in self.sections.items() if name in SPLITS]
        return bool(known) and all(seen.grey for seen in known)

    @property
    def divided(self) -> bool:
        """Whether val must be drawn from test."""
        return "test" in self.sections and "val" not in self.sections


def look(path: Path, labelled: bool, images: Path | None = None) -> Seen:
    """Return what a data set looks like; what kind of source it is follows from its suffix, or from what a folder has.

    Args:
        path: A folder, a ``.npz`` file, a ``.parquet`` file or a folder of them, or a list in a ``.txt`` file.
        labelled: Whether its images need labels.
        images: Where the paths of a list start; by default the folder of the list.

    Raises:
        FileNotFoundError: There is nothing at ``path``.
        ValueError: It is no source of images, has no labels although they are needed, or is a list whose first images
            are not where its paths should start.
    """
    kind = _kind(path)
    root = (images or path.parent) if kind == "list" else None
    source = _opened(kind, path, root, labelled)
    if labelled and source.labels is None:
        raise ValueError(f"known images need labels, but {path} has none. Give each class a sub-folder.")
    if isinstance(source, ListImages):
        _check_root(source, path, images)
    counts = np.zeros(0, np.int64) if source.labels is None else np.unique(source.labels, return_counts=True)[1]
    sizes, grey = _sizes(source)
    return Seen(kind, path, root, source.rows, len(counts), int(counts.min(initial=source.rows)), sizes, grey)


def _kind(path: Path) -> str:
    if path.is_dir():
        tables = (path / "state.json").exists() or any(path.glob("*.parquet"))
        return "table" if tables else "folder"
    if not path.exists():
        raise FileNotFoundError(f"there is nothing at {path}. Check the path.")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"images come from a folder or a file that ends in {', '.join(SUFFIXES)}, got {path}.")
    return SUFFIXES[path.suffix]


def _opened(kind: str, path: Path, root: Path | None, labelled: bool) -> ImageSource:
    plain = Transform()
    make: dict[str, Callable[[], ImageSource]] = {
        "folder": lambda: FolderImages(path, plain, labels=labelled),
        "npz": lambda: NpzImages(path, plain, y="y" if labelled else None),
        "list": lambda: ListImages(path, root or path.parent, plain, labels=labelled),
        "table": lambda: TableImages(path, plain, label="label" if labelled else None),
    }
    return make[kind]()


def _check_root(source: ListImages, path: Path, images: Path | None) -> None:
    """Raise if the first images that a list names are not where its paths should start."""
    if any((source.root / name).exists() for name in source.paths[:ASKED]):
        return
    if images is None:
        raise ValueError(
            f"{path} names {source.paths[0]}, which is not there. Say with --images in which folder its paths start."
        )
    raise ValueError(
        f"{path} names {source.paths[0]}, which is not in {images}. --images is for all lists: leave out one that "
        "starts elsewhere, and write it into the file with its own images = ."
    )


def _sizes(source: ImageSource) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return sizes of some images, in ascending order, and whether all of these are grey."""
    seen = []
    for row in np.unique(np.linspace(0, source.rows - 1, LOOKED_AT).astype(int)):
        try:
            _, picture = source.picture(int(row))
        except UnreadableImage:  # whoever judges it will meet it
            continue
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        seen.append((image.size, image.mode in ("1", "L")))
    ascending = sorted((size for size, _ in seen), key=lambda size: (size[0] * size[1], size))
    return tuple(ascending), bool(seen) and all(grey for _, grey in seen)
