"""The report of a run and the summary of several: complete, self-contained, and safe with any text in a result file."""

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from email.message import Message
from statistics import fmean, pstdev
from xml.etree import ElementTree

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from flatfold.display.figure import Drawing
from flatfold.evaluate.results import METRICS
from flatfold.evaluate.summary import answer, summarise
from flatfold.report import gallery, templates
from flatfold.report.figures import alarm_threshold
from flatfold.report.page import render_report, write_report
from flatfold.report.summary import render_summary, write_summary
from flatfold.report.templates import _environment, render
from tests.report.conftest import Page

HOSTILE = "<img src=x onerror=alert(1)> $title"
SECTIONS = ["results", "scores", "roc", "norms", "alpha", "costs", "wrong", "datasets", "methods", "provenance"]


def percent(value):
    return f"{100 * value:.2f}"


def between(low, high):
    return f"{percent(low)}–{percent(high)}"


@pytest.fixture(scope="module")
def results(make_run):
    return make_run()


@pytest.fixture(scope="module")
def page(results):
    return Page(render_report(results)).check()


def test_every_section_is_there_in_the_menu_and_its_figures_are_drawn(page):
    assert page.values("id", "section") == SECTIONS
    assert page.menu == SECTIONS
    figures = re.findall(r"<figure>.*?(<svg.*?</svg>)", page.html, re.DOTALL)
    assert len(figures) == 2 + 2 + 2 + 4 + 1 + 2  # threshold, histograms, ROC, norms, alpha, costs
    for svg in figures:
        assert len(list(ElementTree.fromstring(svg).iter())) > 20
    assert "Classes are numbers" in page.text("wrong")


def test_every_number_of_the_table_is_there_best_method_first(results, page):
    rows = page.rows("results-table")
    assert list(rows) == [run.method for run in results.ranked]
    means = [results.cells[name, "all"].auroc for name in rows]
    assert means == sorted(means, reverse=True)
    for name, (_, *cells, alpha, tuned) in rows.items():
        assert (alpha.text, tuned.text) == ("0.5*", "ID")
        for cell, column in zip(cells, results.columns, strict=True):
            told = results.cells[name, column]
            assert cell.text == f"{percent(told.auroc)} {percent(told.fpr95_ood_positive)}"
            assert cell.metrics == [
                [round(getattr(told, m), 7), percent(getattr(told, m)), between(*told.certainty.intervals[m])]
                for m in METRICS
            ]
            assert (cell.attributes.get("class") == "best") == told.certainty.best, (name, column)
            behind = f"{percent(told.certainty.behind)} behind the best"
            assert (behind in cell.attributes["title"]) == (not told.certainty.best)
    heads = page.sections["results-table"][0][0]
    assert [head.text for head in heads[1:4]] == ["near-set near", "far-set far", "average mean"]
    assert heads[3].attributes["aria-sort"] == "descending"


def test_without_intervals_nothing_is_marked_and_the_page_says_why(make_run, undrawn):
    results = make_run(certainty=False, extras=False)
    page = Page(render_report(results)).check()
    for row in page.rows("results-table").values():
        for cell in row[1:4]:
            assert "class" not in cell.attributes
            assert all(below == "" for _, _, below in cell.metrics)
    assert "No interval" in page.text()
    best = results.ranked[0].method
    assert f"{best} has the best average AUROC, {percent(results.cells[best, 'all'].auroc)} %." in page.text()


def test_names_and_notes_cannot_become_markup(make_run):
    texts = {"name": HOSTILE, "about": HOSTILE, "network": HOSTILE, "deviations": [HOSTILE]}
    results = make_run((HOSTILE, "msp"), {HOSTILE: "far", "b": "near"}, classes=["0", HOSTILE, "2"], **texts)
    (run, *others) = results.methods
    run = replace(run, hyper={"kind": HOSTILE}, learnt={HOSTILE: 1.0}, warnings=[HOSTILE], fits_on=HOSTILE)
    results = replace(
        results,
        methods=[run, *others],
        provenance={HOSTILE: {HOSTILE: HOSTILE}},
        unreadable={HOSTILE: {HOSTILE: HOSTILE}},
        refused={HOSTILE: HOSTILE},
        wrong=[replace(wrong, name=HOSTILE + '</script>"') for wrong in results.wrong],
    )
    page = Page(render_report(results))
    assert not re.search(r"<img(?! src=\"data:)", page.html)
    assert page.html.count("</script>") == 2
    for name in ("scores", "roc", "norms", "costs", "wrong", "datasets", "methods", "provenance"):
        assert HOSTILE in page.text(name), name
    assert page.text().count(HOSTILE) >= 20


def test_the_same_results_give_the_same_files(results, page, tmp_path, monkeypatch):
    saved = Drawing._saved  # one panel of each figure is enough for the files; all are in the page
    monkeypatch.setattr(Drawing, "_saved", lambda self, *kinds: saved(replace(self, panels=self.panels[:1]), *kinds))
    results.save(tmp_path)
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.html").read_text(encoding="utf8") == page.html
    names = {"threshold", "histograms", "roc", "norms-fold", "norms-best", "alpha", "costs"}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("svg", "pdf")
    }


def test_templates_of_another_folder_use_the_macros_escape_values_and_refuse_undefined_names(tmp_path):
    (tmp_path / "x.html").write_text('{% from "macros.html" import head %}{{ head(name) }}{{ share|percent }}')
    assert render("x.html", tmp_path, name="<b>", share=0.5) == '<th scope="col">&lt;b&gt;</th>50.00'
    with pytest.raises(UndefinedError, match="share"):
        render("x.html", tmp_path, name="a")


@pytest.mark.slow  # a new interpreter
def test_a_report_without_a_curvature_study_does_not_load_the_room_of_curvature():
    code = "import sys, flatfold.report.page; sys.exit('flatfold.curvature' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_empty_sections_are_neither_on_the_page_nor_in_the_menu(make_run, undrawn):
    results = make_run(("msp",), {"far-set": "far"}, curves=False, extras=False)
    quiet = replace(results, refused={}, methods=[replace(run, warnings=[]) for run in results.methods])
    page = Page(render_report(quiet)).check()
    expected = [name for name in SECTIONS if name not in ("norms", "alpha", "wrong")]
    assert page.values("id", "section") == expected
    assert page.menu == expected
    assert "Before you compare" not in page.text()


def test_the_page_of_many_methods_names_all_and_draws_some(make_run, undrawn):
    methods = tuple(f"method{i}" for i in range(28))
    page = Page(render_report(make_run(methods, known=50, unknown=30))).check()
    assert set(page.rows("results-table")) == set(methods)
    assert "22 more" in page.text("scores")
    assert "8 methods with the best average of 28" in page.text("roc")
    assert "28 notes on methods" in page.text()


def test_methods_data_sets_and_provenance_are_told(results, undrawn):
    long, hyper = [1, 2, 3, 4, 5], {"std": [0.2, 0.3], "score_norm": None, "seed": 3, "grid": []}
    first = replace(results.methods[0], hyper={"grid": long}, peak_megabytes=1234.5, tuned_on="id")
    second = replace(results.methods[1], hyper={**hyper, "alpha": 0.25}, learnt={}, tuned_on="ood")
    sources = {"seconds": 3.5, "seed": 0, "empty": None, "versions": {"torch": "2"}}
    suite = {**results.suite, "fingerprints": {"val": "a1"}}
    page = Page(render_report(replace(results, methods=[first, second], provenance=sources, suite=suite)))
    rows = page.rows("methods")
    name, *told = (cell.text for cell in rows["autofold"])
    assert "Park et al., ECCV 2026" in name
    assert "https://arxiv.org/abs/1610.02136" in page.values("href", "a")
    assert told == ["grid = 1..5", "alpha_ = 0.5", "val", "id", "0.100", "2.00", "1,234.5"]
    assert rows["msp"][1].text == "std = (0.2, 0.3), seed = 3, grid = (), alpha = 0.25"
    assert (rows["msp"][-1].text, rows["msp"][-1].attributes["data-sort"]) == ("", "")
    results_rows = page.rows("results-table")
    assert [cell.text for cell in results_rows["msp"][-2:]] == ["0.25", "OOD"]
    assert results_rows["autofold"][-2].attributes["data-sort"] == "0.5"
    groups = {told["data-groups"] for tag, told in page.tags if "data-groups" in told}
    assert groups == {"all family", "all"}
    assert [cell.text for cell in page.rows("datasets")["far-set"][1:]] == ["far", "100", "About far-set."]
    told = page.text("provenance")
    assert all(word in told for word in ("seconds, without loading", "3.5", "torch", "a1"))
    assert "empty" not in told


def test_the_head_tells_what_was_found_on_what(make_run, undrawn):
    results = make_run(("a", "b", "c"), known=1200, unknown=700, network="resnet")
    names = [run.method for run in results.ranked]

    def text(best):
        marks = [replace(m, certainty=replace(m.certainty, best=m.method in best)) for m in results.averages]
        return Page(render_report(replace(results, averages=marks))).text()

    mean = results.cells[names[0], "all"]
    interval = between(*mean.certainty.intervals["auroc"])
    found = f"{names[0]} has the best average AUROC, {percent(mean.auroc)} % (95 % interval {interval})"
    assert f"{found}; no significant difference from {names[1]} and {names[2]}." in text(names)
    assert f"{found}; no significant difference from {names[2]}." in text([names[0], names[2]])
    alone = text(names[:1])
    assert f"{found}; every other method is significantly worse" in alone
    for fact in ("toy, resnet", "90.00 % accuracy", "3 classes", "1,200 ID test", "1,400 OOD", "3 methods"):
        assert fact in alone, fact


def test_the_page_opens_with_a_method_to_use_a_command_and_what_it_finds(make_run, undrawn):
    results = make_run(("odin", "knn@ood", "own"), known=100, unknown=40)
    for method, values in {"odin": 3.0, "knn@ood": 2.0, "own": 1.0}.items():  # ranks them
        for name in ("near-set", "far-set"):
            results.scores[f"{method}/{name}"][:] = values
        results.scores[f"{method}/id"][:] = np.arange(100) / 40
    results.scores["knn@ood/near-set"][:10] = 2.5
    ranks = {"odin": 0.99, "knn@ood": 0.9, "own": 0.8}
    means = [replace(mean, auroc=ranks[mean.method]) for mean in results.averages]
    runs = [replace(run, hyper={"k": 10}, tuned_on="ood") if run.name == "knn" else run for run in results.methods]
    page = Page(render_report(replace(results, averages=means, methods=runs)))
    text = page.text()
    assert (
        "Use knn@ood (k-th nearest neighbour). At 5 % false alarms it detects 10 of 80 OOD images" in text
    )  # not odin
    assert "25.0 % of near-set, 0 % of far-set. It was tuned on OOD images" in text
    assert "--method knn:k=10 --fpr 0.05" in text
    assert text.index("Use knn@ood") < text.index("has the best average AUROC") < text.index("In percent")


def test_a_threshold_has_at_most_the_promised_false_alarms():
    for scores in (np.arange(100.0), np.arange(19.0), np.ones(40), np.repeat([1.0, 2.0], 50), np.arange(1.0)):
        assert (scores > alarm_threshold(scores)).mean() <= 0.05
    assert alarm_threshold(np.arange(100.0)) == 94


@pytest.mark.parametrize("site", ["https://example.org/docs", ""])
def test_pages_of_the_documentation_are_linked_where_the_package_says_where_they_are(
    site, results, undrawn, monkeypatch
):
    _environment.cache_clear()
    monkeypatch.setattr(templates, "metadata", lambda _: Message() if not site else named(site))
    try:
        page = Page(render_report(results)).check()
    finally:
        _environment.cache_clear()
    links = [link for link in page.values("href", "a") if link.startswith("https://example.org")]
    assert ("https://example.org/docs/howto/report.html#fpr95-has-two-meanings" in links) == bool(site)
    assert ("docs/howto/report.md" in page.text()) == (not site)


def named(site):
    message = Message()
    message["Project-URL"] = f"Documentation, {site}/"
    return message


def test_everything_to_know_before_a_comparison_is_in_the_box_once(make_run, undrawn):
    many = {f"{i}.png": "damaged" for i in range(25)}
    gaps = {"far-set": many, "near-set": {"c.png": "truncated"}}
    deviations = ["test has 5 images, 9000 were expected", "25 images of far-set could not be read"]
    results = replace(make_run(deviations=deviations), unreadable=gaps)
    text = Page(render_report(results)).text()
    for told in ("9000 were expected", "far-set: 25 images", "near-set: 1 image", "19.png: damaged", "and 5 more"):
        assert text.count(told) == 1, told
    assert "of far-set could not be read" not in text
    assert "20.png" not in text
    assert "ash was left out: ASH is made for <positive> features." in text
    assert "autofold: take care" in text


def stored(page):
    """Return what the page keeps of images for its script."""
    return json.loads("".join(data for inside, data in page.words if "wrong-data" in inside))


def pictures(page):
    """Return the key and address of every picture that is shown without a script."""
    return {told["data-key"]: told["src"] for tag, told in page.tags if tag == "img" and told["data-key"]}


def test_every_wrong_image_is_in_the_page_once_and_the_best_method_is_shown(make_run, undrawn):
    results = make_run(("a", "b", "c"), pictures=8)
    page = Page(render_report(results))
    shown, kept, best = pictures(page), stored(page)["pictures"], results.ranked[0].method
    key = {id(wrong): f"{wrong.dataset}/{wrong.row}" for wrong in results.wrong}
    assert set(shown) == {key[id(wrong)] for wrong in results.wrong if wrong.method == best}
    assert shown.keys().isdisjoint(kept)
    assert shown.keys() | kept.keys() == set(key.values())
    assert list(stored(page)["methods"]) == page.values("value", "option") == [run.method for run in results.ranked]
    for name, address in {**shown, **kept}.items():
        content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), results.thumbnails[name]), name


def test_a_picture_says_score_share_class_and_place(make_run, undrawn):
    results = make_run(("a",), pictures=2, classes=["ant", "bee"])
    scores = iter([0.1011, 0.1012, 295.2, 1.0, 3e-12, 4e-12])
    paths = iter(["/data/x y.png", "C:\\birds\\x y.png", "one/x y.png/", "x y.png"] * 2)
    wrong = [replace(each, score=next(scores), name=next(paths)) for each in results.wrong]
    page = Page(render_report(replace(results, wrong=wrong)))
    groups = stored(page)["methods"]["a"]
    told = [entry["score"] for name in ("id", "near-set", "far-set") for entry in groups[name]]
    assert told == [f"score {text}" for text in ("0.1011", "0.1012", "295", "1.00", "3.00e-12", "4.00e-12")]
    known, unknown = groups["id"][0], groups["near-set"][0]
    assert (known["classes"], unknown["classes"]) == ("predicted bee, is 2", "predicted bee")  # 2 has no name
    assert known["share"] == f"above {100 * wrong[0].share:.1f} % of ID"
    assert known["place"].startswith(f"/data/x y.png, row {wrong[0].row} of")
    assert {entry["file"] for entries in groups.values() for entry in entries} == {"x y.png"}
    for word in ("file", "place", "score", "share", "classes"):
        assert known[word] in page.text("gallery"), word


def test_the_gallery_shows_at_most_eight_of_a_data_set_and_fewer_when_they_are_large(make_run, undrawn, monkeypatch):
    results = make_run(("a", "b"), pictures=11)

    def counts():
        groups = stored(Page(render_report(results)))["methods"]
        return {len(entries) for method in groups.values() for entries in method.values()}

    worst = [f"id/{wrong.row}" for wrong in results.wrong if (wrong.method, wrong.dataset) == ("a", "id")][:8]
    assert [entry["key"] for entry in stored(Page(render_report(results)))["methods"]["a"]["id"]] == worst
    assert counts() == {8}
    monkeypatch.setattr(gallery, "BUDGET", 20 * len(gallery.data_uri(next(iter(results.thumbnails.values())))))
    assert counts() <= {3, 4, 5, 6, 7}
    monkeypatch.setattr(gallery, "BUDGET", 0)
    assert counts() == {1}


@pytest.fixture
def folder(make_run, tmp_path):
    """Three networks of two families, with a report each but the last."""
    for seed, family in enumerate(["small", "small", "large & <wide>"]):
        more = {"network": f"net{seed}", "family": family, "accuracy": 0.9 + seed / 100}
        make_run(("fold", "msp"), known=200 + seed, **more).save(tmp_path / f"net {seed}")
        if seed < 2:
            (tmp_path / f"net {seed}" / "report.html").write_text("<p>here")
    return tmp_path


def test_a_summary_has_means_spread_and_interval_of_every_family(folder, make_run):
    assert write_summary(folder) == folder / "report.html"
    page = Page((folder / "report.html").read_text(encoding="utf8"))
    links = [link for link in page.values("href", "a") if not link.startswith("https:")]  # the documentation's
    assert links == ["#family-0", "#family-1", "#runs", "net%200/report.html", "net%201/report.html"]
    runs = [make_run(("fold", "msp"), known=200 + seed) for seed in range(3)]
    assert (
        page.text().index(answer(runs[:2]))
        < page.text().index(answer(runs[2:]))
        < page.text().index("Means over 2 runs")
    )
    columns = runs[0].columns
    for row in (row for row in summarise(runs[:2]) if row.column in columns):
        cell = page.rows("table-0")[row.method][1 + columns.index(row.column)]
        values = [run.cells[row.method, row.column].auroc for run in runs[:2]]
        below = f"± {percent(pstdev(values))}\n{between(*row.intervals['auroc'])}"
        assert cell.metrics[0] == [round(fmean(values), 7), percent(fmean(values)), below], row
    lasts = [row[-1].metrics[0][0] for row in page.rows("table-0").values()]
    assert len(lasts) == 2
    assert lasts == sorted(lasts, reverse=True)
    single = runs[2].cells["fold", "all"]
    assert page.rows("table-1")["fold"][-1].metrics[0][2] == between(*single.certainty.intervals["auroc"])
    for told in ("3 runs", "2 families", "Means over 2 runs", "90.50 % on average", "One run, accuracy 92.00 %"):
        assert told in page.text(), told
    assert "<wide>" not in page.html
    assert "large & <wide>" in page.text("family-1")
    assert [f"net {seed}" for seed in range(3)] == list(page.rows("runs"))


def test_a_summary_names_methods_that_are_left_out_and_why(folder, make_run):
    reason = "ash was left out: ASH is made for <positive> features."
    text = Page(write_summary(folder).read_text()).text()
    assert (text.count(f"small: {reason}"), text.count(f"large & <wide>: {reason}")) == (1, 1)
    ash = make_run(("fold", "msp", "ash"), network="net0", family="small")
    replace(ash, refused={}).save(folder / "net 0")
    make_run(("fold",), network="net3", family="small", deviations=["too few"]).save(folder / "net3")
    text = Page(write_summary(folder).read_text()).text()
    for told in ("small: msp is not in every run", "toy, net3: too few", "small: ash is not in every run", "toy, net1"):
        assert told in text, told


def test_a_summary_without_intervals_or_with_gaps_leaves_them_out(make_run, tmp_path):
    runs = [make_run(("fold", "msp"), known=200 + n, certainty=False, network=f"{n}", family="f") for n in range(2)]
    rows = [row for row in runs[0].rows if (row.method, row.dataset) != ("msp", "near-set")]
    means = [mean for mean in runs[0].averages if (mean.method, mean.over) != ("msp", "near")]
    folders = {tmp_path / "a": replace(runs[0], rows=rows, averages=means), tmp_path / "b": runs[1]}
    page = Page(render_summary(folders, tmp_path))
    cells = page.rows("table-0")
    assert all(re.fullmatch(r"± \d+\.\d\d", below) for cell in cells["fold"][1:] for *_, below in cell.metrics)
    empty = [cell.text == "" for cell in cells["msp"]]
    assert sum(empty) == 1


def test_a_summary_refuses_a_folder_of_one_run_or_of_none(make_run, tmp_path):
    with pytest.raises(ValueError, match=r"results\.json"):
        write_summary(tmp_path)
    make_run().save(tmp_path)
    (tmp_path / "report.html").write_text("of the run")
    with pytest.raises(ValueError, match="several runs"):
        write_summary(tmp_path)
    assert (tmp_path / "report.html").read_text() == "of the run"
