"""Check every part of a suite before a long run: what is there, what is missing, what is not as expected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from ...core.validation import UnreadableImage
from ...io.progress import track
from ...models.extract import extract_features
from ...models.images import FolderImages, ListImages, Transform
from ...models.sources import ImageSource, ImageSubset, Source, take_subset
from ..banks import Settings, accuracy_fits
from ..banks import accuracy as accuracy_of
from .data import SuiteData
from .schema import KINDS, OPENOOD, SPLITS, TRANSFORM, Table, expand_path, section_title, unset_variables
from .suite import OodSet, Suite
from .toml_file import MAKERS, Network, SuiteFile, load_network

State = Literal["ok", "note", "wrong", "missing"]  # from the best to the worst

FAILURES = (ImportError, OSError, RuntimeError, TypeError, ValueError)  # of files, networks and their libraries
ALLOWED = Settings().unreadable  # share of unreadable images that a benchmark leaves out
SHOWN = 3  # names of images in a sentence
ALWAYS_READ = 20  # images at the beginning of each data set
CAUSES = "Typical causes: another transform, another order of classes, another checkpoint."
UNNORMALISED = " No mean and std are set: does the network take values from 0 to 1?"
UNCHECKED = "Its accuracy is unchecked, because there are no usable test images."


@dataclass(frozen=True)
class Diagnosis:
    """The state of one part of a suite: what is there, what was expected, and a sentence on what to do, if anything."""

    what: str
    state: State
    where: str
    expected: str = ""
    found: str = ""
    sentence: str = ""

    @property
    def needs_attention(self) -> bool:
        """Whether the suite cannot be run as it is."""
        return self.state in ("missing", "wrong")

    def add(self, remarks: Sequence[tuple[State, str]]) -> "Diagnosis":
        """Return the diagnosis with more sentences, in the worst of all states."""
        states = [self.state, *(state for state, _ in remarks)]
        sentences = filter(None, [self.sentence, *(sentence for _, sentence in remarks)])
        return replace(self, state=max(states, key=get_args(State).index), sentence=" ".join(sentences))


def examine(suite_file: SuiteFile, accuracy: bool = True, limit: int = 1000, read: bool = False) -> list[Diagnosis]:
    """Check every part of a suite; a problem with one of them does not keep the others from being checked.

    Images are counted and looked for, and the first of each data set are decoded: prepared, all must have one size. As
    in a benchmark, up to 1 % of a data set may be unreadable. Networks are loaded, which downloads those that the file
    calls ``pretrained``, and run on at most ``limit`` test images, unless ``accuracy`` is False. An accuracy is as
    expected within three standard errors and one point. With ``read`` every image is decoded.
    """
    lenient, document = suite_file.lenient(), suite_file.document
    diagnoses: list[Diagnosis] = []
    no_network = lenient.networks[0]._replace(table={})
    transforms = _size_transforms(lenient)
    try:
        data = lenient.data(no_network)
    except ValueError as error:
        diagnoses.append(Diagnosis("transform", "wrong", str(lenient.path), sentence=str(error)))
        lenient.document = {**document, "transform": {}}
        data = lenient.data(no_network)
    sections = [(name, name, document[name]) for name in (*SPLITS, "ood_val") if name in document]
    sections += [(set_title(table), "ood", table) for table in document["ood"]]
    checks = {what: _DataCheck(data, what, name, table, suite_file.any_counts) for what, name, table in sections}
    for check in track(checks.values(), "looking for images", len(checks)):
        diagnoses.append(check.diagnose(transforms, read))
    diagnoses += _check_together(suite_file, {what: check.source for what, check in checks.items()})
    images = {what: check.images for what, check in checks.items() if check.images is not None}
    usable = any(it.what == "test" and it.found and it.state != "missing" for it in diagnoses)
    lenient = suite_file.lenient()
    for network in track(suite_file.networks, "trying networks"):
        diagnosis, model = _check_network(suite_file, network)
        if model is not None and accuracy and usable:
            diagnosis = _check_accuracy(diagnosis, model, lenient, network, limit, images.get("test"))
        elif model is not None and accuracy:
            diagnosis = replace(diagnosis, state="note", sentence=UNCHECKED)
        diagnoses.append(diagnosis)
    return [it.add(images[it.what].remarks()) if it.what in images else it for it in diagnoses]


def set_title(table: Table) -> str:
    """Return how diagnoses call an OOD data set that methods are evaluated on."""
    return f"{table['group']} {table['name']}"


@dataclass
class _ImageCheck:
    """The outcome of reading ``tried`` of the ``rows`` images of a data set: broken ones, and up to two sizes each."""

    rows: int
    tried: int = 0
    broken: dict[int, str] = field(default_factory=dict)
    sizes: dict[Transform, dict[str, str]] = field(default_factory=dict)
    refusal: str = ""

    def read(self, source: ImageSource, rows: Iterable[int], transforms: Sequence[Transform]) -> None:
        """Decode and prepare some images."""
        for row in rows:
            self.tried += 1
            number, name = _origin(source, row)
            try:
                _, picture = source.picture(row)
            except UnreadableImage:
                self.broken[number] = name
                continue
            for transform in transforms:
                try:
                    height, width = transform(picture).shape[1:]
                except ValueError as error:
                    self.refusal = self.refusal or f"{name}: {error}"
                    continue
                sizes = self.sizes.setdefault(transform, {})
                if len(sizes) < 2:
                    sizes.setdefault(f"{width} x {height}", name)

    def remarks(self) -> list[tuple[State, str]]:
        """Return sentences about the images, each with its state."""
        remarks: list[tuple[State, str]] = [self._unreadable()] if self.broken else []
        remarks += [("wrong", self.refusal)] if self.refusal else []
        for sizes in self.sizes.values():
            if len(sizes) > 1:
                (one, first), (other, second) = sizes.items()
                differ = f"Prepared images differ in size: {first} has {one} pixels, {second} has {other}."
                return [*remarks, ("wrong", f"{differ} Give the transform a resize and a crop.")]
        return remarks

    def _unreadable(self) -> tuple[State, str]:
        """Return how many images cannot be read; those that were not tried count as readable."""
        count = len(self.broken)
        least, more = ("", "") if self.tried >= self.rows else ("At least ", " Read all of them with --read.")
        sentence = f"{least}{count} of {self.rows} images cannot be read: {_first(list(self.broken.values()))}."
        if count <= ALLOWED * self.rows and count < self.tried:
            return "note", f"{sentence} A benchmark leaves them out.{more}"
        limit = f"A benchmark leaves out {100 * ALLOWED:g} % at most"
        return "wrong", f"{sentence} {limit}: replace or remove them, or give it --max-unreadable.{more}"


class _DataCheck:
    """The check of one section with images; ``source`` and ``images`` are set if they can be used and read."""

    def __init__(self, data: SuiteData, what: str, section: str, table: Table, any_counts: bool) -> None:
        self.data, self.what, self.section, self.table, self.any_counts = data, what, section, table, any_counts
        self.source: Source | None = None
        self.images: _ImageCheck | None = None
        self.optional = table.get("optional", False)
        self.expected = f"{table['expect']} images" if "expect" in table else ""

    def diagnose(self, transforms: Sequence[Transform], read: bool) -> Diagnosis:
        """Look for the images, count them, and read the first or all of them."""
        written = " and ".join(self.table[key] for key in (*KINDS, "images") if key in self.table)
        unset = _unset_sentence(written, self.data.variables)
        if unset:
            return self._missing(written, unset)
        try:
            kind, path, inside = self.data.place(self.table)
            for place in [path, Path(inside)] if kind == "list" else [path]:
                if not place.exists():
                    return self._missing(str(place), "It is not there. Get it, or correct the path.")
            labelled = self.section in SPLITS
            whole = self.data.open(self.table, labelled)
            gone = whole.missing() if isinstance(whole, ListImages) else []
            source = self.data.split(self.section) if labelled else self.data.unlabelled(self.section, self.table)
            diagnosis = self._count(path, source, whole, gone)
            if isinstance(self.source, ImageSource):
                own = {key: self.table[key] for key in self.table.keys() & set(TRANSFORM) - {"mean", "std"}}
                lost, images = set(gone), self.source
                there = [row for row in range(images.rows) if not lost or _origin(images, row)[1] not in lost]
                self.images = _ImageCheck(len(there))
                rows = track(there, f"reading {self.what}") if read else there[:ALWAYS_READ]
                self.images.read(images, rows, [replace(transform, **own) for transform in transforms])
            return diagnosis
        except FAILURES as error:
            return Diagnosis(self.what, "wrong", written, self.expected, "", _reason(error, self.section, self.table))

    def _missing(self, where: str, sentence: str) -> Diagnosis:
        if not self.optional:
            return Diagnosis(self.what, "missing", where, self.expected, "", sentence)
        left_out = f"{sentence} Without it, methods that learn from it are left out."
        return Diagnosis(self.what, "note", where, self.expected, "", left_out)

    def _count(self, path: Path, source: Source, whole: Source, gone: list[str]) -> Diagnosis:
        """Compare the number of images with what is expected."""
        gap = ""
        if isinstance(whole, ListImages) and gone:
            gap = f"{len(gone)} of the {whole.rows} images of its list are not there: {_first(gone)}. Get them again."
            if len(gone) == whole.rows:
                gap = (
                    f"None of the {whole.rows} images of its list is there: its paths start in {whole.root}. "
                    f"Correct images = , or get them. The first is {gone[0]}."
                )
        if len(gone) < whole.rows:
            self.source = source
        elif self.optional:
            return self._missing(str(path), gap)
        rows = whole.rows - len(gone) if gone else source.rows
        found = f"{rows} images" if rows == whole.rows else f"{rows} of {whole.rows} images"
        count, expected = "", self.table.get("expect", whole.rows)
        if whole.rows == self.table.get("outdated") != expected:
            again = "lists" if "list" in self.table else "data sets"
            count = (
                f"{whole.rows} images are those of an older version, this one has {expected}. Get all {again} again."
            )
        elif whole.rows != expected:
            count = f"There are {whole.rows} images, {expected} were expected. Get them again."
        state: State = "missing" if gone else "ok" if not count else "note" if self.any_counts else "wrong"
        return Diagnosis(self.what, state, str(path), self.expected, found, " ".join(filter(None, [count, gap])))


def _check_together(file: SuiteFile, sources: dict[str, Source | None]) -> list[Diagnosis]:
    """Check sections that are valid by themselves as a suite, if all of them are there."""
    if None in (source for name, source in sources.items() if name != "train"):
        return []
    splits: dict[str, Any] = {name: sources.get(name) for name in (*SPLITS, "ood_val")}
    images: dict[str, Any] = {name: source for name, source in sources.items() if name not in splits}
    try:
        ood = tuple(OodSet(it["name"], it["group"], images[set_title(it)], "") for it in file.document["ood"])
        Suite(name="", about="", model=nn.Identity(), seed=0, ood=ood, **splits)
    except ValueError as error:
        return [Diagnosis("all together", "wrong", str(file.path), sentence=str(error))]
    return []


def _check_network(suite_file: SuiteFile, network: Network) -> tuple[Diagnosis, nn.Module | None]:
    """Load a network, and return it if that succeeds."""
    table, what = network.table, f"network {network.name}"
    where = str(next((table[key] for key in ("weights", *MAKERS) if key in table), ""))
    where = where.replace("{seed}", str(network.seed))
    expected = f"{table['accuracy']:.2f} %" if "accuracy" in table else ""
    unset = _unset_sentence(where, suite_file.variables)
    if unset:
        return Diagnosis(what, "missing", where, expected, "", unset), None
    if {"weights", "linear"} & table.keys():
        where = str(expand_path(where, suite_file.folder, suite_file.variables))
    try:
        model = load_network(network, suite_file.folder, suite_file.variables)
        return Diagnosis(what, "ok", where, expected), model
    except FAILURES as error:
        state: State = "missing" if isinstance(error, FileNotFoundError) else "wrong"
        return Diagnosis(what, state, where, expected, "", _reason(error, "network", table)), None


def _check_accuracy(
    diagnosis: Diagnosis,
    model: nn.Module,
    suite_file: SuiteFile,
    network: Network,
    limit: int,
    images: _ImageCheck | None,
) -> Diagnosis:
    """Run a network on test images; those that cannot be read are added to ``images``."""
    try:
        test = take_subset(suite_file.data(network).split("test"), limit, network.draws, balanced=True)
        bank, layer, unreadable = extract_features(model, test, head=network.table.get("head"), unreadable=1.0)
        share = accuracy_of(bank, layer.head)
    except FAILURES as error:
        return replace(diagnosis, state="wrong", sentence=f"It cannot be run on the test images: {error}")
    hint, n, outputs = "", len(bank), layer.head.n_classes
    if isinstance(test, ImageSource):
        hint = UNNORMALISED if test.transform.mean is None and test.transform.std is None else ""
        if images is not None:
            images.tried = max(images.tried, test.rows)
            images.broken |= dict(_origin(test, row) for row in unreadable)
    largest = -1 if bank.labels is None else int(bank.labels.max())
    expected = network.table.get("accuracy")
    state: State = "wrong"
    sentence = f"{100 * share:.2f} % of {n} test images are right"
    if largest >= outputs:
        sentence = f"The test images have labels up to {largest}, but the network has {outputs} classes."
    elif expected is None:
        guessed = f" Guessing would be as good. {CAUSES}" if accuracy_fits(share, 100 / outputs, n) else ""
        state, sentence = "note", f"{sentence}; the suite expects no accuracy (accuracy = ...).{guessed}{hint}"
    elif accuracy_fits(share, expected, n):
        state, sentence = "ok", ""
    else:
        sentence = f"{sentence}, {expected:.2f} % should be. {CAUSES}{hint}"
    return replace(diagnosis, state=state, found=f"{100 * share:.2f} %", sentence=sentence)


def _size_transforms(file: SuiteFile) -> list[Transform]:
    """Return how networks change the sizes of images; an invalid transform is reported with its network."""
    transforms: list[Transform] = []
    for network in file.networks:
        try:
            transform = replace(file.data(network).transform, mean=None, std=None)
        except ValueError:
            continue
        if transform not in transforms:
            transforms.append(transform)
    return transforms


def _origin(source: ImageSource, row: int) -> tuple[int, str]:
    """Return the number that an image has in its file or folder, and its path in there if it is a file."""
    while isinstance(source, ImageSubset):
        row = int(source.chosen[row])
        source = source.source
    return row, source.paths[row] if isinstance(source, FolderImages | ListImages) else f"row {row}"


def _unset_sentence(text: str, variables: Mapping[str, str]) -> str:
    """Return a sentence about a path with a variable that has no value, "" if all of them have one."""
    for name in unset_variables(text, variables):
        way = "the folder that holds OpenOOD's data and results, or give --data" if name == OPENOOD else "a folder"
        return f"The environment variable {name} is not set. Set it to {way}."
    return ""


def _reason(error: Exception, section: str, table: Table) -> str:
    """Return the message of an error without the name of the section, which a diagnosis has already."""
    return str(error).removeprefix(f"{section_title(section, table)}: ")


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
