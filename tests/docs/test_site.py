"""The site: built without a warning, complete without a network, and true to the code."""

import doctest
import html
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from xml.etree import ElementTree

import pytest

import flatfold
from flatfold import curvature
from flatfold.detectors import METHODS
from tests.docs.page import ROOT
from tests.uncovered import environment

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'flatfold[docs]'")
ELSEWHERE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["'](?:https?:)?//""")


def module(name):
    """Return a module of `docs`, which is no package."""
    spec = spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site; any warning is an error, but not when mkdocs is told to be quiet."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    variables = environment(NO_MKDOCS_2_WARNING="1", SOURCE_DATE_EPOCH="0")
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="session")
def texts(site):
    """Every page of the site by its path."""
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf8") for path in site.rglob("*.html")}


def test_nothing_is_fetched_from_elsewhere(texts, site):
    assert {name: ELSEWHERE.search(text)[0] for name, text in texts.items() if ELSEWHERE.search(text)} == {}
    styles = "".join(path.read_text(encoding="utf8") for path in site.rglob("*.css"))
    assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", styles)


def test_every_link_and_anchor_leads_somewhere(texts, site):
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in texts.items()}
    for name, text in texts.items():
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', text):
            if re.match(r"https?:|mailto:", link) or name == "404.html":
                continue
            target, _, anchor = html.unescape(link).partition("#")
            path = os.path.normpath(Path(name).parent / target) if target else name
            path = path if Path(path).suffix else "index.html"
            assert (site / path).exists(), f"{name} -> {link}"
            assert not anchor or anchor in anchors[path] or anchor.startswith("__"), f"{name} -> {link}"


def test_every_page_is_in_the_navigation_and_in_the_search(texts, site):
    searched = (site / "search" / "search_index.json").read_text(encoding="utf8")
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert name in texts
        assert f'"location":"{name}"' in searched
        assert f'href="{Path(name).name}"' in texts[name] or name == "index.html"


def test_formulas_are_mathml_that_is_well_formed(texts):
    formulas = [formula for text in texts.values() for formula in re.findall(r"<math\b.*?</math>", text, re.DOTALL)]
    assert len(formulas) > 50
    for formula in formulas:
        assert "\\" not in formula, "a command that the converter does not know"
        ElementTree.fromstring(re.sub(r"&(?!#|amp;|lt;|gt;|quot;)\w+;", "", formula))
    assert not any("arithmatex" in text for text in texts.values())


def test_no_restructured_text_is_left(texts):
    for name, text in texts.items():
        assert not re.search(r":[a-z]+:(?:`|<code)|\.\. math::|<autoref", text), name


def test_what_a_function_returns_is_one_item_however_many_lines_it_takes(texts):
    for name, text in texts.items():
        for items in re.findall(r">Returns:</.*?<ul>(.*?)</ul>", text, re.DOTALL):
            assert items.count("<li") == 1, f"{name}: {re.sub(r'<[^>]+>', '', items)}"


def test_every_public_name_has_a_place_in_the_reference(texts):
    reference = "".join(text for name, text in texts.items() if name.startswith("reference/"))
    names = [f"flatfold.{n}" for n in flatfold.__all__ if n not in ("__version__", "curvature")]
    names += [f"flatfold.curvature.{name}" for name in curvature.__all__]
    assert [name for name in names if f'id="{name}"' not in reference] == []


def test_the_table_of_names_has_all_of_them_with_their_first_lines(texts):
    page = texts["reference/flatfold.html"]
    for name in flatfold.__all__:
        assert name == "__version__" or f"<code>{name}</code></a></td>" in page, name
    assert "Make a detector available under a name in <code>create</code>" in page


def test_every_method_is_in_the_table_of_detectors(texts):
    for name in METHODS:
        assert f"<td><code>{name}</code></td>" in texts["reference/detectors.html"]


def test_every_command_is_on_the_page_with_its_help(texts):
    page = html.unescape(re.sub(r"<[^>]+>", "", texts["reference/cli.html"]))
    from typer.main import get_command

    from flatfold.cli import app

    commands = get_command(app).commands
    for name, command in commands.items():
        assert f"flatfold {name}" in page
        for option in (option for parameter in command.params for option in parameter.opts if option[:2] == "--"):
            assert option in page
    assert "flatfold suite init" in page


@pytest.mark.parametrize(("page", "source"), module("hooks").FROM_ROOT.items())
def test_pages_of_the_root_are_there(page, source, texts):
    title = re.search(r"^# (.*)$", (ROOT / source).read_text(encoding="utf8"), re.MULTILINE)[1]
    assert f">{title}<" in texts[page.replace(".md", ".html")]


def test_examples_can_be_opened(site):
    for path in (ROOT / "examples").glob("*.*"):
        assert (site / "examples" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["hooks", "docstrings"])
def test_the_examples_in_docstrings_hold(name):
    result = doctest.testmod(module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_a_docstring_is_rewritten():
    markdown = module("docstrings").markdown
    text = (
        "A.\n\n    .. math:: a \\\\\n        b\n\n    Args:\n        x, y: Both\n            of them.\n        z: One."
    )
    expected = (
        "A.\n\n    $$\n    a \\\\ b\n    $$\n\n    Args:\n        x: Both\n            of them.\n        y: Both\n"
        "            of them.\n        z: One."
    )
    assert markdown(text) == expected
    assert markdown(".. math::\n    x^2\n\nThen.") == "$$\nx^2\n$$\n\nThen."
    link = '<autoref identifier="full.create" optional><code>create</code></autoref>'
    assert markdown(":func:`create`", lambda name: f"full.{name}") == link


def test_a_formula_is_written_as_the_kind_that_it_is():
    hooks = module("hooks")
    content = r'<p><span class="arithmatex">\(a &lt; b\)</span></p><div class="arithmatex">\[x\]</div>'
    made = hooks.on_page_content(content)
    assert 'display="inline"' in made
    assert '<div class="formula"><math' in made
    assert "&lt;" in made or "&#x0003C;" in made
    assert hooks.on_page_content("<p>plain</p>") == "<p>plain</p>"


def test_names_that_the_reference_links_to_are_those_of_the_package():
    for path in (ROOT / "docs" / "reference").glob("*.md"):
        for name in re.findall(r"^::: (\S+)", path.read_text(encoding="utf8"), re.MULTILINE):
            place, _, last = name.rpartition(".")
            assert hasattr(import_module(place), last), name
