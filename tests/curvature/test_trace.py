import pytest
import torch
from torch import nn
from torch.testing import assert_close

from flatfold.curvature import trace
from flatfold.curvature.eigenvalues import param_lambda_max
from flatfold.curvature.trace import param_trace
from tests.small_networks import NETWORKS, dense_hessian, dense_matrix, images, make, row_by_row_hessian

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
LOSSES = ["energy", "ce_pred", "ce"]


def batches(x, size=4):
    return [(x[i : i + size], LABELS[i : i + size]) for i in range(0, len(x), size)]


def expected_traces(matrix, model, x, loss):
    return torch.stack(
        [dense_matrix(matrix, model, x[i : i + 1], loss, LABELS[i : i + 1]).trace() for i in range(len(x))]
    )


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


def test_float32_is_exact_to_its_digits():
    model, x = make("batch norm"), images()
    expected = expected_traces("hessian", model, x, "energy")
    got = param_trace(model.float(), [x.float()], level="sample")
    assert got.stderr is None
    assert_close(got.value.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_smooth_network_is_estimated_with_an_error_bar(loss):
    model, x = make("tanh"), images()
    expected = float(dense_hessian(model, x, loss, LABELS).trace())
    got = param_trace(model, batches(x), loss=loss, seed=3)
    assert got.method == "xtrace"
    assert got.stderr > 0
    assert abs(got.value - expected) < 4 * got.stderr
    assert got.matvecs == 30


def test_single_inputs_of_a_smooth_network_have_error_bars():
    model, x = make("tanh"), images()
    expected = expected_traces("hessian", model, x, "ce_pred")
    assert (expected - expected_traces("ggn", model, x, "ce_pred")).abs().max() > 0.01, "or nothing is tested"
    got = param_trace(model, batches(x), level="sample", loss="ce_pred", probes=20)
    assert got.method == "xtrace"
    assert got.stderr.shape == got.value.shape == (6,)
    assert ((got.value - expected).abs() < 4 * got.stderr).all()


@pytest.mark.parametrize("level", ["dataset", "sample"])
@pytest.mark.parametrize("method", ["xtrace", "hutch++", "hutchinson"])
@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_error_bars_cover(level, method, matrix):
    model, x = make("tanh"), images(3)
    each = expected_traces(matrix, model, x, "energy")
    expected = each if level == "sample" else each.mean()
    hits, trials = 0, 20
    for seed in range(trials):
        got = param_trace(model, [x[:2], x[2:]], level=level, matrix=matrix, method=method, probes=12, seed=seed)
        inside = (torch.as_tensor(got.value) - expected).abs() <= 2 * torch.as_tensor(got.stderr) + 1e-9
        hits += float(inside.double().mean())
    assert hits >= 0.85 * trials


def test_a_seed_gives_the_same_number_again_and_another_one_another():
    model, x = make("tanh"), images()
    one, again, other = (param_trace(model, [x], seed=seed).value for seed in (1, 1, 2))
    assert one == again != other


def test_many_classes_are_estimated_beyond_the_likeliest():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 150)).double()
    model[3].weight.data *= 4
    x = images()
    exact = param_trace(model, [x], level="sample", method="exact")
    assert exact.stderr is None
    assert exact.matvecs == 149
    hits = []
    for seed in range(20):
        some = param_trace(model, [x], level="sample", seed=seed)
        assert some.matvecs < 100
        assert "rest" in some.method
        hits.append((some.value - exact.value).abs() <= 2 * some.stderr)
        whole = param_trace(model, [x], seed=seed)
        assert whole.value == pytest.approx(float(some.value.mean()))
        assert whole.stderr == pytest.approx(float(some.stderr.square().sum().sqrt() / 6))
    assert torch.stack(hits).double().mean() > 0.9


def test_exact_is_refused_where_it_is_not():
    with pytest.raises(ValueError, match=r"has no exact form.*matrix='ggn'"):
        param_trace(make("tanh"), [images()], method="exact")


def test_some_parameters_give_the_trace_of_their_block():
    model, x = make("relu"), images()
    block = dense_hessian(model, x)[-4:, -4:]
    assert param_trace(model, [x], params=["4.bias"]).value == pytest.approx(float(block.trace()))


def test_an_unused_parameter_adds_nothing():
    model, x = make("relu"), images()
    expected = param_trace(model, [x]).value
    model.register_module("unused", nn.Linear(2, 2).double())
    model.forward = lambda x: model[4](model[3](model[2](model[1](model[0](x)))))
    assert param_trace(model, [x]).value == pytest.approx(expected)


def test_gradients_and_modes_are_left_alone():
    model = make("relu").train()
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    for method in ("auto", "xtrace"):
        param_trace(model, [images()], method=method)
    assert model.training
    assert (model[0].weight.grad == 7).all()
    assert model[4].weight.grad is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": "image"}, "level must be one of 'dataset', 'sample'"),
        ({"matrix": "fisher"}, "matrix must be one of 'hessian', 'ggn'"),
        ({"method": "lanczos"}, "method must be one of 'auto', 'exact', 'xtrace'"),
        ({"loss": "mse"}, "loss must be one of"),
        ({"probes": 1}, "probes must be at least 2"),
    ],
)
def test_wrong_settings_are_told(settings, message):
    with pytest.raises(ValueError, match=message):
        param_trace(make("relu"), [images()], **settings)


def test_an_estimate_reads_as_a_sentence():
    exact = param_trace(make("relu"), [images()])
    assert str(exact) == (
        f"{exact.value:.6g} exactly (Hessian of the energy logsumexp(z), exact, 3 products, 6 inputs)"
    )
    assert "± " in str(param_trace(make("relu"), [images()], method="xtrace"))
    assert str(param_trace(make("relu"), [images()], level="sample")).startswith("6 values, mean ")


def test_a_trace_that_is_no_number_is_told():
    model = make("relu", dtype=torch.float32)
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(1e-38)
        model[4].weight.fill_(-3e38)
        model[4].weight[0] = 3e38  # the difference of two classes is beyond float32
    with pytest.raises(ValueError, match=r"a trace must be finite, but it is NaN.*huge weights, or take it in float64"):
        param_trace(model, [images(dtype=torch.float32)], matrix="ggn")


@pytest.mark.parametrize("size", [1e-28, 1e-12, 1e25])
def test_gradients_whose_squares_float32_cannot_hold_are_not_lost(size):
    model, x = make("relu", dtype=torch.float32), images(dtype=torch.float32)
    with torch.no_grad():  # what the first layer loses, the last one gains, so that logits stay as they are
        for parameter in model[0].parameters():
            parameter /= size
        model[4].weight *= size
    first = {"level": "sample", "matrix": "ggn", "params": ["0"]}
    total, largest = (call(model, [x], **first).value for call in (param_trace, param_lambda_max))
    matrices = [dense_matrix("ggn", model.double(), one[None].double())[:30, :30] for one in x]
    expected = torch.stack([matrix.trace() for matrix in matrices])
    assert_close(total, expected, rtol=1e-4, atol=0)
    assert_close(largest, torch.stack([torch.linalg.eigvalsh(matrix)[-1] for matrix in matrices]), rtol=1e-4, atol=0)
    assert (expected / size**2 > 0.01).all(), "or another range is tested"


def blocks(matrix, model, x, loss, start):
    """Return the traces of single inputs over the parameters from the ``start``-th on."""
    each = (dense_matrix(matrix, model, x[i : i + 1], loss, LABELS[i : i + 1]) for i in range(len(x)))
    return torch.stack([one[start:, start:].trace() for one in each])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", ["auto", "exact"])
def test_the_last_linear_layer_is_exact_whatever_comes_before_it(loss, method):
    model, x = make("tanh"), images()
    got = param_trace(model, batches(x), level="sample", loss=loss, params=["4"], method=method)
    assert (got.stderr, got.method) == (None, "exact")
    assert_close(got.value, blocks("hessian", model, x, loss, start=30), rtol=1e-9, atol=0)
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


@pytest.mark.parametrize("level", ["dataset", "sample"])
@pytest.mark.parametrize("place", [1, 3, 8, 16])
def test_a_network_that_bends_in_a_later_batch_only_is_estimated_from_the_first_on(place, level):
    model, x = BendsFarOut().double(), images(16)
    calm = param_trace(model, Counted(x.split(1)), level=level)
    assert calm.stderr is None
    x[place - 1] *= 20
    data = Counted(x.split(1))
    got = param_trace(model, data, level=level, seed=2)
    assert (got.method, got.rows, data.times) == ("xtrace", 16, 1 if place == 1 else 2)
    each = torch.stack([row_by_row_hessian(model, one[None]).trace() for one in x])
    ggn = param_trace(model, [x], level=level, matrix="ggn").value
    if level == "sample":
        assert ((got.value - each).abs() <= 4 * got.stderr + 1e-9).all()
        assert (ggn - each).abs().max() > 0.1, "or nothing is tested"
    else:
        assert abs(got.value - float(each.mean())) <= 4 * got.stderr + 1e-9
    with pytest.raises(ValueError, match=r"has no exact form.*behind the chosen parameters.*exact for every network"):
        param_trace(model, x.split(1), level=level, method="exact")


def test_data_is_read_once_and_some_of_the_first_batches_are_looked_at(monkeypatch):
    looked = []
    monkeypatch.setattr(trace, "trace_is_first_order", lambda _, __, batch: looked.append(float(batch.args[0])) or True)
    model = nn.Linear(1, 2)
    data = Counted(torch.arange(1.0, 41.0)[:, None].split(1))
    param_trace(model, data)
    assert looked == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
    assert data.times == 1


def test_hooks_of_others_that_bend_an_output_make_the_trace_an_estimate():
    model, x = make("relu"), images()
    model[0].register_forward_hook(lambda _, __, output: output.square())
    got = param_trace(model, [x], seed=1)
    assert got.stderr is not None
    assert abs(got.value - float(row_by_row_hessian(model, x).trace())) < 3 * got.stderr


class Turned(nn.Module):
    """Works on its inputs in another order."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(36, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.first(x.flatten(1).flip(0)).relu().flip(0))


class TokensFirst(nn.Module):
    """As many tokens as inputs, and these in the second dimension."""

    def __init__(self):
        super().__init__()
        self.slope, self.last = nn.PReLU(), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.slope(x.squeeze(1).transpose(0, 1)).mean(dim=0))


@pytest.mark.parametrize("network", [Turned, TokensFirst])
def test_inputs_that_are_not_in_their_rows_are_found(network):
    torch.manual_seed(0)
    model, x = network().double(), images(6)
    expected = torch.stack([dense_matrix("ggn", model, one[None]).trace() for one in x])
    assert_close(param_trace(model, [x], level="sample", matrix="ggn").value, expected, rtol=1e-9, atol=1e-12)
