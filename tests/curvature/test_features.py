"""`curvature.features` against autograd in float64: what a user hands in, and what comes back."""

import numpy as np
import pytest
import torch
from torch.func import hessian, vmap
from torch.testing import assert_close

from flatfold.curvature import features
from flatfold.curvature.features import (
    feature_eigenvalues,
    feature_lambda_max,
    feature_spectrum,
    feature_trace,
    logit_eigenvalues,
    logit_lambda_max,
    logit_spectrum,
    logit_trace,
)

SHAPES = [(1, 2, 1), (30, 3, 4), (6, 40, 7), (3, 10, 64), (9, 8, 8), (9, 9, 8)]
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


@pytest.mark.parametrize("dtype", RTOL, ids=str)
@pytest.mark.parametrize(("n", "c", "d"), SHAPES)
def test_feature_statistics_are_those_of_the_hessian(n, c, d, dtype):
    h, w, b = make_case(n, c, d)
    logits = (h @ w.T + b).to(dtype)
    expected = in_features(h, w, b)
    values = descending(expected)
    got = (
        feature_trace(w.to(dtype), logits),
        feature_lambda_max(w.to(dtype), logits),
        feature_eigenvalues(w.to(dtype), logits),
    )
    assert all(x.dtype == dtype for x in got)
    assert_close(got[0].double(), traces(expected), rtol=RTOL[dtype], atol=0)
    assert_close(got[1].double(), values[:, 0], rtol=RTOL[dtype], atol=0)
    assert_close(got[2].double(), values[:, : min(c, d)], rtol=0, atol=RTOL[dtype] * float(values.max()))


@pytest.mark.parametrize("dtype", RTOL, ids=str)
@pytest.mark.parametrize("c", [2, 3, 20])
def test_logit_statistics_are_those_of_the_hessian(c, dtype):
    logits = (make_case(9, c, c)[0]).to(dtype)
    expected = in_logits(logits.double())
    values = descending(expected)
    got = logit_trace(logits), logit_lambda_max(logits), logit_eigenvalues(logits)
    assert all(x.dtype == dtype for x in got)
    assert_close(got[0].double(), traces(expected), rtol=RTOL[dtype], atol=0)
    assert_close(got[1].double(), values[:, 0], rtol=RTOL[dtype], atol=0)
    assert_close(got[2].double(), values, rtol=0, atol=RTOL[dtype])


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


@pytest.mark.parametrize(("c", "d"), [(6, 9), (9, 6)])
def test_k_takes_the_largest(c, d):
    h, w, b = make_case(4, c, d)
    logits = h @ w.T + b
    for k in (1, 3, 50):
        assert torch.equal(feature_eigenvalues(w, logits, k), feature_eigenvalues(w, logits)[:, :k])
        assert torch.equal(logit_eigenvalues(logits, k), logit_eigenvalues(logits)[:, :k])
    assert feature_eigenvalues(w, logits, 50).shape == (4, 6)
    assert logit_eigenvalues(logits, 50).shape == (4, c)


@pytest.mark.parametrize(("c", "d"), [(6, 9), (9, 6), (20, 3)])
def test_one_input_at_a_time_gives_the_same(c, d):
    """Alone an input takes the centred form of the trace, in a batch of c or more the distances."""
    h, w, b = make_case(25, c, d)
    logits = h @ w.T + b
    for statistic in (feature_trace, feature_lambda_max, feature_eigenvalues):
        alone = torch.cat([statistic(w, row) for row in logits.split(1)])
        assert_close(alone, statistic(w, logits), rtol=1e-12, atol=1e-14)


def test_distances_are_taken_only_where_enough_inputs_use_them(monkeypatch):
    taken = []
    distances = features.class_distances
    monkeypatch.setattr(features, "class_distances", lambda w: taken.append(len(w)) or distances(w))
    h, w, b = make_case(6, 6, 9)
    feature_trace(w, (h @ w.T + b)[:5])
    assert taken == []
    feature_trace(w, h @ w.T + b)
    assert taken == [6]
    h, w, b = make_case(30, 30, 3)
    feature_trace(w, h @ w.T + b)
    assert taken == [6]


def test_numpy_arrays_and_mixed_types_are_welcome():
    h, w, b = make_case(4, 5, 6)
    logits = h @ w.T + b
    assert_close(feature_trace(w.numpy(), logits.numpy()), feature_trace(w, logits), rtol=0, atol=0)
    mixed = feature_eigenvalues(w.float(), logits)
    assert mixed.dtype == torch.float64
    assert_close(mixed, feature_eigenvalues(w.float().double(), logits), rtol=0, atol=0)


def test_no_gradient_is_kept():
    h, w, b = make_case(4, 5, 6)
    logits = (h @ w.T + b).requires_grad_()
    assert not feature_trace(w, logits).requires_grad
    assert not feature_lambda_max(w, logits).requires_grad
    assert not logit_eigenvalues(logits).requires_grad


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


@pytest.mark.parametrize(("c", "d", "nodes", "zeros"), [(4, 9, 4, 6), (4, 4, 4, 1), (5, 4, 4, 0), (9, 4, 4, 0)])
def test_zeros_that_must_be_are_one_node(c, d, nodes, zeros):
    h, w, b = make_case(40, c, d)
    spectrum = feature_spectrum(w, [h @ w.T + b])
    assert spectrum.nodes.shape == spectrum.weights.shape == (1, nodes)
    assert (spectrum.nodes[0] == 0).sum() == min(zeros, 1)
    assert (as_list(spectrum) == 0).sum() == zeros
    assert (spectrum.nodes[0].diff() > 0).all()


@pytest.mark.parametrize("c", [2, 3, 20])
def test_the_logit_spectrum_is_that_of_the_mean_hessian(c):
    logits = make_case(9, c, c)[0]
    spectrum = logit_spectrum([logits[:4], logits[4:]])
    assert_close(as_list(spectrum), torch.linalg.eigvalsh(in_logits(logits).mean(0)), rtol=0, atol=1e-14)
    assert (spectrum.size, spectrum.rows, spectrum.lambda_min) == (c, 9, 0.0)


@pytest.mark.parametrize("sizes", [[1] * 40, [39, 1], [7, 11, 22]], ids=str)
def test_any_batching_gives_the_same_spectrum(sizes):
    h, w, b = make_case(40, 10, 16, scale=4.0)
    logits = h @ w.T + b
    for spectrum in (lambda batches: feature_spectrum(w, batches), logit_spectrum):
        whole, parts = spectrum([logits]), spectrum(iter(logits.split(sizes)))
        assert_close(parts.nodes, whole.nodes, rtol=0, atol=1e-12 * whole.lambda_max)
        assert_close(parts.weights, whole.weights, rtol=0, atol=0)


def test_the_mean_of_a_spectrum_is_the_mean_trace_and_its_end_at_most_the_mean_largest():
    h, w, b = make_case(40, 10, 16, scale=2.0)
    logits = h @ w.T + b
    spectrum = feature_spectrum(w, [logits])
    total = float((spectrum.nodes * spectrum.weights).sum()) * spectrum.size
    assert total == pytest.approx(float(feature_trace(w, logits).mean()), rel=1e-12)
    assert spectrum.lambda_max < float(feature_lambda_max(w, logits).mean())


# --- at the door

W, Z = torch.eye(3, 4), torch.zeros(2, 3)
PER_INPUT = [feature_trace, feature_eigenvalues, feature_lambda_max]
OF_LOGITS = [logit_trace, logit_eigenvalues, logit_lambda_max]


@pytest.mark.parametrize("statistic", PER_INPUT)
@pytest.mark.parametrize(
    ("weight", "logits", "kind", "sentence"),
    [
        (
            W,
            torch.zeros(2, 4),
            ValueError,
            r"logits have 4 columns but there are 3 classes.*was one of them transposed",
        ),
        (W, torch.zeros(3), ValueError, "logits must have two dimensions"),
        (W[0], Z, ValueError, "weight must have two dimensions"),
        (W, torch.zeros(0, 3), ValueError, "logits must not be empty"),
        (W[:, :0], Z, ValueError, "weight must not be empty"),
        (W, Z.half(), TypeError, "logits must be float32 or float64"),
        (W, torch.full((2, 3), torch.nan), ValueError, "logits must be finite, but row 0"),
        (W / 0, Z, ValueError, "weight must be finite, but row 0"),
        (W[:1], Z[:, :1], ValueError, r"logits must have two columns or more, one per class, got one.*\(0, z\)"),
        (W, [[0.0, 1.0, 2.0]], TypeError, "logits must be a torch tensor or a numpy array"),
        ("W", Z, TypeError, "weight must be a torch tensor or a numpy array"),
    ],
)
def test_what_does_not_fit_is_refused(statistic, weight, logits, kind, sentence):
    with pytest.raises(kind, match=sentence):
        statistic(weight, logits)


@pytest.mark.parametrize("statistic", OF_LOGITS)
@pytest.mark.parametrize(
    ("logits", "sentence"),
    [
        (torch.zeros(3), "logits must have two dimensions"),
        (torch.zeros(2, 1), "logits must have two columns or more"),
        (torch.full((2, 3), torch.inf), "logits must be finite"),
    ],
)
def test_logits_that_do_not_fit_are_refused(statistic, logits, sentence):
    with pytest.raises(ValueError, match=sentence):
        statistic(logits)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_k_must_be_a_count(k):
    for statistic in (lambda: feature_eigenvalues(W, Z, k), lambda: logit_eigenvalues(Z, k)):
        with pytest.raises(ValueError, match="k must be a whole number from 1 on"):
            statistic()


@pytest.mark.parametrize("spectrum", [lambda batches: feature_spectrum(W, batches), logit_spectrum])
@pytest.mark.parametrize(
    ("batches", "kind", "sentence"),
    [
        ([], ValueError, r"at least one batch of logits, got none\. Was the data loader used up"),
        (Z, TypeError, r"batches must be an iterable of logits, got a single tensor\. Pass \[logits\]"),
        ([Z, torch.zeros(2, 4)], ValueError, "logits of batch 1 have 4 columns but there are 3 classes"),
        ([Z, torch.zeros(0, 3)], ValueError, "logits of batch 1 must not be empty"),
        ([Z, np.full((2, 3), np.nan)], ValueError, "logits of batch 1 must be finite"),
        ([(Z, Z)], TypeError, "logits of batch 0 must be a torch tensor"),
    ],
)
def test_batches_that_do_not_fit_are_refused(spectrum, batches, kind, sentence):
    with pytest.raises(kind, match=sentence):
        spectrum(batches)


def test_a_spectrum_needs_weights_of_as_many_classes():
    with pytest.raises(ValueError, match="logits of batch 0 have 3 columns but there are 2 classes"):
        feature_spectrum(W[:2], [Z])
