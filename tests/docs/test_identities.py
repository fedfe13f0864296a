"""Identities of the mathematics page in float64 that no oracle of `tests/core` or `tests/curvature` covers."""

from math import log

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.func import hessian, jacrev
from torch.testing import assert_close

import flatfold as ff
from flatfold.core import autofold as masking
from flatfold.core import eigenvalues
from flatfold.core.autofold import Weights
from flatfold.core.hessian import class_distances, feature_hessian_trace
from flatfold.core.shaping import partially_normalised
from flatfold.curvature import param_trace
from flatfold.paper import theory


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def energy(h, weight, bias):
    return torch.logsumexp(weight @ h + bias, dim=0)


def covariance(p):
    """Return ``diag p - p p'`` of one row."""
    return torch.diag(p) - torch.outer(p, p)


class Case:
    """Features, a head, and the Hessians of the energy by autograd."""

    def __init__(self, c=5, d=4, n=6, scale=1.0):
        self.c, self.d = c, d
        self.h, self.weight, self.bias = scale * normal(n, d, seed=1), normal(c, d, seed=2), normal(c, seed=3)
        self.logits, self.distances = self.h @ self.weight.T + self.bias, class_distances(self.weight)
        self.p = self.logits.softmax(dim=-1)
        self.hessians, self.traces = self.curvature(self.h)

    def curvature(self, h):
        found = torch.stack([hessian(energy)(row, self.weight, self.bias) for row in h])
        return found, found.diagonal(dim1=1, dim2=2).sum(dim=-1)

    def masked_trace(self, k):
        """Return the traces with logit k at minus infinity, by the definition."""
        q = self.logits.index_fill(1, torch.tensor([k]), -torch.inf).softmax(dim=-1)
        return torch.stack([(self.weight.T @ covariance(row) @ self.weight).trace() for row in q])


@pytest.fixture(params=[(2, 3), (5, 4), (4, 9), (12, 3)], ids=str)
def case(request):
    """Classes and features, both forms of the trace among them."""
    return Case(*request.param)


def test_the_hessian_is_the_covariance_of_the_weights_for_every_label_and_a_square(case):
    for row, p, curved in zip(case.h, case.p, case.hessians, strict=True):
        assert_close(jacrev(energy)(row, case.weight, case.bias), case.weight.T @ p)
        assert_close(curved, case.weight.T @ covariance(p) @ case.weight)
        for y in range(case.c):
            loss = hessian(lambda x, y=y: energy(x, case.weight, case.bias) - (case.weight @ x + case.bias)[y])
            assert_close(loss(row), curved)
        top = int(p.argmax())  # split off
        r, q = 1 - p[top], p.clone()
        q[top] = 0
        u, g = (q / r).sqrt(), 1 - (1 - r).sqrt()
        a = (torch.eye(case.c) - g * torch.outer(u, u)) @ torch.diag(u) @ (case.weight - case.weight[top])
        assert_close(r * a.T @ a, curved)


def test_the_largest_eigenvalue_lies_within_its_bounds(case):
    rank, sharp = min(case.c - 1, case.d), Case(case.c, case.d, scale=10)
    assert (torch.linalg.eigvalsh(case.hessians).flip(-1)[:, rank:].abs() < 1e-12).all()
    largest = eigenvalues.largest_hessian_eigenvalue(sharp.p, sharp.weight)
    trace = feature_hessian_trace(sharp.p, sharp.distances)
    assert (largest <= trace * (1 + 1e-12)).all()
    assert (largest >= trace / rank * (1 - 1e-12)).all()
    assert (largest <= sharp.distances.max() / 4).all()
    even = eigenvalues.largest_hessian_eigenvalue(torch.full((1, 2), 0.5, dtype=torch.float64), case.weight[:2])
    assert_close(even[0], class_distances(case.weight[:2]).max() / 4)  # where the bound is reached
    mean = torch.linalg.eigvalsh(sharp.hessians.mean(dim=0))[-1]
    assert mean <= largest.mean()  # of a data set: no larger than the mean


def test_the_score_is_the_trace_at_normalised_features_and_lies_in_its_range(case):
    h, norms, m = case.h, case.h.norm(dim=-1, keepdim=True), case.h.norm(dim=-1).mean()
    for alpha in (0.0, 0.3, 1.0):
        shaped = partially_normalised(h, alpha)
        assert_close(shaped.norm(dim=-1), norms[:, 0] ** (1 - alpha))
        assert_close(shaped, h * (m / norms) ** alpha / m**alpha)  # a common length and a temperature
        detector = ff.Fold(alpha=alpha).fit(ff.FeatureBank(h), ff.Head(case.weight, case.bias))
        assert_close(detector(h), case.curvature(shaped)[1])
        low, high = detector.score_range()
        assert (low, high) == (0, pytest.approx(float((case.weight - case.weight.mean(0)).square().sum(-1).max())))
        scores = torch.cat([detector(h * size) for size in (1e-6, 1.0, 1e3)])
        assert ((scores >= low) & (scores <= high)).all()


def test_a_masked_logit_is_a_class_less_and_its_trace_comes_from_one_product():
    case = Case(n=200, scale=2)
    p, labels = case.p, torch.arange(200) % 5
    plain, masked = masking.with_and_without(case.logits, labels, Weights.of(case.weight))
    q, r, _ = masking.masked_softmax(case.logits, labels)
    v = (q @ case.distances).gather(1, labels[:, None])[:, 0]
    gains = masked.trace > plain.trace  # exactly where the page says
    assert 0 < gains.sum() < 200
    assert torch.equal(gains, r * v < (1 + r) * masked.trace)
    for k in range(5):
        found, unsure = case.masked_trace(k), p[:, k] < 0.9  # or the difference below would cancel
        by_one_product = (case.traces - p[:, k] * (p @ case.distances)[:, k]) / (1 - p[:, k]) ** 2
        assert_close(found[unsure], by_one_product[unsure])
        others = [i for i in range(5) if i != k]
        smaller = torch.stack([hessian(energy)(x, case.weight[others], case.bias[others]).trace() for x in case.h[:9]])
        assert_close(found[:9], smaller)


def test_the_trace_over_the_last_layer_has_a_closed_form_whatever_is_before_it():
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double().eval(), normal(4, 3)
    h, p = network[1](network[0](x)), network(x).softmax(dim=-1)
    expected = (h.square().sum(dim=-1) + 1) * (1 - p.square().sum(dim=-1))
    assert_close(param_trace(network, [x], level="sample", params=["2"]).value.to(expected), expected.detach())


def test_the_traces_over_logits_and_features_bound_each_other_and_agree_on_a_simplex():
    case = Case(n=40)
    over_logits = 1 - case.p.square().sum(dim=-1)
    assert_close(feature_hessian_trace(case.p, class_distances(torch.eye(5).double())), over_logits)
    between = case.distances[~torch.eye(5, dtype=torch.bool)] / 2
    assert (between.min() * over_logits <= case.traces).all()
    assert (case.traces <= between.max() * over_logits).all()
    simplex = 3 * (torch.eye(5).double() - 1 / 5)
    assert_close(feature_hessian_trace(case.p, class_distances(simplex)), 9 * over_logits)


def test_the_papers_loss_has_no_minimum_and_the_logistic_risk_is_least_at_twice_its_weight():
    root, mean = normal(4, 4), 0.7 * normal(4, seed=2)
    spread = root @ root.T / 4 + 0.2 * torch.eye(4)
    w = theory.bayes_weight(mean, spread, alpha=1.0)
    for t in (1, 10, 100):
        assert theory.printed_loss(t * w, mean, spread) <= -t * float(w @ mean)
    least = minimize(lambda w: theory.logistic_risk(w, mean.numpy(), spread.numpy()), np.zeros(4), tol=1e-12).x
    assert np.allclose(least, 2 * torch.linalg.solve(spread, mean).numpy(), atol=1e-4)
    assert_close(theory.bayes_weight(mean, spread), 2 * w)
    draws = mean + normal(500, 4) @ torch.linalg.cholesky(spread).T
    x = torch.cat([draws, -draws])  # a mean of exactly 0
    risk = [float(torch.logaddexp(x @ (s * normal(4)), torch.zeros(())).mean()) for s in (0.0, 0.01, 0.1, 1.0)]
    assert risk == sorted(risk)  # the energy is least where the weight is zero
    assert risk[0] == pytest.approx(log(2))
