"""What the Hessian has beyond the Gauss-Newton matrix, against both dense matrices in float64."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from flatfold.curvature import residual
from flatfold.curvature.residual import residual_traces
from flatfold.models.batches import split_batch
from tests.small_networks import dense_ggn, images, loss_of, make, row_by_row_hessian


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.place, self.norm, self.unused = nn.Parameter(torch.randn(6, 4)), nn.LayerNorm(4), nn.Linear(2, 2)
        self.first, self.attention = nn.Linear(6, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        h = self.norm(self.first(x[:, 0]) + self.place)
        h = h + self.attention(h, h, h)[0]
        return self.last(torch.nn.functional.gelu(h).mean(1))


class Once(torch.autograd.Function):
    """A square without forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class NoForwardMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(36, 3), nn.Linear(3, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.last(Once.apply(self.first(x.flatten(1))))


def tied():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    model[4].weight = model[3].weight
    return model


class Normalised(nn.Module):
    """A layer normalisation, whose second derivative torch carries forward wrongly."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(36, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x.flatten(1))))


MODELS = {
    "tanh": lambda: make("tanh"),
    "attention": Attention,
    "no forward mode": NoForwardMode,
    "tied": tied,
    "layer norm": Normalised,
}


def case(name, n=3):
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    return model, images(n)


def slope(model, x, loss):
    logits = model(x).detach().requires_grad_()
    return torch.autograd.grad(loss_of(logits, loss).sum(), logits)[0]


def dense(model, x, loss):
    """Return the second derivatives of the logits, weighted by the slopes of the loss, for each input."""
    parameters, found = list(model.parameters()), []
    for row, r in zip(x, slope(model, x, loss), strict=True):
        first = torch.autograd.grad(model(row[None])[0], parameters, r, create_graph=True, materialize_grads=True)
        rows = [
            torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True)
            if entry.requires_grad
            else [torch.zeros_like(parameter) for parameter in parameters]
            for entry in torch.cat([part.flatten() for part in first])
        ]
        found.append(torch.stack([torch.cat([part.flatten() for part in one]) for one in rows]))
    return torch.stack(found)


@pytest.mark.parametrize("loss", ["energy", "ce_pred"])
def test_the_oracle_is_hessian_minus_gauss_newton_matrix(loss):
    model, x = case("tanh")
    expected = [row_by_row_hessian(model, row[None], loss) - dense_ggn(model, row[None]) for row in x]
    assert_close(dense(model, x, loss), torch.stack(expected).detach())


def draw(model, x, r, probes, seed=0, parameters=None):
    return residual_traces(
        model,
        parameters or dict(model.named_parameters()),
        split_batch(x),
        r,
        probes,
        torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("loss", ["energy", "ce_pred"])
@pytest.mark.parametrize("name", MODELS)
def test_draws_are_products_with_the_dense_matrix(name, loss, monkeypatch):
    model, x = case(name)
    expected, drawn, signs = dense(model, x, loss), {}, residual._signs

    def noted(parameters, seed):
        drawn.setdefault(seed, signs(parameters, seed))
        return drawn[seed]

    monkeypatch.setattr(residual, "_signs", noted)
    mean, stderr, products = draw(model, x, slope(model, x, loss), 3)
    vectors = torch.stack([torch.cat([part.flatten() for part in one.values()]) for one in drawn.values()])
    assert vectors.abs().eq(1).all()
    assert -0.5 < vectors.mean() < 0.5
    each = torch.einsum("kp,npq,kq->kn", vectors, expected, vectors)
    assert mean.dtype == stderr.dtype == torch.float64
    assert_close(mean, each.mean(0), rtol=1e-8, atol=1e-10)
    assert_close(stderr, each.std(0) / 3**0.5, rtol=1e-8, atol=1e-10)
    assert products == 3


@pytest.mark.parametrize("name", ["tanh", "attention"])
def test_the_mean_of_many_is_the_trace_within_its_error(name):
    model, x = case(name)
    expected = dense(model, x, "energy").diagonal(dim1=1, dim2=2).sum(1)
    mean, stderr, _ = draw(model, x, slope(model, x, "energy"), 120)
    assert (stderr > 0).all()
    assert ((mean - expected).abs() < 4 * stderr).all()


def test_a_forward_pass_with_wrong_second_derivatives_is_found_out(monkeypatch):
    model, x = case("tanh")
    r = slope(model, x, "energy")
    expected, bend, tried = draw(model, x, r, 3), residual._bend, []

    def wrong(*args):
        tried.append(1)
        return bend(*args) * 1.001

    monkeypatch.setattr(residual, "_bend", wrong)
    assert_close(draw(model, x, r, 3)[0], expected[0])
    assert len(tried) == 1  # and not tried again


def test_all_inputs_go_at_once_where_they_can():
    model, x = case("tanh")
    rows = []
    model.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    draw(model, x, torch.ones(3, 4).double(), 5)
    assert rows == [3, 1, 3, 3, 3, 3]  # the single one is the check


@pytest.mark.parametrize("name", ["tanh", "attention"])
def test_both_ways_give_the_same(name, monkeypatch):
    model, x = case(name)
    r = slope(model, x, "energy")
    expected = draw(model, x, r, 3)

    def refuse(*_):
        raise NotImplementedError("no forward mode")

    monkeypatch.setattr(residual, "_bend", refuse)
    found = draw(model, x, r, 3)
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])


def test_only_the_chosen_parameters_count():
    model, x = case("tanh")
    r = slope(model, x, "energy")
    head = {name: value for name, value in model.named_parameters() if name.startswith("4")}
    mean, stderr, _ = draw(model, x, r, 4, parameters=head)
    assert not mean.any()
    assert not stderr.any()
    first = {name: value for name, value in model.named_parameters() if name.startswith("0")}
    size = sum(value.numel() for value in first.values())
    expected = dense(model, x, "energy")[:, :size, :size].diagonal(dim1=1, dim2=2).sum(1)
    mean, stderr, _ = draw(model, x, r, 120, parameters=first)
    assert ((mean - expected).abs() < 4 * stderr).all()


def test_a_network_that_is_linear_in_its_parameters_has_none_either_way(monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    x = images(2)
    assert not draw(model, x, slope(model, x, "energy"), 2)[0].any()
    monkeypatch.setattr(residual, "_at_once", lambda *_: None)
    assert not draw(model, x, slope(model, x, "energy"), 2)[0].any()


def test_the_generator_decides_and_no_gradient_is_stored():
    model, x = case("tanh")
    r = slope(model, x, "energy")
    one, same, other = (draw(model, x, r, 3, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_float32_is_close_to_float64():
    model, x = case("tanh")
    r = slope(model, x, "energy")
    expected = draw(model, x, r, 3)[0]
    found = draw(model.float(), x.float(), r.float(), 3)[0]
    assert found.dtype == torch.float64
    assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("probes", [0, 1])
def test_a_single_draw_is_refused(probes):
    model, x = case("tanh")
    with pytest.raises(ValueError, match=f"probes must be at least 2, for an error bar needs two draws, got {probes}"):
        draw(model, x, slope(model, x, "energy"), probes)
