"""Suites from a TOML file: anyone's networks, judged on anyone's images.

``examples/cifar10.toml`` shows every part of such a file. ``KEYS`` below is the whole of what one may say; everything
else is refused, so that a misspelt key never passes for one that was left out.
"""

import hashlib
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from reprlib import repr as shortened
from types import ModuleType
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from ..models.images import FolderImages, NpzImages, Transform
from ..models.picked import PickedImages
from ..models.sources import ImageSource
from .suite import NAME, Group, OodSet, Suite

SPLITS = ("train", "val", "test")
SHOWN = 3  # names of weights in a message; a network has hundreds

Table = dict[str, Any]
Rows = NDArray[np.int64]


class Key(NamedTuple):
    """What a key of a suite file must hold, and, if it cannot be left out, why not."""

    takes: str
    fits: Callable[[Any], bool]
    needed: str = ""

    def because(self, needed: str) -> "Key":
        """Return the key as one that cannot be left out."""
        return self._replace(needed=needed)


def _whole_number(least: int) -> Key:
    return Key(f"a whole number, at least {least}", lambda value: type(value) is int and value >= least)


def _one_of(*words: str) -> Key:
    return Key(f"one of {', '.join(words)}", lambda value: value in words)


def _text(takes: str, pattern: str) -> Key:
    return Key(takes, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


TEXT = _text("a text in quotes", r"(?s).+")
NUMBERS = Key("a list of numbers", lambda value: isinstance(value, list) and {*map(type, value)} <= {int, float})
SECTION = Key("a section in single brackets", lambda value: isinstance(value, dict))
SECTIONS = Key(
    "sections in double brackets",
    lambda value: isinstance(value, list) and value != [] and all(isinstance(entry, dict) for entry in value),
)
SHORT_NAME = _text("a name of letters, digits and -_.+", NAME.pattern)
TRANSFORM = {
    "resize": _whole_number(1),
    "crop": _whole_number(1),
    "mean": NUMBERS,
    "std": NUMBERS,
    "mode": _one_of("RGB", "L"),
}
UNLABELLED = {"npz": TEXT, "folder": TEXT, "x": TEXT, "first": _whole_number(1), **TRANSFORM}
LABELLED = {**UNLABELLED, "y": TEXT, "per_class": _whole_number(1), "rest_of": _one_of(*SPLITS)}
SUITE = {
    "name": SHORT_NAME,
    "about": TEXT,
    "seed": _whole_number(0),
    "transform": SECTION,
    "network": SECTIONS.because("it says which network is judged"),
    "train": SECTION.because("methods that are fitted on training data need it"),
    "val": SECTION.because("methods that are fitted on held-out data need it"),
    "test": SECTION.because("its images are the known ones that methods are judged on"),
    "ood_val": SECTION,
    "ood": SECTIONS.because("its images are the unknown ones that methods are judged on"),
}
KEYS: dict[str, dict[str, Key]] = {
    "transform": TRANSFORM,
    "network": {
        "name": SHORT_NAME.because("results are told apart by it"),
        "factory": _text('written "package.module:function"', r"[\w.]+:\w+").because("it makes the network"),
        "weights": TEXT,
        "head": TEXT,
    },
    **dict.fromkeys(SPLITS, LABELLED),
    "ood_val": UNLABELLED,
    "ood": {
        "name": SHORT_NAME.because("results are told apart by it"),
        "group": _one_of(*get_args(Group)).because("averages are taken over each group"),
        "about": TEXT,
        **UNLABELLED,
    },
}


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
        ood_val = data.unknown("[ood_val]", document["ood_val"]) if "ood_val" in document else None
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
    _check(document, SUITE)
    for section, keys in KEYS.items():
        value = document.get(section, [])
        for table in value if isinstance(value, list) else [value]:
            with _told(_title(section, table)):
                _check(table, keys)
    return document


def _title(section: str, table: Table) -> str:
    return f"[[{section}]] {table.get('name', 'without a name')}" if section in ("network", "ood") else f"[{section}]"


def _check(table: Table, keys: dict[str, Key]) -> None:
    for name, value in table.items():
        if name not in keys:
            near = get_close_matches(name, keys, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(keys)}."
            raise ValueError(f"there is no key {name!r} here. {hint}")
        if not keys[name].fits(value):
            raise ValueError(f"{name} must be {keys[name].takes}, got {shortened(value)}.")
    for name, key in keys.items():
        if key.needed and name not in table:
            raise ValueError(f"{name} is missing: {key.needed}. It must be {key.takes}.")


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
        with _told("[transform]"):
            self.transform = Transform(**document.get("transform", {}))

    def unknown_set(self, table: Table) -> OodSet:
        """Return a data set that methods are judged on."""
        images = self.unknown(_title("ood", table), table)
        return OodSet(table["name"], table["group"], images, table.get("about", ""))

    def unknown(self, where: str, table: Table) -> ImageSource:
        """Return the images of a section, without labels."""
        with _told(where):
            source = self._whole(table, labelled=False)
            return _picked(source, np.arange(source.rows), table)

    def split(self, name: str) -> ImageSource:
        """Return the rows that a split takes, with labels."""
        taken, _ = self._draw(name)
        with _told(f"[{name}]"):
            return _picked(self._whole(self.document[name], labelled=True), taken, self.document[name])

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


def _picked(source: ImageSource, rows: Rows, table: Table) -> ImageSource:
    """Return the first of ``rows``, as many as the section wants."""
    wanted = table.get("first", len(rows))
    if wanted > len(rows):
        raise ValueError(f"first = {wanted} needs as many images, but there are {len(rows)}.")
    return source if wanted == source.rows else PickedImages(source, rows[:wanted])


def _networks(tables: list[Table], folder: Path, seed: int) -> list[nn.Module]:
    """Return the networks in evaluation mode."""
    names = [table["name"] for table in tables]
    models = []
    for table in tables:
        with _told(_title("network", table)):
            if names.count(table["name"]) > 1:
                raise ValueError("two networks have this name. Give each one of its own.")
            with _told("factory"):
                model = _made(table["factory"], folder, seed)
            if "weights" in table:
                with _told("weights"):
                    _load_weights(model, _path(table["weights"], folder))
        models.append(model.eval())
    return models


def _made(factory: str, folder: Path, seed: int) -> nn.Module:
    """Return what ``package.module:function`` returns, with the same random numbers whenever it is called."""
    name, function = factory.split(":")
    try:
        module = _imported(name, folder)
    except Exception as error:  # whatever the user's file does when it is run
        raise ValueError(
            f"{name} could not be imported: {type(error).__name__}: {error}. "
            "It must be installed, or be a file beside the suite file."
        ) from error
    if not hasattr(module, function):
        near = get_close_matches(function, vars(module), n=1)
        raise ValueError(f"{name} has no function {function!r}." + (f" Did you mean {near[0]}?" if near else ""))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = getattr(module, function)()
    except Exception as error:
        raise ValueError(
            f"{function}() failed: {type(error).__name__}: {error}. It is called without arguments."
        ) from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{function}() must return a torch.nn.Module, not {type(model).__name__}.")
    return model


def _imported(name: str, folder: Path) -> ModuleType:
    """Return the module of that name that lies in ``folder``, or else the one that is installed."""
    file = folder / f"{name.replace('.', '/')}.py"
    if not file.is_file():
        return import_module(name)
    unique = f"flatfold_suite_{hashlib.sha256(bytes(file.resolve())).hexdigest()}"  # another suite may have a namesake
    spec = spec_from_file_location(unique, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[unique] = module_from_spec(spec)  # dataclasses look for their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _load_weights(model: nn.Module, path: Path) -> None:
    """Load a state dict that was written by safetensors or ``torch.save``, without running code from it."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}. Check the path.")
    try:
        safe = path.suffix == ".safetensors"
        state = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, zip and safetensors, which share no class
        raise ValueError(
            f"{path} must hold a state dict and nothing else, but cannot be read as one ({type(error).__name__}). "
            "Save model.state_dict(), with safetensors or with torch.save."
        ) from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} must hold a state dict, not {type(state).__name__}. Save model.state_dict().")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        misfit = _misfit(model.state_dict(), state) or error
        raise ValueError(f"{path} does not fit the network: {misfit}.") from error


def _misfit(own: Table, state: Table) -> str:
    """Say in which names or shapes two state dicts differ."""
    own_shapes, shapes = ({name: getattr(x, "shape", None) for name, x in each.items()} for each in (own, state))
    differences = {
        "it lacks": [name for name in own if name not in state],
        "the network has no": [name for name in state if name not in own],
        "another shape has": [name for name in own if name in state and shapes[name] != own_shapes[name]],
    }
    return "; ".join(
        f"{what} {', '.join(map(repr, names[:SHOWN]))}"
        + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        for what, names in differences.items()
        if names
    )
