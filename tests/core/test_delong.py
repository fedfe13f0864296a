"""`core.delong` against structural components counted pair by pair, and what its intervals and tests promise."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as scipy_t

from flatfold.core.delong import (
    auroc_influence,
    independent_difference,
    interval,
    mean_influence,
    paired_difference,
)
from flatfold.core.ranking import auroc

# Halves of small integers: plenty of ties.
scores = st.lists(st.integers(-6, 6).map(lambda x: x / 2), min_size=2, max_size=25).map(np.array)


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


def test_the_order_of_the_images_is_kept_and_the_scores_are_left_alone():
    known, unknown = np.array([0.5, 0.1, 0.9]), np.array([2.0, 0.3, 0.7])
    before = known.copy()
    got = auroc_influence(known, unknown)
    assert got.known.argmin() == 2
    assert got.known.argmax() == 1
    assert got.unknown[0] > got.unknown[2] > got.unknown[1]
    assert np.array_equal(known, before)


def test_torch_and_numpy_scores_of_any_precision_are_taken():
    known, unknown = binormal(np.random.default_rng(0), 0.9, 50, 30)
    known, unknown = known.astype(np.float32), unknown.astype(np.float32)
    from_numpy = auroc_influence(known, unknown)
    from_torch = auroc_influence(torch.from_numpy(known), torch.from_numpy(unknown))
    assert from_numpy.known.dtype == np.float64
    assert np.array_equal(from_numpy.known, from_torch.known)
    assert from_numpy.auroc == auroc(known, unknown)


def test_scores_that_have_no_rank_are_refused():
    with pytest.raises(ValueError, match="1 NaN of 2"):
        auroc_influence(np.array([0.0, np.nan]), np.array([1.0]))


@given(scores, st.lists(scores, min_size=1, max_size=3))
def test_the_mean_over_data_sets_counts_what_they_share(known, unknowns):
    """The known images are the same: var(mean) = sum of all covariances / k^2, unknown ones vary on their own."""
    parts = [structural_components(known, unknown) for unknown in unknowns]
    shared = np.mean([part[0] for part in parts], axis=0)
    alone = sum(np.var(part[1], ddof=1) / len(part[1]) for part in parts) / len(parts) ** 2
    expected = np.var(shared, ddof=1) / len(known) + alone
    got = mean_influence([auroc_influence(known, unknown) for unknown in unknowns])
    assert got.auroc == pytest.approx(np.mean([auroc(known, unknown) for unknown in unknowns]), abs=1e-15)
    assert got.stderr**2 == pytest.approx(expected, abs=1e-15)
    assert got.pairs == min(map(len, [known, *unknowns]))


@pytest.mark.parametrize("sizes", [(100, 100), (400, 100), (100, 400)], ids=str)
@pytest.mark.parametrize(("truth", "least"), [(0.8, 0.93), (0.95, 0.93), (0.99, 0.91)])
def test_intervals_hold_the_truth_as_often_as_they_say(truth, least, sizes):
    """Standard error of a share of 2000: 0.005. At 0.99 the variance rests on few images and coverage falls to 93 %."""
    rng, held = np.random.default_rng(1), 0
    for _ in range(2000):
        got = auroc_influence(*binormal(rng, truth, *sizes))
        low, high = interval(got.auroc, got.stderr, *sizes)
        held += low <= truth <= high
    assert least <= held / 2000 <= 0.97


@pytest.mark.parametrize("truth", [0.8, 0.95])
@pytest.mark.parametrize("shared", [0.2, 0.8])
def test_the_paired_test_rejects_equals_as_often_as_it_says(truth, shared):
    rng, rejected, held = np.random.default_rng(2), 0, 0
    for _ in range(2000):
        first, second = binormal(rng, truth, 100, 150, shared)
        got = paired_difference(auroc_influence(*first), auroc_influence(*second))
        rejected += got.p_value < 0.05
        held += got.low <= 0 <= got.high
    assert 0.03 <= rejected / 2000 <= 0.065
    assert held == 2000 - rejected


@pytest.mark.parametrize("sizes", [(300, 2), (300, 3), (300, 5), (300, 10), (300, 40), (5, 5), (10, 10)], ids=str)
def test_few_images_do_not_make_the_paired_test_too_sure(sizes):
    """Under the normal distribution instead of Student's t, 28 % of equals were told apart with 2 unknown images."""
    rng, rejected = np.random.default_rng(8), 0
    for _ in range(1000):
        first, second = binormal(rng, 0.6, *sizes, shared=0.2)
        got = paired_difference(auroc_influence(*first), auroc_influence(*second))
        rejected += got.p_value < 0.05
        assert (got.p_value < 0.05) == (not got.low <= 0 <= got.high)
    assert rejected / 1000 <= 0.07  # 5 %, and three standard errors of a share of 1000


@pytest.mark.parametrize("compare", [paired_difference, independent_difference])
@pytest.mark.parametrize(("n", "m"), [(1, 50), (50, 1), (1, 1)])
def test_one_image_on_a_side_tells_no_methods_apart(n, m, compare):
    known, unknown = np.linspace(0, 1, n), np.linspace(0.4, 2, m)
    right, wrong = auroc_influence(known, unknown), auroc_influence(-known, -unknown)
    got = compare(right, wrong)
    assert got.value == right.auroc - wrong.auroc != 0
    assert (got.low, got.high, got.p_value) == (-1, 1, 1)


@pytest.mark.parametrize(
    ("few", "truth", "most"),
    [((5, 5), 0.92, 0.03), ((5, 5), 0.983, 0.03), ((20, 20), 0.983, 0.05), ((300, 300), 0.9998, 0.07)],
    ids=str,
)
def test_a_perfect_auroc_does_not_make_the_independent_test_too_sure(few, truth, most):
    """Its standard error of 0 is no certainty: by that, 77 % of equals were told apart with 5 images at 0.983."""
    rng, rejected = np.random.default_rng(9), 0
    for _ in range(1000):
        first, second = (auroc_influence(*binormal(rng, truth, *sizes)) for sizes in (few, (300, 300)))
        got = independent_difference(first, second)
        rejected += got.p_value < 0.05
        assert (got.p_value < 0.05) == (not got.low <= 0 <= got.high)
    assert rejected / 1000 <= most


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


@pytest.mark.parametrize(("truths", "sizes"), [((0.8, 0.9), (40, 90)), ((0.6, 1 - 1e-9), (60, 12))], ids=str)
def test_an_independent_interval_joins_those_of_both_and_just_reaches_0_at_the_level_of_its_p_value(truths, sizes):
    rng = np.random.default_rng(11)
    found = [auroc_influence(*binormal(rng, truth, n, n + 5)) for truth, n in zip(truths, sizes, strict=True)]
    for a, b in (found, found[::-1]):
        for level in (0.5, 0.95, 0.999):
            got = independent_difference(a, b, level)
            assert (got.low, got.high) == pytest.approx(newcombe(a, b, level), abs=1e-12)
        touching = independent_difference(a, b, level=1 - got.p_value)
        assert (touching.low if touching.value > 0 else touching.high) == pytest.approx(0, abs=1e-9)


@given(scores, scores, scores, scores)
def test_an_independent_difference_holds_its_value_between_minus_1_and_1_and_has_a_mirror_image(a, b, c, d):
    first, second = auroc_influence(a, b), auroc_influence(c, d)
    there, back = independent_difference(first, second), independent_difference(second, first)
    assert -1 <= there.low <= there.value <= there.high <= 1
    assert 0 <= there.p_value <= 1
    assert there.p_value == 1 or there.value != 0
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low), abs=1e-12)
    assert back.p_value == pytest.approx(there.p_value)


def test_pairing_finds_what_two_intervals_hide():
    rng = np.random.default_rng(3)
    known, unknown = binormal(rng, 0.9, 300, 300)
    better = unknown + 0.1
    first, second = auroc_influence(known, better), auroc_influence(known, unknown)
    assert interval(first.auroc, first.stderr, 300, 300)[0] < second.auroc
    paired, apart = paired_difference(first, second), independent_difference(first, second)
    assert paired.value == apart.value > 0
    assert paired.low > 0 > apart.low
    assert paired.p_value < 0.001 < 0.05 < apart.p_value


def test_a_difference_is_the_mirror_image_of_the_opposite_one():
    first, second = binormal(np.random.default_rng(4), 0.8, 60, 50, shared=0.5)
    there = paired_difference(auroc_influence(*first), auroc_influence(*second))
    back = paired_difference(auroc_influence(*second), auroc_influence(*first))
    assert (back.value, back.low, back.high) == (-there.value, -there.high, -there.low)
    assert (back.stderr, back.p_value) == (there.stderr, there.p_value)
    step = scipy_t.ppf(0.975, 49) * there.stderr
    assert (there.low, there.high) == pytest.approx((there.value - step, there.value + step))
    assert there.p_value == pytest.approx(2 * scipy_t.cdf(-abs(there.value) / there.stderr, 49))


def test_tiny_p_values_keep_their_digits():
    rng = np.random.default_rng(5)
    good, bad = (auroc_influence(*binormal(rng, truth, 2000, 2000)) for truth in (0.95, 0.6))
    assert 0 < paired_difference(good, bad).p_value < 1e-100


def test_variances_of_independent_images_add_up():
    rng = np.random.default_rng(6)
    first, second = (auroc_influence(*binormal(rng, 0.8, n, m)) for n, m in ((50, 40), (30, 90)))
    got = independent_difference(first, second)
    assert got.stderr == pytest.approx(np.hypot(first.stderr, second.stderr), rel=1e-12)
    assert got.value == first.auroc - second.auroc


def test_an_interval_is_one_of_logits():
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


@pytest.mark.parametrize(("n", "m"), [(30, 200), (200, 30)])
def test_perfect_separation_is_no_certainty(n, m):
    got = auroc_influence(np.zeros(n), np.ones(m))
    assert (got.auroc, got.stderr) == (1, 0)
    low, high = interval(1.0, got.stderr, n, m)
    assert (low, high) == (0.025 ** (1 / 30), 1)
    assert interval(0.0, 0.0, n, m) == (0, 1 - low)
    assert low**30 == pytest.approx(0.025)  # 30 pairs that share no image would all agree with this probability


def test_scores_that_are_all_equal_are_no_certainty_either():
    got = auroc_influence(np.zeros(50), np.zeros(50))
    low, high = interval(got.auroc, got.stderr, 50, 50)
    assert (low, high) == pytest.approx((0.5 * 0.025**0.02, 1 - 0.5 * 0.025**0.02))


@pytest.mark.parametrize(("n", "m"), [(1, 5), (5, 1), (1, 1)])
def test_one_image_on_a_side_proves_nothing(n, m):
    got = auroc_influence(np.arange(n) + 0.5, np.arange(m, dtype=float))
    assert interval(got.auroc, got.stderr, n, m) == (0, 1)
    assert not (got.known if n == 1 else got.unknown).any()


def test_methods_that_rank_alike_are_equal_for_certain():
    known, unknown = binormal(np.random.default_rng(7), 0.9, 80, 70)
    got = paired_difference(auroc_influence(known, unknown), auroc_influence(np.exp(known), np.exp(unknown)))
    assert (got.value, got.stderr, got.low, got.high, got.p_value) == (0, 0, 0, 0, 1)


@pytest.mark.parametrize("compare", [paired_difference, independent_difference])
def test_two_perfect_methods_need_not_be_equal(compare):
    perfect = auroc_influence(np.zeros(40), np.ones(60))
    got = compare(perfect, perfect)
    assert (got.value, got.p_value) == (0, 1)
    assert (got.low, got.high) == pytest.approx((0.025 ** (1 / 40) - 1, 1 - 0.025 ** (1 / 40)))


@pytest.mark.parametrize("n", [3, 8, 9, 10, 11, 40])
def test_without_any_variance_the_test_is_a_bound_that_agrees_with_its_interval(n):
    """Perfect against constant: at least a third of the pairs must disagree if both were equal."""
    got = paired_difference(auroc_influence(np.zeros(n), np.ones(n)), auroc_influence(np.zeros(n), np.zeros(n)))
    assert (got.value, got.stderr) == (0.5, 0)
    assert got.p_value == pytest.approx(min(1, 2 * (2 / 3) ** n))
    assert (got.low > 0) == (got.p_value < 0.05)
    assert got.low <= got.value <= got.high <= 1


def test_a_constant_shift_of_all_placements_is_not_taken_for_endless_evidence():
    """The influences are equal up to rounding, the AUROCs are not."""
    first = auroc_influence(np.array([0.0, 2.0]), np.array([1.0, 3.0]))
    second = auroc_influence(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    got = paired_difference(first, second)
    assert got.value == 0.25
    assert got.p_value == 1


def test_the_difference_stays_between_minus_1_and_1():
    first = auroc_influence(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0]))
    second = auroc_influence(np.array([3.0, 4.0, 5.0]), np.array([4.5, 0.0]))
    assert paired_difference(first, second).high == 1
    assert paired_difference(second, first).low == -1


def test_other_numbers_of_images_are_refused():
    one, two, three = (auroc_influence(np.zeros(n), np.ones(m)) for n, m in ((3, 4), (2, 4), (3, 5)))
    with pytest.raises(ValueError, match=r"need as many known scores each, got 3 and 2\. Score the same images"):
        paired_difference(one, two)
    with pytest.raises(ValueError, match="need as many unknown scores each, got 4 and 5"):
        paired_difference(one, three)
    with pytest.raises(ValueError, match="need as many known scores each, got 3 and 2"):
        mean_influence([one, two])


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_that_is_no_share_is_refused(level):
    with pytest.raises(ValueError, match=f"level must lie between 0 and 1, got {level}"):
        interval(0.9, 0.1, 10, 10, level)
    one = auroc_influence(np.zeros(4), np.ones(4))
    for compare in (paired_difference, independent_difference):
        with pytest.raises(ValueError, match=f"level must lie between 0 and 1, got {level}"):
            compare(one, one, level)
