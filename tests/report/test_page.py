"""The page: complete, self-contained, and safe with whatever stands in a result file."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from flatfold.evaluate.results import AlphaCurve, Results
from flatfold.evaluate.rows import MethodRun, averages, make_row
from flatfold.report.figures import _roc
from flatfold.report.page import render, write_report

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Strict(HTMLParser):
    """Notes every tag and fails on one that is not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.text, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def make_results(methods=("autofold", "msp"), curves=True, about="Known and unknown.", near=True):
    rng = np.random.default_rng(0)
    sets = {"near-set": "near", "far-set": "far"} if near else {"far-set": "far"}
    scores = {}
    for method in methods:
        scores[f"{method}/id"] = rng.lognormal(-5, 3, 200).astype(np.float32)
        scores |= {f"{method}/{name}": rng.lognormal(0, 1, 100).astype(np.float32) for name in sets}
    rows = [make_row(m, "id", s, g, scores[f"{m}/id"], scores[f"{m}/{s}"]) for m in methods for s, g in sets.items()]
    grid = [0.1, 0.5, 1.0]
    curve = AlphaCurve("autofold", grid, [0.7, 0.9, 0.8], [0.01] * 3, 0.5, {**dict.fromkeys(sets, grid), "all": grid})
    return Results(
        suite={
            "name": "toy",
            "network": "",
            "about": about,
            "n_classes": 3,
            "accuracy": 0.9,
            "n_test": 200,
            "ood": [
                {"name": name, "group": group, "n": 100, "about": f"About {name}."} for name, group in sets.items()
            ],
        },
        methods=[
            MethodRun(m, m, {"grid": grid}, "val", "id", 0.1, 2.0, {"alpha_": 0.5}, ["take care"]) for m in methods
        ],
        refused={"ash": "ASH is made for <positive> features."},
        rows=rows,
        averages=averages(rows),
        alpha_curves=[curve] if curves else [],
        provenance={"seed": 0, "command": "flatfold bench toy"},
        scores=scores,
    )


def parsed(results):
    page = Strict()
    page.feed(render(results))
    return page


def test_the_page_is_well_formed_and_no_two_figures_share_an_id():
    page = parsed(make_results())
    assert page.open in ([], ["html"])
    assert len(page.ids) == len(set(page.ids))


def test_the_page_asks_nothing_of_the_outside():
    page = parsed(make_results())
    assert all(link.startswith("#") for link in page.links)
    assert "<script" not in render(make_results())


def test_every_number_of_the_table_is_there():
    results = make_results()
    text = " ".join(parsed(results).text)
    for cell in [*results.rows, *results.averages]:
        assert f"{100 * cell.auroc:.2f}" in text
        assert f"{100 * cell.fpr95_ood_positive:.2f}" in text
    assert "FPR95 counts OOD as positive" in " ".join(text.split())
    assert "take care" in text
    assert "0.5*" in text


def test_the_best_of_each_column_is_marked():
    marked = re.findall(r'class="best"><b>([\d.]+)</b>', render(make_results()))
    best = max(row.auroc for row in make_results().rows if row.dataset == "far-set")
    assert f"{100 * best:.2f}" in marked
    assert len(marked) == 5


def test_what_stands_in_a_result_file_cannot_become_markup():
    page = render(make_results(about="<script>alert(1)</script> $title"))
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $title" in page


@pytest.mark.parametrize("methods", [("msp",), tuple(f"m{i}" for i in range(12))])
def test_any_number_of_methods_and_groups_can_be_drawn(methods):
    text = " ".join(parsed(make_results(methods, curves=False, near=False)).text)
    assert "No AutoFold among the methods" in text
    assert all(method in text for method in methods)


def test_the_same_results_give_the_same_page(tmp_path):
    make_results().save(tmp_path)
    first = write_report(tmp_path).read_text()
    assert write_report(tmp_path).read_text() == first == render(make_results())


HOSTILE = "<img src=x onerror=alert(1)>"


def test_no_name_or_note_can_become_markup():
    results = make_results()
    (run, *others) = results.methods
    run = replace(run, hyper={"kind": HOSTILE}, learnt={HOSTILE: 1.0}, warnings=[HOSTILE], fits_on=HOSTILE)
    suite = {**results.suite, "name": HOSTILE, "about": HOSTILE}
    suite["ood"] = [{**ood, "about": HOSTILE} for ood in suite["ood"]]
    page = render(replace(results, suite=suite, methods=[run, *others], provenance={HOSTILE: HOSTILE}))
    assert "<img" not in page
    assert page.count("&lt;img") >= 9


def test_methods_are_ranked_and_only_a_chosen_alpha_has_a_star():
    results = make_results()
    runs = [replace(run, learnt={}, hyper={"alpha": 0.25}) if run.method == "msp" else run for run in results.methods]
    page = render(replace(results, methods=runs))
    names = re.findall(r'<th scope="row">([a-z]+)</th>', page)[:2]
    means = {mean.method: mean.auroc for mean in results.averages if mean.over == "all"}
    assert names == sorted(means, key=means.get, reverse=True)
    assert "<td>0.25</td>" in page
    assert "<td>0.5*</td>" in page


def test_the_curve_counts_alarms_at_every_known_score():
    known, unknown = np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.0, 2.0, 2.5, 9.0])
    false_alarms, found = _roc(known, unknown)
    thresholds = [3.0, 2.0, 1.0]
    assert false_alarms.tolist() == [np.mean(known >= t) for t in thresholds]
    assert found.tolist() == [np.mean(unknown >= t) for t in thresholds]


def test_the_figure_of_alpha_says_what_was_chosen_and_what_was_best():
    text = " ".join(parsed(make_results()).text)
    assert "autofold: α = 0.5 (1 was best)" in text


def test_settings_without_a_value_are_left_out():
    results = make_results()
    runs = [replace(run, hyper={"score_norm": None, "seed": 3}) for run in results.methods]
    text = " ".join(parsed(replace(results, methods=runs)).text)
    assert "seed = 3" in text
    assert "score_norm" not in text


def test_a_method_tuned_on_unknown_data_is_marked_in_the_table_and_in_every_figure():
    results = make_results(methods=("knn@ood", "msp"), curves=False)
    results.methods[0] = replace(results.methods[0], tuned_on="ood")
    page = render(results)
    table = page[page.index("<table>") : page.index("</table>")]
    (line,) = re.findall(r"<tr><th scope=\"row\">knn.*?</tr>", table)
    assert line.startswith('<tr><th scope="row">knn@ood</th>')
    assert line.endswith("<td>OOD</td></tr>")
    assert not re.search(r"knn(?!@ood)", page)


def test_what_was_left_out_is_said():
    assert "ash was left out: ASH is made for &lt;positive&gt; features." in render(make_results())
