"""Suites from a TOML file: anyone's networks, judged on anyone's images.

``examples/cifar10.toml`` shows every part of such a file. ``suite_keys.py`` has the whole of what one may say;
everything else is refused, so that a misspelt key never passes for one that was left out.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..models.factory import load_weights, make_model
from ..models.images import FolderImages, NpzImages, Transform
from ..models.picked import PickedImages
from ..models.sources import ImageSource
from .suite import OodSet, Suite
from .suite_keys import KEYS, SPLITS, SUITE, TRANSFORM, Table, check_table

Rows = NDArray[np.int64]
RIVALS = ({"test", "train"}, {"test", "val"}, {"ood", "ood_val"})  # one is judged on, the other learnt from


def read_suites(path: Path, batch_size: int = 256, seed: int | None = None) -> list[Suite]:
    """Return one suite for each network of a suite file; they share their images.

    Args:
        path: The TOML file. Relative paths in it start from its folder, and ``$NAME`` stands for an environment
            variable.
        batch_size: Images per forward pass.
        seed: Of every draw, in place of the file's own; without either it is 0.

    Raises:
        ValueError: The file says something that cannot be; the message begins with the file and the section.
        FileNotFoundError: The file, or one that it names, is not there.
    """
    with _told(str(path)):
        document = _parsed(path)
        seed = document.get("seed", 0) if seed is None else seed
        models = _networks(document["network"], path.parent, seed)
        data = _Data(document, path.parent, batch_size, seed)
        train, val, test = (data.split(name) for name in SPLITS)
        ood = tuple(data.unknown_set(table) for table in document["ood"])
        ood_val = data.unknown("ood_val", document["ood_val"]) if "ood_val" in document else None
        return [
            Suite(
                name=document.get("name", path.stem),
                about=document.get("about", ""),
                model=model,
                train=train,
                val=val,
                test=test,
                ood=ood,
                seed=seed,
                ood_val=ood_val,
                network=table["name"],
                head=table.get("head"),
            )
            for table, model in zip(document["network"], models, strict=True)
        ]


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Begin the message of an error with the place in the suite file that caused it."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _parsed(path: Path) -> Table:
    """Return the content of a suite file in which every key is known and holds what it should."""
    if not path.is_file():
        raise FileNotFoundError("there is no such suite file. Check the path.")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of the encoding too
        raise ValueError(f"a suite is written in TOML, but this is not: {error}.") from error
    check_table(document, SUITE)
    for section, keys in KEYS.items():
        value = document.get(section, [])
        for table in value if isinstance(value, list) else [value]:
            with _told(_title(section, table)):
                check_table(table, keys)
    return document


def _title(section: str, table: Table) -> str:
    return f"[[{section}]] {table.get('name', 'without a name')}" if section in ("network", "ood") else f"[{section}]"


def _path(text: str, folder: Path) -> Path:
    """Return a path of the suite file with the environment variables in it replaced, relative to ``folder``."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not os.environ.get(name):
            raise ValueError(f"{text} needs the environment variable {name}, which is not set. Set it to a folder.")
        return os.environ[name]

    return (folder / re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)).resolve()  # one file may be written in two ways


class _Data:
    """The images of a suite file; what several data sets share is read once."""

    def __init__(self, document: Table, folder: Path, batch_size: int, seed: int) -> None:
        self.document, self.folder, self.batch_size, self.seed = document, folder, batch_size, seed
        self.read: dict[tuple[Any, ...], ImageSource] = {}
        self.classes: dict[str, tuple[str, ...]] = {}
        self.taken: list[tuple[str, tuple[str, Path, str], Rows]] = []
        with _told("[transform]"):
            self.transform = Transform(**document.get("transform", {}))

    def unknown_set(self, table: Table) -> OodSet:
        """Return a data set that methods are judged on."""
        images = self.unknown("ood", table)
        return OodSet(table["name"], table["group"], images, table.get("about", ""))

    def unknown(self, section: str, table: Table) -> ImageSource:
        """Return the images of a section, without labels."""
        with _told(_title(section, table)):
            source = self._whole(table, labelled=False)
            return self._picked(section, source, np.arange(source.rows), table)

    def split(self, name: str) -> ImageSource:
        """Return the rows that a split takes, with labels."""
        taken, _ = self._draw(name)
        with _told(f"[{name}]"):
            source = self._whole(self.document[name], labelled=True)
            self._check_classes(name, source)
            return self._picked(name, source, taken, self.document[name])

    def _check_classes(self, name: str, source: ImageSource) -> None:
        """Raise unless all folders of known images have the same classes, or labels would mean different things."""
        if not isinstance(source, FolderImages):
            return
        for other, classes in self.classes.items():
            if classes != source.classes:
                odd = ", ".join(sorted(set(classes) ^ set(source.classes))[:5])
                raise ValueError(f"its class folders are not those of [{other}]: {odd} is in one of them only.")
        self.classes[name] = source.classes

    def _picked(self, section: str, source: ImageSource, rows: Rows, table: Table) -> ImageSource:
        """Return the part of ``rows`` that a section wants, unless methods would be judged on what they learn from."""
        rows = rows[table.get("skip", 0) :]
        wanted = table.get("first", max(len(rows), 1))
        if wanted > len(rows):
            raise ValueError(f"first = {wanted} needs as many images, but there are {len(rows)}.")
        rows, place = rows[:wanted], self._place(table)
        for other, there, taken in self.taken:
            shared = len(np.intersect1d(rows, taken)) if there == place and {section, other} in RIVALS else 0
            if shared:
                raise ValueError(
                    f"{shared} of its images are in [{other}] too: methods would be judged on what they learn from. "
                    "Divide them with rest_of, or with first and skip."
                )
        self.taken.append((section, place, rows))
        return source if wanted == source.rows else PickedImages(source, rows)

    def _draw(self, name: str, asked: tuple[str, ...] = ()) -> tuple[Rows, Rows]:
        """Return the rows that a split takes and those that it leaves; ``asked`` are the splits that wait for it."""
        table = self.document[name]
        with _told(f"[{name}]"):
            source = self._whole(table, labelled=True)
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
        with _told(f"[{other}]"):
            there = self._place(self.document[other])
        if self._place(self.document[name]) != there:
            raise ValueError(f"rest_of = {other!r} needs the images of [{other}]: name the same npz and x, or folder.")
        if "per_class" not in self.document[other]:
            raise ValueError(f"rest_of = {other!r} needs per_class in [{other}], which takes all rows without it.")
        _, rest = self._draw(other, (*asked, name))
        if not len(rest):
            raise ValueError(f"rest_of = {other!r} is empty: [{other}] draws all rows. Lower its per_class.")
        return rest

    def _place(self, table: Table) -> tuple[str, Path, str]:
        """Return where the images of a section lie: the kind of source, the path, the name of the array."""
        kinds = [kind for kind in ("npz", "folder") if kind in table]
        if len(kinds) != 1:
            raise ValueError(f"images come from either npz or folder, got {' and '.join(kinds) or 'neither'}.")
        if kinds == ["folder"] and not table.keys().isdisjoint("xy"):
            raise ValueError("x and y name arrays in a npz, but this is a folder. Remove them.")
        with _told(kinds[0]):
            return kinds[0], _path(table[kinds[0]], self.folder), table.get("x", "x")

    def _whole(self, table: Table, labelled: bool) -> ImageSource:
        """Return all images of the file or folder that a section names."""
        transform = replace(self.transform, **{key: table[key] for key in TRANSFORM.keys() & table.keys()})
        kind, path, x = self._place(table)
        y = table.get("y", "y") if labelled else None
        key = (path, x, y, transform)
        if key not in self.read:
            with _told(kind):
                self.read[key] = (
                    NpzImages(path, transform, self.batch_size, x, y)
                    if kind == "npz"
                    else FolderImages(path, transform, self.batch_size, labels=labelled)
                )
        return self.read[key]


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


def _networks(tables: list[Table], folder: Path, seed: int) -> list[nn.Module]:
    """Return the networks in evaluation mode."""
    names = [table["name"] for table in tables]
    models = []
    for table in tables:
        with _told(_title("network", table)):
            if names.count(table["name"]) > 1:
                raise ValueError("two networks have this name. Give each one of its own.")
            with _told("factory"):
                model = make_model(table["factory"], folder, seed)
            if "weights" in table:
                with _told("weights"):
                    load_weights(model, _path(table["weights"], folder))
        models.append(model.eval())
    return models
