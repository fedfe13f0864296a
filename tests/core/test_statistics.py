"""Gaussians of features, temperatures and Weibull tails against scikit-learn, scipy and slow formulas."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import pinvh
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import weibull_min
from sklearn.covariance import EmpiricalCovariance
from torch.testing import assert_close

from flatfold.core import hessian as chunks
from flatfold.core.class_statistics import (
    COLDEST,
    STEEPEST,
    LazyRows,
    Weibull,
    best_temperature,
    class_means,
    class_moments,
    fit_gaussian,
    fit_tails,
    likeliest_temperature,
    logits_by_rows,
    mean_row,
    reference_temperature,
    squared_distances,
    whitening_of,
)
from tests.refusals import assert_refused


def make_features(n=200, c=4, d=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(c, (n,), generator=g)
    mixing = torch.randn(d, d, generator=g, dtype=torch.float64)
    return torch.randn(n, d, generator=g, dtype=torch.float64) @ mixing + 5 * labels[:, None], labels


def slow_distances(h, features, labels):
    """The textbook: one class and one sample at a time, with scikit-learn's covariance and scipy's inverse."""
    features, labels, h = features.double().numpy(), labels.numpy(), h.double().numpy()
    means = {k: features[labels == k].mean(0) for k in np.unique(labels)}
    centred = np.stack([row - means[k] for row, k in zip(features, labels, strict=True)])
    precision = pinvh(EmpiricalCovariance(assume_centered=False).fit(centred).covariance_)
    return np.array([[(x - mean) @ precision @ (x - mean) for mean in means.values()] for x in h])


def test_distances_are_those_of_the_textbook():
    for dtype in (torch.float64, torch.float32):
        features, labels = make_features()
        features = features.to(dtype)
        got = squared_distances(features[:20], fit_gaussian(features, labels))
        expected = slow_distances(features[:20], features, labels)
        np.testing.assert_allclose(got, expected, rtol=1e-9, err_msg=str(dtype))
    features, labels = make_features()
    got = squared_distances(features[:20], fit_gaussian(features)).squeeze(-1)  # one Gaussian without labels
    np.testing.assert_allclose(got, EmpiricalCovariance().fit(features.numpy()).mahalanobis(features[:20].numpy()))
    strided = torch.stack([labels, labels], dim=1)[:, 0]  # labels may lie anywhere in memory
    assert_close(fit_gaussian(features, strided).means, fit_gaussian(features, labels).means)


def test_directions_without_variance_do_not_count():
    features, labels = make_features()
    flat = torch.cat([features, features[:, :2], torch.ones(len(features), 1).double()], dim=1)  # rank 6 of 9
    gaussian = fit_gaussian(flat, labels)
    assert gaussian.whitening.shape == (9, 6)
    expected = squared_distances(features[:5], fit_gaussian(features, labels))
    np.testing.assert_allclose(squared_distances(flat[:5], gaussian), expected, rtol=1e-7)
    eps = torch.finfo(torch.float64).eps
    assert whitening_of(torch.diag(torch.tensor([1.0, 0.5, 2 * eps], dtype=torch.float64))).shape == (3, 2)
    assert_refused(ValueError, "vary", fit_gaussian, torch.ones(5, 3), torch.tensor([0, 0, 1, 1, 1]))


def test_small_eigenvalues_survive_float32_features():
    """Standard deviations from 1 down to 1e-4: the distance along the smallest one is still right."""
    g = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -4, 5, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=g, dtype=torch.float64)).Q
    features = (torch.randn(2000, 5, generator=g, dtype=torch.float64) * scales @ rotation).float()
    got = squared_distances(features, fit_gaussian(features)).mean()
    assert_close(float(got), 5.0, rtol=1e-6, atol=0)  # the mean squared distance is the rank, whatever the scales


def test_means_are_those_of_the_classes_that_occur_whatever_the_chunks(monkeypatch):
    features, labels = make_features(n=50)
    labels = labels * 3
    monkeypatch.setattr(chunks.row_chunks, "__defaults__", (7,))
    classes, means = class_means(features, labels)
    assert classes.tolist() == sorted(set(labels.tolist()))
    for k, mean in zip(classes, means, strict=True):
        assert_close(mean, features[labels == k].mean(0))
    assert_close(mean_row(features), features.mean(0))
    small = fit_gaussian(features, labels)
    monkeypatch.undo()
    assert_close(squared_distances(features, small), squared_distances(features, fit_gaussian(features, labels)))
    assert (squared_distances(means, small) >= 0).all()


def test_moments_of_chunks_are_the_plain_formula(monkeypatch):
    features, labels = make_features(n=60, d=6)
    used = torch.arange(60) % 5 > 0
    for order in (torch.arange(60), labels.argsort()):  # shuffled, and sorted by class
        x, y, kept = features[order].float(), 2 * labels[order], used[order]
        for mask in (None, kept):
            h, k = (x.double(), y) if mask is None else (x[mask].double(), y[mask])
            centred = torch.cat([h[k == each] - h[k == each].mean(0) for each in k.unique()])
            for rows in (1, 7, 100):
                monkeypatch.setattr(chunks, "ENTRIES_AT_ONCE", 6 * rows)
                got = class_moments(x, y, used=mask)
                assert_close(got.classes, k.unique())
                assert_close(got.counts, k.bincount()[::2].double())
                assert_close(got.means, torch.stack([h[k == each].mean(0) for each in k.unique()]))
                assert_close(got.scatter, centred.T @ centred)
                assert_close(got.mean, h.mean(0))
                point = torch.arange(6.0).double()
                assert_close(got.scatter_about(point), (h - point).T @ (h - point))
                assert_close(got.pooled().scatter, (h - h.mean(0)).T @ (h - h.mean(0)))
                lazy = LazyRows(x, lambda part: 2 * part.double(), None if mask is None else mask.nonzero().flatten())
                assert_close(class_moments(lazy, k).means, 2 * got.means)
                assert class_moments(x, y, scatter=False).scatter.numel() == 0


def test_the_scatter_within_distant_classes_keeps_its_digits(monkeypatch):
    """Class means 1e6 times as far apart as the samples of a class: differences of moments would keep four digits."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (500,), generator=g)
    noise = torch.randn(500, 5, generator=g, dtype=torch.float64) * torch.logspace(0, -3, 5, dtype=torch.float64)
    features = noise + 1e6 * labels[:, None]
    centred = features - torch.stack([features[labels == k].mean(0) for k in range(4)])[labels]
    monkeypatch.setattr(chunks, "ENTRIES_AT_ONCE", 5 * 16)
    expected = centred.T @ centred
    assert_close(class_moments(features, labels).scatter, expected, rtol=1e-9, atol=1e-9)
    assert_close(class_moments(features, labels).scatter.diagonal(), expected.diagonal(), rtol=1e-6, atol=0)


# --- temperatures


def make_logits(sharpness, n=300, c=5, seed=0):
    """Labels drawn from the softmax of logits, which are then sharpened: the true temperature is ``sharpness``."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, generator=g, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(-1)
    return sharpness * logits, labels


def test_the_best_temperature_minimises_the_cross_entropy_and_leaves_the_bias_alone():
    for sharpness, bias in ((0.3, None), (1.0, None), (4.0, None), (4.0, torch.tensor([3.0, 0.0, -2.0, 0.0, 1.0]))):
        logits, labels = make_logits(sharpness)

        def loss(t, z=logits, y=labels, b=0.0 if bias is None else bias):
            return float(torch.nn.functional.cross_entropy(z / t + b, y))

        found = best_temperature(logits, labels, bias)
        assert likeliest_temperature(logits, labels, bias) == found
        assert found == pytest.approx(minimize_scalar(loss, bounds=(0.01, 50), method="bounded").x, rel=1e-4), sharpness

        def slope(t, z=logits, y=labels, b=0.0 if bias is None else bias):
            return float(((z / t + b).softmax(-1) * z).sum(-1).sub(z.gather(1, y[:, None])[:, 0]).mean())

        assert found == pytest.approx(brentq(slope, 0.01, 50, xtol=1e-15, rtol=1e-14), rel=1e-11), sharpness
        if bias is None:
            assert found == pytest.approx(sharpness, rel=0.25), sharpness
    assert best_temperature(torch.eye(3), torch.arange(3)) == pytest.approx(COLDEST)  # logits that are always right


def test_temperatures_do_not_depend_on_the_parts_that_logits_are_computed_in(monkeypatch):
    g = torch.Generator().manual_seed(0)
    logits, labels = make_logits(2.0)
    weight, bias = torch.randn(5, 8, generator=g), torch.randn(5, generator=g)
    h = torch.linalg.lstsq(weight.double(), (logits - bias).T).solution.T.float()
    at_once = logits_by_rows(h, weight, bias)
    assert isinstance(at_once, torch.Tensor)
    solvers = best_temperature, reference_temperature
    found = [solve(at_once, labels) for solve in solvers]
    assert found[1] != pytest.approx(1.5, rel=0.01)  # where it starts
    monkeypatch.setattr("flatfold.core.class_statistics.LOGITS_AT_ONCE", 10)
    monkeypatch.setattr("flatfold.core.hessian.ENTRIES_AT_ONCE", 5 * 70)
    lazy = logits_by_rows(h, weight, bias)
    assert not isinstance(lazy, torch.Tensor)
    assert [solve(lazy, labels) for solve in (best_temperature, reference_temperature)] == pytest.approx(
        found, rel=1e-4
    )


# --- Weibull tails


def padded(tails):
    longest = max(map(len, tails))
    values, valid = torch.zeros(len(tails), longest, dtype=torch.float64), torch.zeros(len(tails), longest).bool()
    for row, tail in enumerate(tails):
        values[row, : len(tail)] = torch.as_tensor(tail, dtype=torch.float64)
        valid[row, : len(tail)] = True
    return values, valid


def test_weibull_fits_agree_with_scipy_for_tails_of_any_length():
    rng = np.random.default_rng(0)
    cases = [(1.5, 2, 20), (0.7, 9, 13), (6, 0.3, 5), (2, 1, 2)]
    tails = [rng.weibull(shape, n) * scale + 10 for shape, scale, n in cases]
    fit = fit_tails(*padded(tails))
    for row, tail in enumerate(tails):
        shape, _, scale = weibull_min.fit(tail - tail.min() + 1, floc=0)
        assert float(fit.scale[row]) == pytest.approx(scale, rel=1e-3), cases[row]
        assert float(fit.shape[row]) == pytest.approx(shape, rel=1e-3), cases[row]
        distances = np.linspace(tail.min() - 2, tail.max() + 5, 30)
        one = Weibull(*(part[row] for part in fit))
        got = one.cdf(torch.from_numpy(distances)).numpy()
        expected = weibull_min.cdf(distances - tail.min() + 1, float(one.shape), scale=float(one.scale))
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-300)


def test_a_tail_without_spread_becomes_a_step():
    for tail in ([3.0], [2.0, 2.0, 2.0]):
        fit = fit_tails(*padded([tail, [1.0, 2.0, 4.0]]))
        assert float(fit.shape[0]) == STEEPEST
        below, above = Weibull(*(part[0] for part in fit)).cdf(torch.tensor([tail[0] - 0.1, tail[0] + 0.1]).double())
        assert (float(below), float(above)) == (0.0, 1.0), tail
        assert_close(fit.shape[1], fit_tails(*padded([[1.0, 2.0, 4.0]])).shape[0])


def test_distances_below_the_tail_have_probability_zero_and_padding_is_ignored():
    fit = fit_tails(*padded([[5.0, 6.0, 8.0]]))
    assert float(fit.cdf(torch.tensor([0.0], dtype=torch.float64))) == 0.0
    tails, valid = padded([[1.0, 2.0, 4.0], [1.0, 5.0]])
    assert_close(fit_tails(tails.masked_fill(~valid, 1e9), valid), fit_tails(tails, valid))


def optimised_temperature(logits, labels):
    """As OpenOOD does it."""
    temperature = torch.full((1,), 1.5, dtype=logits.dtype, requires_grad=True)
    optimiser = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

    def closure():
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits / temperature, labels)
        loss.backward()
        return loss

    optimiser.step(closure)
    return temperature.item()


@given(
    n=st.integers(1, 60),
    c=st.integers(2, 9),
    size=st.floats(0.01, 100),
    sure=st.floats(0, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_the_reference_temperature_is_that_of_torchs_optimiser(n, c, size, sure, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(c, (n,), generator=g)
    logits = size * torch.randn(n, c, generator=g, dtype=dtype)
    logits[torch.arange(n), labels] += size * sure
    assert reference_temperature(logits, labels) == optimised_temperature(logits, labels)
    assert reference_temperature(0 * logits, labels) == 1.5
