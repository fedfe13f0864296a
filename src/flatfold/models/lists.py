"""Images named by a list, one line each: the way OpenOOD says what belongs to a split."""

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
    the class, and -1 marks an image that belongs to none. No image is looked at before it is read, so a list may name
    some that are not there: ``missing`` tells which.

    The fingerprint holds paths, sizes and times of change, and bytes of some twenty files, as that of ``FolderImages``
    does; an image that is not there has neither size nor time.

    Args:
        path: The list, in UTF-8.
        root: The folder in which the paths of the list start.
        transform: Applied to every image.
        batch_size: Images in a batch.
        labels: False to pass over the numbers and give no labels. True needs a class, 0 or more, on every line.

    Attributes:
        paths: The paths as the list has them, one per row.

    Raises:
        FileNotFoundError: There is no such list.
        NotADirectoryError: ``root`` is no folder.
        ValueError: A line is of another form, or there is none; the message names the list and the line.
    """

    def __init__(
        self, path: Path | str, root: Path | str, transform: Transform, batch_size: int = 64, labels: bool = True
    ) -> None:
        super().__init__(transform, batch_size)
        self.root = Path(root)
        if not self.root.is_dir():
            came = "is a file" if self.root.exists() else "does not exist"
            raise NotADirectoryError(f"the paths of a list start in a folder, but {root} {came}. Check the path.")
        self.paths, classes = _parsed(Path(path), labels)
        self.labels = torch.tensor(classes) if labels else None

    @property
    def rows(self) -> int:
        """Number of images."""
        return len(self.paths)

    def picture(self, row: int) -> tuple[str, Image.Image]:
        """Return the name and the decoded image of one line."""
        file = self.root / self.paths[row]
        return str(file), read_image(file)

    def identify(self, digest: hashlib._Hash) -> None:
        """Feed relative paths, sizes and times of change, and some bytes."""
        feed_files(digest, self.root, self.paths)

    def missing(self) -> list[str]:
        """Return the paths of the list at which there is no file, in its order; each file is asked for once."""
        return [path for path, status in statuses(self.root, self.paths) if status is None]


def _parsed(path: Path, labelled: bool) -> tuple[tuple[str, ...], list[int]]:
    """Return the relative path and the number of every line."""
    paths, numbers = [], []
    for place, line in _lines(path):
        name, _, rest = line.partition(" ")
        if not name or _LABEL.fullmatch(rest) is None:
            raise ValueError(
                f"{path}:{place}: a line must be '<relative path> <whole number>', split at the first space, got "
                f"{_shown(line)}. Rename images that have a space in their path."
            )
        if _SUSPECT.search(name) and _leads_out(name):
            raise ValueError(
                f"{path}:{place}: a path must lead from root downwards, without '..', got {_shown(name)}. "
                "Write it relative to root, or choose a root further up."
            )
        label = int(rest)
        if labelled and label < 0:
            raise ValueError(
                f"{path}:{place}: labels must be class indices from 0, got {label}, which marks an image of no class. "
                "Pass labels=False to read the images without labels."
            )
        paths.append(name)
        numbers.append(label)
    if not paths:
        raise ValueError(f"{path} must name at least one image, but all of its lines are blank. Check the path.")
    return tuple(paths), numbers


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
