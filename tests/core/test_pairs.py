"""`core.pairs` against the whole matrix of terms in float64."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from flatfold.core import pairs
from flatfold.core.hessian import class_distances, feature_hessian_trace
from flatfold.core.pairs import largest_pairs


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
@pytest.mark.parametrize(
    ("n", "c", "d", "k"), [(1, 2, 1, 1), (5, 3, 4, 3), (8, 40, 6, 5), (3, 100, 32, 200), (4, 70, 1, 1)]
)
def test_they_are_the_largest_of_all_pairs(n, c, d, k, scale):
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
    w *= torch.linspace(0.01, 3, c, dtype=w.dtype)[torch.randperm(c, generator=torch.Generator().manual_seed(seed))][
        :, None
    ]
    kept = torch.rand(2, d, generator=torch.Generator().manual_seed(seed)) < 0.6 if masked else None
    if kept is not None:
        kept[:, 0] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "FIRST_CLASSES", 2)
        patch.setattr(pairs, "TERMS_AT_ONCE", 3 * c)
        found = largest_pairs(p, w, k, kept)
    check(found, p, w, min(k, c * (c - 1) // 2), kept, rtol=1e-8)


def test_the_trace_is_the_sum_of_all_pairs():
    p, w = make_case(6, 9, 4)
    found = largest_pairs(p, w, 36)
    assert_close(found.share.sum(-1), torch.ones(6, dtype=p.dtype), rtol=1e-12, atol=0)
    trace = feature_hessian_trace(p, class_distances(w))
    assert_close(found.share[:, 0] * trace, all_terms(p, w).amax((1, 2)))


def test_shares_are_of_the_whole_trace_and_not_of_what_is_shown():
    p, w = make_case(6, 9, 4)
    some, every = largest_pairs(p, w, 4), largest_pairs(p, w, 36)
    assert_close(some.share, every.share[:, :4])
    assert (some.share.sum(-1) < 1).all()


def test_where_there_are_fewer_pairs_all_of_them_are_returned():
    p, w = make_case(3, 4, 2)
    found = largest_pairs(p, w, 100)
    assert found.first.shape == found.second.shape == found.share.shape == (3, 6)
    check(found, p, w, 6)


def test_the_likelier_class_comes_first_and_the_smaller_index_among_equals():
    p, w = make_case(20, 8, 3, scale=2)
    found = largest_pairs(p, w, 28)
    assert (p.gather(1, found.first) > p.gather(1, found.second)).all()
    found = largest_pairs(torch.full((1, 4), 0.25), w[:4].float(), 6)
    assert (found.first < found.second).all()


def test_shares_descend():
    p, w = make_case(10, 30, 5)
    assert (largest_pairs(p, w, 50).share.diff(dim=-1) <= 0).all()


def test_only_the_dimensions_that_are_kept_count():
    p, w = make_case(7, 20, 6)
    kept = torch.rand(7, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    kept[:, 0] = True
    check(largest_pairs(p, w, 4, kept), p, w, 4, kept)
    every = torch.ones(7, 6, dtype=torch.bool)
    assert_close(largest_pairs(p, w, 4, every), largest_pairs(p, w, 4))


def test_without_any_dimension_there_is_nothing_to_share():
    p, w = make_case(2, 20, 6)
    assert (largest_pairs(p, w, 3, torch.zeros(2, 6, dtype=torch.bool)).share == 0).all()


@pytest.mark.parametrize("c", [10, 100])
def test_a_confident_row_keeps_its_digits_in_float32(c):
    p, w = make_case(8, c, 16, torch.float32, scale=3)
    others = p[:, 1:].double()
    p = torch.cat([torch.ones(8, 1), (1e-10 * others / others.sum(-1, keepdim=True)).float()], dim=-1)
    found = largest_pairs(p, w, 3)
    assert found.share.dtype == torch.float32
    check(found, p, w, 3, rtol=1e-6)
    assert (found.first == 0).all()


def test_terms_too_small_for_float32_still_have_their_shares():
    """Two likely classes with equal weights: all curvature is with classes of probability 1e-40."""
    w = torch.tensor([[0.0], [0.0], [1.0], [3.0]])
    p = torch.tensor([[0.5, 0.5, 1e-40, 1e-40]])
    found = largest_pairs(p, w, 6)
    assert_close(found.share, torch.tensor([[0.45, 0.45, 0.05, 0.05, 0.0, 0.0]]), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("c", [3, 50])
def test_a_trace_of_zero_has_shares_of_zero_and_pairs_of_two_classes(c):
    p, w = torch.eye(c)[:2], torch.randn(c, 4, generator=torch.Generator().manual_seed(0))
    found = largest_pairs(p, w, 3)
    assert (found.share == 0).all()
    assert (found.first != found.second).all()
    assert (found.first == torch.tensor([[0], [1]])).any(dim=1).all()
    assert found.first.shape == (2, 3)


def test_no_share_exceeds_one_when_classes_are_nearly_the_same():
    """The variance of all but the likeliest class is then a difference of nearly equal numbers."""
    for seed in range(20):
        _, w = make_case(1, 30, 64, seed=seed)
        w[1] = w[0]
        p = torch.full((1, 30), 1e-25, dtype=torch.float64)
        p[0, :3] = torch.tensor([0.6, 0.4, 1e-16])
        share = largest_pairs(p, w, 2).share
        assert 0 < share.sum() <= 1 + 1e-12


def test_all_pairs_share_everything_when_classes_are_nearly_the_same():
    for seed in range(20):
        _, w = make_case(1, 3, 64, seed=seed)
        w[1] = w[0]
        p = torch.tensor([[0.6, 0.4, 1e-14]], dtype=torch.float64)
        assert largest_pairs(p, w, 3).share.sum().item() == pytest.approx(1, abs=1e-12)


def test_probabilities_that_do_not_quite_sum_to_one_still_share_everything():
    p, w = make_case(4, 20, 3)
    assert_close(largest_pairs(0.999 * p, w, 5), largest_pairs(p, w, 5))


@pytest.fixture
def sizes(monkeypatch):
    """How many distances were computed at a time."""
    seen, cdist = [], torch.cdist
    monkeypatch.setattr(torch, "cdist", lambda a, b, **how: seen.append(len(a) * len(b)) or cdist(a, b, **how))
    return seen


def test_of_twenty_thousand_classes_only_a_few_are_looked_at(sizes):
    """A matrix over their pairs would be 3.2 GB."""
    p, w = make_case(2, 20_000, 8, torch.float32)
    p[1] = 1e-6 * p[1] + (1 - 1e-6) * torch.eye(20_000)[7]
    found = largest_pairs(p, w, 3)
    assert sum(sizes) < 20_000**2 / 50
    assert (found.first[1] == 7).all()


@pytest.mark.parametrize("scale", [0.0, 1.0, 20.0])
def test_of_many_classes_the_largest_pairs_are_found_whatever_it_takes(scale, sizes, monkeypatch):
    """Equal probabilities are the hard case, where the bound is of little use."""
    monkeypatch.setattr(pairs, "TERMS_AT_ONCE", 2**16)
    p, w = make_case(1, 2000, 3, scale=scale)
    found = largest_pairs(p, w, 5)
    terms = p[0, :, None] * p[0] * (w[:, None] - w).square().sum(-1)
    assert_close(found.share[0], terms.triu(1).flatten().topk(5).values / (terms.sum() / 2), rtol=1e-9, atol=0)
    assert_close(terms[found.first[0], found.second[0]], terms.triu(1).flatten().topk(5).values, rtol=1e-9, atol=0)
    assert max(sizes) <= 2**16


def test_parts_cover_all_classes_and_never_hold_too_many_terms():
    for c in (2, 16, 17, 1000, 20_000, 5_000_000):
        visits = list(pairs._visits(c))
        assert visits[0][0] == 0
        assert visits[-1][1] == c
        assert all(a[1] == b[0] for a, b in pairwise(visits))
        assert all((e - s) * e <= max(pairs.TERMS_AT_ONCE, pairs.FIRST_CLASSES * c) for s, e in visits)
        if c == 1000:
            assert [e for _, e in visits] == [16, 32, 64, 128, 256, 512, 1000]


def test_no_rows_give_no_pairs():
    _, w = make_case(1, 5, 2)
    found = largest_pairs(torch.empty(0, 5, dtype=torch.float64), w, 3)
    assert [part.shape for part in found] == [(0, 3)] * 3
    assert found.first.dtype == torch.int64


def test_nothing_is_differentiated_and_nothing_is_changed():
    p, w = make_case(3, 6, 2)
    before = p.clone()
    assert not largest_pairs(p.requires_grad_(), w, 2).share.requires_grad
    assert torch.equal(p, before)


@pytest.mark.parametrize("k", [0, -1, 2.5, True])
def test_a_number_of_pairs_that_is_none_is_refused(k):
    p, w = make_case(1, 5, 2)
    with pytest.raises(ValueError, match=f"the number of pairs must be a whole number from 1 on, got {k}"):
        largest_pairs(p, w, k)
