"""What pages say between their blocks: commands, options and names in backticks exist."""

import re
import shlex
from importlib import import_module

import pytest

from tests.docs.commands import click_command, every_option, make, options_of
from tests.docs.page import ROOT, outside_of_blocks, pages

FOREIGN = {"--array"}  # of Slurm
KEYS = {"flatfold.json", "flatfold.transform"}  # what an exported file has inside
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def check_code(code):
    """Raise if a piece of code between backticks names a command, an option or a name that does not exist."""
    if code.startswith("flatfold ") and re.match(r"[a-z]", code[9:]):
        command, rest = click_command(shlex.split(code)[1:])
        unknown = {word for word in rest if word.startswith("--")} - options_of(command)
    else:
        unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) - every_option() - FOREIGN
    assert not unknown, f"`{code}` has an option that does not exist: {', '.join(sorted(unknown))}"
    if found := re.fullmatch(r"make ([a-z]+)", code):
        make([found[1]])
    for name in re.findall(r"(?:^|(?<=[\s(]))(?:ff|flatfold)((?:\.[A-Za-z_]\w*)+)", code):
        if f"flatfold{name}" not in KEYS:
            look_up(f"flatfold{name}", code)


def look_up(name, code):
    """Return what a dotted name stands for; parts of it may be modules."""
    value, path = import_module("flatfold"), "flatfold"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        try:
            value = getattr(value, part, None) or import_module(path)
        except ImportError:
            raise AssertionError(f"`{code}`: there is no {path}") from None
    return value


@pytest.mark.parametrize("page", pages())
def test_what_stands_in_backticks_exists(page):
    for code in CODE.findall(outside_of_blocks((ROOT / page).read_text(encoding="utf8"))):
        check_code(code)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("flatfold benhc digits", "no command benhc"),
        ("flatfold bench digits --netwroks x", "does not exist: --netwroks"),
        ("--calibratoin more/", "does not exist: --calibratoin"),
        ("make tset", "make has no target"),
        ("ff.Gaurd(x)", "there is no flatfold.Gaurd"),
        ("flatfold.core.hessain", "there is no flatfold.core.hessain"),
    ],
)
def test_what_does_not_exist_is_found(code, message):
    with pytest.raises(AssertionError, match=message):
        check_code(code)


@pytest.mark.parametrize("code", ["flatfold fit --with", "ff.Guard.fit", "--help", "a -- b", "flatfold.json", "x.ff.y"])
def test_what_exists_or_is_something_else_passes(code):
    check_code(code)
