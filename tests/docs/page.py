"""A page of the documentation as blocks of code, and what it says about them in comments.

A page says on its first lines what its reader has, ``<!-- test: world photos -->``: words of ``belongings.py``, or
environment variables, ``NAME=value``. A comment directly above a block changes that block:
``<!-- test: only-parse because REASON -->`` has nothing run, ``<!-- test: with --limit 40 -->`` adds options to its
commands, where they have them, and after ``<!-- test: exits 1 because REASON -->`` they must leave with that code.
"""

import re
import textwrap
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
NOTES = r"only-parse because \w|with --\w|exits \d+ because \w"
HEAD = 8  # lines, within which a page says what its reader has
FENCE = re.compile(
    r"(?:^ *<!-- test:(?P<note>[^\n]*)-->\n\n?)?"
    r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.DOTALL | re.MULTILINE,
)
FENCE_LINE = re.compile(r"^ *(?:`{3,}|~{3,})", re.MULTILINE)


class Block(NamedTuple):
    """A block of code: what stands behind its fence and inside, its line, and what the comment above it asks for."""

    language: str
    text: str
    line: int
    only_parse: bool
    options: list[str]
    exit_code: int


def module(name: str) -> Any:
    """Return a module of `docs`, which is no package."""
    spec = spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf8")


def pages() -> list[str]:
    """Return every page with code: README, CONTRIBUTING, and all of ``docs``."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page in their order; raise if one or its comment might be overlooked."""
    found = []
    for match in FENCE.finditer(text):
        note = (match["note"] or "").strip()
        if note and not re.match(NOTES, note):
            raise ValueError(f"the comment above a block is none of {NOTES}: {note!r}")
        line = text.count("\n", 0, match.start("fence")) + 1
        options = note.split()[1:] if note.startswith("with ") else []
        exit_code = int(note.split()[1]) if note.startswith("exits ") else 0
        code = textwrap.dedent(match["text"])
        found.append(Block(match["language"].strip(), code, line, note.startswith("only-parse"), options, exit_code))
    rest = outside_of_blocks(text)
    if FENCE_LINE.search(rest) or any(FENCE_LINE.search(block.text) for block in found):
        raise ValueError("a block is never closed")
    for line in rest.splitlines()[HEAD:]:
        if line.lstrip().startswith("<!-- test:"):
            raise ValueError(f"{line.strip()!r} stands above no block")
    return found


def outside_of_blocks(text: str) -> str:
    """Return a page without its blocks; their lines are empty."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def belongings_named(text: str) -> list[str]:
    """Return the words by which a page says what its reader has."""
    head = "\n".join(text.splitlines()[:HEAD])
    notes = re.findall(r"^<!-- test: *(.*?)-->", head, re.MULTILINE)
    return [word for note in notes if not re.match(NOTES, note) for word in note.split()]


def command_lines(text: str) -> list[str]:
    """Return the lines of a shell block, joined where they go on, without those that only comment."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
