"""`studies.autofold.results`: rows of the table, with regrets that are known."""

import csv
import io

import numpy as np
import pytest

from studies.autofold.results import as_csv, rows_of, with_interval
from tests.studies.invented import METHODS, invented


def row(found, rule, ood="mean"):
    return next(row for row in rows_of(found) if (row.rule, row.ood) == (rule, ood))


def test_regret_is_what_the_best_exponent_has_more():
    assert row(invented({}, regret=0.03), "paired").regret == pytest.approx(3)
    assert row(invented({"pooled": 0.02}, regret=0.03), "pooled").regret == pytest.approx(1)
    assert row(invented({"paired-cap50": 0.05}, regret=0.03), "paired-cap50").regret == pytest.approx(-2)


def test_gain_is_what_a_rule_has_more_than_paired():
    found = invented({"pooled": 0.02, "mixed": -0.04})
    assert [row(found, name).gain for name in ("pooled", "mixed", "paired")] == pytest.approx([2, -4, 0])


def test_intervals_are_of_the_replicates_without_the_first():
    found = invented({"pooled": 0.02}, spread=0.01)
    pooled = row(found, "pooled")
    assert (pooled.gain_low, pooled.gain_high) == pytest.approx((1, 3))
    assert with_interval(np.array([5.0, *np.linspace(0, 10, 401)])) == pytest.approx((5, 0.25, 9.75))


def test_auroc_is_that_of_the_choice_that_was_made_and_regret_that_of_choosing_again():
    found = invented({})
    assert row(found, "paired").auroc == pytest.approx(80)  # invented 10 points below the redrawn ones
    assert row(found, "paired").regret == pytest.approx(1)


def test_there_is_a_row_for_every_method_and_set():
    rows = list(rows_of(invented({})))
    assert len(rows) == len(METHODS) * 2
    assert {row.group for row in rows} == {"exponent", "temperature", "cap", "reference", "sees unknown"}


def test_the_csv_has_what_the_rows_have_and_no_exponent_where_there_is_none():
    rows = list(rows_of(invented({})))
    table = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert len(table) == len(rows)
    assert [line["rule"] for line in table] == [row.rule for row in rows]
    alphas = {line["rule"]: line["alpha"] for line in table}
    assert (alphas["paired"], alphas["ebo"]) == ("0.5", "")
    assert float(table[0]["regret"]) == rows[0].regret


def test_a_name_has_suite_and_network():
    assert invented({}, name="seed1").name == "suite seed1"
    assert invented({}, name="").name == "suite"
