"""`core.eigenvalues` against dense Hessians from autograd in float64, or from a sum over pairs of classes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import hessian, vmap
from torch.testing import assert_close

from flatfold.core import eigenvalues
from flatfold.core.eigenvalues import (
    hessian_eigenvalues,
    largest_hessian_eigenvalue,
    logit_hessian_eigenvalues,
)
from flatfold.core.hessian import class_distances, feature_hessian_trace, logit_hessian_trace
from flatfold.core.mean_hessian import MeanHessian

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


@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize(("n", "c", "d"), SHAPES)
def test_they_are_those_of_the_dense_hessian(n, c, d, dtype):
    h, w, b = make_case(n, c, d)
    expected = descending(dense(h, w, b))
    got = hessian_eigenvalues((h @ w.T + b).softmax(-1).to(dtype), w.to(dtype))
    assert got.shape == (n, min(c, d))
    assert got.dtype == dtype
    assert error(got, expected[:, : min(c, d)]) < ERROR[dtype]
    assert (expected[:, min(c, d) :].abs() <= 1e-14).all()  # what is not returned is zero


@pytest.mark.parametrize(("c", "d"), [(3, 4), (12, 5)])
@pytest.mark.parametrize(("k", "columns"), [(1, 1), (2, 2), (1000, None), (None, None)])
def test_k_takes_the_first_of_all(c, d, k, columns):
    probs, w = make_probs(5, c, d)
    whole = hessian_eigenvalues(probs, w)
    got = hessian_eigenvalues(probs, w, k)
    assert got.shape == (5, columns or min(c, d))
    assert torch.equal(got, whole[:, :columns])
    assert (whole.diff() <= 0).all()


@pytest.mark.parametrize("rest", [1e-4, 1e-10, 1e-20, 1e-30])
@pytest.mark.parametrize(("c", "d"), [(2, 5), (10, 16), (12, 4)])
@pytest.mark.parametrize("dtype", ERROR, ids=str)
def test_a_confident_sample_keeps_its_digits(c, d, rest, dtype):
    probs = confident_probs(8, c, rest)
    _, w, _ = make_case(1, c, d)
    expected = descending(exact_confident_hessian(probs, w))[:, : min(c, d)]
    assert error(hessian_eigenvalues(probs.to(dtype), w.to(dtype)), expected) < ERROR[dtype]
    assert error(largest_hessian_eigenvalue(probs.to(dtype), w.to(dtype))[:, None], expected[:, :1]) < ERROR[dtype]


def test_the_difference_in_the_middle_would_not_keep_them():
    """The reason for the split: the textbook matrix in float32 has no digit left."""
    probs, (_, w, _) = confident_probs(8, 10, 1e-10), make_case(1, 10, 16)
    expected = descending(exact_confident_hessian(probs, w))
    p = probs.float()
    textbook = w.float().T @ (p.diag_embed() - p[:, :, None] * p[:, None]) @ w.float()
    assert error(descending(textbook)[:, :1], expected[:, :1]) > 0.1


@pytest.mark.parametrize(("c", "d"), [(10, 16), (12, 4)])
def test_classes_that_nearly_coincide_keep_most_digits_even_with_a_large_common_offset(c, d):
    _, w = make_probs(6, c, d)
    w[1] = w[0] + 1e-4 * w[2]
    probs = confident_probs(6, 2, 1e-6)
    probs = torch.cat([probs, torch.full((6, c - 2), 1e-16, dtype=torch.float64)], dim=1)
    expected = descending(exact_confident_hessian(probs, w))[:, :1]
    assert error(hessian_eigenvalues(probs, w, 1), expected) < 1e-7
    shifted = w + 1000.0
    assert error(hessian_eigenvalues(probs, shifted, 1), expected) < 1e-4  # 1e-13 of 1000 is 1e-9 of 1e-4


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


@pytest.mark.parametrize(("c", "d"), [(7, 9), (9, 5)])
def test_a_row_alone_is_as_in_a_batch_and_chunks_do_not_show(c, d, monkeypatch):
    probs, w = make_probs(11, c, d)
    whole = [hessian_eigenvalues(probs, w), logit_hessian_eigenvalues(probs)]
    alone = [torch.cat([f(*a) for a in rows]) for f, rows in _alone(probs, w)]
    monkeypatch.setattr(eigenvalues, "NEAR", 3 * c * min(c, d))
    parts = [hessian_eigenvalues(probs, w), logit_hessian_eigenvalues(probs)]
    for got in (alone, parts):
        for one, other in zip(got, whole, strict=True):
            assert error(one, other) < 1e-13


def _alone(probs, w):
    rows = probs.split(1)
    return (hessian_eigenvalues, [(row, w) for row in rows]), (logit_hessian_eigenvalues, [(row,) for row in rows])


def test_memory_holds_only_as_many_matrices_as_allowed(monkeypatch):
    probs, w = make_probs(11, 7, 9)
    monkeypatch.setattr(eigenvalues, "NEAR", 3 * 7 * 7)
    sizes = []
    built = eigenvalues._by_classes
    monkeypatch.setattr(eigenvalues, "_by_classes", lambda *a: sizes.append(len(a[1])) or built(*a))
    hessian_eigenvalues(probs, w)
    assert sizes == [3, 3, 3, 2]


@pytest.mark.parametrize(("c", "d"), [(5, 6), (9, 4)])
def test_certainty_gives_zeros_and_no_nan(c, d):
    _, w = make_probs(1, c, d)
    probs = torch.eye(c, dtype=torch.float64)
    assert torch.equal(hessian_eigenvalues(probs, w), torch.zeros(c, min(c, d), dtype=torch.float64))
    assert torch.equal(largest_hessian_eigenvalue(probs, w), torch.zeros(c, dtype=torch.float64))
    assert torch.equal(logit_hessian_eigenvalues(probs), torch.zeros(c, c, dtype=torch.float64))


def test_nothing_given_is_changed():
    probs, w = make_probs(4, 5, 6)
    before = probs.clone(), w.clone()
    hessian_eigenvalues(probs, w), largest_hessian_eigenvalue(probs, w), logit_hessian_eigenvalues(probs)
    MeanHessian(5).add(probs)
    assert torch.equal(probs, before[0])
    assert torch.equal(w, before[1])


# --- the largest eigenvalue of large heads


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 100.0], ids="spread {}".format)
@pytest.mark.parametrize(("c", "d"), [(300, 320), (270, 257), (700, 260)])
def test_iteration_finds_the_largest_eigenvalue(c, d, scale):
    """Few features to many classes: 700 > 2 * 260 multiplies by the weights twice, the others by the Gram matrix."""
    probs, w = make_probs(6, c, d, scale=scale)
    expected = hessian_eigenvalues(probs, w, 1)[:, 0]
    assert_close(largest_hessian_eigenvalue(probs, w), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("rest", [1e-4, 1e-10, 1e-30])
def test_iteration_keeps_the_digits_of_a_confident_sample_in_float32(rest):
    probs, (_, w, _) = confident_probs(8, 300, rest), make_case(1, 300, 280)
    expected = hessian_eigenvalues(probs, w, 1)[:, 0]
    got = largest_hessian_eigenvalue(probs.float(), w.float())
    assert got.dtype == torch.float32
    assert_close(got.double(), expected, rtol=1e-5, atol=0)


def test_iteration_is_for_large_heads_only(monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(eigenvalues, "_largest", refuse)
    for c, d in ((256, 300), (300, 256), (3, 4)):
        largest_hessian_eigenvalue(*make_probs(1, c, d))
    with pytest.raises(AssertionError):
        largest_hessian_eigenvalue(*make_probs(1, 257, 257))


def test_iteration_goes_on_until_the_residual_is_small(monkeypatch):
    """A spectrum without gaps at its end: twelve steps are not enough, and what is settled earlier leaves."""
    flat, w = make_probs(1, 400, 800, scale=0.0)
    sure, _ = make_probs(2, 400, 800, scale=30.0)
    flat = torch.full_like(flat, 1 / 400)
    sizes = []
    extend = eigenvalues._Krylov.extend
    monkeypatch.setattr(eigenvalues._Krylov, "extend", lambda self: sizes.append(len(self.vector)) or extend(self))
    probs = torch.cat([sure, flat])
    got = largest_hessian_eigenvalue(probs, w)
    assert sizes[0] == 3
    assert sizes[-1] == 1
    assert len(sizes) > 2
    assert_close(got, hessian_eigenvalues(probs, w, 1)[:, 0], rtol=1e-5, atol=0)


def test_iteration_gives_a_row_the_same_alone_as_in_a_batch(monkeypatch):
    probs, w = make_probs(5, 300, 280, scale=3.0)
    whole = largest_hessian_eigenvalue(probs, w)
    assert_close(torch.cat([largest_hessian_eigenvalue(row, w) for row in probs.split(1)]), whole, rtol=1e-12, atol=0)
    monkeypatch.setattr(eigenvalues, "NUMBERS", 2 * 4 * eigenvalues.STEPS * 300)
    assert_close(largest_hessian_eigenvalue(probs, w), whole, rtol=1e-12, atol=0)


def test_iteration_multiplies_by_what_is_smaller_and_holds_only_as_many_rows_as_allowed(monkeypatch):
    used = []
    made = eigenvalues._Products
    monkeypatch.setattr(
        eigenvalues, "_Products", lambda w, gram, *a: used.append((gram, len(a[0]))) or made(w, gram, *a)
    )
    monkeypatch.setattr(eigenvalues, "NUMBERS", 2 * 4 * eigenvalues.STEPS * 520)
    largest_hessian_eigenvalue(*make_probs(5, 520, 260, scale=10.0))
    assert [rows for _, rows in used] == [2, 2, 1]
    assert all(gram.shape == (520, 520) for gram, _ in used)
    used.clear()
    largest_hessian_eigenvalue(*make_probs(1, 521, 260, scale=10.0))
    assert [gram for gram, _ in used] == [None]


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


@pytest.mark.parametrize("c", [2, 3, 10, 60])
def test_logit_eigenvalues_are_those_of_the_matrix(c):
    h, w, b = make_case(7, c, 4)
    logits = h @ w.T + b
    expected = descending(vmap(hessian(lambda z: torch.logsumexp(z, 0)))(logits))
    got = logit_hessian_eigenvalues(logits.softmax(-1))
    assert got.shape == (7, c)
    assert error(got, expected) < 1e-13
    assert (got[:, -1] == 0).all()
    assert torch.equal(logit_hessian_eigenvalues(logits.softmax(-1), 2), got[:, :2])
    assert torch.equal(logit_hessian_eigenvalues(logits.softmax(-1), c + 3), got)


def test_logit_eigenvalues_are_those_of_features_that_are_logits():
    probs, _ = make_probs(5, 9, 4)
    identity = torch.eye(9, dtype=torch.float64)
    assert error(logit_hessian_eigenvalues(probs), hessian_eigenvalues(probs, identity)) < 1e-13


@pytest.mark.parametrize("rest", [0.3, 1e-10, 1e-30])
def test_every_logit_eigenvalue_is_accurate_relative_to_itself(rest):
    """Probabilities 1e-10 apart, where a solver for the matrix would lose all but the largest."""
    steep = torch.logspace(0, -40, 5, dtype=torch.float64)
    p = torch.cat([torch.tensor([1 - rest], dtype=torch.float64), rest * steep / steep.sum()])[None]
    got = logit_hessian_eigenvalues(p)[0, :-1]
    # For much larger p_i the summand is 1 and for much smaller ones 0: j = p_{j+1} / (root - p_{j+1}).
    j = torch.arange(2, 6, dtype=torch.float64)
    assert_close(got[1:], p[0, 2:] * (1 + 1 / j), rtol=1e-8, atol=0)
    # two classes in effect: 2 r (1 - r)
    assert_close(got[0], torch.tensor(2 * rest * (1 - rest), dtype=torch.float64), rtol=1e-8, atol=0)


def test_equal_probabilities_are_eigenvalues():
    got = logit_hessian_eigenvalues(torch.full((1, 4), 0.25))
    assert_close(got, torch.tensor([[0.25, 0.25, 0.25, 0.0]]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ERROR, ids=str)
def test_confident_logit_eigenvalues_keep_their_digits(dtype):
    probs = confident_probs(6, 10, 1e-10)
    identity = torch.eye(10, dtype=torch.float64)
    expected = descending(exact_confident_hessian(probs, identity))
    got = logit_hessian_eigenvalues(probs.to(dtype))
    assert got.dtype == dtype
    assert error(got, expected) < ERROR[dtype]
    assert_close(logit_hessian_trace(probs.to(dtype)).double(), expected.sum(-1), rtol=ERROR[dtype], atol=0)


def test_the_logit_trace_is_that_of_the_matrix():
    probs, _ = make_probs(6, 7, 3)
    assert_close(logit_hessian_trace(probs), 1 - probs.square().sum(-1), rtol=1e-13, atol=0)


# --- the mean of a data set


@pytest.mark.parametrize(("n", "c", "d"), SHAPES)
def test_the_mean_is_that_of_the_dense_hessians(n, c, d):
    h, w, b = make_case(n, c, d)
    probs = (h @ w.T + b).softmax(-1)
    mean = MeanHessian(c)
    mean.add(probs)
    whole = dense(h, w, b).mean(0)
    got = mean.eigenvalues(w)
    assert got.shape == (min(c, d),)
    assert error(got[None], descending(whole)[None, : min(c, d)]) < 1e-13
    assert mean.trace(w) == pytest.approx(float(whole.trace()), rel=1e-12)
    logits = (probs.diag_embed() - probs[:, :, None] * probs[:, None]).mean(0)
    assert error(mean.eigenvalues()[None], descending(logits)[None]) < 1e-13
    assert mean.trace() == pytest.approx(float(logits.trace()), rel=1e-12)


@pytest.mark.parametrize("seed", range(10))  # rounding falls on either side of zero
@pytest.mark.parametrize(("c", "d"), [(6, 6), (6, 20)])
def test_the_last_of_as_many_eigenvalues_as_classes_is_exactly_zero(c, d, seed):
    probs, w = make_probs(30, c, d, seed)
    mean = MeanHessian(c)
    mean.add(probs)
    assert mean.eigenvalues(w)[-1] == 0
    assert mean.eigenvalues(w)[-2] > 0
    assert mean.eigenvalues()[-1] == 0
    assert mean.eigenvalues(w[:, : c - 1])[-1] > 0  # with fewer features than classes none has to be


@pytest.mark.parametrize("sizes", [[1] * 40, [40], [39, 1], [7, 11, 22]], ids=str)
def test_any_batching_gives_the_same_mean(sizes):
    probs, w = make_probs(40, 10, 16, scale=4.0)
    whole, parts = MeanHessian(10), MeanHessian(10)
    whole.add(probs)
    for batch in probs.split(sizes):
        parts.add(batch)
    assert parts.rows == whole.rows == 40
    assert error(parts.eigenvalues(w)[None], whole.eigenvalues(w)[None]) < 1e-12
    assert parts.trace(w) == pytest.approx(whole.trace(w), rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_rounding_makes_no_eigenvalue_of_the_mean_negative(seed):
    """Three groups of classes that are never confused have three eigenvalues of zero, up to rounding."""
    mean = MeanHessian(12)
    for group in range(3):
        probs = torch.zeros(20, 12, dtype=torch.float64)
        probs[:, 4 * group : 4 * group + 4] = make_probs(20, 4, 3, seed + group)[0]
        mean.add(probs)
    for values in (mean.eigenvalues(), mean.eigenvalues(make_probs(1, 12, 20, seed)[1])):
        assert (values >= 0).all()
        assert (values[-3:] < 1e-15).all()
        assert values[-4] > 1e-6


def test_merged_means_have_seen_what_both_have():
    probs, w = make_probs(40, 10, 16)
    whole, one, other = MeanHessian(10), MeanHessian(10), MeanHessian(10)
    whole.add(probs)
    one.add(probs[:13])
    other.add(probs[13:])
    one.merge(other)
    assert (one.rows, other.rows) == (40, 27)
    assert error(one.eigenvalues(w)[None], whole.eigenvalues(w)[None]) < 1e-12


def test_confident_data_keeps_its_digits_in_the_mean():
    probs, (_, w, _) = confident_probs(20, 10, 1e-20), make_case(1, 10, 16)
    mean = MeanHessian(10)
    mean.add(probs)
    expected = exact_confident_hessian(probs, w).mean(0)
    assert error(mean.eigenvalues(w)[None, :], descending(expected)[None, :10]) < 1e-13
    assert mean.trace(w) == pytest.approx(float(expected.trace()), rel=1e-12)


def test_float32_probabilities_are_added_up_in_float64():
    probs, w = make_probs(3, 4, 5)
    probs = probs.float()
    mean = MeanHessian(4)
    for _ in range(200):
        mean.add(probs)
    expected = MeanHessian(4)
    expected.add(probs.double())
    assert mean.trace(w) == pytest.approx(expected.trace(w), rel=1e-13)


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"needs at least one sample, got none\. Call add\(probs\) first"):
        MeanHessian(3).trace()
    with pytest.raises(ValueError, match="needs at least one sample"):
        MeanHessian(3).eigenvalues()


def test_another_number_of_classes_is_refused():
    with pytest.raises(
        ValueError, match=r"over 3 classes cannot take in 4 classes\. Do all come from the same network"
    ):
        MeanHessian(3).add(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="over 3 classes cannot take in 1 classes"):
        MeanHessian(3).merge(MeanHessian(1))
