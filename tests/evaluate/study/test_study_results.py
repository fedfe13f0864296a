"""Files of a study: read back equal, refused when damaged; its table of figures and their errors."""

import csv
import json
from dataclasses import asdict, replace
from math import sqrt

import numpy as np
import pytest

from flatfold.evaluate.study_results import STORED, Detection, above, load_study, typical_error
from tests.toy_study import make_study, refusal

SETS = {"pens": "near", "noise": "far", "photos": "far"}
VALUES = {"id": 2.0, "pens": 6.0, "noise": 8.0, "photos": 1.0}


@pytest.fixture(scope="module")
def study():
    """A study whose figures are ``VALUES`` in every space; those over parameters have an error of 30 %."""
    study = make_study(SETS, classes=3, width=2, known=4, unknown=4)
    errors = {"parameter": 0.3, "feature": None, "logit": None}
    values = [(s, VALUES[s.dataset], errors[s.space]) for s in study.statistics]
    return replace(study, statistics=[replace(s, value=v, stderr=error and error * v) for s, v, error in values])


def test_what_is_saved_is_loaded(study, tmp_path):
    traces = {**study.traces, "parameter/id": np.arange(8.0)[::2]}  # a view that is not contiguous
    study = replace(study, traces=traces)
    study.save(tmp_path)
    loaded = load_study(tmp_path)
    for name in ("suite", "statistics", "detections", "alphas", "sizes", "provenance"):
        assert getattr(loaded, name) == getattr(study, name)
    for name in STORED:
        mine, its = getattr(study, name), getattr(loaded, name)
        assert mine.keys() == its.keys()
        assert all(np.array_equal(its[key], mine[key]) and its[key].dtype == np.float64 for key in mine), name
    assert {path.name for path in tmp_path.iterdir()} == {"curvature.json", "curvature.csv", "curvature.safetensors"}
    content = json.loads((tmp_path / "curvature.json").read_text())
    assert content["statistics"][0] == asdict(study.statistics[0])
    assert not set(content) & set(STORED)


def test_the_csv_has_a_line_per_figure_with_its_factor_over_the_in_distribution_images(study, tmp_path):
    study.save(tmp_path)
    with (tmp_path / "curvature.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(study.statistics) == 24
    for line, each in zip(lines, study.statistics, strict=True):
        assert float(line.pop("factor")) == VALUES[line["dataset"]] / 2
        assert line == {name: str("" if value is None else value) for name, value in asdict(each).items()}


def test_means_of_a_group_are_unweighted_and_their_errors_add_up_by_kind(study):
    statistics = [replace(s, n=1000) if s.dataset == "noise" else s for s in study.statistics]
    far = replace(study, statistics=statistics).cells["far", "feature", "trace"]
    assert far.value == (8 + 1) / 2
    assert (far.dataset, far.group, far.n, far.stderr, far.matvecs) == ("far", "far", 1004, None, 40)
    assert study.cells["near", "parameter", "trace"].value == 6
    assert study.factor("far", "parameter", "lambda_max") == 4.5 / 2
    noise, photos = 0.3 * 8, 0.3 * 1
    assert study.cells["far", "parameter", "trace"].stderr == pytest.approx(sqrt(noise**2 + photos**2) / 2)
    assert study.cells["far", "parameter", "lambda_max"].stderr == pytest.approx((noise + photos) / 2)
    statistics = [replace(s, stderr=None) if s.dataset == "photos" else s for s in study.statistics]
    assert replace(study, statistics=statistics).cells["far", "parameter", "trace"].stderr == pytest.approx(noise / 2)


def test_the_table_has_rows_and_columns_in_order_and_factors_of_figures_above_zero(study):
    assert study.datasets == ["id", "pens", "noise", "photos"]
    assert study.groups == ["near", "far"]
    assert study.columns == [(s, n) for s in ("parameter", "feature", "logit") for n in ("lambda_max", "trace")]
    assert replace(study, suite={**study.suite, "ood": study.suite["ood"][1:]}).groups == ["far"]
    for dataset, value in (("id", -1.0), ("id", 0.0), ("noise", -1.0), ("noise", 0.0)):
        changed = [replace(s, value=value) if s.dataset == dataset else s for s in study.statistics]
        flat = replace(study, statistics=changed)
        assert flat.factor("noise", "parameter", "trace") is None, (dataset, value)
        assert (flat.factor("pens", "parameter", "trace") is None) == (dataset == "id"), (dataset, value)


def test_two_figures_differ_if_two_errors_of_both_lie_between_them(study):
    first = study.statistics[0]
    exact = [(3.0, None, None, 1), (1.0, None, None, -1), (2.0, None, None, 0)]
    near = [(3.0, 0.2, 0.2, 1), (3.0, 0.2, 0.4, 0), (1.0, 0.2, 0.2, -1), (-5.0, 1.0, 1.0, -1)]
    for value, stderr, other, order in [*exact, *near, (3.0, 0.6, None, 0), (1.0, None, 0.6, 0)]:
        found = above(replace(first, value=value, stderr=stderr), replace(first, value=2.0, stderr=other))
        assert found == order, (value, stderr, other)


def test_the_typical_error_is_the_median_share_of_the_traces_that_have_a_size(study):
    def typical(traces, errors):
        made = {f"parameter/{name}": np.array(values) for name, values in traces.items()}
        stderr = {f"parameter/{name}": np.array(values) for name, values in errors.items()}
        return typical_error(replace(study, traces={**study.traces, **made}, trace_stderr=stderr), "parameter")

    assert typical({"id": [1.0, -2.0], "noise": [4.0]}, {"id": [0.1, 1.0], "noise": [1.0]}) == 0.25
    assert typical({"id": [0.0, np.nan, 2.0]}, {"id": [1.0, 1.0, 1.0]}) == 0.5
    assert typical({"id": [0.0, 0.0]}, {"id": [1.0, 1.0]}) is None
    assert typical_error(study, "feature") is None


def test_a_study_that_lacks_what_a_page_needs_is_refused(study, tmp_path):
    def without(entries, end):
        return {key: value for key, value in entries.items() if not key.endswith(end)}

    first, suite = study.statistics[0], study.suite
    broken = [{field: without(getattr(study, field), "/noise")} for field in STORED[:-2] if field != "trace_stderr"]
    texts = ("name", "network", "about", "n_classes", "n_features", "n_parameters", "accuracy")
    broken += [{"suite": without(suite, key)} for key in texts] + [{"suite": {**suite, key: ["?"]}} for key in texts]
    broken += [
        {"statistics": [replace(first, **change), *study.statistics[1:]]}
        for change in (
            {"value": True},
            {"value": 1e308},
            {"stderr": "0.1"},
            {"n": [5]},
            {"loss": "mse"},
            {"matrix": "fisher"},
        )
    ]
    broken += [
        {"statistics": []},
        {"alphas": {"none": 0.0}},
        {"alphas": {"none": 0.0, "partial": "0.38", "full": 1.0}},
        {"sizes": {}},
        {"sizes": {**study.sizes, "parameter": 0}},
        {"suite": {**suite, "ood": [{"name": "snow", "group": "far", "about": ""}]}},
        {"detections": [Detection("feature", 0.5, "noise", "much", 0.8, 0.95)]},
    ]
    for change in broken:
        replace(study, **change).save(tmp_path)
        assert "damaged" in refusal(load_study, tmp_path), change


def test_damaged_files_and_those_of_two_studies_are_refused(study, tmp_path):
    study.save(tmp_path)
    arrays, text = tmp_path / "curvature.safetensors", tmp_path / "curvature.json"
    whole, content = arrays.read_bytes(), json.loads(text.read_text())
    replace(study, traces={key: 2 * values for key, values in study.traces.items()}).save(tmp_path / "two")
    for data in (None, b"", whole[:100], (tmp_path / "two" / "curvature.safetensors").read_bytes()):
        arrays.unlink() if data is None else arrays.write_bytes(data)
        assert "damaged" in refusal(load_study, tmp_path), data
    arrays.write_bytes(whole)
    for other in ("{", "null", "{}", {"format": "flatfold-results"}, {"version": 1}, {"sha256": None}, {"extra": 1}):
        text.write_text(other if isinstance(other, str) else json.dumps({**content, **other}))
        assert "Run `flatfold curvature` again" in refusal(load_study, tmp_path), other


def test_what_cannot_be_written_leaves_the_old_files_and_folders_without_a_study_are_refused(study, tmp_path):
    assert "flatfold curvature" in refusal(load_study, tmp_path)
    study.save(tmp_path / "resnet")
    assert "resnet" in refusal(load_study, tmp_path)
    infinite = replace(study, provenance={"seconds": float("inf")}, traces={})
    assert "finite" in refusal(infinite.save, tmp_path / "resnet")
    assert load_study(tmp_path / "resnet").provenance == study.provenance
