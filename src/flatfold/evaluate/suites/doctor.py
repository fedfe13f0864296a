"""Check every part of a suite before a long run: files that are missing, and values that differ from expected ones."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import structs
from torch import nn

from ...data.images import FolderImages, ListImages, Transform
from ...data.loading import Loading
from ...data.sources import ImageSource, ImageSubset, Source, take_subset
from ...detectors import methods as registered
from ...errors import InsufficientResourcesError, UnreadableImageError
from ...io.progress import track
from ...network.execution import Execution
from ...passes.extract import EveryPositionError, extract_features
from ...scoring.positions import draw
from ..banks import Settings, accuracy_fits
from ..banks import accuracy as accuracy_of
from ..methods import Spec
from ..pixels import bank_of
from ..plan import make_plan
from .schema import KINDS, OPENOOD, SPLITS, ImageTable, SuiteTable, TransformTable, section_title
from .suite import OodSet, Suite
from .toml_file import LEFT_OUT, Network, SuiteData, SuiteFile

State = Literal["ok", "note", "wrong", "missing"]  # from the best to the worst

FAILURES = (ImportError, OSError, RuntimeError, TypeError, ValueError)  # of files, networks and their libraries
ALLOWED = Settings().loading.max_unreadable  # share of unreadable images that a benchmark leaves out
SHOWN = 3  # names of images in a sentence
ALWAYS_READ = 20  # images at the beginning of each data set
OPENOOD_URL = "https://github.com/Jingkang50/OpenOOD"
LIST = re.compile(rf"\${OPENOOD}/data/benchmark_imglist/\w+/(?:train|val|test)_(\w+)\.txt")
ARCHIVES = {
    "imagenet": "imagenet_1k",
    "imagenet200": "imagenet_1k",
    "textures": "texture",
}  # if not named like the list
LARGE = ("imagenet_1k", "ssb_hard", "ninco", "inaturalist", "openimage_o")  # the others are in images_classic
RESNET50 = "https://download.pytorch.org/models/resnet50-0676ba61.pth"  # torchvision's IMAGENET1K_V1
CHECKPOINTS = {  # download: its place in OpenOOD's folder
    "cifar10_res18_v1.5": "results/cifar10_resnet18_32x32_base_e100_lr0.1_default/",
    "cifar100_res18_v1.5": "results/cifar100_resnet18_32x32_base_e100_lr0.1_default/",
    "imagenet200_res18_v1.5": "results/imagenet200_resnet18_224x224_base_e90_lr0.1_default/",
    RESNET50: "results/pretrained_weights/resnet50_imagenet1k_v1.pth",
}
CAUSES = "Typical causes: another transform, another order of classes, another checkpoint."
UNNORMALISED = " No mean and std are set: does the network expect values from 0 to 1?"
NOT_IMPORTED = "It was not loaded, because no code is run; only its files were looked for."
UNCHECKED = "Its accuracy is unchecked, because there are no usable test images."


@dataclass
class Diagnosis:
    """State of one part of a suite, with the expected and the actual value and sentences on what to do."""

    what: str
    state: State
    where: str
    expected: str = ""
    found: str = ""
    sentence: str = ""
    absent: bool = False  # files are missing
    download: str = ""  # the archive or file that has them, if known

    @property
    def needs_attention(self) -> bool:
        """Whether the suite cannot be run as it is."""
        return self.state in ("missing", "wrong")

    def add(self, state: State, sentence: str) -> None:
        """Add a sentence; the state becomes the worse of the two."""
        self.state = max(self.state, state, key=get_args(State).index)
        self.sentence = f"{self.sentence} {sentence}".strip()

    def add_error(self, error: Exception, title: str, optional: bool = False) -> None:
        """Add an error without the title of the section, which the diagnosis names already."""
        missing, reason = isinstance(error, FileNotFoundError), str(error).removeprefix(f"{title}: ")
        self.absent |= missing
        if missing and optional:
            self.add("note", f"{reason} Without it, methods that learn from it are left out.")
        else:
            self.add("missing" if missing else "wrong", reason)


def examine(
    suite_file: SuiteFile,
    accuracy: bool = True,
    limit: int = 1000,
    read: bool = False,
    code: bool = True,
    out: Path | None = None,
) -> list[Diagnosis]:
    """Check every part of a suite; a problem in one part does not prevent the check of the others.

    The file should allow ``any_counts``, otherwise data sets of unexpected size are not examined further. Images are
    counted and the first of each data set decoded, or all with ``read``: transformed images must have one size, and up
    to 1 % may be unreadable, as in a benchmark. Networks are loaded, which downloads ``pretrained`` ones, and with
    ``accuracy`` evaluated on at most ``limit`` test images: the accuracy must be within three standard errors and one
    point of the expected one. Loading runs the code that the file names; with ``code=False`` only files are looked for.
    With the folder ``out`` of a benchmark, the memory, disk space and time that its first network needs are estimated.
    """
    document, first = suite_file.document, suite_file.networks[0]
    diagnoses: list[Diagnosis] = []
    try:
        data = suite_file.data(first._replace(table=structs.replace(first.table, transform=TransformTable())))
    except ValueError as error:
        diagnoses.append(Diagnosis("transform", "wrong", str(suite_file.path), sentence=str(error)))
        data = SuiteData(suite_file, Transform(), first.draws)
    checks = {what: _DataCheck(data, what, *section) for what, section in document.data_sets.items()}
    transforms: dict[Transform, None] = {}  # which change the sizes of images
    for network in suite_file.networks:
        with suppress(ValueError):  # an invalid transform is reported with its network
            transforms[replace(suite_file.data(network).transform, mean=None, std=None)] = None
    for check in track(checks.values(), "looking for images", len(checks)):
        check.run(list(transforms), read)
        diagnoses.append(check.diagnosis)
    try:
        _check_together(document, {what: check.source for what, check in checks.items()})
    except ValueError as error:
        diagnoses.append(Diagnosis("all together", "wrong", str(suite_file.path), sentence=str(error)))
    test, usable = checks["test"], None
    for network in track(suite_file.networks, "checking networks"):
        diagnosis, model = _check_network(suite_file, network, code)
        diagnoses.append(diagnosis)
        if model is not None and accuracy and test.source is not None and test.diagnosis.state != "missing":
            _check_accuracy(diagnosis, model, suite_file, network, limit, test)
        elif model is not None and accuracy:
            diagnosis.add("note", UNCHECKED)
        if model is not None and usable is None:
            usable = network, model
    for check in checks.values():
        check.conclude()
    if out is not None and usable is not None and not any(it.needs_attention for it in diagnoses):
        suite = suite_file.data(usable[0]).suite()
        if not suite.masked:  # whose pixels are counted a part at a time
            diagnoses.append(_estimate(suite, *usable, out / usable[0].name if len(suite_file.networks) > 1 else out))
    return diagnoses


def how_to_download(diagnoses: Sequence[Diagnosis], folder: str) -> list[str]:
    """Return lines on how to download the missing files of OpenOOD to ``folder``, none if nothing is missing."""
    parts: dict[str, list[str]] = {}  # parts of the suite by download
    for diagnosis in diagnoses:
        if diagnosis.absent and diagnosis.download:
            parts.setdefault(diagnosis.download, []).append(diagnosis.what)
    if not parts:
        return []
    lines = [f"Where to get what is missing, for OpenOOD's folder {folder}:"]
    for archive, names in parts.items():
        if archive == RESNET50:
            source = f"{archive}, saved as {folder}/{CHECKPOINTS[archive]}"
        elif archive in CHECKPOINTS:
            checkpoint = f"{CHECKPOINTS[archive]}s0/best.ckpt"
            source = f"{archive}.zip, unpacked in {folder}/results so that there is {checkpoint}"
        else:
            place = "images_largescale" if archive in LARGE else "images_classic"
            source = f"{archive}.zip, unpacked in {folder}/data/{place}/{archive}"
        lines.append(f"  {', '.join(names)}: {source}")
    images = [name for name in parts if name not in CHECKPOINTS]
    weights = [name for name in parts if name in CHECKPOINTS and name != RESNET50]
    if images:
        lines.append(f"  all lists of images: benchmark_imglist.zip, unpacked in {folder}/data")
    if images or weights:
        lines.append(
            f"OpenOOD's script downloads and unpacks the archives; run it in a clone of {OPENOOD_URL}, after "
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


class _DataCheck:
    """The check of one section with images; ``source`` is set if they can be used.

    ``tried`` of the ``rows`` existing images were read. Unreadable ones are collected in ``broken`` by number until the
    end, because evaluating a network may find more of them.
    """

    def __init__(self, data: SuiteData, what: str, section: str, table: ImageTable) -> None:
        self.data, self.section, self.table = data, section, table
        written = " and ".join(value for key in (*KINDS, "images") if (value := getattr(table, key)))
        listed = LIST.fullmatch(table.list or "")
        self.diagnosis = Diagnosis(what, "ok", written, f"{table.expect} images" if table.expect else "")
        self.diagnosis.download = ARCHIVES.get(listed[1], listed[1]) if listed else ""
        self.source: Source | None = None
        self.rows = self.tried = 0
        self.broken: dict[int, str] = {}

    def run(self, transforms: Sequence[Transform], read: bool) -> None:
        """Look for the images, count them, and read the first or all of them."""
        try:
            gone = self._count()
            if isinstance(self.source, ImageSource):
                self._read(self.source, gone, transforms, read)
        except FAILURES as error:
            title = section_title(self.section, getattr(self.table, "name", ""))
            self.diagnosis.add_error(error, title, getattr(self.table, "optional", False))

    def _count(self) -> set[str]:
        """Look for the images, compare their number with the expected one, and return the missing paths of a list."""
        diagnosis, table = self.diagnosis, self.table
        kind, path, inside = self.data.place(table)
        for place in [path, Path(inside)] if kind == "list" else [path]:
            diagnosis.where = str(place)
            if not place.exists():
                raise FileNotFoundError("it is not there. Download it, or correct the path.")
        diagnosis.where = str(path)
        whole = self.data.open(table)
        gone = whole.missing() if isinstance(whole, ListImages) else []
        if isinstance(whole, ListImages) and len(gone) == whole.rows:
            diagnosis.found = f"0 of {whole.rows} images"
            raise FileNotFoundError(
                f"None of the {whole.rows} images of its list is there: its paths start in {whole.root}. "
                f"Correct images =, or download them. The first is {gone[0]}."
            )
        self.source = self.data.take(self.section, table)
        rows = whole.rows - len(gone) if gone else self.source.rows
        diagnosis.found = f"{rows} images" if rows == whole.rows else f"{rows} of {whole.rows} images"
        deviation = self.data.deviations.get(getattr(table, "name", self.section))
        if deviation:
            diagnosis.add("wrong", f"{deviation}. Download them again, or run the benchmark with any_counts=True.")
        if gone:
            some = f"{len(gone)} of the {whole.rows} images of its list are not there: {_first(gone)}"
            diagnosis.add("missing", f"{some}. Download them again.")
            diagnosis.absent = True
        return set(gone)

    def _read(self, source: ImageSource, gone: set[str], transforms: Sequence[Transform], every: bool) -> None:
        """Decode and transform images."""
        own = {key: value for key, value in self.table.settings.items() if key not in ("mean", "std")}
        transforms = [replace(transform, **own) for transform in transforms]
        sizes: dict[Transform, tuple[str, str]] = {}
        problems: dict[str, str] = {}  # the first of each kind
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
                    problems.setdefault("refusal", f"{name}: {error}")
                    continue
                size = f"{width} x {height}"
                usual, example = sizes.setdefault(transform, (size, name))
                if size != usual:
                    differ = f"Transformed images differ in size: {example} has {usual} pixels, {name} has {size}."
                    problems.setdefault("size", f"{differ} Give the transform a resize and a crop.")
        for problem in problems.values():
            self.diagnosis.add("wrong", problem)

    def conclude(self) -> None:
        """Add what was found by reading images; those that were not read count as readable."""
        count = len(self.broken)
        least, more = ("", "") if self.tried >= self.rows else ("At least ", " Read all of them with read=True.")
        sentence = f"{least}{count} of {self.rows} images cannot be read: {_first(list(self.broken.values()))}."
        if 0 < count <= ALLOWED * self.rows and count < self.tried:
            self.diagnosis.add("note", f"{sentence} A benchmark leaves them out.{more}")
        elif count:
            most = f"A benchmark leaves out at most {100 * ALLOWED:g} %"
            self.diagnosis.add(
                "wrong", f"{sentence} {most}: replace or remove them, or allow more with max_unreadable=.{more}"
            )


def _check_together(document: SuiteTable, sources: dict[str, Source | None]) -> None:
    """Raise ValueError if valid sections do not form a suite; do nothing if a needed one is unusable."""
    if any(source is None for what, source in sources.items() if what != "train"):
        return
    there: dict[str, Any] = sources
    splits: dict[str, Any] = {name: there.get(name) for name in (*SPLITS, "ood_val")}
    ood = tuple(OodSet(it.name, it.group, there[it.title], "") for it in document.ood)
    Suite(name="", about="", model=nn.Identity(), seed=0, ood=ood, **splits)


def _check_network(suite_file: SuiteFile, network: Network, code: bool) -> tuple[Diagnosis, nn.Module | None]:
    """Load a network, and return it if that succeeds; without ``code`` only look for its file."""
    table, where = network.table, network.origin
    expected = "" if table.accuracy is None else f"{table.accuracy:.2f} %"
    diagnosis = Diagnosis(f"network {network.name}", "ok", where, expected)
    places = {name: f"${OPENOOD}/{place}" for name, place in CHECKPOINTS.items()}
    diagnosis.download = next((name for name, place in places.items() if where.startswith(place)), "")
    try:
        if table.weights or table.linear:
            diagnosis.where = str(suite_file.expand(where))
            if not Path(diagnosis.where).is_file():
                raise FileNotFoundError(f"there is no file {diagnosis.where}. Check the path.")
        if not code:
            diagnosis.add("note", NOT_IMPORTED)
            return diagnosis, None
        return diagnosis, suite_file.load_network(network)
    except FAILURES as error:
        diagnosis.add_error(error, section_title("network", table.name))
        return diagnosis, None


def _check_accuracy(
    diagnosis: Diagnosis, model: nn.Module, suite_file: SuiteFile, network: Network, limit: int, check: _DataCheck
) -> None:
    """Evaluate a network on test images; add unreadable ones to their check."""
    try:
        whole = suite_file.data(network).take("test", suite_file.document.test)
        test = take_subset(whole, limit, network.draws, balanced=True)
        loading, execution, what = Loading(max_unreadable=1.0), Execution(head=network.table.head), "test images"
        try:
            runs, bank, unreadable, *_ = extract_features(model, test, loading, execution)
        except EveryPositionError as found:
            runs, unreadable, what = found.network, {}, "positions of test images"
            ignored = (*suite_file.document.ignored, LEFT_OUT)
            bank = bank_of(draw(runs, found.batches, ignored, None, seed=0)[0])
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
    expected = network.table.accuracy
    sentence = f"{diagnosis.found} of {n} {what} are classified correctly"
    if largest >= outputs:
        diagnosis.add("wrong", f"The test images have labels up to {largest}, but the network has {outputs} classes.")
    elif expected is None:
        guessed = f" Guessing is as accurate. {CAUSES}" if accuracy_fits(share, 100 / outputs, n) else ""
        diagnosis.add("note", f"{sentence}; the suite states no expected accuracy (accuracy = ...).{guessed}{hint}")
    elif not accuracy_fits(share, expected, n):
        diagnosis.add("wrong", f"{sentence}, {expected:.2f} % were expected. {CAUSES}{hint}")


def _estimate(suite: Suite, network: Network, model: nn.Module, out: Path) -> Diagnosis:
    """Estimate what a benchmark of all methods on a network needs."""
    diagnosis = Diagnosis("costs", "ok", str(out))
    methods = [Spec(name) for name in registered()]
    plan = make_plan(suite.sources_for(tuning=False), model, methods, out / "banks", head=network.table.head)
    if plan is not None:
        diagnosis.sentence = f"A benchmark of all methods needs {plan}."
        try:
            plan.check(out)
        except InsufficientResourcesError as error:
            diagnosis.add("wrong", str(error))
    return diagnosis


def _origin(source: ImageSource, row: int) -> tuple[int, str]:
    """Return the position of an image in its file or folder, and its relative path if it is a file."""
    while isinstance(source, ImageSubset):
        row = int(source.chosen[row])
        source = source.source
    return row, source.paths[row] if isinstance(source, FolderImages | ListImages) else f"row {row}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
