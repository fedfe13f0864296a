"""What a suite file may say: every key, what it takes, and why some cannot be left out."""

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
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


# The text of a suite file as checked tables, and the place of every mistake in it.


BUILT_IN = Path(__file__).parent / "openood"  # suite files like any other

OPENOOD = "OPENOOD"  # the environment variable that says where OpenOOD's folders lie

VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def built_in_names() -> list[str]:
    """Return the names of the suite files that come with flatfold."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


@contextmanager
def told(where: str) -> Iterator[None]:
    """Begin the message of an error with the place in the suite file that caused it."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def title(section: str, table: Table) -> str:
    """Return how messages call a section."""
    return f"[[{section}]] {table.get('name', 'without a name')}" if section in ("network", "ood") else f"[{section}]"


def parsed(path: Path) -> Table:
    """Return the content of a suite file in which every key is known and holds what it should.

    ``like`` takes the sections that the file does not have from a built-in suite. Whoever judges other images than
    that suite no longer follows its protocol.
    """
    own = _tables(path)
    keys = SUITE | ({"protocol": TEXT} if path.parent == BUILT_IN else {})
    document = own
    if "like" in own:
        check_table({"like": own["like"]}, {"like": SUITE["like"]})
        with told(f"like = {own['like']!r}"):
            base = _tables(_built_in(own["like"]))
        document = base | own
        _expect_as_much(document, base)
        if DATA & own.keys():
            document.pop("protocol", None)
        keys = keys | {"protocol": TEXT}
    check_table(document, keys)
    for section, known in KEYS.items():
        value = document.get(section, [])
        for table in value if isinstance(value, list) else [value]:
            with told(title(section, table)):
                check_table(table, known)
    return document


def _expect_as_much(document: Table, base: Table) -> None:
    """Expect of a network without an accuracy what the built-in suite expects of the same model."""
    known = {table["model"]: table["accuracy"] for table in base["network"]}
    for table in document["network"] if isinstance(document["network"], list) else ():
        if isinstance(table, dict) and table.get("model") in known:
            table.setdefault("accuracy", known[table["model"]])


def _built_in(name: str) -> Path:
    if name not in built_in_names():
        raise ValueError(f"there is no such suite. There are {', '.join(built_in_names())}.")
    return BUILT_IN / f"{name}.toml"


def _tables(path: Path) -> Table:
    if not path.is_file():
        raise FileNotFoundError("there is no such suite file. Check the path.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of the encoding too
        raise ValueError(f"a suite is written in TOML, but this is not: {error}.") from error


def expanded(text: str, folder: Path, variables: Mapping[str, str] = os.environ) -> Path:
    """Return a path of the suite file with the variables in it replaced, relative to ``folder``."""
    for name in unset_variables(text, variables):
        way = " or give --data" if name == OPENOOD else ""
        raise ValueError(f"{text} needs the environment variable {name}, which is not set. Set it to a folder{way}.")
    whole = VARIABLE.sub(lambda match: variables[match[1] or match[2]], text)
    return (folder / whole).resolve()  # one file may be written in two ways


def unset_variables(text: str, variables: Mapping[str, str]) -> list[str]:
    """Return the names of the variables in a path that have no value."""
    return [short or long for short, long in VARIABLE.findall(text) if not variables.get(short or long)]
