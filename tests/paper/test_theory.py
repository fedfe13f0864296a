"""The theorem and its converse on random cases, its numbers against scipy, draws and autograd."""

from itertools import pairwise
from math import exp, inf, log, nan, pi, sqrt

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize
from torch.func import hessian

from flatfold.paper.theory import (
    Theorem,
    average_curvature,
    bayes_weight,
    compare_traces,
    expected_trace,
    holds,
    logistic_risk,
    monte_carlo_trace,
    printed_loss,
)
from tests.curvature.matrices import check_refused

DEVIATIONS = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]  # variances from 0.01 to 1e4
MEANS = [0.0, 0.1, 1.0, 4.0, 15.0, 60.0]


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def make_case(seed, dimensions=None, scale=None):
    """Return mean, covariance, rotation and c of a random setting."""
    g = torch.Generator().manual_seed(seed)
    d = dimensions or int(torch.randint(1, 9, (), generator=g))
    root = normal(g, d, d)
    covariance = root @ root.mT / d + 0.1 * torch.eye(d)
    mean = normal(g, d) * (scale or 10 ** (float(torch.rand((), generator=g)) - 0.7))
    return mean, covariance, torch.linalg.qr(normal(g, d, d)).Q, 3 * float(torch.rand((), generator=g))


def log_phi(a):
    return -abs(a) - 2 * np.log1p(np.exp(-abs(a)))


def by_scipy(function, mean, deviation):
    """Integrate ``function(a) N(a; mean, deviation^2)``, piece by piece so that no peak is missed."""
    low, high = mean - 12 * deviation, mean + 12 * deviation
    inside = [x for x in (mean - deviation**2, mean, *range(-40, 41, 5)) if low < x < high]
    edges = sorted({low, high, *inside, *np.linspace(low, high, 13)})

    def integrand(a):
        return function(a) * exp(-(((a - mean) / deviation) ** 2) / 2) / (deviation * sqrt(2 * pi))

    pieces = pairwise(edges)
    return sum(quad(integrand, *piece, epsabs=0, epsrel=1e-12, limit=200)[0] for piece in pieces)


def test_the_average_is_that_of_scipy():
    for mean in MEANS:
        for deviation in DEVIATIONS:
            expected = by_scipy(lambda a: exp(log_phi(a)), mean, deviation)
            got = average_curvature(mean, deviation)
            assert got == pytest.approx(expected, rel=1e-10, abs=0), (mean, deviation)
    for deviation in (1e3, 1e5):  # phi has the area 1 and the variance pi^2 / 3
        expected = (1 - pi**2 / (6 * deviation**2)) / (deviation * sqrt(2 * pi))
        assert average_curvature(0.0, deviation) == pytest.approx(expected, rel=1e-10, abs=0)
    for mean in (-30.0, -1.0, 0.0, 2.5):
        assert average_curvature(mean, 0.0) == pytest.approx(exp(log_phi(mean)), rel=1e-14)


def test_the_average_is_even_and_falls_with_the_distance_of_the_mean():
    means = np.linspace(0, 30, 151)
    for deviation in (0.1, 0.5, 1.0, 2.0, 5.0, 10.0):
        values = [average_curvature(mean, deviation) for mean in means]
        assert all(after < before for before, after in pairwise(values)), deviation
        assert values == [average_curvature(-mean, deviation) for mean in means], deviation


@pytest.mark.parametrize("alpha", [2.0, None], ids=["minimiser", "any"])
def test_id_inputs_have_the_smaller_trace_exactly_where_the_condition_is_true(alpha):
    outcomes = []
    for seed in range(320):
        case = make_case(seed)
        length = alpha or 10 ** (2 * np.random.default_rng(seed).random() - 1)
        result = compare_traces(*case, alpha=length)
        w = length * torch.linalg.inv(case[1]) @ case[0]
        id_trace, ood_trace = (expected_trace(m, case[1], w) for m in (case[0], case[3] * case[2] @ case[0]))
        left = case[3] * abs(float(case[0] @ torch.linalg.inv(case[1]) @ case[2] @ case[0]))
        right = float(case[0] @ torch.linalg.inv(case[1]) @ case[0])
        assert (result.id, result.ood) == pytest.approx((id_trace, ood_trace), rel=1e-9)
        assert (result.shifted, result.bound, result.alpha) == pytest.approx((left, right, length), rel=1e-9)
        assert (left <= right) == (id_trace <= ood_trace) == result.holds == holds(*case)
        assert result.agrees
        outcomes.append(result.holds)
    assert 60 < sum(outcomes) < 260


def test_equality_goes_with_equality():
    for seed in range(40):
        mean, covariance, rotation, _ = make_case(seed)
        same = compare_traces(mean, covariance, torch.eye(len(mean)), 1.0)
        assert (same.gap, same.margin, same.ratio, same.holds, same.agrees) == (0, 0, 1, True, True)
        assert compare_traces(mean, covariance, -torch.eye(len(mean)), 1.0).gap == 0
        boundary = 1 / compare_traces(mean, covariance, rotation, 1.0).ratio
        for c, sign in ((boundary, 0), (boundary * 0.99, 1), (boundary * 1.01, -1)):
            result = compare_traces(mean, covariance, rotation, c)
            assert result.holds == (sign >= 0)
            assert result.agrees
            assert np.sign(round(result.log_ratio, 11)) == sign
            assert np.sign(round(result.margin / result.bound, 11)) == sign


def test_the_order_is_known_where_both_traces_are_too_small_for_a_float():
    mean, covariance, rotation = torch.tensor([60.0, 0.0]), torch.eye(2), torch.eye(2)
    nearer, farther = (compare_traces(mean, covariance, rotation, c) for c in (0.99, 1.01))
    assert nearer.id == nearer.ood == nearer.gap == 0
    assert nearer.log_ratio > 0 > farther.log_ratio
    assert (nearer.holds, farther.holds) == (True, False)
    # so far out, the average is about the density of N(alpha c q, alpha^2 q) at 0, with q = 3600
    expected = (1 - 0.99**2) * 3600 / 2
    assert nearer.log_ratio == pytest.approx(expected, rel=0.02)


def test_what_contradicts_the_condition_does_not_agree():
    right = Theorem(id=1.0, ood=2.0, log_ratio=log(2), shifted=1.0, bound=3.0, alpha=2.0)
    assert (right.gap, right.margin, right.ratio, right.holds, right.agrees) == (1, 2, 1 / 3, True, True)
    assert not Theorem(id=2.0, ood=1.0, log_ratio=-log(2), shifted=1.0, bound=3.0, alpha=2.0).agrees
    assert not Theorem(id=1.0, ood=2.0, log_ratio=log(2), shifted=4.0, bound=3.0, alpha=2.0).agrees
    assert Theorem(id=2.0, ood=2.0, log_ratio=-1e-15, shifted=1.0, bound=3.0, alpha=2.0).agrees
    assert Theorem(id=2.0, ood=1.9, log_ratio=-0.1, shifted=3 - 1e-15, bound=3.0, alpha=2.0).agrees


def test_every_rotation_up_to_the_same_length_is_covered_only_where_the_covariance_is_round():
    for seed in range(100):
        mean, _, rotation, _ = make_case(seed)
        assert holds(mean, torch.eye(len(mean)), rotation, 1.0), seed
    assert any(not holds(*make_case(seed, dimensions=3)[:3], 0.95) for seed in range(200))


def test_wider_ood_inputs_are_not_covered():
    mean, covariance, rotation, _ = make_case(0, dimensions=8, scale=0.3)
    result = compare_traces(mean, covariance, rotation, 0.9)
    w = bayes_weight(mean, covariance)
    assert result.holds
    assert expected_trace(0.9 * rotation @ mean, covariance, w) == result.ood > result.id
    assert expected_trace(0.9 * rotation @ mean, 400 * covariance, w) < result.id


def test_quadrature_and_draws_agree():
    scores = []
    for seed in range(20):
        mean, covariance, rotation, c = make_case(seed, scale=0.4)
        w, elsewhere = bayes_weight(mean, covariance, alpha=1 + seed % 3), c / 3 * rotation @ mean
        drawn = monte_carlo_trace(elsewhere, covariance, w, samples=100_000, seed=seed)
        expected = expected_trace(elsewhere, covariance, w)
        assert 0 < drawn.stderr < 0.05 * expected
        scores.append((drawn.value - expected) / drawn.stderr)
    assert max(map(abs, scores)) < 4
    assert 0.4 < np.std(scores) < 1.6  # errors that are too wide would pass the line above


def test_draws_repeat_with_their_seed_and_more_than_are_made_at_once_are_all_counted():
    case = (torch.tensor([0.5]), torch.eye(1), torch.tensor([1.0]))
    small, large = (monte_carlo_trace(*case, samples=samples) for samples in (20_000, 180_000))
    assert large.stderr == pytest.approx(small.stderr / 3, rel=0.05)
    assert abs(large.value - expected_trace(*case)) < 4 * large.stderr
    assert small == monte_carlo_trace(*case, samples=20_000) != monte_carlo_trace(*case, samples=20_000, seed=1)
    assert (small.method, small.matrix, small.loss) == ("monte carlo", "hessian", "energy")
    assert (small.seed, small.rows, small.matvecs) == (0, 20_000, 0)


def test_the_trace_is_that_of_autograd_and_half_of_the_weight_times_that_over_the_logits():
    mean, covariance, _, _ = make_case(5, dimensions=4)
    w = bayes_weight(mean, covariance)
    x = 0.4 * mean + 0.1
    over_features = hessian(lambda y: torch.logsumexp(torch.stack([w @ y, torch.zeros(())]), 0))(x).trace()
    over_logits = hessian(lambda z: torch.logsumexp(z, 0))(torch.stack([w @ x, torch.zeros(())])).trace()
    assert over_features == pytest.approx(float(w @ w * over_logits / 2), rel=1e-12)
    at_x = expected_trace(x, 1e-18 * covariance, w)
    assert at_x == pytest.approx(float(over_features), rel=1e-8)


def test_the_logistic_risk_is_that_of_scipy():
    for seed in range(8):
        mean, covariance, _, c = make_case(seed)
        w = c * mean if seed % 2 else -mean
        score, deviation = float(w @ mean), sqrt(float(w @ covariance @ w))
        expected = by_scipy(lambda a: np.logaddexp(0, -a), score, deviation)
        assert logistic_risk(w, mean, covariance) == pytest.approx(expected, rel=1e-10)
    for score, deviation in ((30.0, 1.0), (30.0, 30.0), (-30.0, 30.0), (0.0, 100.0), (-60.0, 0.1)):
        one = torch.ones(1, dtype=torch.float64)
        expected = by_scipy(lambda a: np.logaddexp(0, -a), score, deviation)
        assert logistic_risk(one, score * one, deviation**2 * one[None]) == pytest.approx(expected, rel=1e-10)
        # over both classes the energy log(1 + e^a) averages to this, and is smallest without a classifier
        both = logistic_risk(one, score * one, one[None]) + logistic_risk(-one, score * one, one[None])
        assert both / 2 > logistic_risk(0 * one, score * one, one[None]) == pytest.approx(log(2), rel=1e-14)


def test_twice_the_bayes_direction_minimises_the_logistic_risk():
    for seed in range(4):
        mean, covariance, _, _ = make_case(seed, dimensions=2 + seed, scale=0.5)
        risk = lambda w, m=mean, s=covariance: logistic_risk(w, m, s)  # noqa: E731
        best = minimize(risk, np.zeros(len(mean)), method="BFGS", options={"gtol": 1e-9}).x
        np.testing.assert_allclose(best, bayes_weight(mean, covariance), rtol=1e-4, atol=1e-4)
        for alpha, got in ((2, bayes_weight(mean, covariance)), (0.3, bayes_weight(mean, covariance, alpha=0.3))):
            torch.testing.assert_close(got, alpha * torch.linalg.solve(covariance, mean))


def test_the_printed_loss_falls_without_end():
    mean, covariance, _, _ = make_case(1, dimensions=8)
    w = bayes_weight(mean, covariance)
    values = [printed_loss(length * w, mean, covariance) for length in (1, 10, 100, 1000)]
    score = float(w @ mean), sqrt(float(w @ covariance @ w))
    assert values[0] == -logistic_risk(-w, mean, covariance)
    assert values[0] == pytest.approx(-by_scipy(lambda a: np.logaddexp(0, a), *score), rel=1e-9)
    assert values[3] / values[2] == pytest.approx(10, rel=0.01)
    assert all(after < 5 * before < 0 for before, after in pairwise(values))


def test_arrays_and_float32_are_computed_in_float64():
    mean, covariance, rotation, c = make_case(4, dimensions=3)
    expected = compare_traces(mean, covariance, rotation, c)
    assert compare_traces(mean.numpy(), covariance.numpy(), rotation.numpy(), c) == expected
    single = compare_traces(mean.float(), covariance.float(), rotation.float(), c)
    assert single.id == pytest.approx(expected.id, rel=1e-5)
    assert bayes_weight(mean.float(), covariance.float()).dtype == torch.float64
    assert mean.dtype == torch.float64


MEAN, ROUND = torch.tensor([1.0, 2.0]), torch.eye(2)


def test_malformed_settings_of_the_theorem_are_refused():
    cases = [
        ({"mean": torch.ones(2, 1)}, "mean .*shape"),
        ({"mean": torch.ones(0)}, "mean .*shape"),
        ({"mean": torch.tensor([1.0, nan])}, "mean .*finite"),
        ({"mean": torch.zeros(2)}, "mean .*not be 0"),
        ({"covariance": torch.eye(3)}, "covariance .*shape"),
        ({"covariance": inf * torch.ones(2, 2)}, "covariance .*finite"),
        ({"covariance": torch.tensor([[2.0, 1.0], [0.9, 2.0]])}, "symmetric"),
        ({"covariance": torch.tensor([[1.0, 2.0], [2.0, 1.0]])}, "positive definite"),
        ({"covariance": torch.zeros(2, 2)}, "positive definite"),
        ({"rotation": torch.eye(3)}, "rotation .*shape"),
        ({"rotation": 2 * torch.eye(2)}, "orthogonal"),
        *(({"c": c}, "c must be") for c in (-0.1, nan, inf)),
        *(({"mean": scale * MEAN.double()}, "finite|deviation") for scale in (1e-200, 1e200)),
    ]
    setting = {"mean": MEAN, "covariance": ROUND, "rotation": ROUND, "c": 1.0}
    for call in (compare_traces, holds):
        check_refused(
            lambda change, call=call: call(**(setting | change)),
            [(change, ValueError, keyword) for change, keyword in cases],
        )
    lengths = [(alpha, ValueError, "alpha") for alpha in (0.0, -1.0, nan, inf)]
    check_refused(lambda alpha: bayes_weight(MEAN, ROUND, alpha=alpha), lengths)
    check_refused(lambda alpha: compare_traces(MEAN, ROUND, ROUND, 1.0, alpha=alpha), lengths)
    assert holds(MEAN, 1e-14 * ROUND, ROUND, 0.5), "a condition needs no quadrature"


def test_malformed_weights_draws_and_deviations_are_refused():
    skew = torch.tensor([[2.0, 1.0], [0.0, 2.0]])
    cases = [
        ((MEAN, ROUND, torch.ones(3)), ValueError, "weight .*shape"),
        ((MEAN, skew, MEAN), ValueError, "symmetric"),
    ]
    for call in (expected_trace, monte_carlo_trace, lambda m, s, w: printed_loss(w, m, s)):
        check_refused(lambda case, call=call: call(*case), cases)
    check_refused(lambda mean: bayes_weight(mean, ROUND), [([1.0, 2.0], TypeError, "mean")])
    check_refused(lambda n: monte_carlo_trace(MEAN, ROUND, MEAN, samples=n), [(1, ValueError, "2 samples")])
    deviations = [(deviation, ValueError, "standard deviation") for deviation in (1.01e5, inf, nan, -1.0)]
    check_refused(lambda deviation: average_curvature(0.0, deviation), deviations)
