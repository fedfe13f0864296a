"""Conformal p-values and the drift tests: exact definitions, scipy, and the guarantee on repeated draws."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from flatfold.core.conformal import (
    alarm_p_value,
    allowed_ranks,
    ks_p_value,
    p_values,
    pool_groups,
    samples_needed,
)
from flatfold.core.copies import count_copies_once
from tests.refusals import assert_refused

numbers = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=20)


@given(numbers, numbers)
def test_the_p_value_counts_calibration_scores_at_least_as_high(scores, calibration):
    got = p_values(torch.tensor(scores, dtype=torch.float64), torch.tensor(sorted(calibration), dtype=torch.float64))
    expected = [(1 + sum(c >= s for c in calibration)) / (len(calibration) + 1) for s in scores]
    assert got.tolist() == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(-3, 3).map(float), numbers), min_size=1, max_size=8))
def test_each_score_may_have_calibration_scores_of_its_own(pairs):
    width = max(len(own) for _, own in pairs) + 1
    rows = torch.tensor([sorted(own) + [torch.inf] * (width - len(own)) for _, own in pairs])
    scores, counts = torch.tensor([score for score, _ in pairs]), torch.tensor([len(own) for _, own in pairs])
    expected = [p_values(torch.tensor([score]), torch.tensor(sorted(own))) for score, own in pairs]
    assert torch.equal(p_values(scores, rows, counts), torch.cat(expected))


def test_nan_and_infinity_get_the_smallest_p_value():
    odd = torch.tensor([torch.nan, torch.inf])
    assert torch.equal(p_values(odd, torch.arange(3.0)), torch.tensor([0.25, 0.25]))
    rows = torch.tensor([[0.0, 1.0, 2.0, torch.inf, torch.inf]]).expand(2, -1).contiguous()
    assert torch.equal(p_values(odd, rows, torch.tensor([3, 3])), torch.tensor([0.25, 0.25]))


@given(numbers, st.sampled_from([0.01, 0.05, 0.07, 0.1, 0.29, 1 / 3, 0.5, 0.9]))
def test_a_p_value_is_small_exactly_above_the_allowed_rank(calibration, fpr):
    ordered = torch.tensor(sorted(calibration), dtype=torch.float64)
    scores = torch.arange(-4, 4.5, 0.5, dtype=torch.float64)
    small = p_values(scores, ordered) <= fpr + 1e-12
    k = allowed_ranks(fpr, len(ordered))
    expected = scores > ordered[len(ordered) - k] if k else torch.zeros(len(scores), dtype=torch.bool)
    assert torch.equal(small, expected)


def test_an_alarm_is_possible_from_the_needed_number_of_samples_on():
    extreme = torch.tensor([9.0])
    for fpr in (0.01, 0.05, 0.1, 0.2, 1 / 3, 0.5):
        n = samples_needed(fpr)
        assert p_values(extreme, torch.zeros(n)) <= fpr, fpr
        assert p_values(extreme, torch.zeros(n - 1)) > fpr, fpr


def test_false_alarms_stay_below_the_rate_on_average_over_draws():
    """20,000 draws of n calibration scores and one fresh score each."""
    for n, fpr, ties in ((19, 0.05, False), (19, 0.05, True), (50, 0.05, False), (199, 0.1, False), (200, 0.1, True)):
        draws = torch.randn(20_000, n + 1, generator=torch.Generator().manual_seed(n))
        draws = draws.mul(2).round() if ties else draws
        calibration = torch.cat([draws[:, 1:].sort(dim=-1).values, torch.full((20_000, 1), torch.inf)], dim=1)
        alarms = p_values(draws[:, 0].contiguous(), calibration, torch.full((20_000,), n)) <= fpr
        rate, error = float(alarms.double().mean()), (fpr * (1 - fpr) / 20_000) ** 0.5
        assert rate <= fpr + 3 * error, (n, fpr, ties)
        if not ties and (n + 1) * fpr == int((n + 1) * fpr):
            assert rate >= fpr - 3 * error, (n, fpr)  # and the guarantee is not wasted


def test_a_confidence_allows_as_many_ranks_as_the_beta_law_of_the_rate_does():
    for fpr, confidence, needed in ((0.05, 0.95, 59), (0.01, 0.99, 459), (0.1, 0.5, 9)):
        assert samples_needed(fpr, confidence) == needed
        assert (allowed_ranks(fpr, needed, confidence), allowed_ranks(fpr, needed - 1, confidence)) == (1, 0)
        for n in (needed, 500, 1000, 20_000):
            k = allowed_ranks(fpr, n, confidence)
            assert stats.beta.cdf(fpr, k, n + 1 - k) >= confidence, (fpr, n)
            assert k == allowed_ranks(fpr, n) or stats.beta.cdf(fpr, k + 1, n - k) < confidence, (fpr, n)
    uniform, n = np.random.default_rng(0).random((4000, 300)), 300  # the rate of a threshold t is then 1 - t
    for confidence in (0.6, 0.95):
        rates = 1 - np.sort(uniform)[:, n - allowed_ranks(0.05, n, confidence)]
        kept = (rates <= 0.05).mean()
        assert confidence - 0.02 < kept < confidence + 0.13  # ranks are whole numbers


@given(st.lists(st.tuples(st.integers(-4, 4).map(float), st.integers(1, 4)), min_size=1, max_size=12))
def test_copies_get_the_larger_of_the_p_values_with_and_without_them(inputs):
    once = torch.tensor([score for score, _ in inputs], dtype=torch.float64)
    every = torch.cat([once, *(torch.full((copies - 1,), score) for score, copies in inputs)])
    distinct = torch.arange(len(every)) < len(once)
    scores = torch.arange(-5, 5.5, 0.5, dtype=torch.float64)
    wanted = torch.maximum(p_values(scores, every.sort().values), p_values(scores, once.sort().values))
    grid = torch.ceil(wanted * (len(once) + 1) - 1e-9) / (len(once) + 1)
    torch.testing.assert_close(p_values(scores, count_copies_once(every, distinct)), grid)


# --- the number of alarms


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


def test_the_alarm_p_value_is_the_share_of_orders_with_that_many_alarms():
    for seen, calibrated in ((0, 1), (1, 1), (5, 3), (3, 5), (6, 6)):
        for allowed in range(1, calibrated + 1):
            for alarms in range(seen + 1):
                expected, case = by_every_order(alarms, seen, calibrated, allowed), (alarms, seen, calibrated, allowed)
                assert exact(*case) == expected, case
                assert alarm_p_value(*case) == pytest.approx(float(expected), rel=1e-14), case


@given(data=st.data(), seen=st.integers(0, 300), calibrated=st.integers(1, 200))
def test_the_alarm_p_value_is_exact(data, seen, calibrated):
    allowed, alarms = data.draw(st.integers(1, calibrated)), data.draw(st.integers(0, seen))
    expected = float(exact(alarms, seen, calibrated, allowed))
    assert alarm_p_value(alarms, seen, calibrated, allowed) == pytest.approx(expected, rel=1e-12)


def test_no_digits_are_lost_however_long_the_stream_is():
    for seen in (10**6, 10**9, 10**12):
        for share in (0, 1e-6, 0.04, 0.05, 0.06, 0.1, 0.5, 0.999, 1):
            case = (int(share * seen), seen, 199, 10)
            assert alarm_p_value(*case) == pytest.approx(float(exact(*case)), rel=1e-11), case
    for alarms in (0, 30, 50, 60, 90):
        # the sum of its terms: scipy's own tail is a difference from 1, which has no digits left where it is small
        expected = stats.betabinom.pmf(np.arange(alarms, 1001), 1000, 250, 4750).sum()
        assert alarm_p_value(alarms, 1000, 4999, 250) == pytest.approx(expected, rel=1e-8), alarms
    for share in (0.0490, 0.0499, 0.05, 0.0501, 0.0512):
        expected = stats.beta.sf(share, 50_000, 950_000)
        assert alarm_p_value(int(share * 10**13), 10**13, 999_999, 50_000) == pytest.approx(expected, rel=1e-6), share
    assert alarm_p_value(10**6, 10**6, 9999, 500) == 0.0  # smaller than any float
    assert 0 < alarm_p_value(230, 1000, 999, 50) == pytest.approx(float(exact(230, 1000, 999, 50)), rel=1e-11)


# --- the distance between two distributions


def test_the_ks_p_value_is_kolmogorovs_law():
    n, m = 3000, 500
    for x, expected in ((0, 1.0), (0.5, 0.9639452436648752), (1.36, 0.04948587675), (3, 3.0459959489425258e-08)):
        assert ks_p_value(x / (n * m / (n + m)) ** 0.5, n, m) == pytest.approx(expected, rel=1e-9), x
    # sizes beyond what a float or an int64 holds exactly
    assert ks_p_value(1e-9, 10**18, 10**18) == pytest.approx(special.kolmogorov(0.5**0.5), rel=1e-12)
    assert ks_p_value(1.0, 10**12, 10**4) == 0.0


def test_impossible_counts_are_refused():
    for alarms, seen in ((-1, 5), (6, 5), (1, 0)):
        assert_refused(ValueError, "alarms must be", alarm_p_value, alarms, seen, 10, 1)
    for allowed in (0, 11, -1):
        assert_refused(ValueError, "rank", alarm_p_value, 1, 5, 10, allowed)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3).map(float)), min_size=1, max_size=25),
    st.integers(1, 7),
    st.integers(-4, 4).map(float),
)
def test_pooled_scores_of_groups_count_shares_rounded_up(pairs, each, score):
    groups, scores = zip(*pairs, strict=True)
    pooled = pool_groups(torch.tensor(scores), torch.tensor(groups), each)
    members = {group: [s for g, s in pairs if g == group] for group in groups}
    shares = sum(Fraction(sum(s >= score for s in own), len(own)) for own in members.values())
    n = len(members)
    assert pooled.tolist() == sorted(pooled.tolist())
    assert len(pooled) == n * each
    assert int((pooled >= score).sum()) == -(-each * shares // 1)
    p = p_values(torch.tensor([score], dtype=torch.float64), pooled.double(), above=each - 1).item()
    exact = (1 + shares) / (n + 1)
    assert exact <= Fraction(p).limit_denominator(10**6) <= exact + Fraction(1, each * (n + 1))


@pytest.mark.parametrize("each", [1, 5])
def test_the_threshold_of_groups_is_their_p_value_of_the_rate(each):
    g = torch.Generator().manual_seed(0)
    groups = torch.randint(30, (400,), generator=g)
    pooled = pool_groups(torch.randn(400, generator=g).double(), groups, each)
    for fpr in (1 / 30, 0.05, 0.1, 0.31):
        rank = allowed_ranks(fpr, len(pooled), above=each - 1)
        if rank < 1:
            continue
        scores = torch.linspace(-4, 4, 999, dtype=torch.float64)
        alarms = scores > pooled[len(pooled) - rank]
        assert torch.equal(alarms, p_values(scores, pooled, above=each - 1) <= fpr + 1e-12)
    assert allowed_ranks(1 / 31 - 1e-6, len(pooled), above=each - 1) < 1


def test_groups_keep_the_rate_that_their_members_taken_alone_exceed():
    g = np.random.default_rng(0)
    pooled_rate, naive_rate = [], []
    for _ in range(400):
        sizes = g.integers(1, 40, size=31)
        scores = [g.standard_normal() + 0.3 * g.standard_normal(size) for size in sizes]  # the last group is new
        known = torch.tensor(np.concatenate(scores[:30]))
        groups = torch.from_numpy(np.repeat(np.arange(30), sizes[:30]))
        pooled = pool_groups(known, groups, each=20)
        threshold = pooled[len(pooled) - allowed_ranks(0.1, len(pooled), above=19)].item()
        naive = known.sort().values[len(known) - allowed_ranks(0.1, len(known))].item()
        pooled_rate.append((scores[-1] > threshold).mean())
        naive_rate.append((scores[-1] > naive).mean())
    error = np.std(pooled_rate) / len(pooled_rate) ** 0.5
    assert 0.04 < np.mean(pooled_rate) <= 0.1 + 3 * error
    assert np.mean(naive_rate) > np.mean(pooled_rate)
