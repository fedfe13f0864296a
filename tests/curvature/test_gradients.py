"""Products of single inputs' gradients against autograd, one input and one cotangent after the other."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from flatfold.curvature import by_layer, gradients
from flatfold.curvature.by_input import ByInput
from flatfold.curvature.by_layer import ByLayer, layer_products
from flatfold.curvature.gradients import kept, kept_parts
from flatfold.models.batches import Batch, split_batch

RTOL = 1e-10
N, K, CLASSES = 5, 3, 4


def spatial(dims, **options):
    """Return a network of one strided convolution in 1, 2 or 3 dimensions."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    return nn.Sequential(conv(4, 6, **options), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(CLASSES))


class Tokens(nn.Module):
    """Layers over one or two dimensions of tokens."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 6), nn.LayerNorm((2, 6))
        self.mixed, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, CLASSES)

    def forward(self, x):
        x = self.norm(self.first(x))
        y = self.mixed(x)
        y += x
        return self.last(torch.nn.functional.gelu(y).mean((1, 2)))


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.gn = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.GroupNorm(2, 6)
        self.fc, self.flat = nn.Linear(6, CLASSES), nn.BatchNorm1d(CLASSES)

    def forward(self, x):
        x = self.bn(self.conv(x))
        x = x + self.gn(x).relu_()
        return self.flat(self.fc(input=x.amax((2, 3))))


class TokensFirst(nn.Module):
    """Its first dimension counts tokens, as many as there are inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.last(self.first(x.transpose(0, 1)).tanh().mean(0))


class Folded(nn.Module):
    """Tokens of all inputs are rows of one matrix."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.last(self.first(x.flatten(0, 1)).relu().unflatten(0, x.shape[:2]).sum(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).relu())


class Twice(Tied):
    def forward(self, x):
        return self.last(self.first(self.first(x).relu()))


class Elsewhere(Tied):
    """A weight is used by its layer, and beside it."""

    def forward(self, x):
        return self.last(self.first(x) + x @ self.first.weight.sin())


class NotCalled(Tied):
    """A weight is used, but its layer is not; what another layer gives is thrown away."""

    def forward(self, x):
        self.last(x)
        return x @ self.last.weight.T + self.first(x).sum(1, keepdim=True)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.last = nn.Parameter(torch.randn(3)), nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.last((x + self.shift).relu())


class Scaled(nn.Linear):
    """A layer that is not quite what its parent is."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.sin(), self.bias)


def replaced():
    layer = nn.Linear(3, CLASSES)
    layer.forward = lambda x: nn.functional.linear(x, layer.weight.sin(), layer.bias)
    return nn.Sequential(layer)


class Extended(nn.Module):
    """A layer was given one more parameter."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, CLASSES)
        self.last.scale = nn.Parameter(torch.randn(CLASSES))

    def forward(self, x):
        return self.last(x) * self.last.scale


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        x = self.norm(x)
        return self.last(nn.functional.gelu(self.attention(x, x, x)[0]).mean(1))


class Deciding(Bare):
    """Looks at its input, which vmap cannot follow."""

    def forward(self, x):
        return super().forward(x if x.sum().item() > 0 else -2 * x)


class Listed(Tied):
    """A weight is used by its layer, and again from a plain list."""

    def __init__(self):
        super().__init__()
        self.again = [self.first.weight]

    def forward(self, x):
        return self.last((self.first(x) + 0.3 * x @ self.again[0]).tanh())


class ListedForSome(Listed):
    """As before, but not for the first of its inputs, whose gradients have nothing to do with the list."""

    def forward(self, x):
        return self.last((self.first(x) + x.sum(1, keepdim=True).relu() * self.again[0].sum(0)).tanh())


class Enclosed(Bare):
    """A bare parameter is used through a function that holds it."""

    def __init__(self):
        super().__init__()
        shift = self.shift
        self.scaled = lambda x: x * shift.exp()

    def forward(self, x):
        return super().forward(self.scaled(x))


class Unregistered(nn.Module):
    """A layer in a plain list; its parameters are there by another name."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, CLASSES)]
        self.own = nn.ParameterList(self.layers[0].parameters())

    def forward(self, x):
        return self.layers[0](x).tanh()


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


class WrongRule(Bare):
    def forward(self, x):
        return super().forward(Halved.apply(x))


IMAGE, VECTOR = (4, 7, 6), (3,)
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
    "norms": (Norms(), IMAGE),
    "tokens": (Tokens(), (3, 2, 3)),
}
BY_INPUT = {
    "tokens first": (TokensFirst(), (N, 3)),
    "folded": (Folded(), (2, 3)),
    "tied": (Tied(), VECTOR),
    "called twice": (Twice(), VECTOR),
    "used elsewhere": (Elsewhere(), VECTOR),
    "not called": (NotCalled(), VECTOR),
    "bare": (Bare(), VECTOR),
    "subclass": (nn.Sequential(Scaled(3, CLASSES)), VECTOR),
    "weight norm": (nn.Sequential(weight_norm(nn.Linear(3, CLASSES))), VECTOR),
    "forward replaced": (replaced(), VECTOR),
    "extended": (Extended(), VECTOR),
    "attention": (Attention(), (3, 4)),
    "deciding": (Deciding(), VECTOR),
}
NOT_AT_ONCE = {
    "listed": (Listed(), VECTOR),
    "listed for some": (ListedForSome(), VECTOR),
    "enclosed": (Enclosed(), VECTOR),
    "unregistered": (Unregistered(), VECTOR),
    "wrong rule": (WrongRule(), VECTOR),
}
BY_INPUT |= NOT_AT_ONCE
EVERY = BY_LAYER | BY_INPUT


def case(name, seed=0):
    """Return a network in float64 with parameters that are not trivial, a batch for it, and cotangents."""
    torch.manual_seed(seed)
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
    return model, split_batch(x), torch.randn(K, N, CLASSES, dtype=torch.float64)


def oracle(model, parameters, batch, cotangents):
    """Slow and obvious: a pass for each input and each cotangent, the gradients one under the other."""
    rows = []
    for n in range(N):
        logits = model(batch.args[0][n : n + 1])[0]
        each = [
            torch.autograd.grad(logits, parameters.values(), one[n], retain_graph=True, materialize_grads=True)
            for one in cotangents
        ]
        flat = torch.stack([torch.cat([part.flatten() for part in one]) for one in each])
        rows.append(flat @ flat.T)
    return torch.stack(rows)


def check_goes_by_layer(model):
    """Check that a network of three inputs goes the fast way, to the same products."""
    batch, cotangents = split_batch(torch.randn(N, 3).double()), torch.randn(K, N, CLASSES).double()
    parameters = dict(model.named_parameters())
    found = kept(model, parameters, batch)
    assert isinstance(found.way, ByLayer)
    assert_close(found.products(cotangents, True), oracle(model, parameters, batch, cotangents))


def way(name):
    model, batch, _ = case(name)
    return type(kept(model, dict(model.named_parameters()), batch).way)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", EVERY)
def test_products_are_those_of_gradients_taken_one_by_one(name):
    model, batch, cotangents = case(name)
    parameters = dict(model.named_parameters())
    expected = oracle(model, parameters, batch, cotangents)
    found = kept(model, parameters, batch)
    assert_close(found.logits, model(*batch.args).detach())
    assert_close(found.products(cotangents, pairs=True), expected, rtol=RTOL, atol=1e-12)
    lengths = found.products(cotangents)
    assert lengths.dtype == torch.float64
    assert_close(lengths, expected.diagonal(dim1=1, dim2=2), rtol=RTOL, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_the_fast_way_is_taken_exactly_where_each_parameter_belongs_to_one_known_layer(name):
    assert way(name) is (ByLayer if name in BY_LAYER else ByInput)


@pytest.mark.parametrize("name", ["conv 2d", "groups", "norms", "tokens", "many positions"])
@pytest.mark.parametrize("ending", ["weight", "bias"])
def test_any_choice_of_parameters_can_be_made(name, ending):
    model, batch, cotangents = case(name)
    parameters = {name: value for name, value in model.named_parameters() if name.endswith(ending)}
    found = kept(model, parameters, batch)
    assert isinstance(found.way, ByLayer)
    assert_close(found.products(cotangents, True), oracle(model, parameters, batch, cotangents), rtol=RTOL, atol=1e-12)


@pytest.mark.parametrize("positions", [1, 4, 40])
def test_both_sides_of_the_formula_agree(positions):
    g = torch.Generator().manual_seed(0)
    a = torch.randn(2, 3, 7, positions, generator=g, dtype=torch.float64)
    d = torch.randn(2, 3, K, 5, positions, generator=g, dtype=torch.float64)
    built = torch.einsum("ngit,ngkot->nkgoi", a, d).flatten(2)
    assert_close(layer_products(a, d, True), built @ built.transpose(1, 2))
    assert_close(layer_products(a, d, False), built.square().sum(2))


def test_parameters_that_do_not_reach_the_logits_add_nothing():
    model, batch, cotangents = case("conv 2d")
    expected = kept(model, dict(model.named_parameters()), batch).products(cotangents)
    model.add_module("unused", nn.Linear(2, 2))
    used = list(model)[:4]
    model.forward = lambda x: nn.Sequential(*used)(x)
    parameters = dict(model.named_parameters())
    try:
        found = kept(model, parameters, batch)
        assert isinstance(found.way, ByLayer)
        assert_close(found.products(cotangents), expected)
        alone = {name: value for name, value in parameters.items() if name.startswith("unused")}
        assert not kept(model, alone, batch).products(cotangents, pairs=True).any()
    finally:
        del model.forward, model.unused


def test_a_layer_whose_output_is_thrown_away_adds_nothing():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle, self.last = nn.Linear(3, 3), nn.Linear(3, CLASSES)

        def forward(self, x):
            self.idle(x)
            return self.last(x)

    check_goes_by_layer(Idle().double())


@pytest.mark.parametrize("how", ["checkpoint", "no_grad"])
def test_a_layer_that_hides_its_graph_is_not_taken_for_one_that_adds_nothing(how):
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, CLASSES)

        def forward(self, x):
            if how == "checkpoint":
                return self.last(checkpoint(self.first, x.clone().requires_grad_(), use_reentrant=True))
            with torch.no_grad():
                x = self.first(x)
            return self.last(x)

    model = Hiding().double()
    batch = split_batch(torch.randn(N, 3).double())
    with pytest.raises(
        ValueError, match=r"the parameters of first are needed, but it runs without .* use_reentrant=False"
    ):
        kept(model, dict(model.named_parameters()), batch)
    head = {"last.weight": model.last.weight}
    assert len(kept(model, head, batch).logits) == N


def test_a_checkpoint_that_keeps_its_graph_is_no_obstacle():
    class Saving(Tied):
        def forward(self, x):
            return self.last(checkpoint(self.first, x, use_reentrant=False).relu())

    check_goes_by_layer(Saving().double())


def test_an_input_that_is_changed_in_place_afterwards_is_not_trusted():
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, CLASSES)

        def forward(self, x):
            h = self.first(x).sin().detach()
            y = self.norm(h) * 2
            h.zero_()
            return self.last(y + h)

    model = Changing().double().eval()
    batch = split_batch(torch.randn(N, 3).double())
    parameters = {"norm.bias": model.norm.bias}  # its gradient needs no input, so autograd does not object
    assert isinstance(kept(model, parameters, batch).way, ByInput)


def test_hooks_of_others_see_and_change_what_they_did_before_and_ours_are_gone():
    model, batch, cotangents = case("conv 2d")
    handle = model[0].register_forward_hook(lambda module, args, output: output * 3)
    try:
        parameters = dict(model.named_parameters())
        found = kept(model, parameters, batch)
        assert_close(found.products(cotangents, True), oracle(model, parameters, batch, cotangents))
    finally:
        handle.remove()
    assert all(not module._forward_hooks for module in model.modules())


def test_hooks_are_gone_when_the_model_fails():
    model, _, _ = case("conv 2d")
    with pytest.raises(ValueError, match="the network cannot take inputs"):
        kept(model, dict(model.named_parameters()), split_batch(torch.randn(N, 3, 7, 6).double()))
    assert all(not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["norms", "attention"])
def test_parts_give_what_the_whole_batch_gives(name, monkeypatch):
    model, batch, cotangents = case(name)
    parameters = dict(model.named_parameters())
    whole = kept(model, parameters, batch)
    assert [part.logits.shape[0] for part in kept_parts(model, parameters, batch, K)] == [N]
    monkeypatch.setattr(gradients, "MEMORY", whole.bytes * K // 2)
    parts = list(kept_parts(model, parameters, batch, K))
    assert [len(part.logits) for part in parts] == [2, 2, 1]
    assert parts[0].together == K * N // (2 * 2)
    split = [part.products(some) for part, some in zip(parts, cotangents.split(2, dim=1), strict=True)]
    assert_close(torch.cat(split), whole.products(cotangents))


def test_by_default_there_is_room_for_a_cotangent_per_class_and_there_is_always_room_for_one(monkeypatch):
    model, batch, _ = case("norms")
    parameters = dict(model.named_parameters())
    monkeypatch.setattr(gradients, "MEMORY", kept(model, parameters, batch).bytes * CLASSES)
    assert len(list(kept_parts(model, parameters, batch))) == 1
    assert len(list(kept_parts(model, parameters, batch, CLASSES + 9))) == 1
    monkeypatch.setattr(gradients, "MEMORY", gradients.MEMORY - 1)
    assert len(list(kept_parts(model, parameters, batch, CLASSES + 9))) == 2
    assert len(list(kept_parts(model, parameters, batch))) == 2
    assert len(list(kept_parts(model, parameters, batch, CLASSES - 1))) == 1
    monkeypatch.setattr(gradients, "MEMORY", 1)
    parts = list(kept_parts(model, parameters, batch))
    assert [(len(part.logits), part.together) for part in parts] == [(1, 1)] * N


def test_no_gradient_is_stored_and_no_cotangent_is_needed():
    model, batch, cotangents = case("norms")
    found = kept(model, dict(model.named_parameters()), batch)
    found.products(cotangents)
    assert found.products(cotangents[:0]).shape == (N, 0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_inputs_by_name_and_those_for_all_inputs_are_passed_on():
    class Named(Bare):
        def forward(self, x, *, scale, add):
            return super().forward(x * scale + add)

    torch.manual_seed(0)
    model = Named().double()
    x, scale, add = torch.randn(N, 3).double(), torch.rand(N, 1).double(), torch.randn(3).double()
    batch = Batch((), {"x": x, "scale": scale, "add": add}, torch.arange(N), N)
    parameters = dict(model.named_parameters())
    cotangents = torch.randn(K, N, CLASSES).double()
    plain = split_batch(x * scale + add)
    bare = Bare().double()
    bare.load_state_dict(model.state_dict())
    expected = oracle(bare, dict(bare.named_parameters()), plain, cotangents)
    by_input = kept(model, parameters, batch).way
    assert_close(by_input._together(cotangents, True), expected)
    assert_close(by_input._one_by_one(cotangents, True), expected)


@pytest.mark.parametrize("name", NOT_AT_ONCE)
def test_all_inputs_at_once_would_be_wrong_and_are_not_tried_again(name, monkeypatch):
    model, batch, cotangents = case(name)
    parameters = dict(model.named_parameters())
    found = kept(model, parameters, batch)
    expected = oracle(model, parameters, batch, cotangents)
    assert not torch.allclose(found.way._together(cotangents, True), expected, rtol=1e-2), "or nothing is tested"
    assert_close(found.products(cotangents, True), expected)
    monkeypatch.delattr(ByInput, "_together")
    assert_close(found.products(cotangents, True), expected)


@pytest.mark.parametrize("name", ["attention", "tied", "bare"])
def test_a_sound_model_is_compared_once_and_on_one_input(name, monkeypatch):
    seen = []
    slow = ByInput._one_by_one
    monkeypatch.setattr(
        ByInput, "_one_by_one", lambda self, *rest: seen.append((self._batch.rows, len(rest[0]))) or slow(self, *rest)
    )
    model, batch, cotangents = case(name)
    found = kept(model, dict(model.named_parameters()), batch)
    for _ in range(3):
        found.products(cotangents)
    assert seen == [(1, 1)]


def test_products_keep_no_graph_to_parameters_that_were_not_chosen():
    model, batch, cotangents = case("bare")
    found = kept(model, {"shift": model.shift}, batch)
    assert not found.products(cotangents).requires_grad
    assert not kept(model, {"shift": model.shift}, batch.part(0, 1)).products(cotangents[:, :1]).requires_grad


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e25])
@pytest.mark.parametrize("name", ["conv 2d", "many positions", "norms", "tokens", "attention", "deciding", "listed"])
@pytest.mark.parametrize("pairs", [False, True])
def test_gradients_in_float32_have_squares_that_float32_has_not(name, scale, pairs):
    model, batch, cotangents = case(name)
    expected = oracle(model, dict(model.named_parameters()), batch, cotangents) * scale**2
    lengths = expected.diagonal(dim1=1, dim2=2)
    try:
        model.float()
        single = split_batch(batch.args[0].float())
        got = kept(model, dict(model.named_parameters()), single).products(cotangents.float() * scale, pairs)
    finally:
        model.double()
    assert got.dtype == torch.float64
    sizes = (lengths[:, :, None] * lengths[:, None, :]).sqrt() if pairs else lengths
    assert ((got - (expected if pairs else lengths)).abs() <= 1e-4 * sizes).all()


@pytest.mark.parametrize(
    ("a_scale", "d_scale"), [(1e-25, 1.0), (1e-20, 1e-20), (1e-25, 1e25), (1e15, 1e15), (1e25, 1e-25)]
)
@pytest.mark.parametrize("positions", [1, 40])
@pytest.mark.parametrize("pairs", [False, True])
def test_factors_of_any_size_are_multiplied_and_each_input_by_itself(a_scale, d_scale, positions, pairs):
    g = torch.Generator().manual_seed(0)
    a, d = torch.randn(3, 2, 7, positions, generator=g), torch.randn(3, 2, K, 5, positions, generator=g)
    a[1] *= a_scale
    d[1] *= d_scale
    d[2] = 0
    built = torch.einsum("ngit,ngkot->nkgoi", a.double(), d.double()).flatten(2)
    expected = built @ built.transpose(1, 2) if pairs else built.square().sum(2)
    size = built.norm(dim=2)
    rounding = 1e-5 * (size[:, :, None] * size[:, None, :] if pairs else size.square())
    assert ((layer_products(a, d, pairs) - expected).abs() <= rounding).all()


@pytest.mark.parametrize("positions", [2, 40])
def test_small_inputs_that_meet_large_gradients_are_not_lost_beside_others(positions):
    g = torch.Generator().manual_seed(0)
    a, d = torch.rand(1, 1, 7, positions, generator=g), torch.rand(1, 1, K, 5, positions, generator=g)
    a[..., 0] *= 1e-25
    d[..., 0] *= 1e26
    built = torch.einsum("ngit,ngkot->nkgoi", a.double(), d.double()).flatten(2)
    assert_close(layer_products(a, d, False), built.square().sum(2), rtol=1e-4, atol=0)


def test_only_inputs_in_doubt_are_done_again(monkeypatch):
    done = []
    once = by_layer._multiplied
    monkeypatch.setattr(
        by_layer, "_multiplied", lambda *rest: done.append((len(rest[0]), rest[0].dtype)) or once(*rest)
    )
    d = torch.ones(4, 1, K, 5, 2)
    d[1], d[3] = 0, 1e-20
    assert not layer_products(torch.ones(4, 1, 7, 2), d, False)[1].any()
    assert done == [(4, torch.float32), (1, torch.float64)]
