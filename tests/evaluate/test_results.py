"""Rows, averages and result files: written whole, read back equal, refused when they are something else."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from flatfold.core.metrics import aupr
from flatfold.evaluate.compare import tabulate
from flatfold.evaluate.results import METRICS, AlphaCurve, MethodRun, Results, as_csv, load_results
from tests.evaluate.runs import make_suite

LOW, HIGH = np.arange(100.0), np.arange(90.0, 110.0)


@pytest.fixture
def results():
    rng = np.random.default_rng(0)
    scores = {"msp/id": rng.normal(size=50), "msp/noise": rng.normal(1, 1, size=40)}
    scores = {name: values.astype(np.float32) for name, values in scores.items()}
    rows, averages = tabulate(scores, {"msp": "nothing"}, {"noise": "far"}, replicates=0)
    return Results(
        suite=make_suite({"noise": "far"}, 40),
        methods=[MethodRun("msp", "msp", {"alpha": 0.5}, "nothing", "nothing", 0.1, 2.0, {"alpha_": 0.3}, ["careful"])],
        refused={"ash": "Negative features."}, rows=rows, averages=averages,
        alpha_curves=[
            AlphaCurve("autofold", [0.1, 0.2], [0.5, 0.6], [0.01, 0.01], 0.2, {"noise": [0.7, 0.8], "all": [0.7, 0.8]})
        ],
        provenance={"seed": 0}, scores=scores,
    )  # fmt: skip


def test_a_row_names_both_conventions_of_fpr95_and_of_aupr():
    scores = {"msp/id": LOW, "msp/photos": HIGH}
    (row,), means = tabulate(scores, {"msp": "nothing"}, {"photos": "far"}, replicates=0)
    assert (row.fpr95_ood_positive, row.fpr95_id_positive) == (0.09, 0.25)
    assert (row.n_id, row.n_ood) == (100, 20)
    assert row.aupr_out == aupr(LOW, HIGH, positive="ood") != row.aupr_in
    assert row.aupr_in == aupr(LOW, HIGH, positive="id")
    assert {mean.over for mean in means} == {"far", "all"}  # none over a group without data sets


def test_metrics_are_averaged_over_data_sets_not_groups_and_repeated_averages_are_not_shown(results):
    scores = {"msp/id": LOW, "msp/a": LOW, "msp/b": HIGH, "msp/c": LOW + 1000}  # AUROC 0.5 for a, 1.0 for c
    groups = {"a": "near", "b": "far", "c": "far"}
    rows, averages = tabulate(scores, {"msp": "nothing"}, groups, replicates=0)
    means = {mean.over: mean for mean in averages}
    for over, members in {"near": rows[:1], "far": rows[1:], "all": rows}.items():
        for metric in METRICS:
            expected = np.mean([getattr(row, metric) for row in members])
            assert getattr(means[over], metric) == pytest.approx(expected), (over, metric)
    assert results.columns == ["noise", "all"]  # all of it is far
    suite = {**results.suite, "ood": [{"name": name} for name in groups]}
    results = replace(results, suite=suite, rows=rows, averages=averages)
    assert results.columns == ["a", "b", "c", "far", "all"]  # near would repeat a
    assert results.members == {**{n: (n,) for n in groups}, "near": ("a",), "far": ("b", "c"), "all": ("a", "b", "c")}


def test_what_is_saved_is_what_is_loaded_and_a_failing_save_leaves_the_files_whole(results, tmp_path):
    results.save(tmp_path)
    loaded = load_results(tmp_path)
    for name in ("suite", "methods", "refused", "rows", "averages", "alpha_curves", "provenance"):
        assert getattr(loaded, name) == getattr(results, name), name
    assert all(np.array_equal(loaded.scores[key], results.scores[key]) for key in results.scores)
    csv_files, tensors = {"results.csv", "averages.csv"}, {"scores.safetensors", "thumbnails.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == {"results.json"} | csv_files | tensors
    with (tmp_path / "results.csv").open() as file:
        (line,) = csv.DictReader(file)
    assert (line["method"], line["tuned_on"], json.loads(line["hyper"])) == ("msp", "nothing", {"alpha": 0.5})
    assert float(line["fpr95_ood_positive"]) == results.rows[0].fpr95_ood_positive
    infinite = replace(results, methods=[replace(results.methods[0], hyper={"gamma": float("inf")})], rows=[])
    nan = replace(results, provenance={"seconds": float("nan")})
    with pytest.raises(ValueError, match="finite"):
        nan.save(tmp_path / "new")
    assert not (tmp_path / "new" / "results.json").exists()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    for broken in (infinite, nan):
        with pytest.raises(ValueError, match="finite"):
            broken.save(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before


def test_rows_of_a_csv_file_are_written_by_their_columns_in_any_order():
    assert as_csv([{"a": 1, "b": {"k": 2}}, {"b": "x,y", "a": None}]) == 'a,b\n1,"{""k"": 2}"\n,"x,y"\n'
    assert as_csv([]) == ""
    for other in ({"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}):
        with pytest.raises(ValueError, match="columns a, b"):
            as_csv([{"a": 1, "b": 2}, other])


def test_files_that_are_missing_cut_short_or_something_else_are_refused(results, tmp_path):
    with pytest.raises(ValueError, match=r"results\.json"):
        load_results(tmp_path)
    results.save(tmp_path)
    path = tmp_path / "scores.safetensors"
    whole = path.read_bytes()
    for content in (whole[:100], b"", None):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            pytest.fail(f"{content!r}: {load_results(tmp_path)}")
    path.write_bytes(whole)
    versions = ('{"format": "flatfold-results", "version": 99}', '{"format": "flatfold-results", "version": 4}')
    for content in ("{", "null", "{}", *versions):
        (tmp_path / "results.json").write_text(content)
        with pytest.raises(ValueError, match="flatfold bench"):
            pytest.fail(f"{content}: {load_results(tmp_path)}")


def test_the_scores_of_another_run_are_refused(results, tmp_path):
    results.save(tmp_path)
    others = {name: values + 1 for name, values in results.scores.items()}
    replace(results, scores=others).save(tmp_path / "other")
    for folder in (tmp_path, tmp_path / "other"):
        load_results(folder)
    (tmp_path / "scores.safetensors").write_bytes((tmp_path / "other" / "scores.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"scores\.safetensors"):
        load_results(tmp_path)


def test_values_that_the_scores_beside_them_contradict_are_refused(results, tmp_path):
    results.save(tmp_path)
    file = tmp_path / "results.json"
    whole = file.read_text()
    for part, number in (("rows", 0), ("averages", 1)):
        for metric, title in (("auroc", "AUROC"), ("fpr95_ood_positive", "FPR95")):
            content = json.loads(whole)
            content[part][number][metric] = 0.9871
            file.write_text(json.dumps(content))
            column = {"rows": "noise", "averages": "all"}[part]
            with pytest.raises(ValueError, match=f"{title} of msp on {column} is 0.9871, but its scores give 0"):
                load_results(tmp_path)
    without = replace(results, rows=[replace(results.rows[0], auroc=0.9871)], scores={})
    without.save(tmp_path)  # a file that never had scores
    assert load_results(tmp_path).rows[0].auroc == 0.9871
