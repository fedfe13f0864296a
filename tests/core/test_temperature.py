"""Temperatures against scipy."""

import pytest
import torch
from scipy.optimize import minimize_scalar

from flatfold.core.temperature import COLDEST, best_temperature, reference_temperature


def make_case(sharpness, n=300, c=5, seed=0):
    """Labels drawn from the softmax of logits, which are then sharpened: the honest temperature is ``sharpness``."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, generator=g, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(-1)
    return sharpness * logits, labels


def loss(logits, labels, temperature):
    return float(torch.nn.functional.cross_entropy(logits / temperature, labels))


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_is_where_the_cross_entropy_is_smallest(sharpness):
    logits, labels = make_case(sharpness)
    expected = minimize_scalar(lambda t: loss(logits, labels, t), bounds=(0.01, 50), method="bounded").x
    assert best_temperature(logits, labels) == pytest.approx(expected, rel=1e-4)
    assert best_temperature(logits, labels) == pytest.approx(sharpness, rel=0.25)


def test_logits_that_are_always_right_end_at_the_coldest():
    assert best_temperature(torch.eye(3), torch.arange(3)) == pytest.approx(COLDEST)


def test_the_reference_stops_short_of_it():
    logits, labels = make_case(4.0)
    reference = reference_temperature(logits.float(), labels)
    assert 1.5 < reference < best_temperature(logits, labels)
    assert loss(logits, labels, reference) > loss(logits, labels, best_temperature(logits, labels))


def test_fitting_works_without_gradients_and_leaves_none():
    logits, labels = make_case(2.0)
    with torch.no_grad():
        reference_temperature(logits, labels)
    assert logits.grad is None
