"""The page of a curvature study, and how it joins the report of a benchmark."""

import re
from dataclasses import replace

import numpy as np
import pytest

from flatfold.report.curvature import page as curvature_page
from flatfold.report.curvature import parts as curvature_parts_room
from flatfold.report.curvature.page import render_curvature, write_curvature
from flatfold.report.curvature.parts import beside, curvature_figures, curvature_parts, how, meaning, same_network
from flatfold.report.drawing import Drawing
from flatfold.report.page import write_report
from tests.toy_study import draw_less, draw_nothing, make_study

HOSTILE = "<img src=x onerror=alert(1)> $title"
SECTIONS = [
    "curvature",
    "curvature-traces",
    "curvature-spectra",
    "curvature-eigenvalues",
    "curvature-detection",
    "theorem",
]
NAMES = {
    "curvature-traces",
    "curvature-spectrum-parameter",
    "curvature-spectrum-feature",
    "curvature-eigenvalues",
    "theorem",
}


ONE = {"far-set": "far"}


@pytest.fixture(scope="module")
def study():
    return make_study(deviations=["at most 60 images of each data set were taken"])


@pytest.fixture(scope="module")
def figures(study):
    return curvature_figures(study)


@pytest.fixture(scope="module")
def page(study, figures):
    return render_curvature(study, figures)


@pytest.fixture(autouse=True)
def short(page, monkeypatch):
    """Draw the theorem, which is the same in every study, only in ``page``, and files only where they are looked at."""
    draw_less(monkeypatch)


@pytest.fixture
def run(make_run):
    results = make_run(["msp"], ONE, extras=False, curves=False, known=30, unknown=30)
    return replace(results, provenance={**results.provenance, "weights, sha256": "abc"})


def shown(page, parsed):
    """Return the sections of a page that have a name."""
    return [told["id"] for tag, told in parsed(page).tags if tag == "section" and "id" in told]


def test_the_page_is_well_formed_and_no_two_elements_share_an_id(page, parsed):
    seen = parsed(page)
    assert seen.open == []
    assert len(seen.ids) == len(set(seen.ids))
    assert [tag for tag, _ in seen.tags].count("h1") == 1


def test_every_section_is_there_and_in_the_menu(page, parsed):
    assert shown(page, parsed) == [*SECTIONS, "provenance"]
    anchors = [told["href"] for tag, told in parsed(page).tags if tag == "a"]
    assert anchors == [f"#{name}" for name in (*SECTIONS, "provenance")]


def test_the_page_asks_nothing_of_the_outside(page, parsed):
    assert all(link.startswith("#") for link in parsed(page).links)
    assert not re.search(r"@import|https?://(?!www\.w3\.org/)|url\((?!#)", page)


def test_the_head_tells_finding_facts_and_deviations(page, parsed):
    text = " ".join(" ".join(parsed(page).text).split())
    assert "toy, head" in text
    assert "Known and unknown. How sharply" in text
    assert "Both the largest eigenvalue λmax and the trace" in text
    for fact in ("240 parameters", "8 features", "5 known classes", "90.00 % accuracy", "60 known test images"):
        assert fact in text
    assert "80 unknown images in 2 data sets" in text
    assert "at most 60 images of each data set were taken" in text
    assert "weights, sha256 abc" in text


def test_a_network_without_a_name_and_a_single_data_set_are_told_as_such(parsed, monkeypatch):
    draw_nothing(monkeypatch)
    text = " ".join(parsed(render_curvature(make_study({"only": "far"}, network=""))).text)
    assert re.search(r"\btoy\s", text)
    assert "toy," not in text
    assert "unknown images in 1 data set\n" in text or "unknown images in 1 data set " in text


def test_every_section_says_the_loss_and_the_matrix(page):
    for name in SECTIONS[:-1]:
        section = page[page.index(f'<section id="{name}">' if f'<section id="{name}">' in page else f'id="{name}"') :]
        assert "the Hessian of the energy logsumexp(z) over" in section[: section.index("</p>")]


def test_losses_and_matrices_are_told_apart_by_space(study):
    assert meaning(study, ["parameter", "feature", "logit"]) == (
        "Curvature is here the Hessian of the energy logsumexp(z) over parameters, features and logits."
    )
    found = [replace(s, matrix="ggn", loss="ce_pred") if s.space == "parameter" else s for s in study.statistics]
    assert meaning(replace(study, statistics=found), ["parameter", "feature", "logit"]) == (
        "Curvature is here the Gauss-Newton matrix of the cross-entropy of the predicted class over parameters; "
        "the Hessian of the energy logsumexp(z) over features and logits."
    )
    assert meaning(study, ["feature"]).endswith("over features.")


def test_spectra_say_how_many_eigenvalues_there_are(page):
    assert "<h3>Over parameters: 240 eigenvalues</h3>" in page
    assert "<h3>Over features: 8 eigenvalues</h3>" in page


def test_no_name_can_become_markup():
    study = make_study({HOSTILE: "far"}, name=HOSTILE, about=HOSTILE, network=HOSTILE, deviations=[HOSTILE])
    study = replace(
        study,
        provenance={HOSTILE: HOSTILE},
        statistics=[replace(s, method=HOSTILE, value=1.0, stderr=None) for s in study.statistics],
    )
    page = render_curvature(study)
    assert "<img" not in page
    assert page.count("&lt;img") >= 20
    assert page.count("$title") >= 20


@pytest.mark.parametrize(
    "size",
    [
        {"sets": {"only": "near"}, "classes": 2, "width": 3},
        {"sets": ONE, "known": 1, "unknown": 1},
        {"sets": {f"set{number}": "far" for number in range(9)}, "known": 5, "unknown": 5, "classes": 3, "width": 1},
    ],
    ids=str,
)
def test_studies_of_any_size_can_be_drawn(size, parsed):
    assert parsed(render_curvature(make_study(**size))).open == []


def test_a_study_of_nothing_but_zeros_has_a_page(study, parsed, monkeypatch):
    draw_nothing(monkeypatch)  # figures of zeros are drawn one by one elsewhere
    arrays = {
        name: {key: np.zeros_like(values) for key, values in getattr(study, name).items()}
        for name in ("traces", "trace_stderr", "nodes", "eigenvalues")
    }
    flat = replace(
        study, statistics=[replace(s, value=0.0, stderr=s.stderr and 0.0) for s in study.statistics], **arrays
    )
    text = " ".join(parsed(render_curvature(flat)).text)
    assert "0 of 2 unknown data sets" in text
    assert "100 % are zero" in text


def test_the_same_study_gives_the_same_files(study, figures, page, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(curvature_parts_room, "theorem_figure", lambda: figures["theorem"])
    saved = Drawing._saved  # one panel of each figure is enough for the files; all are in the page
    monkeypatch.setattr(Drawing, "_saved", lambda self, *kinds: saved(replace(self, panels=self.panels[:1]), *kinds))
    study.save(tmp_path)
    assert write_curvature(tmp_path) == tmp_path / "curvature.html"
    assert (tmp_path / "curvature.html").read_text(encoding="utf8") == page
    files = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert set(files) == {f"{name}.{kind}" for name in NAMES for kind in ("svg", "pdf")}
    curvature_figures(study)["curvature-spectrum-parameter"].save(tmp_path / "again")
    again = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert len(again) == 2
    assert again.items() <= files.items()
    assert not (tmp_path / "report.html").exists()


def test_without_a_study_nothing_can_be_drawn(tmp_path):
    with pytest.raises(ValueError, match=r"there is no curvature\.json in"):
        write_curvature(tmp_path)


def test_a_study_of_the_same_network_joins_the_report(figures, run, tmp_path, parsed, monkeypatch):
    theorem = replace(figures["theorem"], panels=figures["theorem"].panels[1:2])
    monkeypatch.setattr(curvature_parts_room, "theorem_figure", lambda: theorem)
    monkeypatch.setattr(curvature_page, "render_curvature", lambda study, figures: "")  # only the report is looked at
    make_study(ONE).save(tmp_path)
    run.save(tmp_path)
    write_curvature(tmp_path)
    report = (tmp_path / "report.html").read_text(encoding="utf8")
    names = shown(report, parsed)
    place = names.index("curvature")
    assert names[place : place + len(SECTIONS)] == SECTIONS
    assert names[place + len(SECTIONS)] == "datasets"
    assert len(parsed(report).ids) == len(set(parsed(report).ids))
    assert "Both the largest eigenvalue λmax" in report
    assert "the Hessian of the energy logsumexp(z) over" in report


def test_a_study_of_another_network_is_not_shown_and_the_report_says_why(study, run, tmp_path, parsed, monkeypatch):
    draw_nothing(monkeypatch)
    study.save(tmp_path)
    replace(run, provenance={**run.provenance, "weights, sha256": "other"}).save(tmp_path)
    report = write_report(tmp_path).read_text(encoding="utf8")
    assert [name for name in shown(report, parsed) if name.startswith(("curvature", "theorem"))] == [
        "curvature-elsewhere"
    ]
    assert "a curvature study beside these results, of another network: the weights are not the same" in report
    assert "λmax" not in report


@pytest.mark.parametrize("changed", [{"name": "other"}, {"ood": [{"name": "snow", "group": "far", "about": ""}]}])
def test_a_study_of_another_suite_is_not_shown_and_the_report_says_why(changed, run, tmp_path, parsed):
    make_study(ONE, weights="abc").save(tmp_path)
    content = beside(replace(run, suite={**run.suite, **changed}), tmp_path).content
    assert list(content) == ["curvature-elsewhere"]
    assert "of another suite: its name, or its unknown data sets, are not the same" in content["curvature-elsewhere"]
    assert "curvature" in beside(run, tmp_path).content


def test_what_is_true_of_the_study_alone_is_said_in_the_report(run, tmp_path):
    make_study(ONE, deviations=["both", "at most 60 images were taken"]).save(tmp_path)
    told = beside(replace(run, suite={**run.suite, "deviations": ["both"]}), tmp_path).content["curvature"]
    assert "<p>Of the curvature study alone: at most 60 images were taken.</p>" in told
    same = beside(replace(run, suite={**run.suite, "deviations": ["both", "at most 60 images were taken"]}), tmp_path)
    assert "alone" not in same.content["curvature"]


def test_it_is_said_how_figures_over_parameters_were_computed(study):
    exact = [replace(s, method="Lanczos" if s.name == "lambda_max" else "exact") for s in study.statistics]
    assert how(replace(study, statistics=exact)) == ("Over parameters λmax was computed by Lanczos, the trace exactly.")
    assert how(study) == "Over parameters λmax was computed by lanczos, the trace by xtrace."
    larger = [replace(s, value=99.0) if (s.dataset, s.name) == ("far-set", "lambda_max") else s for s in exact]
    assert how(replace(study, statistics=larger)).endswith(
        "it has eigenvalues below zero as well, so that a trace can be smaller than λmax."
    )


def test_estimated_traces_are_said_to_share_their_errors(study, figures):
    for each, told in ((study, True), (replace(study, trace_stderr={}), False)):
        more = curvature_parts(each, figures).more
        for section in ("curvature-traces", "curvature-detection"):
            assert ("Inputs of a batch share the random directions" in more[section]) == told


@pytest.mark.parametrize("which", ["results", "study", "both"])
def test_weights_that_are_not_named_are_not_taken_for_the_same(study, run, which):
    results = run if which == "study" else replace(run, provenance={})
    assert same_network(run, study)
    assert not same_network(results, study if which == "results" else replace(study, provenance={}))


def test_a_damaged_study_does_not_spoil_the_report(run, tmp_path, parsed, monkeypatch):
    draw_nothing(monkeypatch)
    (tmp_path / "curvature.json").write_text("{")
    run.save(tmp_path)
    report = write_report(tmp_path).read_text(encoding="utf8")
    assert "curvature-elsewhere" in shown(report, parsed)
    assert "which is not shown: " in report
    assert "is not valid JSON" in report


def test_a_report_without_a_study_is_as_it_was(run, tmp_path):
    assert beside(run, tmp_path) == ({}, {})


def test_figures_that_are_there_already_are_not_drawn_again(study, figures):
    nothing = {name: replace(drawing, panels=[]) for name, drawing in figures.items()}
    parts = curvature_parts(study, nothing)
    assert "<figure" not in parts.content["curvature-traces"]
