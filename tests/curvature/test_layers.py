"""Curvature over the output of a layer, against the dense Hessian of what follows it."""

import pytest
import torch
from torch import nn
from torch.func import hessian
from torch.testing import assert_close

from flatfold.curvature import feature_trace, layer_eigenvalues, layer_trace
from tests.curvature.matrices import check_refused
from tests.small_networks import Net, images, make


def run(model, x):
    """Run a trunk and a head; beside them layers that give what has no curvature, or run twice."""
    x = model.act(model.bn(model.conv(x)))
    model.pair(x), model.index(x), model.turned(x), model.aside(x)
    return model.head(model.twice(model.twice(model.features(x))))


X = images(5)


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net(run, conv=nn.Conv2d(1, 3, 3), bn=nn.BatchNorm2d(3), act=nn.ReLU(inplace=True))
    model.pair, model.index = Net(lambda _, x: (x, x)), Net(lambda _, x: x.argmax(1))
    model.turned, model.aside, model.twice = Net(lambda _, x: x.transpose(0, 1)), nn.Identity(), nn.Identity()
    model.features, model.head, model.extra = nn.Flatten(), nn.Linear(48, 4), nn.Linear(3, 3)
    model.double().bn.running_mean.uniform_(-0.5, 0.5)
    return model.eval()


def dense(model, layer):
    """Return the Hessian of the energy over the output of a layer, for each input."""
    steps = {"conv": model.conv, "bn": model.bn, "act": torch.relu, "features": nn.Flatten(1), "head": model.head}
    before = 1 + list(steps).index(layer)
    values = X
    for step in list(steps.values())[:before]:
        values = step(values).detach()

    def energy(a):
        a = a[None]
        for step in list(steps.values())[before:]:
            a = step(a)
        return a.logsumexp(1)[0]

    size = values[0].numel()
    return torch.stack([hessian(energy)(one).reshape(size, size) for one in values]).detach()


@pytest.mark.parametrize("layer", ["conv", "bn", "act", "features", "head"])
def test_where_the_rest_is_piecewise_linear_it_is_the_hessian(net, layer):
    matrices = dense(net, layer)
    assert_close(layer_trace(net, layer, X), matrices.diagonal(dim1=1, dim2=2).sum(1), rtol=1e-10, atol=0)
    values = layer_eigenvalues(net, layer, X)
    assert values.shape == (5, 4)
    assert_close(values, torch.linalg.eigvalsh(matrices).flip(1)[:, :4], rtol=1e-8, atol=1e-12)
    assert (values >= 0).all()
    assert_close(layer_trace(net, "features", X), feature_trace(net.head.weight, net(X)))


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


def test_k_takes_the_largest_of_as_many_as_there_are_classes_or_numbers(net):
    every = layer_eigenvalues(net, "conv", X)
    assert torch.equal(layer_eigenvalues(net, "conv", X, k=2), every[:, :2])
    assert layer_eigenvalues(net, "conv", X, k=99).shape == (5, 4)
    torch.manual_seed(0)
    narrow = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 6)).double()
    values = layer_eigenvalues(narrow, "0", torch.randn(4, 3).double())
    assert values.shape == (4, 2)
    assert (values > 0).all()
    counts = [(k, ValueError, "k must") for k in (0, -1, 1.5, True)]
    check_refused(lambda k: layer_eigenvalues(net, "conv", X, k), counts)


def test_float32_keeps_the_digits_of_confident_inputs(net):
    x = X.float()
    for certainty in (10, 30, 40):
        with torch.no_grad():
            net.head.bias[1] += certainty  # 10, 40, 80 in all
        net.float()
        single = layer_trace(net, "conv", x), layer_eigenvalues(net, "conv", x, k=1)
        net.double()
        assert single[0].dtype == single[1].dtype == torch.float32
        assert_close(single[0].double(), layer_trace(net, "conv", x.double()), rtol=1e-4, atol=0)
        assert_close(single[1].double(), layer_eigenvalues(net, "conv", x.double(), k=1), rtol=1e-4, atol=0)


def test_the_model_is_left_as_it_was_and_what_surrounds_the_call_does_not_matter(net):
    x = X.float()
    expected = layer_trace(net.float(), "conv", x)
    with torch.no_grad():
        assert_close(layer_trace(net, "conv", (x, torch.zeros(5, dtype=torch.long))), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(layer_trace(net, "conv", x), expected)
    with torch.inference_mode():
        assert_close(layer_trace(net, "conv", x.clone()), expected)
    net.train()
    net.bn.eval()
    net.requires_grad_(False)
    assert_close(layer_trace(net, "conv", x), expected)
    assert not layer_trace(net, "aside", x).any()
    assert not layer_eigenvalues(net, "aside", x).any()
    assert (net.training, net.bn.training, net.head.weight.requires_grad) == (True, False, False)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(not module._forward_hooks for module in net.modules())


def test_layers_and_models_that_cannot_be_used_are_refused(net):
    mixing = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten()).double()
    cases = [
        ((net, "none"), ValueError, "name of a module"),
        ((net, "extra"), ValueError, "not at all"),
        ((net, "twice"), ValueError, "2 times"),
        ((net, "pair"), TypeError, "tuple"),
        ((net, "index"), TypeError, "int64"),
        ((net, "turned"), ValueError, "one entry per input"),
        ((nn.Sequential(nn.Flatten(), nn.Linear(36, 1)).double(), "0"), ValueError, "two logits"),
        ((mixing, "0"), ValueError, "running statistics"),
    ]
    for function in (layer_trace, layer_eigenvalues):
        check_refused(lambda case, function=function: function(*case, X), cases)
    assert all(not module._forward_hooks for module in net.modules())


def test_neither_tokens_that_come_first_nor_a_cut_graph_are_taken_for_a_layer_without_effect():
    def tokens_first(follow):
        run = lambda m, x: m.head(follow(m.inner(x.transpose(0, 1)).tanh().mean(0)))  # noqa: E731
        return Net(run, inner=nn.Linear(3, 4), head=nn.Linear(4, 2))

    x = torch.randn(5, 5, 3)  # as many tokens as inputs
    cases = [
        (tokens_first(lambda h: h), ValueError, "must belong to input"),
        (tokens_first(torch.detach), ValueError, "no gradient leads back"),
    ]
    for function in (layer_trace, layer_eigenvalues):
        check_refused(lambda model, function=function: function(model, "inner", x), cases)


def test_gradients_without_a_square_have_a_curvature_all_the_same(net):
    def steep(scale=1e20):
        """Make the head so steep that its weights have no squares in float32, and the features as small."""
        with torch.no_grad():
            net.head.weight *= scale
            net.bn.weight /= scale
            net.bn.bias /= scale
        net.float()

    x = X.float()
    net.head.bias.data[0] += 40
    steep()
    single = [function(net, "act", x).double() for function in (layer_trace, layer_eigenvalues)]
    net.double()
    assert 1e19 < net.head.weight.abs().max() < 1e20
    assert (single[0] < 1e30).all()
    assert_close(single[0], layer_trace(net, "act", x.double()), rtol=1e-4, atol=0)
    assert_close(single[1][:, 0], layer_eigenvalues(net, "act", x.double())[:, 0], rtol=1e-4, atol=0)
    net.head.bias.data[0] -= 40
    net.float()
    with pytest.raises(ValueError, match="act must be finite"):
        layer_trace(net, "act", x)
    net.head.weight.data[0, 0] = torch.nan
    for function in (layer_trace, layer_eigenvalues):
        with pytest.raises(ValueError, match="logits must be finite"):
            function(net, "act", x)
