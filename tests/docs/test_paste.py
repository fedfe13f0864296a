"""Blocks of Python can be pasted into a session of Python 3.11, where an empty line ends a loop or a function."""

import codeop

import pytest

from tests.docs.page import ROOT, blocks, pages


def paste(text):
    """Give a session line after line; raise SyntaxError where it would."""
    compile_lines, waiting = codeop.CommandCompiler(), []
    for line in [*text.splitlines(), ""]:
        waiting.append(line)
        if compile_lines("\n".join(waiting), "a session", "single") is not None:
            waiting = []


@pytest.mark.parametrize("page", pages())
def test_blocks_can_be_pasted_into_a_session(page):
    """Those with a class are for files."""
    for block in blocks((ROOT / page).read_text(encoding="utf8")):
        if block.language == "python" and "\nclass " not in f"\n{block.text}":
            try:
                paste(block.text)
            except SyntaxError as error:
                error.add_note(f"in the block at {page}:{block.line}. An empty line must follow an indented part.")
                raise


@pytest.mark.parametrize("text", ["for x in y:\n    x()\nz()\n", "def f():\n    a()\n\n    b()\n", "with x:\n    a\nb"])
def test_what_a_session_would_not_take_is_found(text):
    with pytest.raises(SyntaxError):
        paste(text)


@pytest.mark.parametrize("text", ["for x in y:\n    x()\n\nz()\n", "f(\n    1,\n\n    2)\n", "x = '''\n\na\n'''\ny"])
def test_what_a_session_takes_passes(text):
    paste(text)
