"""What of a suite is there, what is missing, what is not as it should be: everything at once, before a long run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from ...core.bank import FeatureBank, Head
from ...core.validation import UnreadableImage
from ...io.progress import track
from ...models.extract import extract_features
from ...models.images import FolderImages, ListImages, Transform
from ...models.sources import ImageSource, ImageSubset, Source, take_subset
from ..banks import Settings, accuracy, accuracy_fits
from .data import SuiteData
from .schema import KINDS, OPENOOD, SPLITS, TRANSFORM, Table, expanded, title, unset_variables
from .suite import OodSet, Suite
from .toml_file import MAKERS, Network, SuiteFile, load_network

# What was found of one part of a suite, and of its images where some of them were read.


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
    while isinstance(source, ImageSubset):
        row = int(source.chosen[row])
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


# Whether the images of a suite are there, as many as there should be, and of one size when they are prepared.


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


# Whether the networks of a suite can be loaded, and classify as well as they should.


CAUSES = "Typical causes: another transform, another order of classes, another checkpoint."

UNNORMALISED = "No mean and std are set: is the network used to values from 0 to 1?"

UNCHECKED = "Its accuracy is unchecked, because there are no test images that could be used."


def examine_network(suite_file: SuiteFile, network: Network) -> tuple[Finding, nn.Module | None]:
    """Return whether a network can be loaded, and the network if it can.

    Args:
        suite_file: The suite.
        network: One of its networks.
    """
    table = network.table
    where = str(next((table[key] for key in ("weights", *MAKERS) if key in table), ""))
    where = where.replace("{seed}", str(network.seed))
    expected = f"{table['accuracy']:.2f} %" if "accuracy" in table else ""
    unset = unset_sentence(where, suite_file.variables)
    if unset:
        return Finding(f"network {network.name}", "missing", where, expected, "", unset), None
    if {"weights", "linear"} & table.keys():
        where = str(expanded(where, suite_file.folder, suite_file.variables))
    found = Finding(f"network {network.name}", "ok", where, expected)
    try:
        return found, load_network(network, suite_file.folder, suite_file.variables)
    except FAILURES as error:
        state: State = "missing" if isinstance(error, FileNotFoundError) else "wrong"
        return replace(found, state=state, sentence=reason(error, "network", table)), None


def with_accuracy(
    found: Finding,
    model: nn.Module,
    suite_file: SuiteFile,
    network: Network,
    limit: int,
    pictures: Pictures | None = None,
) -> Finding:
    """Return the finding about a network that could be loaded with how well it classifies what can be read.

    Args:
        found: What ``examine_network`` found.
        model: The network.
        suite_file: The suite, with as many images as there are.
        network: Where the file says what it is.
        limit: Most test images to run it on, evenly of all classes.
        pictures: What is known of the test images; those that cannot be read are added.
    """
    try:
        test = suite_file.data(network).split("test")
        some = take_subset(test, limit, network.draws, balanced=True)
        bank, layer, unreadable = extract_features(model, some, head=network.table.get("head"), unreadable=1.0)
        share = accuracy(bank, layer.head)
    except FAILURES as error:
        return replace(found, state="wrong", sentence=f"It cannot be run on the test images: {error}")
    if pictures is not None and isinstance(some, ImageSource):
        pictures.tried = max(pictures.tried, some.rows)
        pictures.broken |= dict(origin(some, row) for row in unreadable)
    hint = f" {UNNORMALISED}" if _unnormalised(some) else ""
    state, sentence = _judged(share, network.table.get("accuracy"), bank, layer.head, hint)
    return replace(found, state=state, found=f"{100 * share:.2f} %", sentence=sentence)


def _judged(share: float, expected: float | None, bank: FeatureBank, head: Head, hint: str) -> tuple[State, str]:
    """Return whether an accuracy is what it should be, and what to say if not or if nobody said what it should be."""
    n, outputs = len(bank), head.n_classes
    largest = -1 if bank.labels is None else int(bank.labels.max())
    if largest >= outputs:
        return "wrong", f"The test images have labels up to {largest}, but the network has {outputs} classes."
    told = f"{100 * share:.2f} % of {n} test images are right"
    if expected is None:
        guessed = f" Guessing would be as good. {CAUSES}" if accuracy_fits(share, 100 / outputs, n) else ""
        return "note", f"{told}; the suite does not say how many should be (accuracy = ...).{guessed}{hint}"
    if accuracy_fits(share, expected, n):
        return "ok", ""
    return "wrong", f"{told}, {expected:.2f} % should be. {CAUSES}{hint}"


def _unnormalised(source: Source) -> bool:
    return isinstance(source, ImageSource) and source.transform.mean is None and source.transform.std is None


__all__ = ["Finding", "examine"]


def examine(suite_file: SuiteFile, accuracy: bool = True, limit: int = 1000, read: bool = False) -> list[Finding]:
    """Look at every part of a suite; a problem with one of them does not keep the others from being looked at.

    Images are counted and looked for, and the first of each data set are decoded: prepared, all must be of one size.
    As in a benchmark, up to 1 % of a data set may be unreadable. Networks are loaded, which downloads those that the
    file calls ``pretrained``. An accuracy is as it should be within three standard errors and one point; where the
    suite says nothing of it, it is noted.

    Args:
        suite_file: The suite.
        accuracy: Whether to run each network on test images.
        limit: Most test images to run it on, evenly of all classes.
        read: Whether to decode every image.

    Returns:
        One finding for each of train, val, test and ood_val that the file has, for each unknown data set and for each
        network, in this order. There is one more, before those of the networks, if images cannot be prepared or parts
        that are sound by themselves do not go together.
    """
    findings, parts = examine_data(suite_file, read)
    findings += _together(suite_file, {what: part.source for what, part in parts.items()})
    pictures = {what: part.pictures for what, part in parts.items() if part.pictures is not None}
    lenient = suite_file.lenient()
    usable = any(found.what == "test" and found.found and found.state != "missing" for found in findings)
    for network in track(suite_file.networks, "trying networks"):
        found, model = examine_network(suite_file, network)
        if model is not None and accuracy:
            found = (
                with_accuracy(found, model, lenient, network, limit, pictures.get("test"))
                if usable
                else replace(found, state="note", sentence=UNCHECKED)
            )
        findings.append(found)
    return [
        found.with_remarks(pictures[found.what].remarks()) if found.what in pictures else found for found in findings
    ]


def _together(file: SuiteFile, sources: dict[str, Source | None]) -> list[Finding]:
    """Return what is wrong with sections that are sound by themselves, if all of them are there."""
    needed = {name: source for name, source in sources.items() if name != "train"}
    if None in needed.values():
        return []
    known: dict[str, Any] = {name: sources.get(name) for name in (*SPLITS, "ood_val")}
    unknown: dict[str, Any] = {name: source for name, source in sources.items() if name not in known}
    tables = file.document["ood"]
    try:
        ood = tuple(OodSet(table["name"], table["group"], unknown[set_title(table)], "") for table in tables)
        Suite(name="", about="", model=nn.Identity(), seed=0, ood=ood, **known)
    except ValueError as error:
        return [Finding("all together", "wrong", str(file.path), sentence=str(error))]
    return []
