"""`curvature.graph` on a network whose graph can be counted by hand."""

import pytest
import torch
from torch import nn

from flatfold.curvature.graph import uses


class Tied(nn.Module):
    """Two layers share their weight, and a third one is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last, self.idle = (nn.Linear(3, 3) for _ in range(4))
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).relu())


@pytest.fixture
def model():
    return Tied()


def test_uses_are_counted_on_the_way_to_the_logits(model):
    counts, _ = uses(model(torch.randn(2, 3)), dict(model.named_parameters()))
    assert counts == {"first.weight": 2, "first.bias": 1, "second.bias": 1, "last.weight": 1, "last.bias": 1}


def test_only_parameters_that_are_asked_for_are_counted(model):
    assert uses(model(torch.randn(2, 3)), {"mine": model.last.bias})[0] == {"mine": 1}


def test_steps_are_those_that_the_logits_were_computed_by(model):
    hidden = model.first(torch.randn(2, 3))
    beside = hidden.sin()
    logits = model.last(hidden.relu())
    _, steps = uses(logits, {})
    assert {logits.grad_fn, hidden.grad_fn} <= steps
    assert beside.grad_fn not in steps


def test_what_is_counted_twice_is_not_walked_twice():
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    for _ in range(40):  # as many ways as there are subsets
        y = y + y
    counts, steps = uses(y, {"x": x})
    assert counts == {"x": 1}
    assert len(steps) == 42


def test_logits_without_a_graph_use_nothing(model):
    assert uses(torch.zeros(2, 3), dict(model.named_parameters())) == ({}, set())
