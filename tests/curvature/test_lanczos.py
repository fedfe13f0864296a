"""`curvature.lanczos` against dense eigenvalues and ARPACK: signed, free of scale, honest about its error."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh
from torch.testing import assert_close

from flatfold.curvature.lanczos import lanczos, largest, ritz
from flatfold.curvature.operator import Operator, random_directions

SIZE = 300
RANKS = torch.arange(1, SIZE + 1, dtype=torch.float64)
NETWORK = torch.cat([torch.tensor([34.6, 20.0, 15.0, 9.0, 7.0, 4.0, 3.0, 2.0, 1.0]).double(), 1 / RANKS[9:]])
ROUNDING = {torch.float64: 8 * 2.3e-16, torch.float32: 8 * 1.2e-7}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rotated(eigenvalues, seed=0):
    eigenvalues = torch.as_tensor(eigenvalues, dtype=torch.float64)
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, generator=seeded(seed), dtype=torch.float64))[0]
    matrix = (basis * eigenvalues) @ basis.T
    return (matrix + matrix.T) / 2


def dense(matrix, dtype=torch.float64):
    matrix = matrix.to(dtype)
    return Operator(lambda vectors: matrix @ vectors, len(matrix), dtype, torch.device("cpu"))


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_a_spectrum_like_that_of_a_network_takes_few_products(seed, dtype):
    found = largest(dense(rotated(NETWORK), dtype), 1e-5, 40, seeded(seed))
    assert found.products <= 12
    assert found.converged
    assert found.value == pytest.approx(34.6, rel=1e-6)
    assert abs(found.value - 34.6) <= found.bound <= (1e-5 + ROUNDING[dtype]) * 34.6


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e30])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_the_size_of_the_entries_makes_no_difference(dtype, scale):
    usual = largest(dense(rotated(NETWORK), dtype), 1e-5, 40, seeded())
    found = largest(dense(rotated(NETWORK) * scale, dtype), 1e-5, 40, seeded())
    assert (found.products, found.converged) == (usual.products, True)
    assert found.value / scale == pytest.approx(usual.value, rel=1e-6)
    assert found.bound / scale == pytest.approx(usual.bound, rel=0.2)


@pytest.mark.parametrize("scale", [1e-250, 1e-170, 1e170, 1e290])
def test_entries_whose_squares_do_not_exist_are_no_exception(scale):
    found = largest(dense(rotated(NETWORK) * scale), 1e-5, 40, seeded())
    assert found.value / scale == pytest.approx(34.6, rel=1e-6)
    assert found.converged


def test_it_agrees_with_arpack():
    matrix = rotated(torch.randn(SIZE, generator=seeded(), dtype=torch.float64))
    (expected,) = eigsh(matrix.numpy(), k=1, which="LA", return_eigenvectors=False)
    found = largest(dense(matrix), 1e-9, SIZE, seeded())
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert found.converged


def test_the_largest_is_found_beside_a_much_more_negative_one():
    matrix = rotated([-100.0, 30.0, 20.0, *(-RANKS[:50] / 10)])
    found = largest(dense(matrix), 1e-5, 40, seeded())
    assert found.value == pytest.approx(30, rel=1e-8)
    assert found.converged


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_a_negative_definite_matrix_has_a_negative_one(dtype):
    found = largest(dense(rotated([-2.0, -50.0, -70.0, -90.0, *(-100 - RANKS[:40])]), dtype), 1e-5, 40, seeded())
    assert found.value == pytest.approx(-2, rel=1e-4)
    assert found.converged


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_zero_beside_negative_eigenvalues_is_found_to_the_precision_of_the_products(dtype):
    found = largest(dense(rotated([0.0, -1.0, -2.0, -3.0, *[-4.0] * 20]), dtype), 1e-5, 40, seeded())
    assert abs(found.value) <= found.bound <= 4 * ROUNDING[dtype] * 4
    assert found.converged
    assert found.products <= 10


@pytest.mark.parametrize(("dtype", "products"), [(torch.float32, 15), (torch.float64, 25)], ids=str)
def test_no_product_is_spent_on_digits_of_zero_that_rounding_has_made(dtype, products):
    found = largest(dense(rotated([0.0, *(-49 - RANKS[:60])]), dtype), 1e-5, 60, seeded())
    assert abs(found.value) <= found.bound <= 2.1 * ROUNDING[dtype] * 109
    assert found.converged
    assert found.products <= products


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_a_zero_matrix_takes_one_product(dtype):
    assert largest(dense(torch.zeros(SIZE, SIZE), dtype), 1e-5, 40, seeded()) == (0, 0, 1, True)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("value", [3.0, -3.0])
@pytest.mark.parametrize("size", [1, 2, 50])
def test_a_multiple_of_the_identity_is_exact_at_once(size, value, dtype):
    found = largest(dense(value * torch.eye(size), dtype), 1e-5, 40, seeded())
    assert (found.products, found.converged) == (1, True)
    assert abs(found.value - value) <= found.bound <= 3.1 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_a_matrix_of_low_rank_ends_the_process(dtype):
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
def test_an_eigenvalue_lies_within_the_bound_and_none_below_the_value_is_promised(seed, budget):
    matrix = rotated(torch.randn(60, generator=seeded(seed), dtype=torch.float64), seed)
    expected = torch.linalg.eigvalsh(matrix)
    found = largest(dense(matrix), 1e-5, budget, seeded(seed))
    assert float((expected - found.value).abs().min()) <= found.bound
    assert found.value <= float(expected[-1]) + 1e-12
    assert found.products <= budget


def test_a_budget_that_does_not_suffice_is_told():
    found = largest(dense(rotated(RANKS)), 1e-5, 7, seeded())
    assert (found.products, found.converged) == (7, False)
    assert found.bound > 1e-5 * found.value


def test_products_of_earlier_calls_do_not_count():
    operator = dense(rotated(NETWORK))
    first, second = (largest(operator, 1e-5, 40, seeded()) for _ in range(2))
    assert first == second
    assert operator.products == 2 * first.products


def test_a_seed_gives_the_same_answer_again_and_another_one_another():
    first, again, other = (largest(dense(rotated(NETWORK)), 1e-5, 40, seeded(s)) for s in (0, 0, 1))
    assert first == again
    assert first != other


def test_an_accident_at_the_start_does_not_count_as_found():
    # One step sees 1 and a residual of about 1e-6; the eigenvalue 1e-4 above it is hidden in one of many directions.
    matrix = torch.eye(10_000, dtype=torch.float64).diagonal().clone()
    matrix[17] = 1.0001
    operator = Operator(lambda v: matrix[:, None] * v, 10_000, torch.float64, torch.device("cpu"))
    found = largest(operator, 1e-5, 40, seeded())
    assert found.value == pytest.approx(1.0001, rel=1e-9)


@pytest.mark.parametrize("rtol", [0, -1e-5, float("inf")])
def test_a_tolerance_that_is_none_is_refused(rtol):
    with pytest.raises(ValueError, match=r"rtol must be a finite number above 0, got .*\. 1e-5 is customary"):
        largest(dense(torch.eye(3)), rtol, 40, seeded())


@pytest.mark.parametrize("budget", [0, 2.5])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(ValueError, match=f"max_matvecs must be a whole number from 1 on, got {budget}"):
        largest(dense(torch.eye(3)), 1e-5, budget, seeded())


def slow_lanczos(matrix, start, steps):
    """By the book: an orthonormal basis of the Krylov space by QR, and the matrix seen in it."""
    krylov = [start]
    for _ in range(steps - 1):
        krylov.append(matrix @ krylov[-1])
        krylov[-1] /= krylov[-1].norm()
    basis = torch.linalg.qr(torch.stack(krylov, dim=1))[0]
    return basis.T @ matrix @ basis


def test_several_starts_in_lockstep_are_what_each_is_alone():
    matrix = rotated(RANKS[:40])
    starts = random_directions(dense(matrix), 3, seeded())
    together = list(lanczos(dense(matrix), starts, 6))
    assert [state.alpha.shape for state in together] == [(3, m) for m in range(1, 7)]
    for row in range(3):
        expected = slow_lanczos(matrix, starts[:, row], 6)
        assert_close(together[-1].alpha[row], expected.diagonal(), rtol=1e-9, atol=0)
        assert_close(together[-1].beta[row, :5], expected.diagonal(1).abs(), rtol=1e-9, atol=0)
        *_, alone = lanczos(dense(matrix), starts[:, row : row + 1], 6)
        assert_close(together[-1].beta[row], alone.beta[0])


def test_it_ends_when_the_last_start_has_seen_all_it_can():
    matrix = rotated([1.0, 5.0] * 30)
    one = torch.linalg.eigh(matrix)[1][:, -1:]  # sees one of the two eigenvalues
    starts = torch.cat([one, random_directions(dense(matrix), 2, seeded())], dim=1).float()
    # Computed in float64 and rounded: the eigenvalues of a matrix that is itself rounded are no longer equal.
    operator = Operator(lambda v: (matrix @ v.double()).float(), 60, torch.float32, torch.device("cpu"))
    steps = list(lanczos(operator, starts, 30))
    assert len(steps) == 2
    assert_close(ritz(steps[-1], 0)[0], torch.tensor([5.0]).double(), rtol=1e-6, atol=0)
    assert_close(ritz(steps[-1], 1)[0], torch.tensor([1.0, 5.0]).double(), rtol=1e-6, atol=0)


def test_what_is_small_beside_the_matrix_is_rounding_even_where_a_product_is_small():
    matrix = rotated([3.0, *[0.0] * 99])
    top = torch.linalg.eigh(matrix)[1][:, -1:]
    start = top + 1e-4 * random_directions(dense(matrix), 1, seeded())
    steps = list(lanczos(dense(matrix, torch.float32), (start / start.norm()).float(), 30))
    assert len(steps) == 2


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_there_are_no_more_steps_than_columns(dtype):
    operator = dense(rotated(RANKS[:200]), dtype)
    assert len(list(lanczos(operator, random_directions(operator, 2, seeded()), 250))) == 200
    assert operator.products == 400


def test_each_step_is_one_product_with_all_starts():
    operator = dense(rotated(RANKS[:40]))
    steps = lanczos(operator, random_directions(operator, 3, seeded()), 6)
    assert [operator.products for _ in islice(steps, 4)] == [3, 6, 9, 12]


def test_a_start_whose_process_ends_does_not_disturb_the_others():
    matrix = torch.diag(RANKS[:30])
    starts = torch.stack([torch.eye(30).double()[4], torch.ones(30).double() / 30**0.5], dim=1)
    *_, state = lanczos(dense(matrix), starts, 6)
    assert ritz(state, 0)[0].tolist() == [5]
    *_, alone = lanczos(dense(matrix), starts[:, 1:], 6)
    assert_close(ritz(state, 1), ritz(alone, 0))
    assert len(ritz(state, 1)[0]) == 6


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_no_eigenvalue_appears_twice_in_a_long_process(dtype):
    """Without orthogonalising again, copies of the largest eigenvalues appear after some twenty steps."""
    matrix = rotated([1000.0, 500.0, *RANKS[:98]])
    *_, state = lanczos(dense(matrix, dtype), random_directions(dense(matrix, dtype), 1, seeded()), 80)
    values = ritz(state, 0)[0]
    assert (values > 400).sum() == 2
    assert_close(values[-2:], torch.tensor([500.0, 1000.0]).double(), rtol=1e-6, atol=0)
