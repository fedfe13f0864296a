"""Exact Gauss-Newton traces from one pass per class: digits of confident inputs, and the estimate for many classes."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from flatfold.curvature import param_lambda_max, param_trace
from flatfold.curvature.exact import OrderedClasses, ggn_eigenvalues, ggn_traces
from flatfold.data.batch import split_batch
from tests.small_networks import images, make

PER_INPUT = {"level": "sample", "matrix": "ggn"}


def all_of(model):
    return dict(model.named_parameters())


def covariance(logits):
    p = logits.double().softmax(-1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def test_float32_keeps_the_digits_of_confident_inputs():
    for certainty in (1, 10, 25, 60, 200):
        model, x = make("batch norm"), images().float()
        with torch.no_grad():
            model.linear.bias[0] += certainty
        model.float()
        single = [call(model, [x], **PER_INPUT).value for call in (param_trace, param_lambda_max)]
        model.double()
        wide = [call(model, [x.double()], **PER_INPUT).value for call in (param_trace, param_lambda_max)]
        assert (single[0] > 0).all(), certainty
        assert_close(single, wide, rtol=1e-4, atol=0)


def test_the_terms_of_all_classes_make_up_the_covariance():
    for scale in (0.1, 3, 1000):
        logits = scale * torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        classes = OrderedClasses(logits)
        columns = torch.stack([classes.direction(i) for i in range(classes.terms)], dim=2)
        assert classes.terms == 6
        found = columns * classes.weights[:, None, :] @ columns.transpose(1, 2)
        assert_close(found, covariance(logits), rtol=1e-12, atol=1e-16)


def test_the_terms_of_a_confident_input_add_up_to_sixteen_digits():
    for certainty in (0, 40, 100, 600):
        logits = torch.linspace(-1, 1, 5, dtype=torch.float64).repeat(2, 1)
        logits[0, 2] += certainty
        classes = OrderedClasses(logits)
        total = sum(classes.direction(i).square().sum(1) * classes.weights[:, i] for i in range(4))
        p = logits.softmax(1)
        expected = (p[:, :, None] * p[:, None, :] * (1 - torch.eye(5, dtype=torch.float64))).sum((1, 2))
        assert (expected > 0).all()
        assert_close(total, expected, rtol=1e-13, atol=0)


def test_signed_sums_have_the_covariance_of_the_classes_that_are_left():
    for first in (0, 1, 3, 5):
        g = torch.Generator().manual_seed(0)
        logits = 2 * torch.randn(1, 7, generator=g, dtype=torch.float64)
        classes = OrderedClasses(logits.expand(50_000, 7))
        sums = classes.signed_sum(first, g)
        order = logits[0].argsort(descending=True)
        left = logits.clone()
        left[:, order[:first]] = -torch.inf
        assert_close(sums.T @ sums / len(sums), covariance(left)[0], atol=0.01, rtol=0)
        assert_close(classes.rest(first)[0], logits.softmax(1)[0, order[first:]].sum())


def wide(classes=40, n=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, classes)).double()
    return model, split_batch(2 * torch.randn(n, 5, dtype=torch.float64))


def test_eigenvalues_are_not_negative_where_there_are_fewer_parameters_than_classes():
    model, batch = wide()
    some = {"0.bias": model[0].bias}
    values = ggn_eigenvalues(model, some, batch)
    assert values.shape == (8, 40)
    assert (values >= 0).all()
    assert (values[:, 12:] < 1e-12).all()
    assert_close(values.sum(1), ggn_traces(model, some, batch)[0])


@pytest.mark.parametrize("top", [0, 1, 10])
def test_the_rest_is_estimated_without_bias_and_with_an_honest_error(top):
    model, batch = wide()
    exact, _, _ = ggn_traces(model, all_of(model), batch)
    runs = 400
    again = split_batch(batch.args[0].repeat(runs, 1))  # each copy of an input has signs of its own
    values, errors, passes = ggn_traces(model, all_of(model), again, top, 20, torch.Generator().manual_seed(1))
    assert passes == top + 20
    values, errors = values.view(runs, -1), errors.view(runs, -1)
    spread = values.std(0)
    assert ((values.mean(0) - exact).abs() < 4 * spread / runs**0.5).all()
    assert_close(errors.square().mean(0).sqrt(), spread, rtol=0.25, atol=0)


def test_more_classes_done_exactly_leave_less_to_be_estimated_and_all_of_them_nothing():
    model, batch = wide()
    again = split_batch(batch.args[0].repeat(20, 1))
    g = torch.Generator().manual_seed(0)
    errors = [ggn_traces(model, all_of(model), again, top, 10, g)[1].mean() for top in (0, 10, 30)]
    assert errors[0] > 1.3 * errors[1] > 3 * errors[2] > 0
    exact, _, passes = ggn_traces(model, all_of(model), batch)
    for top in (39, 40, 100):
        values, stderr, some = ggn_traces(model, all_of(model), batch, top, probes=2)
        assert_close(values, exact)
        assert (stderr, some, passes) == (None, 39, 39)


@pytest.mark.parametrize("seeds", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_more_than_a_hundred_classes_are_estimated_beyond_the_likeliest(seeds):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 150)).double()
    model[3].weight.data *= 4
    x = images()
    exact = param_trace(model, [x], level="sample", method="exact")
    assert (exact.stderr, exact.matvecs) == (None, 149)
    hits = []
    for seed in range(seeds):
        some = param_trace(model, [x], level="sample", seed=seed)
        assert torch.equal(some.value, param_trace(model, [x], level="sample", seed=seed).value)
        assert not torch.equal(some.value, param_trace(model, [x], level="sample", seed=seed + 1).value)
        assert some.matvecs < 100
        assert "rest" in some.method
        hits.append((some.value - exact.value).abs() <= 2 * some.stderr)
        whole = param_trace(model, [x], seed=seed)
        assert whole.value == pytest.approx(float(some.value.mean()))
        assert whole.stderr == pytest.approx(float(some.stderr.square().sum().sqrt() / 6))
    assert torch.stack(hits).double().mean() > 0.9
