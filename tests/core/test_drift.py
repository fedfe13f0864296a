"""`core.drift` against exact fractions, every order of a few scores, scipy and simulation."""

from fractions import Fraction
from itertools import combinations, pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from flatfold.core.drift import alarm_p_value, ks_p_value


def exact(alarms, seen, calibrated, allowed):
    """The same tail, counted by where the calibration scores lie: whole numbers, however many inputs were seen."""
    top = alarms + allowed - 1
    ways = sum(comb(top, j) * comb(calibrated + seen - top, calibrated - j) for j in range(allowed))
    return Fraction(ways, comb(calibrated + seen, calibrated))


def by_every_order(alarms, seen, calibrated, allowed):
    """Slow and obvious: go through every set of ranks that the calibration scores can have, 0 the largest."""
    orders = list(combinations(range(calibrated + seen), calibrated))
    raised = [ranks[allowed - 1] - (allowed - 1) for ranks in orders]  # inputs above the allowed-th of them
    return Fraction(sum(count >= alarms for count in raised), len(orders))


@pytest.mark.parametrize(("seen", "calibrated"), [(0, 1), (1, 1), (5, 3), (3, 5), (6, 6)])
def test_it_is_the_share_of_orders_with_that_many_alarms(seen, calibrated):
    for allowed in range(1, calibrated + 1):
        for alarms in range(seen + 1):
            expected = by_every_order(alarms, seen, calibrated, allowed)
            assert exact(alarms, seen, calibrated, allowed) == expected
            assert alarm_p_value(alarms, seen, calibrated, allowed) == pytest.approx(float(expected), rel=1e-14)


@given(data=st.data(), seen=st.integers(0, 300), calibrated=st.integers(1, 200))
def test_it_is_exact(data, seen, calibrated):
    allowed, alarms = data.draw(st.integers(1, calibrated)), data.draw(st.integers(0, seen))
    expected = float(exact(alarms, seen, calibrated, allowed))
    assert alarm_p_value(alarms, seen, calibrated, allowed) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seen", [10**6, 10**9, 10**12])
@pytest.mark.parametrize("share", [0, 1e-6, 0.04, 0.05, 0.06, 0.1, 0.5, 0.999, 1])
def test_no_digits_are_lost_however_long_the_stream_is(seen, share):
    alarms = int(share * seen)
    expected = float(exact(alarms, seen, 199, 10))
    assert alarm_p_value(alarms, seen, 199, 10) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("alarms", [0, 30, 50, 60, 90])
def test_it_is_the_tail_of_a_beta_binomial_law(alarms):
    # the sum of its terms: scipy's own tail is a difference from 1, which has no digits left where it is small
    expected = stats.betabinom.pmf(np.arange(alarms, 1001), 1000, 250, 4750).sum()
    assert alarm_p_value(alarms, 1000, 4999, 250) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("share", [0.0490, 0.0499, 0.05, 0.0501, 0.0512])
def test_a_million_calibration_scores_and_endless_inputs_give_a_beta_law(share):
    expected = stats.beta.sf(share, 50_000, 950_000)
    assert alarm_p_value(int(share * 10**13), 10**13, 999_999, 50_000) == pytest.approx(expected, rel=1e-6)


def test_what_is_smaller_than_any_float_is_zero_and_what_is_nearly_so_is_not():
    assert alarm_p_value(10**6, 10**6, 9999, 500) == 0.0
    tiny = alarm_p_value(230, 1000, 999, 50)
    assert 0 < tiny < 1e-25
    assert tiny == pytest.approx(float(exact(230, 1000, 999, 50)), rel=1e-11)


def test_equal_scores_only_make_it_too_large():
    rng, hits, runs = np.random.default_rng(0), 0, 2000
    for _ in range(runs):
        calibration, stream = (np.sort(rng.integers(0, 30, size)) for size in (99, 200))
        alarms = int((stream > calibration[-10]).sum())
        hits += alarm_p_value(alarms, 200, 99, 10) <= 0.1
    assert 0 < hits <= stats.binom.isf(1e-4, runs, 0.1)


def test_more_alarms_are_never_more_likely():
    values = [alarm_p_value(alarms, 400, 199, 10) for alarms in range(401)]
    assert values[0] == 1.0
    assert all(later <= earlier for earlier, later in pairwise(values))


@pytest.mark.parametrize(("alarms", "seen"), [(-1, 5), (6, 5), (1, 0)])
def test_more_alarms_than_inputs_are_refused(alarms, seen):
    with pytest.raises(ValueError, match=f"between 0 and the {seen} inputs seen, got {alarms}. Were they swapped"):
        alarm_p_value(alarms, seen, 10, 1)


@pytest.mark.parametrize("allowed", [0, 11, -1])
def test_a_rank_that_no_calibration_score_has_is_refused(allowed):
    with pytest.raises(ValueError, match=rf"rank of one of 10 calibration scores, got {allowed}. For a .* floor\(fpr"):
        alarm_p_value(1, 5, 10, allowed)


@pytest.mark.parametrize("x", [0, 1e-9, 0.0399, 0.0401, 0.1, 0.3, 0.5, 0.9, 0.9999, 1, 1.0001, 1.36, 3, 10, 18])
def test_it_is_kolmogorovs_law(x):
    n, m = 3000, 500
    expected = special.kolmogorov(x)
    assert ks_p_value(x / (n * m / (n + m)) ** 0.5, n, m) == pytest.approx(expected, rel=1e-12)


def test_it_agrees_with_a_test_that_knows_the_sizes():
    rng = np.random.default_rng(1)
    for shift in (0, 0.05, 0.1, 0.2):
        a, b = rng.normal(size=4000), rng.normal(shift, size=3000)
        test = stats.ks_2samp(a, b, method="asymp")
        got = ks_p_value(float(test.statistic), 4000, 3000)
        assert got == pytest.approx(test.pvalue, rel=0.15)
        assert got >= test.pvalue  # the limit is approached from the careful side


def test_sizes_may_be_beyond_what_a_float_or_an_int64_holds_exactly():
    assert ks_p_value(1e-9, 10**18, 10**18) == pytest.approx(special.kolmogorov(0.5**0.5), rel=1e-12)
    assert ks_p_value(1.0, 10**12, 10**4) == 0.0


@pytest.mark.parametrize("distance", [-0.1, 1.1, float("nan")])
def test_a_distance_that_is_no_difference_of_shares_is_refused(distance):
    with pytest.raises(ValueError, match="distance must be a difference of shares, from 0 to 1, got"):
        ks_p_value(distance, 10, 10)


@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0)])
def test_an_empty_sample_is_refused(n, m):
    with pytest.raises(ValueError, match=f"both need a value, got n={n} and m={m}. Wait for some"):
        ks_p_value(0.5, n, m)
