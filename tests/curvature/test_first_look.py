"""Models whose inputs have no curvature of their own are told, by whatever is asked of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from flatfold.curvature import param_lambda_max, param_spectrum, param_trace
from flatfold.curvature.first_look import check_alone, logits_per_input
from flatfold.models.batches import split_batch

EVERYTHING = [param_trace, param_lambda_max, param_spectrum]


class Between(nn.Module):
    """Something happens between two layers."""

    def __init__(self, between=torch.relu, at_the_end=lambda z: z):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between, self.at_the_end = nn.Linear(5, 4), nn.Linear(4, 3), between, at_the_end

    def forward(self, x):
        return self.at_the_end(self.last(self.between(self.first(x))))


def inputs(n=6):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(0))


MIXING = {
    "batch norm by hand": lambda h: (h - h.mean(0)).relu(),
    "functional batch norm": lambda h: functional.batch_norm(h, None, None, training=True).relu(),
    "dropout": functional.dropout,
    "attention to other inputs": lambda h: h + (h @ h.T).softmax(-1) @ h,
}


@pytest.mark.parametrize("call", EVERYTHING)
@pytest.mark.parametrize("name", MIXING)
def test_a_model_whose_inputs_depend_on_each_other_or_on_chance_is_refused(name, call):
    with pytest.raises(ValueError, match=r"must depend on it alone, but in a second pass .* dropout that is always on"):
        call(Between(MIXING[name]), [inputs()])


def test_chance_is_seen_in_single_inputs_and_mixing_in_the_first_batch_of_several():
    with pytest.raises(ValueError, match="must depend on it alone"):
        param_trace(Between(functional.dropout), list(inputs().split(1)))
    with pytest.raises(ValueError, match="must depend on it alone"):
        param_trace(Between(MIXING["batch norm by hand"]), [inputs(1), inputs(4)])


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_model_without_such_steps_passes(n):
    model = Between()
    check_alone(model, dict(model.named_parameters()), split_batch(inputs(n)))
    assert all(not module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("call", EVERYTHING)
def test_logits_without_a_way_back_are_not_taken_for_flat_ones(call):
    with pytest.raises(ValueError, match=r"none of the chosen parameters reaches the logits.*take \.detach\(\)"):
        call(Between(at_the_end=torch.detach), [inputs()])
    with pytest.raises(ValueError, match=r"parameters of first are needed, but it runs without recording any"):
        call(HalfHidden(), [inputs()])


class HalfHidden(Between):
    def forward(self, x):
        with torch.no_grad():
            h = self.first(x).relu()
        return self.last(h)


def test_logits_are_a_row_of_numbers_per_input():
    batch = split_batch(inputs())
    assert_close(logits_per_input(Between(), batch), Between()(inputs()))
    with pytest.raises(ValueError, match=r"one row of at least two logits per input, \(6, c\), got \(3,\)"):
        logits_per_input(Between(at_the_end=lambda z: z.mean(0)), batch)
    with pytest.raises(TypeError, match=r"logits must be floating-point numbers, got torch.int64\. Return them before"):
        logits_per_input(Between(at_the_end=lambda z: z.long()), batch)
