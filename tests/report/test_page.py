"""The page: complete, self-contained, and safe with whatever stands in a result file."""

import json
import re
from dataclasses import replace

import pytest

from flatfold.evaluate.rows import METRICS
from flatfold.report.about import methods_table, provenance, settings
from flatfold.report.cells import between
from flatfold.report.figures import all_figures
from flatfold.report.page import render, write_report
from flatfold.report.results_table import controls, results_table

HOSTILE = "<img src=x onerror=alert(1)> $title"


@pytest.fixture(scope="module")
def results(make_run):
    return make_run()


@pytest.fixture(scope="module")
def page(results):
    return render(results)


def lines(page):
    """Return the lines of the table of results."""
    body = page[page.index('id="results-table"') :]
    return re.findall(r"<tr data-groups.*?</tr>", body[: body.index("</table>")])


def test_the_page_is_well_formed_and_no_two_elements_share_an_id(page, parsed):
    seen = parsed(page)
    assert seen.open == []
    assert len(seen.ids) == len(set(seen.ids))
    assert [tag for tag, _ in seen.tags].count("h1") == 1


def test_every_entry_of_the_contents_leads_to_a_section(page, parsed):
    seen = parsed(page)
    anchors = [attributes["href"][1:] for tag, attributes in seen.tags if tag == "a"]
    assert len(anchors) == 10
    assert set(anchors) <= {attributes.get("id") for tag, attributes in seen.tags if tag == "section"}


def test_the_page_asks_nothing_of_the_outside(page, parsed):
    assert all(link.startswith(("#", "data:image/")) for link in parsed(page).links)
    assert not re.search(r"@import|https?://(?!www\.w3\.org/)", page)
    assert not re.search(r"url\((?!#)", page)


def test_every_number_of_the_table_is_there(results, page, parsed):
    text = " ".join(parsed(page).text)
    for cell in [*results.rows, *results.averages]:
        assert f"{100 * cell.auroc:.2f}" in text
        assert f"{100 * cell.fpr95_ood_positive:.2f}" in text
    assert "take care" in text
    assert "0.5*" in text


def test_a_cell_keeps_every_metric_with_its_interval(results, page, parsed):
    kept = [json.loads(told["data-metrics"]) for tag, told in parsed(page).tags if "data-metrics" in told]
    expected = [
        [
            [round(getattr(cell, m), 7), f"{100 * getattr(cell, m):.2f}", between(cell.certainty.intervals[m])]
            for m in METRICS
        ]
        for run in results.ranked
        for cell in (results.cells[run.method, column] for column in results.columns)
    ]
    assert kept == expected


def test_what_cannot_be_told_from_the_best_is_marked_and_nothing_else(results, page):
    marked = [line.count('class="best"') for line in lines(page)]
    assert marked == [
        sum(results.cells[run.method, column].certainty.best for column in results.columns) for run in results.ranked
    ]
    assert 0 < sum(marked) < 2 * len(results.columns)
    assert "cannot be told from it" in page


def test_a_cell_says_how_far_it_is_behind(results, page):
    last = results.cells[results.ranked[-1].method, "all"]
    assert not last.certainty.best
    told = last.certainty
    expected = f"{100 * told.behind:.2f} behind the best ({between((told.behind_low, told.behind_high))})"
    assert f"AUROC {between(told.intervals['auroc'])}: {expected}" in page
    assert ": the best" in page


def test_two_methods_can_be_the_best_of_a_column(results):
    means = [replace(mean, certainty=replace(mean.certainty, best=True)) for mean in results.averages]
    page = results_table(replace(results, averages=means))
    assert all(line.count('class="best"') >= 3 for line in lines(page))
    assert "cannot be told from the best" in page


def test_without_certainty_nothing_is_marked_and_the_page_says_why(make_run, parsed):
    page = render(make_run(certainty=False, extras=False))
    assert 'class="best"' not in page
    assert "so no method is marked as the best" in page
    assert parsed(page).open == []
    kept = [json.loads(told["data-metrics"]) for _, told in parsed(page).tags if "data-metrics" in told]
    assert all(below == "" for cell in kept for _, _, below in cell)


def test_averages_say_who_averages_so(page):
    head = page[page.index('id="results-table"') : page.index("</thead>")]
    assert head.count("mean, OpenOOD") == 2
    assert head.count("mean, FOLD paper") == 1
    assert "as OpenOOD averages." in head
    assert re.search(r'title="Mean over all data sets, as the FOLD paper averages." aria-sort="descending"', head)


def test_methods_know_the_groups_by_which_they_are_filtered(results):
    runs = [replace(results.methods[0], tuned_on="id"), replace(results.methods[1], tuned_on="nothing")]
    told = {
        re.search(r"row\">(.*?)<", line)[1]: re.search(r'groups="(.*?)"', line)[1]
        for line in lines(results_table(replace(results, methods=runs)))
    }
    assert told == {"autofold": "all family", "msp": "all untuned"}


def test_no_name_or_note_can_become_markup(make_run):
    results = make_run(
        (HOSTILE, "msp"),
        {HOSTILE: "far", "b": "near"},
        name=HOSTILE,
        about=HOSTILE,
        network=HOSTILE,
        deviations=[HOSTILE],
        classes=["0", HOSTILE, "2"],
    )
    (run, *others) = results.methods
    run = replace(run, hyper={"kind": HOSTILE}, learnt={HOSTILE: 1.0}, warnings=[HOSTILE], fits_on=HOSTILE)
    results = replace(
        results,
        methods=[run, *others],
        provenance={HOSTILE: {HOSTILE: HOSTILE}},
        unreadable={HOSTILE: {HOSTILE: HOSTILE}},
        refused={HOSTILE: HOSTILE},
        wrong=[replace(wrong, name=HOSTILE) for wrong in results.wrong],
    )
    page = render(results)
    assert not re.search(r"<img(?! src=\"data:)", page)
    assert page.count("&lt;img") >= 20
    assert page.count("$title") >= 20
    assert "seen as &lt;img" in page


def test_a_single_method_and_a_single_group_can_be_drawn(make_run, parsed):
    text = " ".join(parsed(render(make_run(("msp",), {"far-set": "far"}, curves=False))).text)
    assert "msp" in text
    assert "are drawn" not in text
    assert "1 more" not in text


def test_the_same_results_give_the_same_files(results, page, tmp_path):
    results.save(tmp_path)
    assert write_report(tmp_path).read_text() == page
    figures = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    for name in ("norms-fold", "costs"):  # with pixels, and with outlines of letters
        all_figures(results)[name].save(tmp_path / "again")
    again = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert len(again) == 4
    assert again.items() <= figures.items()
    assert results.ranked[0].method == "msp"  # so that two methods are drawn against the norm
    names = {"histograms", "roc", "norms-fold", "norms-best", "alpha", "costs"}
    assert set(figures) == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}


def test_methods_are_ranked_and_only_a_chosen_alpha_has_a_star(results):
    runs = [replace(run, learnt={}, hyper={"alpha": 0.25}) if run.method == "msp" else run for run in results.methods]
    page = results_table(replace(results, methods=runs))
    names = [re.search(r"row\">(.*?)<", line)[1] for line in lines(page)]
    means = {mean.method: mean.auroc for mean in results.averages if mean.over == "all"}
    assert names == sorted(means, key=means.get, reverse=True)
    assert '<td data-sort="0.25">0.25</td>' in page
    assert '<td data-sort="0.5">0.5*</td>' in page


def test_settings_without_a_value_are_left_out(results, parsed):
    runs = [replace(run, hyper={"score_norm": None, "seed": 3, "grid": []}) for run in results.methods]
    text = " ".join(parsed(methods_table(replace(results, methods=runs))).text)
    assert "seed = 3" in text
    assert "score_norm" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([0.229, 0.224, 0.225], "std = (0.229, 0.224, 0.225)"),
        ([1, 2, 3, 4], "std = (1, 2, 3, 4)"),
        ([1, 2, 3, 4, 5], "std = 1..5"),
        ([7], "std = (7)"),
        ("a, b", "std = a, b"),
    ],
)
def test_a_short_list_is_told_whole_and_of_a_long_one_the_ends(value, text):
    assert settings({"std": value}) == text


def test_the_page_says_which_seconds_are_counted(results, parsed):
    seen = parsed(provenance(replace(results, provenance={"seconds": 3.5, "seed": 0})))
    assert seen.text == ["seconds, without loading and drawing", "3.5", "seed", "0"]


def test_hashes_of_images_are_told_by_data_set(results):
    told = provenance(replace(results, provenance={}, suite={**results.suite, "fingerprints": {"val": "a1"}}))
    assert told == "<dl><dt>images, sha256</dt><dd><dl><dt>val</dt><dd>a1</dd></dl></dd></dl>"


def headings(page, parsed):
    """Return the anchors of the menu, and the sections of the page with a heading."""
    seen = parsed(page)
    return (
        [told["href"][1:] for tag, told in seen.tags if tag == "a"],
        [told["id"] for tag, told in seen.tags if tag == "section" and "id" in told],
        page.count("<h2>"),
    )


def test_a_section_without_content_is_neither_there_nor_in_the_menu(make_run, parsed):
    results = make_run(("msp", "knn"), curves=False, extras=False)
    page = render(replace(results, refused={}, methods=[replace(run, warnings=[]) for run in results.methods]))
    expected = ["results", "scores", "roc", "costs", "datasets", "methods", "provenance"]
    assert headings(page, parsed) == (expected, expected, 7)
    assert "How AutoFold chose" not in page
    assert "gallery" not in page[: page.index("<script>")].partition("</style>")[2]


def test_every_section_is_there_when_it_has_content(page, parsed):
    expected = ["results", "scores", "roc", "norms", "alpha", "costs", "wrong", "datasets", "methods", "provenance"]
    assert headings(page, parsed) == (expected, expected, 11)  # with that of the box of warnings
    assert "Classes are numbers of the network's outputs." in " ".join(parsed(page).text)


def test_the_box_for_a_name_does_not_look_as_if_it_were_filled():
    assert 'placeholder="filter, e.g. knn"' in controls("results-table", 3)


def test_costs_are_told_where_they_are_known(results):
    runs = [replace(results.methods[0], peak_megabytes=1234.5), results.methods[1]]
    page = methods_table(replace(results, methods=runs))
    assert '<td data-sort="1234.5">1,234.5</td>' in page
    assert page.count('<td data-sort=""></td>') == 1
    assert '<td data-sort="0.1">0.100</td>' in page


def test_a_method_tuned_on_unknown_data_is_marked_in_the_table_and_in_every_figure(make_run):
    results = make_run(("knn@ood", "msp"), curves=False)
    results.methods[0] = replace(results.methods[0], tuned_on="ood")
    page = render(results)
    (line,) = [line for line in lines(page) if "knn" in line]
    assert '<th scope="row">knn@ood</th>' in line
    assert line.endswith("<td>OOD</td></tr>")
    assert not re.search(r"knn(?!@ood)", page.replace("e.g. knn", ""))


def test_every_data_set_is_described(page):
    assert "About near-set." in page
    assert re.search(r'<th scope="row">far-set</th><td class="text">far</td><td data-sort="100">100</td>', page)


def test_a_page_of_28_methods_and_5_data_sets_is_complete_and_stays_below_4_megabytes(make_run, parsed):
    sets = {f"set{i}": "near" if i < 2 else "far" for i in range(5)}
    methods = tuple(f"method{i}" for i in range(28))
    page = render(make_run(methods, sets, known=2000, unknown=1000, pictures=8))
    assert len(page.encode()) < 4_000_000
    text = " ".join(parsed(page).text)
    assert all(method in text for method in methods)
    assert "16 more" in text
    assert "The 8 methods with the best average of 28 are drawn." in text
