"""Images named by a list, one line each: plain paths, or the way OpenOOD says what belongs to a split."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from .folders import read_image
from .samples import feed_files, statuses
from .sources import ImageSource
from .transform import Transform

SHOWN = 80  # characters of a line in a message
_LABEL = re.compile(r"\s*-?[0-9]{1,18}\s*")  # whatever int64 can hold, and a little less
_SUSPECT = re.compile(r"^[/\\]|\.\.|:")  # only these few are worth taking a path apart


class ListImages(ImageSource):
    """The images that a list names, in its order; the same image may be named again.

    A line is ``<relative path> <whole number>``, split at the first space; blank lines are passed over. The number is
    the class, and -1 marks an image that belongs to none. Where labels are not wanted a line may also be nothing but a
    path: all of it is, up to blanks at its end, if what follows the first space is no whole number. No image is looked
    at before it is read, so a list may name some that are not there: ``missing`` tells which.

    The fingerprint holds paths, sizes and times of change, and bytes of some twenty files, as that of ``FolderImages``
    does; an image that is not there has neither size nor time.

    Args:
        path: The list, in UTF-8.
        root: The folder in which the paths of the list start; none of them may lead out of it. With None they start in
            the folder of the list, lead wherever they lead, and may be absolute.
        transform: Applied to every image.
        batch_size: Images in a batch.
        labels: False to pass over the numbers and give no labels. True needs a class, 0 or more, on every line.

    Attributes:
        root: The folder in which the paths start.
        paths: The paths as the list has them, one per row.

    Raises:
        FileNotFoundError: There is no such list.
        NotADirectoryError: ``root`` is no folder.
        ValueError: A line is of another form, or there is none; the message names the list and the line.
    """

    def __init__(
        self, path: Path | str, root: Path | str | None, transform: Transform, batch_size: int = 64, labels: bool = True
    ) -> None:
        super().__init__(transform, batch_size)
        self.root = Path(path).parent if root is None else Path(root)
        if root is not None and not self.root.is_dir():
            came = "is a file" if self.root.exists() else "does not exist"
            raise NotADirectoryError(f"the paths of a list start in a folder, but {root} {came}. Check the path.")
        self.paths, classes = _parsed(Path(path), labels, inside=root is not None)
        self.labels = torch.tensor(classes) if labels else None

    @property
    def rows(self) -> int:
        """Number of images."""
        return len(self.paths)

    def name(self, row: int) -> str:
        """Return the path of one image, from ``root`` on."""
        return str(self.root / self.paths[row])

    def picture(self, row: int) -> tuple[str, Image.Image]:
        """Return the name and the decoded image of one line."""
        name = self.name(row)
        return name, read_image(name)

    def identify(self, digest: hashlib._Hash) -> None:
        """Feed the paths of the list, sizes and times of change, and some bytes."""
        feed_files(digest, self.root, self.paths)

    def missing(self) -> list[str]:
        """Return the paths of the list at which there is no file, in its order; each file is asked for once."""
        return [path for path, status in statuses(self.root, self.paths) if status is None]


def _parsed(path: Path, labelled: bool, inside: bool) -> tuple[tuple[str, ...], list[int]]:
    """Return the path and, where they are wanted, the number of every line."""
    paths, numbers = [], []
    for place, line in _lines(path):
        name, _, rest = line.partition(" ")
        numbered = _LABEL.fullmatch(rest) is not None
        if not labelled and not numbered:
            name = line.rstrip()
        elif not name or not numbered:
            raise ValueError(
                f"{path}:{place}: a line must be '<relative path> <whole number>', split at the first space, got "
                f"{_shown(line)}. Rename images that have a space in their path."
            )
        if inside and _SUSPECT.search(name) and _leads_out(name):
            raise ValueError(
                f"{path}:{place}: a path must lead from root downwards, without '..', got {_shown(name)}. "
                "Write it relative to root, or choose a root further up."
            )
        paths.append(name)
        if labelled:
            numbers.append(_class_index(int(rest), f"{path}:{place}"))
    if not paths:
        raise ValueError(f"{path} must name at least one image, but all of its lines are blank. Check the path.")
    return tuple(paths), numbers


def _class_index(label: int, place: str) -> int:
    if label < 0:
        raise ValueError(
            f"{place}: labels must be class indices from 0, got {label}, which marks an image of no class. "
            "Pass labels=False to read the images without labels."
        )
    return label


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, each with its number, counted from 1."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no list of images {path}. Check the path.")
    try:
        with path.open(encoding="utf-8-sig") as file:
            for place, line in enumerate(file, 1):
                if not line.isspace():
                    yield place, line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, but is not: {error}. Save it in that encoding.") from error


def _leads_out(name: str) -> bool:
    return bool(Path(name).anchor) or ".." in Path(name).parts


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
