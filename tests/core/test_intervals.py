"""Intervals and tests of AUROCs against components counted pair by pair; Student's t against scipy."""

from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as scipy_t

from flatfold import auroc, auroc_interval
from flatfold.core.intervals import (
    auroc_influence,
    independent_difference,
    interval,
    mean_influence,
    paired_difference,
    student_quantile,
)
from tests.refusals import assert_refused

# Halves of small integers: plenty of ties.
scores = st.lists(st.integers(-6, 6).map(lambda x: x / 2), min_size=2, max_size=25).map(np.array)
DEGREES = [1, 2, 3, 4, 5, 9, 10, 39, 100, 1999, 10**4, 10**6]
ROUNDING = 2e-8  # of logarithms of gamma functions around 10^7, the difference of which is wanted


def structural_components(known, unknown):
    """Slow and obvious: compare every pair."""
    wins = np.array([[1.0 if u > k else 0.5 if u == k else 0.0 for u in unknown] for k in known])
    return wins.mean(1), wins.mean(0)


def covariance(first, second):
    """DeLong's covariance of two AUROCs on the same images, from their components."""
    return sum(np.cov(a, b, ddof=1)[0, 1] / len(a) for a, b in zip(first, second, strict=True))


def binormal(rng, auroc, n, m, shared=None):
    """Scores with a given true AUROC; two sets of them, with ``shared`` of their variance in common, where asked."""
    gap = np.sqrt(2) * NormalDist().inv_cdf(auroc)
    if shared is None:
        return rng.normal(size=n), rng.normal(gap, 1, size=m)
    sides = []
    for size, mean in ((n, 0), (m, gap)):
        common, own = rng.normal(size=size), rng.normal(size=(2, size))
        sides.append(mean + np.sqrt(shared) * common + np.sqrt(1 - shared) * own)
    return [(sides[0][i], sides[1][i]) for i in range(2)]


# --- influences


@given(scores, scores)
def test_the_squares_of_the_influences_add_up_to_delongs_variance(known, unknown):
    components = structural_components(known, unknown)
    got = auroc_influence(known, unknown)
    assert got.auroc == auroc(known, unknown)
    assert got.stderr**2 == pytest.approx(covariance(components, components), abs=1e-15)
    for influence, component in zip((got.known, got.unknown), components, strict=True):
        size = len(component)
        np.testing.assert_allclose(influence, (component - got.auroc) / np.sqrt(size * (size - 1)), atol=1e-15)
    assert got.pairs == min(len(known), len(unknown))


@given(scores, st.data())
def test_the_variance_of_a_difference_has_the_covariance_in_it(known, data):
    """Two methods, the same images: var(A - B) = var A + var B - 2 cov."""
    unknown = data.draw(scores)
    others = [data.draw(st.permutations(list(side)).map(np.array)) for side in (known, unknown)]
    first, second = structural_components(known, unknown), structural_components(*others)
    expected = covariance(first, first) + covariance(second, second) - 2 * covariance(first, second)
    got = paired_difference(auroc_influence(known, unknown), auroc_influence(*others))
    assert got.value == auroc(known, unknown) - auroc(*others)
    assert got.stderr**2 == pytest.approx(expected, abs=1e-15)


@given(scores, st.lists(scores, min_size=1, max_size=3))
def test_the_mean_over_data_sets_counts_the_images_they_share(known, unknowns):
    """The known images are the same: var(mean) = sum of all covariances / k^2, unknown ones vary on their own."""
    parts = [structural_components(known, unknown) for unknown in unknowns]
    shared = np.mean([part[0] for part in parts], axis=0)
    alone = sum(np.var(part[1], ddof=1) / len(part[1]) for part in parts) / len(parts) ** 2
    expected = np.var(shared, ddof=1) / len(known) + alone
    got = mean_influence([auroc_influence(known, unknown) for unknown in unknowns])
    assert got.auroc == pytest.approx(np.mean([auroc(known, unknown) for unknown in unknowns]), abs=1e-15)
    assert got.stderr**2 == pytest.approx(expected, abs=1e-15)
    assert got.pairs == min(map(len, [known, *unknowns]))


# --- the interval of one AUROC


def test_an_interval_is_symmetric_in_logits_with_students_t():
    low, high = interval(0.9, 0.02, 50, 80, level=0.9)
    step = scipy_t.ppf(0.95, 49) * 0.02 / 0.09
    assert np.log(low / (1 - low)) == pytest.approx(np.log(9) - step)
    assert np.log(high / (1 - high)) == pytest.approx(np.log(9) + step)


@given(scores, scores, st.sampled_from([0.5, 0.95, 0.999]))
def test_an_interval_stays_between_0_and_1_and_holds_the_estimate(known, unknown, level):
    got = auroc_influence(known, unknown)
    low, high = interval(got.auroc, got.stderr, len(known), len(unknown), level)
    assert 0 <= low <= got.auroc <= high <= 1
    assert high > low
    assert auroc_interval(known, unknown, level) == (low, high)


def test_perfect_separation_and_constant_scores_are_no_certainty():
    for n, m in ((30, 200), (200, 30)):
        got = auroc_influence(np.zeros(n), np.ones(m))
        assert (got.auroc, got.stderr) == (1, 0)
        low, high = interval(1.0, got.stderr, n, m)
        assert (low, high) == (0.025 ** (1 / 30), 1)  # 30 pairs that share no image all agree with probability 0.025
        assert interval(0.0, 0.0, n, m) == (0, 1 - low)
    got = auroc_influence(np.zeros(50), np.zeros(50))
    low, high = interval(got.auroc, got.stderr, 50, 50)
    assert (low, high) == pytest.approx((0.5 * 0.025**0.02, 1 - 0.5 * 0.025**0.02))


def test_one_image_on_a_side_proves_nothing():
    for n, m in ((1, 5), (5, 1), (1, 1)):
        got = auroc_influence(np.arange(n) + 0.5, np.arange(m, dtype=float))
        assert interval(got.auroc, got.stderr, n, m) == (0, 1)
        assert not (got.known if n == 1 else got.unknown).any()
        known, unknown = np.linspace(0, 1, n), np.linspace(0.4, 2, m)
        right, wrong = auroc_influence(known, unknown), auroc_influence(-known, -unknown)
        for compare in (paired_difference, independent_difference):
            got = compare(right, wrong)
            assert got.value == right.auroc - wrong.auroc != 0
            assert (got.low, got.high, got.p_value) == (-1, 1, 1), (n, m, compare)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    """Standard error of a share of 2000: 0.005. At 0.99 the variance rests on few images and coverage falls to 93 %."""
    for sizes in ((100, 100), (400, 100), (100, 400)):
        for truth, least in ((0.8, 0.93), (0.95, 0.93), (0.99, 0.91)):
            rng, held = np.random.default_rng(1), 0
            for _ in range(2000):
                low, high = auroc_interval(*binormal(rng, truth, *sizes))
                held += low <= truth <= high
            assert least <= held / 2000 <= 0.97, (sizes, truth)


# --- differences on the same images


def test_a_paired_difference_is_symmetric_with_students_t():
    first, second = binormal(np.random.default_rng(4), 0.8, 60, 50, shared=0.5)
    there = paired_difference(auroc_influence(*first), auroc_influence(*second))
    back = paired_difference(auroc_influence(*second), auroc_influence(*first))
    assert (back.value, back.low, back.high) == (-there.value, -there.high, -there.low)
    assert (back.stderr, back.p_value) == (there.stderr, there.p_value)
    step = scipy_t.ppf(0.975, 49) * there.stderr
    assert (there.low, there.high) == pytest.approx((there.value - step, there.value + step))
    assert there.p_value == pytest.approx(2 * scipy_t.cdf(-abs(there.value) / there.stderr, 49))


def test_differences_without_variance():
    known, unknown = binormal(np.random.default_rng(7), 0.9, 80, 70)
    got = paired_difference(auroc_influence(known, unknown), auroc_influence(np.exp(known), np.exp(unknown)))
    assert (got.value, got.stderr, got.low, got.high, got.p_value) == (0, 0, 0, 0, 1)  # they rank alike: certain
    perfect = auroc_influence(np.zeros(40), np.ones(60))
    for compare in (paired_difference, independent_difference):  # two perfect methods need not be equal
        got = compare(perfect, perfect)
        assert (got.value, got.p_value) == (0, 1), compare
        assert (got.low, got.high) == pytest.approx((0.025 ** (1 / 40) - 1, 1 - 0.025 ** (1 / 40))), compare
    # a constant shift of all placements: the influences are equal up to rounding, the AUROCs are not
    first = auroc_influence(np.array([0.0, 2.0]), np.array([1.0, 3.0]))
    second = auroc_influence(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    got = paired_difference(first, second)
    assert (got.value, got.p_value) == (0.25, 1)


def test_a_paired_difference_stays_between_minus_1_and_1():
    first = auroc_influence(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0]))
    second = auroc_influence(np.array([3.0, 4.0, 5.0]), np.array([4.5, 0.0]))
    assert (paired_difference(first, second).high, paired_difference(second, first).low) == (1, -1)


def test_without_any_variance_the_test_is_a_bound_that_agrees_with_its_interval():
    """Perfect against constant: at least a third of the pairs must disagree if both were equal."""
    for n in (3, 8, 9, 10, 11, 40):
        got = paired_difference(auroc_influence(np.zeros(n), np.ones(n)), auroc_influence(np.zeros(n), np.zeros(n)))
        assert (got.value, got.stderr) == (0.5, 0), n
        assert got.p_value == pytest.approx(min(1, 2 * (2 / 3) ** n)), n
        assert (got.low > 0) == (got.p_value < 0.05), n
        assert got.low <= got.value <= got.high <= 1, n


def share_rejected(compare, runs, draw):
    """Return the share of pairs of equally good methods that a test told apart, as its interval did."""
    count = 0
    for _ in range(runs):
        got = compare(*(auroc_influence(*scores) for scores in draw()))
        count += got.p_value < 0.05
        assert (got.p_value < 0.05) == (not got.low <= 0 <= got.high)
    return count / runs


@pytest.mark.slow
def test_the_paired_test_rejects_equals_as_often_as_it_says():
    """Under the normal distribution instead of Student's t, 28 % of equals were told apart with 2 unknown images."""
    for truth, shared in ((0.8, 0.2), (0.8, 0.8), (0.95, 0.2), (0.95, 0.8)):
        draw = partial(binormal, np.random.default_rng(2), truth, 100, 150, shared)
        assert 0.03 <= share_rejected(paired_difference, 2000, draw) <= 0.065, (truth, shared)
    for n, m in ((300, 2), (300, 3), (300, 5), (300, 10), (300, 40), (5, 5), (10, 10)):
        draw = partial(binormal, np.random.default_rng(8), 0.6, n, m, 0.2)
        # 5 %, and three standard errors of a share of 1000
        assert share_rejected(paired_difference, 1000, draw) <= 0.07, (n, m)


# --- differences on other images


def newcombe(a, b, level):
    """Both intervals by scipy's t of the smaller number of images, joined as legs of a triangle."""
    reach = scipy_t.ppf((1 + level) / 2, min(a.pairs, b.pairs) - 1)
    sides = []
    for x in (a, b):
        if x.stderr < 1e-15:
            agreed = ((1 - level) / 2) ** (1 / x.pairs)
            sides.append((x.auroc - x.auroc * agreed, (1 - x.auroc) * (1 - agreed)))
        else:
            logit, step = np.log(x.auroc / (1 - x.auroc)), reach * x.stderr / (x.auroc * (1 - x.auroc))
            low, high = 1 / (1 + np.exp(step - logit)), 1 / (1 + np.exp(-step - logit))
            sides.append((x.auroc - low, high - x.auroc))
    (a_down, a_up), (b_down, b_up) = sides
    return a.auroc - b.auroc - np.hypot(a_down, b_up), a.auroc - b.auroc + np.hypot(a_up, b_down)


def test_an_independent_interval_is_newcombes_and_just_reaches_0_at_the_level_of_its_p_value():
    for truths, sizes in (((0.8, 0.9), (40, 90)), ((0.6, 1 - 1e-9), (60, 12))):
        rng = np.random.default_rng(11)
        found = [auroc_influence(*binormal(rng, truth, n, n + 5)) for truth, n in zip(truths, sizes, strict=True)]
        for a, b in (found, found[::-1]):
            for level in (0.5, 0.95, 0.999):
                got = independent_difference(a, b, level)
                assert (got.low, got.high) == pytest.approx(newcombe(a, b, level), abs=1e-12), (truths, level)
            assert got.stderr == pytest.approx(np.hypot(a.stderr, b.stderr), rel=1e-12)
            touching = independent_difference(a, b, level=1 - got.p_value)
            assert (touching.low if touching.value > 0 else touching.high) == pytest.approx(0, abs=1e-9), truths


@given(scores, scores, scores, scores)
def test_an_independent_difference_lies_between_minus_1_and_1_and_has_a_mirror_image(a, b, c, d):
    first, second = auroc_influence(a, b), auroc_influence(c, d)
    there, back = independent_difference(first, second), independent_difference(second, first)
    assert -1 <= there.low <= there.value <= there.high <= 1
    assert 0 <= there.p_value <= 1
    assert there.p_value == 1 or there.value != 0
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low), abs=1e-12)
    assert back.p_value == pytest.approx(there.p_value)


@pytest.mark.slow
def test_a_perfect_auroc_does_not_make_the_independent_test_too_sure():
    """Its standard error of 0 is no certainty: by that, 77 % of equals were told apart with 5 images at 0.983."""

    def draw(rng, truth, few):
        return [binormal(rng, truth, n, n) for n in (few, 300)]

    for few, truth, most in ((5, 0.92, 0.03), (5, 0.983, 0.03), (20, 0.983, 0.05), (300, 0.9998, 0.07)):
        same = partial(draw, np.random.default_rng(9), truth, few)
        assert share_rejected(independent_difference, 1000, same) <= most, (few, truth)


def test_other_images_and_impossible_levels_are_refused():
    one, two, three = (auroc_influence(np.zeros(n), np.ones(m)) for n, m in ((3, 4), (2, 4), (3, 5)))
    assert_refused(ValueError, "known", paired_difference, one, two)
    assert_refused(ValueError, "unknown", paired_difference, one, three)
    assert_refused(ValueError, "known", mean_influence, [one, two])
    assert_refused(ValueError, "NaN", auroc_influence, np.array([0.0, np.nan]), np.array([1.0]))
    for level in (0, 1, 95):
        assert_refused(ValueError, "level", interval, 0.9, 0.1, 10, 10, level)
        assert_refused(ValueError, "level", independent_difference, one, one, level)
        assert_refused(ValueError, "level", student_quantile, level, 3)
