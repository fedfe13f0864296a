"""`param_trace` is exact for networks whose Hessian has the trace of the Gauss-Newton matrix, and only for those."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from flatfold.curvature import param_trace
from tests.small_networks import NETWORKS, Net, images, loss_of, make, row_by_row_hessian

X = images()


def is_exact(model, x=X, params=None):
    """Tell whether the trace of the Hessian is taken from first derivatives."""
    try:
        return param_trace(model, [x], params=params, method="exact").stderr is None
    except ValueError as error:
        if "no exact form" not in str(error):
            raise
        return False


def seq(*layers):
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Flatten(), nn.LazyLinear(4))


def between(change):
    """Return a network where something happens between the layers, which no list of modules shows."""
    run = lambda m, x: m.linear(m.change(m.conv(x)).flatten(1))  # noqa: E731
    return Net(run, conv=nn.Conv2d(1, 3, 3), linear=nn.Linear(48, 4), change=change)


def linear(run, **parts):
    return Net(lambda m, x: run(m, x.flatten(1)), linear=nn.Linear(36, 4, bias=False), **parts)


def two(run):
    return Net(lambda m, x: m.last(run(m, x.flatten(1))), same=nn.Linear(36, 36), last=nn.Linear(36, 4))


class Shortcut(nn.Module):
    def forward(self, x):
        return functional.pad(x[..., ::2, ::2], (1, 1, 1, 1)).abs()


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Once(torch.autograd.Function):
    """Has a first derivative only."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient.clone()


def tied():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 36), nn.Linear(36, 4))
    model[3].weight = model[1].weight
    return model


def extended():
    """Return a network with a layer that was given one more parameter."""
    model = linear(lambda m, x: m.linear(x) * m.linear.scale)
    model.linear.scale = nn.Parameter(torch.ones(4))
    return model


def aside(model, x):
    """Run a layer for nothing, while its weight is used elsewhere."""
    model.linear(x)
    return x @ model.linear.weight.T.sin()


PIECEWISE = {
    "relu": lambda: seq(nn.ReLU(inplace=True), nn.MaxPool2d(2)),
    "leaky": lambda: seq(nn.LeakyReLU(), nn.AvgPool2d(2), nn.Dropout(0.5)),
    "prelu": lambda: seq(nn.PReLU(4), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2)),
    "clipped": lambda: seq(
        nn.Hardtanh(), nn.MaxPool2d(2), nn.ReLU6(), nn.ZeroPad2d(1), nn.Upsample(5), nn.AvgPool2d(2)
    ),
    "grouped": lambda: seq(nn.Conv2d(4, 8, 3, 2, groups=2), nn.ConvTranspose2d(8, 2, 2), nn.AdaptiveMaxPool2d(2)),
    "functional relu": lambda: between(torch.relu),
    "own layer": lambda: between(nn.Sequential(Shortcut(), nn.Identity())),
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
    "functional tanh": lambda: between(torch.tanh),
    "functional gelu": lambda: between(functional.gelu),
    "functional softmax": lambda: between(lambda x: x.softmax(1)),
    "functional norm": lambda: between(lambda x: functional.layer_norm(x, [4, 4])),
    "functional square": lambda: between(torch.square),
    "own smooth layer": lambda: between(Swish()),
    "weight normalised outside of its layer": lambda: linear(lambda m, x: x @ functional.normalize(m.linear.weight).T),
    "layer run for nothing": lambda: linear(aside),
    "tied": tied,
    "called twice": lambda: two(lambda m, x: m.same(m.same(x).relu()).relu()),
    "product of two branches": lambda: two(lambda m, x: (h := m.same(x)) * functional.hardsigmoid(h)),
    "bare": lambda: linear(lambda m, x: m.linear(x) * m.scale, scale=nn.Parameter(torch.ones(4))),
    "extended": extended,
    "one derivative only": lambda: between(lambda x: Once.apply(x * x)),
    "derivatives that are not finite": lambda: between(lambda x: x + (0 * x).sqrt()),
}


def built(make_network, dtype=torch.float64):
    torch.manual_seed(0)
    model = make_network().to(dtype).eval()
    model(X.to(dtype))  # lets lazy layers take shape
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return model


@pytest.mark.parametrize("name", PIECEWISE)
def test_the_trace_of_a_piecewise_linear_network_is_exact(name):
    model = built(PIECEWISE[name])
    for loss in ("energy", "ce_pred"):
        got = param_trace(model, [X], loss=loss)
        assert got.stderr is None
        assert got.value == pytest.approx(float(row_by_row_hessian(model, X, loss).trace()), rel=1e-9)
    assert is_exact(model.float(), X.float())


@pytest.mark.parametrize("name", OTHERS)
def test_that_of_any_other_network_is_not(name):
    for dtype in (torch.float64, torch.float32):
        assert not is_exact(built(OTHERS[name], dtype), X.to(dtype)), dtype


def test_a_weak_nonlinearity_is_found_in_float32():
    for strength in (1.0, 1e-2, 1e-3):
        model = built(lambda s=strength: between(lambda x: x + s * torch.tanh(x)), torch.float32)
        assert not is_exact(model, X.float()), strength


def test_the_scale_of_parameters_does_not_matter():
    for name in NETWORKS:
        for size in (1e-4, 1.0, 1e4):
            model = make(name, dtype=torch.float32)
            with torch.no_grad():
                list(model.parameters())[-2].mul_(size)
            assert is_exact(model, X.float()) == (name != "tanh"), (name, size)


def test_what_the_inputs_do_not_show_is_known_by_the_modules():
    saturated = built(OTHERS["tanh"])
    nn.init.constant_(saturated[0].bias, 100.0)
    assert not is_exact(saturated)
    inactive = built(OTHERS["called twice"])
    nn.init.constant_(inactive.same.bias, -100.0)
    assert not is_exact(inactive)
    replaced = make("relu")
    replaced[4].forward = lambda x: functional.linear(x, replaced[4].weight.tanh(), replaced[4].bias)
    assert not is_exact(replaced)


def test_parameters_that_are_zero_are_moved_all_the_same():
    model = make("batch norm")
    nn.init.zeros_(model.bn2.weight)
    assert is_exact(model)
    model = built(lambda: between(lambda x: x + x * x))
    nn.init.zeros_(model.conv.weight)
    nn.init.zeros_(model.conv.bias)
    assert not is_exact(model)


def test_layers_that_are_never_run_do_no_harm_and_hooks_that_bend_an_output_are_seen():
    model = make("relu")
    model[0].aside, model[0].unused = nn.Tanh(), nn.Linear(2, 2).double()
    assert is_exact(model)
    model[0].register_forward_hook(lambda _, __, output: output.square())
    assert not is_exact(model)


def test_a_last_input_that_bends_is_not_overlooked():
    model, x = built(lambda: between(lambda x: x + (x - 50).relu().square())), X.clone()
    assert is_exact(model, x)
    x[-1] *= 1000
    assert not is_exact(model, x)


def test_arguments_by_name_are_taken_along_with_their_inputs():
    def run(model, x, scale, add):
        assert torch.equal(scale, x[:, :1, 0, 0])
        return model.linear(x.flatten(1) * scale + add)

    model = Net(run, linear=nn.Linear(36, 4)).double()
    assert is_exact(model, {"x": X, "scale": X[:, :1, 0, 0], "add": torch.zeros(36).double()})


def test_a_checkpoint_is_no_obstacle():
    def checkpointed(inner):
        return Net(lambda m, x: checkpoint(m.inner, x, use_reentrant=False), inner=inner)

    assert is_exact(checkpointed(make("relu")))
    assert not is_exact(checkpointed(between(torch.tanh).double()))


# --- only what runs behind the chosen parameters matters


def smooth(*layers):
    """Return a smooth trunk with a head of two layers with a ReLU between them."""
    return Net(
        lambda m, x: m.head(m.smooth(m.first(x.flatten(1)))),
        first=nn.Linear(36, 8),
        smooth=nn.Sequential(*layers),
        head=nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)),
    )


def attend(model, x):
    h = model.first(x[:, 0])
    return model.head(model.mix(h, h, value=h)[0].mean(1))


def recur(model, x):
    state = torch.zeros(1, len(x), 5, dtype=x.dtype)
    return model.head(model.cell(model.first(x[:, 0]), (state, state))[0].mean(1))


def attending():
    return Net(attend, first=nn.Linear(6, 6), mix=nn.MultiheadAttention(6, 2, batch_first=True), head=nn.Linear(6, 4))


TRUNKS = {
    "tanh": lambda: smooth(nn.Tanh()),
    "layer norm": lambda: smooth(nn.LayerNorm(8), nn.GELU()),
    "encoder": lambda: smooth(
        nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 9, batch_first=True), nn.Flatten()
    ),
    "weight norm": lambda: smooth(weight_norm(nn.Linear(8, 8)), nn.Softplus()),
    "attention": attending,
}


def trace_over_the_head(model):
    """Return the trace of the Hessian over the head, from its diagonal blocks."""

    def loss(values):
        return loss_of(functional_call(model, values, (X,)), "ce_pred").mean()

    head = {name: value.detach() for name, value in model.named_parameters() if name.startswith("head")}
    blocks = hessian(loss)(head)
    return sum(blocks[name][name].reshape(value.numel(), -1).trace() for name, value in head.items()).detach()


@pytest.mark.parametrize("name", TRUNKS)
def test_what_runs_before_the_chosen_parameters_may_be_anything(name):
    model = built(TRUNKS[name])
    got = param_trace(model, [X], params=["head"], loss="ce_pred")
    assert got.stderr is None
    assert got.value == pytest.approx(float(trace_over_the_head(model)), rel=1e-9)
    assert not is_exact(model, params=["first"])
    assert not is_exact(model, params=["head", "first"])


def test_a_layer_that_is_given_more_than_tensors_is_not_taken_for_one_that_comes_before():
    model = Net(recur, first=nn.Linear(6, 6), cell=nn.LSTM(6, 5, batch_first=True), head=nn.Linear(5, 4)).double()
    assert not is_exact(model, params=["first"])
    assert not is_exact(model, params=["head"])


def test_saturated_layers_behind_the_parameters_are_known_by_their_modules():
    model = built(TRUNKS["tanh"])
    nn.init.constant_(model.first.bias, 100.0)
    assert not is_exact(model, params=["first"])
    model = built(attending)
    nn.init.zeros_(model.mix.in_proj_weight)
    assert not is_exact(model, params=["first"])


def test_the_model_is_left_as_it_was_after_an_error_too():
    model = built(TRUNKS["tanh"])
    model.first.bias.requires_grad_(False)
    before = [value.requires_grad for value in model.parameters()]
    assert is_exact(model, params=["head"])
    with pytest.raises(ValueError, match="cannot take"):
        is_exact(model, X[..., :3], ["head"])
    assert [value.requires_grad for value in model.parameters()] == before
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
