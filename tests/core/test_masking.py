"""`core.masking` against softmaxes with one logit really set to minus infinity."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from flatfold.core.hessian import class_distances
from flatfold.core.masking import Weights, masked_softmax, with_and_without, without_each


def make_case(n=7, c=5, d=4, seed=0, scale=3.0):
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, c, generator=g, dtype=torch.float64)
    weight = torch.randn(c, d, generator=g, dtype=torch.float64)
    labels = torch.randint(c, (n,), generator=g)
    return logits, labels, weight


def weights_of(weight):
    return Weights(class_distances(weight), weight.square().sum(-1))


def moments(probs, weight):
    """The definition: E|w - E w|^2 and E|w|^2."""
    mean = probs @ weight
    spread = (weight[None] - mean[:, None]).square().sum(-1)
    return (probs * spread).sum(-1), probs @ weight.square().sum(-1)


def masked_probs(logits, k):
    logits = logits.clone()
    logits[torch.arange(len(logits)), k] = -torch.inf
    return logits.softmax(-1)


@given(seed=st.integers(0, 2**31), scale=st.floats(0.01, 8))
def test_with_and_without_equal_their_definitions(seed, scale):
    logits, labels, weight = make_case(seed=seed, scale=scale)
    whole, masked = with_and_without(logits, labels, weights_of(weight))
    for got, probs in ((whole, logits.softmax(-1)), (masked, masked_probs(logits, labels))):
        trace, second = moments(probs, weight)
        assert_close(got.trace, trace, rtol=1e-9, atol=1e-12)
        assert_close(got.second, second, rtol=1e-9, atol=1e-12)


@given(seed=st.integers(0, 2**31), scale=st.floats(0.01, 8))
def test_without_each_equals_masking_one_class_at_a_time(seed, scale):
    logits, _, weight = make_case(seed=seed, scale=scale)
    classes = torch.tensor([3, 0, 4])
    got = without_each(logits, classes, weights_of(weight))
    for row, k in enumerate(classes):
        trace, second = moments(masked_probs(logits, torch.full((len(logits),), int(k))), weight)
        assert_close(got.trace[row], trace, rtol=1e-6, atol=1e-9)
        assert_close(got.second[row], second, rtol=1e-6, atol=1e-9)


def test_the_second_moment_is_left_out_when_it_is_not_asked_for():
    logits, labels, weight = make_case()
    distances = Weights(class_distances(weight))
    assert with_and_without(logits, labels, distances)[0].second is None
    assert without_each(logits, labels, distances).second is None
    assert torch.equal(
        without_each(logits, labels, distances).trace, without_each(logits, labels, weights_of(weight)).trace
    )


@pytest.mark.parametrize("gap", [10.0, 40.0, 700.0])
def test_masking_the_winner_of_a_very_confident_row_is_exact(gap):
    weight = make_case()[2]
    logits = torch.tensor([[gap, 1.0, 0.5, 0.0, -1.0]], dtype=torch.float64)
    trace, second = moments(masked_probs(logits, torch.tensor([0])), weight)
    got = without_each(logits, torch.tensor([0]), weights_of(weight))
    assert_close(got.trace[0], trace, rtol=1e-12, atol=0)
    assert_close(got.second[0], second, rtol=1e-12, atol=0)


@given(seed=st.integers(0, 2**31))
def test_rounding_makes_no_masked_trace_negative(seed):
    logits, _, weight = make_case(seed=seed, scale=60.0)
    assert (without_each(logits, torch.arange(5), weights_of(weight)).trace >= 0).all()


def test_masked_softmax_gives_no_mass_to_the_mask_and_keeps_a_tiny_rest():
    q, r, own = masked_softmax(torch.tensor([[50.0, 0.0, 0.0]]), torch.tensor([0]))
    assert_close(q, torch.tensor([[0.0, 0.5, 0.5]]))
    assert_close(r, 2 * torch.exp(torch.tensor([-50.0])), rtol=1e-5, atol=0)
    assert own == 1


def test_a_class_that_has_hardly_any_mass_keeps_its_part_of_the_trace():
    logits, weight = torch.tensor([[0.0, -40.0, -45.0, -46.0, -50.0]], dtype=torch.float64), make_case()[2]
    whole, _ = with_and_without(logits, torch.tensor([1]), weights_of(weight))
    p = logits.softmax(-1)[0]
    pairs = sum(p[i] * p[j] * (weight[i] - weight[j]).square().sum() for i in range(5) for j in range(i))
    assert_close(whole.trace[0], pairs, rtol=1e-12, atol=0)
