"""Files of a study: written whole, read back equal, refused when they are something else; and what a table asks."""

import csv
import json
import re
from dataclasses import asdict, replace
from math import sqrt

import numpy as np
import pytest

from flatfold.evaluate.study.files import STORED, Detection, Statistic, Study, load_study

VALUES = {"id": 2.0, "pens": 6.0, "noise": 8.0, "photos": 1.0}
GROUPS = {"id": "id", "pens": "near", "noise": "far", "photos": "far"}


@pytest.fixture
def study():
    rng = np.random.default_rng(0)
    spaces, names = ("parameter", "feature", "logit"), ("lambda_max", "trace")
    keys = [f"{space}/{dataset}" for space in spaces for dataset in VALUES]
    spectra = {key: rng.random((2, 3)) for key in keys if "logit" not in key}
    return Study(
        suite={
            **dict.fromkeys(("n_classes", "n_features", "n_parameters"), 9),
            "name": "toy",
            "network": "",
            "about": "Toys.",
            "accuracy": 0.9,
            "ood": [{"name": n, "group": g, "n": 5, "about": ""} for n, g in GROUPS.items()][1:],
        },
        statistics=[
            Statistic(d, GROUPS[d], s, n, v, 0.3 * v if s == "parameter" else None, "by hand", "ggn", "energy", 7, 5)
            for d, v in VALUES.items()
            for s in spaces
            for n in names
        ],
        detections=[Detection("feature", 0.5, "noise", 0.9, 0.8, 0.95)],
        alphas={"none": 0.0, "partial": 0.38, "full": 1.0},
        traces={key: rng.random(5) for key in keys},
        trace_stderr={"parameter/id": rng.random(5)},
        nodes=spectra,
        weights=spectra,
        sizes={"parameter": 99, "feature": 4, "logit": 3},
        eigenvalues={f"{a}/{d}": rng.random((5, 2)) for a in ("none", "partial", "full") for d in VALUES},
        provenance={"loss": "energy"},
    )


def test_what_is_saved_is_what_is_loaded(study, tmp_path):
    study.save(tmp_path)
    loaded = load_study(tmp_path)
    for name in ("suite", "statistics", "detections", "alphas", "sizes", "provenance"):
        assert getattr(loaded, name) == getattr(study, name)
    for name in STORED:
        mine, its = getattr(study, name), getattr(loaded, name)
        assert mine.keys() == its.keys()
        assert all(np.array_equal(its[key], mine[key]) and its[key].dtype == np.float64 for key in mine)
    assert {path.name for path in tmp_path.iterdir()} == {"curvature.json", "curvature.csv", "curvature.safetensors"}


def test_arrays_that_are_views_are_saved_as_they_look(study, tmp_path):
    wide = np.arange(10.0)
    turned = {**study.traces, "parameter/id": wide[::2]}
    replace(study, traces=turned).save(tmp_path)
    assert load_study(tmp_path).traces["parameter/id"].tolist() == [0, 2, 4, 6, 8]


def test_the_csv_has_a_line_per_figure_with_its_factor_over_the_known_images(study, tmp_path):
    study.save(tmp_path)
    with (tmp_path / "curvature.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(study.statistics) == 24
    for line, each in zip(lines, study.statistics, strict=True):
        assert {name: str("" if value is None else value) for name, value in asdict(each).items()} == {
            name: value for name, value in line.items() if name != "factor"
        }
        assert float(line["factor"]) == VALUES[line["dataset"]] / 2


def test_means_of_a_group_are_unweighted(study):
    statistics = [replace(s, n=1000) if s.dataset == "noise" else s for s in study.statistics]
    far = replace(study, statistics=statistics).cell("far", "feature", "trace")
    assert far.value == (8 + 1) / 2
    assert (far.dataset, far.group, far.n, far.stderr, far.matvecs) == ("far", "far", 1005, None, 14)
    assert study.cell("near", "parameter", "trace").value == 6
    assert study.factor("far", "parameter", "lambda_max") == 4.5 / 2


def test_errors_of_a_mean_add_up_as_what_they_are(study):
    noise, photos = 0.3 * 8, 0.3 * 1
    assert study.cell("far", "parameter", "trace").stderr == pytest.approx(sqrt(noise**2 + photos**2) / 2)
    assert study.cell("far", "parameter", "lambda_max").stderr == pytest.approx((noise + photos) / 2)


def test_a_mean_is_exact_only_if_all_of_it_is(study):
    statistics = [replace(s, stderr=None) if s.dataset == "photos" else s for s in study.statistics]
    assert replace(study, statistics=statistics).cell("far", "parameter", "trace").stderr == pytest.approx(2.4 / 2)


def test_rows_and_columns_of_a_table_come_in_order(study):
    assert study.datasets == ["id", "pens", "noise", "photos"]
    assert study.groups == ["near", "far"]
    assert study.columns == [(s, n) for s in ("parameter", "feature", "logit") for n in ("lambda_max", "trace")]
    alone = replace(study, suite={**study.suite, "ood": study.suite["ood"][1:]})
    assert alone.groups == ["far"]


@pytest.mark.parametrize("negative", ["id", "noise"])
@pytest.mark.parametrize("value", [-1.0, 0.0])
def test_there_is_no_factor_unless_both_figures_are_above_zero(negative, value, study):
    changed = [replace(s, value=value) if s.dataset == negative else s for s in study.statistics]
    flat = replace(study, statistics=changed)
    assert flat.factor("noise", "parameter", "trace") is None
    assert (flat.factor("pens", "parameter", "trace") is None) == (negative == "id")


def test_a_figure_that_is_not_there_is_refused_with_those_that_are(study):
    with pytest.raises(
        ValueError, match=r"there is no feature trace of snow .* id, pens, noise, photos, near, far; para"
    ):
        study.cell("snow", "feature", "trace")


@pytest.mark.parametrize("size", [None, 0, 100])
def test_arrays_that_are_missing_or_cut_short_are_refused(size, study, tmp_path):
    study.save(tmp_path)
    path = tmp_path / "curvature.safetensors"
    path.unlink() if size is None else path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"the study in .* is damaged: .* Run `flatfold curvature` again"):
        load_study(tmp_path)


def test_files_of_two_studies_do_not_pass_for_one(study, tmp_path):
    study.save(tmp_path / "one")
    replace(study, traces={key: 2 * values for key, values in study.traces.items()}).save(tmp_path / "two")
    (tmp_path / "one" / "curvature.safetensors").replace(tmp_path / "two" / "curvature.safetensors")
    with pytest.raises(ValueError, match=r"is not the one that was written with curvature\.json"):
        load_study(tmp_path / "two")


@pytest.mark.parametrize("field", ["traces", "nodes", "weights", "eigenvalues"])
def test_a_study_without_all_that_a_page_needs_is_refused(field, study, tmp_path):
    entries = getattr(study, field)
    replace(study, **{field: {key: value for key, value in entries.items() if not key.endswith("/noise")}}).save(
        tmp_path
    )
    with pytest.raises(ValueError, match="is damaged"):
        load_study(tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        {"statistics": []},
        {"alphas": {"none": 0.0}},
        {"sizes": {}},
        {"suite": {"ood": []}},
        {"suite": {"name": "toy", "ood": [{"name": "snow", "group": "far"}]}},
        {"alphas": {"none": 0.0, "partial": "0.38", "full": 1.0}},
        {"detections": [Detection("feature", 0.5, "noise", "much", 0.8, 0.95)]},
    ],
)
def test_a_study_that_lacks_a_part_is_refused(broken, study, tmp_path):
    replace(study, **broken).save(tmp_path)
    with pytest.raises(ValueError, match="is damaged"):
        load_study(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"value": "abc"}, "the parameter lambda_max of id is 'abc'"),
        ({"value": True}, "the parameter lambda_max of id is True"),
        ({"value": None}, "the parameter lambda_max of id is None"),
        ({"stderr": "0.1"}, "the parameter lambda_max of id is '0.1'"),
        ({"n": [5]}, "the parameter lambda_max of id is "),
        ({"loss": "mse"}, "is of the matrix 'ggn' and the loss 'mse'"),
        ({"matrix": "fisher"}, "is of the matrix 'fisher' and the loss 'energy'"),
    ],
)
def test_a_figure_that_is_none_is_named(change, told, study, tmp_path):
    study.save(tmp_path)
    content = json.loads((tmp_path / "curvature.json").read_text())
    content["statistics"][0].update(change)
    (tmp_path / "curvature.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"the study in .* is damaged: .*{re.escape(told)}.*Run `flatfold curvature`"):
        load_study(tmp_path)


@pytest.mark.parametrize("key", ["name", "network", "about", "n_classes", "n_features", "n_parameters", "accuracy"])
@pytest.mark.parametrize("gone", [True, False])
def test_a_suite_that_a_page_cannot_tell_is_refused(key, gone, study, tmp_path):
    suite = {name: value for name, value in study.suite.items() if name != key} | ({} if gone else {key: ["?"]})
    replace(study, suite=suite).save(tmp_path)
    with pytest.raises(ValueError, match=rf"is damaged: {key!r}" if gone else r"is damaged: .* is \['\?'\]"):
        load_study(tmp_path)


def test_a_folder_without_a_study_is_refused_and_one_with_several_asks_which(study, tmp_path):
    with pytest.raises(ValueError, match=r"there is no curvature.json in .* Run `flatfold curvature` first"):
        load_study(tmp_path)
    study.save(tmp_path / "resnet")
    with pytest.raises(ValueError, match=r"holds several studies: name one of .*resnet\."):
        load_study(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("null", "not a flatfold-curvature file of version 1"),
        ('{"format": "flatfold-curvature", "version": 1}', "is damaged"),
        ('{"format": "flatfold-results", "version": 1}', "not a flatfold-curvature file of version 1"),
        ('{"format": "flatfold-curvature", "version": 2}', "not a flatfold-curvature file of version 1"),
    ],
)
def test_another_file_under_that_name_is_refused(content, message, tmp_path):
    (tmp_path / "curvature.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_study(tmp_path)


def test_numbers_that_json_does_not_know_leave_the_old_files_whole(study, tmp_path):
    study.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="JSON"):
        replace(study, provenance={"seconds": float("inf")}, traces={}).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_json_can_be_read_by_anybody(study, tmp_path):
    study.save(tmp_path)
    content = json.loads((tmp_path / "curvature.json").read_text())
    assert content["statistics"][0] == asdict(study.statistics[0])
    assert not set(content) & set(STORED)
