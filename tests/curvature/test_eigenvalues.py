"""`param_lambda_max` and `param_spectrum` against dense eigenvalues in float64."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from flatfold.curvature import param_lambda_max, param_spectrum, param_trace
from tests.curvature.matrices import check_refused
from tests.small_networks import NETWORKS, dense_matrix, images, make

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
CASES = [("hessian", "energy"), ("hessian", "ce_pred"), ("hessian", "ce"), ("ggn", "energy")]
EVERYTHING = [param_trace, param_lambda_max, param_spectrum]


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
    vector = torch.linalg.eigh(dense_matrix(matrix, model, x, loss, LABELS))[1][:, -1]
    single = [dense_matrix(matrix, model, x[i : i + 1], loss, LABELS[i : i + 1]) for i in range(6)]
    along = torch.stack([vector @ one @ vector for one in single])
    assert_close(got.shares, along, rtol=0, atol=2e-3 * float(along.abs().max()))  # its error is that of the vector
    assert float(got.shares.mean()) == pytest.approx(expected, rel=1e-4)
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
        assert (got.stderr.shape, got.seed, got.method) == ((6,), 0, "Lanczos")


def test_too_few_products_are_reported():
    model, x = make("tanh"), images()
    got = param_lambda_max(model, [x], max_matvecs=3)
    assert got.method == "Lanczos, stopped after 3 products"
    assert got.stderr > 1e-3 * got.value
    got = param_lambda_max(model, [x], level="sample", max_matvecs=3)
    assert got.method == "Lanczos, stopped after 3 products for 6 inputs"


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
    again, other = (param_spectrum(model, batches(x), steps=12, probes=60, seed=seed).nodes for seed in (0, 1))
    assert torch.equal(got.nodes, again)
    assert not torch.equal(got.nodes, other)


def test_single_inputs_have_spectra_of_their_own():
    model, x = make("relu"), images(3)
    spectra = param_spectrum(model, [x[:2], x[2:]], level="sample", matrix="ggn", probes=2, steps=6)
    for one, spectrum in zip(x, spectra, strict=True):
        expected = torch.linalg.eigvalsh(dense_matrix("ggn", model, one[None]))[-1]
        assert spectrum.lambda_max == pytest.approx(float(expected), rel=1e-6)
        assert spectrum.rows == 1


def test_wrong_settings_are_refused():
    words = [({name: "image"}, ValueError, name) for name in ("level", "matrix", "loss")]
    tolerances = [(bad, ValueError, "rtol") for bad in ({"rtol": 0}, {"rtol": -1.0}, {"max_matvecs": 0})]
    counts = [(bad, ValueError, "probes") for bad in ({"steps": 0}, {"probes": 0})]
    model, x = make("relu"), images()
    check_refused(lambda settings: param_lambda_max(model, [x], **settings), words + tolerances)
    check_refused(lambda settings: param_spectrum(model, [x], **settings), words + counts)


@pytest.mark.parametrize("loss", ["energy", "ce_pred"])
@pytest.mark.parametrize("network", ["relu", "tanh"])
def test_confident_inputs_keep_their_digits_in_float32(network, loss):
    model, x = make(network), images(3)
    model[4].weight.data *= 90
    assert (1 - model(x).softmax(-1).max(-1).values).min() < 1e-9
    expected = param_lambda_max(model, [x], level="sample", loss=loss, rtol=1e-8).value
    got = param_lambda_max(model.float(), [x.float()], level="sample", loss=loss).value
    assert_close(got, expected, rtol=1e-3, atol=0)  # logits of 60 have five digits after the point
    ggn = param_trace(model, [x.float()], level="sample", matrix="ggn", method="xtrace", probes=300)
    assert_close(ggn.value, param_trace(model, [x.float()], level="sample", matrix="ggn").value, rtol=1e-3, atol=0)


@pytest.mark.parametrize("call", EVERYTHING)
def test_what_surrounds_the_call_does_not_matter(call):
    model, x = make("tanh", dtype=torch.float32), images(dtype=torch.float32)
    labels = LABELS.clone()

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


@pytest.mark.parametrize("call", EVERYTHING)
def test_gradients_modes_and_frozen_parameters_are_left_alone(call):
    model, seen = make("relu").train(), []
    model[0].eval()
    model[4].bias.requires_grad_(False)
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    modes = [module.training for module in model.modules()]
    model.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    for settings in ({}, {"params": ["4.bias", "0"]}, {"params": ["4.bias"], "matrix": "ggn"}):
        call(model, [images()], **settings)
    with pytest.raises(ValueError, match="labels"):
        call(model, [images()], loss="ce")
    assert not any(seen)
    assert [module.training for module in model.modules()] == modes
    assert (model[0].weight.requires_grad, model[4].bias.requires_grad) == (True, False)
    assert (model[0].weight.grad == 7).all()
    assert model[4].weight.grad is None
    assert all(not module._forward_hooks for module in model.modules())
    assert torch.is_grad_enabled()


# --- what torch lacks, or has wrong

ON_SECOND_DERIVATIVES = [
    param_lambda_max,
    param_trace,
    param_spectrum,
    lambda model, batches: param_trace(model, batches, level="sample"),
]


def test_a_second_derivative_that_torch_has_wrong_is_noticed():
    model, x = make("tanh"), images()
    weight_norm(model[4])
    for call in ON_SECOND_DERIVATIVES:
        with pytest.raises(ValueError, match=r"symmetric.*weight_norm"):
            call(model, [x])
    assert param_trace(model, [x], matrix="ggn").stderr is None


def test_a_step_without_a_second_derivative_is_named():
    model = nn.Sequential(nn.EmbeddingBag(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    tokens = torch.tensor([[0, 1], [2, 4], [1, 1]])
    for call in ON_SECOND_DERIVATIVES:
        with pytest.raises(ValueError, match="embedding_bag"):
            call(model, [tokens])
    assert param_trace(model, [tokens], matrix="ggn").value > 0


def test_energies_of_log_probabilities_have_no_curvature_to_be_found():
    model = nn.Sequential(make("relu"), nn.LogSoftmax(dim=-1))
    with pytest.raises(ValueError, match="log-probabilities"):
        param_lambda_max(model, [images()])
    expected = param_lambda_max(make("relu"), [images()], loss="ce_pred").value
    assert param_lambda_max(model, [images()], loss="ce_pred").value == pytest.approx(expected, rel=1e-5)
