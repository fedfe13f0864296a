"""Means over seeds: by hand, against scipy, and refused where they would mean nothing."""

import csv
import json
import re
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from scipy import stats

from flatfold.evaluate.compare import Change, tabulate
from flatfold.evaluate.results import ID, METRICS
from flatfold.evaluate.summary import (
    SummaryRow,
    answer,
    compare_over_seeds,
    load_runs,
    mean_interval,
    mean_p_value,
    save_summary,
    summarise,
)
from tests.evaluate.runs import SETS, make_run


def cell(rows, method="msp", column="pens"):
    (row,) = [row for row in rows if (row.method, row.column) == (method, column)]
    return row


def test_means_and_population_deviations_are_those_computed_by_hand():
    rows = summarise([make_run(value, family="resnet") for value in (0.7, 0.8, 0.9)])
    row = cell(rows)
    assert (row.family, row.n) == ("resnet", 3)
    assert set(row.means) == set(row.stds) == set(METRICS)
    assert row.means["auroc"] == pytest.approx(0.8)
    assert row.means["fpr95_ood_positive"] == pytest.approx(0.4)
    assert row.stds["auroc"] == pytest.approx(sqrt(0.02 / 3))  # not sqrt(0.02 / 2)
    assert row.stds["fpr95_ood_positive"] == pytest.approx(sqrt(0.005 / 3))
    assert (row.means["aupr_in"], row.stds["aupr_in"]) == pytest.approx((0.13, 0))
    assert row.intervals == {}


def test_rows_come_by_family_method_and_column_in_the_order_of_the_first_run():
    first, second, other = make_run(0.7, family="a"), make_run(0.9, family="a"), make_run(0.5, family="b")
    second = replace(second, methods=second.methods[::-1])
    rows = summarise([first, other, second])
    columns = ["pens", "noise", "near", "far", "all"]
    assert [(row.family, row.method, row.column) for row in rows] == [
        (family, method, column) for family in "ab" for method in ("msp", "ebo") for column in columns
    ]
    assert {row.n for row in rows if row.family == "a"} == {2}


def test_the_answer_names_the_best_method_and_those_without_a_significant_difference():
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(size=(2, 400))
    shifts = {"ebo": (3.0, 3.1, 3.2), "msp": (1.0, 1.1, 1.2), "knn": (3.05, 3.05, 3.19)}

    def scored(number):
        scores = {f"{m}/{d}": known if d == ID else unknown + shifts[m][number] for m in shifts for d in (ID, *SETS)}
        rows, averages = tabulate(scores, dict.fromkeys(shifts, "nothing"), SETS, replicates=0)
        return replace(make_run(0.5, methods=tuple(shifts)), scores=scores, rows=rows, averages=averages)

    text = answer([scored(number) for number in range(3)])
    assert re.match(r"ebo has .* 3 runs; it is the best in 2 of them; no significant difference from knn\.$", text)
    assert "significantly worse" in answer([replace(run, methods=run.methods[:2]) for run in map(scored, range(3))])
    assert answer([make_run(0.7), make_run(0.8)]).startswith("msp has the best average AUROC, 75.00 %")


def test_the_interval_holds_the_uncertainty_of_the_images_and_of_the_seeds():
    three = ((0.7, 0.02), (0.8, 0.04), (0.9, 0.02))
    row = cell(summarise([make_run(value, ends={"auroc": (value - half, value + half)}) for value, half in three]))
    images = ((0.04 / 3.92) ** 2 + (0.08 / 3.92) ** 2 + (0.04 / 3.92) ** 2) / 3
    half = sqrt(1.96**2 * images + stats.t.ppf(0.975, 2) ** 2 * 0.01 / 3)
    assert half == pytest.approx(0.25000, abs=1e-4)
    assert row.intervals.keys() == {"auroc"}
    assert row.intervals["auroc"] == pytest.approx((0.8 - half, min(1.0, 0.8 + half)))
    for n in (2, 5, 20):  # that of the images does not shrink with the number of networks
        row = cell(summarise([make_run(0.7, ends={"auroc": (0.68, 0.72)})] * n))
        assert row.n == n
        assert row.intervals["auroc"] == pytest.approx((0.68, 0.72))
    alone = cell(summarise([make_run(0.7, ends={"auroc": (0.6, 0.71)})]))
    assert (alone.intervals["auroc"], alone.stds["auroc"]) == ((0.6, 0.71), 0)
    wide = cell(summarise([make_run(0.1, ends={"auroc": (0.0, 0.2)}), make_run(0.9, ends={"auroc": (0.8, 1.0)})]))
    assert wide.intervals["auroc"] == (0.0, 1.0)
    assert cell(summarise([make_run(0.7, ends={"auroc": (0.6, 0.8)}), make_run(0.7)])).intervals == {}


def make_change(difference, half, column="all", metric="auroc", p_value=0.5):
    return Change(
        "a -> b", column, metric, 0.5, 0.5 + difference, difference, difference - half, difference + half, p_value, True
    )


def test_a_mean_difference_over_seeds_is_the_paired_t_test_widened_by_the_images():
    values = [0.01, 0.03, 0.025, 0.04]
    (mean,) = compare_over_seeds([[make_change(value, 0.0)] for value in values])
    test = stats.ttest_1samp(values, 0)
    ends = test.confidence_interval()
    assert (mean.a, mean.b, mean.runs, mean.paired) == (0.5, pytest.approx(0.5 + np.mean(values)), 4, True)
    assert (mean.low, mean.high) == pytest.approx((ends.low, ends.high))
    assert mean.p_value == pytest.approx(test.pvalue)
    (wide,) = compare_over_seeds([[make_change(value, 0.02)] for value in values])
    half = np.hypot((ends.high - ends.low) / 2, 0.02)
    assert (wide.low, wide.high) == pytest.approx((np.mean(values) - half, np.mean(values) + half))
    assert wide.p_value > mean.p_value
    assert (wide.p_value < 0.05) == wide.significant
    (equal,) = compare_over_seeds([[make_change(0.02, 0.01)]] * 3)  # the seeds agree: the images alone
    assert equal.p_value == pytest.approx(2 * stats.norm.sf(0.02 / (0.01 / stats.norm.isf(0.025))))
    ((same,), (certain,)) = (compare_over_seeds([[make_change(value, 0.0)]] * 2) for value in (0.0, 0.1))
    assert (same.p_value, certain.p_value, same.significant) == (1.0, 0.0, False)


def test_p_is_the_level_at_which_the_interval_over_seeds_reaches_0():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values, halves = rng.normal(0.01, 0.02, size=3), rng.uniform(0, 0.03, size=3)
        p = mean_p_value(values, halves)
        scaled = halves / stats.norm.isf(0.025) * stats.norm.isf(p / 2)
        low, high = mean_interval(values, scaled, 1 - p)
        assert min(abs(low), abs(high)) < 1e-9


def test_differences_that_one_seed_lacks_are_left_out_and_a_single_run_keeps_its_own():
    first, second = make_change(0.1, 0.05), make_change(0.2, 0.05, "near")
    rate = make_change(0.3, 0.1, metric="fpr95_ood_positive", p_value=None)
    assert compare_over_seeds([[first, second, rate]]) == [first, second, rate]
    means = compare_over_seeds([[first, second, rate], [rate, replace(first, paired=False)]])
    assert [(it.column, it.metric, it.paired, it.p_value is None) for it in means] == [
        ("all", "auroc", False, False), ("all", "fpr95_ood_positive", True, True),
    ]  # fmt: skip


def test_what_not_every_run_of_a_family_has_is_left_out():
    other = make_run(0.9, methods=("knn", "ebo"), sets={"pens": "near", "photos": "far"})
    rows = summarise([make_run(0.7), other])
    # `far` and `all` exist in both, but mean other data sets
    assert [(row.method, row.column) for row in rows] == [("ebo", "pens"), ("ebo", "near")]
    assert rows[0].means["auroc"] == pytest.approx(0.8)


def test_a_family_is_the_network_where_none_is_named_else_the_suite_and_has_one_suite():
    runs = [make_run(0.7, family="", network="s0"), make_run(0.8, network="s1"), make_run(0.9, network="")]
    assert list(dict.fromkeys(row.family for row in summarise(runs))) == ["s0", "s1", "toy"]
    assert {row.family for row in summarise([make_run(0.7, family="f", network="s0")])} == {"f"}
    runs = [make_run(0.7, family="resnet", name="cifar10"), make_run(0.8, family="resnet", name="cifar100")]
    with pytest.raises(ValueError, match="cifar10 and cifar100"):
        summarise(runs)


def test_runs_are_those_of_the_folder_or_of_its_sub_folders_sorted(tmp_path):
    for name, value in (("s1", 0.8), ("s0", 0.7)):
        make_run(value).save(tmp_path / name)
    make_run(0.1).save(tmp_path / "s2" / "deeper")
    (tmp_path / "banks").mkdir()
    assert [run.rows[0].auroc for run in load_runs(tmp_path).values()] == [0.7, 0.8]
    assert [run.rows[0].auroc for run in load_runs(tmp_path / "s1").values()] == [0.8]
    save_summary([], tmp_path, ["s1", "s0"])  # which says which runs it is about, and in which order
    assert [(place.name, run.rows[0].auroc) for place, run in load_runs(tmp_path).items()] == [("s1", 0.8), ("s0", 0.7)]
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match=r"summary\.json cannot be read"):
        load_runs(tmp_path)
    make_run(0.9).save(tmp_path)
    assert [run.rows[0].auroc for run in load_runs(tmp_path).values()] == [0.9]
    with pytest.raises(ValueError, match=r"results\.json"):
        load_runs(tmp_path / "banks")


def test_both_files_have_every_number(tmp_path):
    runs = [make_run(value, ends={"auroc": (value - 0.1, value + 0.1)}) for value in (0.6, 0.7)]
    rows = summarise(runs)
    save_summary(rows, tmp_path / "new", ["s0"])
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"summary.csv", "summary.json"}
    content = json.loads((tmp_path / "new" / "summary.json").read_text())
    assert (content["format"], content["version"]) == ("flatfold-summary", 1)
    back = [
        SummaryRow(**{**row, "intervals": {metric: tuple(ends) for metric, ends in row["intervals"].items()}})
        for row in content["rows"]
    ]
    assert back == rows
    with (tmp_path / "new" / "summary.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(rows)
    assert lines[0]["column"] == "pens"
    assert [float(lines[0][f"auroc{end}"]) for end in ("", "_std", "_low", "_high")] == [
        rows[0].means["auroc"], rows[0].stds["auroc"], *rows[0].intervals["auroc"],
    ]  # fmt: skip
    assert lines[0]["aupr_out_low"] == lines[0]["aupr_out_high"] == ""
    before = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    with pytest.raises(ValueError, match="finite"):
        save_summary([replace(rows[0], means=dict.fromkeys(METRICS, float("nan")))], tmp_path / "new", [])
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == before
