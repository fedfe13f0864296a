"""Check every part of a suite before a long run: what is there, what is missing, what is not as expected."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from ...data.images import FolderImages, ListImages, Transform
from ...data.loading import Loading
from ...data.sources import ImageSource, ImageSubset, Source, take_subset
from ...errors import UnreadableImageError
from ...io.progress import track
from ...network.execution import Execution
from ...passes.extract import extract_features
from ..banks import Settings, accuracy_fits
from ..banks import accuracy as accuracy_of
from .schema import KINDS, OPENOOD, SPLITS, TRANSFORM, Table, section_title
from .suite import OodSet, Suite
from .toml_file import MAKERS, Network, SuiteData, SuiteFile

State = Literal["ok", "note", "wrong", "missing"]  # from the best to the worst

FAILURES = (ImportError, OSError, RuntimeError, TypeError, ValueError)  # of files, networks and their libraries
ALLOWED = Settings().loading.max_unreadable  # share of unreadable images that a benchmark leaves out
SHOWN = 3  # names of images in a sentence
ALWAYS_READ = 20  # images at the beginning of each data set
OPENOOD_URL = "https://github.com/Jingkang50/OpenOOD"
ARCHIVES = {"imagenet": "imagenet_1k", "imagenet200": "imagenet_1k", "textures": "texture"}  # unlike the list's name
LARGE = ("imagenet_1k", "ssb_hard", "ninco", "inaturalist", "openimage_o")  # the others are in images_classic
RESNET50 = "https://download.pytorch.org/models/resnet50-0676ba61.pth"  # torchvision's IMAGENET1K_V1
RESNET50_FILE = "results/pretrained_weights/resnet50_imagenet1k_v1.pth"
CHECKPOINTS = {
    f"${OPENOOD}/results/cifar10_resnet18_32x32_base_e100_lr0.1_default/": "cifar10_res18_v1.5",
    f"${OPENOOD}/results/cifar100_resnet18_32x32_base_e100_lr0.1_default/": "cifar100_res18_v1.5",
    f"${OPENOOD}/results/imagenet200_resnet18_224x224_base_e90_lr0.1_default/": "imagenet200_res18_v1.5",
    f"${OPENOOD}/{RESNET50_FILE}": RESNET50,
}
CAUSES = "Typical causes: another transform, another order of classes, another checkpoint."
UNNORMALISED = " No mean and std are set: does the network take values from 0 to 1?"
NOT_IMPORTED = "It was not loaded: no code is run. Only its files were looked for."
UNCHECKED = "Its accuracy is unchecked, because there are no usable test images."


@dataclass
class Diagnosis:
    """The state of one part of a suite: what is there, what was expected, and sentences on what to do, if anything."""

    what: str
    state: State
    where: str
    expected: str = ""
    found: str = ""
    sentence: str = ""
    absent: bool = False  # files are not there
    download: str = ""  # of which archive they are part, if that is known

    @property
    def needs_attention(self) -> bool:
        """Whether the suite cannot be run as it is."""
        return self.state in ("missing", "wrong")

    def add(self, state: State, sentence: str) -> None:
        """Add a sentence; the state becomes the worse of the two."""
        self.state = max(self.state, state, key=get_args(State).index)
        self.sentence = f"{self.sentence} {sentence}".strip()

    def add_error(self, error: Exception, title: str, optional: bool = False) -> None:
        """Add an error without the title of the section, which the diagnosis has already."""
        missing, reason = isinstance(error, FileNotFoundError), str(error).removeprefix(f"{title}: ")
        self.absent |= missing
        if missing and optional:
            self.add("note", f"{reason} Without it, methods that learn from it are left out.")
        else:
            self.add("missing" if missing else "wrong", reason)


def examine(
    suite_file: SuiteFile, accuracy: bool = True, limit: int = 1000, read: bool = False, code: bool = True
) -> list[Diagnosis]:
    """Check every part of a suite; a problem with one of them does not keep the others from being checked.

    The file should allow ``any_counts``, lest images of another number than expected are not looked at any further.
    Images are counted and looked for, and the first of each data set are decoded: prepared, all must have one size. As
    in a benchmark, up to 1 % of a data set may be unreadable. Networks are loaded, which downloads those that the file
    calls ``pretrained``, and run on at most ``limit`` test images, unless ``accuracy`` is False. An accuracy is as
    expected within three standard errors and one point. With ``read`` every image is decoded. Loading a network runs
    the code that the suite file names; with ``code=False`` none is loaded, and only their files are looked for.
    """
    document, first = suite_file.document, suite_file.networks[0]
    diagnoses: list[Diagnosis] = []
    try:
        data = suite_file.data(first._replace(table={}))
    except ValueError as error:
        diagnoses.append(Diagnosis("transform", "wrong", str(suite_file.path), sentence=str(error)))
        data = SuiteData(suite_file, Transform(), first.draws)
    sections = [(name, document[name]) for name in (*SPLITS, "ood_val") if name in document]
    sections += [("ood", table) for table in document["ood"]]
    checks = {check.diagnosis.what: check for check in (_DataCheck(data, *section) for section in sections)}
    transforms = _size_transforms(suite_file)
    for check in track(checks.values(), "looking for images", len(checks)):
        check.run(transforms, read)
        diagnoses.append(check.diagnosis)
    diagnoses += _check_together(suite_file, {what: check.source for what, check in checks.items()})
    test = checks["test"]
    for network in track(suite_file.networks, "trying networks"):
        diagnosis, model = _check_network(suite_file, network, code)
        diagnoses.append(diagnosis)
        if model is not None and accuracy and test.source is not None and test.diagnosis.state != "missing":
            _check_accuracy(diagnosis, model, suite_file, network, limit, test)
        elif model is not None and accuracy:
            diagnosis.add("note", UNCHECKED)
    for check in checks.values():
        check.conclude()
    return diagnoses


def how_to_download(diagnoses: Sequence[Diagnosis], folder: str) -> list[str]:
    """Return lines on where the missing files of OpenOOD can be had, and what they must be called in ``folder``.

    OpenOOD's own script downloads archives by name and unpacks them. Nothing is returned if none of them is missing.
    """
    absent = [diagnosis for diagnosis in diagnoses if diagnosis.absent and diagnosis.download]
    if not absent:
        return []
    lines = [f"Where to get what is missing, for {folder} as --data:"]
    for archive in dict.fromkeys(diagnosis.download for diagnosis in absent):
        parts = ", ".join(diagnosis.what for diagnosis in absent if diagnosis.download == archive)
        if archive == RESNET50:
            lines.append(f"  {parts}: {archive}, saved as {folder}/{RESNET50_FILE}")
        elif archive in CHECKPOINTS.values():
            unpacked = next(start for start, name in CHECKPOINTS.items() if name == archive)
            path = unpacked.removeprefix(f"${OPENOOD}/")
            lines.append(f"  {parts}: {archive}.zip, unpacked in {folder}/results so that there is {path}s0/best.ckpt")
        else:
            place = "images_largescale" if archive in LARGE else "images_classic"
            lines.append(f"  {parts}: {archive}.zip, unpacked in {folder}/data/{place}/{archive}")
    if any(diagnosis.download not in (RESNET50, *CHECKPOINTS.values()) for diagnosis in absent):
        lines.append(f"  all lists of images: benchmark_imglist.zip, unpacked in {folder}/data")
    archives = [name for name in dict.fromkeys(it.download for it in absent) if name != RESNET50]
    images = [name for name in archives if name not in CHECKPOINTS.values()]
    weights = [name for name in archives if name in CHECKPOINTS.values()]
    if archives:
        lines.append(
            f"OpenOOD's script gets and unpacks the archives; run it in a clone of {OPENOOD_URL}, after "
            "`pip install gdown`:"
        )
    script = "  python scripts/download/download.py --contents"
    places = f"--save_dir {folder}/data {folder}/results"
    if images:
        lines.append(f"{script} datasets --dataset_mode dataset --datasets {' '.join(images)} {places}")
    if weights:
        lines.append(f"{script} checkpoints --checkpoints {' '.join(weights)} {places}")
    if "imagenet_1k" in images:
        lines.append("ImageNet's training images are at https://image-net.org, if that archive has none.")
    return lines


def _images_archive(table: Table) -> str:
    """Return the name of OpenOOD's archive that holds the images of a section; nothing for other images."""
    lists = rf"\${OPENOOD}/data/benchmark_imglist/\w+/(?:train|val|test)_(\w+)\.txt"
    match = re.fullmatch(lists, table.get("list", ""))
    return "" if match is None else ARCHIVES.get(match[1], match[1])


def set_title(table: Table) -> str:
    """Return how diagnoses call an OOD data set that methods are evaluated on."""
    return f"{table['group']} {table['name']}"


class _DataCheck:
    """The check of one section with images; it has a ``source`` if they can be used.

    ``tried`` of the ``rows`` images that are there were read. Those that are ``broken`` are kept by number until the
    end, because running a network may find more of them.
    """

    def __init__(self, data: SuiteData, section: str, table: Table) -> None:
        self.data, self.section, self.table = data, section, table
        written = " and ".join(table[key] for key in (*KINDS, "images") if key in table)
        expected = f"{table['expect']} images" if "expect" in table else ""
        self.diagnosis = Diagnosis(set_title(table) if section == "ood" else section, "ok", written, expected)
        self.diagnosis.download = _images_archive(table)
        self.source: Source | None = None
        self.rows = self.tried = 0
        self.broken: dict[int, str] = {}
        self.problems: dict[str, str] = {}  # by kind, the first of each

    def run(self, transforms: Sequence[Transform], read: bool) -> None:
        """Look for the images, count them, and read the first or all of them."""
        try:
            gone = self._count()
            if isinstance(self.source, ImageSource):
                self._read(self.source, gone, transforms, read)
        except FAILURES as error:
            self.diagnosis.add_error(error, section_title(self.section, self.table), self.table.get("optional", False))

    def _count(self) -> set[str]:
        """Look for the images, compare their number with the expected one, and return those of a list that are gone."""
        diagnosis, table = self.diagnosis, self.table
        kind, path, inside = self.data.place(table)
        for place in [path, Path(inside)] if kind == "list" else [path]:
            diagnosis.where = str(place)
            if not place.exists():
                raise FileNotFoundError("it is not there. Get it, or correct the path.")
        diagnosis.where = str(path)
        whole = self.data.open(self.section, table)
        gone = whole.missing() if isinstance(whole, ListImages) else []
        if isinstance(whole, ListImages) and len(gone) == whole.rows:
            diagnosis.found = f"0 of {whole.rows} images"
            raise FileNotFoundError(
                f"None of the {whole.rows} images of its list is there: its paths start in {whole.root}. "
                f"Correct images = , or get them. The first is {gone[0]}."
            )
        self.source = self.data.take(self.section, table)
        rows = whole.rows - len(gone) if gone else self.source.rows
        diagnosis.found = f"{rows} images" if rows == whole.rows else f"{rows} of {whole.rows} images"
        deviation = self.data.deviations.get(table.get("name", self.section))
        if deviation:
            diagnosis.add("wrong", f"{deviation}. Get them again, or run a benchmark with --any-counts.")
        if gone:
            some = f"{len(gone)} of the {whole.rows} images of its list are not there: {_first(gone)}"
            diagnosis.add("missing", f"{some}. Get them again.")
            diagnosis.absent = True
        return set(gone)

    def _read(self, source: ImageSource, gone: set[str], transforms: Sequence[Transform], every: bool) -> None:
        """Decode and prepare images."""
        own = {key: self.table[key] for key in self.table.keys() & set(TRANSFORM) - {"mean", "std"}}
        transforms = [replace(transform, **own) for transform in transforms]
        sizes: dict[Transform, tuple[str, str]] = {}
        there = [row for row in range(source.rows) if not gone or _origin(source, row)[1] not in gone]
        self.rows = len(there)
        for row in track(there, f"reading {self.diagnosis.what}") if every else there[:ALWAYS_READ]:
            self.tried += 1
            number, name = _origin(source, row)
            try:
                _, picture = source.picture(row)
            except UnreadableImageError:
                self.broken[number] = name
                continue
            for transform in transforms:
                try:
                    height, width = transform(picture).shape[1:]
                except ValueError as error:
                    self.problems.setdefault("refusal", f"{name}: {error}")
                    continue
                size = f"{width} x {height}"
                usual, example = sizes.setdefault(transform, (size, name))
                if size != usual:
                    differ = f"Prepared images differ in size: {example} has {usual} pixels, {name} has {size}."
                    self.problems.setdefault("size", f"{differ} Give the transform a resize and a crop.")

    def conclude(self) -> None:
        """Add what reading images has found; those that were not tried count as readable."""
        count = len(self.broken)
        least, more = ("", "") if self.tried >= self.rows else ("At least ", " Read all of them with --read.")
        sentence = f"{least}{count} of {self.rows} images cannot be read: {_first(list(self.broken.values()))}."
        if 0 < count <= ALLOWED * self.rows and count < self.tried:
            self.diagnosis.add("note", f"{sentence} A benchmark leaves them out.{more}")
        elif count:
            most = f"A benchmark leaves out {100 * ALLOWED:g} % at most"
            self.diagnosis.add(
                "wrong", f"{sentence} {most}: replace or remove them, or give it --max-unreadable.{more}"
            )
        for problem in self.problems.values():
            self.diagnosis.add("wrong", problem)


def _check_together(file: SuiteFile, sources: dict[str, Source | None]) -> list[Diagnosis]:
    """Check sections that are valid by themselves as a suite, if all of them are there."""
    if None in (source for name, source in sources.items() if name != "train"):
        return []
    there: dict[str, Any] = sources
    splits: dict[str, Any] = {name: there.get(name) for name in (*SPLITS, "ood_val")}
    try:
        ood = tuple(OodSet(it["name"], it["group"], there[set_title(it)], "") for it in file.document["ood"])
        Suite(name="", about="", model=nn.Identity(), seed=0, ood=ood, **splits)
    except ValueError as error:
        return [Diagnosis("all together", "wrong", str(file.path), sentence=str(error))]
    return []


def _check_network(suite_file: SuiteFile, network: Network, code: bool) -> tuple[Diagnosis, nn.Module | None]:
    """Load a network, and return it if that succeeds; without ``code`` look only for its file."""
    table = network.table
    key = next((key for key in ("weights", *MAKERS) if key in table), "")
    where = str(table.get(key, "")).replace("{seed}", str(network.seed))
    expected = f"{table['accuracy']:.2f} %" if "accuracy" in table else ""
    diagnosis = Diagnosis(f"network {network.name}", "ok", where, expected)
    diagnosis.download = next((name for start, name in CHECKPOINTS.items() if where.startswith(start)), "")
    try:
        if key in ("weights", "linear"):
            diagnosis.where = str(suite_file.expand(where))
            if not Path(diagnosis.where).is_file():
                raise FileNotFoundError(f"there is no file {diagnosis.where}. Check the path.")
        if not code:
            diagnosis.add("note", NOT_IMPORTED)
            return diagnosis, None
        return diagnosis, suite_file.load_network(network)
    except FAILURES as error:
        diagnosis.add_error(error, section_title("network", table))
        return diagnosis, None


def _check_accuracy(
    diagnosis: Diagnosis, model: nn.Module, suite_file: SuiteFile, network: Network, limit: int, check: _DataCheck
) -> None:
    """Run a network on test images; those that cannot be read are added to their check."""
    try:
        whole = suite_file.data(network).take("test", suite_file.document["test"])
        test = take_subset(whole, limit, network.draws, balanced=True)
        loading, execution = Loading(max_unreadable=1.0), Execution(head=network.table.get("head"))
        runs, bank, unreadable, _ = extract_features(model, test, loading, execution)
        head = runs.found.head
        share = accuracy_of(bank, head)
    except FAILURES as error:
        diagnosis.add("wrong", f"It cannot be run on the test images: {error}")
        return
    hint, n, outputs = "", len(bank), head.n_classes
    if isinstance(test, ImageSource):
        hint = UNNORMALISED if test.transform.mean is None and test.transform.std is None else ""
        check.tried = max(check.tried, test.rows)
        check.broken |= dict(_origin(test, row) for row in unreadable)
    diagnosis.found = f"{100 * share:.2f} %"
    largest = -1 if bank.labels is None else int(bank.labels.max())
    expected = network.table.get("accuracy")
    sentence = f"{diagnosis.found} of {n} test images are right"
    if largest >= outputs:
        diagnosis.add("wrong", f"The test images have labels up to {largest}, but the network has {outputs} classes.")
    elif expected is None:
        guessed = f" Guessing would be as good. {CAUSES}" if accuracy_fits(share, 100 / outputs, n) else ""
        diagnosis.add("note", f"{sentence}; the suite expects no accuracy (accuracy = ...).{guessed}{hint}")
    elif not accuracy_fits(share, expected, n):
        diagnosis.add("wrong", f"{sentence}, {expected:.2f} % should be. {CAUSES}{hint}")


def _size_transforms(file: SuiteFile) -> list[Transform]:
    """Return how networks change the sizes of images; an invalid transform is reported with its network."""
    transforms: dict[Transform, None] = {}
    for network in file.networks:
        with suppress(ValueError):
            transforms[replace(file.data(network).transform, mean=None, std=None)] = None
    return list(transforms)


def _origin(source: ImageSource, row: int) -> tuple[int, str]:
    """Return the number that an image has in its file or folder, and its path in there if it is a file."""
    while isinstance(source, ImageSubset):
        row = int(source.chosen[row])
        source = source.source
    return row, source.paths[row] if isinstance(source, FolderImages | ListImages) else f"row {row}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
