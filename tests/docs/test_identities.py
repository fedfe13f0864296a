"""Every identity of the mathematics page, in float64, against autograd or a formula that is slow and obvious."""

from itertools import combinations
from math import log, sqrt

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import beta
from torch import nn
from torch.func import functional_call, hessian, jacrev
from torch.testing import assert_close

import flatfold as ff
from flatfold.core.conformal import allowed_ranks, p_values, samples_needed
from flatfold.core.criteria import group_rows, one_vs_rest, paired
from flatfold.core.delong import auroc_influence, paired_difference
from flatfold.core.eigenvalues import hessian_eigenvalues, largest_hessian_eigenvalue, logit_hessian_eigenvalues
from flatfold.core.hessian import (
    centred_hessian_trace,
    class_distances,
    feature_hessian_diagonal,
    feature_hessian_trace,
    logit_hessian_trace,
    prefers_distances,
)
from flatfold.core.masking import Weights, masked_softmax, with_and_without, without_each
from flatfold.core.mean_hessian import MeanHessian
from flatfold.core.pairs import largest_pairs
from flatfold.core.shaping import partially_normalised, partially_normalised_probs
from flatfold.curvature import logit_trace, param_lambda_max, param_trace
from flatfold.curvature.averages import average_curvature
from flatfold.curvature.exact import OrderedClasses
from flatfold.curvature.theory import bayes_weight, compare, expected_trace, logistic_risk, printed_loss

SHAPES = [(2, 3), (5, 4), (4, 9), (12, 3)]  # classes and features, both forms of the trace among them


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_case(c, d, n=6):
    """Return features, weights and a bias."""
    return normal(n, d, seed=1), normal(c, d, seed=2), normal(c, seed=3)


def energy(h, weight, bias):
    return torch.logsumexp(weight @ h + bias, dim=0)


def bent(h, weight, bias):
    """Return the Hessian of the energy over the features of each row, by autograd, ``(n, d, d)``."""
    return torch.stack([hessian(energy)(row, weight, bias) for row in h])


def probabilities(h, weight, bias):
    return (h @ weight.T + bias).softmax(dim=-1)


def covariance(p):
    """Return ``diag p - p p'`` of one row."""
    return torch.diag(p) - torch.outer(p, p)


# --- the energy and its curvature -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_the_mean_of_the_weights_and_the_hessian_their_covariance(shape):
    h, weight, bias = make_case(*shape)
    for row, p, curved in zip(h, probabilities(h, weight, bias), bent(h, weight, bias), strict=True):
        assert_close(jacrev(energy)(row, weight, bias), weight.T @ p)
        assert_close(curved, weight.T @ covariance(p) @ weight)


def test_the_cross_entropy_of_any_label_has_the_same_hessian():
    h, weight, bias = make_case(5, 4)
    for label in range(5):
        curved = hessian(lambda x, y=label: energy(x, weight, bias) - (weight @ x + bias)[y])(h[0])
        assert_close(curved, bent(h[:1], weight, bias)[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_trace_is_half_the_mean_squared_distance_of_two_classes_in_three_forms(shape):
    h, weight, bias = make_case(*shape)
    p, expected = probabilities(h, weight, bias), bent(h, weight, bias).diagonal(dim1=1, dim2=2).sum(dim=-1)
    pairs = combinations(range(shape[0]), 2)
    by_pairs = sum(p[:, i] * p[:, j] * (weight[i] - weight[j]).square().sum() for i, j in pairs)
    assert_close(by_pairs, expected)
    assert_close(feature_hessian_trace(p, class_distances(weight)), expected)
    assert_close(centred_hessian_trace(p, weight), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_diagonal_is_the_variance_in_every_dimension(shape):
    h, weight, bias = make_case(*shape)
    p = probabilities(h, weight, bias)
    assert_close(feature_hessian_diagonal(p, weight), bent(h, weight, bias).diagonal(dim1=1, dim2=2))


def test_the_second_form_is_taken_beyond_twice_as_many_classes_as_features():
    assert [prefers_distances(c, 10) for c in (20, 21)] == [True, False]
    detectors = [ff.Fold().fit(ff.FeatureBank(normal(4, 3)), ff.Head(normal(c, 3))) for c in (6, 7)]
    assert [detector.distances is None for detector in detectors] == [False, True]


def test_the_largest_pairs_are_those_of_a_full_search():
    h, weight, bias = make_case(12, 5)
    p = probabilities(h, weight, bias)
    terms = p[:, :, None] * p[:, None, :] * class_distances(weight)
    expected = terms.triu().flatten(1).sort(descending=True).values[:, :4] / terms.sum(dim=(1, 2))[:, None] * 2
    assert_close(largest_pairs(p, weight, 4).share, expected)


# --- eigenvalues ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_eigenvalues_are_those_of_the_hessian_and_fewer_than_the_classes_are_above_zero(shape):
    h, weight, bias = make_case(*shape)
    p = probabilities(h, weight, bias)
    found, expected = hessian_eigenvalues(p, weight), torch.linalg.eigvalsh(bent(h, weight, bias)).flip(-1)
    assert_close(found, expected[:, : min(shape)])
    assert (expected[:, min(shape[0] - 1, shape[1]) :].abs() < 1e-12).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_largest_eigenvalue_lies_within_its_bounds(shape):
    h, weight, bias = make_case(*shape)
    p, distances = probabilities(10 * h, weight, bias), class_distances(weight)
    largest, trace = largest_hessian_eigenvalue(p, weight), feature_hessian_trace(p, distances)
    assert (largest <= trace * (1 + 1e-12)).all()
    assert (largest >= trace / min(shape[0] - 1, shape[1]) * (1 - 1e-12)).all()
    assert (largest <= distances.max() / 4).all()


def test_the_bound_of_a_quarter_is_reached_by_two_classes_of_equal_probability():
    weight = normal(2, 3)
    largest = largest_hessian_eigenvalue(torch.full((1, 2), 0.5, dtype=torch.float64), weight)
    assert_close(largest[0], class_distances(weight).max() / 4)


def test_the_eigenvalues_over_logits_are_roots_between_the_probabilities_and_at_most_a_half():
    p = normal(5, 7).softmax(dim=-1)
    found = logit_hessian_eigenvalues(p)
    assert_close(found, torch.stack([torch.linalg.eigvalsh(covariance(row)).flip(-1) for row in p]))
    ranked = p.sort(descending=True).values
    roots = found[:, :-1]
    assert ((ranked[:, 1:] <= roots) & (roots <= ranked[:, :-1]) & (roots <= 0.5)).all()
    assert (p[:, None] / (p[:, None] - roots[:, :, None])).sum(dim=-1).abs().max() < 1e-9


def test_the_hessian_is_a_square_once_the_likeliest_class_is_split_off():
    h, weight, bias = make_case(5, 4)
    for p, curved in zip(probabilities(h, weight, bias), bent(h, weight, bias), strict=True):
        top = int(p.argmax())
        r, q = 1 - p[top], p.clone()
        q[top] = 0
        u, g = (q / r).sqrt(), 1 - (1 - r).sqrt()
        a = (torch.eye(5) - g * torch.outer(u, u)) @ torch.diag(u) @ (weight - weight[top])
        assert_close(r * a.T @ a, curved)


# --- the score --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_lie_between_zero_and_the_largest_squared_distance_from_the_mean_weight(shape):
    h, weight, bias = make_case(*shape, n=50)
    detector = ff.Fold(alpha=0.3).fit(ff.FeatureBank(h), ff.Head(weight, bias))
    low, high = detector.score_range()
    assert low == 0
    assert high == pytest.approx(float((weight - weight.mean(dim=0)).square().sum(dim=-1).max()))
    scores = torch.cat([detector(h * size) for size in (1e-6, 1.0, 1e3)])
    assert ((scores >= low) & (scores <= high)).all()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_partial_normalisation_rescales_the_logits_without_their_bias(alpha):
    h, weight, bias = make_case(5, 4)
    norms = h.norm(dim=-1, keepdim=True)
    expected = ((h @ weight.T) / norms**alpha + bias).softmax(dim=-1)
    assert_close(partially_normalised_probs(h, weight, bias, alpha), expected)
    assert_close(partially_normalised(h, alpha).norm(dim=-1), norms[:, 0] ** (1 - alpha))


def test_partial_normalisation_is_a_common_length_and_a_temperature():
    h, alpha = normal(6, 4), 0.4
    norms = h.norm(dim=-1, keepdim=True)
    m = norms.mean()
    assert_close(partially_normalised(h, alpha), h * (m / norms) ** alpha / m**alpha)


def test_the_score_is_the_hessian_in_the_normalised_features():
    h, weight, bias = make_case(5, 4)
    traces = bent(partially_normalised(h, 0.4), weight, bias).diagonal(dim1=1, dim2=2).sum(dim=-1)
    assert_close(ff.Fold(alpha=0.4).fit(ff.FeatureBank(h), ff.Head(weight, bias))(h), traces)


# --- masked logits ----------------------------------------------------------------------------------------------------


def masked_trace(logits, weight, k):
    """Return the trace with logit k at minus infinity, by the definition."""
    q = logits.index_fill(1, torch.tensor([k]), -torch.inf).softmax(dim=-1)
    return torch.stack([(weight.T @ covariance(row) @ weight).trace() for row in q])


def test_one_product_gives_the_trace_with_and_without_a_mask():
    h, weight, bias = make_case(5, 4)
    logits, labels = h @ weight.T + bias, torch.tensor([0, 1, 2, 3, 4, 0])
    plain, masked = with_and_without(logits, labels, Weights(class_distances(weight)))
    expected = torch.stack([masked_trace(logits, weight, k)[row] for row, k in enumerate(labels)])
    assert_close(masked.trace, expected)
    assert_close(plain.trace, bent(h, weight, bias).diagonal(dim1=1, dim2=2).sum(dim=-1))


def test_a_masked_copy_bends_more_exactly_where_the_page_says():
    h, weight, bias = make_case(5, 4, n=200)
    logits, labels = 2 * h @ weight.T + bias, torch.arange(200) % 5
    plain, masked = with_and_without(logits, labels, Weights(class_distances(weight)))
    q, r, _ = masked_softmax(logits, labels)
    v = (q @ class_distances(weight)).gather(1, labels[:, None])[:, 0]
    gains = masked.trace > plain.trace
    assert 0 < gains.sum() < 200
    assert torch.equal(gains, r * v < (1 + r) * masked.trace)


def test_one_product_gives_the_traces_without_each_class_in_turn():
    h, weight, bias = make_case(5, 4)
    logits, distances = h @ weight.T + bias, class_distances(weight)
    found = without_each(logits, torch.arange(5), Weights(distances)).trace
    p = logits.softmax(dim=-1)
    trace = feature_hessian_trace(p, distances)
    for k in range(5):
        assert_close(found[k], masked_trace(logits, weight, k))
        assert_close(found[k], (trace - p[:, k] * (p @ distances)[:, k]) / (1 - p[:, k]) ** 2)


def test_masking_a_class_is_taking_it_out_of_the_head():
    h, weight, bias = make_case(5, 4)
    others = [0, 1, 3, 4]
    smaller = bent(h, weight[others], bias[others]).diagonal(dim1=1, dim2=2).sum(dim=-1)
    assert_close(masked_trace(h @ weight.T + bias, weight, 2), smaller)


def test_both_criteria_are_means_of_aurocs_over_classes():
    h, weight, bias = make_case(3, 4, n=24)
    logits, labels = h @ weight.T + bias, torch.arange(24) % 3
    masked = torch.stack([masked_trace(logits, weight, k) for k in range(3)])
    plain = bent(h, weight, bias).diagonal(dim1=1, dim2=2).sum(dim=-1)
    own = [ff.auroc(plain[labels == k], masked[k, labels == k]) for k in range(3)]
    rest = [ff.auroc(masked[k, labels != k], masked[k, labels == k]) for k in range(3)]
    arguments = (logits, labels, group_rows(labels, torch.arange(3)), Weights(class_distances(weight)))
    assert float(paired(*arguments, score=lambda moments: moments.trace)[0]) == pytest.approx(np.mean(own))
    assert float(one_vs_rest(*arguments, score=lambda moments: moments.trace)[0]) == pytest.approx(np.mean(rest))


# --- the guarantee, and how certain an AUROC is -----------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_at_most_a_share_of_the_orders_of_exchangeable_scores_raises_an_alarm(ties):
    scores = torch.tensor([1.0, 2.0, 2.0, 2.0, 5.0, 7.0, 7.0] if ties else [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    for fpr in (0.1, 1 / 7, 0.2, 0.3, 0.5, 0.9):
        alarms = 0
        for new in range(7):  # each of the seven is as likely the new one
            others = torch.cat([scores[:new], scores[new + 1 :]])
            alarms += bool(p_values(scores[new : new + 1].double(), others.double())[0] <= fpr + 1e-12)
        assert alarms <= allowed_ranks(fpr, 6) <= 7 * fpr + 1e-9
        assert ties or alarms == allowed_ranks(fpr, 6)


def test_fewer_samples_than_needed_never_raise_an_alarm():
    for fpr in (0.05, 0.01, 0.3):
        needed = samples_needed(fpr)
        assert [allowed_ranks(fpr, n) for n in (needed - 1, needed)] == [0, 1]


def test_the_rate_of_a_single_calibration_follows_a_beta_distribution():
    n, fpr = 99, 0.1
    k = allowed_ranks(fpr, n)
    known = torch.rand(20_000, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort().values
    rates = 1 - known[:, n - k]  # of uniform scores: the share above the k-th largest
    law = beta(k, n + 1 - k)
    assert float(rates.mean()) == pytest.approx(law.mean(), abs=5 * law.std() / sqrt(20_000))
    assert float(rates.std()) == pytest.approx(sqrt(k * (n + 1 - k) / (n + 2)) / (n + 1), rel=0.03)
    assert float((rates <= law.ppf(0.9)).double().mean()) == pytest.approx(0.9, abs=0.01)


def test_the_variance_of_an_auroc_is_that_of_two_means_of_placements():
    known, unknown = normal(40).numpy(), normal(30, seed=1).numpy() + 1
    above = (unknown[:, None] > known).astype(float)
    expected = above.mean(axis=1).var(ddof=1) / 30 + above.mean(axis=0).var(ddof=1) / 40
    found = auroc_influence(known, unknown)
    assert found.auroc == pytest.approx(above.mean())
    assert found.stderr**2 == pytest.approx(expected)


def test_the_variance_of_a_difference_needs_no_covariance_written_down():
    known, unknown = normal(40, 2).numpy(), normal(30, 2, seed=1).numpy() + 1
    known[:, 1] += known[:, 0]
    above = (unknown[:, None] > known).astype(float)
    by_unknown, by_known = above.mean(axis=1), above.mean(axis=0)
    change = np.array([1.0, -1.0])
    expected = change @ (np.cov(by_unknown.T) / 30 + np.cov(by_known.T) / 40) @ change
    a, b = (auroc_influence(known[:, i], unknown[:, i]) for i in range(2))
    assert paired_difference(a, b).stderr ** 2 == pytest.approx(expected)


# --- over parameters --------------------------------------------------------------------------------------------------


def small_network(activation):
    """Return a network of two layers in float64."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 4)).double().eval()


def parameter_matrices(network, x, label=None):
    """Return the Hessian and the Gauss-Newton matrix of one input over all parameters, by autograd, and its logits."""
    names, shapes = zip(*((name, value.shape) for name, value in network.named_parameters()), strict=True)
    theta = torch.cat([value.detach().flatten() for value in network.parameters()])

    def logits(flat):
        parts = flat.split([shape.numel() for shape in shapes])
        values = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return functional_call(network, values, x[None])[0]

    def loss(flat):
        z = logits(flat)
        return z.logsumexp(0) - (0 if label is None else z[label])

    j = jacrev(logits)(theta)
    return hessian(loss)(theta), j.T @ covariance(logits(theta).softmax(0)) @ j, logits(theta), j


@pytest.mark.parametrize("label", [None, 0, 3])
def test_the_hessian_of_a_piecewise_linear_network_has_the_trace_of_its_gauss_newton_matrix(label):
    network, x = small_network(nn.ReLU()), normal(4, 3)
    traces = param_trace(network, [x], level="sample")
    assert traces.stderr is None
    for row, found in zip(x, traces.value, strict=True):
        full, gauss_newton, z, j = parameter_matrices(network, row, label)
        p = z.softmax(0)
        squares = sum(p[c] * (j.T @ (torch.eye(4)[c] - p)).square().sum() for c in range(4))
        assert not torch.allclose(full, gauss_newton)
        assert_close((full - gauss_newton).diagonal(), torch.zeros(len(full)).double(), atol=1e-12, rtol=0)
        assert_close(full.trace(), squares)
        assert_close(found.to(squares), squares)


def test_it_does_not_where_a_layer_is_smooth():
    full, gauss_newton, _, _ = parameter_matrices(small_network(nn.Tanh()), normal(3))
    assert abs(float(full.trace() - gauss_newton.trace())) > 0.01 * float(gauss_newton.trace())


def test_the_largest_eigenvalue_does_depend_on_the_loss():
    network, x = small_network(nn.ReLU()), normal(1, 3)
    energy_hessian, *_ = parameter_matrices(network, x[0])
    found = [param_lambda_max(network, [x], loss=loss).value for loss in ("energy", "ce_pred")]
    assert float(found[0]) == pytest.approx(float(torch.linalg.eigvalsh(energy_hessian)[-1]), rel=1e-4)
    assert float(found[1]) != pytest.approx(float(found[0]), rel=1e-3)


def test_the_covariance_of_a_class_is_a_sum_of_fewer_squares_than_there_are_classes():
    logits = 3 * normal(4, 6)
    classes = OrderedClasses(logits)
    assert classes.terms == 5
    directions = torch.stack([classes.direction(i) for i in range(5)], dim=1)
    made = (classes.weights[:, :, None, None] * directions[:, :, :, None] * directions[:, :, None, :]).sum(dim=1)
    assert_close(made, torch.stack([covariance(row) for row in logits.softmax(dim=-1)]))


def test_the_trace_over_the_last_layer_has_a_closed_form_whatever_is_before_it():
    network, x = small_network(nn.Tanh()), normal(4, 3)
    h, p = network[1](network[0](x)), network(x).softmax(dim=-1)
    expected = (h.square().sum(dim=-1) + 1) * (1 - p.square().sum(dim=-1))
    found = param_trace(network, [x], level="sample", params=["2"])
    assert found.stderr is None
    assert_close(found.value.to(expected), expected.detach())


# --- logits, features, data sets --------------------------------------------------------------------------------------


def test_the_trace_over_logits_is_that_of_classes_at_equal_distances():
    p = normal(6, 5).softmax(dim=-1)
    assert_close(logit_hessian_trace(p), 1 - p.square().sum(dim=-1))
    assert_close(logit_trace(p.log()), feature_hessian_trace(p, class_distances(torch.eye(5).double())))


def test_the_two_traces_bound_each_other_and_agree_on_a_simplex():
    h, weight, bias = make_case(5, 4, n=40)
    p, distances = probabilities(h, weight, bias), class_distances(weight)
    over_features, over_logits = feature_hessian_trace(p, distances), logit_hessian_trace(p)
    between = distances[~torch.eye(5, dtype=torch.bool)] / 2
    assert (between.min() * over_logits <= over_features).all()
    assert (over_features <= between.max() * over_logits).all()
    simplex = 3 * (torch.eye(5).double() - 1 / 5)
    assert_close(feature_hessian_trace(p, class_distances(simplex)), 9 * over_logits)


def test_the_mean_over_a_data_set_has_the_mean_trace_and_no_larger_an_eigenvalue_than_the_mean():
    h, weight, bias = make_case(5, 4, n=20)
    p, mean = probabilities(h, weight, bias), MeanHessian(5)
    mean.add(p)
    expected = bent(h, weight, bias).mean(dim=0)
    assert mean.trace(weight) == pytest.approx(float(expected.trace()))
    assert_close(mean.eigenvalues(weight)[:4], torch.linalg.eigvalsh(expected).flip(0))
    assert mean.eigenvalues(weight)[0] <= largest_hessian_eigenvalue(p, weight).mean()


# --- the theorem ------------------------------------------------------------------------------------------------------


def mixture(d=4, seed=0):
    """Return a mean, a covariance and a rotation."""
    root = normal(d, d, seed=seed)
    turn = torch.linalg.qr(normal(d, d, seed=seed + 1)).Q
    return 0.7 * normal(d, seed=seed + 2), root @ root.T / d + 0.2 * torch.eye(d), turn


def test_the_trace_over_features_of_two_classes_is_half_that_over_logits_times_the_squared_weight():
    w, x = normal(4), normal(4, seed=1)
    head = torch.stack([w, torch.zeros_like(w)])
    over_features = bent(x[None], head, torch.zeros(2))[0].trace()
    over_logits = hessian(lambda z: z.logsumexp(0))(head @ x).trace()
    assert_close(over_features, w @ w * over_logits / 2)


def test_the_printed_loss_falls_without_end_and_below_the_line_that_the_page_draws():
    mean, spread, _ = mixture()
    w = bayes_weight(mean, spread, alpha=1.0)
    found = [printed_loss(t * w, mean, spread) for t in (1, 10, 100)]
    assert all(value <= -t * float(w @ mean) for t, value in zip((1, 10, 100), found, strict=True))


def test_the_logistic_risk_is_least_at_twice_the_inverse_covariance_times_the_mean():
    mean, spread, _ = mixture()
    best = minimize(lambda w: logistic_risk(w, mean.numpy(), spread.numpy()), np.zeros(4), tol=1e-12).x
    assert np.allclose(best, 2 * torch.linalg.solve(spread, mean).numpy(), atol=1e-4)
    assert_close(bayes_weight(mean, spread), 2 * torch.linalg.solve(spread, mean))


def test_the_energy_is_least_where_the_weight_is_zero():
    mean, spread, _ = mixture()
    draws = (
        torch.cat([mean, -mean]).view(2, 1, 4)
        + torch.randn(1, 500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        @ torch.linalg.cholesky(spread).T
    )
    x = torch.cat([draws.flatten(0, 1), -draws.flatten(0, 1)])  # a mean of exactly 0
    risk = [float(torch.logaddexp(x @ (s * normal(4)), torch.zeros(())).mean()) for s in (0.0, 0.01, 0.1, 1.0)]
    assert risk == sorted(risk)
    assert risk[0] == pytest.approx(log(2))


@pytest.mark.parametrize("deviation", [0.1, 1.0, 10.0])
def test_the_average_curvature_is_even_and_falls_with_the_distance_of_the_mean(deviation):
    values = [average_curvature(m, deviation) for m in np.linspace(0, 6, 25)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 25
    assert average_curvature(-2.0, deviation) == pytest.approx(average_curvature(2.0, deviation))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_the_condition_is_necessary_and_sufficient_for_every_length_of_the_classifier(seed, alpha):
    mean, spread, turn = mixture(seed=10 * seed)
    w = torch.linalg.solve(spread, mean)
    limit = float(w @ mean) / abs(float(w @ turn @ mean))
    below, above = (compare(mean, spread, turn, factor * limit, alpha) for factor in (0.98, 1.02))
    assert below.holds
    assert below.id < below.ood
    assert not above.holds
    assert above.id > above.ood


def test_unknown_inputs_nearer_to_zero_may_bend_less_where_the_covariance_is_not_round():
    mean, spread = torch.tensor([0.3, 1.0]).double(), torch.diag(torch.tensor([0.01, 1.0])).double()
    turn = torch.stack([mean, torch.tensor([1.0, -0.3]).double()]) / mean.norm()  # mu to the first axis
    found = compare(mean, spread, turn, c=0.5)
    assert (found.bound, found.shifted) == pytest.approx((10, 15 * float(mean.norm())))
    assert found.ood < found.id


def test_wider_unknown_inputs_may_bend_less_although_the_condition_is_true():
    mean, spread = torch.tensor([1.0]), torch.eye(1)
    w = bayes_weight(mean, spread)
    assert expected_trace(0.5 * mean, 400 * spread, w) < expected_trace(mean, spread, w)
