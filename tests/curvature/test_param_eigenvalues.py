import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from flatfold.curvature.eigenvalues import param_lambda_max, param_spectrum
from flatfold.curvature.trace import param_trace
from tests.small_networks import NETWORKS, dense_matrix, images, make

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
CASES = [("hessian", "energy"), ("hessian", "ce_pred"), ("hessian", "ce"), ("ggn", "energy")]


def batches(x):
    return [(x[:4], LABELS[:4]), (x[4:], LABELS[4:])]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("matrix", "loss"), CASES)
def test_the_largest_eigenvalue_is_that_of_the_dense_matrix(network, matrix, loss):
    model, x = make(network), images()
    expected = float(torch.linalg.eigvalsh(dense_matrix(matrix, model, x, loss, LABELS))[-1])
    got = param_lambda_max(model, batches(x), matrix=matrix, loss=loss)
    assert got.value == pytest.approx(expected, rel=1e-5)
    assert abs(got.value - expected) <= got.stderr + 1e-9
    assert got.matvecs <= 20
    assert (got.method, got.matrix, got.loss, got.seed, got.rows) == ("Lanczos", matrix, loss, 0, 6)


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_single_inputs_have_eigenvalues_of_their_own(matrix):
    model, x = make("batch norm"), images()
    expected = torch.stack([torch.linalg.eigvalsh(dense_matrix(matrix, model, x[i : i + 1]))[-1] for i in range(6)])
    got = param_lambda_max(model, batches(x), level="sample", matrix=matrix)
    assert_close(got.value, expected, rtol=1e-5, atol=1e-10)
    if matrix == "ggn":
        assert (got.stderr, got.seed, got.method) == (None, None, "exact")
    else:
        assert got.stderr.shape == (6,)


def test_too_few_products_are_told():
    got = param_lambda_max(make("tanh"), [images()], max_matvecs=3)
    assert got.method == "Lanczos, stopped after 3 products"
    assert got.stderr > 1e-3 * got.value


def test_a_tiny_curvature_is_found_to_the_same_digits():
    model, x = make("tanh"), images()
    model[4].weight.data *= 1e-5  # upstream of it hardly anything moves
    expected = torch.linalg.eigvalsh(dense_matrix("ggn", model, x)[:30, :30])[-1]
    got = param_lambda_max(model, [x], matrix="ggn", params=["0"])
    assert 0 < got.value < 1e-8
    assert got.value == pytest.approx(float(expected), rel=1e-5)


def test_the_spectrum_has_the_moments_of_the_matrix():
    model, x = make("tanh"), images()
    eigenvalues = torch.linalg.eigvalsh(dense_matrix("hessian", model, x))
    got = param_spectrum(model, batches(x), steps=12, probes=60)
    mean, square = ((got.weights * got.nodes**k).sum(1) for k in (1, 2))
    for found, expected in ((mean, eigenvalues.mean()), (square, eigenvalues.square().mean())):
        assert abs(float(found.mean() - expected)) < 4 * float(found.std() / 60**0.5)
    assert got.size == len(eigenvalues)
    assert got.matvecs == 12 * 60
    assert got.lambda_max == pytest.approx(float(eigenvalues[-1]), rel=1e-4)
    assert got.lambda_min == pytest.approx(float(eigenvalues[0]), rel=1e-4)
    assert (got.matrix, got.loss, got.rows, got.seed) == ("hessian", "energy", 6, 0)


def test_single_inputs_have_spectra_of_their_own():
    model, x = make("relu"), images(3)
    spectra = param_spectrum(model, [x[:2], x[2:]], level="sample", matrix="ggn", probes=2, steps=6)
    for one, spectrum in zip(x, spectra, strict=True):
        expected = torch.linalg.eigvalsh(dense_matrix("ggn", model, one[None]))[-1]
        assert spectrum.lambda_max == pytest.approx(float(expected), rel=1e-6)
        assert spectrum.rows == 1


def test_a_seed_gives_the_same_spectrum_again():
    model, x = make("relu"), images()
    one, again, other = (param_spectrum(model, [x], probes=2, steps=4, seed=seed).nodes for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("function", [param_lambda_max, param_spectrum])
@pytest.mark.parametrize(("name", "value"), [("level", "image"), ("matrix", "fisher"), ("loss", "mse")])
def test_unknown_words_are_told(function, name, value):
    with pytest.raises(ValueError, match=f"{name} must be one of"):
        function(make("relu"), [images()], **{name: value})


@pytest.mark.parametrize("settings", [{"rtol": 0}, {"rtol": -1.0}, {"max_matvecs": 0}])
def test_impossible_tolerances_are_told(settings):
    with pytest.raises(ValueError, match="rtol must be above 0 and max_matvecs at least 1"):
        param_lambda_max(make("relu"), [images()], **settings)


@pytest.mark.parametrize("settings", [{"steps": 0}, {"probes": 0}])
def test_impossible_quadratures_are_told(settings):
    with pytest.raises(ValueError, match="steps and probes must be at least 1"):
        param_spectrum(make("relu"), [images()], **settings)


@pytest.mark.parametrize("call", [param_lambda_max, param_spectrum])
def test_gradients_and_modes_are_left_alone(call):
    model = make("relu").train()
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    call(model, [images()])
    assert model.training
    assert (model[0].weight.grad == 7).all()
    assert model[4].weight.grad is None


@pytest.mark.parametrize("loss", ["energy", "ce_pred"])
@pytest.mark.parametrize("network", ["relu", "tanh"])
def test_confident_inputs_keep_their_digits_in_float32(network, loss):
    model, x = make(network), images(3)
    model[4].weight.data *= 90
    assert (1 - model(x).softmax(-1).max(-1).values).min() < 1e-9
    expected = param_lambda_max(model, [x], level="sample", loss=loss, rtol=1e-8).value
    got = param_lambda_max(model.float(), [x.float()], level="sample", loss=loss).value
    assert_close(got, expected, rtol=1e-3, atol=0)  # logits of 60 have five digits after the point
    ggn = param_trace(model, [x.float()], level="sample", matrix="ggn", method="hutchinson", probes=300)
    assert_close(ggn.value, param_trace(model, [x.float()], level="sample", matrix="ggn").value, rtol=1e-3, atol=0)


def test_too_few_products_are_told_for_single_inputs():
    got = param_lambda_max(make("tanh"), [images()], level="sample", max_matvecs=3)
    assert got.method == "Lanczos, stopped after 3 products for 6 inputs"
    assert param_lambda_max(make("tanh"), [images()], level="sample").method == "Lanczos"


@pytest.mark.parametrize("call", [param_trace, param_lambda_max, param_spectrum])
def test_what_surrounds_the_call_does_not_matter(call):
    model, x = make("tanh", dtype=torch.float32), images(dtype=torch.float32)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])

    def value():
        found = call(model, [(x, labels)], loss="ce")
        return found.lambda_max if call is param_spectrum else found.value

    expected = value()
    with torch.no_grad():
        assert value() == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert value() == expected
    with torch.inference_mode():
        assert value() == expected
        x, labels = x.clone(), labels.clone()
    assert x.is_inference()
    assert labels.is_inference()
    assert value() == expected


def test_a_second_derivative_that_torch_has_wrong_is_noticed():
    model, x = make("tanh"), images()
    weight_norm(model[4])
    for call in (
        lambda: param_lambda_max(model, [x]),
        lambda: param_trace(model, [x]),
        lambda: param_trace(model, [x], level="sample"),
        lambda: param_spectrum(model, [x]),
    ):
        with pytest.raises(ValueError, match=r"a curvature matrix must be symmetric.*weight_norm"):
            call()
    assert param_trace(model, [x], matrix="ggn").stderr is None


def test_energies_of_log_probabilities_have_no_curvature_to_be_found():
    model = nn.Sequential(make("relu"), nn.LogSoftmax(dim=-1))
    with pytest.raises(ValueError, match=r"no curvature but rounding, as in the energy of log-probabilities"):
        param_lambda_max(model, [images()])
    expected = param_lambda_max(make("relu"), [images()], loss="ce_pred").value
    assert param_lambda_max(model, [images()], loss="ce_pred").value == pytest.approx(expected, rel=1e-5)


def test_a_step_without_a_second_derivative_is_told():
    model = nn.Sequential(nn.EmbeddingBag(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    tokens = torch.tensor([[0, 1], [2, 4], [1, 1]])
    for call in (
        lambda: param_lambda_max(model, [tokens]),
        lambda: param_trace(model, [tokens]),
        lambda: param_trace(model, [tokens], level="sample"),
    ):
        with pytest.raises(ValueError, match=r"no second derivative: .*embedding_bag.*matrix='ggn' needs the first"):
            call()
    assert param_trace(model, [tokens], matrix="ggn").value > 0
