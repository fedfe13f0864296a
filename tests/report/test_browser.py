"""The page in a real browser: it sorts, filters, switches, fits a telephone, and needs no script to be complete."""

import shutil

import pytest

from flatfold.evaluate.rows import METRICS
from flatfold.report.page import render
from flatfold.report.summary import write_summary

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome on the path")

METHODS = ("autofold", "fold", "fold-r", "msp", "ebo", "knn@ood", "A-method-with-a-rather-long-name:k=10,seed=3")
SETS = {"near-set": "near", "another-near-set": "near", "far-set": "far", "textures": "far", "noise": "far"}
HEAD = "#results-table thead th"


@pytest.fixture(scope="module")
def run(make_run):
    results = make_run(METHODS, SETS, unknown=60, deviations=["test has 5 images, 9000 were expected"])
    results.methods[3] = type(results.methods[3])(**{**vars(results.methods[3]), "tuned_on": "nothing", "learnt": {}})
    return results


@pytest.fixture(scope="module")
def address(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(render(run), encoding="utf8")  # as write_report does, but without the files for papers
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])  # there is none for root
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a page; at the end no page may have complained or asked for anything outside."""
    contexts, complaints, requests = [], [], []

    def opened(address, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert requests
    assert all(url.startswith(("file:", "data:")) for url in requests)


def names(page):
    return page.locator("#results-table tbody tr:visible th").all_text_contents()


def values(page, column):
    cells = page.locator(f"#results-table tbody tr:visible td:nth-child({column}) b").all_text_contents()
    return [float(cell) for cell in cells]


def head(page, name):
    return page.locator(HEAD, has=page.get_by_role("button", name=name, exact=False)).first


def test_a_click_sorts_and_a_second_one_turns_the_order(visit, address, run):
    page = visit(address)
    assert names(page) == [method.method for method in run.ranked]
    assert page.locator("#results-table th[aria-sort]").count() == 1
    button = page.get_by_role("button", name="textures")
    button.click()
    column = 1 + list(SETS).index("textures") + 1
    assert head(page, "textures").get_attribute("aria-sort") == "descending"
    assert values(page, column) == sorted(values(page, column), reverse=True)
    button.click()
    assert head(page, "textures").get_attribute("aria-sort") == "ascending"
    assert values(page, column) == sorted(values(page, column))
    assert page.locator("#results-table th[aria-sort]").count() == 1


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_key_sorts_and_the_focus_can_be_seen(visit, address, key):
    page = visit(address)
    page.get_by_role("button", name="method").first.focus()
    page.keyboard.press(key)
    assert head(page, "method").get_attribute("aria-sort") == "ascending"
    assert names(page) == sorted(names(page))
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press(key)
    assert names(page) == sorted(names(page), reverse=True)


def test_what_is_empty_comes_last_in_either_order(visit, address):
    page = visit(address)
    for _ in range(2):
        page.get_by_role("button", name="α").click()
        assert page.locator("#results-table tbody tr").last.locator("th").text_content() == "msp"


def test_the_box_and_the_buttons_filter_methods(visit, address):
    page = visit(address)
    page.get_by_role("searchbox").fill("FOLD")
    assert sorted(names(page)) == ["autofold", "fold", "fold-r"]
    assert page.locator("output").text_content() == "3 of 7 methods"
    page.get_by_role("searchbox").fill("a-method")
    assert names(page) == [METHODS[-1]]
    page.get_by_role("searchbox").fill("")
    page.get_by_role("radio", name="Tuned on nothing").check()
    assert names(page) == ["msp"]
    page.get_by_role("radio", name="FOLD family").check()
    assert sorted(names(page)) == ["autofold", "fold", "fold-r"]
    page.get_by_role("searchbox").fill("auto")
    assert names(page) == ["autofold"]
    page.get_by_role("searchbox").fill("")
    page.get_by_role("radio", name="All").check()
    assert len(names(page)) == 7


def test_a_name_that_no_method_has_is_answered(visit, address):
    page = visit(address)
    answer = page.locator(".nothing")
    assert not answer.is_visible()
    page.get_by_role("searchbox").fill("zebra")
    assert names(page) == []
    assert answer.is_visible()
    assert answer.text_content() == "No method is called so."
    page.get_by_role("searchbox").fill("msp")
    assert not answer.is_visible()
    page.locator("#results-table tbody tr").evaluate_all(
        "rows => rows.forEach((row) => { row.dataset.groups = 'all'; })"
    )
    page.get_by_role("searchbox").fill("")
    page.get_by_role("radio", name="FOLD family").check()
    assert answer.text_content() == "No method is of this kind."


def test_the_switch_shows_another_metric_with_its_interval_best_first(visit, address, run):
    page = visit(address)
    page.locator(".metric label").last.click()  # or the first choice would change nothing
    for number, metric in enumerate(METRICS):
        page.locator(".metric label").nth(number).click()
        order = "ascending" if metric.startswith("fpr95") else "descending"
        assert head(page, "average").get_attribute("aria-sort") == order
        ranked = sorted(
            run.methods,
            key=lambda m, metric=metric: getattr(run.cells[m.method, "all"], metric),
            reverse=order == "descending",
        )
        assert names(page) == [method.method for method in ranked]
        cell = run.cells[ranked[0].method, "near-set"]
        low, high = cell.certainty.intervals[metric]
        first = page.locator("#results-table tbody tr").first.locator("td").first
        assert first.locator("b").text_content() == f"{100 * getattr(cell, metric):.2f}"
        assert first.locator("small").text_content() == f"{100 * low:.2f}–{100 * high:.2f}"
        colour = page.evaluate("getComputedStyle(document.querySelector('td.best')).backgroundColor")
        assert (colour != "rgb(255, 255, 255)") == (metric == "auroc")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("script", [True, False])
def test_no_table_hides_a_row(visit, address, width, script):
    page = visit(address, width=width, java_script_enabled=script)
    boxes = page.locator(".scroll")
    assert boxes.count() == 3
    for number in range(3):
        box, last = boxes.nth(number), boxes.nth(number).locator("tr").last
        outer, inner = box.bounding_box(), last.bounding_box()
        assert inner["y"] + inner["height"] <= outer["y"] + outer["height"]


def test_the_first_column_stays_when_the_table_scrolls_and_its_edge_says_that_there_is_more(visit, address):
    page = visit(address, width=390)
    box = page.locator(".scroll").first
    before = box.locator("thead th").first.bounding_box()
    settled = "state => document.querySelector('.scroll').classList.contains('more') === state"
    page.wait_for_function(settled, arg=True)
    assert "gradient" in box.evaluate("box => getComputedStyle(box).maskImage")
    box.evaluate("box => box.scrollTo(10000, 0)")
    assert box.evaluate("box => box.scrollLeft") > 100
    assert box.locator("thead th").first.bounding_box()["x"] == pytest.approx(before["x"], abs=1)
    assert box.locator("tbody th").first.bounding_box()["x"] == pytest.approx(before["x"], abs=1)
    page.wait_for_function(settled, arg=False)


@pytest.mark.parametrize(("section", "fits"), [("#results", False), ("#datasets", True)])
def test_the_heads_of_a_table_stay_in_the_window_until_the_table_ends(visit, address, section, fits):
    page = visit(address)
    page.add_style_tag(content="html { scroll-behavior: auto !important; } .scroll td { height: 300px; }")
    box, heads = page.locator(f"{section} .scroll"), page.locator(f"{section} thead th")
    assert box.evaluate("box => box.classList.contains('fits')") is fits
    assert heads.first.bounding_box()["y"] > 100
    for row in (1, 3):
        box.locator("tbody tr").nth(row).evaluate("row => row.scrollIntoView()")
        page.wait_for_timeout(100)  # for the frame in which the page hears of it
        assert [head.bounding_box()["y"] for head in heads.all()] == pytest.approx([0] * heads.count(), abs=1)
    box.evaluate("box => scrollBy(0, box.getBoundingClientRect().bottom - 5)")
    page.wait_for_timeout(100)
    assert all(head.bounding_box()["y"] < -20 for head in heads.all())


def test_pictures_of_every_method_can_be_seen(visit, address, run):
    page = visit(address)
    for method in METHODS:
        page.locator("form[data-for=gallery] select").select_option(method)
        page.wait_for_function("[...document.querySelectorAll('#gallery img')].every((image) => image.complete)")
        images = page.locator("#gallery img")
        sides = images.evaluate_all("images => images.map((image) => image.naturalWidth)")
        assert set(sides) == {8}
        mine = [wrong for wrong in run.wrong if wrong.method == method]
        assert images.evaluate_all("images => images.map((image) => image.title)") == [wrong.name for wrong in mine]
        words = page.locator("#gallery .share").all_text_contents()
        assert words == [f"above {100 * wrong.share:.1f} % of known" for wrong in mine]
        assert page.locator("#gallery .file").all_text_contents() == [wrong.name.split("/")[-1] for wrong in mine]


@pytest.mark.parametrize("script", [True, False])
def test_where_an_image_is_can_be_read_after_a_tap_or_with_the_keyboard(visit, address, run, script):
    page = visit(address, width=390, java_script_enabled=script, has_touch=True)
    mine = [wrong for wrong in run.wrong if wrong.method == run.ranked[0].method]
    cards = page.locator("#gallery .card")
    assert cards.nth(0).locator(".file").is_visible()
    assert not cards.nth(0).locator(".place").is_visible()
    cards.nth(0).locator("img").tap()
    assert cards.nth(0).locator(".place").is_visible()
    assert cards.nth(0).locator(".place").text_content().startswith(f"{mine[0].name}, row {mine[0].row} of")
    cards.nth(1).locator("summary").focus()
    page.keyboard.press("Enter")
    assert cards.nth(1).locator(".place").is_visible()
    cards.nth(1).locator("summary").focus()
    page.keyboard.press("Enter")
    assert not cards.nth(1).locator(".place").is_visible()


@pytest.mark.parametrize("width", [320, 390, 800, 1280])
def test_the_page_never_scrolls_sideways(visit, address, width):
    page = visit(address, width=width)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".tall").is_visible() == (width < 576)
    assert page.locator(".wide").is_visible() == (width >= 576)


def test_without_a_script_the_table_is_complete_and_nothing_is_dead(visit, address, run):
    page = visit(address, java_script_enabled=False)
    rows = page.locator("#results-table tbody tr")
    assert rows.count() == 7
    assert rows.locator("th").all_text_contents() == [method.method for method in run.ranked]
    for number, method in enumerate(run.ranked):
        cells = rows.nth(number).locator("td")
        for place, column in enumerate(run.columns):
            cell = run.cells[method.method, column]
            assert cells.nth(place).text_content() == f"{100 * cell.auroc:.2f} {100 * cell.fpr95_ood_positive:.2f}"
    assert page.locator("button").count() == 0
    assert not page.locator("form").first.is_visible()
    assert page.locator(".scriptless").first.is_visible()
    assert page.locator("#gallery img").count() == 18


def test_on_paper_there_are_no_controls_and_every_row(visit, address, run):
    page = visit(address)
    page.emulate_media(media="print")
    assert not page.locator("form.controls").first.is_visible()
    assert not page.locator("nav").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".terms dl").is_visible()
    assert not page.locator("#gallery .place").first.is_visible()
    assert page.locator(".scroll").first.evaluate("box => getComputedStyle(box).maskImage") == "none"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_the_page_of_several_runs_sorts_and_switches_too(visit, make_run, tmp_path):
    for seed in range(2):
        make_run(("fold", "msp", "knn"), known=200 + seed, network=f"net{seed}", family="net").save(
            tmp_path / f"net{seed}"
        )
    page = visit(write_summary(tmp_path).as_uri(), width=390)
    rows = page.locator("#table-0 tbody tr th")
    page.locator("#table-0").get_by_role("button", name="method").click()
    assert rows.all_text_contents() == ["fold", "knn", "msp"]
    page.locator(".metric label").nth(1).click()
    below = page.locator("#table-0 td small").first
    spread, interval = below.inner_text().split("\n")
    assert spread.startswith("± ")
    assert interval.count("–") == 1
    assert below.bounding_box()["height"] > 20  # on two lines, without a pointer over them
    page.get_by_role("searchbox").fill("knn")
    assert page.locator("output").text_content() == "1 of 3 methods"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
