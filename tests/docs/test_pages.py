"""Every block of code on every page runs, in the order it stands there, with what the reader has."""

import io
import json
import os
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

from flatfold.evaluate.suites.file import SuiteFile
from tests.docs.commands import check_options
from tests.docs.page import ROOT, belongings_named, blocks, command_lines, pages
from tests.docs.shown import check_shown

SMALL = [  # what a few random images make a method remark
    "ignore:AutoFold's curve is flat",
    "ignore:the choice for .* is hardly better",
]


def run_python(block, names, shell, page):
    code = compile("\n" * block.line + block.text, page, "exec")  # so that an error names the line of the page
    shell.said = None
    if not block.only_parse:
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        shell.said = printed.getvalue()


def run_shell(block, names, shell, page):
    lines = command_lines(block.text)
    check_options(lines, block.options)
    shell.said = None if block.only_parse else ""
    for line in lines:
        shell.run(line, block.options, block.only_parse, block.exit_code)


def run_toml(block, names, shell, page):
    content = tomllib.loads(block.text)
    if "network" in content and not block.only_parse:
        path = Path(f"line{block.line}.toml")
        path.write_text(block.text)
        assert SuiteFile(path).suites()


def run_json(block, names, shell, page):
    json.loads(block.text)
    run_text(block, names, shell, page)


def run_text(block, names, shell, page):
    """What the block above has printed, but for its numbers."""
    if shell.said is not None:
        check_shown(block.text, shell.said)
    shell.said = None


LANGUAGES = {"python": run_python, "sh": run_shell, "toml": run_toml, "json": run_json, "text": run_text}


def run_page(page, text, reader, shell):
    names = reader(belongings_named(text))
    for block in blocks(text):
        assert block.language in LANGUAGES, (
            f"{page}:{block.line}: a block of {block.language or 'no language'}. Known: {', '.join(LANGUAGES)}."
        )
        try:
            LANGUAGES[block.language](block, names, shell, page)
        except Exception as error:
            error.add_note(f"in the block at {page}:{block.line}")
            raise
    return names


@pytest.fixture(autouse=True)
def environment_as_it_was():
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def check_scale(names, shell):
    rows = Path("scores.csv").read_text().splitlines()
    assert rows[0] == "path,predicted,score,p_value,is_ood"
    assert len(rows) == 31
    assert read_table("scores.parquet").num_rows == 30


def check_serve(names, shell):
    one, two, features = (json.loads(answer)["rows"] for answer in shell.answers)
    assert (len(one), len(two), len(features)) == (1, 2, 1)
    assert "of the curvature between" in one[0]["explanation"]
    assert {"predicted", "class", "score", "p_value", "is_ood"} <= set(one[0])


def check_own_method(names, shell):
    assert "aside," in Path("out/digits/results.csv").read_text()


def check_own_model(names, shell):
    assert names["scores"].shape == (4,)
    assert read_table("scores.parquet").column_names == ["row", "predicted", "score", "p_value", "is_ood", "label"]


LEAVE = {
    "docs/howto/scale.md": check_scale,
    "docs/howto/serve.md": check_serve,
    "docs/howto/own_method.md": check_own_method,
    "docs/howto/own_model.md": check_own_model,
}


@pytest.mark.filterwarnings(*SMALL)
@pytest.mark.parametrize("page", pages())
def test_every_block_of_the_page_runs(page, reader, shell):
    """And some pages must leave something behind."""
    names = run_page(page, (ROOT / page).read_text(encoding="utf8"), reader, shell)
    LEAVE.get(page, lambda *_: None)(names, shell)
