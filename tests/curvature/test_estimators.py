"""XTrace on matrices whose trace is known: unbiased, with honest standard errors."""

import pytest
import torch

from flatfold.curvature import xtrace as estimators
from flatfold.curvature.xtrace import xtrace
from tests.curvature.matrices import check_refused, dense, operator, rotated, seeded

SIZE = 150
RANKS = torch.arange(1, SIZE + 1, dtype=torch.float64)


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


def trials(matrix, products, count):
    """Return estimates and standard errors over seeds, each ``(count,)``."""
    return torch.tensor([xtrace(dense(matrix), products, seeded(seed)) for seed in range(count)]).double().T


def check_covered(spectrum, products, count=400):
    truth = SPECTRA[spectrum].sum()
    values, stderr = trials(rotated(SPECTRA[spectrum]), products, count)
    rounding = 1e-13 * SPECTRA[spectrum].abs().sum()
    covered = ((values - truth).abs() <= 2 * stderr + rounding).double().mean()
    assert covered >= 0.9, f"{spectrum}, {products} products: {covered}"


@pytest.mark.parametrize("spectrum", ["a single eigenvalue", "flat", "indefinite"])
def test_two_standard_errors_cover_the_trace_in_nine_of_ten_cases(spectrum):
    check_covered(spectrum, products=12)


def check_not_too_wide(spectrum, products):
    values, stderr = trials(rotated(SPECTRA[spectrum]), products, 100)
    error = (values - SPECTRA[spectrum].sum()).square().mean().sqrt()
    assert stderr.square().mean().sqrt() < 2.2 * error, f"{spectrum}, {products} products"


def check_unbiased(spectrum, count):
    values, _ = trials(rotated(SPECTRA[spectrum]), 20, count)
    bias = abs(values.mean() - SPECTRA[spectrum].sum())
    assert bias < 3 * values.std() / count**0.5, spectrum


def test_estimates_are_unbiased_and_standard_errors_not_too_wide():
    check_unbiased("indefinite", 100)
    check_not_too_wide("indefinite", 30)


@pytest.mark.slow
def test_standard_errors_are_honest_for_every_spectrum_and_number_of_products():
    for spectrum in SPECTRA:
        for products in (12, 30, 99):
            check_covered(spectrum, products)
    for spectrum in ("spiked", "flat", "indefinite"):
        check_unbiased(spectrum, 300)
        for products in (30, 99):
            check_not_too_wide(spectrum, products)


def test_xtrace_is_the_mean_of_what_each_left_out_vector_estimates():
    """Slow and obvious: a new basis for every test vector."""
    matrix, seen = rotated(SPECTRA["indefinite"]), []
    value, stderr = xtrace(operator(lambda v: seen.append(v) or matrix @ v, SIZE), 14, seeded())
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


def test_it_is_exact_for_a_matrix_of_low_rank():
    value, stderr = xtrace(dense(rotated(SPECTRA["low rank"])), 18, seeded())
    assert value == pytest.approx(36, rel=1e-13)
    assert stderr == 0


def test_products_are_limited_and_as_many_as_columns_give_the_exact_trace():
    for products in (4, 5, 12, 30, 31, 32, 99):
        flat = dense(rotated(SPECTRA["flat"]))
        xtrace(flat, products, seeded())
        assert products - 1 <= flat.products <= products
    for size in (1, 2, 7):
        matrix = rotated(torch.randn(size, generator=seeded(), dtype=torch.float64))
        for products in (size, size + 5):
            small = dense(matrix)
            assert xtrace(small, products, seeded()) == (pytest.approx(float(matrix.trace()), rel=1e-14), 0)
            assert small.products == size


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_products_in_float32_of_any_size_lose_only_their_last_digits(scale):
    matrix = rotated(SPECTRA["spiked"])
    wanted, error = xtrace(dense(matrix), 30, seeded(1))
    single = dense(matrix * scale, torch.float32)
    apply = single.apply
    # The same vectors for both: what is drawn depends on the type.
    value, stderr = xtrace(operator(lambda v: apply(v.float()).double() / scale, SIZE), 30, seeded(1))
    assert value == pytest.approx(wanted, rel=1e-5)
    assert stderr == pytest.approx(error, rel=1e-3)
    value, stderr = xtrace(single, 30, seeded(1))
    assert abs(value / scale - float(SPECTRA["spiked"].sum())) < 4 * stderr / scale


def test_a_matrix_too_tall_for_float64_is_treated_in_the_type_of_its_products(monkeypatch):
    matrix = rotated(SPECTRA["spiked"])
    wanted = xtrace(dense(matrix, torch.float32), 30, seeded())
    monkeypatch.setattr(estimators, "ENTRIES", 4 * SIZE)
    assert xtrace(dense(matrix, torch.float32), 30, seeded()) == pytest.approx(wanted, rel=1e-3)


def test_the_seed_decides_and_the_trace_of_zero_is_zero():
    first, again, other = (xtrace(dense(rotated(SPECTRA["flat"])), 12, seeded(s)) for s in (0, 0, 1))
    assert first == again != other
    for dtype in (torch.float32, torch.float64):
        assert xtrace(dense(torch.zeros(SIZE, SIZE), dtype), 12, seeded()) == (0, 0)


def test_too_few_products_for_a_standard_error_are_refused():
    flat = rotated(SPECTRA["flat"])
    check_refused(lambda products: xtrace(dense(flat), products, seeded()), [(3, ValueError, "4")])
    assert 0 < xtrace(dense(flat), 4, seeded())[1] < float("inf")
