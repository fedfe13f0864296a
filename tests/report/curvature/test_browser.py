"""The page of a curvature study in a real browser: it fits a telephone, and its tables sort by value."""

import shutil

import pytest

from flatfold.report.curvature.page import render_curvature
from tests.toy_study import make_study

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome on the path")

SETS = {"near-set": "near", "another-near-set": "near", "a-far-set-with-a-rather-long-name": "far", "noise": "far"}


@pytest.fixture(scope="module")
def study():
    return make_study(SETS)


@pytest.fixture(scope="module")
def address(study, tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "curvature.html"
    path.write_text(render_curvature(study), encoding="utf8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])  # there is none for root
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a page of some width; at the end none may have complained."""
    contexts, complaints = [], []

    def opened(address, width):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
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
def test_the_page_never_moves_sideways(visit, address, width):
    page = visit(address, width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    right = "e => e.getBoundingClientRect().right > innerWidth"
    parts = "[...document.querySelectorAll('main p, main figure, header *')]"
    assert page.evaluate(f"{parts}.filter({right}).length") == 0


def test_a_click_sorts_by_the_value_and_not_by_its_text(visit, address, study):
    page = visit(address, 1280)
    page.locator("#curvature th button", has_text="trace").first.click()
    names = page.locator("#curvature tbody th").evaluate_all(
        "cells => cells.map((cell) => cell.firstChild.textContent)"
    )
    values = {name: study.cell(name, "parameter", "trace").value for name in (*study.datasets, "near", "far")}
    assert names == ["known" if name == "id" else name for name in sorted(values, key=values.get)]


def test_amber_can_be_seen(visit, address):
    page = visit(address, 1280)
    below = page.locator("td.below")
    assert below.count() > 0
    assert below.first.evaluate("cell => getComputedStyle(cell).backgroundColor") == "rgb(255, 248, 230)"
