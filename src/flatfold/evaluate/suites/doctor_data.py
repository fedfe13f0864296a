"""Whether the images of a suite are there, as many as there should be, and of one size when they are prepared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...models.images import Transform
from ...models.lists import ListImages
from ...models.sources import ImageSource, Source
from ...progress import track
from .data import SuiteData
from .file import SuiteFile
from .finding import FAILURES, SHOWN, Finding, Pictures, State, origin, reason, unset_sentence
from .keys import KINDS, SPLITS, TRANSFORM, Table

LOOKED_AT = 20  # images at the beginning of each data set that are read in any case


def examine_data(suite_file: SuiteFile, read: bool = False) -> tuple[list[Finding], "dict[str, Part]"]:
    """Return a finding for each section with images, and one more if they cannot be prepared; and the sections.

    Args:
        suite_file: The suite.
        read: Whether to read every image, not only the first of each section.
    """
    file, document = suite_file.lenient(), suite_file.document
    findings, parts = [], {}
    plain = file.networks[0]._replace(table={})  # what networks change does not change what is there
    transforms = _transforms(file)
    try:
        data = file.data(plain)
    except ValueError as error:
        findings.append(Finding("transform", "wrong", str(file.path), sentence=str(error)))
        file.document = {**document, "transform": {}}
        data = file.data(plain)
    sections = [(name, name, document[name]) for name in (*SPLITS, "ood_val") if name in document]
    sections += [(set_title(table), "ood", table) for table in document["ood"]]
    for what, section, table in track(sections, "looking for images"):
        part = parts[what] = Part(data, what, section, table, suite_file.any_counts)
        findings.append(part.finding(transforms, read))
    return findings, parts


def _transforms(file: SuiteFile) -> list[Transform]:
    """Return what networks do to the sizes of images; one whose transform cannot be is told when it is looked at."""
    found: list[Transform] = []
    for network in file.networks:
        try:
            transform = replace(file.data(network).transform, mean=None, std=None)
        except ValueError:
            continue
        found += [] if transform in found else [transform]
    return found


class Part:
    """One section with images.

    Attributes:
        source: Its images, if they can be used.
        pictures: What those showed that were read, if they are images and not features.
    """

    def __init__(self, data: SuiteData, what: str, section: str, table: Table, any_counts: bool) -> None:
        self.data, self.what, self.section, self.table, self.any_counts = data, what, section, table, any_counts
        self.source: Source | None = None
        self.pictures: Pictures | None = None
        self.optional = table.get("optional", False)
        self.expected = f"{table['expect']} images" if "expect" in table else ""

    def finding(self, transforms: Sequence[Transform], read: bool) -> Finding:
        """Return what is there, and read some of it or all."""
        written = " and ".join(self.table[key] for key in (*KINDS, "images") if key in self.table)
        unset = unset_sentence(written, self.data.variables)
        if unset:
            return self._missing(written, unset)
        try:
            kind, path, inside = self.data.place(self.table)
            for place in [path, Path(inside)] if kind == "list" else [path]:
                if not place.exists():
                    return self._missing(str(place), "It is not there. Get it, or correct the path.")
            whole = self.data.whole(self.table, self.section in SPLITS)
            gone = whole.missing() if isinstance(whole, ListImages) else []
            found = self._counted(path, whole, gone)
            self._read(set(gone), transforms, read)
            return found
        except FAILURES as error:
            return Finding(self.what, "wrong", written, self.expected, "", reason(error, self.section, self.table))

    def _missing(self, where: str, sentence: str) -> Finding:
        state: State = "note" if self.optional else "missing"
        left_out = " Without it, methods that learn from it are left out." if self.optional else ""
        return Finding(self.what, state, where, self.expected, "", sentence + left_out)

    def _counted(self, path: Path, whole: Source, gone: list[str]) -> Finding:
        """Return a finding about images whose file or folder is there."""
        labelled = self.section in SPLITS
        source = self.data.split(self.section) if labelled else self.data.unknown(self.section, self.table)
        gap = _gap_sentence(whole, gone) if isinstance(whole, ListImages) and gone else ""
        if len(gone) < whole.rows:
            self.source = source
        elif self.optional:
            return self._missing(str(path), gap)
        rows = whole.rows - len(gone) if gone else source.rows
        found = f"{rows} images" if rows == whole.rows else f"{rows} of {whole.rows} images"
        count = self._count_sentence(whole.rows)
        state: State = "missing" if gone else "ok" if not count else "note" if self.any_counts else "wrong"
        return Finding(self.what, state, str(path), self.expected, found, " ".join(filter(None, [count, gap])))

    def _read(self, gone: set[str], transforms: Sequence[Transform], read: bool) -> None:
        """Read images that are there: all of them, or only the first."""
        source = self.source
        if not isinstance(source, ImageSource):
            return
        own = {key: self.table[key] for key in TRANSFORM.keys() & self.table.keys() - {"mean", "std"}}
        there = [row for row in range(source.rows) if not gone or origin(source, row)[1] not in gone]
        self.pictures = Pictures(len(there))
        rows = track(there, f"reading {self.what}") if read else there[:LOOKED_AT]
        self.pictures.read(source, rows, [replace(transform, **own) for transform in transforms])

    def _count_sentence(self, found: int) -> str:
        expected = self.table.get("expect", found)
        if found == expected:
            return ""
        if found != self.table.get("outdated"):
            return f"There are {found} images, {expected} were expected. Get them again."
        listed = "list" in self.table
        many, again = (f"A list of {found} images is", "lists") if listed else (f"{found} images are", "data sets")
        return f"{many} of an older version, this one has {expected}: two versions are mixed. Get all {again} again."


def set_title(table: Table) -> str:
    """Return how findings call a set of unknown images that is judged."""
    return f"{table['group']} {table['name']}"


def _gap_sentence(images: ListImages, gone: list[str]) -> str:
    """Say how many images of a list are not on disk, and the first of them."""
    if len(gone) == images.rows:
        return (
            f"None of the {images.rows} images that its list names is there: its paths start in {images.root}; "
            f"correct images = , or get them. The first is {gone[0]}."
        )
    shown = ", ".join(gone[:SHOWN]) + (", ..." if len(gone) > SHOWN else "")
    return f"{len(gone)} of the {images.rows} images that its list names are not there: {shown}. Get them again."
