"""Suites from a TOML file: any networks, evaluated on any images.

``examples/cifar10.toml`` shows every part of such a file, ``schema.py`` lists all keys. An unknown key is an error, so
that a misspelt key is not ignored. The benchmarks of OpenOOD are suite files too.
"""

import hashlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from ...data.feature_files import FeatureRows, linear_head
from ...data.images import FolderImages, ImageFiles, ListImages, Transform, open_images
from ...data.masks import MaskedImages
from ...data.sources import ImageSource, Source
from ...data.text_files import TextSource, open_texts
from ...data.texts import Tokeniser
from ...network.model_loading import load_weights, make_model, named_model, read_config, tokeniser_folder
from .schema import (
    OPENOOD,
    SPLITS,
    VARIABLE,
    ImageTable,
    NetworkTable,
    SplitTable,
    SuiteTable,
    error_context,
    read_document,
    section_title,
)
from .suite import FOLDERS, OodSet, Suite

Rows = NDArray[np.int64]

PROBED = 10  # images of a list that are looked for to decide whether its images exist
WAYS = {  # what the variables of the suites that are part of flatfold stand for, and where this is to be had
    OPENOOD: "OpenOOD's folder of data and results, or give it as data=",
    "STREETHAZARDS": "the folder with `train` and `test` of StreetHazards, part of the CAOS benchmark, whose authors "
    "(Hendrycks et al., 2022) publish both archives in the repository anomaly-seg",
    "CITYSCAPES": "the folder with `leftImg8bit` and `gtFine` of Cityscapes, which its site gives to registered users",
    "LOSTANDFOUND": "the folder with `leftImg8bit` of the data set Lost and Found (Pinggera et al., 2016), published "
    "with its successors on the site 6D-Vision and by Fishyscapes",
    "FISHYSCAPES": "the folder of the 100 masks `*_labels.png` of Fishyscapes Lost & Found, which the site of "
    "Fishyscapes publishes for validation",
    "SEGMENTMEIFYOUCAN": "the folder with `dataset_AnomalyTrack` and `dataset_ObstacleTrack`, which the site of the "
    "benchmark SegmentMeIfYouCan (Chan et al., 2021) publishes",
}
LEFT_OUT = -100  # the class of pixels whose value in a mask is ignored
IMAGES = {"npz": "x", "table": "image"}  # default array or column of the images
LEARNT = "methods would be evaluated on what they learn from"
DISJOINT = {  # sections that must not share an image, and why
    **{frozenset(pair): LEARNT for pair in (("test", "train"), ("test", "val"), ("ood", "ood_val"))},
    **{frozenset((ood, split)): "they are ID, not OOD" for ood in ("ood", "ood_val") for split in SPLITS},
}

log = logging.getLogger(__name__)


class Network(NamedTuple):
    """One network to evaluate, such as ``resnet18-s1`` of the family ``resnet18``.

    ``seed`` is the seed of its training, ``draws`` the seed of the random draws of images.
    """

    name: str
    family: str
    seed: int
    draws: int
    table: NetworkTable

    @property
    def origin(self) -> str:
        """The path of its weights as written in the file, or else the name of the code or library that makes it."""
        table = self.table
        return (table.weights or table.factory or table.model or table.linear or "").replace("{seed}", str(self.seed))


class SuiteFile:
    """A validated suite file; its images and networks are opened on demand.

    Relative paths in it start from its folder, and ``$NAME`` stands for one of ``variables``, by default those of the
    environment. ``seeds`` replace those of the file for networks and draws; the default of both is 0. With
    ``any_counts`` data sets may have another number of images than expected.
    """

    def __init__(
        self,
        path: Path,
        seeds: Sequence[int] | None = None,
        batch_size: int = 256,
        any_counts: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self.batch_size, self.any_counts = path, batch_size, any_counts
        self.variables = os.environ if variables is None else variables
        with error_context(str(path)):
            self.document = read_document(path)
            self.networks = _list_networks(self.document, seeds)
        self._data: dict[tuple[Transform, int, Path | None], SuiteData] = {}

    def expand(self, text: str) -> Path:
        """Return a path of the file with its variables replaced."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if not self.variables.get(name):
                way = WAYS.get(name, "a folder")
                raise FileNotFoundError(f"the environment variable {name} is not set. Set it to {way}.")
            return self.variables[name]

        # Resolved, because the same file may be written in two ways.
        return (self.path.parent / VARIABLE.sub(value, text)).resolve()

    def data(self, network: Network) -> "SuiteData":
        """Return the images as a network needs them; networks with equal transforms and draws share them."""
        own = network.table.transform.settings
        with error_context("[transform]" + (", as a network changes it" if own else "")):
            transform = Transform(**self.document.transform.settings | own)
        table = network.table
        folder = self.expand(table.tokenizer) if table.tokenizer else tokeniser_folder(table.model or "")
        key = transform, network.draws, folder
        if key not in self._data:
            self._data[key] = SuiteData(self, *key)
        return self._data[key]

    def suites(self, names: Sequence[str] | None = None) -> list[Suite]:
        """Return one suite per network, or only those of ``names``, which may be names of networks or of families."""
        with error_context(str(self.path)):
            for name in names or ():
                if not any(name in (network.name, network.family) for network in self.networks):
                    known = ", ".join(network.name for network in self.networks)
                    raise ValueError(f"no network is called {name!r}. Choose from {known}.")
            chosen = [it for it in self.networks if names is None or {it.name, it.family} & set(names)]
            models = [self.load_network(network) for network in chosen]
            shared = {data: data.suite() for data in dict.fromkeys(map(self.data, chosen))}
            return [
                replace(
                    shared[self.data(network)],
                    model=model,
                    seed=network.seed,
                    network=network.name,
                    family=network.family,
                    head=network.table.head,
                    accuracy=network.table.accuracy,
                    architecture=network.table.model or network.table.factory or "",
                    deviations=(*self.data(network).deviations.values(), *self._changed_keys(network)),
                )
                for network, model in zip(chosen, models, strict=True)
            ]

    def load_network(self, network: Network) -> nn.Module:
        """Return a network in evaluation mode, with its weights."""
        table = network.table
        with error_context(section_title("network", table.name)):
            maker, weights = table.maker, self.expand(network.origin) if table.weights else None
            with error_context(maker):
                if table.linear:
                    return linear_head(self.expand(table.linear))
                if table.model:
                    return named_model(table.model, weights, table.pretrained)
                model = make_model(str(table.factory), self.path.parent, network.seed)
            if weights is not None:
                with error_context("weights"):
                    load_weights(model, weights)
            return model.eval()

    def _changed_keys(self, network: Network) -> list[str]:
        """Return at most one sentence: the keys in which a network departs from the protocol of the suite."""
        own = {*network.table.transform.settings, *(["head"] if network.table.head else [])}
        if (network.table.model or "").startswith("torchvision/"):
            own -= {"resize", "crop", "interpolation"}  # torchvision publishes them with the weights
        if not self.document.protocol or not own:
            return []
        return [f"the network {network.name} has its own {', '.join(sorted(own))}"]


class SuiteMasks(MaskedImages):
    """Images with masks, whose classes may have other numbers than the outputs of the network.

    Classes are numbered from ``first_class``, and values that are ``ignored`` become ``LEFT_OUT``.
    """

    def __init__(
        self, source: ImageFiles, masks: Path, paths: Sequence[str], first_class: int, ignored: Sequence[int]
    ) -> None:
        super().__init__(source, masks, paths)
        self.first_class, self.ignored = first_class, ignored

    def mask(self, row: int, picture: Image.Image | NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the class of each pixel of an image, resized and cropped like it."""
        values = super().mask(row, picture)
        return np.where(np.isin(values, self.ignored), np.int32(LEFT_OUT), values - np.int32(self.first_class))

    def _identify(self, digest: "hashlib._Hash") -> None:
        super()._identify(digest)
        digest.update(repr([self.first_class, list(self.ignored)]).encode())


def find_masks(
    images: Sequence[str], folder: Path, pattern: str, ending: str | None, partial: bool
) -> tuple[list[int], list[str]]:
    """Return the rows of the images that have a mask or, unless ``partial``, must have one, and the paths of the masks.

    Images that do not end with ``ending`` are left out. In ``pattern``, ``{}`` is the name of an image without its
    ending, and ``*`` any text; masks are in the same folder as the image below ``folder``, or directly in it if the
    pattern begins with ``/``.
    """
    listed: dict[Path, list[str]] = {}
    rows, found = [], []
    for row, path in enumerate(images):
        if ending is not None and not path.endswith(ending):
            continue
        place = PurePosixPath(path)
        stem = place.name.removesuffix(ending) if ending else place.stem
        name, parent = (
            pattern.removeprefix("/").replace("{}", stem),
            PurePosixPath("." if pattern[0] == "/" else place.parent),
        )
        if "*" in name:
            inside = folder / parent
            if inside not in listed:
                listed[inside] = sorted(it.name for it in inside.iterdir()) if inside.is_dir() else []
            fitting = [it for it in listed[inside] if fnmatchcase(it, name.replace("[", "[[]"))]
            if len(fitting) > 1:
                raise ValueError(f"{path} has several masks: {fitting[0]} and {fitting[1]}. Write mask = more exactly.")
            name = fitting[0] if fitting else name
        if partial and not (folder / parent / name).is_file():
            continue
        rows.append(row)
        found.append(str(parent / name))
    return rows, found


class SuiteData:
    """The images or texts of a suite file, prepared by one transform or tokeniser; sections with one source share it.

    Attributes:
        deviations: A sentence for each data set with an unexpected number of images.
        classes: Names of the classes by split.
    """

    def __init__(self, file: SuiteFile, transform: Transform, seed: int, tokeniser: Path | None = None) -> None:
        self.tokeniser = tokeniser
        self.file, self.document, self.transform, self.seed = file, file.document, transform, seed
        self.deviations: dict[str, str] = {}
        self.classes: dict[str, tuple[str, ...]] = {}
        self._opened: dict[tuple[Any, ...], Source] = {}
        self._taken: list[tuple[str, tuple[Any, ...], NDArray[Any]]] = []

    def suite(self) -> Suite:
        """Return the suite without a network."""
        document = self.document
        return Suite(
            name=document.name or self.file.path.stem,
            about=document.about,
            model=nn.Identity(),
            train=self._train(),
            val=self.take("val", document.val),
            test=self.take("test", document.test),
            ood=tuple(
                OodSet(it.name, it.group, self.take("ood", it), it.about, it.printed, it.anomalies)
                for it in document.ood
            ),
            ood_val=self.take("ood_val", document.ood_val) if document.ood_val else None,
            seed=self.seed,
            siblings=tuple(network.name for network in self.file.networks),
            classes=next(iter(self.classes.values()), ()),
            protocol=document.protocol,
            ignored=(*document.ignored, LEFT_OUT),
        )

    def _train(self) -> Source | None:
        """Return the training images, None if the file has none or they are optional and missing."""
        table = self.document.train
        if table is None:
            return None
        try:
            source = self.take("train", table)
            if not (table.optional and lacks_images(source)):
                return source
            reason = "the first images of the list do not exist"
        except (FileNotFoundError, NotADirectoryError) as error:
            if not table.optional:
                raise
            reason = str(error)
        log.warning("no training images, so methods that learn from them are left out: %s", reason)
        return None

    def take(self, section: str, table: ImageTable) -> Source:
        """Return the images that a section selects, with labels if it is a split."""
        name: str = getattr(table, "name", section)
        with error_context(section_title(section, name)):
            source = self.open(table)
            rows = self._draw(section, table)[0] if isinstance(table, SplitTable) else np.arange(source.rows)
            if isinstance(source, FolderImages) and isinstance(table, SplitTable):
                for other, classes in self.classes.items():
                    if classes != source.classes:
                        odd = ", ".join(sorted(set(classes) ^ set(source.classes))[:5])
                        raise ValueError(
                            f"its class folders differ from those of [{other}]: {odd} is in one of them only. "
                            "Give all splits the same classes."
                        )
                self.classes[section] = source.classes
            self._check_count(name, table, source)
            rows = rows[table.skip :]
            if not len(rows):
                raise ValueError(f"skip = {table.skip} leaves no image. Lower it.")
            wanted = table.first or len(rows)
            if wanted > len(rows):
                raise ValueError(f"first = {wanted} is more than the {len(rows)} images there are. Lower it.")
            rows = rows[:wanted]
            self._check_disjoint(section, table, source, rows)
            return source if wanted == source.rows else source.subset(rows)

    def place(self, table: ImageTable) -> tuple[str, Path, str]:
        """Return the kind of a section's source, its path, and the array, column or folder of the images."""
        kind = table.kind
        inside = str(self.file.expand(table.images)) if table.images else table.x or IMAGES.get(kind, "")
        return kind, self.file.expand(getattr(table, kind)), inside

    def open(self, table: ImageTable) -> Source:
        """Return all images of the file or folder that a section names, with labels if it is a split."""
        transform = replace(self.transform, **table.settings)
        kind, path, images = self.place(table)
        labels = isinstance(table, SplitTable) and table.masks is None and (table.y or True)
        first = table.first_class if isinstance(table, SplitTable) else 0
        where = (table.masks, table.mask, table.ending, table.partial, first)
        key = (kind, path, images, labels, transform, where)
        if key not in self._opened:
            size = 1 if table.masks else self.file.batch_size  # images with masks may differ in size
            names = {"root": images} if kind == "list" else {"images": images or None}
            with error_context(kind):
                if kind == "bank":
                    self._opened[key] = FeatureRows(path, size, labels=bool(labels))
                elif kind == "texts":
                    self._opened[key] = self._open_texts(path, labels, table.x)
                else:
                    source = open_images(path, transform, size, labels=labels, kind=kind, **names)
                    if table.masks is not None:
                        with error_context("masks"):
                            source = self._with_masks(source, table, first)
                    self._opened[key] = source
        return self._opened[key]

    def _with_masks(self, source: Source, table: ImageTable, first_class: int) -> ImageSource:
        """Return images with their masks, those without one left out if ``partial``."""
        assert isinstance(source, ImageFiles)
        assert table.masks is not None
        folder = self.file.expand(table.masks)
        kept, masks = find_masks(source.paths, folder, table.mask, table.ending, table.partial)
        if not kept:
            raise FileNotFoundError(
                f"none of the {source.rows} images has a mask {table.mask!r} in {folder}. Check masks =, mask = and "
                "ending =."
            )
        chosen = copy(source)
        chosen.paths, chosen.rows = tuple(source.paths[row] for row in kept), len(kept)
        return SuiteMasks(chosen, folder, masks, first_class, self.document.ignored)

    def _open_texts(self, path: Path, labels: bool | str, column: str | None) -> TextSource:
        """Return the texts of a file, with the tokeniser of the network."""
        if self.tokeniser is None:
            raise ValueError(
                "texts need a tokeniser. Set tokenizer = in [[network]], the folder of one, or name a model = "
                "'transformers/FOLDER' with a tokeniser in the folder."
            )
        tokeniser = Tokeniser.in_folder(self.tokeniser)
        config = read_config(self.tokeniser)
        if tokeniser.longest is None and config.longest is not None:
            tokeniser = Tokeniser.in_folder(self.tokeniser, config.longest)
        return open_texts(path, tokeniser, self.file.batch_size, labels=labels, text=column, classes=config.classes)

    def _check_count(self, name: str, table: ImageTable, source: Source) -> None:
        """Compare the number of images with the expected one; raise ValueError, or note a deviation if allowed."""
        if table.expect in (None, source.rows):
            return
        sentence = f"{name} has {source.rows} images, {table.expect} were expected"
        if source.rows == table.outdated:
            sentence += "; this is the number of an older version, and versions must not be mixed"
        if not self.file.any_counts:
            again = "Download the lists again" if table.list else "Check that all of them are there"
            raise ValueError(f"{sentence}. {again}, or use these with any_counts=True.")
        self.deviations[name] = sentence

    def _check_disjoint(self, section: str, table: ImageTable, source: Source, rows: Rows) -> None:
        """Raise ValueError if a section shares images with another one from which it must be disjoint."""
        place: tuple[Any, ...] = self.place(table)
        images: NDArray[Any] = rows
        if isinstance(source, ListImages):  # several lists may name one image
            place, images = ("list", source.root.resolve()), np.array(source.paths)[rows]
        for other, other_place, taken in self._taken:
            why = DISJOINT.get(frozenset((section, other)))
            shared = len(np.intersect1d(images, taken)) if why and other_place == place else 0
            if shared:
                raise ValueError(
                    f"{shared} of its images are in [{other}] too: {why}. "
                    "Divide them with rest_of, or with first and skip."
                )
        self._taken.append((section, place, images))

    def _draw(self, name: str, table: SplitTable, waiting: tuple[str, ...] = ()) -> tuple[Rows, Rows]:
        """Return the rows that a split draws and the remaining ones; ``waiting`` are the splits that depend on it."""
        source = self.open(table)
        if source.masked:
            if table.per_class or table.rest_of:
                raise ValueError("images with masks have no single class. Divide them with first and skip instead.")
            return np.arange(source.rows), np.arange(0)
        if source.labels is None:
            raise ValueError("its images need labels, but the folder has none. Give each class a sub-folder.")
        rows = self._rest(name, table, waiting) if table.rest_of else np.arange(source.rows)
        if table.per_class is None:
            return rows, rows[:0]
        rng, drawn, count, labels = np.random.default_rng(self.seed), [], table.per_class, source.labels.numpy()
        for label in np.unique(labels):
            members = rows[labels[rows] == label]
            if len(members) < count:
                raise ValueError(
                    f"per_class = {count} is too many: class {label} has {len(members)} images. Lower per_class."
                )
            drawn.append(rng.choice(members, count, replace=False))
        taken = np.sort(np.concatenate(drawn))
        return taken, np.setdiff1d(rows, taken)

    def _rest(self, name: str, table: SplitTable, waiting: tuple[str, ...]) -> Rows:
        """Return the rows that another split does not draw."""
        key, other = f"rest_of = {table.rest_of!r}", str(table.rest_of)
        source: SplitTable | None = getattr(self.document, other)
        if other in (name, *waiting):
            raise ValueError(f"{key} closes a circle. One of the splits must draw from all rows.")
        if source is None:
            raise ValueError(f"{key} needs a section [{other}], but there is none. Add it.")
        with error_context(f"[{other}]"):
            place = self.place(source)
        if self.place(table) != place:
            raise ValueError(f"{key} needs the images of [{other}]: name the same source.")
        if source.per_class is None:
            raise ValueError(f"{key} needs per_class in [{other}], which takes all rows without it.")
        with error_context(f"[{other}]"):
            _, rest = self._draw(other, source, (*waiting, name))
        if not len(rest):
            raise ValueError(f"{key} is empty: [{other}] draws all rows. Lower its per_class.")
        return rest


def lacks_images(source: Source) -> bool:
    """Return whether a source is a list of images of which the first do not exist."""
    if not isinstance(source, ListImages):
        return False
    return not any((source.root / path).exists() for path in source.paths[:PROBED])


def _list_networks(document: SuiteTable, seeds: Sequence[int] | None) -> list[Network]:
    """Return the networks of a suite file, one per seed: the given ones, or those of its section, or of the file."""
    drawn = any(table.per_class for table in (document.train, document.val, document.test) if table)
    chosen = [document.seed] if seeds is None else seeds
    networks: list[Network] = []
    for table in document.network:
        name, own = table.name, table.seeds
        fixed = bool(table.weights or table.pretrained or table.linear)
        with error_context(section_title("network", name)):
            if name in FOLDERS:
                raise ValueError(f"this name is reserved: results have a folder {name}. Choose another.")
            if own is None:
                if len(chosen) > 1 and fixed and not drawn:
                    raise ValueError(
                        "neither its weights nor its images depend on a seed, so all seeds would give the same result. "
                        "Write {seed} into the path of its weights and set seeds, or draw images with per_class."
                    )
                names = [f"{name}-seed{seed}" if len(chosen) > 1 else name for seed in chosen]
                networks += [Network(its, name, seed, seed, table) for its, seed in zip(names, chosen, strict=True)]
                continue
            if fixed and "{seed}" not in (table.weights or ""):
                raise ValueError("seeds needs {seed} in the path of its weights, or all networks would be the same.")
            for seed in sorted(set(seeds or ()) - set(own)):
                raise ValueError(f"it has no seed {seed}. Choose from {', '.join(map(str, own))}.")
            networks += [Network(f"{name}-s{seed}", name, seed, document.seed, table) for seed in seeds or own]
    for names in ([table.name for table in document.network], [network.name for network in networks]):
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two networks are called {name}. Rename one, and list every seed once.")
    return networks
