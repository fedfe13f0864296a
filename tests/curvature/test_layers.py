"""Curvature over the output of a layer, against the dense Hessian of what follows it."""

import pytest
import torch
from torch import nn
from torch.func import hessian
from torch.testing import assert_close

from flatfold.core.hessian import class_distances, feature_hessian_trace
from flatfold.curvature.layers import layer_eigenvalues, layer_trace
from tests.small_networks import images, make


class Net(nn.Module):
    """A trunk, features, and a head; one layer gives a pair, one numbers of classes, one is not run, one runs twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.act, self.pair, self.index, self.turned = nn.ReLU(inplace=True), Pair(), Index(), Turned()
        self.features, self.head = nn.Flatten(), nn.Linear(48, 4)
        self.extra, self.twice, self.aside = nn.Linear(3, 3), nn.Identity(), nn.Identity()

    def forward(self, x):
        x = self.act(self.bn(self.conv(x)))
        self.pair(x), self.index(x), self.turned(x), self.aside(x)
        return self.head(self.twice(self.twice(self.features(x))))


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class Index(nn.Module):
    def forward(self, x):
        return x.argmax(1)


class Turned(nn.Module):
    def forward(self, x):
        return x.transpose(0, 1)


X = images(5)


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net().double()
    model.bn.running_mean.uniform_(-0.5, 0.5)
    return model.eval()


def tail(model, layer):
    rest = {
        "conv": lambda a: model.head(model.bn(a).relu().flatten(1)),
        "bn": lambda a: model.head(a.relu().flatten(1)),
        "act": lambda a: model.head(a.flatten(1)),
        "features": model.head,
        "head": lambda a: a,
    }
    return rest[layer]


def activation(model, layer):
    steps = [model.conv, model.bn, torch.relu, lambda a: a.flatten(1), model.head]
    x = X
    for step in steps[: 1 + ["conv", "bn", "act", "features", "head"].index(layer)]:
        x = step(x)
    return x.detach()


def dense(model, layer):
    """Return the Hessian of the energy over the output of a layer, for each input."""
    values = activation(model, layer)
    size = values[0].numel()
    energy = lambda a: tail(model, layer)(a[None]).logsumexp(1)[0]  # noqa: E731
    return torch.stack([hessian(energy)(one).reshape(size, size) for one in values]).detach()


@pytest.mark.parametrize("layer", ["conv", "bn", "act", "features", "head"])
def test_where_the_rest_is_piecewise_linear_it_is_the_hessian(net, layer):
    matrices = dense(net, layer)
    assert_close(layer_trace(net, layer, X), matrices.diagonal(dim1=1, dim2=2).sum(1), rtol=1e-10, atol=0)
    values = layer_eigenvalues(net, layer, X)
    assert values.shape == (5, 4)
    assert_close(values, torch.linalg.eigvalsh(matrices).flip(1)[:, :4], rtol=1e-8, atol=1e-12)
    assert (values >= 0).all()


def test_at_the_features_it_is_the_feature_trace(net):
    probs = net(X).detach().softmax(1)
    expected = feature_hessian_trace(probs, class_distances(net.head.weight.detach()))
    assert_close(layer_trace(net, "features", X), expected)
    assert_close(layer_eigenvalues(net, "features", X).sum(1), expected)


def test_behind_a_smooth_function_it_is_the_gauss_newton_matrix():
    model = make("tanh")
    x = images(1)
    values = model[0](x).detach().requires_grad_()
    logits = model[1:](values)
    jacobian = torch.stack([torch.autograd.grad(z, values, retain_graph=True)[0].flatten() for z in logits[0]])
    p = logits[0].detach().softmax(0)
    matrix = jacobian.T @ (p.diag() - p[:, None] * p) @ jacobian
    assert_close(layer_trace(model, "0", x)[0], matrix.trace(), rtol=1e-10, atol=0)
    assert_close(layer_eigenvalues(model, "0", x)[0], torch.linalg.eigvalsh(matrix).flip(0)[:4], atol=1e-12, rtol=1e-9)


def test_the_largest_k_are_the_first_of_all(net):
    every = layer_eigenvalues(net, "conv", X)
    assert torch.equal(layer_eigenvalues(net, "conv", X, k=2), every[:, :2])
    assert layer_eigenvalues(net, "conv", X, k=99).shape == (5, 4)


def test_a_layer_narrower_than_the_classes_has_as_many_as_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 6)).double()
    values = layer_eigenvalues(model, "0", torch.randn(4, 3).double())
    assert values.shape == (4, 2)
    assert (values > 0).all()


@pytest.mark.parametrize("certainty", [10, 40, 80])
def test_float32_keeps_the_digits_of_confident_inputs(net, certainty):
    with torch.no_grad():
        net.head.bias[1] += certainty
    net.float().double()
    x = X.float()
    trace, values = layer_trace(net, "conv", x.double()), layer_eigenvalues(net, "conv", x.double())
    net.float()
    assert layer_trace(net, "conv", x).dtype == torch.float32
    assert_close(layer_trace(net, "conv", x).double(), trace, rtol=1e-4, atol=0)
    assert_close(layer_eigenvalues(net, "conv", x, k=1).double(), values[:, :1], rtol=1e-4, atol=0)


def test_the_model_is_left_as_it_was(net):
    net.train()
    net.bn.eval()
    net.head.weight.requires_grad_(False)
    layer_trace(net, "conv", X)
    layer_eigenvalues(net, "conv", X)
    assert net.training
    assert not net.bn.training
    assert not net.head.weight.requires_grad
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(not module._forward_hooks for module in net.modules())


def test_it_does_not_matter_whether_gradients_are_enabled_or_parameters_frozen(net):
    expected = layer_trace(net, "conv", X)
    with torch.no_grad():
        assert_close(layer_trace(net, "conv", X), expected)
    net.requires_grad_(False)
    assert_close(layer_trace(net, "conv", X), expected)
    assert not layer_trace(net, "aside", X).any()
    assert not layer_eigenvalues(net, "aside", X).any()


def test_a_layer_that_does_not_reach_the_logits_has_no_curvature(net):
    assert not layer_trace(net, "aside", X).any()


def test_labels_of_a_batch_are_left_out(net):
    assert_close(layer_trace(net, "conv", (X, torch.zeros(5, dtype=torch.long))), layer_trace(net, "conv", X))


@pytest.mark.parametrize(
    ("layer", "error", "message"),
    [
        ("none", ValueError, r"layer must be the name of a module, got 'none'\. The model has conv, bn, act"),
        ("extra", ValueError, r"runs once in a pass, but extra runs not at all\. Name another"),
        ("twice", ValueError, r"runs once in a pass, but twice runs 2 times\. Name another"),
        ("pair", TypeError, r"the output of pair must be a tensor of floating-point numbers, got tuple\. Name another"),
        ("index", TypeError, r"the output of index must be a tensor of floating-point numbers, got torch.int64"),
        (
            "turned",
            ValueError,
            r"must have one entry per input, \(5, \.\.\.\), got \(3, 5, 4, 4\)\. Name a layer where",
        ),
    ],
)
def test_layers_that_cannot_be_used_are_refused(net, layer, error, message):
    for function in (layer_trace, layer_eigenvalues):
        with pytest.raises(error, match=message):
            function(net, layer, X)
    assert all(not module._forward_hooks for module in net.modules())


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_a_count_that_is_none_is_refused(net, k):
    with pytest.raises(ValueError, match="k must be a whole number from 1 on"):
        layer_eigenvalues(net, "conv", X, k)


def test_a_model_without_classes_is_refused():
    with pytest.raises(ValueError, match=r"one row of at least two logits per input, \(5, c\), got \(5, 1\)"):
        layer_trace(nn.Sequential(nn.Flatten(), nn.Linear(36, 1)).double(), "0", X)


def test_a_batch_normalisation_that_mixes_inputs_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten())
    with pytest.raises(ValueError, match="batch normalisation that keeps no running statistics"):
        layer_trace(model.double(), "0", X)


class TokensFirst(nn.Module):
    def __init__(self, cut=False):
        super().__init__()
        self.inner, self.head, self.cut = nn.Linear(3, 4), nn.Linear(4, 2), cut

    def forward(self, x):
        x = self.inner(x.transpose(0, 1)).tanh().mean(0)
        return self.head(x.detach() if self.cut else x)


def test_tokens_that_come_first_are_not_taken_for_inputs():
    model, x = TokensFirst(), torch.randn(5, 5, 3)  # as many of them
    for function in (layer_trace, layer_eigenvalues):
        with pytest.raises(ValueError, match=r"entry i of the output of inner must belong to input i, .* inputs come"):
            function(model, "inner", x)


def test_a_graph_that_is_cut_is_not_taken_for_a_layer_without_effect():
    with pytest.raises(ValueError, match=r"logits change with the output of inner, but no gradient leads back"):
        layer_trace(TokensFirst(cut=True), "inner", torch.randn(5, 5, 3))


def steep(net, scale=1e20):
    """Return a network in float32 with a head so steep that its weights have no squares, and features as small."""
    with torch.no_grad():
        net.head.weight *= scale
        net.bn.weight /= scale
        net.bn.bias /= scale
    return net.float()


def test_gradients_without_a_square_have_a_curvature_all_the_same(net):
    net.head.bias.data[0] += 40
    model = steep(net)
    traces, eigenvalues = (function(model, "act", X.float()) for function in (layer_trace, layer_eigenvalues))
    model.double()
    assert 1e19 < model.head.weight.abs().max() < 1e20
    assert (traces < 1e30).all()
    assert_close(traces.double(), layer_trace(model, "act", X.float().double()), rtol=1e-4, atol=0)
    assert_close(
        eigenvalues[:, 0].double(), layer_eigenvalues(model, "act", X.float().double())[:, 0], rtol=1e-4, atol=0
    )


def test_numbers_that_are_not_finite_are_told(net):
    steep(net)
    with pytest.raises(ValueError, match="the curvature over act must be finite, but row 0 has a NaN or infinite"):
        layer_trace(net, "act", X.float())
    net.head.weight.data[0, 0] = torch.nan
    for function in (layer_trace, layer_eigenvalues):
        with pytest.raises(ValueError, match="logits must be finite, but row 0 has a NaN"):
            function(net, "act", X.float())


def test_what_surrounds_the_call_does_not_matter(net):
    x = X.float()
    expected = layer_trace(net.float(), "conv", x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(layer_trace(net, "conv", x), expected)
    with torch.inference_mode():
        assert_close(layer_trace(net, "conv", x.clone()), expected)
