"""`flatfold report` draws whatever lies in a folder: a benchmark, a curvature study, both, or several of them."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from flatfold.cli import app
from flatfold.evaluate.results import Results
from flatfold.evaluate.rows import MethodRun, averages, make_row
from tests.toy_study import draw_nothing, make_study


def make_results(weights="abc"):
    """Return the smallest benchmark: one method, one data set."""
    rng = np.random.default_rng(0)
    scores = {f"msp/{name}": rng.normal(shift, 1, 30).astype(np.float32) for name, shift in (("id", 0), ("far-set", 1))}
    rows = [make_row("msp", "id", "far-set", "far", scores["msp/id"], scores["msp/far-set"])]
    ood = [{"name": "far-set", "group": "far", "n": 30, "about": "About far-set."}]
    suite = {"name": "toy", "network": "", "about": "", "n_classes": 3, "accuracy": 0.9, "n_test": 30, "ood": ood}
    run = MethodRun("msp", "msp", {}, "nothing", "nothing", 0.1, 2.0, {}, [])
    return Results(suite, [run], {}, rows, averages(rows), [], {"weights, sha256": weights}, scores)


@pytest.fixture(scope="module")
def study():
    return make_study({"far-set": "far"}, classes=3, width=4, known=10, unknown=8)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    draw_nothing(monkeypatch)


def report(folder):
    result = CliRunner().invoke(app, ["report", str(folder)])
    return result.exit_code, result.output.splitlines(), result


def pages(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))


def test_a_study_alone_is_drawn(study, tmp_path):
    study.save(tmp_path)
    assert report(tmp_path)[:2] == (0, [f"curvature -> {tmp_path / 'curvature.html'}"])
    assert pages(tmp_path) == ["curvature.html"]


def test_a_benchmark_alone_is_drawn(tmp_path):
    make_results().save(tmp_path)
    assert report(tmp_path)[:2] == (0, [f"report -> {tmp_path / 'report.html'}"])
    assert pages(tmp_path) == ["report.html"]


def test_both_are_drawn_and_the_report_has_the_study_in_it(study, tmp_path):
    study.save(tmp_path)
    make_results().save(tmp_path)
    lines = [f"curvature -> {tmp_path / 'curvature.html'}", f"report -> {tmp_path / 'report.html'}"]
    assert report(tmp_path)[:2] == (0, lines)
    assert 'id="curvature-traces"' in (tmp_path / "report.html").read_text(encoding="utf8")


def test_several_networks_have_the_pages_of_what_each_has(study, tmp_path):
    for name in ("one", "two"):
        run = make_results()
        replace(run, suite={**run.suite, "network": name}).save(tmp_path / name)
    for name in ("two", "three"):
        study.save(tmp_path / name)
    code, lines, _ = report(tmp_path)
    assert code == 0
    assert pages(tmp_path) == [
        "one/report.html",
        "report.html",
        "three/curvature.html",
        "two/curvature.html",
        "two/report.html",
    ]
    assert lines[-1] == f"all runs -> {tmp_path / 'report.html'}"
    assert len(lines) == 5


def test_several_studies_without_a_benchmark_have_no_summary(study, tmp_path):
    for name in ("one", "two"):
        study.save(tmp_path / name)
    code, lines, _ = report(tmp_path)
    assert (code, len(lines)) == (0, 2)
    assert pages(tmp_path) == ["one/curvature.html", "two/curvature.html"]


def test_an_empty_folder_gets_a_sentence(tmp_path):
    _, _, result = report(tmp_path)
    assert "there is no results.json in" in str(result.exception)
