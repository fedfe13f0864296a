"""The largest pairs of classes against the whole matrix of terms in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from flatfold.core import pairs
from flatfold.core.hessian import class_distances, feature_hessian_trace
from flatfold.core.pairs import largest_pairs
from tests.refusals import assert_refused


def make_case(n, c, d, dtype=torch.float64, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    z, w = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((n, c), (c, d)))
    return (scale * z).softmax(-1).to(dtype), w.to(dtype)


def all_terms(p, w, kept=None):
    """Slow and obvious: p_i p_j sum_d kept (w_id - w_jd)^2 of every pair of every row, ``(n, c, c)`` in float64."""
    p, w = p.double(), w.double()
    squares = (w[:, None] - w).square()
    kept = torch.ones(len(p), w.shape[1]) if kept is None else kept
    return p[:, :, None] * p[:, None] * torch.einsum("ijd,nd->nij", squares, kept.double())


def check(found, p, w, k, kept=None, rtol=1e-9):
    """Compare shares with the oracle's, and see that the pairs named are those that have them."""
    terms = all_terms(p, w, kept)
    whole = terms.sum((1, 2)) / 2
    upper = terms.triu(1).flatten(1).topk(k).values / whole[:, None]
    assert_close(found.share.double(), upper, rtol=rtol, atol=0)
    own = terms[torch.arange(len(p))[:, None], found.first, found.second] / whole[:, None]
    assert_close(own, upper, rtol=1e-9, atol=0)  # equal terms may come in any order
    codes = torch.minimum(found.first, found.second) * len(w) + torch.maximum(found.first, found.second)
    assert all(len(row.unique()) == k for row in codes)
    assert (found.first != found.second).all()


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
def test_they_are_the_largest_of_all_pairs(scale):
    for n, c, d, k in ((1, 2, 1, 1), (5, 3, 4, 3), (8, 40, 6, 5), (3, 100, 32, 200), (4, 70, 1, 1)):
        p, w = make_case(n, c, d, scale=scale)
        check(largest_pairs(p, w, k), p, w, k)


@given(
    c=st.integers(2, 60),
    d=st.integers(1, 5),
    k=st.integers(1, 8),
    scale=st.floats(0, 60),
    masked=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_stopping_early_changes_nothing(c, d, k, scale, masked, seed):
    """Few classes at a time, so that the bound is asked often."""
    p, w = make_case(2, c, d, scale=scale, seed=seed)
    g = torch.Generator().manual_seed(seed)
    w *= torch.linspace(0.01, 3, c, dtype=w.dtype)[torch.randperm(c, generator=g)][:, None]
    kept = torch.rand(2, d, generator=g) < 0.6 if masked else None
    if kept is not None:
        kept[:, 0] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "FIRST_CLASSES", 2)
        patch.setattr(pairs, "TERMS_AT_ONCE", 3 * c)
        found = largest_pairs(p, w, k, kept)
    check(found, p, w, min(k, c * (c - 1) // 2), kept, rtol=1e-8)


def test_shares_are_of_the_whole_trace_and_add_up_to_one():
    p, w = make_case(6, 9, 4)
    every, some = largest_pairs(p, w, 36), largest_pairs(p, w, 4)
    assert_close(every.share.sum(-1), torch.ones(6, dtype=p.dtype), rtol=1e-12, atol=0)
    trace = feature_hessian_trace(p, class_distances(w))
    assert_close(every.share[:, 0] * trace, all_terms(p, w).amax((1, 2)))
    assert_close(some.share, every.share[:, :4])
    assert (every.share.diff(dim=-1) <= 0).all()


def test_the_likelier_class_comes_first_and_the_smaller_index_among_equals():
    p, w = make_case(20, 8, 3, scale=2)
    found = largest_pairs(p, w, 28)
    assert (p.gather(1, found.first) > p.gather(1, found.second)).all()
    found = largest_pairs(torch.full((1, 4), 0.25), w[:4].float(), 6)
    assert (found.first < found.second).all()


def test_a_confident_row_keeps_its_digits_in_float32():
    for c in (10, 100):
        p, w = make_case(8, c, 16, torch.float32, scale=3)
        others = p[:, 1:].double()
        p = torch.cat([torch.ones(8, 1), (1e-10 * others / others.sum(-1, keepdim=True)).float()], dim=-1)
        found = largest_pairs(p, w, 3)
        assert found.share.dtype == torch.float32
        check(found, p, w, 3, rtol=1e-6)
        assert (found.first == 0).all(), c


def test_terms_too_small_for_float32_still_have_their_shares():
    """Two likely classes with equal weights: all curvature is with classes of probability 1e-40."""
    w = torch.tensor([[0.0], [0.0], [1.0], [3.0]])
    p = torch.tensor([[0.5, 0.5, 1e-40, 1e-40]])
    found = largest_pairs(p, w, 6)
    assert_close(found.share, torch.tensor([[0.45, 0.45, 0.05, 0.05, 0.0, 0.0]]), rtol=1e-4, atol=1e-9)


def test_a_trace_of_zero_has_shares_of_zero_and_pairs_of_two_classes():
    for c in (3, 50):
        p, w = torch.eye(c)[:2], torch.randn(c, 4, generator=torch.Generator().manual_seed(0))
        found = largest_pairs(p, w, 3)
        assert found.first.shape == (2, 3)
        assert (found.share == 0).all(), c
        assert (found.first != found.second).all(), c
        assert (found.first == torch.tensor([[0], [1]])).any(dim=1).all(), c


def test_no_share_exceeds_one_when_classes_are_nearly_the_same():
    """The variance of all but the likeliest class is then a difference of nearly equal numbers."""
    for seed in range(20):
        _, w = make_case(1, 30, 64, seed=seed)
        w[1] = w[0]
        p = torch.full((1, 30), 1e-25, dtype=torch.float64)
        p[0, :3] = torch.tensor([0.6, 0.4, 1e-16])
        share = largest_pairs(p, w, 2).share
        assert 0 < share.sum() <= 1 + 1e-12, seed
        p = torch.tensor([[0.6, 0.4, 1e-14]], dtype=torch.float64)
        assert largest_pairs(p, w[:3], 3).share.sum().item() == pytest.approx(1, abs=1e-12), seed


def test_probabilities_that_do_not_quite_sum_to_one_still_share_everything():
    p, w = make_case(4, 20, 3)
    assert_close(largest_pairs(0.999 * p, w, 5), largest_pairs(p, w, 5))


def test_of_many_classes_only_a_few_are_looked_at(monkeypatch):
    """A matrix over the pairs of 20,000 classes would be 3.2 GB. Equal probabilities are the hard case."""
    seen, cdist = [], torch.cdist
    monkeypatch.setattr(torch, "cdist", lambda a, b, **how: seen.append(len(a) * len(b)) or cdist(a, b, **how))
    p, w = make_case(2, 20_000, 8, torch.float32)
    p[1] = 1e-6 * p[1] + (1 - 1e-6) * torch.eye(20_000)[7]
    assert (largest_pairs(p, w, 3).first[1] == 7).all()
    assert sum(seen) < 20_000**2 / 50
    seen.clear()
    monkeypatch.setattr(pairs, "TERMS_AT_ONCE", 2**16)
    for scale in (0.0, 1.0, 20.0):
        p, w = make_case(1, 2000, 3, scale=scale)
        check(largest_pairs(p, w, 5), p, w, 5)
    assert max(seen) <= 2**16


def test_no_rows_give_no_pairs():
    _, w = make_case(1, 5, 2)
    found = largest_pairs(torch.empty(0, 5, dtype=torch.float64), w, 3)
    assert [part.shape for part in found] == [(0, 3)] * 3
    assert found.first.dtype == torch.int64


def test_a_number_of_pairs_below_1_is_refused():
    p, w = make_case(1, 5, 2)
    for k in (0, -1, 2.5, True):
        assert_refused(ValueError, f"pairs.*{k}", largest_pairs, p, w, k)
