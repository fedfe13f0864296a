"""The schema of suite files: every section with its keys and their types, and errors that name the place of a mistake.

Sections are plain dicts, described as ``TypedDict``; values are checked by msgspec.
"""

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as shortened
from typing import Annotated, Any, Literal, Required, TypedDict, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from .suite import NAME, Group

SPLITS = ("train", "val", "test")
KINDS = ("npz", "folder", "list", "table", "bank")  # where images come from
BUILT_IN = Path(__file__).parent / "openood"  # suite files like any other
OPENOOD = "OPENOOD"  # the environment variable with the place of OpenOOD's folders
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")

Table = dict[str, Any]
Text = Annotated[str, Meta(min_length=1, description="a text in quotes")]
ShortName = Annotated[str, Meta(pattern=f"^{NAME.pattern}$", description="a name of letters, digits and -_.+")]
Count = Annotated[int, Meta(ge=1, description="a whole number, at least 1")]
FromZero = Annotated[int, Meta(ge=0, description="a whole number, at least 0")]
Numbers = Annotated[list[float], Meta(description="a list of numbers")]
Seeds = Annotated[list[FromZero], Meta(min_length=1, description="a list of different whole numbers, none below 0")]
Section = Annotated[Table, Meta(description="a section in single brackets")]
Sections = Annotated[list[Table], Meta(min_length=1, description="sections in double brackets")]


class TransformTable(TypedDict, total=False):
    """[transform], and what a network or a data set changes in it."""

    resize: Count
    crop: Count
    mean: Numbers
    std: Numbers
    mode: Literal["RGB", "L"]
    interpolation: Literal["bilinear", "bicubic"]
    squash: bool


class UnlabelledTable(TransformTable, total=False):
    """[ood_val], and the source of images in all other sections."""

    npz: Text
    folder: Text
    list: Text
    table: Text
    bank: Text
    images: Text
    x: Text
    first: Count
    skip: FromZero
    expect: Count
    outdated: Count


class SplitTable(UnlabelledTable, total=False):
    """[val] and [test]."""

    y: Text
    per_class: Count
    rest_of: Literal["train", "val", "test"]


class TrainTable(SplitTable, total=False):
    """[train]."""

    optional: bool


class OodTable(UnlabelledTable, total=False):
    """[[ood]]."""

    name: Required[ShortName]
    group: Required[Group]
    about: Text


class NetworkTable(TypedDict, total=False):
    """[[network]]."""

    name: Required[ShortName]
    factory: Annotated[str, Meta(pattern=r"^[\w.]+:\w+$", description='written "package.module:function"')]
    model: Annotated[str, Meta(pattern=r"^\w+/.+$", description='written "library/name"')]
    linear: Text
    weights: Text
    pretrained: Text
    seeds: Seeds
    head: Text
    accuracy: Annotated[float, Meta(gt=0, le=100, description="a number of per cent, above 0 and up to 100")]
    transform: Section


class SuiteTable(TypedDict, total=False):
    """The top of a suite file."""

    name: ShortName
    about: Text
    seed: FromZero
    like: Text
    transform: Section
    network: Required[Sections]
    train: Section
    val: Required[Section]
    test: Required[Section]
    ood_val: Section
    ood: Required[Sections]
    protocol: Text


TRANSFORM = tuple(get_type_hints(TransformTable))
SECTIONS: dict[str, Any] = {
    "transform": TransformTable,
    "network": NetworkTable,
    "train": TrainTable,
    "val": SplitTable,
    "test": SplitTable,
    "ood_val": UnlabelledTable,
    "ood": OodTable,
}
DATA = {*SECTIONS} - {"network"}  # the sections that a protocol is about


def check_table(table: Table, kind: Any) -> None:
    """Raise unless a table has all keys that it needs, no unknown one, and every value is of its type."""
    hints = get_type_hints(kind, include_extras=True)
    for key in table:
        if key not in hints:
            near = get_close_matches(key, hints, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(hints)}."
            raise ValueError(f"there is no key {key!r} here. {hint}")
    for key in sorted(kind.__required_keys__ - table.keys()):
        raise ValueError(f"{key} is missing. It must be {_expectation(hints[key])}.")
    try:
        msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        key = re.findall(r"`\$\.(\w+)", str(error))[0]
        raise ValueError(f"{key} must be {_expectation(hints[key])}, got {shortened(table[key])}.") from error


def _expectation(hint: Any) -> str:
    """Return what a key takes, in words."""
    hint = get_args(hint)[0] if get_origin(hint) is Required else hint
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return str(next((meta.description for meta in getattr(hint, "__metadata__", ())), "true or false"))


def read_document(path: Path) -> Table:
    """Return the content of a suite file, checked.

    ``like`` takes the sections that the file does not have from a built-in suite. A file with other images than that
    suite does not follow its protocol.
    """
    document = own = _read_toml(path)
    if "protocol" in own and path.parent != BUILT_IN:
        raise ValueError(
            "there is no key 'protocol' here: only built-in suites, and files like one, follow a protocol."
        )
    if "like" in own:
        if own["like"] not in built_in_names():
            raise ValueError(f"like must be one of {', '.join(built_in_names())}, got {shortened(own['like'])}.")
        base = _read_toml(BUILT_IN / f"{own['like']}.toml")
        document = base | own
        if DATA & own.keys():
            document.pop("protocol", None)
    check_table(document, SuiteTable)
    for section, kind in SECTIONS.items():
        value = document.get(section, [])
        for table in value if isinstance(value, list) else [value]:
            with error_context(section_title(section, table)):
                check_table(table, kind)
                check_table(table.get("transform", {}), TransformTable)  # a network may have one
    if "like" in own:  # networks are expected to be as good as those of the built-in suite
        accuracies = {table["model"]: table["accuracy"] for table in base["network"]}
        for table in document["network"]:
            if table.get("model") in accuracies:
                table.setdefault("accuracy", accuracies[table["model"]])
    return document


def _read_toml(path: Path) -> Table:
    if not path.is_file():
        raise FileNotFoundError("there is no such suite file. Check the path.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of the encoding too
        raise ValueError(f"it is not valid TOML: {error}.") from error


def built_in_names() -> list[str]:
    """Return the names of the suite files that come with flatfold."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Begin the message of an error with the place in the suite file that caused it."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def section_title(section: str, table: Table) -> str:
    """Return how messages call a section."""
    return f"[[{section}]] {table.get('name', 'without a name')}" if section in ("network", "ood") else f"[{section}]"
