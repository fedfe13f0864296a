"""The trace of the feature Hessian against autograd in float64, and the laws a variance obeys."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import hessian, vmap
from torch.testing import assert_close

from flatfold.core.hessian import (
    centred_hessian_trace,
    class_distances,
    feature_hessian_diagonal,
    feature_hessian_trace,
    prefers_distances,
)
from flatfold.core.shaping import partially_normalised_probs

RTOL = {torch.float64: 1e-9, torch.float32: 2e-6}


def make_case(n, c, d, dtype=torch.float64, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    h, w, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((n, d), (c, d), (c,)))
    return (scale * h).to(dtype), (w / d**0.5).to(dtype), b.to(dtype)


def pairwise(h, w, b):
    return feature_hessian_trace(partially_normalised_probs(h, w, b, 0.0), class_distances(w))


def centred(h, w, b):
    return centred_hessian_trace(partially_normalised_probs(h, w, b, 0.0), w)


def diagonal(h, w, b):
    return feature_hessian_diagonal(partially_normalised_probs(h, w, b, 0.0), w).sum(-1)


FORMS = {"pairwise": pairwise, "centred": centred, "diagonal": diagonal}


def autograd_hessian(h, w, b):
    """Slow and obvious: differentiate the energy twice, in float64."""
    h, w, b = h.double(), w.double(), b.double()
    return vmap(hessian(lambda x: torch.logsumexp(w @ x + b, 0)))(h)


def autograd_trace(h, w, b):
    return autograd_hessian(h, w, b).diagonal(dim1=1, dim2=2).sum(-1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "c", "d"), [(1, 2, 1), (5, 3, 4), (16, 100, 7), (3, 10, 512), (4, 100, 64)])
def test_every_form_agrees_with_autograd(form, n, c, d):
    for dtype, rtol in RTOL.items():
        h, w, b = make_case(n, c, d, dtype)
        got = FORMS[form](h, w, b)
        assert got.dtype == dtype
        assert_close(got.double(), autograd_trace(h, w, b), rtol=rtol, atol=0)


def confident_case(c, d=64, uncertainty=1e-10, n=16):
    """float32 features near a class weight, as far out as leaves the given mass to all other classes."""
    h, w, b = make_case(n, c, d, torch.float32, seed=c)
    h = w[torch.arange(n) % c] + 0.02 * h
    for _ in range(60):  # stretch each row until 1 - max p is as asked; the bias makes this a fixed-point search
        z = h.double() @ w.double().T + b.double()
        top = z.max(-1, keepdim=True).values
        rest = torch.where(z == top, -torch.inf, z).logsumexp(-1, keepdim=True)
        stretch = (-torch.log(torch.tensor(uncertainty)) / (top - rest)).clamp(0.5, 2)
        h = (h.double() * torch.where(top > rest, stretch, 2)).float()
    return h, w, b


@pytest.mark.parametrize("c", [2, 10, 100])
def test_a_confident_sample_keeps_its_digits_in_float32(c):
    h, w, b = confident_case(c)
    rest = 1 - (h.double() @ w.double().T + b.double()).softmax(-1).max(-1).values
    assert_close(rest, torch.full_like(rest, 1e-10), rtol=0.05, atol=0)
    for form in FORMS.values():
        got = form(h, w, b).double()
        assert_close(got, autograd_trace(h, w, b), rtol=1e-5, atol=0)  # autograd subtracts: its own limit
        assert_close(got, pairwise(h.double(), w.double(), b.double()), rtol=1e-6, atol=0)


def test_the_diagonal_is_that_of_the_hessian():
    h, w, b = make_case(3, 5, 6)
    got = feature_hessian_diagonal((h @ w.T + b).softmax(-1), w)
    assert_close(got, autograd_hessian(h, w, b).diagonal(dim1=1, dim2=2))


@given(n=st.integers(1, 6), c=st.integers(2, 9), d=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_ignores_class_order_and_common_shift(n, c, d, seed):
    h, w, b = make_case(n, c, d, seed=seed)
    for form in FORMS.values():
        assert_close(form(h, w.flip(0), b.flip(0)), form(h, w, b))
        # the shift moves all logits of a row by the same amount, and all weights by the same vector
        assert_close(form(h, w + h[0], b), form(h, w, b), rtol=1e-6, atol=1e-12)
        assert (form(h, w, b) >= 0).all()


def test_rounding_makes_no_trace_negative():
    """Two equal classes hold all the mass: the true trace is 0, and a difference of moments may fall on either side."""
    p = torch.tensor([[0.6, 0.4, 0.0]])
    for seed in range(20):
        _, w, _ = make_case(1, 3, 64, torch.float32, seed=seed)
        w[1] = w[0]
        assert centred_hessian_trace(p, w) >= 0, seed
        assert (feature_hessian_diagonal(p, w) >= 0).all(), seed


def test_a_large_common_offset_costs_no_digits_in_float32():
    h, w, b = make_case(8, 10, 16, torch.float32)
    probs = (h @ w.T + b).softmax(-1)
    shifted = w + 1000 * torch.ones(16)
    for direct in (
        lambda w: feature_hessian_trace(probs, class_distances(w)),
        lambda w: centred_hessian_trace(probs, w),
        lambda w: feature_hessian_diagonal(probs, w).sum(-1),
    ):
        assert_close(direct(shifted), direct((shifted.double() - 1000).float()), rtol=1e-3, atol=0)


def test_a_probability_of_one_gives_zero_and_no_nan():
    p = torch.tensor([[1.0, 0.0, 0.0]])
    _, w, _ = make_case(1, 3, 4, torch.float32)
    assert centred_hessian_trace(p, w) == 0
    assert feature_hessian_trace(p, class_distances(w)) == 0


def test_the_form_is_chosen_by_cost():
    assert prefers_distances(10, 64)
    assert prefers_distances(1000, 2048)
    assert not prefers_distances(21843, 768)
