"""Eigenvalues of single and mean Hessians against autograd in float64 and sums over pairs of classes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import hessian, vmap
from torch.testing import assert_close

from flatfold.core import eigenvalues
from flatfold.core.eigenvalues import (
    MeanHessian,
    hessian_eigenvalues,
    largest_hessian_eigenvalue,
    logit_hessian_eigenvalues,
)
from flatfold.core.hessian import class_distances, feature_hessian_trace, logit_hessian_trace

SHAPES = [(1, 2, 1), (4, 2, 9), (5, 3, 4), (6, 100, 7), (3, 10, 64), (4, 8, 8), (4, 9, 8)]
ERROR = {torch.float64: 1e-13, torch.float32: 3e-6}  # relative to a sample's largest eigenvalue


def make_case(n, c, d, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    h, w, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((n, d), (c, d), (c,)))
    return scale * h, w / d**0.5, b


def make_probs(n, c, d, seed=0, scale=1.0):
    h, w, b = make_case(n, c, d, seed, scale)
    return (h @ w.T + b).softmax(-1), w


def dense(h, w, b):
    """Slow and obvious: differentiate the energy twice, in float64."""
    return vmap(hessian(lambda x: torch.logsumexp(w @ x + b, 0)))(h)


def descending(matrices):
    return torch.linalg.eigvalsh(matrices).flip(-1)


def error(got, expected):
    """The largest error of a row, relative to its largest eigenvalue."""
    return float(((got.double() - expected).abs().amax(-1) / expected.amax(-1)).max())


def confident_probs(n, c, rest, seed=0):
    """Rows whose likeliest class leaves exactly ``rest`` to all others."""
    g = torch.Generator().manual_seed(seed)
    q = (2 * torch.randn(n, c, generator=g, dtype=torch.float64)).softmax(-1)
    q[torch.arange(n), torch.arange(n) % c] = 0
    probs = rest * q / q.sum(-1, keepdim=True)
    probs[torch.arange(n), torch.arange(n) % c] = 1 - rest
    return probs


def exact_confident_hessian(probs, w):
    """Slow, and no difference of large numbers: half the sum of p_i p_j (w_i - w_j)(w_i - w_j)' over all pairs."""
    differences = w[:, None] - w[None]
    return 0.5 * torch.einsum("ni,nj,ijd,ije->nde", probs, probs, differences, differences)


@pytest.mark.parametrize(("n", "c", "d"), SHAPES)
def test_they_are_those_of_the_dense_hessian(n, c, d):
    h, w, b = make_case(n, c, d)
    probs, expected = (h @ w.T + b).softmax(-1), descending(dense(h, w, b))
    for dtype, allowed in ERROR.items():
        got = hessian_eigenvalues(probs.to(dtype), w.to(dtype))
        assert got.shape == (n, min(c, d))
        assert got.dtype == dtype
        assert error(got, expected[:, : min(c, d)]) < allowed, dtype
    assert (expected[:, min(c, d) :].abs() <= 1e-14).all()  # what is not returned is zero


def test_k_takes_the_first_of_all():
    for c, d in ((3, 4), (12, 5)):
        probs, w = make_probs(5, c, d)
        whole, logit = hessian_eigenvalues(probs, w), logit_hessian_eigenvalues(probs)
        assert (whole.diff() <= 0).all()
        for k in (1, 2, 1000, None):
            assert torch.equal(hessian_eigenvalues(probs, w, k), whole[:, :k]), (c, d, k)
            assert torch.equal(logit_hessian_eigenvalues(probs, k), logit[:, :k]), (c, k)


@pytest.mark.parametrize("rest", [1e-4, 1e-10, 1e-20, 1e-30])
def test_a_confident_sample_keeps_its_digits(rest):
    for c, d in ((2, 5), (10, 16), (12, 4)):
        probs = confident_probs(8, c, rest)
        _, w, _ = make_case(1, c, d)
        expected = descending(exact_confident_hessian(probs, w))[:, : min(c, d)]
        for dtype, allowed in ERROR.items():
            p, v = probs.to(dtype), w.to(dtype)
            assert error(hessian_eigenvalues(p, v), expected) < allowed, (c, d, dtype)
            assert error(largest_hessian_eigenvalue(p, v)[:, None], expected[:, :1]) < allowed, (c, d, dtype)


def test_classes_that_nearly_coincide_keep_most_digits_even_with_a_large_common_offset():
    for c, d in ((10, 16), (12, 4)):
        _, w = make_probs(6, c, d)
        w[1] = w[0] + 1e-4 * w[2]
        probs = confident_probs(6, 2, 1e-6)
        probs = torch.cat([probs, torch.full((6, c - 2), 1e-16, dtype=torch.float64)], dim=1)
        expected = descending(exact_confident_hessian(probs, w))[:, :1]
        assert error(hessian_eigenvalues(probs, w, 1), expected) < 1e-7, (c, d)
        shifted = w + 1000.0
        assert error(hessian_eigenvalues(probs, shifted, 1), expected) < 1e-4, (c, d)  # 1e-13 of 1000 is 1e-9 of 1e-4


@given(
    n=st.integers(1, 5), c=st.integers(2, 9), d=st.integers(1, 9), seed=st.integers(0, 2**31), scale=st.floats(0, 50)
)
def test_they_sum_to_the_trace_and_are_never_negative(n, c, d, seed, scale):
    probs, w = make_probs(n, c, d, seed, scale)
    values = hessian_eigenvalues(probs, w)
    assert (values >= 0).all()
    assert_close(values.sum(-1), feature_hessian_trace(probs, class_distances(w)), rtol=1e-9, atol=0)
    logit = logit_hessian_eigenvalues(probs)
    assert (logit >= 0).all()
    assert_close(logit.sum(-1), logit_hessian_trace(probs), rtol=1e-9, atol=0)


def test_a_row_alone_is_as_in_a_batch_and_chunks_do_not_show(monkeypatch):
    for c, d in ((7, 9), (9, 5)):
        probs, w = make_probs(11, c, d)
        before = probs.clone(), w.clone()
        whole = hessian_eigenvalues(probs, w), logit_hessian_eigenvalues(probs)
        rows = probs.split(1)
        alone = (
            torch.cat([f(row, *more) for row in rows])
            for f, more in ((hessian_eigenvalues, [w]), (logit_hessian_eigenvalues, []))
        )
        monkeypatch.setattr(eigenvalues, "NEAR", 3 * c * min(c, d))
        parts = hessian_eigenvalues(probs, w), logit_hessian_eigenvalues(probs)
        monkeypatch.undo()
        for expected, one, other in zip(whole, alone, parts, strict=True):
            assert error(one, expected) < 1e-13, (c, d)
            assert error(other, expected) < 1e-13, (c, d)
        assert torch.equal(probs, before[0])
        assert torch.equal(w, before[1])


def test_certainty_gives_zeros_and_no_nan():
    for c, d in ((5, 6), (9, 4)):
        _, w = make_probs(1, c, d)
        probs = torch.eye(c, dtype=torch.float64)
        assert torch.equal(hessian_eigenvalues(probs, w), torch.zeros(c, min(c, d), dtype=torch.float64))
        assert torch.equal(largest_hessian_eigenvalue(probs, w), torch.zeros(c, dtype=torch.float64))
        assert torch.equal(logit_hessian_eigenvalues(probs), torch.zeros(c, c, dtype=torch.float64))


# --- the largest eigenvalue of large heads


@pytest.mark.parametrize(("c", "d"), [(300, 320), (270, 257), (700, 260)])
def test_iteration_finds_the_largest_eigenvalue(c, d, monkeypatch):
    """700 > 2 * 260 multiplies by the weights twice, the others by the Gram matrix."""
    for scale in (0.0, 1.0, 100.0):
        probs, w = make_probs(4, c, d, scale=scale)
        expected = hessian_eigenvalues(probs, w, 1)[:, 0]
        got = largest_hessian_eigenvalue(probs, w)
        assert torch.allclose(got, expected, rtol=1e-5, atol=0), scale
    alone = torch.cat([largest_hessian_eigenvalue(row, w) for row in probs.split(1)])
    assert_close(alone, got, rtol=1e-12, atol=0)
    monkeypatch.setattr(eigenvalues, "NUMBERS", 2 * 4 * eigenvalues.STEPS * c)
    assert_close(largest_hessian_eigenvalue(probs, w), got, rtol=1e-12, atol=0)


def test_iteration_keeps_the_digits_of_a_confident_sample_in_float32():
    for rest in (1e-4, 1e-10, 1e-30):
        probs, (_, w, _) = confident_probs(4, 300, rest), make_case(1, 300, 280)
        expected = hessian_eigenvalues(probs, w, 1)[:, 0]
        got = largest_hessian_eigenvalue(probs.float(), w.float())
        assert got.dtype == torch.float32
        assert torch.allclose(got.double(), expected, rtol=1e-5, atol=0), rest


def test_iteration_goes_on_until_the_residual_is_small():
    """A spectrum without gaps at its end: twelve steps are not enough, and rows that are settled earlier leave."""
    flat, w = make_probs(1, 400, 800, scale=0.0)
    sure, _ = make_probs(2, 400, 800, scale=30.0)
    probs = torch.cat([sure, torch.full_like(flat, 1 / 400)])
    assert_close(largest_hessian_eigenvalue(probs, w), hessian_eigenvalues(probs, w, 1)[:, 0], rtol=1e-5, atol=0)


def test_iteration_ends_where_few_classes_have_any_mass():
    """The space is exhausted after two steps: no division by zero, no noise taken for an eigenvalue."""
    _, w = make_probs(1, 300, 280)
    probs = torch.zeros(4, 300, dtype=torch.float64)
    probs[0, 5], probs[1, [5, 6]], probs[2, [5, 6, 7]] = 1.0, 0.5, 1 / 3
    probs[3] = 1 / 300
    assert_close(largest_hessian_eigenvalue(probs, w), hessian_eigenvalues(probs, w, 1)[:, 0], rtol=1e-9, atol=1e-300)
    equal = torch.ones(300, 280, dtype=torch.float64)
    assert torch.equal(largest_hessian_eigenvalue(probs, equal), torch.zeros(4, dtype=torch.float64))


# --- logits


def test_logit_eigenvalues_are_those_of_the_matrix():
    for c in (2, 3, 10, 60):
        h, w, b = make_case(7, c, 4)
        logits = h @ w.T + b
        probs = logits.softmax(-1)
        expected = descending(vmap(hessian(lambda z: torch.logsumexp(z, 0)))(logits))
        got = logit_hessian_eigenvalues(probs)
        assert got.shape == (7, c)
        assert error(got, expected) < 1e-13, c
        assert (got[:, -1] == 0).all(), c
        assert_close(logit_hessian_trace(probs), 1 - probs.square().sum(-1), rtol=1e-13, atol=0)
    got = logit_hessian_eigenvalues(torch.full((1, 4), 0.25))
    assert_close(got, torch.tensor([[0.25, 0.25, 0.25, 0.0]]), rtol=0, atol=0)


def test_every_logit_eigenvalue_is_accurate_relative_to_itself():
    """Probabilities 1e-10 apart, where a solver for the matrix would lose all but the largest."""
    steep = torch.logspace(0, -40, 5, dtype=torch.float64)
    for rest in (0.3, 1e-10, 1e-30):
        p = torch.cat([torch.tensor([1 - rest], dtype=torch.float64), rest * steep / steep.sum()])[None]
        got = logit_hessian_eigenvalues(p)[0, :-1]
        # For much larger p_i the summand is 1 and for much smaller ones 0: j = p_{j+1} / (root - p_{j+1}).
        j = torch.arange(2, 6, dtype=torch.float64)
        assert torch.allclose(got[1:], p[0, 2:] * (1 + 1 / j), rtol=1e-8, atol=0), rest
        assert float(got[0]) == pytest.approx(2 * rest * (1 - rest), rel=1e-8), rest  # two classes in effect


def test_confident_logit_eigenvalues_keep_their_digits():
    probs = confident_probs(6, 10, 1e-10)
    expected = descending(exact_confident_hessian(probs, torch.eye(10, dtype=torch.float64)))
    for dtype, allowed in ERROR.items():
        got = logit_hessian_eigenvalues(probs.to(dtype))
        assert got.dtype == dtype
        assert error(got, expected) < allowed, dtype
        assert_close(logit_hessian_trace(probs.to(dtype)).double(), expected.sum(-1), rtol=allowed, atol=0)


# --- the mean of a data set


def mean_of(*batches):
    mean = MeanHessian(batches[0].shape[1])
    for batch in batches:
        mean.add(batch)
    return mean


@pytest.mark.parametrize(("n", "c", "d"), SHAPES)
def test_the_mean_is_that_of_the_dense_hessians(n, c, d):
    h, w, b = make_case(n, c, d)
    probs = (h @ w.T + b).softmax(-1)
    mean, whole = mean_of(probs), dense(h, w, b).mean(0)
    got = mean.eigenvalues(w)
    assert got.shape == (min(c, d),)
    assert error(got[None], descending(whole)[None, : min(c, d)]) < 1e-13
    assert float(mean.eigenvalues(w).sum()) == pytest.approx(float(whole.trace()), rel=1e-12)
    logits = (probs.diag_embed() - probs[:, :, None] * probs[:, None]).mean(0)
    assert error(mean.eigenvalues()[None], descending(logits)[None]) < 1e-13
    assert float(mean.eigenvalues().sum()) == pytest.approx(float(logits.trace()), rel=1e-12)


def test_the_last_of_as_many_eigenvalues_as_classes_is_exactly_zero():
    for seed in range(10):  # rounding falls on either side of zero
        for d in (6, 20):
            probs, w = make_probs(30, 6, d, seed)
            mean = mean_of(probs)
            assert mean.eigenvalues(w)[-1] == mean.eigenvalues()[-1] == 0, (seed, d)
            assert mean.eigenvalues(w)[-2] > 0, (seed, d)
            assert mean.eigenvalues(w[:, :5])[-1] > 0, (seed, d)  # with fewer features than classes none has to be


def test_any_batching_gives_the_same_mean():
    probs, w = make_probs(40, 10, 16, scale=4.0)
    whole = mean_of(probs)
    for sizes in ([1] * 40, [39, 1], [7, 11, 22]):
        mean = mean_of(*probs.split(sizes))
        assert mean.rows == whole.rows == 40
        assert error(mean.eigenvalues(w)[None], whole.eigenvalues(w)[None]) < 1e-12
        assert float(mean.eigenvalues(w).sum()) == pytest.approx(float(whole.eigenvalues(w).sum()), rel=1e-12)


def test_rounding_makes_no_eigenvalue_of_the_mean_negative():
    """Three groups of classes that are never confused have three eigenvalues of zero, up to rounding."""
    for seed in range(10):
        mean = MeanHessian(12)
        for group in range(3):
            probs = torch.zeros(20, 12, dtype=torch.float64)
            probs[:, 4 * group : 4 * group + 4] = make_probs(20, 4, 3, seed + group)[0]
            mean.add(probs)
        for values in (mean.eigenvalues(), mean.eigenvalues(make_probs(1, 12, 20, seed)[1])):
            assert (values >= 0).all(), seed
            assert (values[-3:] < 1e-15).all(), seed
            assert values[-4] > 1e-6, seed


def test_confident_and_float32_data_keep_their_digits_in_the_mean():
    probs, (_, w, _) = confident_probs(20, 10, 1e-20), make_case(1, 10, 16)
    mean, expected = mean_of(probs), exact_confident_hessian(probs, w).mean(0)
    assert error(mean.eigenvalues(w)[None, :], descending(expected)[None, :10]) < 1e-13
    assert float(mean.eigenvalues(w).sum()) == pytest.approx(float(expected.trace()), rel=1e-12)
    probs, w = make_probs(3, 4, 5)
    often = mean_of(*[probs.float()] * 200)  # added up in float64
    assert_close(often.eigenvalues(w), mean_of(probs.float().double()).eigenvalues(w), rtol=1e-13, atol=1e-16)
