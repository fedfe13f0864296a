"""Suites from a TOML file: any networks, evaluated on any images.

``examples/cifar10.toml`` shows every part of such a file, ``schema.py`` has all keys; an unknown key is an error, so a
misspelt one never passes for one that was left out. The benchmarks of OpenOOD are such files too.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ...data.feature_files import FeatureRows, linear_head
from ...data.images import FolderImages, ListImages, Transform, open_images
from ...data.sources import Source
from ...network.model_loading import load_weights, make_model, named_model
from .schema import KINDS, OPENOOD, SPLITS, TRANSFORM, VARIABLE, Table, error_context, read_document, section_title
from .suite import FOLDERS, OodSet, Suite

Rows = NDArray[np.int64]

MAKERS = ("factory", "model", "linear")
LOOKED_FOR = 10  # images of a list, before it is taken to be there
IMAGES = {"npz": "x", "table": "image"}  # the array or column of the images, by default
LEARNT = "methods would be evaluated on what they learn from"
RIVALS = {  # sections that must not share an image, and why
    **{frozenset(pair): LEARNT for pair in (("test", "train"), ("test", "val"), ("ood", "ood_val"))},
    **{frozenset((ood, split)): "they are ID, not OOD" for ood in ("ood", "ood_val") for split in SPLITS},
}

log = logging.getLogger(__name__)


class Network(NamedTuple):
    """One network to evaluate: ``resnet18-s1`` of the family ``resnet18``, say.

    ``seed`` is that of its training, ``draws`` that of the draws of images for it, ``table`` its section in the file.
    """

    name: str
    family: str
    seed: int
    draws: int
    table: Table


class SuiteFile:
    """A suite file, read and checked; its images and networks are opened when they are asked for.

    Relative paths in it start from its folder, and ``$NAME`` stands for one of ``variables``, by default those of the
    environment. ``seeds`` replace the file's own, of networks and draws; without either it is 0.
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
        self._data: dict[tuple[Transform, int], SuiteData] = {}

    def expand(self, text: str) -> Path:
        """Return a path of the file with the variables in it replaced."""
        for short, long in VARIABLE.findall(text):
            name = short or long
            if not self.variables.get(name):
                way = (
                    "the folder that holds OpenOOD's data and results, or give --data"
                    if name == OPENOOD
                    else "a folder"
                )
                raise FileNotFoundError(f"the environment variable {name} is not set. Set it to {way}.")
        whole = VARIABLE.sub(lambda match: self.variables[match[1] or match[2]], text)
        return (self.path.parent / whole).resolve()  # one file may be written in two ways

    def data(self, network: Network) -> "SuiteData":
        """Return the images as a network needs them; networks with the same needs share them."""
        own = network.table.get("transform", {})
        with error_context("[transform]" + (", as a network changes it" if own else "")):
            transform = Transform(**{**self.document.get("transform", {}), **own})
        key = transform, network.draws
        if key not in self._data:
            self._data[key] = SuiteData(self, *key)
        return self._data[key]

    def suites(self, names: Sequence[str] | None = None) -> list[Suite]:
        """Return one suite for each network, or for those that are named by themselves or by their family."""
        with error_context(str(self.path)):
            for name in names or ():
                if not any(name in (network.name, network.family) for network in self.networks):
                    there = ", ".join(network.name for network in self.networks)
                    raise ValueError(f"no network is called {name!r}. There are {there}.")
            chosen = [it for it in self.networks if names is None or {it.name, it.family} & set(names)]
            models = [self.load_network(network) for network in chosen]
            sources = {data: self._sources(data) for data in dict.fromkeys(map(self.data, chosen))}
            return [
                Suite(
                    name=self.document.get("name", self.path.stem),
                    about=self.document.get("about", ""),
                    model=model,
                    seed=network.seed,
                    network=network.name,
                    family=network.family,
                    head=network.table.get("head"),
                    accuracy=network.table.get("accuracy"),
                    architecture=network.table.get("model") or network.table.get("factory", ""),
                    protocol=self.document.get("protocol", ""),
                    deviations=(*self.data(network).deviations.values(), *self._changed_keys(network)),
                    siblings=tuple(sibling.name for sibling in self.networks),
                    classes=next(iter(self.data(network).classes.values()), ()),
                    **sources[self.data(network)],
                )
                for network, model in zip(chosen, models, strict=True)
            ]

    def load_network(self, network: Network) -> nn.Module:
        """Return a network in evaluation mode, with its weights."""
        table = network.table
        with error_context(section_title("network", table)):
            keys = [key for key in MAKERS if key in table]
            if len(keys) != 1:
                made = " and ".join(keys) or "none"
                raise ValueError(f"a network is made by one of {', '.join(MAKERS)}, got {made}.")
            if "pretrained" in table and keys != ["model"]:
                raise ValueError("pretrained = belongs to model = only. Remove it, or name a file of weights.")
            if "weights" in table and keys == ["linear"]:
                raise ValueError("linear = names a file of weights already. Remove weights =.")
            weights = None
            if "weights" in table:
                weights = self.expand(table["weights"].replace("{seed}", str(network.seed)))
            with error_context(keys[0]):
                if keys == ["linear"]:
                    return linear_head(self.expand(table["linear"]))
                if keys == ["model"]:
                    return named_model(table["model"], weights, table.get("pretrained"))
                model = make_model(table["factory"], self.path.parent, network.seed)
            if weights is not None:
                with error_context("weights"):
                    load_weights(model, weights)
            return model.eval()

    def _changed_keys(self, network: Network) -> list[str]:
        """Return in what a network departs from the protocol of the suite, as one sentence or none."""
        table = network.table
        own = set(table.get("transform", {})) | ({"head"} & table.keys())
        if table.get("model", "").startswith("torchvision/"):
            own -= {"resize", "crop", "interpolation"}  # which torchvision gives with the weights
        if "protocol" not in self.document or not own:
            return []
        return [f"the network {network.name} has its own {', '.join(sorted(own))}"]

    def _sources(self, data: "SuiteData") -> dict[str, Any]:
        """Return all data sets of a suite, by the name of its argument."""
        document = self.document
        return {
            "train": self._train(data),
            "val": data.take("val", document["val"]),
            "test": data.take("test", document["test"]),
            "ood": tuple(
                OodSet(table["name"], table["group"], data.take("ood", table), table.get("about", ""))
                for table in document["ood"]
            ),
            "ood_val": data.take("ood_val", document["ood_val"]) if "ood_val" in document else None,
        }

    def _train(self, data: "SuiteData") -> Source | None:
        """Return the training images, None if the file has none or they are optional and not there."""
        table = self.document.get("train")
        if table is None:
            return None
        try:
            source = data.take("train", table)
            if not (table.get("optional") and lacks_images(source)):
                return source
            reason = "the first images of the list do not exist"
        except (FileNotFoundError, NotADirectoryError) as error:
            if not table.get("optional"):
                raise
            reason = str(error)
        log.warning("there are no training images, so methods that learn from them are left out: %s", reason)
        return None


class SuiteData:
    """The images of a suite file, prepared by one transform; shared sources are read once.

    ``deviations`` has a sentence for every data set with another number of images than expected, ``classes`` the names
    of the classes by split.
    """

    def __init__(self, file: SuiteFile, transform: Transform, seed: int) -> None:
        self.file, self.document, self.transform, self.seed = file, file.document, transform, seed
        self.deviations: dict[str, str] = {}
        self.classes: dict[str, tuple[str, ...]] = {}
        self._opened: dict[tuple[Any, ...], Source] = {}
        self._taken: list[tuple[str, tuple[Any, ...], NDArray[Any]]] = []

    def take(self, section: str, table: Table) -> Source:
        """Return the images that a section takes, with labels if it is a split."""
        with error_context(section_title(section, table)):
            source = self.open(section, table)
            rows = self._draw(section)[0] if section in SPLITS else np.arange(source.rows)
            if isinstance(source, FolderImages) and section in SPLITS:
                for other, classes in self.classes.items():
                    if classes != source.classes:
                        odd = ", ".join(sorted(set(classes) ^ set(source.classes))[:5])
                        raise ValueError(f"its class folders are not those of [{other}]: {odd} is in one of them only.")
                self.classes[section] = source.classes
            self._check_count(table.get("name", section), table, source)
            rows = rows[table.get("skip", 0) :]
            if not len(rows):
                raise ValueError(f"skip = {table['skip']} leaves no image.")
            wanted = table.get("first", len(rows))
            if wanted > len(rows):
                raise ValueError(f"first = {wanted} needs as many images, but there are {len(rows)}.")
            rows = rows[:wanted]
            self._check_rivals(section, table, source, rows)
            return source if wanted == source.rows else source.subset(rows)

    def place(self, table: Table) -> tuple[str, Path, str]:
        """Return the kind of a section's source, its path, and the array, column or folder of the images."""
        kinds = [kind for kind in KINDS if kind in table]
        if len(kinds) != 1:
            raise ValueError(f"images come from one of {', '.join(KINDS)}, got {' and '.join(kinds) or 'none'}.")
        (kind,) = kinds
        if kind not in IMAGES and not table.keys().isdisjoint("xy"):
            raise ValueError(f"x and y name arrays of a npz or columns of a table, but this is a {kind}. Remove them.")
        if (kind == "list") != ("images" in table):
            raise ValueError("images = is the folder in which the paths of a list start. Give it with list = only.")
        prepared = sorted(table.keys() & set(TRANSFORM))
        if kind == "bank" and prepared:
            raise ValueError(f"{prepared[0]} prepares images, but a bank holds features. Remove it.")
        inside = str(self.file.expand(table["images"])) if kind == "list" else table.get("x", IMAGES.get(kind, ""))
        return kind, self.file.expand(table[kind]), inside

    def open(self, section: str, table: Table) -> Source:
        """Return all images of the file or folder that a section names, with labels if it is a split."""
        transform = replace(self.transform, **{key: table[key] for key in table.keys() & set(TRANSFORM)})
        kind, path, images = self.place(table)
        labels = section in SPLITS and table.get("y", True)
        key = (kind, path, images, labels, transform)
        if key not in self._opened:
            size, names = self.file.batch_size, {"root": images} if kind == "list" else {"images": images or None}
            with error_context(kind):
                self._opened[key] = (
                    FeatureRows(path, size, labels=bool(labels))
                    if kind == "bank"
                    else open_images(path, transform, size, labels=labels, kind=kind, **names)
                )
        return self._opened[key]

    def _check_count(self, name: str, table: Table, source: Source) -> None:
        """Raise, or note, if a data set has another number of images than expected."""
        expected = table.get("expect", source.rows)
        if source.rows == expected:
            return
        sentence = f"{name} has {source.rows} images, {expected} were expected"
        if source.rows == table.get("outdated"):
            sentence += "; an older version has this number, and versions must not be mixed"
        if not self.file.any_counts:
            again = "Get the lists again" if "list" in table else "Look whether all of them are there"
            raise ValueError(f"{sentence}. {again}, or pass --any-counts to use these.")
        self.deviations[name] = sentence

    def _check_rivals(self, section: str, table: Table, source: Source, rows: Rows) -> None:
        """Raise if a section that must not share an image with this one takes some of the same."""
        place: tuple[Any, ...] = self.place(table)
        images: NDArray[Any] = rows
        if isinstance(source, ListImages):  # several lists may name one image
            place, images = ("list", source.root.resolve()), np.array(source.paths)[rows]
        for other, other_place, taken in self._taken:
            why = RIVALS.get(frozenset((section, other)))
            shared = len(np.intersect1d(images, taken)) if why and other_place == place else 0
            if shared:
                raise ValueError(
                    f"{shared} of its images are in [{other}] too: {why}. "
                    "Divide them with rest_of, or with first and skip."
                )
        self._taken.append((section, place, images))

    def _draw(self, name: str, asked: tuple[str, ...] = ()) -> tuple[Rows, Rows]:
        """Return the rows that a split takes and those that it leaves; ``asked`` are the splits that wait for it."""
        table = self.document[name]
        source = self.open(name, table)
        if source.labels is None:
            raise ValueError("its images need labels, but the folder has none. Give each class a sub-folder.")
        rows = self._rest(name, table["rest_of"], asked) if "rest_of" in table else np.arange(source.rows)
        if "per_class" not in table:
            return rows, rows[:0]
        rng, drawn, count, labels = np.random.default_rng(self.seed), [], table["per_class"], source.labels.numpy()
        for label in np.unique(labels):
            members = rows[labels[rows] == label]
            if len(members) < count:
                there = f"class {label} has {len(members)}"
                raise ValueError(f"per_class = {count} needs as many images of every class, but {there}.")
            drawn.append(rng.choice(members, count, replace=False))
        taken = np.sort(np.concatenate(drawn))
        return taken, np.setdiff1d(rows, taken)

    def _rest(self, name: str, other: str, asked: tuple[str, ...]) -> Rows:
        """Return the rows that another split leaves."""
        if other in (name, *asked):
            raise ValueError(f"rest_of = {other!r} goes round in a circle. One of the splits must draw from all rows.")
        if other not in self.document:
            raise ValueError(f"rest_of = {other!r} needs a section [{other}], but there is none.")
        with error_context(f"[{other}]"):
            place = self.place(self.document[other])
        if self.place(self.document[name]) != place:
            raise ValueError(f"rest_of = {other!r} needs the images of [{other}]: name the same source.")
        if "per_class" not in self.document[other]:
            raise ValueError(f"rest_of = {other!r} needs per_class in [{other}], which takes all rows without it.")
        with error_context(f"[{other}]"):
            _, rest = self._draw(other, (*asked, name))
        if not len(rest):
            raise ValueError(f"rest_of = {other!r} is empty: [{other}] draws all rows. Lower its per_class.")
        return rest


def lacks_images(source: Source) -> bool:
    """Return whether a source is a list of images of which the first are not there."""
    if not isinstance(source, ListImages):
        return False
    return not any((source.root / path).exists() for path in source.paths[:LOOKED_FOR])


def _list_networks(document: Table, seeds: Sequence[int] | None) -> list[Network]:
    """Return the networks of a suite file, one for every seed; by default those of an entry, or else the file's own."""
    drawn = any("per_class" in document.get(split, {}) for split in SPLITS)
    draws = document.get("seed", 0)
    chosen = [draws] if seeds is None else seeds
    networks: list[Network] = []
    for table in document["network"]:
        name, own = table["name"], table.get("seeds")
        fixed = not table.keys().isdisjoint({"weights", "pretrained", "linear"})
        with error_context(section_title("network", table)):
            if name in FOLDERS:
                raise ValueError(f"this name is taken: results have a folder {name}. Choose another.")
            if own is None:
                if len(chosen) > 1 and fixed and not drawn:
                    raise ValueError(
                        "neither its weights nor its images depend on a seed, so several would give the same result. "
                        "Name a seed's weights with seeds and {seed}, or draw images with per_class."
                    )
                names = [f"{name}-seed{seed}" if len(chosen) > 1 else name for seed in chosen]
                networks += [Network(its, name, seed, seed, table) for its, seed in zip(names, chosen, strict=True)]
                continue
            if fixed and "{seed}" not in table.get("weights", ""):
                raise ValueError("seeds needs {seed} in the path of its weights, or all of them would be one network.")
            for seed in sorted(set(seeds or ()) - set(own)):
                raise ValueError(f"it has no seed {seed}, only {', '.join(map(str, own))}.")
            networks += [Network(f"{name}-s{seed}", name, seed, draws, table) for seed in seeds or own]
    for names in ([table["name"] for table in document["network"]], [network.name for network in networks]):
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two networks would be called {name}. Rename one, and give every seed once.")
    return networks
