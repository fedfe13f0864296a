"""Conformal p-values: the definition, and the guarantee on repeated draws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatfold.core.conformal import allowed_ranks, p_values, samples_needed

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


def test_what_is_not_a_number_is_unlike_everything():
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


@pytest.mark.parametrize("fpr", [0.01, 0.05, 0.1, 0.2, 1 / 3, 0.5])
def test_with_the_needed_samples_an_alarm_is_possible_and_with_one_less_it_is_not(fpr):
    n = samples_needed(fpr)
    extreme = torch.tensor([9.0])
    assert p_values(extreme, torch.zeros(n)) <= fpr
    assert p_values(extreme, torch.zeros(n - 1)) > fpr


@pytest.mark.parametrize(("n", "fpr"), [(19, 0.05), (50, 0.05), (200, 0.1)])
@pytest.mark.parametrize("ties", [False, True])
def test_false_alarms_stay_below_the_rate_on_average_over_draws(n, fpr, ties):
    g = torch.Generator().manual_seed(n)
    draws = torch.randn(20_000, n + 1, generator=g)
    draws = draws.mul(2).round() if ties else draws
    alarms = [float(p_values(row[:1], row[1:].sort().values) <= fpr) for row in draws]
    rate, error = sum(alarms) / len(alarms), (fpr * (1 - fpr) / len(alarms)) ** 0.5
    assert rate <= fpr + 3 * error
    if not ties and (n + 1) * fpr == int((n + 1) * fpr):
        assert rate >= fpr - 3 * error  # and the guarantee is not wasted
