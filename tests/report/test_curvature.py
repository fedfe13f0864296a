"""The page of a curvature study, its tables and its finding, and how it joins the report of a benchmark."""

import re
from dataclasses import replace

import numpy as np
import pytest

from flatfold.display.figure import Drawing
from flatfold.evaluate.study_results import Detection
from flatfold.report.curvature import mismatch, render_curvature
from flatfold.report.page import write_curvature, write_report
from flatfold.report.templates import quantity
from tests.report.conftest import Page
from tests.toy_study import draw_less, make_study

HOSTILE = "<img src=x onerror=alert(1)> $title"
SECTIONS = ["curvature-traces", "curvature", "curvature-spectra", "curvature-eigenvalues"]
SECTIONS += ["curvature-detection"]
FIGURES = ["curvature-traces", "curvature-spectrum-parameter", "curvature-spectrum-feature", "curvature-eigenvalues"]
FIVE = {"a": "near", "b": "near", "c": "far", "d": "far", "e": "far"}
ONE = {"far-set": "far"}


@pytest.fixture(scope="module")
def study():
    return make_study(deviations=["at most 60 images of each data set were taken"])


@pytest.fixture(scope="module")
def five():
    return make_study(FIVE, classes=3, width=4, known=10, unknown=8)


@pytest.fixture
def run(make_run):
    results = make_run(["msp"], ONE, extras=False, curves=False, known=30, unknown=30)
    return replace(results, provenance={**results.provenance, "weights, sha256": "abc"})


def shown(study):
    return Page(render_curvature(study))


def test_the_page_is_sound_complete_and_written_with_its_figures(study, tmp_path, monkeypatch):
    saved = Drawing._saved  # one panel of each figure is enough for the files; all are in the page
    monkeypatch.setattr(Drawing, "_saved", lambda self, *kinds: saved(replace(self, panels=self.panels[:1]), *kinds))
    study.save(tmp_path)
    assert write_curvature(tmp_path) == tmp_path / "curvature.html"
    page = Page((tmp_path / "curvature.html").read_text(encoding="utf8")).check()
    assert page.values("id", "section") == [*SECTIONS, "provenance"]
    assert page.menu == [*SECTIONS, "provenance"]
    assert len(re.findall(r"<figure>.*?<svg.*?<path.*?</svg>", page.html, re.DOTALL)) == 3 + 3 + 3 + 3
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in FIGURES for kind in ("svg", "pdf")
    }
    text = page.text()
    for told in ("toy, head", "240 parameters", "8 features", "5 classes", "90.00 % accuracy", "60 ID test"):
        assert told in text, told
    for told in ("80 OOD images in 2", "at most 60 images", "Over parameters: 240 eigenvalues", "abc"):
        assert told in text, told
    for name in SECTIONS[:-1]:
        assert "Hessian of the energy" in page.text(name), name
    assert not (tmp_path / "report.html").exists()


def test_loss_matrix_and_method_are_told_by_space(study, undrawn):
    text = shown(study).text("curvature")
    assert "the Hessian of the energy logsumexp(z) over parameters, features and logits" in text
    assert "λmax was computed by lanczos, the trace by xtrace" in text
    assert "errors are independent" in shown(study).text("curvature-traces")
    exact = replace(
        study, trace_stderr={}, statistics=[replace(s, method="exact", loss="ce_pred") for s in study.statistics]
    )
    ggn = [replace(s, matrix="ggn") if s.space == "parameter" else s for s in exact.statistics]
    ggn = [replace(s, value=99.0) if (s.dataset, s.name) == ("far-set", "lambda_max") else s for s in ggn]
    text = shown(replace(exact, statistics=ggn)).text("curvature")
    assert "the Gauss-Newton matrix of the cross-entropy of the predicted class over parameters; the Hessian" in text
    assert "the trace exactly" in text
    assert "negative eigenvalues" in text  # a trace is smaller than its largest eigenvalue
    assert "errors are independent" not in shown(exact).text("curvature-traces")


def test_names_cannot_become_markup(monkeypatch):
    draw_less(monkeypatch)
    texts = {"name": HOSTILE, "about": HOSTILE, "network": HOSTILE, "deviations": [HOSTILE]}
    study = make_study({HOSTILE: "far"}, known=9, unknown=7, **texts)
    figures = [replace(s, method=HOSTILE, value=1.0, stderr=None) for s in study.statistics]
    page = shown(replace(study, provenance={HOSTILE: HOSTILE}, statistics=figures))
    assert "<img" not in page.html
    for name in [*SECTIONS[:-1], "provenance"]:
        assert HOSTILE in page.text(name), name


def test_studies_of_any_size_and_of_nothing_but_zeros_have_a_page(study, undrawn):
    for size in (
        {"sets": {"only": "near"}, "classes": 2, "width": 3},
        {"sets": ONE, "known": 1, "unknown": 1},
        {"sets": {f"set{n}": "far" for n in range(9)}, "known": 5, "unknown": 5, "classes": 3, "width": 1},
    ):
        shown(make_study(**size)).check()
    arrays = {
        name: {key: np.zeros_like(values) for key, values in getattr(study, name).items()}
        for name in ("traces", "trace_stderr", "nodes", "eigenvalues")
    }
    flat = [replace(s, value=0.0, stderr=s.stderr and 0.0) for s in study.statistics]
    text = shown(replace(study, statistics=flat, **arrays)).check().text()
    assert "in any of 2 data sets" in text
    assert "100 % are zero" in text


def test_a_study_of_the_same_network_joins_the_report(run, tmp_path, undrawn):
    make_study(ONE, deviations=["both", "at most 60 images were taken"]).save(tmp_path)
    replace(run, suite={**run.suite, "deviations": ["both"]}).save(tmp_path)
    write_curvature(tmp_path)
    page = Page((tmp_path / "report.html").read_text(encoding="utf8")).check()
    names = page.values("id", "section")
    place = names.index(SECTIONS[0])
    assert names[place : place + 6] == [*SECTIONS, "datasets"]
    text = page.text(SECTIONS[0])
    assert "times as sharp at OOD images" in text or "not sharper" in text
    assert "only: at most 60 images were taken." in text


def test_a_study_of_another_network_or_suite_or_a_damaged_one_is_not_shown(run, study, tmp_path, undrawn):
    make_study(ONE, weights="abc").save(tmp_path)
    another = {"ood": [{"name": "snow", "group": "far", "about": "", "n": 30}]}
    cases = {
        "network": replace(run, provenance={**run.provenance, "weights, sha256": "other"}),
        "another network": replace(run, provenance={}),  # weights that are not named are not the same
        "suite": replace(run, suite={**run.suite, "name": "other"}),
    }
    for word, results in cases.items():
        results.save(tmp_path)
        page = Page(write_report(tmp_path).read_text(encoding="utf8")).check()
        assert [name for name in page.values("id", "section") if "curv" in name] == ["curvature-elsewhere"], word
        assert word in page.text("curvature-elsewhere")
        assert "λmax" not in page.text()
    assert "suite" in mismatch(replace(run, suite={**run.suite, **another}), make_study(ONE, weights="abc"))
    run.save(tmp_path)
    (tmp_path / "curvature.json").write_text("{")
    assert "JSON" in Page(write_report(tmp_path).read_text(encoding="utf8")).text("curvature-elsewhere")
    (tmp_path / "curvature.json").unlink()
    assert "curvature" not in " ".join(Page(write_report(tmp_path).read_text(encoding="utf8")).values("id", "section"))


def with_values(study, values, stderr=None, **others):
    """Return the study with these figures of each data set, 1 for the known; ``others`` are of a single cell."""
    told = {"id": 1.0, **values}
    cells = {tuple(cell.split("__")): value for cell, value in others.items()}
    figures = [
        replace(s, value=cells.get((s.dataset, s.space, s.name), told[s.dataset]), stderr=stderr)
        for s in study.statistics
    ]
    return replace(study, statistics=figures)


def test_the_finding_tells_where_unknown_images_do_not_exceed_the_known(five, undrawn):
    two, low = dict.fromkeys(FIVE, 2.0), {"a": 2, "b": 2, "c": 1.1, "d": 2, "e": 0.5}
    for changed, wanted, unwanted in [
        (
            with_values(five, {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6.5}),
            [
                "is 2.0 to 6.5 times as sharp at OOD images as at ID images, in all 5 data sets",
                "λmax over parameters × 2.00 to 6.50",
                "trace over features × 2.00 to 6.50",
            ],
            ["Exceptions:", "over logits ×"],
        ),
        (
            with_values(five, two, c__parameter__lambda_max=0.8),
            ["2.0 times as sharp", "in 4 of 5", "× 0.800 to 2.00", ". Exceptions: c (λmax over parameters × 0.800)."],
            [],
        ),
        (with_values(five, two, c__logit__trace=0.1), ["in all 5"], ["Exceptions:"]),  # logits are not counted
        (
            with_values(five, low, 0.1),
            ["in 3 of 5", "c (λmax over parameters not significantly different", ") and e (λmax"],
            [],
        ),
        (
            with_values(five, two, b__parameter__trace=-60.0),
            ["Exceptions: b (trace over parameters lower).", "trace over features × 2.00"],
            ["trace over parameters ×"],
        ),
        (
            with_values(five, {**two, "id": 0.0}),
            ["is sharper at OOD images than at ID images, in all 5"],
            ["Ratios to"],
        ),
    ]:
        text = shown(changed).text()
        assert all(told in text for told in wanted), (text, wanted)
        assert not any(told in text for told in unwanted), (text, unwanted)
    single = make_study({"only": "far"}, classes=3, width=4, known=10, unknown=8)
    assert (
        "is not sharper at OOD images than at ID images in the only" in shown(with_values(single, {"only": 0.5})).text()
    )


def test_every_figure_of_the_table_is_there_with_error_and_factor(five, undrawn):
    page = shown(replace(five, statistics=five.statistics[::-1]))  # columns do not depend on the order in the file
    heads = page.sections["curvature"][0][0]
    spaces = {"parameter": "parameters", "feature": "features", "logit": "logits"}
    columns = [(space, name) for space in spaces for name in ("lambda_max", "trace")]
    words = {"lambda_max": "λmax", "trace": "trace"}
    assert [head.text for head in heads[2:]] == [f"{words[name]} over {spaces[space]}" for space, name in columns]
    rows = page.rows("curvature")
    assert list(rows) == ["ID", "a near", "b near", "c far", "d far", "e far", "near mean", "far mean"]
    assert [row[1].text for row in rows.values()] == ["10", "8", "8", "8", "8", "8", "16", "24"]
    for line, (_, _, *cells) in rows.items():
        name = "id" if line == "ID" else line.split()[0]
        for cell, column in zip(cells, columns, strict=True):
            told, known = five.cells[name, *column], five.cells["id", *column]
            assert cell.text.startswith(quantity(told.value)), (line, column)
            assert ("exact" if told.stderr is None else f"± {quantity(told.stderr, 2)}") in cell.text, (line, column)
            assert (f"× {quantity(told.value / known.value, 3)}" in cell.text) == (name != "id"), (line, column)
            assert float(cell.attributes["data-sort"]) == pytest.approx(told.value)
    trace = five.cells["near", "feature", "trace"].value
    assert trace == pytest.approx(sum(five.cells[name, "feature", "trace"].value for name in "ab") / 2)


def test_only_figures_that_do_not_exceed_the_known_are_marked(five, undrawn):
    changed = with_values(five, dict.fromkeys(FIVE, 2.0), b__feature__trace=0.5)
    figures = [
        replace(s, stderr=1.0) if (s.dataset, s.space, s.name) == ("c", "logit", "trace") else s
        for s in changed.statistics
    ]
    rows = shown(replace(changed, statistics=figures)).rows("curvature")
    marked = {
        (line, place): cell.text
        for line, row in rows.items()
        for place, cell in enumerate(row)
        if cell.attributes.get("class") == "below" and "mean" not in line
    }
    assert list(marked) == [("b near", 5), ("c far", 7)]
    assert marked["b near", 5].endswith("below ID")
    assert marked["c far", 7].endswith("not significant")


def detections(study, *told):
    """Return the lines of the table of detectors, for these AUROCs on data set a with their intervals."""
    found = [Detection(space, alpha, name, auroc, low, high) for space, alpha, name, auroc, low, high in told]
    return shown(replace(study, detections=found)).sections["curvature-detection"][0][1:]


def marks(lines):
    return [line[2].attributes.get("class") for line in lines]


def test_every_auroc_of_a_trace_is_there_with_its_interval(five, undrawn):
    page = shown(five)
    heads = [head.text.split()[0] for head in page.sections["curvature-detection"][0][0]]
    assert heads == ["trace", "α", *FIVE, "near", "far", "average"]
    rows = {name.split()[0]: row for name, row in page.rows("curvature-detection").items()}
    columns = [*FIVE, "near", "far", "all"]
    for told in five.detections:
        cell = rows[f"{told.space}s"][2 + columns.index(told.dataset)]
        assert cell.text == f"{100 * told.auroc:.2f} {100 * told.low:.2f}–{100 * told.high:.2f}"
    single = shown(make_study({"c": "far"}, classes=3, width=4, known=10, unknown=8))
    heads = [head.text.split()[0] for head in single.sections["curvature-detection"][0][0]]
    assert heads == ["trace", "α", "c", "average"]
    assert "curvature-detection" not in shown(replace(five, detections=[])).values("id", "section")


def test_best_are_all_whose_interval_reaches_that_of_the_best_and_worse_than_guessing_is_said(five, undrawn):
    lines = detections(
        five,
        ("logit", 0.0, "a", 0.90, 0.88, 0.92),
        ("feature", 0.0, "a", 0.86, 0.83, 0.88),
        ("feature", 0.5, "a", 0.87, 0.85, 0.879),
    )
    assert marks(lines) == ["best", "best", None]
    assert [line[1].text for line in lines] == ["0", "0", "0.5"]
    assert marks(detections(five, ("feature", 0.0, "a", 0.9, 0.8, 0.95))) == [None]  # without a rival
    lines = detections(
        five,
        ("logit", 0.5, "a", 0.40, 0.35, 0.49),
        ("feature", 0.0, "a", 0.42, 0.36, 0.51),
        ("logit", 0.0, "a", 0.30, 0.20, 0.35),
    )
    assert marks(lines) == ["below", "best", "below"]
    assert ["worse than guessing" in line[2].text for line in lines] == [True, False, True]
    gaps = detections(five, ("logit", 0.0, "a", 0.9, 0.8, 0.95), ("feature", 0.0, "b", 0.9, 0.8, 0.95))
    assert [[cell.text == "" for cell in line[2:]] for line in gaps] == [[False, True], [True, False]]


def test_estimated_traces_say_so_and_are_never_marked(five, undrawn):
    rivals = ("feature", 0.0, "a", 0.9, 0.88, 0.92), ("feature", 0.5, "a", 0.8, 0.78, 0.82)
    for interval, mark in (((0.99, 0.98, 1.0), "best"), ((0.1, 0.05, 0.2), "below")):
        lines = detections(five, ("parameter", 0.0, "a", *interval), *rivals)
        assert marks(lines) == [None, "best", None]
        assert lines[0][0].text == "parameters estimated, ± 10 %"
        lines = detections(replace(five, trace_stderr={}), ("parameter", 0.0, "a", *interval), *rivals)
        assert (marks(lines)[0], lines[0][0].text) == (mark, "parameters")
