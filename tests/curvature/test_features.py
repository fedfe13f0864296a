"""Curvature over features and logits against autograd in float64."""

import numpy as np
import pytest
import torch
from torch.func import hessian, vmap
from torch.testing import assert_close

from flatfold.curvature import (
    feature_eigenvalues,
    feature_lambda_max,
    feature_shares,
    feature_spectrum,
    feature_trace,
    logit_eigenvalues,
    logit_lambda_max,
    logit_spectrum,
    logit_trace,
)
from tests.curvature.matrices import check_refused

SHAPES = [(1, 2, 1), (30, 3, 4), (6, 40, 7), (3, 10, 64), (9, 8, 8), (9, 9, 8)]
PER_INPUT = [feature_trace, feature_eigenvalues, feature_lambda_max]
OF_LOGITS = [logit_trace, logit_eigenvalues, logit_lambda_max]
RTOL = {torch.float64: 1e-10, torch.float32: 5e-6}


def make_case(n, c, d, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    h, w, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((n, d), (c, d), (c,)))
    return scale * h, w / d**0.5, b


def in_features(h, w, b):
    """Slow and obvious: differentiate the energy twice."""
    return vmap(hessian(lambda x: torch.logsumexp(w @ x + b, 0)))(h)


def in_logits(logits):
    return vmap(hessian(lambda z: torch.logsumexp(z, 0)))(logits)


def descending(matrices):
    return torch.linalg.eigvalsh(matrices).flip(-1)


def traces(matrices):
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def confident_logits(n, c):
    """float32 logits whose other classes share a mass of about 1e-10."""
    g = torch.Generator().manual_seed(c)
    logits = torch.randn(n, c, generator=g)
    logits[torch.arange(n), torch.arange(n) % c] += 23 + torch.log(torch.tensor(float(c)))
    return logits


@pytest.mark.parametrize(("c", "d"), [(5, 8), (12, 4)])
def test_the_shares_of_inputs_have_the_error_of_a_bootstrap(c, d):
    h, w, b = make_case(150, c, d)
    each, logits = in_features(h, w, b), h @ w.T + b
    top, square = feature_shares(w, logits.split(64))
    values, vectors = torch.linalg.eigh(each.mean(0))
    assert_close(top, (each @ vectors[:, -1]) @ vectors[:, -1])
    assert_close(square, (each * each.mean(0)).sum((1, 2)))
    assert_close(square.mean(), values.square().sum())
    g = torch.Generator().manual_seed(0)
    drawn = torch.stack([each[torch.randint(150, (150,), generator=g)].mean(0) for _ in range(300)])
    redrawn = torch.linalg.eigvalsh(drawn)
    for shares, factor, found in ((top, 1, redrawn[:, -1]), (square, 2, redrawn.square().sum(-1))):
        assert float(factor * shares.std() / 150**0.5) == pytest.approx(float(found.std()), rel=0.15)


@pytest.mark.parametrize(("n", "c", "d"), SHAPES)
def test_feature_statistics_are_those_of_the_hessian(n, c, d):
    h, w, b = make_case(n, c, d)
    expected = in_features(h, w, b)
    values = descending(expected)
    for dtype, rtol in RTOL.items():
        logits = (h @ w.T + b).to(dtype).requires_grad_()
        got = [call(w.to(dtype), logits) for call in PER_INPUT]
        assert all(x.dtype == dtype for x in got)
        assert not any(x.requires_grad for x in got)
        assert_close(got[0].double(), traces(expected), rtol=rtol, atol=0)
        assert_close(got[1].double(), values[:, : min(c, d)], rtol=0, atol=rtol * float(values.max()))
        assert_close(got[2].double(), values[:, 0], rtol=rtol, atol=0)


@pytest.mark.parametrize("c", [2, 3, 20])
def test_logit_statistics_are_those_of_the_hessian(c):
    for dtype, rtol in RTOL.items():
        logits = (make_case(9, c, c)[0]).to(dtype)
        expected = in_logits(logits.double())
        values = descending(expected)
        got = [call(logits) for call in OF_LOGITS]
        assert all(x.dtype == dtype for x in got)
        assert_close(got[0].double(), traces(expected), rtol=rtol, atol=0)
        assert_close(got[1].double(), values, rtol=0, atol=rtol)
        assert_close(got[2].double(), values[:, 0], rtol=rtol, atol=0)


@pytest.mark.parametrize(("c", "d"), [(10, 64), (30, 4)])
def test_confident_inputs_keep_their_digits_in_float32(c, d):
    logits, w = confident_logits(12, c), make_case(1, c, d)[1].float()
    p, exact = logits.double().softmax(-1), w.double()
    assert (p.max(-1).values > 1 - 1e-8).all()
    differences = exact[:, None] - exact[None]
    expected = 0.5 * torch.einsum("ni,nj,ijd,ije->nde", p, p, differences, differences)
    assert_close(feature_trace(w, logits).double(), traces(expected), rtol=1e-6, atol=0)
    assert_close(feature_lambda_max(w, logits).double(), descending(expected)[:, 0], rtol=1e-5, atol=0)
    assert_close(logit_trace(logits).double(), logit_trace(logits.double()), rtol=1e-6, atol=0)
    assert_close(logit_lambda_max(logits).double(), logit_lambda_max(logits.double()), rtol=1e-6, atol=0)


def test_float32_logits_far_apart_lose_nothing_in_the_softmax():
    """The difference of two logits 60 apart is rounded by 2e-6 in float32, and so would be all that follows."""
    logits = confident_logits(50, 10) + torch.eye(10).repeat(5, 1) * 37
    w = make_case(1, 10, 20)[1]
    assert_close(logit_lambda_max(logits).double(), logit_lambda_max(logits.double()), rtol=3e-7, atol=0)
    assert_close(logit_trace(logits).double(), logit_trace(logits.double()), rtol=3e-7, atol=0)
    assert_close(feature_trace(w, logits).double(), feature_trace(w, logits.double()), rtol=3e-7, atol=0)


def test_labels_do_not_matter():
    h, w, b = make_case(1, 5, 7)
    for label in range(5):
        cross_entropy = hessian(lambda x, y=label: torch.logsumexp(w @ x + b, 0) - (w @ x + b)[y])(h[0])
        assert_close(feature_trace(w, h @ w.T + b)[0], cross_entropy.trace(), rtol=1e-10, atol=0)


def test_k_takes_the_largest_and_one_input_at_a_time_gives_the_same():
    """Alone an input takes the centred form of the trace, in a batch of c or more the distances."""
    for c, d in ((6, 9), (9, 6), (20, 3)):
        h, w, b = make_case(25, c, d)
        logits = h @ w.T + b
        for statistic in PER_INPUT:
            alone = torch.cat([statistic(w, row) for row in logits.split(1)])
            assert_close(alone, statistic(w, logits), rtol=1e-12, atol=1e-14)
        for k in (1, 3, 50):
            assert torch.equal(feature_eigenvalues(w, logits, k), feature_eigenvalues(w, logits)[:, :k])
            assert torch.equal(logit_eigenvalues(logits, k), logit_eigenvalues(logits)[:, :k])


def test_numpy_arrays_and_mixed_types_are_welcome():
    h, w, b = make_case(4, 5, 6)
    logits = h @ w.T + b
    assert_close(feature_trace(w.numpy(), logits.numpy()), feature_trace(w, logits), rtol=0, atol=0)
    mixed = feature_eigenvalues(w.float(), logits)
    assert mixed.dtype == torch.float64
    assert_close(mixed, feature_eigenvalues(w.float().double(), logits), rtol=0, atol=0)


# --- spectra of data sets


def as_list(spectrum):
    """Every eigenvalue as often as it occurs, ascending."""
    counts = (spectrum.weights[0] * spectrum.size).round().long()
    assert_close(counts.double() / spectrum.size, spectrum.weights[0], rtol=1e-14, atol=0)
    return spectrum.nodes[0].repeat_interleave(counts)


@pytest.mark.parametrize(("n", "c", "d"), SHAPES)
def test_the_spectrum_is_that_of_the_mean_hessian(n, c, d):
    h, w, b = make_case(n, c, d)
    logits = h @ w.T + b
    expected = torch.linalg.eigvalsh(in_features(h, w, b).mean(0))
    spectrum = feature_spectrum(w, [logits])
    assert_close(as_list(spectrum), expected, rtol=0, atol=1e-13)
    assert spectrum.nodes.dtype == spectrum.weights.dtype == torch.float64
    assert float(spectrum.weights.sum()) == pytest.approx(1, rel=1e-14)
    assert (spectrum.size, spectrum.rows) == (d, n)
    assert spectrum.lambda_max == pytest.approx(float(expected[-1]), rel=1e-12)
    assert spectrum.lambda_min == pytest.approx(float(expected[0]), abs=1e-14)
    known = spectrum.method, spectrum.matrix, spectrum.loss, spectrum.matvecs, spectrum.seed
    assert known == ("exact", "hessian", "energy", 0, None)


def test_zeros_that_must_be_are_one_node():
    for c, d, nodes, zeros in ((4, 9, 4, 6), (4, 4, 4, 1), (5, 4, 4, 0), (9, 4, 4, 0)):
        h, w, b = make_case(40, c, d)
        spectrum = feature_spectrum(w, [h @ w.T + b])
        assert spectrum.nodes.shape == spectrum.weights.shape == (1, nodes), (c, d)
        assert (spectrum.nodes[0] == 0).sum() == min(zeros, 1), (c, d)
        assert (as_list(spectrum) == 0).sum() == zeros, (c, d)
        assert (spectrum.nodes[0].diff() > 0).all(), (c, d)


def test_the_logit_spectrum_is_that_of_the_mean_hessian_and_any_batching_gives_the_same():
    for c in (2, 3, 20):
        logits = make_case(9, c, c)[0]
        spectrum = logit_spectrum([logits[:4], logits[4:]])
        assert_close(as_list(spectrum), torch.linalg.eigvalsh(in_logits(logits).mean(0)), rtol=0, atol=1e-14)
        assert (spectrum.size, spectrum.rows, spectrum.lambda_min) == (c, 9, 0.0)
    h, w, b = make_case(40, 10, 16, scale=4.0)
    logits = h @ w.T + b
    for spectrum in (lambda batches: feature_spectrum(w, batches), logit_spectrum):
        whole = spectrum([logits])
        for sizes in ([1] * 40, [39, 1], [7, 11, 22]):
            parts = spectrum(iter(logits.split(sizes)))
            assert_close(parts.nodes, whole.nodes, rtol=0, atol=1e-12 * whole.lambda_max)
            assert_close(parts.weights, whole.weights, rtol=0, atol=0)


W, Z = torch.eye(3, 4), torch.zeros(2, 3)


def test_malformed_weights_and_logits_are_refused():
    cases = [
        ((W, torch.zeros(2, 4)), ValueError, "3 classes"),
        ((W, torch.zeros(3)), ValueError, "logits .*dimensions"),
        ((W[0], Z), ValueError, "weight .*dimensions"),
        ((W, torch.zeros(0, 3)), ValueError, "logits .*empty"),
        ((W[:, :0], Z), ValueError, "weight .*empty"),
        ((W, Z.half()), TypeError, "float32"),
        ((W, torch.full((2, 3), torch.nan)), ValueError, "logits .*finite"),
        ((W / 0, Z), ValueError, "weight .*finite"),
        ((W[:1], Z[:, :1]), ValueError, "two columns"),
        ((W, [[0.0, 1.0, 2.0]]), TypeError, "logits"),
        (("W", Z), TypeError, "weight"),
    ]
    for statistic in PER_INPUT:
        check_refused(lambda pair, call=statistic: call(*pair), cases)
    for statistic in OF_LOGITS:
        check_refused(lambda pair, call=statistic: call(pair[1]), [cases[1], cases[6], cases[8]])
    counts = [(k, ValueError, "k must") for k in (0, -1, 1.5, True)]
    check_refused(lambda k: feature_eigenvalues(W, Z, k), counts)
    check_refused(lambda k: logit_eigenvalues(Z, k), counts)


def test_malformed_batches_are_refused():
    cases = [
        ([], ValueError, "at least one batch"),
        (Z, TypeError, "iterable"),
        ([Z, torch.zeros(2, 4)], ValueError, "batch 1 .*3 classes"),
        ([Z, torch.zeros(0, 3)], ValueError, "batch 1 .*empty"),
        ([Z, np.full((2, 3), np.nan)], ValueError, "batch 1 .*finite"),
        ([(Z, Z)], TypeError, "batch 0"),
    ]
    check_refused(lambda batches: feature_spectrum(W, batches), cases)
    check_refused(logit_spectrum, cases)
    check_refused(lambda weight: feature_spectrum(weight, [Z]), [(W[:2], ValueError, "2 classes")])
