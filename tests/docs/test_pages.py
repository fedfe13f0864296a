"""Every block of code on every page runs, in its order, with what the reader has; names between backticks exist."""

import codeop
import io
import json
import re
import shlex
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import yaml
from PIL import Image
from pyarrow.parquet import read_table
from typer.main import get_command

import flatfold as ff
from flatfold.cli import app
from flatfold.evaluate.suites.toml_file import SuiteFile
from flatfold.serve.service import Service
from flatfold.serve.settings import Settings
from tests.docs.page import belongings_named, blocks, command_lines, outside_of_blocks, pages, read
from tests.docs.shell import check_options, click_command, make, options_of
from tests.serve.small_service import make_guard

pytestmark = pytest.mark.docs
SMALL = ["ignore:AutoFold's curve is flat", "ignore:tuning .* made little difference"]  # with a few random images
FOREIGN = {"--array", "--build-arg"}  # of Slurm and Docker
KEYS = {"flatfold.json", "flatfold.transform"}  # what an exported file has inside
OPTIONS = options_of(get_command(app)) | FOREIGN
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def run_python(block, names, shell, page):
    code = compile("\n" * block.line + block.text, page, "exec")  # so that an error names the line of the page
    if "\nclass " not in f"\n{block.text}":  # those with a class are for files
        paste(block.text)
    shell.said = None
    if not block.only_parse:
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        shell.said = printed.getvalue()


def paste(text):
    """Give a session of Python line after line, where an empty line ends a loop; raise SyntaxError where it would."""
    compile_lines, waiting = codeop.CommandCompiler(), []
    for line in [*text.splitlines(), ""]:
        waiting.append(line)
        if compile_lines("\n".join(waiting), "a session", "single") is not None:
            waiting = []


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


def run_text(block, names, shell, page):
    """Nearly all words that a page shows, without numbers, must be printed by the block above."""
    if block.language == "json":
        json.loads(block.text)
    if shell.said is not None:
        shown, came = (set(re.findall(r"[A-Za-z_]{2,}", text)) for text in (block.text, shell.said))
        missing = sorted(shown - came)
        assert len(missing) <= 0.1 * len(shown), f"the page shows {missing}, but what came is\n{shell.said}"
    shell.said = None


def run_yaml(block, names, shell, page):
    """Configuration of Prometheus: a mapping that names only metrics that the service has."""
    assert isinstance(yaml.safe_load(block.text), dict)
    metrics = Service(make_guard(), Settings()).metrics
    metrics.count_answer("/v1/score", 200, 0.1)
    served = set(re.findall(r"^\w+", metrics.text().decode(), re.MULTILINE))
    unknown = set(re.findall(r"\bflatfold_\w+", block.text)) - served
    assert not unknown, f"the service has no metric {unknown}"


def run_nginx(block, names, shell, page):
    """Configuration of nginx: every line is a comment, a directive or one end of a block, and all blocks are closed."""
    lines = [line.partition(" #")[0].strip() for line in block.text.splitlines()]
    assert all(line.endswith((";", "{", "}")) or line[:1] in ("", "#") for line in lines)
    assert block.text.count("{") == block.text.count("}")


LANGUAGES = {"python": run_python, "sh": run_shell, "toml": run_toml, "json": run_text, "text": run_text}
LANGUAGES |= {"yaml": run_yaml, "nginx": run_nginx}


def run_page(page, text, reader, shell):
    names = reader(belongings_named(text))
    for block in blocks(text):
        assert block.language in LANGUAGES, f"{page}:{block.line}: a block of {block.language or 'no language'}"
        try:
            LANGUAGES[block.language](block, names, shell, page)
        except Exception as error:
            error.add_note(f"in the block at {page}:{block.line}")
            raise
    return names


@pytest.mark.filterwarnings(*SMALL)
@pytest.mark.parametrize("page", pages())
def test_every_block_of_the_page_runs(page, reader, shell):
    names = run_page(page, read(page), reader, shell)
    if page == "README.md":
        images, digits, guard = (names[name] for name in ("images", "digits", "guard"))
        known, unknown = (guard(images[rows]).is_ood.float().mean() for rows in (names["test"], digits > 5))
        assert (known < 0.12, unknown > 0.6) == (True, True)
    if page == "docs/howto/onnx.md":
        check_preparation(names["prepare"])
    if page == "docs/howto/scale.md":
        assert len(Path("scores.csv").read_text().splitlines()) == 31
        assert read_table("scores.parquet").num_rows == 30
    if page == "docs/howto/serve.md":
        one, two, features = (json.loads(answer)["rows"] for answer in shell.answers)
        assert (len(one), len(two), len(features)) == (1, 2, 1)
        assert {"predicted", "class", "score", "p_value", "is_ood", "explanation"} <= set(one[0])
    if page == "docs/howto/own_method.md":
        assert "aside," in Path("out/digits/results.csv").read_text()


def check_preparation(prepare):
    """The lines that prepare an image without this library give the numbers of its transform, to the last digit."""
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, shape, np.uint8)) for shape in ((23, 31, 3), (40, 17), (24, 24, 3))]
    for transform in (
        ff.Transform(),
        ff.Transform(mode="L", mean=(0.13,), std=(0.3,)),
        ff.Transform(resize=19, crop=16, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ff.Transform(resize=20, interpolation="bicubic", squash=True),
        ff.Transform(crop=11, std=(0.5, 0.5, 0.5)),
    ):
        for image in images:
            given = prepare(image, json.loads(json.dumps(transform.as_dict())))
            assert given.dtype == np.float32
            assert np.array_equal(given, transform(image)[None].numpy()), (transform, image)


def check_code(code):
    """Raise if a piece of code between backticks names a command, an option or a name that does not exist."""
    if code.startswith("flatfold ") and re.match(r"[a-z]", code[9:]):
        command, rest = click_command(shlex.split(code)[1:])
        unknown = {word for word in rest if word.startswith("--")} - options_of(command)
    else:
        unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) - OPTIONS
    assert not unknown, f"`{code}` has an option that does not exist: {', '.join(sorted(unknown))}"
    if found := re.fullmatch(r"make ([a-z-]+)", code):
        make([found[1]])
    for name in re.findall(r"(?:^|(?<=[\s(]))(?:ff|flatfold)((?:\.[A-Za-z_]\w*)+)", code):
        if f"flatfold{name}" not in KEYS:
            resolve_name(f"flatfold{name}")


@pytest.mark.parametrize("page", pages())
def test_what_stands_in_backticks_exists(page):
    for code in CODE.findall(outside_of_blocks(read(page))):
        check_code(code)


# --- what runs the pages can itself fail ------------------------------------------------------------------------------


def block(body, language="python", note=""):
    return f"\n# Title\n\n{f'<!-- test: {note} -->' if note else ''}\n```{language}\n{body}\n```\n"


ONLY = "only-parse because nobody has such images"
WRONG = {
    "names that do not exist in prose": ["flatfold benhc digits", "flatfold bench digits --netwroks x",
        "--calibratoin more/", "make tset", "ff.Gaurd(x)", "flatfold.core.hessain"],
    "languages": [block("x", "yaml"), block("x", ""), block("x = ", "toml"), block("{", "json")],
    "Python": [block("1 / 0"), block("x = ", note=ONLY), block("for x in []:\n    x()\nx = 1")],
    "notes": ["\n" * 8 + block("x = 1", note=note) for note in ("only-parse", "wiht --limit 3", "exits 1", "world")],
    "fences": ["```text\nx\n\n" + block("1"), block("1") + "\n```sh\nmake test\n",
        block("1") + "\n" * 4 + "<!-- test: with --limit 3 -->\n\nProse.\n" + block("x")],
    "programs": [block(line, "sh") for line in ("rm -r x", "flatfold benhc digits", "flatfold methods --wiht x",
        "flatfold report nowhere", "make tset", "pip install '.[onx]'", "pip install other", "python nothing.py",
        "curl http://127.0.0.1:8000/", "flatfold score $NOWHERE")],
    "programs that are only parsed": [block(line, "sh", ONLY) for line in ("flatfold bench cifar10 --devise cuda",
        "flatfold bench", "ray job submit -- flatfold scroe", "python -m studies.nothing", "make tset")],
    "exit codes": [block("flatfold methods", "sh", "exits 2 because an argument is missing")],
    "options": [block("flatfold methods", "sh", "with --limt 4")],
    "output": [block("print('two words')") + block("other words", "text"), block("x = 1") + block("words", "text"),
        block("flatfold methods", "sh") + block("colour", "text")],
    "belongings": ["<!-- test: wrold -->" + block("x = 1")],
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_page_that_is_wrong_fails(kind, reader, shell):
    for text in WRONG[kind]:
        with pytest.raises((Exception, SystemExit)):
            check_code(text) if "prose" in kind else run_page("docs/x.md", text, reader, shell)
