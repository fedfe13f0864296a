"""Rows and averages."""

import numpy as np
import pytest

from flatfold.core.ranking import aupr
from flatfold.evaluate.rows import averages, make_row

LOW, HIGH = np.arange(100.0), np.arange(90.0, 110.0)


def test_a_row_names_both_conventions_of_fpr95():
    row = make_row("msp", "nothing", "photos", "far", LOW, HIGH)
    assert (row.fpr95_ood_positive, row.fpr95_id_positive) == (0.09, 0.25)
    assert (row.n_id, row.n_ood) == (100, 20)


def test_aupr_out_has_the_unknown_inputs_as_positives():
    row = make_row("msp", "nothing", "photos", "far", LOW, HIGH)
    assert row.aupr_out == aupr(LOW, HIGH, positive="ood") != row.aupr_in
    assert row.aupr_in == aupr(LOW, HIGH, positive="id")


def test_every_metric_is_averaged_on_its_own():
    rows = [make_row("msp", "nothing", "a", "near", LOW, HIGH), make_row("msp", "nothing", "b", "far", LOW, LOW + 30)]
    mean = averages(rows)[-1]
    for metric in ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out", "aupr_in"):
        assert getattr(mean, metric) == pytest.approx((getattr(rows[0], metric) + getattr(rows[1], metric)) / 2)


def test_the_average_is_over_data_sets_and_not_over_groups():
    rows = [
        make_row("msp", "nothing", "a", "near", LOW, LOW),  # AUROC 0.5
        make_row("msp", "nothing", "b", "far", LOW, LOW + 1000),  # 1.0
        make_row("msp", "nothing", "c", "far", LOW, LOW + 1000),  # 1.0
    ]
    means = {mean.over: mean.auroc for mean in averages(rows)}
    assert means == {"near": 0.5, "far": 1.0, "all": pytest.approx(2.5 / 3)}


def test_a_group_without_data_sets_has_no_average():
    assert {mean.over for mean in averages([make_row("msp", "nothing", "a", "far", LOW, HIGH)])} == {"far", "all"}
