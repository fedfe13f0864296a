"""The images of a suite file: their sources, the rows that each data set takes, and their expected numbers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.feature_files import FeatureRows
from ...models.images import FolderImages, ListImages, Transform, open_images
from ...models.sources import Source
from .schema import KINDS, SPLITS, TRANSFORM, Table, error_context, expand_path, section_title

Rows = NDArray[np.int64]

IMAGES = {"npz": "x", "table": "image"}  # the array or column of the images, by default
LEARNT = "methods would be evaluated on what they learn from"
RIVALS = {  # sections that must not share an image, and why
    **{frozenset(pair): LEARNT for pair in (("test", "train"), ("test", "val"), ("ood", "ood_val"))},
    **{frozenset((ood, split)): "they are ID, not OOD" for ood in ("ood", "ood_val") for split in SPLITS},
}


class SuiteData:
    """The images of a suite file for one network, which may change the transform; shared sources are read once.

    ``deviations`` has a sentence for every data set with another number of images than expected.
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
        self.classes: dict[str, tuple[str, ...]] = {}
        self._opened: dict[tuple[Any, ...], Source] = {}
        self._taken: list[tuple[str, tuple[Any, ...], NDArray[Any]]] = []
        with error_context("[transform]" + (", as a network changes it" if transform else "")):
            self.transform = Transform(**{**document.get("transform", {}), **transform})

    def unlabelled(self, section: str, table: Table) -> Source:
        """Return the images of a section, without labels."""
        with error_context(section_title(section, table)):
            source = self.open(table, labelled=False)
            self._check_count(table, source, table.get("name", section))
            return self._take(section, source, np.arange(source.rows), table)

    def split(self, name: str) -> Source:
        """Return the rows that a split takes, with labels."""
        rows, _ = self._draw(name)
        table = self.document[name]
        with error_context(f"[{name}]"):
            source = self.open(table, labelled=True)
            if isinstance(source, FolderImages):
                for other, classes in self.classes.items():
                    if classes != source.classes:
                        odd = ", ".join(sorted(set(classes) ^ set(source.classes))[:5])
                        raise ValueError(f"its class folders are not those of [{other}]: {odd} is in one of them only.")
                self.classes[name] = source.classes
            self._check_count(table, source, name)
            return self._take(name, source, rows, table)

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
        with error_context(kind):
            path = expand_path(table[kind], self.folder, self.variables)
            if kind == "list":
                return kind, path, str(expand_path(table["images"], self.folder, self.variables))
            return kind, path, table.get("x", IMAGES.get(kind, ""))

    def open(self, table: Table, labelled: bool) -> Source:
        """Return all images of the file or folder that a section names."""
        transform = replace(self.transform, **{key: table[key] for key in table.keys() & set(TRANSFORM)})
        kind, path, images = self.place(table)
        labels = table.get("y", True) if labelled else False
        key = (kind, path, images, labels, transform)
        if key not in self._opened:
            names = {"root": images} if kind == "list" else {"images": images or None}
            with error_context(kind):
                self._opened[key] = (
                    FeatureRows(path, self.batch_size, labels=labelled)
                    if kind == "bank"
                    else open_images(path, transform, self.batch_size, labels=labels, kind=kind, **names)
                )
        return self._opened[key]

    def _check_count(self, table: Table, source: Source, name: str) -> None:
        """Raise, or note, if a data set has another number of images than expected."""
        expected = table.get("expect", source.rows)
        if source.rows == expected:
            return
        sentence = f"{name} has {source.rows} images, {expected} were expected"
        if source.rows == table.get("outdated"):
            sentence += "; an older version has this number, and versions must not be mixed"
        if not self.any_counts:
            again = "Get the lists again" if "list" in table else "Look whether all of them are there"
            raise ValueError(f"{sentence}. {again}, or pass --any-counts to use these.")
        if sentence not in self.deviations:
            self.deviations.append(sentence)

    def _take(self, section: str, source: Source, rows: Rows, table: Table) -> Source:
        """Return the part of ``rows`` that a section takes, after checking that no rival takes the same images."""
        rows = rows[table.get("skip", 0) :]
        if not len(rows):
            raise ValueError(f"skip = {table['skip']} leaves no image.")
        wanted = table.get("first", len(rows))
        if wanted > len(rows):
            raise ValueError(f"first = {wanted} needs as many images, but there are {len(rows)}.")
        rows = rows[:wanted]
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
        return source if wanted == source.rows else source.subset(rows)

    def _draw(self, name: str, asked: tuple[str, ...] = ()) -> tuple[Rows, Rows]:
        """Return the rows that a split takes and those that it leaves; ``asked`` are the splits that wait for it."""
        table = self.document[name]
        with error_context(f"[{name}]"):
            source = self.open(table, labelled=True)
            if source.labels is None:
                raise ValueError("its images need labels, but the folder has none. Give each class a sub-folder.")
            rows = self._rest(name, table["rest_of"], asked) if "rest_of" in table else np.arange(source.rows)
            if "per_class" not in table:
                return rows, rows[:0]
            taken = _draw_per_class(rows, source.labels.numpy(), table["per_class"], self.seed)
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
        _, rest = self._draw(other, (*asked, name))
        if not len(rest):
            raise ValueError(f"rest_of = {other!r} is empty: [{other}] draws all rows. Lower its per_class.")
        return rest


def _draw_per_class(rows: Rows, labels: Rows, per_class: int, seed: int) -> Rows:
    """Return ``per_class`` random rows of each class that occurs in ``labels``, in their order."""
    rng = np.random.default_rng(seed)
    drawn = []
    for label in np.unique(labels):
        members = rows[labels[rows] == label]
        if len(members) < per_class:
            raise ValueError(
                f"per_class = {per_class} needs as many images of every class, but class {label} has {len(members)}."
            )
        drawn.append(rng.choice(members, per_class, replace=False))
    return np.sort(np.concatenate(drawn))
