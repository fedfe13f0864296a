"""What may be measured: models, parameters and batches that are taken or refused, and losses that keep their digits."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.data import DataLoader

from flatfold.curvature import param_lambda_max, param_spectrum, param_trace
from flatfold.curvature.problem import logit_hessian_product, losses, targets
from tests.curvature.matrices import check_refused
from tests.small_networks import Net, Residual, images, loss_of, make, relu_cnn

EVERYTHING = [param_trace, param_lambda_max, param_spectrum]


def test_batches_of_any_kind_are_counted_and_an_iterator_is_kept_for_the_next_pass():
    for batches in (
        [images(4), images(2)],
        [(images(6), torch.zeros(6, dtype=torch.int64))],
        [{"input": images(6)}],
        [images(0), images(6)],
        (images(n) for n in (2, 4)),
    ):
        assert param_lambda_max(make("relu"), batches).rows == 6
    expected = param_lambda_max(make("tanh"), [images(2), images(3)])
    assert param_lambda_max(make("tanh"), (images(n) for n in (2, 3))) == expected


class Changing:
    """Batches that are others in each pass."""

    def __init__(self, change):
        self.change, self.passes = change, 0

    def __iter__(self):
        self.passes += 1
        return iter([self.change(images(n), self.passes) for n in (3, 4)])


def test_malformed_and_changing_batches_are_refused():
    labels = torch.zeros(3, dtype=torch.int64)
    cases = [
        *((batch, TypeError, "list") for batch in (images(3), (images(3), labels), {"input": images(3)}, 7)),
        *((batches, ValueError, "at least one input") for batches in ([], [images(0)])),
        (Changing(lambda x, number: x[number - 1 :]), ValueError, "7 inputs at first and 5 later"),
        (Changing(lambda x, number: x * (1 + 0.1 * number)), ValueError, "batches change"),
        (Changing(lambda x, number: x.flip(0) + 0.01 * number), ValueError, "batches change"),
    ]
    for call in (param_lambda_max, param_spectrum):
        check_refused(lambda batches, call=call: call(make("tanh"), batches), cases[:6])
    check_refused(lambda batches: param_lambda_max(make("tanh"), batches), cases[6:])


@pytest.mark.parametrize("loss", ["energy", "ce_pred"])
def test_another_order_is_not_another_data_set(loss):
    model = make("relu", dtype=torch.float32)
    model[4].weight.data *= 8  # confident: losses near 0, of which rounding is a part
    data = images(24, dtype=torch.float32)
    for end in (nn.Identity(), nn.LogSoftmax(dim=-1)):
        loader = DataLoader(data, batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(0))
        expected = param_lambda_max(nn.Sequential(model, end), [data], matrix="ggn", loss=loss).value
        got = param_lambda_max(nn.Sequential(model, end), loader, matrix="ggn", loss=loss).value
        assert got == pytest.approx(expected, rel=1e-4)


def test_a_batch_comes_apart_into_single_inputs():
    class Named(nn.Linear):
        def forward(self, x, scale, flag):
            return super().forward(x * scale).tanh() if flag else None

    torch.manual_seed(0)
    model, x, scale = Named(7, 3).double(), torch.randn(5, 7).double(), torch.rand(7).double()
    labels = torch.tensor([2, 1, 0, 1, 1])
    whole = {"x": x, "scale": scale, "flag": True}
    got = param_lambda_max(model, [(whole, labels)], level="sample", loss="ce")
    for row in range(5):
        one = {"x": x[row : row + 1], "scale": scale, "flag": True}
        expected = param_lambda_max(model, [(one, labels[row : row + 1])], loss="ce").value
        assert float(got.value[row]) == pytest.approx(expected, rel=1e-5)


# --- models and parameters


def test_parameters_are_those_that_require_a_gradient_or_those_that_are_named():
    model, x = make("relu"), images(2)
    for params, size in ((None, 82), ("0", 30), (["4.bias", "0.bias"], 7)):
        assert param_spectrum(model, [x], params=params, steps=2, probes=1).size == size
    model[0].requires_grad_(False)
    frozen, last = param_spectrum(model, [x]), param_spectrum(model, [x], params=["4"])
    assert frozen.size == last.size == 52
    assert torch.equal(frozen.nodes, last.nodes)


def test_models_and_parameters_without_a_curvature_are_refused():
    with torch.inference_mode():
        made_there = nn.Sequential(nn.Flatten(), nn.Linear(36, 2).double())
    no_statistics = nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), relu_cnn()).double().eval()
    flat = nn.Flatten()
    cases = [
        ((make("relu"), {"params": ["1"]}), ValueError, "params"),
        ((make("relu"), {"params": ["0.weigh"]}), ValueError, "params"),
        ((make("relu"), {"params": []}), ValueError, "params"),
        ((make("relu").requires_grad_(False), {}), ValueError, "requires a gradient"),
        ((make("relu", dtype=torch.bfloat16), {}), ValueError, "bfloat16"),
        ((nn.Sequential(make("relu"), nn.Linear(4, 3)), {}), ValueError, "all float32 or all float64"),
        ((nn.Sequential(flat, nn.LazyLinear(3)), {}), ValueError, "lazy"),
        ((made_there, {}), ValueError, "inference_mode"),
        ((Residual().double().train(), {}), ValueError, "training mode"),
        ((no_statistics, {}), ValueError, "running statistics"),
        ((nn.Sequential(flat, nn.Linear(36, 1)).double(), {}), ValueError, "two logits"),
        ((make("relu"), {"loss": "hinge"}), ValueError, "loss"),
    ]
    for call in EVERYTHING:
        check_refused(lambda case, call=call: call(case[0], [images(2)], **case[1]), cases)


def test_inputs_and_labels_without_a_finite_loss_are_refused():
    def of(bad):
        x = images(3)
        x[1] = bad
        return x

    def labelled(label):
        return (images(3), torch.full((3,), label))

    cases = [
        ((of(torch.nan), "energy"), ValueError, "1 of 3"),
        ((of(torch.inf), "energy"), ValueError, "1 of 3"),
        ((images(3), "ce"), ValueError, "needs labels"),
        ((labelled(-1), "ce"), ValueError, "labels must"),
        ((labelled(4), "ce"), ValueError, "labels must"),
    ]
    for call in EVERYTHING:
        check_refused(lambda case, call=call: call(make("tanh"), [case[0]], loss=case[1]), cases)


def between(change=torch.relu, at_the_end=lambda z: z, hidden=False):
    """Return a network where something happens between two layers, or at the end."""

    def run(model, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not hidden):
            h = change(model.first(x))
        return at_the_end(model.last(h))

    torch.manual_seed(0)
    return Net(run, first=nn.Linear(5, 4), last=nn.Linear(4, 3))


def inputs(n=6):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(0))


MIXING = {
    "batch norm by hand": lambda h: (h - h.mean(0)).relu(),
    "functional batch norm": lambda h: functional.batch_norm(h, None, None, training=True).relu(),
    "dropout": functional.dropout,
    "attention to other inputs": lambda h: h + (h @ h.T).softmax(-1) @ h,
}


def test_a_model_whose_inputs_depend_on_each_other_or_on_chance_is_refused():
    for call in EVERYTHING:
        check_refused(
            lambda name, call=call: call(between(MIXING[name]), [inputs()]),
            [(name, ValueError, "depend on it alone") for name in MIXING],
        )
    with pytest.raises(ValueError, match="depend on it alone"):  # chance is seen in single inputs,
        param_trace(between(functional.dropout), list(inputs().split(1)))
    with pytest.raises(ValueError, match="depend on it alone"):  # mixing in the first batch of several
        param_trace(between(MIXING["batch norm by hand"]), [inputs(1), inputs(4)])
    for n in (1, 2, 3, 7):
        assert param_trace(between(), [inputs(n)]).rows == n


def test_logits_that_cannot_be_followed_back_are_not_taken_for_flat_ones():
    cases = [
        (between(at_the_end=torch.detach), ValueError, "none of the chosen parameters"),
        (between(hidden=True), ValueError, "first"),
        (between(at_the_end=lambda z: z.mean(0)), ValueError, "two logits"),
        (between(at_the_end=lambda z: z.long()), TypeError, "floating-point"),
    ]
    for call in EVERYTHING:
        check_refused(lambda model, call=call: call(model, [inputs()]), cases)


# --- losses


def rows(n=5, c=4, scale=3.0):
    return scale * torch.randn(n, c, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def covariance(z):
    """The second derivative of the loss over the logits ``(c,)``, without a difference of nearly equal numbers."""
    p = z.double().softmax(-1)
    top = int(p.argmax())
    others = p.clone()
    others[top] = 0
    found = torch.diag(others) - torch.outer(others, others)
    found[top] = found[:, top] = -others * (1 - others.sum())
    found[top, top] = others.sum() * (1 - others.sum())
    return found


def test_each_loss_is_its_formula_and_a_class_that_is_left_out_has_no_part_in_it():
    z, labels = rows(), torch.tensor([3, 0, 1, 1, 2])
    for loss in ("energy", "ce_pred", "ce"):
        assert_close(losses(z, targets(loss, z, labels)), loss_of(z, loss, labels))
    masked = torch.cat([z, torch.full((5, 1), -torch.inf, dtype=torch.float64)], dim=1).requires_grad_()
    assert_close(losses(masked, None).detach(), loss_of(z, "energy"))
    (slope,) = torch.autograd.grad(losses(masked, None).sum(), masked)
    assert_close(slope, torch.cat([z.softmax(-1), torch.zeros(5, 1, dtype=torch.float64)], dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_second_derivatives_of_a_sure_prediction_keep_their_digits(dtype):
    for certainty in (1.0, 15.0, 30.0, 60.0):
        for target in (None, torch.tensor([0]), torch.tensor([2])):
            z = torch.tensor([certainty, 0.0, 1.5, -2.0], dtype=dtype, requires_grad=True)
            (slope,) = torch.autograd.grad(losses(z[None], target).sum(), z, create_graph=True)
            bends = torch.stack([torch.autograd.grad(entry, z, retain_graph=True)[0] for entry in slope])
            # float32 holds nothing smaller than 1e-45
            assert_close(bends.double(), covariance(z.detach()), rtol=1e-5, atol=1e-45)


def test_products_over_the_logits_are_dense_ones_and_keep_the_digits_of_a_sure_prediction():
    p = rows().softmax(-1)
    v = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    assert_close(logit_hessian_product(p, v), torch.einsum("ncd,knd->knc", inner, v))
    for certainty in (15.0, 30.0, 60.0):
        z, v = torch.tensor([0.0, certainty, 1.5, -2.0]), torch.tensor([[5.0, 7.0, -3.0, 4.0]])
        expected = v.double() @ covariance(z)
        assert_close(logit_hessian_product(z.softmax(-1)[None], v).double(), expected, rtol=1e-5, atol=0)
