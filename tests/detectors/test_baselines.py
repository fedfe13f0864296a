"""The first company: MSP, energy, maximum logit, ReAct, ASH, each against its formula in float64."""

import pytest
import torch
from torch.testing import assert_close

import flatfold as ff


def double_logits(h, head):
    return h.double() @ head.weight.double().T + head.bias.double()


FORMULAS = {
    "msp": lambda z: -z.softmax(-1).max(-1).values,
    "ebo": lambda z: -torch.log(torch.exp(z).sum(-1)),
    "mls": lambda z: -z.max(-1).values,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_agrees_with_its_formula(name, world):
    scores = ff.create(name).fit(world.bank, world.head)(world.unknown)
    assert_close(scores.double(), FORMULAS[name](double_logits(world.unknown, world.head)), rtol=1e-5, atol=1e-6)


def test_the_energy_has_a_temperature(world):
    scores = ff.create("ebo", temperature=3.0).fit(world.bank, world.head)(world.unknown)
    expected = -3 * torch.log(torch.exp(double_logits(world.unknown, world.head) / 3).sum(-1))
    assert_close(scores.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf"), "hot"])
def test_a_temperature_that_is_not_positive_is_refused(temperature, make_world):
    world = make_world()
    with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
        ff.Ebo(temperature).fit(world.bank, world.head)


def test_react_is_the_energy_of_clipped_features(world):
    threshold = torch.quantile(world.bank.features.flatten(), 0.7)
    scores = ff.create("react", percentile=70).fit(world.bank, world.head)(world.bank.features)
    expected = FORMULAS["ebo"](double_logits(world.bank.features.clamp(max=threshold), world.head))
    assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)


def test_ash_is_the_energy_of_shaped_features(world):
    top = world.unknown.topk(8).indices  # 24 - round(24 * 0.65) = 8
    level = (world.unknown.sum(-1, keepdim=True) / 8).expand(-1, 8)
    shaped = torch.zeros_like(world.unknown).scatter(-1, top, level)
    scores = ff.create("ash", percentile=65).fit(world.bank, world.head)(world.unknown)
    assert_close(scores.double(), FORMULAS["ebo"](double_logits(shaped, world.head)), rtol=1e-5, atol=1e-5)


def test_partial_normalisation_comes_after_react(world):
    threshold = torch.quantile(world.bank.features.flatten(), 0.7)
    clipped = world.bank.features.clamp(max=threshold)
    clipped = clipped / clipped.norm(dim=-1, keepdim=True) ** 0.5
    scores = ff.create("react", percentile=70, alpha=0.5).fit(world.bank, world.head)(world.bank.features)
    assert_close(scores.double(), FORMULAS["ebo"](double_logits(clipped, world.head)), rtol=1e-5, atol=1e-5)


def test_shapings_compose_to_any_depth(world):
    nested = ff.Shaped(ff.ReAct(80), ff.Shaped(ff.PartialNorm(0.5), ff.Msp())).fit(world.bank, world.head)
    clipped = world.unknown.clamp(max=float(torch.quantile(world.bank.features.flatten(), 0.8)))
    by_hand = ff.create("msp", alpha=0.5).fit(world.bank, world.head)(clipped)
    assert_close(nested(world.unknown), by_hand)


def test_a_shaping_alone_says_that_it_is_not_fitted():
    with pytest.raises(ff.NotFittedError, match="has no threshold yet"):
        ff.ReAct()(torch.zeros(1, 3))
