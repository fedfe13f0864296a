"""What runs the pages can itself fail: a page that is wrong in any of these ways is found."""

from pathlib import Path

import pytest

from flatfold.detectors import METHODS
from tests.docs.commands import with_options
from tests.docs.page import belongings_named, blocks, command_lines, pages
from tests.docs.shell import RECOGNISED
from tests.docs.test_pages import run_page

FENCE = "```"


def page(body, language="python", note="", words=""):
    return f"{f'<!-- test: {words} -->' if words else ''}\n# Title\n\n{note}\n{FENCE}{language}\n{body}\n{FENCE}\n"


def test_every_page_is_found_and_no_other():
    found = pages()
    assert {"README.md", "CONTRIBUTING.md", "docs/index.md", "docs/howto/scale.md"} <= set(found)
    assert len(found) == len(set(found))


def test_a_block_knows_its_language_line_and_note():
    text = page("x = 1", note="<!-- test: with --limit 40 --no-report -->") + "\n  ```sh\n  make test\n  ```\n"
    first, second = blocks(text)
    assert (first.language, first.text, first.line) == ("python", "x = 1\n", 5)
    assert first.options == ["--limit", "40", "--no-report"]
    assert (second.language, second.text, second.options, second.exit_code) == ("sh", "make test\n", [], 0)
    assert blocks(page("", note="<!-- test: exits 3 because some are broken -->"))[0].exit_code == 3


@pytest.mark.parametrize("note", ["only-parse", "only-parse because", "wiht --limit 3", "exits 1", "world"])
def test_a_note_that_says_nothing_is_refused(note):
    with pytest.raises(ValueError, match="the comment above a block is written `only-parse because REASON`"):
        blocks(page("x = 1", note=f"<!-- test: {note} -->"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```text\nx\n\n" + page("1 / 0"), "a block is never closed"),
        (page("x = 1") + "\n```sh\nmake test\n", "a block is never closed"),
        (page("x = 1") + "\n" * 4 + "<!-- test: with --limit 3 -->\n\nProse.\n" + page("x"), "stands above no block"),
    ],
)
def test_nothing_on_a_page_is_overlooked(text, message):
    with pytest.raises(ValueError, match=message):
        blocks(text)


def test_belongings_stand_on_the_first_lines():
    assert belongings_named("# T\n<!-- test: world A=1 -->\n") == ["world", "A=1"]
    assert belongings_named("\n" * 8 + "<!-- test: world -->\n") == []
    assert belongings_named("<!-- test: -->\n") == []


def test_lines_of_a_shell_block_are_joined_and_comments_left_out():
    assert command_lines("# first\na b \\\n  c\n\nd  # e\n") == ["a b    c", "d  # e"]


def test_blocks_share_names_and_the_order_matters(reader, shell):
    text = page("x = 1", words="world") + page("x += 1; shape = tuple(new_images.shape)")
    names = run_page("a page", text, reader, shell)
    assert (names["x"], names["shape"]) == (2, (4, 3, 8, 8))


def test_a_failing_block_is_named_with_its_line(reader, shell):
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("docs/x.md", page("1 / 0"), reader, shell)
    assert caught.value.__notes__ == ["in the block at docs/x.md:5"]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (page("x", "yaml"), AssertionError, "a block of yaml. Known: python, sh"),
        (page("x", ""), AssertionError, "a block of no language"),
        (page("x = ", note="<!-- test: only-parse because of this -->"), SyntaxError, "invalid syntax"),
        (page("rm -r x", "sh"), AssertionError, "'rm' is not a program that"),
        (page("flatfold benhc digits", "sh"), AssertionError, "flatfold has no command benhc"),
        (page("flatfold methods --wiht x", "sh"), AssertionError, "No such option"),
        (page("flatfold report nowhere", "sh"), ValueError, "no results.json in nowhere"),
        (page("make tset", "sh"), AssertionError, "make has no target"),
        (page("pip install '.[onx]'", "sh"), AssertionError, "names an extra that does not exist"),
        (page("pip install other", "sh"), AssertionError, "other is not this package"),
        (page("pip remove .", "sh"), AssertionError, "pip is here to install"),
        (page("curl http://127.0.0.1:8000/", "sh"), AssertionError, "a service that no line above has started"),
        (page("python nothing.py", "sh"), OSError, "nothing.py"),
        (page("x = ", "toml"), ValueError, "Invalid value"),
        (page("[[network]]\nname = 'x'", "toml"), ValueError, "line5.toml"),
        (page("{", "json"), ValueError, "Expecting"),
        (page("", words="wrold"), AssertionError, "no belonging is called 'wrold'"),
        (page("flatfold score $NOWHERE", "sh"), KeyError, "NOWHERE"),
        (page("flatfold methods", "sh", "<!-- test: with --limt 4 -->"), AssertionError, "no command of the block has"),
        (page("print('two words')") + page("other words", "text"), AssertionError, r"the page shows \['other'\]"),
        (page("x = 1") + page("words", "text"), AssertionError, r"the page shows \['words'\]"),
        (page("flatfold methods", "sh") + page("colour", "text"), AssertionError, r"the page shows \['colour'\]"),
    ],
)
def test_a_page_that_is_wrong_fails(text, kind, message, reader, shell):
    with pytest.raises(kind, match=message):
        run_page("docs/x.md", text, reader, shell)


ONLY_PARSE = "<!-- test: only-parse because nobody has such images -->"


@pytest.mark.parametrize("line", ["flatfold bench cifar10 --device cuda", "ray job submit -- flatfold methods"])
def test_what_is_only_parsed_does_not_run(line, reader, shell):
    run_page("docs/x.md", page(line, "sh", ONLY_PARSE), reader, shell)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("flatfold bench cifar10 --devise cuda", "No such option"),
        ("flatfold bench", "Missing parameter: suite"),
        ("ray job submit -- flatfold scroe", "flatfold has no command scroe"),
        ("python -m studies.nothing", "there is no module studies.nothing"),
        ("python examples/nothing.py", "there is no script"),
        ("make tset", "make has no target"),
    ],
)
def test_what_is_only_parsed_must_exist(line, message, reader, shell):
    with pytest.raises(Exception, match=message):
        run_page("docs/x.md", page(line, "sh", ONLY_PARSE), reader, shell)


def test_an_exit_code_must_be_the_one_that_is_announced(reader, shell):
    note = "<!-- test: exits 2 because an argument is missing -->"
    run_page("docs/x.md", page("flatfold bench", "sh", note), reader, shell)
    with pytest.raises(AssertionError, match="flatfold methods"):
        run_page("docs/x.md", page("flatfold methods", "sh", note), reader, shell)


def test_what_is_shown_need_not_have_the_same_numbers(reader, shell):
    text = page("print('of 714 digits, 48 % are right')") + page("of 700 digits, 50 %\n...", "text")
    run_page("docs/x.md", text, reader, shell)


def test_options_are_added_or_replaced_where_the_command_has_them():
    options = ["--limit", "4", "--no-report", "--anyway"]
    assert with_options(["bench", "x", "--limit", "9"], options) == ["bench", "x", "--limit", "4", "--no-report"]
    assert with_options(["paper", "x"], options) == ["paper", "x", "--anyway"]


def test_output_can_be_put_into_a_file_and_variables_have_values(reader, shell, tmp_path):
    text = page("flatfold methods > $NAME.txt", "sh", words="NAME=list")
    run_page("docs/x.md", text, reader, shell)
    assert "autofold" in (tmp_path / "list.txt").read_text()


def test_methods_of_a_page_are_not_those_of_a_command(reader, shell):
    text = page(
        "import flatfold as ff\n@ff.register('mine')\nclass Mine(ff.Detector):\n    'One.'\n    def score(self, h): ..."
    )
    run_page("docs/x.md", text + page("flatfold methods > list.txt", "sh"), reader, shell)
    assert "mine" in METHODS
    assert "mine" not in Path("list.txt").read_text()


def test_programs_that_are_not_run_have_a_reason():
    assert all(len(reason) > 20 for reason in RECOGNISED.values())
