"""The text of a suite file as checked tables, and the place of every mistake in it."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .keys import DATA, KEYS, SUITE, TEXT, Table, check_table

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
