"""Commands of flatfold as click knows them: which options they have, and whether a line could be run."""

import re
import shlex
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from typer.main import get_command

from flatfold.cli import app
from flatfold.detectors import METHODS

ROOT = Path(__file__).parents[2]


@contextmanager
def methods_as_they_were():
    """Forget methods that a command registers, and hide those of the page: a command is a process of its own."""
    before = dict(METHODS)
    built_in = {name: m for name, m in before.items() if m.factory.__module__.startswith("flatfold.")}
    METHODS.clear()
    METHODS.update(built_in)
    try:
        yield
    finally:
        METHODS.clear()
        METHODS.update(before)


def click_command(words):
    """Return the click command that words call, and the words behind its name."""
    command = get_command(app)
    while hasattr(command, "commands"):
        assert words, "a command is missing"
        assert words[0] in command.commands, f"flatfold has no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parse(words):
    """Look whether a command has the options that it is given; one of flatfold may follow another program's."""
    if words[:2] == ["python", "-m"]:
        place = ROOT / words[2].replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), f"there is no module {words[2]}"
    elif words[0] == "python":
        assert (ROOT / words[1]).exists(), f"there is no script {words[1]}"
    elif words[0] == "make":
        make(words[1:])
    elif "flatfold" in words:
        command, rest = click_command(words[words.index("flatfold") + 1 :])
        command.make_context(command.name, list(rest)).close()


def options_of(command):
    """Return the options that a command has, ``--help`` too."""
    named = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return {name for name in named if name.startswith("-")} | {"--help"}


@cache
def every_option():
    """Return the options of all commands."""
    waiting, found = [get_command(app)], set()
    while waiting:
        command = waiting.pop()
        found |= options_of(command)
        waiting += getattr(command, "commands", {}).values()
    return found


def check_options(lines, options):
    """Look whether at least one of the lines has each option that a comment adds to them."""
    commands = [shlex.split(line, comments=True) for line in lines]
    known = set().union(*(options_of(click_command(c[1:])[0]) for c in commands if c[0] == "flatfold"), set())
    unknown = [word for word in options if word.startswith("--") and word not in known]
    assert not options or not unknown, f"no command of the block has {' '.join(unknown)}"


def with_options(words, options):
    """Return a command with other values for options, or with more; those that it does not have are left out."""
    command, _ = click_command(words)
    known = options_of(command)
    words = list(words)
    for group in re.findall(r"(--\S+)((?: (?!--)\S+)*)", " ".join(options)):
        name, values = group[0], group[1].split()
        if name not in known:
            continue
        if name in words and values:
            words[words.index(name) + 1] = values[0]
        elif name not in words:
            words += [name, *values]
    return words


def make(words):
    """A target of the Makefile; run it would everything again."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE)
    assert set(words) <= set(targets), f"make has no target {words}"
