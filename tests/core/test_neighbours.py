"""Exact neighbours against scikit-learn, whatever the chunks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch.nn.functional import normalize as unit
from torch.testing import assert_close

from flatfold.core import neighbours
from flatfold.core.neighbours import kth_distance, largest_products, to_half_precision, unit_scale


def make_case(n=40, m=300, d=8, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(k, d, generator=g, dtype=torch.float64).to(dtype) for k in (n, m))


def distance(queries, bank, k):
    return kth_distance(queries, bank, unit_scale(bank, bank.dtype), k)


def test_distances_are_scikit_learns_whatever_the_chunks(monkeypatch):
    queries, bank = make_case(m=2600)
    for k in (1, 5, 2400):
        nearest = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit(bank).numpy())
        expected = torch.from_numpy(nearest.kneighbors(queries.numpy())[0][:, -1])
        for products, block in ((40 * 7, 100), (40 * 1024, 100), (40 * 1024, 1024), (40 * 2500, 1024), (2**24, 1024)):
            monkeypatch.setattr(neighbours, "PRODUCTS", products)
            monkeypatch.setattr(neighbours, "BLOCK_ROWS", block)
            worst = (distance(queries, bank, k).sqrt() - expected).abs().max()
            assert worst < 1e-9, (k, products, block)


@given(
    n=st.integers(1, 5), m=st.integers(1, 30), k=st.integers(1, 30), chunk=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_products_do_not_depend_on_the_chunks(n, m, k, chunk, seed):
    queries, bank = make_case(n, m, 3, seed)
    k = min(k, m)
    whole = queries @ bank.T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "PRODUCTS", chunk)
        values, rows = largest_products(queries, bank, k)
    assert_close(values, whole.topk(k).values)
    assert_close(whole.gather(1, rows), values)


def test_gradients_flow_through_the_distance():
    queries, bank = make_case()
    queries = queries[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda q: distance(q, bank, 4), (queries,))
    assert torch.autograd.gradcheck(lambda q: largest_products(q, bank, 4)[0], (queries,))


def test_rows_of_zeros_are_neither_near_nor_far():
    bank = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    query = torch.tensor([[1.0, 0.0]])
    assert [round(float(distance(query, bank, k)), 6) for k in (1, 2, 3)] == [0.0, 1.0, 2.0]
    assert [round(float(distance(0 * query, bank, k)), 6) for k in (1, 2, 3)] == [0.0, 1.0, 1.0]


def test_norms_that_float16_cannot_hold_do_not_matter():
    queries, bank = make_case(dtype=torch.float32)
    stored = to_half_precision(1e6 * bank)
    assert stored.isfinite().all()
    got = kth_distance(queries, stored, unit_scale(stored, torch.float32), 7)
    assert_close(got, distance(queries, bank, 7), rtol=1e-2, atol=1e-2)


def test_near_neighbours_keep_their_digits_in_float32():
    """Squared distances of 1e-8 between unit vectors: 2 - 2 cos has no digit of them left."""
    g = torch.Generator().manual_seed(0)
    centre = unit(torch.randn(1, 64, generator=g, dtype=torch.float64))
    bank = centre + 1e-4 * torch.randn(1, 64, generator=g, dtype=torch.float64) / 8
    got = distance(centre.float(), bank.float(), 1)
    expected = (centre.float().double() - unit(bank.float().double())).square().sum(-1)
    assert_close(got.double(), expected, rtol=1e-2, atol=0)
