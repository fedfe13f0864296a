"""The schema of suite files: every section with its keys and types, and errors that name the section and the key."""

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as shortened
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from ...errors import brief
from .suite import LETTERS, NAME, Group

SPLITS = ("train", "val", "test")
KINDS = ("npz", "folder", "list", "table", "texts", "bank")  # keys that name the source of images or texts
MAKERS = ("factory", "model", "linear")  # keys that name the origin of a network
BUILT_IN = Path(__file__).parent / "openood"  # suite files like any other
LAYOUTS = Path(__file__).parent / "layouts"  # data sets of published benchmarks with masks, without a network
DIGITS, TEXTS, SCENES = "digits", "texts", "scenes"  # the built-in suites that have no file
OPENOOD = "OPENOOD"  # the environment variable with the folder of OpenOOD's data and results
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")

# Types of values; the description completes the sentence "<key> must be ...".
Text = Annotated[str, Meta(min_length=1, description="a non-empty string")]
ShortName = Annotated[str, Meta(pattern=f"^{NAME.pattern}$", description=f"a name of {LETTERS}")]
Count = Annotated[int, Meta(ge=1, description="a whole number, at least 1")]
FromZero = Annotated[int, Meta(ge=0, description="a whole number, at least 0")]
Numbers = Annotated[list[float], Meta(description="a list of numbers")]
Integers = Annotated[tuple[int, ...], Meta(min_length=1, description="a non-empty list of whole numbers")]
Seeds = Annotated[list[FromZero], Meta(min_length=1, description="a non-empty list of whole numbers, at least 0")]
Percent = Annotated[float, Meta(gt=0, le=100, description="a number in percent, above 0 and at most 100")]
Flag = Annotated[bool, Meta(description="true or false")]
Factory = Annotated[str, Meta(pattern=r"^[\w.]+:\w+$", description='written "package.module:function"')]
Model = Annotated[str, Meta(pattern=r"^\w+/.+$", description='written "library/name"')]
SECTION = Meta(description="a section in single brackets")
SECTIONS = Meta(min_length=1, description="one or more sections in double brackets")

Table = dict[str, Any]
S = TypeVar("S", bound=Struct)


class TransformTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``[transform]``, and the keys with which a network or a data set overrides it."""

    resize: Count | None = None
    crop: Count | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    mode: Literal["RGB", "L"] | None = None
    interpolation: Literal["bilinear", "bicubic"] | None = None
    squash: Flag | None = None

    @property
    def settings(self) -> Table:
        """The keys that are set, as arguments of ``Transform``."""
        values = {key: getattr(self, key) for key in TransformTable.__struct_fields__}
        return {key: value for key, value in values.items() if value is not None}


class ImageTable(TransformTable, frozen=True, kw_only=True):
    """``[ood_val]``, and the source of images in the other sections."""

    npz: Text | None = None
    folder: Text | None = None
    list: Text | None = None
    table: Text | None = None
    texts: Text | None = None
    bank: Text | None = None
    images: Text | None = None
    x: Text | None = None
    first: Count | None = None
    skip: FromZero = 0
    masks: Text | None = None
    mask: Annotated[str, Meta(pattern=r"^[^{}]*\{\}[^{}]*$", description="a path with one {}")] = "{}.png"
    ending: Text | None = None
    partial: Flag = False
    expect: Count | None = None
    outdated: Count | None = None

    @property
    def kind(self) -> str:
        """The key that names the source; raise ValueError unless there is one, and the other keys belong to it."""
        kind = _single_key(self, KINDS, "images come from")
        if kind not in ("npz", "table", "texts") and (self.x or getattr(self, "y", None)):
            raise ValueError(
                f"x and y name arrays of npz files or columns of tables or texts, but this is a {kind}. Remove them."
            )
        if (kind == "list") != (self.images is not None):
            raise ValueError("images = is the root folder of the paths in a list. Set it with list =, and only then.")
        if self.masks is None and (self.mask != "{}.png" or self.ending or self.partial):
            raise ValueError("mask, ending and partial say where masks are, but there are none. Set masks =.")
        if self.masks is not None and kind not in ("folder", "list"):
            raise ValueError(f"masks = is for images in files, a folder or a list, but this is a {kind}. Remove it.")
        if kind in ("bank", "texts") and self.settings:
            held = "a bank holds features" if kind == "bank" else "these are texts"
            raise ValueError(f"{min(self.settings)} prepares images, but {held}. Remove it.")
        return kind


class SplitTable(ImageTable, frozen=True, kw_only=True):
    """``[val]`` and ``[test]``."""

    y: Text | None = None
    per_class: Count | None = None
    first_class: FromZero = 0
    rest_of: Literal["train", "val", "test"] | None = None


class TrainTable(SplitTable, frozen=True, kw_only=True):
    """``[train]``."""

    optional: Flag = False


class OodTable(ImageTable, frozen=True, kw_only=True):
    """``[[ood]]``."""

    name: ShortName
    group: Group
    about: Text = ""
    printed: Text = ""
    anomalies: Integers = (1,)

    @property
    def title(self) -> str:
        """The group and the name, as in a diagnosis."""
        return f"{self.group} {self.name}"


class NetworkTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``[[network]]``."""

    name: ShortName
    factory: Factory | None = None
    model: Model | None = None
    linear: Text | None = None
    weights: Text | None = None
    pretrained: Text | None = None
    tokenizer: Text | None = None
    seeds: Seeds | None = None
    head: Text | None = None
    accuracy: Percent | None = None
    transform: Annotated[TransformTable, SECTION] = TransformTable()

    @property
    def maker(self) -> str:
        """The key that names the origin of the network; raise ValueError unless the keys go together."""
        maker = _single_key(self, MAKERS, "a network is made by")
        if self.pretrained and maker != "model":
            raise ValueError("pretrained = is only valid with model =. Remove it, or set weights =.")
        if self.weights and maker == "linear":
            raise ValueError("linear = is itself a file of weights. Remove weights =.")
        return maker


class SuiteTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole suite file."""

    name: ShortName = ""
    about: Text = ""
    seed: FromZero = 0
    like: Text = ""
    transform: Annotated[TransformTable, SECTION] = TransformTable()
    network: Annotated[list[NetworkTable], SECTIONS]
    train: Annotated[TrainTable, SECTION] | None = None
    val: Annotated[SplitTable, SECTION]
    test: Annotated[SplitTable, SECTION]
    ood_val: Annotated[ImageTable, SECTION] | None = None
    ood: Annotated[list[OodTable], SECTIONS]
    protocol: Text = ""
    ignored: Integers = (255,)

    @property
    def data_sets(self) -> dict[str, tuple[str, ImageTable]]:
        """The section and table of each data set by its title."""
        single = {name: (name, table) for name in (*SPLITS, "ood_val") if (table := getattr(self, name))}
        return single | {table.title: ("ood", table) for table in self.ood}


DATA = {"transform", "train", "val", "test", "ood_val", "ood"}  # sections that a protocol defines


def _single_key(table: Struct, keys: tuple[str, ...], sentence: str) -> str:
    given = [key for key in keys if getattr(table, key) is not None]
    if len(given) != 1:
        raise ValueError(f"{sentence} one of {', '.join(keys)}, got {' and '.join(given) or 'none'}. Set exactly one.")
    return given[0]


def convert_table(content: Table, kind: type[S]) -> S:
    """Return a section or a whole suite file as a struct; raise a ValueError that names the invalid key."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(error, content, kind)) from error


def _explain(error: msgspec.ValidationError, content: Table, kind: Any) -> str:
    """Return the message of a validation error: section and key, the expected and the actual value, and a fix."""
    message, _, path = str(error).partition(" - at `$")
    steps = re.findall(r"\.(\w+)(?:\[(\d+)\])?", path)  # keys that lead to the error, and positions in their lists
    field = re.search("field `(.*)`", message, re.DOTALL)  # an unknown or missing one
    key = field[1] if field else steps.pop()[0]
    title = ""
    for name, position in steps:
        content = content[name][int(position)] if position else content[name]
        hint = get_type_hints(kind, include_extras=True)[name]
        kind = next(part for part in _parts(hint) if isinstance(part, type) and issubclass(part, Struct))
        title = title or f"{section_title(name, content.get('name', 'without a name'))}: "
    if key not in kind.__struct_fields__:
        near = get_close_matches(key, kind.__struct_fields__, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Valid keys: {', '.join(kind.__struct_fields__)}."
        return f"{title}there is no key {key!r} here. {hint}"
    parts = list(_parts(get_type_hints(kind, include_extras=True)[key]))
    descriptions = [part.description for part in parts if isinstance(part, Meta)]
    expected = descriptions[-1] if descriptions else f"one of {', '.join(p for p in parts if isinstance(p, str))}"
    if key not in content:
        return f"{title}{key} is missing. Add it; it must be {expected}."
    return f"{title}{key} must be {expected}, got {shortened(content[key])}."


def _parts(hint: Any) -> Iterator[Any]:
    """Yield a type hint and everything in it; the annotations of a type follow the type."""
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def read_document(path: Path) -> SuiteTable:
    """Return the validated content of a suite file.

    ``like`` adds the sections of a built-in suite that the file does not have. A file with its own data sets or
    transform does not follow the protocol of that suite.
    """
    own, base = _read_toml(path), {}
    if "protocol" in own and path.parent != BUILT_IN:
        raise ValueError("there is no key 'protocol' here: only built-in suites define a protocol. Remove it.")
    if "like" in own:
        bases = {path.stem: path for folder in (BUILT_IN, LAYOUTS) for path in sorted(folder.glob("*.toml"))}
        if own["like"] not in bases:
            raise ValueError(f"like must be one of {', '.join(bases)}, got {shortened(own['like'])}.")
        base = _read_toml(bases[own["like"]])
        if DATA & own.keys():
            base.pop("protocol", None)
    document = convert_table(base | own, SuiteTable)
    accuracies = {table["model"]: table["accuracy"] for table in base.get("network", [])}
    networks = [replace(it, accuracy=it.accuracy or accuracies.get(it.model)) for it in document.network]
    return replace(document, network=networks)


def _read_toml(path: Path) -> Table:
    if not path.is_file():
        raise FileNotFoundError("there is no such suite file. Check the path.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:  # brackets in brackets; invalid UTF-8 too
        raise ValueError(f"the file is not valid TOML: {brief(error)}. Correct it there.") from error


def built_in_names() -> list[str]:
    """Return the names of the suite files that are part of flatfold."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


def suite_names() -> list[str]:
    """Return the names of all suites that are part of flatfold, those without a file first."""
    return [DIGITS, TEXTS, SCENES, *built_in_names()]


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Prefix error messages with the part of a suite file that caused them."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def section_title(section: str, name: str = "") -> str:
    """Return what messages call a section: ``[val]``, or ``[[ood]] svhn`` if there may be several."""
    return f"[[{section}]] {name}" if section in ("network", "ood") else f"[{section}]"
