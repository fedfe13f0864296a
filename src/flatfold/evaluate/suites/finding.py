"""What was found of one part of a suite."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .keys import Table
from .text import OPENOOD, title, unset_variables

State = Literal["ok", "missing", "wrong", "note"]
FAILURES = (ImportError, OSError, RuntimeError, TypeError, ValueError)  # of files, networks and their libraries


@dataclass(frozen=True)
class Finding:
    """What was found of one part of a suite.

    Args:
        what: The part: a split, a data set with its group, a network.
        state: "ok"; "missing" or "wrong", which must be seen to; or "note", which is worth knowing.
        where: The file or folder, or what a network is made by.
        expected: Number of images or accuracy that it should have, "" if nothing is said.
        found: What it has, "" if that cannot be told.
        sentence: What is not as it should be and what to do, "" if all is well.
    """

    what: str
    state: State
    where: str
    expected: str = ""
    found: str = ""
    sentence: str = ""

    @property
    def needs_attention(self) -> bool:
        """Whether the suite cannot be judged as it is."""
        return self.state in ("missing", "wrong")


def unset_sentence(text: str, variables: Mapping[str, str]) -> str:
    """Return what to say about a path with a variable that has no value, "" if all of them have one."""
    for name in unset_variables(text, variables):
        way = "the folder that holds OpenOOD's data and results, or give --data" if name == OPENOOD else "a folder"
        return f"The environment variable {name} is not set. Set it to {way}."
    return ""


def reason(error: Exception, section: str, table: Table) -> str:
    """Return the message of an error without the name of the section, which a finding has already."""
    return str(error).removeprefix(f"{title(section, table)}: ")
