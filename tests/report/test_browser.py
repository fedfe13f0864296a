"""The three kinds of report in a real browser: they sort, filter, fit a telephone, and need no script."""

import pytest

from flatfold.display.figure import Drawing
from flatfold.evaluate.results import METRICS
from flatfold.paper import page as exhibits
from flatfold.paper.page import write_reproduction
from flatfold.paper.run import Reproduction
from flatfold.paper.verdicts import compute_verdicts
from flatfold.report.curvature import render_curvature
from flatfold.report.page import render_report
from flatfold.report.summary import write_summary
from tests.browser import needs_browser, scroll_width
from tests.toy_ablations import make_network_run, make_results
from tests.toy_study import draw_nothing, make_study

pytestmark = needs_browser
METHODS = ("autofold", "fold", "fold-r", "msp", "ebo", "knn@ood", "A-method-with-a-rather-long-name:k=10,seed=3")
SETS = {"near-set": "near", "another-near-set": "near", "far-set": "far", "textures": "far", "noise": "far"}


@pytest.fixture(scope="module")
def run(make_run):
    results = make_run(METHODS, SETS, unknown=60, deviations=["test has 5 images, 9000 were expected"])
    results.methods[3] = type(results.methods[3])(**{**vars(results.methods[3]), "tuned_on": "nothing", "learnt": {}})
    return results


@pytest.fixture(scope="module")
def study():
    return make_study(SETS)


@pytest.fixture(scope="module")
def pages(run, study, tmp_path_factory):
    """Return the addresses of a report, a study and a reproduction; only the first one's figures are drawn."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "report.html").write_text(render_report(run), encoding="utf8")
    runs = [make_network_run("one"), make_network_run("a-network-with-a-long-name", results=make_results(better=-1.0))]
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        patch.setattr(exhibits.figures, "theorem_figure", lambda name: Drawing(name, []))
        (folder / "curvature.html").write_text(render_curvature(study), encoding="utf8")
        write_reproduction(folder, Reproduction(runs, compute_verdicts(runs), {}))
    return {name: (folder / f"{name}.html").as_uri() for name in ("report", "curvature", "reproduction")}


def names(page):
    heads = page.locator("#results-table tbody tr:visible th")
    return heads.evaluate_all("heads => heads.map((head) => head.dataset.sort)")


def head(page, name):
    return page.locator("#results-table thead th", has=page.get_by_role("button", name=name, exact=False)).first


@pytest.mark.parametrize("name", ["report", "curvature", "reproduction"])
def test_no_page_scrolls_sideways(visit, pages, name):
    for width in (320, 800, 1280):
        page = visit(pages[name], width=width)
        page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        assert scroll_width(page) <= width, width


def test_a_click_or_a_key_sorts_and_a_second_one_turns_the_order(visit, pages, run):
    page = visit(pages["report"])
    assert names(page) == [method.method for method in run.ranked]
    column = 2 + list(SETS).index("textures")
    for order in ("descending", "ascending"):
        page.get_by_role("button", name="textures").click()
        assert head(page, "textures").get_attribute("aria-sort") == order
        values = page.locator(f"#results-table tbody td:nth-child({column}) b").all_text_contents()
        assert values == sorted(values, key=float, reverse=order == "descending")
    page.get_by_role("button", name="method").first.focus()
    for reverse in (False, True):
        page.keyboard.press("Enter")
        assert names(page) == sorted(METHODS, reverse=reverse)
    for _ in range(2):  # what is empty comes last in either order
        page.get_by_role("button", name="α").click()
        assert names(page)[-1] == "msp"


def test_the_box_and_the_buttons_filter_methods(visit, pages):
    page = visit(pages["report"])
    box = page.get_by_role("searchbox")
    for typed, kind, found in [
        ("FOLD", "All", ["autofold", "fold", "fold-r"]),
        ("", "Tuned on nothing", ["msp"]),
        ("", "FOLD family", ["autofold", "fold", "fold-r"]),
        ("auto", "FOLD family", ["autofold"]),
        ("zebra", "All", []),
        ("", "All", sorted(METHODS)),
    ]:
        box.fill(typed)
        page.get_by_role("radio", name=kind).check()
        assert sorted(names(page)) == found, (typed, kind)
        assert page.locator("output").text_content() == f"{len(found)} of 7 methods"
        assert page.locator(".nothing").is_visible() == (not found)


def test_ten_methods_are_shown_first_and_the_others_on_a_click_a_search_or_on_paper(visit, make_run, tmp_path):
    results = make_run(tuple(f"m{number}" for number in range(12)), known=50, unknown=30)
    (tmp_path / "report.html").write_text(render_report(results), encoding="utf8")
    page = visit((tmp_path / "report.html").as_uri())
    ranked = [run.method for run in results.ranked]
    assert names(page) == ranked[:10]
    page.locator("#results-table thead button").first.click()
    assert names(page) == sorted(ranked, key=lambda name: int(name[1:]))[:10]
    page.get_by_role("searchbox").fill("m11")
    assert names(page) == ["m11"]
    page.get_by_role("searchbox").fill("")
    page.emulate_media(media="print")
    assert len(names(page)) == 12
    page.emulate_media(media="screen")
    page.get_by_role("button", name="Show all 12 methods").click()
    assert len(names(page)) == 12
    assert page.locator("output").text_content() == "12 of 12 methods"
    page.get_by_role("button", name="Show the first 10").click()
    assert len(names(page)) == 10


@pytest.mark.parametrize("name", ["report", "curvature", "reproduction"])
def test_a_dark_page_has_light_text_and_light_figures(visit, pages, name):
    page = visit(pages[name], color_scheme="dark")
    brightest = "value => Math.max(...value.match(/\\d+/g).slice(0, 3).map(Number))"
    body = f"body => ({brightest})(getComputedStyle(body).backgroundColor)"
    assert page.locator("body").evaluate(body) < 50
    colour = "element instanceof SVGElement ? getComputedStyle(element).fill : getComputedStyle(element).color"
    texts = page.locator("h1, main p, tbody th, tbody td, .lead b, summary, dd, figure svg text")
    values = texts.evaluate_all(f"all => all.map((element) => ({brightest})({colour}))")
    assert len(values) > 50
    assert min(values) > 120


def test_the_switch_shows_another_metric_with_its_interval_best_first(visit, pages, run):
    page = visit(pages["report"])
    page.locator(".metric label").last.click()  # or the first choice would change nothing
    for number, metric in enumerate(METRICS):
        page.locator(".metric label").nth(number).click()
        values = {m.method: getattr(run.cells[m.method, "all"], metric) for m in run.methods}
        ranked = sorted(values, key=values.get, reverse=not metric.startswith("fpr95"))
        assert names(page) == ranked, metric
        cell = run.cells[ranked[0], "near-set"]
        low, high = cell.certainty.intervals[metric]
        first = page.locator("#results-table tbody tr").first.locator("td").first
        assert first.locator("b").text_content() == f"{100 * getattr(cell, metric):.2f}"
        assert first.locator("small").text_content() == f"{100 * low:.2f}–{100 * high:.2f}"


def test_pictures_of_every_method_can_be_seen_and_tell_their_place(visit, pages, run):
    page = visit(pages["report"])
    for method in METHODS:
        page.locator("form[data-for=gallery] select").select_option(method)
        page.wait_for_function("[...document.querySelectorAll('#gallery img')].every((image) => image.complete)")
        images = page.locator("#gallery img")
        assert set(images.evaluate_all("images => images.map((image) => image.naturalWidth)")) == {8}
        mine = [wrong.name for wrong in run.wrong if wrong.method == method]
        assert images.evaluate_all("images => images.map((image) => image.title)") == mine
    place = page.locator("#gallery .card .place").first
    assert not place.is_visible()
    images.first.click()
    assert place.is_visible()


def test_without_a_script_and_on_paper_everything_is_there(visit, pages, run):
    page = visit(pages["report"], java_script_enabled=False)
    assert names(page) == [method.method for method in run.ranked]
    assert page.locator("button:visible").count() == 0
    assert not page.locator("form").first.is_visible()
    assert page.locator("#gallery img").count() == 18
    page = visit(pages["report"])
    page.emulate_media(media="print")
    assert not page.locator("form.controls").first.is_visible()
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    page = visit(pages["reproduction"], java_script_enabled=False)
    details = page.locator("#table-1 details", has_text="checks hold")
    assert not details.locator("table").is_visible()
    details.locator("summary").click()
    assert details.locator("table").is_visible()


def test_a_summary_sorts_and_filters_too(visit, make_run, tmp_path):
    for seed in range(2):
        run = make_run(("fold", "msp", "knn"), known=200 + seed, network=f"net{seed}", family="net")
        run.save(tmp_path / f"net{seed}")
    page = visit(write_summary(tmp_path).as_uri(), width=390)
    page.locator("#table-0").get_by_role("button", name="method").click()
    assert page.locator("#table-0 tbody th").evaluate_all("all => all.map((head) => head.dataset.sort)") == [
        "fold",
        "knn",
        "msp",
    ]
    page.get_by_role("searchbox").fill("knn")
    assert page.locator("output").text_content() == "1 of 3 methods"
    assert scroll_width(page) <= 390


def test_a_study_sorts_by_value_and_not_by_text(visit, pages, study):
    page = visit(pages["curvature"])
    page.locator("#curvature th button", has_text="trace").first.click()
    cells = page.locator("#curvature tbody th")
    values = {name: study.cells[name, "parameter", "trace"].value for name in (*study.datasets, "near", "far")}
    ranked = ["ID" if name == "id" else name for name in sorted(values, key=values.get)]
    assert cells.evaluate_all("cells => cells.map((cell) => cell.firstChild.textContent)") == ranked
