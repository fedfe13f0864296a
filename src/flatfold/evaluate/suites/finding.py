"""What was found of one part of a suite, and of its images where some of them were read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...core.errors import UnreadableImage
from ...models.images import FolderImages, Transform
from ...models.lists import ListImages
from ...models.picked import PickedImages
from ...models.sources import ImageSource
from ..settings import Settings
from .keys import Table
from .text import OPENOOD, title, unset_variables

State = Literal["ok", "note", "wrong", "missing"]  # from the best to the worst
FAILURES = (ImportError, OSError, RuntimeError, TypeError, ValueError)  # of files, networks and their libraries
ALLOWED = Settings().unreadable  # share of unreadable images that a benchmark passes over
SHOWN = 3  # names of images in a sentence


@dataclass(frozen=True)
class Finding:
    """What was found of one part of a suite.

    Args:
        what: The part: a split, a data set with its group, a network.
        state: "ok"; "missing" or "wrong", which must be seen to; or "note", which is worth knowing.
        where: The file or folder, or what a network is made by.
        expected: Number of images or accuracy that it should have, "" if nothing is said.
        found: What it has, "" if that cannot be told.
        sentence: What is not as it should be and what to do, "" if all is well.
    """

    what: str
    state: State
    where: str
    expected: str = ""
    found: str = ""
    sentence: str = ""

    @property
    def needs_attention(self) -> bool:
        """Whether the suite cannot be judged as it is."""
        return self.state in ("missing", "wrong")

    def with_remarks(self, remarks: Sequence[tuple[State, str]]) -> "Finding":
        """Return the finding with more sentences, in the worst of all states."""
        state = max(self.state, *(state for state, _ in remarks), key=get_args(State).index) if remarks else self.state
        sentences = [*([self.sentence] if self.sentence else []), *(sentence for _, sentence in remarks)]
        return replace(self, state=state, sentence=" ".join(sentences))


@dataclass
class Pictures:
    """What some images of a data set showed when they were read.

    Attributes:
        rows: Number of images of the data set.
        tried: Number of those that were read.
        broken: Names of those that cannot be read, by their number in the file or folder.
        sizes: Up to two sizes, width x height, that a transform gives, and the first image of each.
        refusal: Why a transform cannot prepare an image, "" if it can.
    """

    rows: int
    tried: int = 0
    broken: dict[int, str] = field(default_factory=dict)
    sizes: dict[Transform, dict[str, str]] = field(default_factory=dict)
    refusal: str = ""

    def read(self, source: ImageSource, rows: Iterable[int], transforms: Sequence[Transform]) -> None:
        """Decode and prepare some images."""
        for row in rows:
            self.tried += 1
            number, name = origin(source, row)
            try:
                _, picture = source.picture(row)
            except UnreadableImage:
                self.broken[number] = name
                continue
            for transform in transforms:
                self._prepare(picture, name, transform)

    def _prepare(self, picture: Image.Image | NDArray[np.uint8], name: str, transform: Transform) -> None:
        try:
            height, width = transform(picture).shape[1:]
        except ValueError as error:
            self.refusal = self.refusal or f"{name}: {error}"
            return
        sizes = self.sizes.setdefault(transform, {})
        if len(sizes) < 2:
            sizes.setdefault(f"{width} x {height}", name)

    def remarks(self) -> list[tuple[State, str]]:
        """Return what is worth saying about the images, and how bad it is."""
        told: list[tuple[State, str]] = [self._unreadable()] if self.broken else []
        told += [("wrong", self.refusal)] if self.refusal else []
        for sizes in self.sizes.values():
            if len(sizes) > 1:
                (one, first), (other, second) = sizes.items()
                differ = f"Prepared images differ in size: {first} has {one} pixels, {second} has {other}."
                return [*told, ("wrong", f"{differ} Give the transform a resize and a crop.")]
        return told

    def _unreadable(self) -> tuple[State, str]:
        """Return how many images cannot be read. Of those that were not tried nobody knows, so they count as sound."""
        count, names = len(self.broken), list(self.broken.values())
        least, more = ("", "") if self.tried >= self.rows else ("At least ", " Read all of them with --read.")
        shown = ", ".join(names[:SHOWN]) + (", ..." if count > SHOWN else "")
        told = f"{least}{count} of {self.rows} images cannot be read: {shown}."
        if count <= ALLOWED * self.rows and count < self.tried:
            return "note", f"{told} A benchmark leaves them out.{more}"
        limit = f"A benchmark leaves out {100 * ALLOWED:g} % at most"
        return "wrong", f"{told} {limit}: replace or remove them, or give it --max-unreadable.{more}"


def origin(source: ImageSource, row: int) -> tuple[int, str]:
    """Return the number that an image has in its file or folder, and its path in there if it is a file."""
    while isinstance(source, PickedImages):
        row = int(source.picked[row])
        source = source.source
    return row, source.paths[row] if isinstance(source, FolderImages | ListImages) else f"row {row}"


def unset_sentence(text: str, variables: Mapping[str, str]) -> str:
    """Return what to say about a path with a variable that has no value, "" if all of them have one."""
    for name in unset_variables(text, variables):
        way = "the folder that holds OpenOOD's data and results, or give --data" if name == OPENOOD else "a folder"
        return f"The environment variable {name} is not set. Set it to {way}."
    return ""


def reason(error: Exception, section: str, table: Table) -> str:
    """Return the message of an error without the name of the section, which a finding has already."""
    return str(error).removeprefix(f"{title(section, table)}: ")
