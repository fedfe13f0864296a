"""The page of a reproduction in a real browser: it fits a telephone, and its verdicts can be seen."""

import shutil

import pytest

from flatfold.report.drawing import Drawing, Panel
from flatfold.report.reproduction import exhibits
from flatfold.report.reproduction.page import write_reproduction
from tests.toy_ablations import make_material, make_results, save

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome on the path")
EMPTY = '<svg viewBox="0 0 100 60"></svg>'


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    save(make_material("one"), folder / "one")
    save(make_material("a-network-with-a-long-name", results=make_results(better=-1.0)), folder / "two")
    (folder / "two").rename(folder / "a-network-with-a-long-name")
    with pytest.MonkeyPatch.context() as patch:  # figures are looked at elsewhere
        patch.setattr(exhibits, "theorem_figure", lambda: Drawing("theorem", [Panel("empty", lambda axes: None)]))
        patch.setattr(Drawing, "inline", lambda drawing: [EMPTY] * len(drawing.panels))
        patch.setattr(Drawing, "save", lambda drawing, place: None)
        return write_reproduction(folder, ["one", "a-network-with-a-long-name"]).as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])  # there is none for root
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, address):
    """Return a function that opens the page in some width; at the end it may not have complained."""
    contexts, complaints = [], []

    def opened(width, script=True):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=script))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_never_moves_sideways(visit, width):
    page = visit(width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    right = "e => e.getBoundingClientRect().right > innerWidth"
    assert page.evaluate(f"[...document.querySelectorAll('main p, main dd, header *')].filter({right}).length") == 0


def test_the_overview_leaves_out_its_longest_column_on_a_telephone(visit):
    last = ".overview tbody td:nth-child(4)"
    assert visit(1280).locator(last).first.is_visible()
    assert not visit(390).locator(last).first.is_visible()


def test_verdicts_have_colours(visit):
    page = visit(1280)
    colours = "spans => [...new Set(spans.map((span) => getComputedStyle(span).backgroundColor))]"
    assert len(page.locator("[class^=verdict-]").evaluate_all(colours)) > 1


def test_without_a_script_checks_open_at_a_click(visit):
    page = visit(1280, script=False)
    details = page.locator("#table-1 details")
    assert not details.locator("table").is_visible()
    details.locator("summary").click()
    assert details.locator("table").is_visible()


def test_a_link_of_the_overview_goes_to_its_exhibit(visit):
    page = visit(1280)
    page.locator(".overview a", has_text="Table 7").click()
    assert page.url.endswith("#table-7")
    assert page.locator("#table-7 h2").is_visible()
