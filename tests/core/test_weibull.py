"""Weibull tails against scipy's maximum likelihood."""

import numpy as np
import pytest
import torch
from scipy.stats import weibull_min
from torch.testing import assert_close

from flatfold.core.weibull import STEEPEST, Weibull, fit_tails


def padded(tails):
    longest = max(map(len, tails))
    values, valid = torch.zeros(len(tails), longest, dtype=torch.float64), torch.zeros(len(tails), longest).bool()
    for row, tail in enumerate(tails):
        values[row, : len(tail)] = torch.as_tensor(tail, dtype=torch.float64)
        valid[row, : len(tail)] = True
    return values, valid


def test_agrees_with_scipy_for_tails_of_any_length():
    rng = np.random.default_rng(0)
    tails = [
        rng.weibull(shape, n) * scale + 10 for shape, scale, n in [(1.5, 2, 20), (0.7, 9, 13), (6, 0.3, 5), (2, 1, 2)]
    ]
    fit = fit_tails(*padded(tails))
    for row, tail in enumerate(tails):
        shape, _, scale = weibull_min.fit(tail - tail.min() + 1, floc=0)
        assert float(fit.scale[row]) == pytest.approx(scale, rel=1e-3)
        assert float(fit.shape[row]) == pytest.approx(shape, rel=1e-3)
        distances = np.linspace(tail.min() - 2, tail.max() + 5, 30)
        one = Weibull(*(part[row] for part in fit))
        got = one.cdf(torch.from_numpy(distances)).numpy()
        expected = weibull_min.cdf(distances - tail.min() + 1, float(one.shape), scale=float(one.scale))
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-300)


def test_is_the_maximum_of_the_likelihood():
    tail = np.random.default_rng(1).weibull(1.3, 20) * 3
    fit = fit_tails(*padded([tail]))

    def likelihood(scale, shape):
        return weibull_min.logpdf(tail - tail.min() + 1, shape, scale=scale).sum()

    best = likelihood(float(fit.scale), float(fit.shape))
    for ds, dk in [(1e-4, 0), (-1e-4, 0), (0, 1e-4), (0, -1e-4)]:
        assert likelihood(float(fit.scale) * (1 + ds), float(fit.shape) * (1 + dk)) < best


@pytest.mark.parametrize("tail", [[3.0], [2.0, 2.0, 2.0]])
def test_a_tail_without_spread_becomes_a_step(tail):
    fit = fit_tails(*padded([tail, [1.0, 2.0, 4.0]]))
    assert float(fit.shape[0]) == STEEPEST
    below, above = Weibull(*(part[0] for part in fit)).cdf(torch.tensor([tail[0] - 0.1, tail[0] + 0.1]).double())
    assert (float(below), float(above)) == (0.0, 1.0)
    assert_close(fit.shape[1], fit_tails(*padded([[1.0, 2.0, 4.0]])).shape[0])


def test_distances_below_the_tail_are_certain_to_be_known():
    fit = fit_tails(*padded([[5.0, 6.0, 8.0]]))
    assert float(fit.cdf(torch.tensor([0.0], dtype=torch.float64))) == 0.0


def test_what_the_padding_holds_is_no_matter():
    tails, valid = padded([[1.0, 2.0, 4.0], [1.0, 5.0]])
    noisy = tails.masked_fill(~valid, 1e9)
    assert_close(fit_tails(noisy, valid), fit_tails(tails, valid))
