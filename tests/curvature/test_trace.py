"""`param_trace` against dense matrices in float64: exact where it says so, covered by its error bar elsewhere."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from flatfold.curvature import param_trace
from tests.curvature.matrices import check_refused
from tests.small_networks import NETWORKS, dense_hessian, dense_matrix, images, make

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
LOSSES = ["energy", "ce_pred", "ce"]


def batches(x, size=4):
    return [(x[i : i + size], LABELS[i : i + size]) for i in range(0, len(x), size)]


def expected_traces(matrix, model, x, loss, start=0):
    """Return the traces of single inputs over the parameters from the ``start``-th on."""
    each = (dense_matrix(matrix, model, x[i : i + 1], loss, LABELS[i : i + 1]) for i in range(len(x)))
    return torch.stack([one[start:, start:].trace() for one in each])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("network", ["relu", "batch norm"])
def test_the_trace_of_a_piecewise_linear_network_is_exact(network, loss):
    model, x = make(network), images()
    expected = expected_traces("hessian", model, x, loss)
    each = param_trace(model, batches(x), level="sample", loss=loss)
    assert_close(each.value, expected, rtol=1e-9, atol=1e-12)
    one = param_trace(model, batches(x), loss=loss)
    assert one.value == pytest.approx(float(expected.mean()), rel=1e-9)
    for estimate in (each, one):
        assert (estimate.stderr, estimate.method, estimate.seed) == (None, "exact", None)
        assert (estimate.matrix, estimate.loss, estimate.rows) == ("hessian", loss, 6)
        assert estimate.matvecs == model(x).shape[1] - 1


@pytest.mark.parametrize("network", NETWORKS)
def test_the_gauss_newton_trace_is_exact_for_every_network(network):
    model, x = make(network), images()
    expected = expected_traces("ggn", model, x, "energy")
    for method in ("auto", "exact"):
        each = param_trace(model, [x], level="sample", matrix="ggn", method=method)
        assert_close(each.value, expected, rtol=1e-9, atol=1e-12)
        assert each.stderr is None


def test_a_smooth_network_is_estimated_with_an_error_bar():
    model, x = make("tanh"), images()
    for loss in LOSSES:
        expected = float(dense_hessian(model, x, loss, LABELS).trace())
        got = param_trace(model, batches(x), loss=loss, seed=3)
        assert (got.method, got.matvecs) == ("xtrace", 30)
        assert 0 < abs(got.value - expected) < 4 * got.stderr, loss
        assert got == param_trace(model, batches(x), loss=loss, seed=3)
        assert got.value != param_trace(model, batches(x), loss=loss, seed=4).value
    one, twice = (param_trace(model, [rows], seed=3) for rows in (x, torch.cat([x, x])))  # the same mean Hessian
    assert (twice.value, twice.stderr) == pytest.approx((one.value, one.stderr))


def test_single_inputs_of_a_smooth_network_have_error_bars():
    model, x = make("tanh"), images()
    expected = expected_traces("hessian", model, x, "ce_pred")
    assert (expected - expected_traces("ggn", model, x, "ce_pred")).abs().max() > 0.01, "or nothing is tested"
    got = param_trace(model, batches(x), level="sample", loss="ce_pred", probes=20)
    assert got.method == "xtrace"
    assert got.stderr.shape == got.value.shape == (6,)
    assert ((got.value - expected).abs() < 4 * got.stderr).all()


def share_covered(level, matrix, trials=20):
    model, x = make("tanh"), images(3)
    each = expected_traces(matrix, model, x, "energy")
    expected = each if level == "sample" else each.mean()
    hits = 0
    for seed in range(trials):
        got = param_trace(model, [x[:2], x[2:]], level=level, matrix=matrix, method="xtrace", probes=12, seed=seed)
        inside = (torch.as_tensor(got.value) - expected).abs() <= 2 * torch.as_tensor(got.stderr) + 1e-9
        hits += float(inside.double().mean())
    return hits / trials


def test_error_bars_cover():
    assert share_covered("dataset", "hessian") >= 0.85
    assert share_covered("sample", "hessian") >= 0.85


@pytest.mark.slow
def test_error_bars_of_the_gauss_newton_matrix_cover():
    assert share_covered("dataset", "ggn") >= 0.85
    assert share_covered("sample", "ggn") >= 0.85


@pytest.mark.parametrize("loss", LOSSES)
def test_the_last_linear_layer_is_exact_whatever_comes_before_it(loss):
    model, x = make("tanh"), images()
    expected = expected_traces("hessian", model, x, loss, start=30)
    for method in ("auto", "exact"):
        got = param_trace(model, batches(x), level="sample", loss=loss, params=["4"], method=method)
        assert (got.stderr, got.method) == (None, "exact")
        assert_close(got.value, expected, rtol=1e-9, atol=0)
    assert param_trace(model, batches(x), loss=loss, params=["0"]).stderr is not None
    assert param_trace(model, batches(x), loss=loss).stderr is not None


class BendsFarOut(nn.Module):
    """Piecewise linear for small inputs only, which no module shows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(36, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last(h.relu() + 0.05 * (h - 4).relu().square())


class Counted(list):
    """Batches that know how often they were read."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def test_a_network_that_bends_in_a_later_batch_only_is_estimated_from_the_first_on():
    model = BendsFarOut().double()
    calm = Counted(images(16).split(1))
    assert param_trace(model, calm).stderr is None
    assert calm.times == 1
    for place in (1, 3, 8, 16):
        x = images(16)
        x[place - 1] *= 20
        each = torch.stack([dense_hessian(model, one[None]).trace() for one in x])
        ggn = param_trace(model, [x], level="sample", matrix="ggn").value
        assert (ggn - each).abs().max() > 0.1, "or nothing is tested"
        for level, expected in (("sample", each), ("dataset", each.mean())):
            data = Counted(x.split(1))
            got = param_trace(model, data, level=level, seed=2)
            assert (got.method, got.rows, data.times) == ("xtrace", 16, 1 if place == 1 else 2)
            value, stderr = (torch.as_tensor(one, dtype=torch.float64) for one in (got.value, got.stderr))
            assert ((value - expected).abs() <= 4 * stderr + 1e-9).all(), (place, level)
        with pytest.raises(ValueError, match="no exact form"):
            param_trace(model, x.split(1), method="exact")


def test_a_trace_that_is_no_number_is_refused():
    model = make("relu", dtype=torch.float32)
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(1e-38)
        model[4].weight.fill_(-3e38)
        model[4].weight[0] = 3e38  # the difference of two classes is beyond float32
    with pytest.raises(ValueError, match="trace must be finite"):
        param_trace(model, [images(dtype=torch.float32)], matrix="ggn")


def test_wrong_settings_are_refused():
    check_refused(
        lambda settings: param_trace(make("tanh"), [images()], **settings),
        [
            ({"level": "image"}, ValueError, "level"),
            ({"matrix": "fisher"}, ValueError, "matrix"),
            ({"method": "lanczos"}, ValueError, "method"),
            ({"loss": "mse"}, ValueError, "loss"),
            ({"probes": 1}, ValueError, "probes"),
            ({"method": "exact"}, ValueError, "no exact form"),
        ],
    )
