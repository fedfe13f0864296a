"""The contract and the formulas of detectors that run a network and its gradient."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from torch import nn
from torch.testing import assert_close

import flatfold as ff
from flatfold import detectors
from flatfold.detectors import METHODS, hyperparameters
from flatfold.detectors.nac import inner_edges
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
    x = images(2).to(next(model.parameters()).dtype)
    return ff.layers_of(model, x, "stem") if METHODS[name].sees == "layers" else ff.layers_and_head(model, x)


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


def slow_odin(model, x, temperature, epsilon, std, largest_only=False):
    """One image at a time, as the formula stands."""
    scores = []
    for image in x:
        image = image[None].clone().requires_grad_()
        logits = model(image)
        nn.functional.cross_entropy(logits / temperature, logits.argmax(-1)).backward()
        sign = torch.where(image.grad >= 0, 1.0, -1.0)
        if largest_only:
            largest = max(np.ndindex(*image.shape), key=lambda entry, g=image.grad: abs(g[entry].item()))
            for entry in np.ndindex(*image.shape):
                sign[entry] *= entry == largest
        with torch.no_grad():
            moved = image - epsilon * sign / torch.tensor(std)[:, None, None]
            scores.append(-float((model(moved) / temperature).softmax(-1).max()))
    model.zero_grad()
    return torch.tensor(scores, dtype=torch.float64)


def test_odin_and_iodin_are_their_formulas():
    model, x = make_network(dtype=torch.float64), images(20, dtype=torch.float64)
    std = (0.2, 0.3, 0.25)
    for method, temperature in itertools.product((detectors.Odin, detectors.Iodin), (1, 1000)):
        detector = method(temperature, 0.05, std).fit(ff.logits_function(model))
        expected = slow_odin(model, x, temperature, 0.05, std, method is detectors.Iodin)
        assert_close(detector(x), expected, rtol=1e-9, atol=0)


def test_a_gradient_of_zero_is_a_step_up():
    """As in the reference: a saturated network still moves its input."""
    seen = []

    def flat(x):
        seen.append(x.detach().clone())
        return torch.stack([x.sum((1, 2, 3)) * 0, x.sum((1, 2, 3)) * 0], dim=1)

    detectors.Odin(1, 0.1, 1.0).fit(flat)(torch.zeros(1, 3, 2, 2))
    assert_close(seen[-1], torch.full((1, 3, 2, 2), -0.1))
    detectors.Iodin(1, 0.1, 1.0).fit(flat)(torch.zeros(1, 3, 2, 2))
    assert_close(seen[-1].flatten(), torch.tensor([-0.1] + [0.0] * 11))


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


def slow_adascale(model, batches, x, kind, p_min=75, p_max=85, k1=5, k2=1, weight=10, share=0.05, epsilon=0.5):
    """One image at a time, with sorted lists for everything."""

    def features_and_shift(image):
        image = image[None].clone().requires_grad_()
        model(image).max().backward()
        gradient = image.grad.flatten().tolist()
        moved = image.detach().flatten().clone()
        for entry in sorted(range(len(gradient)), key=lambda j: abs(gradient[j]))[: int(len(gradient) * share)]:
            moved[entry] += epsilon * np.sign(gradient[entry])
        h, h_moved = (model[:-1](each)[0].tolist() for each in (image, moved.view_as(image)))
        order = sorted(range(len(h)), key=lambda j: -h[j])
        first, second = (order[: max(1, int(len(h) * k / 100))] for k in (k1, k2))
        return h, sum(max(0, h_moved[j]) for j in first) + weight * sum(abs(h[j] - h_moved[j]) for j in second)

    known = [features_and_shift(image)[1] for images, _ in batches for image in images]
    scores = []
    for image in x:
        h, shift = features_and_shift(image)
        percentile = p_min + (1 - sum(q <= shift for q in known) / len(known)) * (p_max - p_min)
        ratio = sum(h) / sum(sorted(h)[round(len(h) * percentile / 100) :])
        with torch.no_grad():
            h = torch.tensor(h, dtype=torch.float64)
            logits = model[-1](h * np.exp(ratio)) if kind == "a" else model[-1](h) * ratio**2
        scores.append(-logits.logsumexp(0).item())
    model.zero_grad()
    return torch.tensor(scores, dtype=torch.float64)


WIDE = {"p_min": 20, "p_max": 80, "k1": 60, "k2": 40, "shift_weight": 2, "share": 0.5, "epsilon": 5}


def test_adascale_is_its_formula():
    """Also where several features count, which the default does not make of six, and for inputs that it learnt from."""
    model, batches, x = make_case(torch.float64)
    x = torch.cat([x, batches[0][0]])
    for kind, hyper in itertools.product("al", ({}, WIDE)):
        slow = {"weight" if key == "shift_weight" else key: value for key, value in hyper.items()}
        detector = ff.create(f"adascale-{kind}", **hyper).fit(function("adascale-a", model), batches)
        assert_close(detector(x), slow_adascale(model, batches, x, kind, **slow), rtol=1e-9, atol=0)


def test_adascale_with_one_percentile_is_scale(case):
    model, _, x = case
    h, head = model[:-1](x).detach(), ff.Head(model[-1].weight.detach(), model[-1].bias.detach())
    scale = ff.create("scale", percentile=60).fit(ff.FeatureBank(h), head)
    assert_close(fitted("adascale-a", case, p_min=60, p_max=60)(x), scale(h))
    assert fitted("adascale-a", case, p_min=20, p_max=60)(x).sub(scale(h)).abs().max() > 0.01


def slow_nac(model, batches, x, cuts, steepness, threshold, bins):
    """One neuron of one image at a time; ``cuts`` are the numbers of modules before the layers."""
    scores = torch.zeros(len(x), dtype=torch.float64)
    for cut, alpha, r, m in zip(cuts, steepness, threshold, bins, strict=True):
        left = [np.log(1 + j * (1000**0.5 - 1) / (m // 2 - 1)) / np.log(1000) for j in range(m // 2 - 1)]
        edges = [*left, 0.5, *(1 - b for b in left[::-1])]

        def intervals(image, cut=cut, alpha=alpha, edges=edges):
            layer = model[:cut](image[None]).detach().requires_grad_()
            log_probs = model[cut:](layer).log_softmax(-1)[0]
            uniform = torch.full_like(log_probs, 1 / len(log_probs))
            nn.functional.kl_div(log_probs, uniform, reduction="sum").backward()
            found = []
            for neuron in range(layer.shape[1]):
                state = 1 / (1 + np.exp(-alpha * layer[0, neuron].sum().item() * layer.grad[0, neuron].sum().item()))
                found.append(
                    next(i for i in range(len(edges) - 1) if edges[i] <= state < edges[i + 1] or i == len(edges) - 2)
                )
            return found

        known = [intervals(image) for images, _ in batches for image in images]
        for row, image in enumerate(x):
            shares = [np.mean([other[i] == here for other in known]) for i, here in enumerate(intervals(image))]
            scores[row] -= np.mean([min(1, share / r) for share in shares])
    model.zero_grad()
    return scores


def test_nac_is_its_formula():
    model, batches, x = make_case(torch.float64)
    settings = {"steepness": (200, 300), "threshold": (0.4, 0.3), "bins": (20, 30)}
    detector = detectors.Nac(**settings, layers=["3"]).fit(ff.layers_and_head(model, x, ["3"]), batches)
    found = detector(x)
    assert_close(found, slow_nac(model, batches, x, (4, 6), *settings.values()), rtol=1e-9, atol=0)
    assert len(found.unique()) > 10
    default = detectors.Nac().fit(ff.layers_and_head(model, x), batches)
    assert_close(default(x), slow_nac(model, batches, x, (6,), (100,), (0.05,), (50,)), rtol=1e-9, atol=0)


def test_nac_has_the_intervals_of_the_authors_code():
    """Some edges that it computes for M = 50; a state of exactly 1/2 is in the interval above it."""
    edges = inner_edges(50)
    assert len(edges) == 47
    expected = [0.11905418, 0.18348683, 0.22791784, 0.49403777, 0.50596223, 0.88094582]
    np.testing.assert_allclose(edges[[0, 1, 2, 22, 24, -1]], expected, rtol=0, atol=1e-8)
    assert edges[23] == 0.5
    assert torch.equal(edges, edges.sort().values)


@every_method
def test_grey_flat_and_saturated_inputs_have_finite_scores(name):
    """One channel, constant images, gradients that are 0, and a single batch of a single image to learn from."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ).eval()
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    nn.init.zeros_(model[-1].weight)
    network = {
        "logits": ff.logits_function,
        "layers": lambda m: ff.layers_of(m, x, "stem"),
        "head": lambda m: ff.layers_and_head(m, x),
    }
    batches = [(x, torch.arange(6) % 3)] if METHODS[name].needs_labels else [(x[:1], None)]
    detector = ff.create(name).fit(network[METHODS[name].sees](model), batches)
    scores = detector(torch.stack([x[0], torch.zeros(1, 8, 8), torch.full((1, 8, 8), 1e4)]))
    assert scores.isfinite().all()


def test_bad_hyperparameters_and_data_of_adascale_and_nac_are_refused(case):
    model, batches, x = case
    for name, hyper, keyword in [
        ("adascale-a", {"p_min": 0.9}, "p_min"),
        ("adascale-l", {"p_max": 100}, "p_max"),
        ("adascale-a", {"p_min": 90, "p_max": 80}, "p_max"),
        ("adascale-a", {"k1": 0}, "k1"),
        ("adascale-a", {"k2": 101}, "k2"),
        ("adascale-a", {"share": 1.5}, "share"),
        ("adascale-a", {"shift_weight": -1}, "shift_weight"),
        ("nac", {"steepness": 0}, "steepness"),
        ("nac", {"threshold": (0.1, 0.2)}, "threshold"),
        ("nac", {"threshold": -0.1}, "threshold"),
        ("nac", {"bins": 5}, "bins"),
        ("nac", {"bins": (50, 2)}, "bins"),
    ]:
        assert_refused(ff.MethodRefusedError, keyword, fitted, name, case, case=(name, hyper), **hyper)
    for name in ("adascale-a", "nac"):
        assert_refused(ff.MethodRefusedError, "batches", ff.create(name).fit, function(name, model), [])
    assert_refused(ff.MethodRefusedError, "none of 6", fitted("adascale-a", case, p_max=99), x)
    unrectified = nn.Sequential(*model[:3], *model[4:]).eval()
    assert_refused(ff.MethodRefusedError, "non-negative", fitted, "adascale-a", (unrectified, batches, x))
    apart = lambda x: ([model[:2](x), model[:-1](x)], model[-1])  # noqa: E731 - the logits come from another pass
    assert_refused(ff.MethodRefusedError, "depend", detectors.Nac().fit, apart, batches)


@every_method
def test_a_guard_refuses_methods_that_run_the_network(name, case):
    model, batches, _ = case
    assert_refused(TypeError, "runs the network", ff.Guard.fit, model, batches, method=ff.create(name), fpr=0.1)
