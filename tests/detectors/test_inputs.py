"""The contract and the formulas of detectors that run a network and its gradient."""

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold import detectors
from flatfold.detectors import METHODS, hyperparameters
from tests.refusals import assert_refused

every_method = pytest.mark.parametrize("name", sorted(name for name in METHODS if METHODS[name].sees != "features"))


def make_network(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    body = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(6, 3)).to(dtype).eval()


def images(n, seed=1, dtype=torch.float32):
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make_case(dtype=torch.float32):
    """A network, labelled batches for it, and images to score."""
    labels = torch.arange(90) % 3
    x = images(90, dtype=dtype) + labels[:, None, None, None] * 0.7
    batches = list(zip(x.split(16), labels.split(16), strict=True))
    return make_network(dtype=dtype), batches, images(20, seed=2, dtype=dtype)


@pytest.fixture
def case():
    return make_case()


def function(name, model):
    if METHODS[name].sees == "logits":
        return ff.logits_function(model)
    return ff.layers_of(model, images(2).to(next(model.parameters()).dtype), "stem")


def fitted(name, case, **hyper):
    model, batches, _ = case
    return ff.create(name, **hyper).fit(function(name, model), batches)


@every_method
def test_an_input_has_a_finite_score_in_its_type_the_same_alone_as_in_a_batch(name):
    for dtype, rtol in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
        case = make_case(dtype)
        detector = fitted(name, case)
        scores = detector(case[2])
        assert scores.shape == (20,)
        assert scores.dtype == dtype
        assert scores.isfinite().all()
        assert_close(torch.cat([detector(x[None]) for x in case[2]]), scores, rtol=rtol, atol=1e-6)


@every_method
def test_leaves_the_input_and_the_network_alone(name, case):
    model, _, x = case
    before, weights = x.clone(), [parameter.clone() for parameter in model.parameters()]
    fitted(name, case)(x)
    assert torch.equal(x, before)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.grad is None
    assert not model._forward_pre_hooks
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@every_method
def test_the_network_is_no_part_of_the_state(name, case):
    detector = fitted(name, case)
    assert not list(detector.parameters())
    fresh = ff.create(name)
    fresh.load_state_dict(detector.state_dict())
    assert_close(fresh.attach(function(name, case[0]))(case[2]), detector(case[2]))


@every_method
def test_bad_inputs_and_a_missing_fit_are_refused(name, case):
    x = case[2]
    assert_refused(ff.NotFittedError, "fitted", ff.create(name), x)
    assert_refused(ValueError, "training mode", ff.create(name).fit, nn.Linear(2, 2), [])
    detector = fitted(name, case)
    assert_refused(ValueError, "row 1", detector, torch.cat([x[:1], x[:1] / 0]))
    for raw in (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), np.zeros((2, 3, 8, 8))):
        assert_refused(TypeError, "floating-point", detector, raw)
    if "epsilon" in hyperparameters(name):
        for epsilon in (-0.1, float("nan"), float("inf"), "far"):
            assert_refused(ValueError, "epsilon", fitted, name, case, epsilon=epsilon)


def test_bad_hyperparameters_of_odin_and_mdsens_are_refused(case):
    for temperature in (0, -1):
        assert_refused(ValueError, "temperature", fitted, "odin", case, temperature=temperature)
    for std in (0.0, -0.5, (0.2, 0.0, 0.2), "half"):
        assert_refused(ValueError, "std", fitted, "odin", case, std=std)
    assert_refused(ValueError, "channels", fitted("odin", case, std=(0.1, 0.2)), case[2])
    assert_refused(ValueError, "weights", fitted, "mdsens", case, weights=(1, 2))
    layers = function("mdsens", case[0])
    assert_refused(ValueError, "labelled", detectors.MdsEns().fit, layers, [])
    assert_refused(ff.NotFittedError, "fitted", detectors.MdsEns().attach(layers), case[2])


def slow_odin(model, x, temperature, epsilon, std):
    """One image at a time, as the formula stands."""
    scores = []
    for image in x:
        image = image[None].clone().requires_grad_()
        logits = model(image)
        nn.functional.cross_entropy(logits / temperature, logits.argmax(-1)).backward()
        sign = torch.where(image.grad >= 0, 1.0, -1.0)
        with torch.no_grad():
            moved = image - epsilon * sign / torch.tensor(std)[:, None, None]
            scores.append(-float((model(moved) / temperature).softmax(-1).max()))
    model.zero_grad()
    return torch.tensor(scores, dtype=torch.float64)


def test_odin_is_its_formula():
    model, x = make_network(dtype=torch.float64), images(20, dtype=torch.float64)
    std = (0.2, 0.3, 0.25)
    for temperature in (1, 1000):
        detector = detectors.Odin(temperature, 0.05, std).fit(ff.logits_function(model))
        assert_close(detector(x), slow_odin(model, x, temperature, 0.05, std), rtol=1e-9, atol=0)


def test_a_gradient_of_zero_is_a_step_up():
    """As in the reference: a saturated network still moves its input."""
    seen = []

    def flat(x):
        seen.append(x.detach().clone())
        return torch.stack([x.sum((1, 2, 3)) * 0, x.sum((1, 2, 3)) * 0], dim=1)

    detectors.Odin(1, 0.1, 1.0).fit(flat)(torch.zeros(1, 3, 2, 2))
    assert_close(seen[-1], torch.full((1, 3, 2, 2), -0.1))


def test_odins_gradient_does_not_vanish_at_a_high_temperature():
    """In float32 a gradient of 1 / (64 T) of tiny logits would be lost."""
    scores = []
    for dtype in (torch.float32, torch.float64):
        model = make_network(dtype=dtype)
        with torch.no_grad():
            model[-1].weight *= 1e-30
        scores.append(detectors.Odin(1e6, 0.05).fit(ff.logits_function(model))(images(64).to(dtype)).double())
    assert_close(*scores, rtol=1e-6, atol=0)


def slow_mdsens(model, batches, x, epsilon=0.0014):
    """The stem alone, one image at a time."""
    stem = model[:2]
    train = torch.cat([x for x, _ in batches])
    labels = torch.cat([y for _, y in batches]).numpy()
    f = stem(train).mean((2, 3)).detach().numpy()
    means = np.stack([f[labels == k].mean(0) for k in range(3)])
    precision = torch.from_numpy(EmpiricalCovariance().fit(f - means[labels]).precision_)
    means = torch.from_numpy(means)

    def half_distance(image):
        moved = stem(image).mean((2, 3)) - means
        return (((moved @ precision) * moved).sum(-1) / 2).min()

    scores = []
    for image in x:
        image = image[None].clone().requires_grad_()
        half_distance(image).backward()
        moved = image - epsilon * torch.where(image.grad >= 0, 1.0, -1.0) / 0.5
        scores.append(half_distance(moved).item())
    return torch.tensor(scores, dtype=torch.float64)


def test_mdsens_is_the_references_single_stem_layer():
    model, batches, x = make_case(torch.float64)
    detector = detectors.MdsEns().fit(ff.layers_of(model, x, "stem"), batches)
    assert_close(detector(x), slow_mdsens(model, batches, x), rtol=1e-6, atol=1e-9)


def test_mdsens_can_be_an_ensemble(case):
    model, batches, x = case
    network = ff.layers_of(model, x, "stages")
    shapes = [tuple(layer.shape[1:]) for layer in network(x)]
    assert shapes == [(4, 8, 8), (6,)]
    together = detectors.MdsEns(layers="stages", weights=(1.0, 1.0)).fit(network, batches)
    single = [lambda x, i=i: [network(x)[i]] for i in range(2)]
    alone = [
        detectors.MdsEns().fit(layer, batches)(x).double() for layer in single
    ]  # each layer takes a step of its own
    assert_close(together(x).double(), sum(alone), rtol=1e-4, atol=1e-4)
    balanced = detectors.MdsEns(layers="stages").fit(network, batches)
    still = [detectors.MdsEns(epsilon=0).fit(layer, batches) for layer in single]
    spreads = torch.stack([torch.cat([detector(b) for b, _ in batches]).std() for detector in still])
    assert_close(balanced.weights_, 1 / spreads.double(), rtol=1e-4, atol=0)


def test_a_failed_refit_leaves_the_detector_as_it_was(case):
    x = case[2]
    detector = fitted("mdsens", case)
    before = detector(x)
    other = make_network(seed=3, dtype=x.dtype)
    for bad in ([], [(x, None)]):
        assert_refused(ValueError, "labelled", detector.fit, function("mdsens", other), bad)
        assert_close(detector(x), before)


def test_a_refit_keeps_nothing_of_the_last_one(case):
    model, batches, x = case
    detector = detectors.MdsEns(weights=(1.0, 1.0)).fit(ff.layers_of(model, x, "stages"), batches)
    detector.weights = None
    detector.fit(function("mdsens", model), batches)
    assert set(detector.state_dict()) == set(fitted("mdsens", case).state_dict())


@every_method
def test_scores_where_gradients_cannot_be_and_of_inputs_that_have_one(name, case):
    detector = fitted(name, case)
    expected = detector(case[2])
    with torch.inference_mode():
        assert_close(detector(case[2].clone()), expected)
    x = case[2].clone().requires_grad_()
    assert not detector(x).requires_grad
    assert x.requires_grad
    assert x.grad is None
