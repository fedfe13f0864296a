"""Networks whose Hessian has the trace of the Gauss-Newton matrix are told from those whose has not."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from flatfold.curvature import piecewise
from flatfold.curvature.bending import PIECEWISE_LINEAR
from flatfold.curvature.exact import ggn_traces
from flatfold.curvature.piecewise import trace_is_first_order
from flatfold.models.batches import Batch, split_batch
from tests.small_networks import NETWORKS, dense_ggn, dense_hessian, images, loss_of, make, row_by_row_hessian

X = images()


def first_order(model, x=X, parameters=None):
    return trace_is_first_order(model, parameters or dict(model.named_parameters()), split_batch(x))


class Between(nn.Module):
    """Something happens between its layers, which no list of modules shows."""

    def __init__(self, between, classes=4):
        super().__init__()
        self.conv, self.linear, self.between = nn.Conv2d(1, 3, 3), nn.Linear(48, classes), between

    def forward(self, x):
        return self.linear(self.between(self.conv(x)).flatten(1))


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Shortcut(nn.Module):
    def forward(self, x):
        return functional.pad(x[..., ::2, ::2], (1, 1, 1, 1)).abs()


class Once(torch.autograd.Function):
    """Has a first derivative only."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient.clone()


class Cosine(nn.Module):
    """Normalises a weight outside of its layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(36, 4, bias=False)

    def forward(self, x):
        return x.flatten(1) @ functional.normalize(self.linear.weight).T


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.same, self.linear = nn.Linear(36, 36), nn.Linear(36, 4)

    def forward(self, x):
        return self.linear(self.same(self.same(x.flatten(1)).relu()).relu())


class Gated(nn.Module):
    """Only piecewise linear functions, but a product of two of them."""

    def __init__(self):
        super().__init__()
        self.first, self.linear = nn.Linear(36, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.linear(h * functional.hardsigmoid(h))


class Extended(nn.Module):
    """A layer was given one more parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(36, 4)
        self.linear.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.linear(x.flatten(1)) * self.linear.scale


class BareScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(36, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.linear(x.flatten(1)) * self.scale


def seq(*layers):
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Flatten(), nn.LazyLinear(4))


def tied():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 36), nn.Linear(36, 4))
    model[3].weight = model[1].weight
    return model


PIECEWISE = {
    "relu": lambda: seq(nn.ReLU(inplace=True), nn.MaxPool2d(2)),
    "leaky": lambda: seq(nn.LeakyReLU(), nn.AvgPool2d(2), nn.Dropout(0.5)),
    "prelu": lambda: seq(nn.PReLU(4), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2)),
    "clipped": lambda: seq(
        nn.Hardtanh(), nn.MaxPool2d(2), nn.ReLU6(), nn.ZeroPad2d(1), nn.Upsample(5), nn.AvgPool2d(2)
    ),
    "grouped": lambda: seq(nn.Conv2d(4, 8, 3, 2, groups=2), nn.ConvTranspose2d(8, 2, 2), nn.AdaptiveMaxPool2d(2)),
    "functional relu": lambda: Between(torch.relu),
    "own layer": lambda: Between(nn.Sequential(Shortcut(), nn.Identity())),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
}
OTHERS = {
    "tanh": lambda: seq(nn.Tanh()),
    "gelu": lambda: seq(nn.GELU()),
    "silu": lambda: seq(nn.SiLU()),
    "hardswish": lambda: seq(nn.Hardswish()),
    "softmax": lambda: seq(nn.Softmax(1)),
    "group norm": lambda: seq(nn.GroupNorm(2, 4)),
    "layer norm": lambda: seq(nn.LayerNorm([4, 4, 4])),
    "functional tanh": lambda: Between(torch.tanh),
    "functional gelu": lambda: Between(functional.gelu),
    "functional softmax": lambda: Between(lambda x: x.softmax(1)),
    "functional norm": lambda: Between(lambda x: functional.layer_norm(x, [4, 4])),
    "functional square": lambda: Between(torch.square),
    "own smooth layer": lambda: Between(Swish()),
    "cosine": Cosine,
    "tied": tied,
    "called twice": Repeated,
    "gated": Gated,
    "bare": BareScale,
    "extended": Extended,
    "one derivative only": lambda: Between(lambda x: Once.apply(x * x)),
}


def built(table, name, dtype=torch.float64):
    torch.manual_seed(0)
    model = table[name]().to(dtype).eval()
    model(X.to(dtype))  # lets lazy layers take shape
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", PIECEWISE)
def test_piecewise_linear_networks_are_recognised(name, dtype):
    assert first_order(built(PIECEWISE, name, dtype), X.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_recognised(name, dtype):
    assert not first_order(built(OTHERS, name, dtype), X.to(dtype))


@pytest.mark.parametrize("name", PIECEWISE)
@pytest.mark.parametrize("loss", ["energy", "ce_pred"])
def test_where_it_says_so_the_traces_are_equal(name, loss):
    model = built(PIECEWISE, name)
    values, _, _ = ggn_traces(model, dict(model.named_parameters()), split_batch(X))
    assert_close(values.mean(), row_by_row_hessian(model, X, loss).trace().detach(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_agrees_with_the_traces_of_dense_matrices(name):
    model = make(name)
    bent, ggn = dense_hessian(model, X).trace(), dense_ggn(model, X).trace()
    assert first_order(model) == bool((bent - ggn).abs() < 1e-9 * ggn)


@pytest.mark.parametrize("strength", [1.0, 1e-2, 1e-3])
def test_a_weak_nonlinearity_is_found_in_float32(strength):
    model = Between(lambda x: x + strength * torch.tanh(x)).float()
    assert not first_order(model, X.float())


def test_a_saturated_activation_is_known_by_its_module():
    model = seq(nn.Tanh())
    model(X.float())
    with torch.no_grad():
        model[0].bias.fill_(100.0)
    assert not first_order(model.double())


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", ["relu", "batch norm", "tanh"])
def test_the_scale_of_parameters_does_not_matter(name, size):
    model = make(name, dtype=torch.float32)
    with torch.no_grad():
        list(model.parameters())[-2].mul_(size)
    assert first_order(model, X.float()) == (name != "tanh")


def test_parameters_that_are_zero_or_not_used_do_no_harm():
    model = make("batch norm")
    nn.init.zeros_(model.bn2.weight)
    model.unused = nn.Linear(2, 2)
    assert first_order(model)
    assert first_order(model, parameters=dict(model.unused.named_parameters(prefix="unused")))


def test_logits_that_depend_on_no_parameter_bend_nowhere():
    model = make("relu").requires_grad_(False)
    model.unused = nn.Identity()
    model.unused.weight = nn.Parameter(torch.ones(2))
    assert first_order(model, parameters={"unused.weight": model.unused.weight})


def test_a_weight_that_is_used_twice_is_refused_where_the_inputs_do_not_show_it():
    model = built(OTHERS, "called twice")
    with torch.no_grad():
        model.same.bias.fill_(-100.0)  # so that no unit is active
    assert not first_order(model)


def test_a_parameter_that_is_zero_is_moved_all_the_same():
    model = Between(lambda x: x + x * x).double()
    nn.init.zeros_(model.conv.weight)
    nn.init.zeros_(model.conv.bias)
    assert not first_order(model)


def test_only_a_few_inputs_are_used_and_no_gradient_is_stored():
    model, seen = make("relu"), []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    assert first_order(model)
    assert first_order(model, X[:3])
    assert [len(x) for x in seen] == [piecewise.INPUTS, 3]
    assert torch.equal(seen[0], X[[0, 2, 3, 5]])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_arguments_by_name_are_taken_along_with_their_inputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(36, 4)

        def forward(self, x, *, scale, add):
            assert torch.equal(scale, x[:, :1, 0, 0])
            return self.linear(x.flatten(1) * scale + add)

    batch = Batch((X,), {"scale": X[:, :1, 0, 0], "add": torch.zeros(36).double()}, None, len(X))
    model = Named().double()
    assert trace_is_first_order(model, dict(model.named_parameters()), batch)


def test_a_last_input_that_bends_is_not_overlooked():
    model = Between(lambda x: x + (x - 50).relu().square()).double()
    x = X.clone()
    assert first_order(model, x)
    x[-1] *= 1000
    assert not first_order(model, x)


def test_numbers_that_are_not_finite_are_not_taken_for_zero():
    step = torch.zeros((), requires_grad=True)
    assert not piecewise._is_affine_in(step, (step * step * torch.nan).expand(2, 3))


def test_a_layer_whose_forward_was_replaced_is_not_known():
    model = make("relu")
    model[4].forward = lambda x: nn.functional.linear(x, model[4].weight.tanh(), model[4].bias)
    assert not first_order(model)


def test_errors_of_another_kind_are_passed_on():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("not enough memory")

    model = Between(Failing.apply)
    with pytest.raises(RuntimeError, match="not enough memory"):
        first_order(model, X.float())


def test_the_list_holds_no_smooth_layer():
    smooth = {nn.Tanh, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.ELU, nn.Hardswish, nn.LayerNorm, nn.GroupNorm}
    assert not PIECEWISE_LINEAR & smooth
    assert nn.Conv2d in PIECEWISE_LINEAR


def test_a_hook_that_bends_the_output_of_a_layer_is_seen():
    model = make("relu")
    assert first_order(model)
    model[0].register_forward_hook(lambda _, __, output: output.square())
    assert not first_order(model)


def test_a_checkpoint_is_no_obstacle():
    class Checkpointed(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    assert first_order(Checkpointed(make("relu")))
    assert not first_order(Checkpointed(Between(torch.tanh).double()))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.cell, self.head = nn.Linear(6, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        state = torch.zeros(1, len(x), 5, dtype=x.dtype)
        return self.head(self.cell(self.first(x[:, 0]), (state, state))[0].mean(1))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mix, self.head = (
            nn.Linear(6, 6),
            nn.MultiheadAttention(6, 2, batch_first=True),
            nn.Linear(6, 4),
        )

    def forward(self, x):
        h = self.first(x[:, 0])
        return self.head(self.mix(h, h, value=h)[0].mean(1))


class Smooth(nn.Module):
    """A smooth trunk, and a head of two layers with a ReLU between them."""

    def __init__(self, *layers):
        super().__init__()
        self.first, self.smooth = nn.Linear(36, 8), nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))

    def forward(self, x):
        return self.head(self.smooth(self.first(x.flatten(1))))


TRUNKS = {
    "tanh": lambda: Smooth(nn.Tanh()),
    "layer norm": lambda: Smooth(nn.LayerNorm(8), nn.GELU()),
    "encoder": lambda: Smooth(
        nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 9, batch_first=True), nn.Flatten()
    ),
    "weight norm": lambda: Smooth(weight_norm(nn.Linear(8, 8)), nn.Softplus()),
    "attention": Attending,
}


def part_of(model, name):
    return {full: value for full, value in model.named_parameters() if full.startswith(name)}


def trace_over(model, parameters):
    """Return the trace of the Hessian over some parameters, from its diagonal blocks."""

    def loss(values):
        return loss_of(functional_call(model, values, (X,)), "ce_pred").mean()

    blocks = hessian(loss)({name: value.detach() for name, value in parameters.items()})
    return sum(blocks[name][name].reshape(value.numel(), -1).trace() for name, value in parameters.items()).detach()


@pytest.mark.parametrize("name", TRUNKS)
def test_what_runs_before_the_chosen_parameters_may_be_anything(name):
    torch.manual_seed(0)
    model = TRUNKS[name]().double().eval()
    chosen = part_of(model, "head")
    assert first_order(model, parameters=chosen)
    assert not first_order(model, parameters=part_of(model, "first"))
    assert not first_order(model, parameters=chosen | part_of(model, "first"))
    values, _, _ = ggn_traces(model, chosen, split_batch(X))
    assert_close(values.mean(), trace_over(model, chosen), rtol=1e-9, atol=0)


def test_a_layer_that_is_given_more_than_tensors_is_not_taken_for_one_that_comes_before():
    model = Recurrent().double()
    assert not first_order(model, parameters=part_of(model, "first"))
    assert not first_order(model, parameters=part_of(model, "head"))


def test_saturated_layers_behind_the_parameters_are_known_by_their_modules():
    model = Smooth(nn.Tanh()).double()
    with torch.no_grad():
        model.first.bias.fill_(100.0)
    assert not first_order(model, parameters=part_of(model, "first"))
    torch.manual_seed(0)
    model = Attending().double()
    nn.init.zeros_(model.mix.in_proj_weight)
    assert not first_order(model, parameters=part_of(model, "first"))


def test_a_smooth_layer_that_is_never_run_does_no_harm():
    model = make("relu")
    model[0].aside = nn.Tanh()
    assert first_order(model)


@pytest.mark.parametrize("fails", [False, True])
def test_other_parameters_require_gradients_as_before_and_no_hook_is_left(fails):
    model = Smooth(nn.Tanh()).double()
    model.first.bias.requires_grad_(False)
    before = [value.requires_grad for value in model.parameters()]
    if fails:
        with pytest.raises(ValueError, match="the network cannot take inputs"):
            first_order(model, X[..., :3], part_of(model, "head"))
    else:
        assert first_order(model, parameters=part_of(model, "head"))
    assert [value.requires_grad for value in model.parameters()] == before
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_layer_that_runs_for_nothing_while_its_weight_is_used_elsewhere_is_seen():
    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(36, 4, bias=False)

        def forward(self, x):
            self.linear(x.flatten(1))
            return x.flatten(1) @ self.linear.weight.T.sin()

    assert not first_order(Aside().double())
