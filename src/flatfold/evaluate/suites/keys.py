"""What a suite file may say: every key, what it takes, and why some cannot be left out."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from reprlib import repr as shortened
from typing import Any, NamedTuple, get_args

from .suite import NAME, Group

SPLITS = ("train", "val", "test")

DATA = {*SPLITS, "ood_val", "ood", "transform"}  # the sections that say which images are judged, and how prepared

Table = dict[str, Any]


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
FLAG = Key("true or false", lambda value: isinstance(value, bool))
PERCENT = Key("a number of per cent", lambda value: type(value) in (int, float) and 0 < value <= 100)
SEEDS = Key(
    "a list of different whole numbers, none below 0",
    lambda value: (
        isinstance(value, list)
        and len(value) == len(set(map(str, value))) > 0
        and all(type(seed) is int and seed >= 0 for seed in value)
    ),
)
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
    "interpolation": _one_of("bilinear", "bicubic"),
}
KINDS = ("npz", "folder", "list", "table", "bank")  # where images come from
UNLABELLED = {
    **dict.fromkeys(KINDS, TEXT),
    "images": TEXT,
    "x": TEXT,
    "first": _whole_number(1),
    "skip": _whole_number(0),
    "expect": _whole_number(1),
    "outdated": _whole_number(1),
    **TRANSFORM,
}
LABELLED = {**UNLABELLED, "y": TEXT, "per_class": _whole_number(1), "rest_of": _one_of(*SPLITS)}
SUITE = {
    "name": SHORT_NAME,
    "about": TEXT,
    "seed": _whole_number(0),
    "like": TEXT,
    "transform": SECTION,
    "network": SECTIONS.because("it says which network is judged"),
    "train": SECTION,
    "val": SECTION.because("methods that are fitted on held-out data need it"),
    "test": SECTION.because("its images are the known ones that methods are judged on"),
    "ood_val": SECTION,
    "ood": SECTIONS.because("its images are the unknown ones that methods are judged on"),
}
KEYS: dict[str, dict[str, Key]] = {
    "transform": TRANSFORM,
    "network": {
        "name": SHORT_NAME.because("results are told apart by it"),
        "factory": _text('written "package.module:function"', r"[\w.]+:\w+"),
        "model": _text('written "library/name"', r"\w+/.+"),
        "linear": TEXT,
        "weights": TEXT,
        "pretrained": TEXT,
        "seeds": SEEDS,
        "head": TEXT,
        "accuracy": PERCENT,
        "transform": SECTION,
    },
    **dict.fromkeys(SPLITS, LABELLED),
    "train": {**LABELLED, "optional": FLAG},
    "ood_val": UNLABELLED,
    "ood": {
        "name": SHORT_NAME.because("results are told apart by it"),
        "group": _one_of(*get_args(Group)).because("averages are taken over each group"),
        "about": TEXT,
        **UNLABELLED,
    },
}


def check_table(table: Table, keys: dict[str, Key]) -> None:
    """Raise unless a table has all that is needed, nothing unknown, and every value is one that its key takes."""
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
