"""Traces and eigenvalues of single inputs against the dense Gauss-Newton matrix in float64."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.testing import assert_close

from flatfold.curvature import gradients
from flatfold.curvature.exact import OrderedClasses, ggn_eigenvalues, ggn_traces
from flatfold.models.batches import split_batch
from tests.small_networks import NETWORKS, dense_hessian, images, make


def all_of(model):
    return dict(model.named_parameters())


def covariance(logits):
    p = logits.double().softmax(-1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def dense(model, x):
    """Return the Gauss-Newton matrix of each input, ``(n, size, size)``."""
    found = []
    for row in x:
        jacobian = jacrev(lambda values, row=row: functional_call(model, values, (row[None],))[0])(all_of(model))
        flat = torch.cat([part.detach().flatten(1) for part in jacobian.values()], dim=1)
        found.append(flat.T @ covariance(model(row[None]).detach())[0] @ flat)
    return torch.stack(found)


class Attention(nn.Module):
    """Layer normalisation, GELU and attention, with a bare parameter and one that is never used."""

    def __init__(self):
        super().__init__()
        self.place, self.norm, self.unused = nn.Parameter(torch.randn(6, 6)), nn.LayerNorm(6), nn.Linear(2, 2)
        self.attention, self.mlp = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 6)
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        h = self.norm(x[:, 0] + self.place)
        h = h + self.attention(h, h, h)[0]
        return self.last((h + torch.nn.functional.gelu(self.mlp(h))).mean(1))


def network(name):
    if name in NETWORKS:
        return make(name)
    torch.manual_seed(0)
    return Attention().double().eval()


@pytest.mark.parametrize("name", [*NETWORKS, "attention"])
def test_traces_and_eigenvalues_are_those_of_the_dense_matrix(name):
    model, x = network(name), images()
    matrices = dense(model, x)
    values, stderr, passes = ggn_traces(model, all_of(model), split_batch(x))
    classes = model(x).shape[1]
    assert (values.dtype, stderr, passes) == (torch.float64, None, classes - 1)
    assert_close(values, matrices.diagonal(dim1=1, dim2=2).sum(1), rtol=1e-10, atol=0)
    expected = torch.linalg.eigvalsh(matrices).flip(1)[:, :classes]
    eigenvalues = ggn_eigenvalues(model, all_of(model), split_batch(x))
    assert eigenvalues.shape == (len(x), classes)
    assert_close(eigenvalues, expected, rtol=1e-8, atol=1e-10)
    assert (eigenvalues >= 0).all()
    assert not eigenvalues[:, -1].any()


@pytest.mark.parametrize("name", ["relu", "batch norm"])
@pytest.mark.parametrize("loss", ["energy", "ce_pred", "ce"])
def test_for_a_piecewise_linear_network_it_is_the_trace_of_the_hessian_of_every_loss(name, loss):
    model, x = make(name), images()
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    values, _, _ = ggn_traces(model, all_of(model), split_batch(x))
    expected = torch.stack([dense_hessian(model, x[n : n + 1], loss, labels[n : n + 1]).trace() for n in range(len(x))])
    assert_close(values, expected, rtol=1e-9, atol=0)


def test_for_a_smooth_network_it_is_not():
    model, x = make("tanh"), images()
    values, _, _ = ggn_traces(model, all_of(model), split_batch(x))
    assert abs(float(values.mean()) - float(dense_hessian(model, x).trace())) > 0.01 * float(values.mean())


def test_curvlinops_has_the_same_trace():
    curvlinops = pytest.importorskip("curvlinops", reason="the second oracle is not installed")
    model, x = make("batch norm"), images()
    reference = curvlinops.GGNLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, torch.zeros(len(x), dtype=torch.long))]
    )
    dense_reference = reference @ torch.eye(reference.shape[1], dtype=torch.float64)
    values, _, _ = ggn_traces(model, all_of(model), split_batch(x))
    assert_close(values.mean(), dense_reference.trace(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("certainty", [1, 10, 25, 60, 200])
def test_float32_keeps_the_digits_of_confident_inputs(certainty):
    model, x = make("batch norm"), images()
    logits = model(x).detach()
    with torch.no_grad():  # the last layer is made steep, and small enough to be exact in both types
        model.linear.bias[0] += certainty
        model.float().double()
    batch = split_batch(x.float().double())
    values, _, _ = ggn_traces(model, all_of(model), batch)
    eigenvalues = ggn_eigenvalues(model, all_of(model), batch)
    model.float()
    single, _, _ = ggn_traces(model, all_of(model), split_batch(x.float()))
    assert logits.shape == (6, 3)
    assert (single > 0).all()
    assert_close(single, values, rtol=1e-4, atol=0)
    largest = ggn_eigenvalues(model, all_of(model), split_batch(x.float()))[:, 0]
    assert_close(largest, eigenvalues[:, 0], rtol=1e-4, atol=0)


@pytest.mark.parametrize("scale", [0.1, 3, 1000])
def test_the_terms_of_all_classes_make_up_the_covariance(scale):
    logits = scale * torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    classes = OrderedClasses(logits)
    columns = torch.stack([classes.direction(i) for i in range(classes.terms)], dim=2)
    assert classes.terms == 6
    found = columns * classes.weights[:, None, :] @ columns.transpose(1, 2)
    assert_close(found, covariance(logits), rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("certainty", [0, 40, 100, 600])
def test_the_terms_of_a_confident_input_add_up_to_sixteen_digits(certainty):
    logits = torch.linspace(-1, 1, 5, dtype=torch.float64).repeat(2, 1)
    logits[0, 2] += certainty
    classes = OrderedClasses(logits)
    total = sum(classes.direction(i).square().sum(1) * classes.weights[:, i] for i in range(4))
    p = logits.softmax(1)
    expected = (p[:, :, None] * p[:, None, :] * (1 - torch.eye(5, dtype=torch.float64))).sum((1, 2))
    assert (expected > 0).all()
    assert_close(total, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("first", [0, 1, 3, 5])
def test_signed_sums_have_the_covariance_of_the_classes_that_are_left(first):
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


def test_more_classes_done_exactly_leave_less_to_be_estimated():
    model, batch = wide()
    again = split_batch(batch.args[0].repeat(20, 1))
    g = torch.Generator().manual_seed(0)
    errors = [ggn_traces(model, all_of(model), again, top, 10, g)[1].mean() for top in (0, 10, 30)]
    assert errors[0] > 1.3 * errors[1] > 3 * errors[2] > 0


@pytest.mark.parametrize("top", [39, 40, 100])
def test_with_as_many_classes_as_there_are_it_is_exact(top):
    model, batch = wide()
    exact, _, passes = ggn_traces(model, all_of(model), batch)
    values, stderr, some = ggn_traces(model, all_of(model), batch, top, probes=2)
    assert_close(values, exact)
    assert (stderr, some, passes) == (None, 39, 39)


def test_draws_are_those_of_the_generator():
    model, batch = wide()
    one, other, third = (
        ggn_traces(model, all_of(model), batch, 3, 4, torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)
    )
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


@pytest.mark.parametrize(("top", "probes"), [(3, 1), (3, 0), (-1, 4)])
def test_too_few_draws_for_an_error_are_refused(top, probes):
    model, batch = wide()
    with pytest.raises(ValueError, match=rf"probes 2 or more, got top={top} and probes={probes}\. Leave top out"):
        ggn_traces(model, all_of(model), batch, top, probes)


def test_little_memory_gives_the_same_values(monkeypatch):
    model, x = make("batch norm"), images()
    batch = split_batch(x)
    traces, _, _ = ggn_traces(model, all_of(model), batch)
    eigenvalues = ggn_eigenvalues(model, all_of(model), batch)
    monkeypatch.setattr(gradients, "MEMORY", 1)
    assert_close(ggn_traces(model, all_of(model), batch)[0], traces)
    assert_close(ggn_eigenvalues(model, all_of(model), batch), eigenvalues)
    values, stderr, passes = ggn_traces(model, all_of(model), batch, 1, 3, torch.Generator().manual_seed(0))
    assert (values.shape, stderr.shape, passes) == (traces.shape, traces.shape, 4)
