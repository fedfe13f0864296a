"""`curvature.estimators` on matrices whose trace is known: right on average, and as certain as they say."""

import pytest
import torch

from flatfold.curvature import estimators
from flatfold.curvature.estimators import hutch_pp, hutchinson, xtrace
from flatfold.curvature.operator import Operator

METHODS = [hutchinson, hutch_pp, xtrace]
SIZE = 150
RANKS = torch.arange(1, SIZE + 1, dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def spread(*largest, rest):
    return torch.cat([torch.tensor(largest, dtype=torch.float64), rest[len(largest) :]])


SPECTRA = {
    "spiked": spread(100.0, 60.0, 30.0, 10.0, 5.0, rest=10 / RANKS**2),
    "flat": 1 + 0.5 * torch.rand(SIZE, generator=seeded(), dtype=torch.float64),
    "indefinite": spread(100.0, -90.0, 30.0, -20.0, rest=torch.randn(SIZE, generator=seeded(), dtype=torch.float64)),
    "low rank": spread(*range(8, 0, -1), rest=torch.zeros(SIZE, dtype=torch.float64)),
    "a single eigenvalue": spread(3.0, rest=torch.zeros(SIZE, dtype=torch.float64)),
    "zero": torch.zeros(SIZE, dtype=torch.float64),
}


def rotated(eigenvalues, seed=0):
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, generator=seeded(seed), dtype=torch.float64))[0]
    return (basis * eigenvalues) @ basis.T


def dense(matrix, dtype=torch.float64):
    """An operator that knows its matrix."""
    matrix = matrix.to(dtype)
    return Operator(lambda vectors: matrix @ vectors, len(matrix), dtype, torch.device("cpu"))


def trials(method, matrix, products, count):
    """Return estimates and standard errors over seeds, each ``(count,)``."""
    return torch.tensor([method(dense(matrix), products, seeded(seed)) for seed in range(count)]).double().T


@pytest.mark.parametrize("products", [12, 30, 99])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_two_standard_errors_cover_the_trace_in_nine_of_ten_cases(spectrum, method, products):
    truth = SPECTRA[spectrum].sum()
    values, stderr = trials(method, rotated(SPECTRA[spectrum]), products, 400)
    rounding = 1e-13 * SPECTRA[spectrum].abs().sum()
    assert ((values - truth).abs() <= 2 * stderr + rounding).double().mean() >= 0.9


@pytest.mark.parametrize("products", [30, 99])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spectrum", ["spiked", "flat", "indefinite"])
def test_standard_errors_are_not_wider_than_they_need_to_be(spectrum, method, products):
    values, stderr = trials(method, rotated(SPECTRA[spectrum]), products, 100)
    error = (values - SPECTRA[spectrum].sum()).square().mean().sqrt()
    assert stderr.square().mean().sqrt() < 2.2 * error


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spectrum", ["spiked", "flat", "indefinite"])
def test_estimates_are_right_on_average(spectrum, method):
    values, _ = trials(method, rotated(SPECTRA[spectrum]), 20, 300)
    assert abs(values.mean() - SPECTRA[spectrum].sum()) < 3 * values.std() / 300**0.5


def test_one_probe_of_hutchinson_is_the_quadratic_form_of_its_signs():
    matrix = rotated(SPECTRA["flat"])
    seen = []
    operator = Operator(lambda v: seen.append(v) or matrix @ v, SIZE, torch.float64, torch.device("cpu"))
    value, _ = hutchinson(operator, 2, seeded())
    (signs,) = seen
    assert value == pytest.approx(float((signs[:, 0] @ matrix @ signs[:, 0] + signs[:, 1] @ matrix @ signs[:, 1]) / 2))


def test_xtrace_is_the_mean_of_what_each_left_out_vector_estimates():
    """Slow and obvious: a new basis for every test vector."""
    matrix, seen = rotated(SPECTRA["indefinite"]), []
    operator = Operator(lambda v: seen.append(v) or matrix @ v, SIZE, torch.float64, torch.device("cpu"))
    value, stderr = xtrace(operator, 14, seeded())
    tests, estimates = seen[0], []
    for i in range(7):
        basis = torch.linalg.qr(matrix @ torch.cat([tests[:, :i], tests[:, i + 1 :]], dim=1))[0]
        u = tests[:, i] - basis @ (basis.T @ tests[:, i])
        beyond = (SIZE - 6) * (u @ matrix @ u) / (u @ u)  # u is uniform on the sphere of what the basis leaves
        estimates.append((basis.T @ matrix @ basis).trace() + beyond)
    estimates = torch.stack(estimates)
    assert value == pytest.approx(float(estimates.mean()), rel=1e-10)
    # 2.5165: 95.45 % of Student's t with 6 degrees of freedom
    assert stderr == pytest.approx(1.3 * (1 + 4 / 7) * 2.5165 / 2 * float(estimates.std()) / 7**0.5, rel=1e-4)


def test_hutch_pp_is_exact_where_its_sketch_sees_everything():
    matrix = rotated(SPECTRA["low rank"])
    value, stderr = hutch_pp(dense(matrix), 24, seeded())
    assert value == pytest.approx(36, rel=1e-13)
    assert stderr < 1e-12


def test_xtrace_is_exact_for_fewer_eigenvalues_than_test_vectors():
    value, stderr = xtrace(dense(rotated(SPECTRA["low rank"])), 18, seeded())
    assert value == pytest.approx(36, rel=1e-13)
    assert stderr == 0


def test_spiked_matrices_need_far_fewer_products_than_hutchinson_takes():
    truth, matrix = SPECTRA["spiked"].sum(), rotated(SPECTRA["spiked"])
    plain, sketched, left_out = ((trials(m, matrix, 30, 40)[0] - truth).square().mean().sqrt() for m in METHODS)
    assert plain > 30 * sketched
    assert plain > 30 * left_out


@pytest.mark.parametrize("products", [4, 5, 12, 30, 31, 32, 99])
@pytest.mark.parametrize("method", METHODS)
def test_no_more_products_than_asked_for(method, products):
    operator = dense(rotated(SPECTRA["flat"]))
    method(operator, products, seeded())
    assert products - 1 <= operator.products <= products


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("more", [0, 5])
@pytest.mark.parametrize("method", METHODS)
def test_as_many_products_as_columns_give_the_exact_trace(method, size, more):
    matrix = rotated(torch.randn(size, generator=seeded(), dtype=torch.float64))
    operator = dense(matrix)
    value, stderr = method(operator, size + more, seeded())
    assert (value, stderr) == (pytest.approx(float(matrix.trace()), rel=1e-14), 0)
    assert operator.products == size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_the_trace_of_zero_is_exactly_zero(method, dtype):
    assert method(dense(torch.zeros(SIZE, SIZE), dtype), 12, seeded()) == (0, 0)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("method", METHODS)
def test_products_in_float32_of_any_size_lose_only_their_last_digits(method, scale):
    matrix = rotated(SPECTRA["spiked"])
    wanted, error = method(dense(matrix), 30, seeded(1))
    operator = dense(matrix * scale, torch.float32)
    apply = operator.apply
    # The same vectors for both: what is drawn depends on the type.
    exact = Operator(lambda v: apply(v.float()).double() / scale, SIZE, torch.float64, torch.device("cpu"))
    value, stderr = method(exact, 30, seeded(1))
    assert value == pytest.approx(wanted, rel=1e-5)
    assert stderr == pytest.approx(error, rel=1e-3)
    value, stderr = method(operator, 30, seeded(1))
    assert abs(value / scale - float(SPECTRA["spiked"].sum())) < 4 * stderr / scale


def test_long_vectors_in_float32_are_summed_up_in_float64():
    operator = Operator(lambda v: 0.1 * v, 200_001, torch.float32, torch.device("cpu"))
    value, _ = hutchinson(operator, 2, seeded())
    assert value == pytest.approx(float(torch.tensor(0.1)) * 200_001, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_matrix_too_tall_for_float64_is_treated_in_the_type_of_its_products(method, monkeypatch):
    matrix = rotated(SPECTRA["spiked"])
    wanted = method(dense(matrix, torch.float32), 30, seeded())
    monkeypatch.setattr(estimators, "ENTRIES", 4 * SIZE)
    widths = []
    operator = dense(matrix, torch.float32)
    apply = operator.apply
    operator.apply = lambda v: widths.append(v.shape[1]) or apply(v)
    assert method(operator, 30, seeded()) == pytest.approx(wanted, rel=1e-3)
    assert method is not hutchinson or widths == [4] * 7 + [2]


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_the_same_estimate_again_and_another_one_another(method):
    first, again, other = (method(dense(rotated(SPECTRA["flat"])), 12, seeded(s)) for s in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("method", "products", "message"),
    [
        (hutchinson, 1, r"hutchinson needs at least 2 products to know its own error, got 1\. Try 30"),
        (hutch_pp, 3, r"hutch\+\+ needs at least 4 products to know its own error, got 3\. Try 30"),
        (xtrace, 3, r"xtrace needs at least 4 products to know its own error, got 3\. Try 30"),
    ],
)
def test_too_few_products_for_an_error_are_refused(method, products, message):
    with pytest.raises(ValueError, match=message):
        method(dense(rotated(SPECTRA["flat"])), products, seeded())
    _, stderr = method(dense(rotated(SPECTRA["flat"])), 2 if method is hutchinson else 4, seeded())
    assert 0 < stderr < float("inf")
