"""`studies.autofold.rules`: which exponent is taken from a curve, and what the registry holds."""

import numpy as np
import pytest

from studies.autofold import criteria
from studies.autofold.families import ALPHAS, PAPER
from studies.autofold.rules import RULES, chosen, curve
from tests.studies.made_up import make_case

CURVES = np.array(
    [
        [0.50, 0.68, 0.70, 0.69, 0.10],
        [0.50, 0.68, 0.72, 0.69, 0.10],
        [0.50, 0.68, 0.68, 0.60, 0.10],
    ]
)  # the standard deviation of the best, in the last two rows, is 0.02


@pytest.mark.parametrize(("take", "expected"), [("best", [2, 2, 1]), ("smallest", [1, 2, 1]), ("largest", [3, 2, 2])])
def test_the_outermost_within_a_standard_error_or_the_best_is_taken(take, expected):
    assert chosen(CURVES + 1e-13, take).tolist() == expected


def test_of_three_equals_the_middle_one_is_the_best():
    assert chosen(np.array([[0.2, 0.9, 0.9, 0.9, 0.1], [0.9, 0.9, 0.1, 0.1, 0.9]])).tolist() == [2, 1]


def test_a_curve_has_the_criterion_of_every_exponent_in_every_replicate():
    val = make_case().val
    counts = np.random.default_rng(0).integers(1, 3, (2, len(val.labels)))
    fitted = PAPER.fit(val)
    got = curve(val, fitted, criteria.pooled, counts)
    assert got.shape == (2, len(ALPHAS))
    np.testing.assert_array_equal(got[:, 7], criteria.pooled(val, fitted, ALPHAS[7], counts))


def test_exponents_that_are_fixed_are_on_the_grid():
    assert {rule.criterion for rule in RULES.values() if isinstance(rule.criterion, float)} <= set(ALPHAS)


def test_a_rule_belongs_to_the_group_of_what_it_changes():
    assert RULES["paired"].group == RULES["fixed-0.5"].group == "exponent"
    assert RULES["paired-T2"].group == "temperature"
    assert RULES["paired-cap50"].group == RULES["paired-cap50-T2"].group == "cap"


def test_rules_share_a_curve_if_family_and_criterion_are_the_same():
    assert RULES["paired"].curve_of == RULES["paired-smallest"].curve_of != RULES["paired-T1"].curve_of
    assert RULES["paired"].curve_of != RULES["pooled"].curve_of
    assert RULES["fixed-0"].curve_of is None
