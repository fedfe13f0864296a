"""The images of a suite file: from where, which of them, how many there should be."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.feature_files import FeatureRows
from ...models.images import FolderImages, ListImages, Transform, open_images
from ...models.sources import Source
from .schema import KINDS, SPLITS, TRANSFORM, Table, expanded, title, told
from .suite import OodSet

Rows = NDArray[np.int64]

LEARNT = "methods would be judged on what they learn from"

KNOWN = "they are known, not unknown"

RIVALS = {  # two that must not share an image, and why
    **{frozenset(pair): LEARNT for pair in (("test", "train"), ("test", "val"), ("ood", "ood_val"))},
    **{frozenset(("ood", split)): KNOWN for split in SPLITS},
    **{frozenset(("ood_val", split)): KNOWN for split in SPLITS},
}

COLUMNS = {"npz": ("x", "y"), "table": ("image", "label")}  # what images and labels are called if nothing is said


class SuiteData:
    """The images of a suite file for one network; what several data sets share is read once.

    Args:
        document: The checked content of the file.
        folder: Where its relative paths start.
        variables: What ``$NAME`` in a path stands for.
        batch_size: Images per forward pass.
        seed: Of every draw.
        transform: Entries of the transform that are the network's own.
        any_counts: Whether a data set may have another number of images than it should.

    Attributes:
        deviations: One sentence for every data set that has.
    """

    def __init__(
        self,
        document: Table,
        folder: Path,
        variables: Mapping[str, str],
        batch_size: int,
        seed: int,
        transform: Table,
        any_counts: bool = False,
    ) -> None:
        self.document, self.folder, self.variables = document, folder, variables
        self.batch_size, self.seed, self.any_counts = batch_size, seed, any_counts
        self.deviations: list[str] = []
        self.read: dict[tuple[Any, ...], Source] = {}
        self.classes: dict[str, tuple[str, ...]] = {}
        self.taken: list[tuple[str, tuple[Any, ...], NDArray[Any]]] = []
        with told("[transform]" + (", as a network changes it" if transform else "")):
            self.transform = Transform(**{**document.get("transform", {}), **transform})

    def unknown_set(self, table: Table) -> OodSet:
        """Return a data set that methods are judged on."""
        images = self.unknown("ood", table)
        return OodSet(table["name"], table["group"], images, table.get("about", ""))

    def unknown(self, section: str, table: Table) -> Source:
        """Return the images of a section, without labels."""
        with told(title(section, table)):
            source = self.whole(table, labelled=False)
            self._check_count(table, source, table.get("name", section))
            return self._picked(section, source, np.arange(source.rows), table)

    def split(self, name: str) -> Source:
        """Return the rows that a split takes, with labels."""
        taken, _ = self._draw(name)
        with told(f"[{name}]"):
            source = self.whole(self.document[name], labelled=True)
            self._check_classes(name, source)
            self._check_count(self.document[name], source, name)
            return self._picked(name, source, taken, self.document[name])

    def _check_classes(self, name: str, source: Source) -> None:
        """Raise unless all folders of known images have the same classes, or labels would mean different things."""
        if not isinstance(source, FolderImages):
            return
        for other, classes in self.classes.items():
            if classes != source.classes:
                odd = ", ".join(sorted(set(classes) ^ set(source.classes))[:5])
                raise ValueError(f"its class folders are not those of [{other}]: {odd} is in one of them only.")
        self.classes[name] = source.classes

    def _check_count(self, table: Table, source: Source, name: str) -> None:
        """Raise, or note, if a data set has not as many images as it should."""
        found, expected = source.rows, table.get("expect", source.rows)
        if found == expected:
            return
        sentence = f"{name} has {found} images, {expected} were expected"
        if found == table.get("outdated"):
            sentence += "; so many are in an older version of it, and the two must not be mixed"
        if not self.any_counts:
            again = "Get the lists again" if "list" in table else "Look whether all of them are there"
            raise ValueError(f"{sentence}. {again}, or pass --any-counts to judge these.")
        if sentence not in self.deviations:
            self.deviations.append(sentence)

    def _picked(self, section: str, source: Source, rows: Rows, table: Table) -> Source:
        """Return the part of ``rows`` that a section wants, unless methods would be judged on what they learn from."""
        rows = rows[table.get("skip", 0) :]
        if not len(rows):
            raise ValueError(f"skip = {table['skip']} leaves no image.")
        wanted = table.get("first", len(rows))
        if wanted > len(rows):
            raise ValueError(f"first = {wanted} needs as many images, but there are {len(rows)}.")
        rows = rows[:wanted]
        self._check_apart(section, *_identities(source, self.place(table), rows))
        return source if wanted == source.rows else source.subset(rows)

    def _check_apart(self, section: str, place: tuple[Any, ...], images: NDArray[Any]) -> None:
        """Raise if a section takes images that another one takes and must not share."""
        for other, there, taken in self.taken:
            why = RIVALS.get(frozenset((section, other)))
            shared = len(np.intersect1d(images, taken)) if why and there == place else 0
            if shared:
                raise ValueError(
                    f"{shared} of its images are in [{other}] too: {why}. "
                    "Divide them with rest_of, or with first and skip."
                )
        self.taken.append((section, place, images))

    def _draw(self, name: str, asked: tuple[str, ...] = ()) -> tuple[Rows, Rows]:
        """Return the rows that a split takes and those that it leaves; ``asked`` are the splits that wait for it."""
        table = self.document[name]
        with told(f"[{name}]"):
            source = self.whole(table, labelled=True)
            if source.labels is None:
                raise ValueError("its images need labels, but the folder has none. Give each class a sub-folder.")
            rows = self._rest(name, table["rest_of"], asked) if "rest_of" in table else np.arange(source.rows)
            if "per_class" not in table:
                return rows, rows[:0]
            taken = _of_each_class(rows, source.labels.numpy(), table["per_class"], self.seed)
            return taken, np.setdiff1d(rows, taken)

    def _rest(self, name: str, other: str, asked: tuple[str, ...]) -> Rows:
        """Return the rows that another split leaves."""
        if other in (name, *asked):
            raise ValueError(f"rest_of = {other!r} goes round in a circle. One of the splits must draw from all rows.")
        if other not in self.document:
            raise ValueError(f"rest_of = {other!r} needs a section [{other}], but there is none.")
        with told(f"[{other}]"):
            there = self.place(self.document[other])
        if self.place(self.document[name]) != there:
            raise ValueError(f"rest_of = {other!r} needs the images of [{other}]: name the same source.")
        if "per_class" not in self.document[other]:
            raise ValueError(f"rest_of = {other!r} needs per_class in [{other}], which takes all rows without it.")
        _, rest = self._draw(other, (*asked, name))
        if not len(rest):
            raise ValueError(f"rest_of = {other!r} is empty: [{other}] draws all rows. Lower its per_class.")
        return rest

    def place(self, table: Table) -> tuple[str, Path, str]:
        """Return where the images of a section lie: the kind of source, its path, and the array or folder in it."""
        kinds = [kind for kind in KINDS if kind in table]
        if len(kinds) != 1:
            raise ValueError(f"images come from one of {', '.join(KINDS)}, got {' and '.join(kinds) or 'none'}.")
        (kind,) = kinds
        if kind not in COLUMNS and not table.keys().isdisjoint("xy"):
            raise ValueError(f"x and y name arrays in a npz or columns of a table, but this is a {kind}. Remove them.")
        if (kind == "list") != ("images" in table):
            raise ValueError(
                "images = is the folder in which the paths of a list start: give it with list, and only then."
            )
        prepared = sorted(TRANSFORM.keys() & table.keys())
        if kind == "bank" and prepared:
            raise ValueError(f"{prepared[0]} prepares images, but a bank holds their features. Remove it.")
        with told(kind):
            path = self._path(table[kind])
            if kind == "list":
                return kind, path, str(self._path(table["images"]))
            return kind, path, table.get("x", COLUMNS.get(kind, "x")[0])

    def whole(self, table: Table, labelled: bool) -> Source:
        """Return all images of the file or folder that a section names."""
        transform = replace(self.transform, **{key: table[key] for key in TRANSFORM.keys() & table.keys()})
        kind, path, x = self.place(table)
        labels = table.get("y", True) if labelled else False
        root, images = (x, None) if kind == "list" else (None, x)
        key = (kind, path, x, labels, transform)
        if key not in self.read:
            with told(kind):
                self.read[key] = (
                    FeatureRows(path, self.batch_size, labels=labelled)
                    if kind == "bank"
                    else open_images(
                        path, transform, self.batch_size, labels=labels, kind=kind, root=root, images=images
                    )
                )
        return self.read[key]

    def _path(self, text: str) -> Path:
        return expanded(text, self.folder, self.variables)


def _identities(source: Source, place: tuple[Any, ...], rows: Rows) -> tuple[tuple[Any, ...], NDArray[Any]]:
    """Return a place and what tells its images apart: their row, or in a list their path, which others may name too."""
    if isinstance(source, ListImages):
        return ("list", source.root.resolve()), np.array(source.paths)[rows]
    return place, rows


def _of_each_class(rows: Rows, labels: Rows, per_class: int, seed: int) -> Rows:
    """Return ``per_class`` random rows of each class that occurs in ``labels``, in their order."""
    rng = np.random.default_rng(seed)
    drawn = []
    for label in np.unique(labels):
        own = rows[labels[rows] == label]
        if len(own) < per_class:
            raise ValueError(
                f"per_class = {per_class} needs as many images of every class, but class {label} has {len(own)}."
            )
        drawn.append(rng.choice(own, per_class, replace=False))
    return np.sort(np.concatenate(drawn))
