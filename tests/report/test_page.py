"""The page: complete, self-contained, and safe with whatever stands in a result file."""

import json
import re
from dataclasses import replace

import pytest

from flatfold.evaluate.rows import METRICS
from flatfold.report.cells import between
from flatfold.report.page import render, write_report

HOSTILE = "<img src=x onerror=alert(1)>"


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
    page = render(replace(results, averages=means))
    assert all(line.count('class="best"') >= 3 for line in lines(page))
    assert "cannot be told from the best" in page


def test_without_certainty_nothing_is_marked_and_the_page_says_why(make_run, parsed):
    page = render(make_run(certainty=False, extras=False))
    assert 'class="best"' not in page
    assert "so no method is marked as the best" in page
    assert "These results hold no norms of features." in page
    assert "These results hold no images." in page
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
        for line in lines(render(replace(results, methods=runs)))
    }
    assert told == {"autofold": "all family", "msp": "all untuned"}


def test_what_stands_in_a_result_file_cannot_become_markup(make_run):
    page = render(make_run(about="<script>alert(1)</script> $title"))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $title" in page


def test_no_name_or_note_can_become_markup(make_run):
    results = make_run(
        (HOSTILE, "msp"),
        {HOSTILE: "far", "b": "near"},
        name=HOSTILE,
        about=HOSTILE,
        network=HOSTILE,
        deviations=[HOSTILE],
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


@pytest.mark.parametrize("methods", [("msp",), tuple(f"m{i}" for i in range(14))])
def test_any_number_of_methods_and_groups_can_be_drawn(methods, make_run, parsed):
    page = render(make_run(methods, {"far-set": "far"}, curves=False))
    text = " ".join(parsed(page).text)
    assert "No AutoFold among the methods" in text
    assert all(method in text for method in methods)
    assert ("2 more" in text) == (len(methods) == 14)
    assert ("The 8 methods with the best average of 14 are drawn." in text) == (len(methods) == 14)


def test_the_same_results_give_the_same_files(results, tmp_path):
    results.save(tmp_path)
    first = write_report(tmp_path).read_text()
    figures = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert write_report(tmp_path).read_text() == first == render(results)
    assert {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()} == figures
    assert results.ranked[0].method == "msp"  # so that two methods are drawn against the norm
    names = {"histograms", "roc", "norms-fold", "norms-best", "alpha", "costs"}
    assert set(figures) == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}


def test_methods_are_ranked_and_only_a_chosen_alpha_has_a_star(results):
    runs = [replace(run, learnt={}, hyper={"alpha": 0.25}) if run.method == "msp" else run for run in results.methods]
    page = render(replace(results, methods=runs))
    names = [re.search(r"row\">(.*?)<", line)[1] for line in lines(page)]
    means = {mean.method: mean.auroc for mean in results.averages if mean.over == "all"}
    assert names == sorted(means, key=means.get, reverse=True)
    assert '<td data-sort="0.25">0.25</td>' in page
    assert '<td data-sort="0.5">0.5*</td>' in page


def test_settings_without_a_value_are_left_out(results, parsed):
    runs = [replace(run, hyper={"score_norm": None, "seed": 3, "grid": []}) for run in results.methods]
    text = " ".join(parsed(render(replace(results, methods=runs))).text)
    assert "seed = 3" in text
    assert "score_norm" not in text


def test_costs_are_told_where_they_are_known(results):
    runs = [replace(results.methods[0], peak_megabytes=1234.5), results.methods[1]]
    page = render(replace(results, methods=runs))
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
    assert not re.search(r"knn(?!@ood)", page)


def test_every_data_set_is_described(page):
    assert "About near-set." in page
    assert re.search(r'<th scope="row">far-set</th><td class="text">far</td><td data-sort="100">100</td>', page)


def test_a_page_of_28_methods_and_5_data_sets_stays_below_4_megabytes(make_run):
    sets = {f"set{i}": "near" if i < 2 else "far" for i in range(5)}
    page = render(make_run(tuple(f"method{i}" for i in range(28)), sets, known=2000, unknown=1000, pictures=8))
    assert len(page.encode()) < 4_000_000
