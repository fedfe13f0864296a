"""Result files: written whole, read back equal, refused when they are something else."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from flatfold.evaluate.results import AlphaCurve, Results, load_results
from flatfold.evaluate.rows import MethodRun, averages, make_row


@pytest.fixture
def results():
    rng = np.random.default_rng(0)
    scores = {"msp/id": rng.normal(size=50), "msp/noise": rng.normal(1, 1, size=40)}
    scores = {name: values.astype(np.float32) for name, values in scores.items()}
    rows = [make_row("msp", "nothing", "noise", "far", scores["msp/id"], scores["msp/noise"])]
    return Results(
        suite={"name": "toy", "ood": [{"name": "noise", "group": "far", "n": 40, "about": "Noise."}]},
        methods=[MethodRun("msp", "msp", {"alpha": 0.5}, "nothing", "nothing", 0.1, 2.0, {"alpha_": 0.3}, ["careful"])],
        refused={"ash": "Negative features."},
        rows=rows,
        averages=averages(rows),
        alpha_curves=[AlphaCurve("autofold", [0.1, 0.2], [0.5, 0.6], [0.01, 0.01], 0.2, {"all": [0.7, 0.8]})],
        provenance={"seed": 0},
        scores=scores,
    )


def test_what_is_saved_is_what_is_loaded(results, tmp_path):
    results.save(tmp_path)
    loaded = load_results(tmp_path)
    for name in ("suite", "methods", "refused", "rows", "averages", "alpha_curves", "provenance"):
        assert getattr(loaded, name) == getattr(results, name)
    assert all(np.array_equal(loaded.scores[key], results.scores[key]) for key in results.scores)
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json",
        "results.csv",
        "averages.csv",
        "scores.safetensors",
        "thumbnails.safetensors",
    }


def test_the_csv_has_a_line_per_row_and_says_what_was_tuned_on_what(results, tmp_path):
    results.save(tmp_path)
    with (tmp_path / "results.csv").open() as file:
        (line,) = csv.DictReader(file)
    assert line["method"] == "msp"
    assert line["tuned_on"] == "nothing"
    assert json.loads(line["hyper"]) == {"alpha": 0.5}
    assert float(line["fpr95_ood_positive"]) == results.rows[0].fpr95_ood_positive


def test_a_number_that_is_none_is_not_written(results, tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        replace(results, provenance={"seconds": float("nan")}).save(tmp_path)
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize("size", [None, 0, 100])
def test_scores_that_are_missing_or_cut_short_are_refused(size, results, tmp_path):
    results.save(tmp_path)
    path = tmp_path / "scores.safetensors"
    path.unlink() if size is None else path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="are damaged"):
        load_results(tmp_path)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no results.json in .* Run `flatfold bench` first"):
        load_results(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("null", "not a flatfold-results file of version 3"),
        ('{"format": "flatfold-results", "version": 3}', "are damaged"),
        ("{}", "not a flatfold-results file of version 3"),
        ('{"format": "flatfold-results", "version": 99}', "not a flatfold-results file of version 3"),
    ],
)
def test_another_file_under_that_name_is_refused(content, message, tmp_path):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_results(tmp_path)


def test_an_average_that_repeats_another_is_not_shown(results):
    assert results.columns == ["noise", "all"]  # all of it is far
    near = make_row("msp", "nothing", "pens", "near", results.scores["msp/id"], results.scores["msp/noise"])
    rows = [*results.rows, near]
    suite = {**results.suite, "ood": [*results.suite["ood"], {"name": "pens"}]}
    assert replace(results, suite=suite, averages=averages(rows)).columns == ["noise", "pens", "near", "far", "all"]


def test_numbers_that_json_does_not_know_leave_the_old_files_whole(results, tmp_path):
    results.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="JSON"):
        replace(results, methods=[replace(results.methods[0], hyper={"gamma": float("inf")})], rows=[]).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
