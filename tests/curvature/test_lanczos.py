"""Lanczos and its quadrature against dense eigenvalues and ARPACK: signed, free of scale, honest about the error."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh
from scipy.stats import wasserstein_distance
from torch.testing import assert_close

from flatfold.curvature.lanczos import lanczos, lanczos_quadrature, largest, ritz
from flatfold.curvature.operators import random_directions
from tests.curvature.matrices import dense, operator, rotated, seeded

SIZE = 300
RANKS = torch.arange(1, SIZE + 1, dtype=torch.float64)
NETWORK = torch.cat([torch.tensor([34.6, 20.0, 15.0, 9.0, 7.0, 4.0, 3.0, 2.0, 1.0]).double(), 1 / RANKS[9:]])
ROUNDING = {torch.float64: 8 * 2.3e-16, torch.float32: 8 * 1.2e-7}
each_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=str)


@each_dtype
def test_a_spectrum_like_that_of_a_network_takes_few_products(dtype):
    matrix = rotated(NETWORK)
    for seed in range(10):
        found = largest(dense(matrix, dtype), 1e-5, 40, seeded(seed))
        assert found.products <= 12, seed
        assert found.converged, seed
        assert found.value == pytest.approx(34.6, rel=1e-6), seed
        assert abs(found.value - 34.6) <= found.bound <= (1e-5 + ROUNDING[dtype]) * 34.6, seed


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *((dtype, scale) for dtype in ROUNDING for scale in (1e-30, 1e-8, 1e30)),
        *((torch.float64, scale) for scale in (1e-250, 1e-170, 1e170, 1e290)),  # their squares do not exist
    ],
)
def test_the_size_of_the_entries_makes_no_difference(dtype, scale):
    usual = largest(dense(rotated(NETWORK), dtype), 1e-5, 40, seeded())
    found = largest(dense(rotated(NETWORK) * scale, dtype), 1e-5, 40, seeded())
    assert (found.products, found.converged) == (usual.products, True)
    assert found.value / scale == pytest.approx(usual.value, rel=1e-6)
    assert found.bound / scale == pytest.approx(usual.bound, rel=0.2)


@each_dtype
def test_the_largest_is_the_algebraically_largest(dtype):
    matrix = rotated(torch.randn(SIZE, generator=seeded(), dtype=torch.float64))
    (arpack,) = eigsh(matrix.numpy(), k=1, which="LA", return_eigenvectors=False)
    found = largest(dense(matrix, dtype), 1e-9, SIZE, seeded())
    assert found.value == pytest.approx(arpack, rel=1e-12 if dtype == torch.float64 else 1e-6)
    beside_a_more_negative_one = rotated([-100.0, 30.0, 20.0, *(-RANKS[:50] / 10)])
    found = largest(dense(beside_a_more_negative_one, dtype), 1e-5, 40, seeded())
    assert found.value == pytest.approx(30, rel=1e-8 if dtype == torch.float64 else 1e-5)
    assert found.converged
    negative_definite = rotated([-2.0, -50.0, -70.0, -90.0, *(-100 - RANKS[:40])])
    found = largest(dense(negative_definite, dtype), 1e-5, 40, seeded())
    assert found.value == pytest.approx(-2, rel=1e-4)
    assert found.converged


@each_dtype
def test_zero_beside_negative_eigenvalues_is_found_to_the_precision_of_the_products(dtype):
    found = largest(dense(rotated([0.0, -1.0, -2.0, -3.0, *[-4.0] * 20]), dtype), 1e-5, 40, seeded())
    assert abs(found.value) <= found.bound <= 4 * ROUNDING[dtype] * 4
    assert found.converged
    assert found.products <= 10
    found = largest(dense(rotated([0.0, *(-49 - RANKS[:60])]), dtype), 1e-5, 60, seeded())
    assert abs(found.value) <= found.bound <= 2.1 * ROUNDING[dtype] * 109
    assert found.converged
    assert found.products <= (15 if dtype == torch.float32 else 25), "spent on digits that rounding has made"


@each_dtype
def test_simple_matrices_end_the_process_early(dtype):
    assert largest(dense(torch.zeros(SIZE, SIZE), dtype), 1e-5, 40, seeded())[:4] == (0, 0, 1, True)
    for size in (1, 2, 50):
        for value in (3.0, -3.0):
            found = largest(dense(value * torch.eye(size), dtype), 1e-5, 40, seeded())
            assert (found.products, found.converged) == (1, True)
            assert abs(found.value - value) <= found.bound <= 3.1 * ROUNDING[dtype]
    found = largest(dense(rotated([3.0, 1.0, *[0.0] * 98]), dtype), 1e-12, 40, seeded())
    assert found.products <= 5
    assert found.converged
    assert abs(found.value - 3) <= found.bound <= 3.1 * ROUNDING[dtype]


@given(
    eigenvalues=st.lists(st.floats(-1, 1, width=32, allow_subnormal=False), min_size=1, max_size=8),
    exponent=st.integers(-200, 200),
    seed=st.integers(0, 2**31),
)
def test_small_matrices_are_exact_after_as_many_products_as_they_have_columns(eigenvalues, exponent, seed):
    matrix = rotated(eigenvalues, seed) * 10.0**exponent
    expected = torch.linalg.eigvalsh(matrix)
    found = largest(dense(matrix), 1e-5, 40, seeded(seed))
    norm = float(expected.abs().max())
    assert found.products <= len(matrix)
    assert found.converged
    nearest = float((expected - found.value).abs().min())
    assert nearest <= found.bound + 1e-14 * norm
    assert found.value <= float(expected[-1]) + 1e-14 * norm
    assert abs(found.value - float(expected[-1])) <= 2e-5 * norm


@given(seed=st.integers(0, 2**31), budget=st.integers(1, 25))
def test_an_eigenvalue_lies_within_the_bound_and_the_value_is_at_most_the_largest(seed, budget):
    matrix = rotated(torch.randn(60, generator=seeded(seed), dtype=torch.float64), seed)
    expected = torch.linalg.eigvalsh(matrix)
    found = largest(dense(matrix), 1e-5, budget, seeded(seed))
    assert float((expected - found.value).abs().min()) <= found.bound
    assert found.value <= float(expected[-1]) + 1e-12
    assert found.products <= budget


def test_the_seed_decides_and_a_budget_that_does_not_suffice_is_reported():
    used = dense(rotated(NETWORK))
    first, again, other = (largest(used, 1e-5, 40, seeded(seed)) for seed in (0, 0, 1))
    assert first[:4] == again[:4] != other[:4]
    image = used.apply(first.vector[:, None])[:, 0]
    assert float((image - first.value * first.vector).norm()) <= first.bound
    assert used.products == first.products + again.products + other.products
    stopped = largest(dense(rotated(RANKS)), 1e-5, 7, seeded())
    assert (stopped.products, stopped.converged) == (7, False)
    assert stopped.bound > 1e-5 * stopped.value


def test_an_accident_at_the_start_does_not_count_as_found():
    # One step sees 1 and a residual of about 1e-6; the eigenvalue 1e-4 above it is hidden in one of many directions.
    diagonal = torch.ones(10_000, dtype=torch.float64)
    diagonal[17] = 1.0001
    found = largest(operator(lambda v: diagonal[:, None] * v, 10_000), 1e-5, 40, seeded())
    assert found.value == pytest.approx(1.0001, rel=1e-9)


def test_it_ends_when_the_last_start_has_seen_all_it_can():
    matrix = rotated([1.0, 5.0] * 30)
    one = torch.linalg.eigh(matrix)[1][:, -1:]  # sees one of the two eigenvalues
    starts = torch.cat([one, random_directions(dense(matrix), 2, seeded())], dim=1).float()
    # Computed in float64 and rounded: the eigenvalues of a matrix that is itself rounded are no longer equal.
    rounded = operator(lambda v: (matrix @ v.double()).float(), 60, torch.float32)
    steps = list(lanczos(rounded, starts, 30))
    assert len(steps) == 2
    assert_close(ritz(steps[-1], 0)[0], torch.tensor([5.0]).double(), rtol=1e-6, atol=0)
    assert_close(ritz(steps[-1], 1)[0], torch.tensor([1.0, 5.0]).double(), rtol=1e-6, atol=0)


def test_what_is_small_beside_the_matrix_is_rounding_even_where_a_product_is_small():
    matrix = rotated([3.0, *[0.0] * 99])
    top = torch.linalg.eigh(matrix)[1][:, -1:]
    start = top + 1e-4 * random_directions(dense(matrix), 1, seeded())
    steps = list(lanczos(dense(matrix, torch.float32), (start / start.norm()).float(), 30))
    assert len(steps) == 2


@each_dtype
def test_each_step_is_one_product_and_there_are_no_more_steps_than_columns(dtype):
    small = dense(rotated(RANKS[:90]), dtype)
    steps = lanczos(small, random_directions(small, 2, seeded()), 150)
    assert [small.products for _ in islice(steps, 4)] == [2, 4, 6, 8]
    assert len(list(steps)) == 86
    assert small.products == 180


@each_dtype
def test_no_eigenvalue_appears_twice_in_a_long_process(dtype):
    """Without orthogonalising again, copies of the largest eigenvalues appear after some twenty steps."""
    matrix = rotated([1000.0, 500.0, *RANKS[:98]])
    *_, state = lanczos(dense(matrix, dtype), random_directions(dense(matrix, dtype), 1, seeded()), 80)
    values = ritz(state, 0)[0]
    assert (values > 400).sum() == 2
    assert_close(values[-2:], torch.tensor([500.0, 1000.0]).double(), rtol=1e-6, atol=0)


# --- quadrature

SPECTRA = {
    "spiked": torch.cat([torch.tensor([34.6, 20.0, 15.0, 9.0, 7.0]).double(), 1 / RANKS[5:]]),
    "flat": RANKS / SIZE,
    "indefinite": torch.randn(SIZE, generator=seeded(), dtype=torch.float64),
}


def distance(eigenvalues, nodes, weights):
    """Wasserstein distance to the true spectrum, relative to the largest eigenvalue."""
    moved = wasserstein_distance(eigenvalues, nodes.flatten(), None, weights.flatten())
    return moved / float(eigenvalues.abs().max())


@each_dtype
def test_quadrature_comes_close_to_the_true_spectrum(dtype):
    for name, eigenvalues in SPECTRA.items():
        nodes, weights = lanczos_quadrature(dense(rotated(eigenvalues), dtype), 20, 8, seeded())
        assert nodes.dtype == weights.dtype == torch.float64
        assert nodes.shape == weights.shape == (8, 20)
        assert distance(eigenvalues, nodes, weights) < 0.03, name
        assert (nodes.diff(dim=1) > 0).all(), name
        assert (weights >= 0).all(), name
        assert_close(weights.sum(dim=1), torch.ones(8).double(), rtol=1e-14, atol=0)


def test_a_rule_has_the_moments_of_what_its_start_vector_sees():
    matrix, steps = rotated(SPECTRA["indefinite"]), 5
    nodes, weights = lanczos_quadrature(dense(matrix), steps, 3, seeded())
    starts = random_directions(dense(matrix), 3, seeded())
    power = starts
    for degree in range(2 * steps):
        assert_close((weights * nodes**degree).sum(dim=1), (starts * power).sum(dim=0), rtol=1e-10, atol=1e-10)
        power = matrix @ power
    assert (weights * nodes ** (2 * steps)).sum() != pytest.approx(float((starts * power).sum()), rel=1e-3)


def test_all_eigenvalues_are_nodes_after_as_many_steps_as_columns():
    widths, matrix = [], rotated(RANKS[:12])
    counted = operator(lambda v: widths.append(v.shape[1]) or matrix @ v, 12)
    nodes, weights = lanczos_quadrature(counted, 50, 3, seeded())
    assert_close(nodes, RANKS[:12].expand(3, 12), rtol=1e-10, atol=0)
    assert weights.min() > 0
    assert widths == [3] * 12


@each_dtype
def test_rules_of_a_matrix_with_few_distinct_eigenvalues_end_early(dtype):
    eigenvalues = torch.tensor([2.0, -1.0, 0.0]).double().repeat_interleave(20)
    nodes, weights = lanczos_quadrature(dense(rotated(eigenvalues), dtype), 30, 6, seeded())
    for row, mass in zip(nodes, weights, strict=True):
        assert sum(float(mass[(row - value).abs() < 1e-5].sum()) for value in (2, -1, 0)) == pytest.approx(1, abs=1e-9)
    assert distance(eigenvalues, nodes, weights) < 0.1
    nodes, weights = lanczos_quadrature(dense(torch.zeros(9, 9), dtype), 5, 2, seeded())
    assert nodes.tolist() == [[0], [0]]
    assert weights.tolist() == [[1], [1]]


def test_a_rule_that_ends_early_repeats_its_last_node_without_weight(monkeypatch):
    starts = torch.stack([torch.eye(30).double()[4], torch.ones(30).double() / 30**0.5], dim=1)
    monkeypatch.setitem(lanczos_quadrature.__globals__, "random_directions", lambda *_: starts)
    nodes, weights = lanczos_quadrature(dense(torch.diag(RANKS[:30])), 6, 2, seeded())
    assert nodes[0].tolist() == [5] * 6
    assert weights[0].tolist() == [1, 0, 0, 0, 0, 0]
    assert weights[1].min() > 0
    assert weights[1].sum() == pytest.approx(1, abs=1e-14)


def test_quadrature_depends_on_the_seed_and_not_on_the_size_of_the_entries():
    matrix = rotated(SPECTRA["spiked"])
    nodes, weights = lanczos_quadrature(dense(matrix), 12, 3, seeded())
    for scale in (1.0, 1e-30, 1e30):
        scaled, same = lanczos_quadrature(dense(matrix * scale), 12, 3, seeded())
        assert_close(scaled / scale, nodes, rtol=1e-9, atol=1e-9)
        assert_close(same, weights, rtol=1e-6, atol=1e-9)
    assert not torch.equal(nodes, lanczos_quadrature(dense(matrix), 12, 3, seeded(1))[0])
