"""Per-sample traces and eigenvalues over parameters, for every way in which a network may use them.

The oracle is autograd in float64, one input and one logit after the other.
"""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from flatfold.curvature import param_lambda_max, param_trace
from flatfold.curvature import per_sample as gradients
from flatfold.curvature.per_sample import LayerwiseForward, cached_forward, layer_products, row_products
from flatfold.data.batch import split_batch
from tests.small_networks import Net, dense_matrix, images, make

N, K, CLASSES = 5, 3, 4
IMAGE, VECTOR = (4, 7, 6), (3,)


def spatial(dims, **options):
    """Return a network of one convolution in 1, 2 or 3 dimensions."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    return nn.Sequential(conv(4, 6, **options), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(CLASSES))


def tokens(model, x):
    x = model.norm(model.first(x))
    y = model.mixed(x)
    y += x
    return model.last(nn.functional.gelu(y).mean((1, 2)))


def norms(model, x):
    x = model.bn(model.conv(x))
    x = x + model.gn(x).relu_()
    return model.flat(model.fc(input=x.amax((2, 3))))


NORMS = Net(norms, conv=nn.Conv2d(4, 6, 3), bn=nn.BatchNorm2d(6), gn=nn.GroupNorm(2, 6))
NORMS.fc, NORMS.flat = nn.Linear(6, CLASSES), nn.BatchNorm1d(CLASSES)
TOKENS = Net(tokens, first=nn.Linear(3, 6), norm=nn.LayerNorm((2, 6)))
TOKENS.mixed, TOKENS.last = nn.Linear(6, 6, bias=False), nn.Linear(6, CLASSES)
BY_LAYER = {
    "conv 1d": (spatial(1, kernel_size=3, stride=2, padding=1), (4, 9)),
    "conv 2d": (spatial(2, kernel_size=(3, 2), stride=(2, 1), padding=(0, 1), dilation=(1, 2)), IMAGE),
    "conv 3d": (spatial(3, kernel_size=2, stride=2), (4, 4, 3, 5)),
    "groups": (spatial(2, kernel_size=3, groups=2, bias=False), IMAGE),
    "same": (spatial(2, kernel_size=(4, 3), padding="same", dilation=(1, 2)), IMAGE),
    "valid": (spatial(1, kernel_size=3, padding="valid"), (4, 9)),
    "circular": (spatial(2, kernel_size=3, padding=(2, 1), padding_mode="circular"), IMAGE),
    "reflect": (spatial(1, kernel_size=3, padding=2, padding_mode="reflect"), (4, 9)),
    "replicate": (spatial(3, kernel_size=3, padding=1, padding_mode="replicate"), (4, 3, 2, 3)),
    "many positions": (spatial(2, kernel_size=1), (4, 12, 12)),
    "depthwise": (nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Tanh(), nn.Flatten(), nn.Linear(160, CLASSES)), IMAGE),
    "prelu": (nn.Sequential(nn.Conv2d(4, 3, 3), nn.PReLU(3), nn.Flatten(), nn.Linear(60, CLASSES)), IMAGE),
    "one slope": (nn.Sequential(nn.Linear(3, 5), nn.PReLU(), nn.Linear(5, CLASSES)), VECTOR),
    "norms": (NORMS, IMAGE),
    "tokens": (TOKENS, (3, 2, 3)),
}


def three(run, width=3):
    """Return a network with three linear layers, of which the first two share their weight."""
    model = Net(run, first=nn.Linear(3, width), second=nn.Linear(3, width), last=nn.Linear(width, CLASSES))
    model.second.weight = model.first.weight
    return model


def turned(rows):
    """Return the rows in another order, of which the first is the same."""
    return torch.cat([rows[:1], rows[1:].flip(0)])


def dead(x):
    """Return what leaves nothing of inputs that begin with 9, behind a ReLU."""
    return 1e3 * (x[:, :1] == 9)


def not_called(model, x):
    """Use a weight, but not its layer; throw away what another layer gives."""
    model.last(x)
    return x @ model.last.weight.T + model.first(x).sum(1, keepdim=True)


def bare(run):
    return Net(run, shift=nn.Parameter(torch.randn(3)), last=nn.Linear(3, CLASSES))


def shifted(model, x):
    return model.last((x + model.shift).relu())


def listed(run):
    """Return a network whose weight is used by its layer, and again from a plain list."""
    model = three(run)
    model.again = [model.first.weight]
    return model


def enclosed():
    """Return a network that uses a bare parameter through a function that holds it."""
    model = bare(lambda m, x: shifted(m, m.scaled(x)))
    model.scaled = lambda x, shift=model.shift: x * shift.exp()
    return model


def unregistered():
    """Return a layer in a plain list, whose parameters are there by another name."""
    layer = nn.Linear(3, CLASSES)
    return Net(lambda m, x: m.layers[0](x).tanh(), layers=[layer], own=nn.ParameterList(layer.parameters()))


def extended():
    """Return a network with a layer that was given one more parameter."""
    model = Net(lambda m, x: m.last(x) * m.last.scale, last=nn.Linear(3, CLASSES))
    model.last.scale = nn.Parameter(torch.randn(CLASSES))
    return model


def attend(model, x):
    x = model.norm(x)
    return model.last(nn.functional.gelu(model.mix(x, x, x)[0]).mean(1))


def attention():
    return Net(
        attend, mix=nn.MultiheadAttention(4, 2, batch_first=True), last=nn.Linear(4, CLASSES), norm=nn.LayerNorm(4)
    )


class Scaled(nn.Linear):
    """A layer that is not quite what its parent is."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.sin(), self.bias)


def replaced():
    layer = nn.Linear(3, CLASSES)
    layer.forward = lambda x: Scaled.forward(layer, x)
    return nn.Sequential(layer)


class Halved(torch.autograd.Function):
    """Has a rule for vmap that is not what it does otherwise."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return x / 2, in_dims[0]


BY_INPUT = {
    # as many tokens as inputs, in the first dimension; rows of one matrix; inputs in another order
    "tokens first": (three(lambda m, x: m.last(m.first(x.transpose(0, 1)).tanh().mean(0)), 6), (N, 3)),
    "folded": (three(lambda m, x: m.last(m.first(x.flatten(0, 1)).relu().unflatten(0, x.shape[:2]).sum(1)), 6), (2, 3)),
    "rows turned": (three(lambda m, x: m.last(m.first(x.flip(0)).tanh().flip(0))), VECTOR),
    "turned but the first": (
        three(lambda m, x: m.last(m.first(turned(x)).tanh()[turned(torch.arange(len(x)))])),
        VECTOR,
    ),
    "turned, the first dead": (
        three(lambda m, x: m.last((m.first(x.flip(0)) - dead(x.flip(0))).relu().flip(0))),
        VECTOR,
    ),
    "tied": (three(lambda m, x: m.last(m.second(m.first(x).relu()).relu())), VECTOR),
    "called twice": (three(lambda m, x: m.last(m.first(m.first(x).relu()))), VECTOR),
    "used elsewhere": (three(lambda m, x: m.last(m.first(x) + x @ m.first.weight.sin())), VECTOR),
    "not called": (three(not_called), VECTOR),
    "bare": (bare(shifted), VECTOR),
    "subclass": (nn.Sequential(Scaled(3, CLASSES)), VECTOR),
    "weight norm": (nn.Sequential(weight_norm(nn.Linear(3, CLASSES))), VECTOR),
    "forward replaced": (replaced(), VECTOR),
    "extended": (extended(), VECTOR),
    "attention": (attention(), (3, 4)),
    # vmap cannot follow the first one, and would be wrong for the others
    "deciding": (bare(lambda m, x: shifted(m, x if x.abs().sum().item() > 0 else -2 * x)), VECTOR),
    "listed": (listed(lambda m, x: m.last((m.first(x) + 0.3 * x @ m.again[0]).tanh())), VECTOR),
    "listed for some": (
        listed(lambda m, x: m.last((m.first(x) + x.sum(1, keepdim=True).relu() * m.again[0].sum(0)).tanh())),
        VECTOR,
    ),
    "enclosed": (enclosed(), VECTOR),
    "unregistered": (unregistered(), VECTOR),
    "wrong rule": (bare(lambda m, x: shifted(m, Halved.apply(x))), VECTOR),
}
EVERY = BY_LAYER | BY_INPUT


def case(name):
    """Return a network in float64 with parameters that are not trivial, and inputs for it."""
    torch.manual_seed(0)
    model, shape = EVERY[name]
    x = torch.randn(N, *shape, dtype=torch.float64)
    model.double().eval()(x)  # lets lazy layers take shape
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    if name == "listed for some":
        x[0] = -x[0].abs()
    if name == "turned, the first dead":
        x[0, 0] = 9
    return model, x


def oracle(model, x, params=None):
    """Return traces and largest eigenvalues of the Gauss-Newton matrix of each input, from its Jacobian."""
    parameters = [value for name, value in model.named_parameters() if params is None or name in params]
    totals, largest = [], []
    for row in x:
        logits = model(row[None])[0]
        slopes = [torch.autograd.grad(z, parameters, retain_graph=True, materialize_grads=True) for z in logits]
        jacobian = torch.stack([torch.cat([part.flatten() for part in slope]) for slope in slopes])
        p = logits.detach().softmax(0)
        root = p.sqrt()[:, None] * (jacobian - p @ jacobian)  # its square is J'(diag p - p p')J
        totals.append(root.square().sum())
        largest.append(torch.linalg.eigvalsh(root @ root.T)[-1])
    return torch.stack(totals), torch.stack(largest)


def check_against_oracle(model, x, params=None, batch=None):
    settings = {"level": "sample", "matrix": "ggn", "params": params}
    batches = [x if batch is None else batch]
    got = param_trace(model, batches, **settings), param_lambda_max(model, batches, **settings)
    for estimate, expected in zip(got, oracle(model, x, params), strict=True):
        assert (estimate.stderr, estimate.method, estimate.value.dtype) == (None, "exact", torch.float64)
        assert not estimate.value.requires_grad
        assert_close(estimate.value, expected, rtol=1e-10, atol=1e-12)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(not module._forward_hooks for module in model.modules())


def goes_by_layer(model, x):
    return isinstance(cached_forward(model, dict(model.named_parameters()), split_batch(x)), LayerwiseForward)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", EVERY)
def test_every_use_of_parameters_gives_what_autograd_gives_input_by_input(name):
    check_against_oracle(*case(name))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_the_fast_way_is_taken_exactly_where_each_parameter_belongs_to_one_known_layer():
    for name in EVERY:
        assert goes_by_layer(*case(name)) == (name in BY_LAYER), name


def test_any_choice_of_parameters_can_be_made():
    for name in ("conv 2d", "groups", "norms", "tokens", "many positions"):
        model, x = case(name)
        for ending in ("weight", "bias"):
            params = [full for full, _ in model.named_parameters() if full.endswith(ending)]
            if params:
                check_against_oracle(model, x, params)


def test_parameters_that_do_not_reach_the_logits_add_nothing():
    def run(model, x):
        model.idle(x)  # and its output is thrown away
        return model.last(x)

    torch.manual_seed(0)
    model = Net(run, idle=nn.Linear(3, 3), unused=nn.Linear(2, 2), last=nn.Linear(3, CLASSES)).double()
    x = torch.randn(N, 3).double()
    assert goes_by_layer(model, x)
    check_against_oracle(model, x)
    assert_close(oracle(model, x), oracle(model, x, ["last.weight", "last.bias"]))


def test_a_layer_that_hides_its_graph_is_not_taken_for_one_that_adds_nothing():
    def hiding(reentrant):
        def run(model, x):
            h = checkpoint(model.first, x.clone().requires_grad_(), use_reentrant=reentrant)
            return model.last(h.relu())

        torch.manual_seed(0)
        return Net(run, first=nn.Linear(3, 3), last=nn.Linear(3, CLASSES)).double()

    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(ValueError, match="first"):
        param_trace(hiding(True), [x], matrix="ggn")
    assert goes_by_layer(hiding(False), x)
    check_against_oracle(hiding(False), x)


def test_hooks_of_others_change_what_they_did_before_and_ours_are_gone_after_an_error():
    model, x = case("conv 2d")
    handle = model[0].register_forward_hook(lambda module, args, output: output * 3)
    try:
        got = param_trace(model, [x], level="sample", matrix="ggn").value
        assert_close(got, oracle(model, x)[0], rtol=1e-10, atol=0)
    finally:
        handle.remove()
    with pytest.raises(ValueError, match="network cannot take"):
        param_trace(model, [x[:, :3]], matrix="ggn")
    assert all(not module._forward_hooks for module in model.modules())


def test_inputs_by_name_and_those_for_all_inputs_are_passed_on():
    torch.manual_seed(0)
    model = bare(lambda m, x, *, scale, add: shifted(m, x * scale + add)).double()
    plain = bare(shifted).double()
    plain.load_state_dict(model.state_dict())
    x, scale, add = torch.randn(N, 3).double(), torch.rand(N, 1).double(), torch.randn(3).double()
    settings = {"level": "sample", "matrix": "ggn"}
    for batches in ([{"x": x, "scale": scale, "add": add}], [({"x": x, "scale": scale, "add": add}, torch.arange(N))]):
        for call, expected in zip((param_trace, param_lambda_max), oracle(plain, x * scale + add), strict=True):
            assert_close(call(model, batches, **settings).value, expected, rtol=1e-10, atol=1e-12)


def test_little_memory_gives_the_same_values(monkeypatch):
    for name in ("norms", "attention"):
        model, x = case(name)
        whole = cached_forward(model, dict(model.named_parameters()), split_batch(x)).bytes
        for memory in (1, whole * CLASSES // 2, whole * CLASSES):
            monkeypatch.setattr(gradients, "MEMORY", memory)
            check_against_oracle(model, x)


# --- squares beyond the range of float32


@pytest.mark.parametrize("size", [1e-28, 1e-12, 1e25])
@pytest.mark.parametrize("way", ["by layer", "by input"])
def test_gradients_whose_squares_float32_cannot_hold_are_not_lost(way, size):
    torch.manual_seed(0)
    x = images(dtype=torch.float32)
    with torch.no_grad():  # what comes first loses what the last layer gains, so that logits stay as they are
        if way == "by layer":
            model, first, numbers = make("relu", dtype=torch.float32), "0", 30
            for parameter in model[0].parameters():
                parameter /= size
            model[4].weight *= size
        else:
            model, first, numbers = bare(lambda m, x: shifted(m, x.flatten(1)[:, :3])), "shift", 3
            x, model.shift.data = x.abs() / size, model.shift.abs() / size
            model.last.weight *= size
    settings = {"level": "sample", "matrix": "ggn", "params": [first]}
    total, largest = (call(model, [x], **settings).value for call in (param_trace, param_lambda_max))
    blocks = [dense_matrix("ggn", model.double(), one[None].double())[:numbers, :numbers] for one in x]
    expected = torch.stack([block.trace() for block in blocks])
    assert_close(total, expected, rtol=1e-4, atol=0)
    assert_close(largest, torch.stack([torch.linalg.eigvalsh(block)[-1] for block in blocks]), rtol=1e-4, atol=0)
    assert (expected / size**2 > 1e-4).all(), "or another range is tested"


def factors(positions, groups=2):
    a = torch.randn(3, groups, 7, positions, generator=torch.Generator().manual_seed(0))
    return a, torch.randn(3, groups, K, 5, positions, generator=torch.Generator().manual_seed(1))


def check_layer_products(a, d, rtol):
    built = torch.einsum("ngit,ngkot->nkgoi", a.double(), d.double()).flatten(2)
    size = built.norm(dim=2)
    pairs = layer_products(a, d, True)
    lengths = layer_products(a, d, False)
    assert pairs.dtype == lengths.dtype == torch.float64
    assert ((pairs - built @ built.mT).abs() <= rtol * size[:, :, None] * size[:, None, :]).all()
    assert ((lengths - size.square()).abs() <= rtol * size.square()).all()


def test_products_of_a_layer_are_those_of_built_gradients_for_factors_of_any_size():
    scales = [(1.0, 1.0), (1e-25, 1.0), (1e-20, 1e-20), (1e-25, 1e25), (1e15, 1e15), (1e25, 1e-25)]
    for positions in (1, 4, 40):  # few positions build gradients, many do not
        a, d = factors(positions)
        check_layer_products(a.double(), d.double(), 1e-12)
        for a_scale, d_scale in scales:
            a, d = factors(positions)
            a[1] *= a_scale
            d[1] *= d_scale
            d[2] = 0
            check_layer_products(a, d, 1e-5)
    for positions in (2, 40):  # small inputs that meet large gradients, beside others
        a, d = (value.abs() for value in factors(positions, groups=1))
        a[..., 0] *= 1e-25
        d[..., 0] *= 1e26
        check_layer_products(a, d, 1e-4)


def test_whatever_float32_can_hold_has_a_square_and_what_is_no_number_has_none():
    rows = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(row_products(rows, pairs=True), rows @ rows.mT, rtol=1e-13, atol=1e-13)
    own_scale = torch.tensor([[1e-30], [1.0], [1e30]])  # of each row
    for scale in (1e-36, 1e-23, 1.0, 1e19, 1e37, own_scale):
        single = (rows * scale).float()
        wide = single.double() @ single.double().mT
        size = wide.diagonal(dim1=1, dim2=2).sqrt()
        pairs, lengths = (row_products(single, each) for each in (True, False))
        assert pairs.dtype == lengths.dtype == torch.float64
        assert ((pairs - wide).abs() <= 1e-6 * size[:, :, None] * size[:, None, :]).all(), scale
        assert_close(lengths, size.square(), rtol=1e-6, atol=0)
        assert (pairs != 0).all(), scale
        assert_close(torch.func.vmap(lambda one: row_products(one, True))(single), pairs)
    for columns in (0, 4):
        for pairs, shape in ((False, (3,)), (True, (3, 3))):
            assert torch.equal(row_products(torch.zeros(3, columns), pairs), torch.zeros(shape).double())
    for bad in (torch.nan, torch.inf):
        rows = torch.tensor([[1.0, bad], [3.0, 4.0]])
        assert row_products(rows, pairs=False).isfinite().tolist() == [False, True]
        assert not row_products(rows, pairs=True)[0].isfinite().any()
