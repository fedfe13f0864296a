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


def exact_products(queries, bank, k, scale, offsets):
    """Slow and obvious: all products in float64, sorted."""
    whole = queries.double() @ (bank.double() * scale.double()[:, None]).T - offsets.double()
    return whole, whole.sort(dim=1, descending=True).values[:, :k]


def in_small_steps(patch, products=1, block=16, spare=4):
    """Let a small case take as many steps as a large one."""
    for name, value in (("PRODUCTS", products), ("CHUNK", products), ("BLOCK_ROWS", block), ("SPARE", spare)):
        patch.setattr(neighbours, name, value)


def test_distances_are_scikit_learns_whatever_the_blocks(monkeypatch):
    queries, bank = make_case(m=2600)
    for k in (1, 5, 2400, 2600):
        nearest = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit(bank).numpy())
        expected = torch.from_numpy(nearest.kneighbors(queries.numpy())[0][:, -1])
        for products, block in ((1, 7), (1, 100), (40 * 1024, 1024), (40 * 2500, 500), (2**20, 1024)):
            in_small_steps(monkeypatch, products, block)
            for some in (queries, queries[:5]):
                worst = (distance(some, bank, k).sqrt() - expected[: len(some)]).abs().max()
                assert worst < 1e-9, (k, products, block, len(some))


@given(
    n=st.integers(1, 12),
    m=st.integers(1, 90),
    k=st.integers(1, 90),
    block=st.integers(1, 40),
    spare=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_the_largest_products_are_those_of_a_sorted_matrix(n, m, k, block, spare, seed):
    queries, bank = make_case(n, m, 3, seed)
    g = torch.Generator().manual_seed(seed)
    scale, offsets = (torch.rand(m, generator=g, dtype=torch.float64) for _ in range(2))
    whole, expected = exact_products(queries, bank, k, scale, offsets)
    with pytest.MonkeyPatch.context() as patch:
        in_small_steps(patch, 1, block, spare)
        values, rows = largest_products(queries, bank, k, scale, offsets)
        with_gradient, _ = largest_products(queries.clone().requires_grad_(), bank, k, scale, offsets)
    assert_close(values, expected)
    assert_close(with_gradient.detach(), expected)
    assert_close(whole.gather(1, rows), values)
    assert all(len(set(row.tolist())) == min(k, m) for row in rows)


def test_neither_the_order_of_a_bank_nor_ties_hide_a_neighbour(monkeypatch):
    """Blocks ever nearer or ever farther, few different rows, and a query without a direction."""
    in_small_steps(monkeypatch)
    queries, bank = make_case(n=6, m=200, d=4)
    queries[1] = 0
    nearness = (bank @ queries[0]).argsort()
    for rows in (bank[nearness], bank[nearness.flip(0)], bank[:3].repeat(60, 1), bank[:1].expand(200, 4).contiguous()):
        for k in (1, 20, 150):
            values, found = largest_products(queries, rows, k)
            whole, expected = exact_products(queries, rows, k, torch.ones(len(rows)), torch.zeros(len(rows)))
            assert_close(values, expected)
            assert_close(whole.gather(1, found), expected)


def test_a_bank_in_half_precision_gives_the_neighbours_of_its_rows(monkeypatch):
    in_small_steps(monkeypatch)
    queries, bank = make_case(dtype=torch.float32)
    stored = to_half_precision(bank)
    expected = torch.cdist(unit(queries).double(), unit(stored.double())).sort(dim=1).values
    for some in (unit(queries), unit(queries)[:3]):
        got = kth_distance(some, stored, unit_scale(stored, torch.float32), 7)
        assert_close(got.double().sqrt(), expected[: len(some), 6], rtol=1e-5, atol=1e-6)


def test_no_queries_have_no_neighbours():
    _, bank = make_case()
    values, rows = largest_products(bank[:0], bank, 3)
    assert values.shape == rows.shape == (0, 3)


def test_gradients_flow_through_the_distance():
    queries, bank = make_case()
    queries = queries[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda q: distance(q, bank, 4), (queries,))
    assert torch.autograd.gradcheck(lambda q: largest_products(q, bank, 4)[0], (queries,))


def test_rows_of_zeros_are_neither_near_nor_far():
    bank = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 3.0], [3.0, 4.0]])
    query = torch.tensor([[1.0, 0.0]])
    assert [round(float(distance(query, bank, k)), 6) for k in (1, 2, 3, 4)] == [0.0, 0.8, 1.0, 2.0]
    assert [round(float(distance(0 * query, bank, k)), 6) for k in (1, 2, 3, 4)] == [0.0, 1.0, 1.0, 1.0]


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
