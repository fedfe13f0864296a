"""The site: built without a warning, complete without a network, and true to the code."""

import doctest
import html
import os
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from xml.etree import ElementTree

import pytest

import flatfold
from flatfold import curvature, detectors
from flatfold.cli import app
from flatfold.detectors import METHODS
from tests.browser import CHROMIUM, expect, sync_playwright
from tests.command import uncovered_environment
from tests.docs.page import ROOT, module, read
from tests.docs.shell import get_command, options_of

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'flatfold[docs]'")
pytestmark = pytest.mark.docs
ELSEWHERE = re.compile(r"""(?:<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=|url\(|@import )["']?(?:https?:)?//""")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site; any warning is an error, but not when mkdocs is told to be quiet."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    variables = uncovered_environment(NO_MKDOCS_2_WARNING="1", SOURCE_DATE_EPOCH="0")
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="session")
def texts(site):
    """Every page of the site by its path."""
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf8") for path in site.rglob("*.html")}


def test_every_link_and_anchor_leads_somewhere_and_nothing_is_fetched_from_elsewhere(texts, site):
    styles = {path.name: path.read_text(encoding="utf8") for path in site.rglob("*.css")}
    assert [name for name, text in (texts | styles).items() if ELSEWHERE.search(text)] == []
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in texts.items()}
    for name, text in texts.items():
        for link in re.findall(r'<(?:a|img|link|script)\b[^>]*?\b(?:href|src)="([^"]+)"', text):
            if re.match(r"https?:|mailto:|data:", link) or name == "404.html":
                continue
            target, _, anchor = html.unescape(link).partition("#")
            path = os.path.normpath(Path(name).parent / target) if target else name
            path = "index.html" if path == "." else path
            assert (site / path).is_file(), f"{name} -> {link}"
            assert not anchor or anchor in anchors[path] or anchor.startswith("__"), f"{name} -> {link}"


def test_every_page_and_example_is_there_and_found_by_the_search(texts, site):
    searched = (site / "search" / "search_index.json").read_text(encoding="utf8")
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert name in texts
        assert f'"location":"{name}"' in searched
    for page, source in module("hooks").FROM_ROOT.items():
        title = re.search(r"^# (.*)$", read(source), re.MULTILINE)[1]
        assert f">{title}<" in texts[page.replace(".md", ".html")]
    for path in (*(ROOT / "examples").glob("*.*"), *(ROOT / "examples").glob("gallery/*.py")):
        assert (site / path.relative_to(ROOT)).read_bytes() == path.read_bytes()


@pytest.mark.skipif(CHROMIUM is None or sync_playwright is None, reason="needs playwright, and chromium on the path")
def test_pages_opened_from_a_folder_are_searched_and_have_a_font_for_formulas(site):
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((site / "howto" / "choose.html").as_uri())
        page.locator(".md-search__input").press_sequentially("conformal")
        expect(page.locator(".md-search-result__item").first).to_be_visible()
        page.goto((site / "maths.html").as_uri())
        assert page.evaluate("document.fonts.load('1em \"Site Math\"').then(fonts => fonts.length)") == 1
        browser.close()


def test_formulas_are_mathml_and_no_restructured_text_is_left(texts):
    formulas = [formula for text in texts.values() for formula in re.findall(r"<math\b.*?</math>", text, re.DOTALL)]
    assert len(formulas) > 50
    for formula in formulas:
        assert "\\" not in formula, "a command that the converter does not know"
        ElementTree.fromstring(re.sub(r"&(?!#|amp;|lt;|gt;|quot;)\w+;", "", formula))
    for name, text in texts.items():
        assert not re.search(r":[a-z]+:(?:`|<code)|\.\. math::|<autoref|arithmatex", text), name
        for items in re.findall(r">Returns:</.*?<ul>(.*?)</ul>", text, re.DOTALL):
            assert items.count("<li") == 1, f"{name}: {items}"  # however many lines it takes


def test_every_public_name_method_command_and_option_is_in_the_reference(texts):
    reference = "".join(text for name, text in texts.items() if name.startswith("reference/"))
    public = [name for name in flatfold.__all__ if name != "__version__"]
    names = [f"flatfold.{name}" for name in public if name not in ("curvature", "data", "detectors")]
    names += [f"flatfold.curvature.{name}" for name in curvature.__all__]
    classes = {name for name, value in vars(detectors).items() if isinstance(value, type)} - {"Shaping"}
    names += [f"flatfold.detectors.{name}" for name in classes.difference(public)]
    assert [name for name in names if f'id="{name}"' not in reference] == []
    assert [name for name in public if f"<code>{name}</code></a></td>" not in texts["reference/flatfold.html"]] == []
    assert [name for name in METHODS if f"<td><code>{name}</code></td>" not in texts["reference/detectors.html"]] == []
    page = html.unescape(re.sub(r"<[^>]+>", "", texts["reference/cli.html"]))
    for name, command in get_command(app).commands.items():
        assert f"flatfold {name}" in page
        assert [option for option in options_of(command) if option.startswith("--") and option not in page] == []
    for path in (ROOT / "docs" / "reference").glob("*.md"):
        for name in re.findall(r"^::: (\S+)", path.read_text(encoding="utf8"), re.MULTILINE):
            assert resolve_name(name), name


def test_docstrings_and_formulas_are_rewritten():
    for name in ("hooks", "docstrings"):
        result = doctest.testmod(module(name))
        assert (result.attempted > 0, result.failed) == (True, 0), name
    markdown, hooks = module("docstrings").markdown, module("hooks")
    assert markdown("A.\n\n    .. math:: a \\\\\n        b\n") == "A.\n\n    $$\n    a \\\\ b\n    $$\n"
    link = '<autoref identifier="full.create" optional><code>create</code></autoref>'
    assert markdown(":func:`create`", lambda name: f"full.{name}") == link
    made = hooks.on_page_content(r'<span class="arithmatex">\(a &lt; b\)</span><div class="arithmatex">\[x\]</div>')
    assert made.count('display="inline"') == made.count('<div class="formula"><math') == 1
