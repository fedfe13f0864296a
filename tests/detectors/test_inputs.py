"""The second contract: detectors that run a network and its gradient."""

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold.detectors import METHODS

NAMES = sorted(name for name, method in METHODS.items() if method.sees != "features")
every_method = pytest.mark.parametrize("name", NAMES)


def make_network(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    body = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(6, 3)).to(dtype).eval()


def images(n, seed=1, dtype=torch.float32):
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def case(request):
    """A network, labelled batches for it, and images to score."""
    model = make_network(dtype=request.param)
    x = images(90, dtype=request.param)
    labels = torch.arange(90) % 3
    x = x + labels[:, None, None, None] * 0.7
    return model, list(zip(x.split(16), labels.split(16), strict=True)), images(20, seed=2, dtype=request.param)


def function(name, model):
    if METHODS[name].sees == "logits":
        return ff.logits_function(model)
    return ff.layers_of(model, images(2).to(next(model.parameters()).dtype), "stem")


def fitted(name, case, **hyper):
    model, batches, _ = case
    return ff.create(name, **hyper).fit(function(name, model), batches)


def test_odin_and_mdsens_are_the_ones():
    assert NAMES == ["mdsens", "odin"]


@every_method
def test_gives_one_finite_score_per_input_in_its_type(name, case):
    scores = fitted(name, case)(case[2])
    assert scores.shape == (20,)
    assert scores.dtype == case[2].dtype
    assert scores.isfinite().all()
    assert not scores.requires_grad


@every_method
def test_an_input_scores_the_same_alone_as_in_a_batch(name, case):
    detector = fitted(name, case)
    alone = torch.cat([detector(x[None]) for x in case[2]])
    assert_close(alone, detector(case[2]), rtol=1e-4 if case[2].dtype == torch.float32 else 1e-9, atol=1e-6)


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
def test_works_where_gradients_are_switched_off(name, case):
    detector = fitted(name, case)
    with torch.no_grad():
        assert_close(detector(case[2]), detector(case[2]))


@every_method
def test_the_network_is_no_part_of_the_state(name, case):
    detector = fitted(name, case)
    assert not list(detector.parameters())
    fresh = ff.create(name)
    fresh.load_state_dict(detector.state_dict())
    assert_close(fresh.attach(function(name, case[0]))(case[2]), detector(case[2]))


@every_method
def test_says_what_is_missing(name, case):
    with pytest.raises(ff.NotFittedError, match=r"is not fitted. Call .fit\(network, batches\) first"):
        ff.create(name)(case[2])
    with pytest.raises(ValueError, match=r"the network is in training mode, where scores are random. Call .eval\(\)"):
        ff.create(name).fit(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="inputs must be finite, but row 1"):
        fitted(name, case)(torch.cat([case[2][:1], case[2][:1] / 0]))


@every_method
@pytest.mark.parametrize("epsilon", [-0.1, float("nan"), float("inf"), "far"])
def test_a_step_must_have_a_length(name, epsilon, case):
    with pytest.raises(ValueError, match="epsilon must be a number from 0 on"):
        fitted(name, case, epsilon=epsilon)


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


@pytest.mark.parametrize("temperature", [1, 1000])
def test_odin_is_its_formula(temperature):
    model, x = make_network(dtype=torch.float64), images(20, dtype=torch.float64)
    std = (0.2, 0.3, 0.25)
    detector = ff.Odin(temperature, 0.05, std).fit(ff.logits_function(model))
    assert_close(detector(x), slow_odin(model, x, temperature, 0.05, std), rtol=1e-9, atol=0)


def test_odin_steps_to_a_surer_prediction():
    model, x = make_network(), images(20)
    still, moved = (ff.Odin(1, epsilon).fit(model)(x) for epsilon in (0.0, 0.01))
    assert (moved < still).all()


def test_a_gradient_of_zero_is_a_step_up():
    """As in the reference: a saturated network still moves its input."""
    seen = []

    def flat(x):
        seen.append(x.detach().clone())
        return torch.stack([x.sum((1, 2, 3)) * 0, x.sum((1, 2, 3)) * 0], dim=1)

    ff.Odin(1, 0.1, 1.0).fit(flat)(torch.zeros(1, 3, 2, 2))
    assert_close(seen[-1], torch.full((1, 3, 2, 2), -0.1))


def test_odins_gradient_does_not_vanish_at_a_high_temperature():
    """Logits of 200 at T = 1000 in a batch of 64 in float32, where 1 / (64 T) of a gradient would be lost."""
    model = make_network()
    with torch.no_grad():
        model[-1].weight *= 1e-30
    x = images(64)
    hot, reference = (
        ff.Odin(1e6, 0.05).fit(ff.logits_function(net))(x.to(dtype))
        for net, dtype in ((model, torch.float32), (make_scaled(1e-30), torch.float64))
    )
    assert_close(hot.double(), reference, rtol=1e-6, atol=0)


def make_scaled(factor):
    model = make_network(dtype=torch.float64)
    with torch.no_grad():
        model[-1].weight *= factor
    return model


@pytest.mark.parametrize("temperature", [0, -1])
def test_odin_needs_a_temperature(temperature, case):
    with pytest.raises(ValueError, match=r"temperature must be a finite number above 0, got .*. 1000 is customary"):
        fitted("odin", case, temperature=temperature)


def test_as_many_deviations_as_channels(case):
    with pytest.raises(ValueError, match="std has 2 numbers, but the inputs have 3 channels"):
        fitted("odin", case, std=(0.1, 0.2))(case[2])


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


def test_mdsens_is_the_references_single_stem_layer(case):
    model, batches, x = case
    model, batches = model.double(), [(x.double(), y) for x, y in batches]
    detector = ff.MdsEns().fit(ff.layers_of(model, x.double(), "stem"), batches)
    assert_close(detector(x.double()), slow_mdsens(model, batches, x.double()), rtol=1e-6, atol=1e-9)


def test_mdsens_can_be_an_ensemble(case):
    model, batches, x = case
    network = ff.layers_of(model, x, "stages")
    shapes = [tuple(layer.shape[1:]) for layer in network(x)]
    assert shapes == [(4, 8, 8), (6,)]
    together = ff.MdsEns(layers="stages", weights=(1.0, 1.0)).fit(network, batches)
    alone = [
        ff.MdsEns().fit(lambda x, i=i: [network(x)[i]], batches)(x).double() for i in range(2)
    ]  # each layer takes a step of its own
    assert_close(together(x).double(), sum(alone), rtol=1e-4, atol=1e-4)
    balanced = ff.MdsEns(layers="stages").fit(network, batches)
    spreads = torch.stack(
        [
            torch.cat([ff.MdsEns(epsilon=0).fit(lambda x, i=i: [network(x)[i]], batches)(b) for b, _ in batches]).std()
            for i in range(2)
        ]
    )
    assert_close(balanced.weights_, 1 / spreads.double(), rtol=1e-4, atol=0)


def test_weights_are_one_per_layer(case):
    with pytest.raises(ValueError, match=r"weights must be one number per layer, 1, got \(1, 2\)"):
        fitted("mdsens", case, weights=(1, 2))


def test_mdsens_needs_something_to_learn_from(case):
    with pytest.raises(ValueError, match="MDSEns learns from labelled inputs"):
        ff.MdsEns().fit(function("mdsens", case[0]), [])


def test_a_failed_refit_leaves_the_detector_as_it_was(case):
    x = case[2]
    detector = fitted("mdsens", case)
    before = detector(x)
    other = make_network(seed=3, dtype=x.dtype)
    for bad in ([], [(x, None)]):
        with pytest.raises(ValueError, match="MDSEns learns from labelled inputs"):
            detector.fit(function("mdsens", other), bad)
        assert_close(detector(x), before)


def test_a_refit_keeps_nothing_of_the_last_one(case):
    model, batches, x = case
    detector = ff.MdsEns(weights=(1.0, 1.0)).fit(ff.layers_of(model, x, "stages"), batches)
    detector.weights = None
    detector.fit(function("mdsens", model), batches)
    assert set(detector.state_dict()) == set(fitted("mdsens", case).state_dict())


def test_a_network_alone_is_not_enough_for_a_method_that_learns(case):
    with pytest.raises(ff.NotFittedError, match="is not fitted"):
        ff.MdsEns().attach(function("mdsens", case[0]))(case[2])


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


@every_method
@pytest.mark.parametrize("x", [torch.zeros(2, 3, 8, 8, dtype=torch.uint8), np.zeros((2, 3, 8, 8))])
def test_inputs_that_are_not_prepared_are_refused(name, x, case):
    with pytest.raises(TypeError, match="inputs must be a floating-point tensor, prepared as for the network"):
        fitted(name, case)(x)


@pytest.mark.parametrize("std", [0.0, -0.5, (0.2, 0.0, 0.2), "half"])
def test_deviations_are_above_zero(std, case):
    with pytest.raises(ValueError, match="std must be a finite number above 0"):
        fitted("odin", case, std=std)


def test_the_default_deviation_is_openoods():
    assert ff.Odin().std == 0.5
