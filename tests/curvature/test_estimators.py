"""Estimators of a trace on matrices whose trace is known: unbiased, with honest standard errors."""

import pytest
import torch

from flatfold.curvature import xtrace as estimators
from flatfold.curvature.xtrace import hutch_pp, hutchinson, xtrace
from tests.curvature.matrices import check_refused, dense, operator, rotated, seeded

METHODS = [hutchinson, hutch_pp, xtrace]
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


def trials(method, matrix, products, count):
    """Return estimates and standard errors over seeds, each ``(count,)``."""
    return torch.tensor([method(dense(matrix), products, seeded(seed)) for seed in range(count)]).double().T


def share_covered(spectrum, method, products, count=400):
    truth = SPECTRA[spectrum].sum()
    values, stderr = trials(method, rotated(SPECTRA[spectrum]), products, count)
    rounding = 1e-13 * SPECTRA[spectrum].abs().sum()
    return ((values - truth).abs() <= 2 * stderr + rounding).double().mean()


@pytest.mark.parametrize(
    ("spectrum", "method"), [("a single eigenvalue", hutchinson), ("flat", hutch_pp), ("indefinite", xtrace)]
)
def test_two_standard_errors_cover_the_trace_in_nine_of_ten_cases(spectrum, method):
    assert share_covered(spectrum, method, products=12) >= 0.9


def check_not_too_wide(spectrum, method, products):
    values, stderr = trials(method, rotated(SPECTRA[spectrum]), products, 100)
    error = (values - SPECTRA[spectrum].sum()).square().mean().sqrt()
    assert stderr.square().mean().sqrt() < 2.2 * error, f"{spectrum}, {method.__name__}, {products} products"


def check_unbiased(spectrum, method, count):
    values, _ = trials(method, rotated(SPECTRA[spectrum]), 20, count)
    bias = abs(values.mean() - SPECTRA[spectrum].sum())
    assert bias < 3 * values.std() / count**0.5, f"{spectrum}, {method.__name__}"


@pytest.mark.parametrize("method", METHODS)
def test_estimates_are_unbiased_and_standard_errors_not_too_wide(method):
    check_unbiased("indefinite", method, 100)
    check_not_too_wide("indefinite", method, 30)


@pytest.mark.slow
def test_standard_errors_are_honest_for_every_spectrum_and_number_of_products():
    for method in METHODS:
        for spectrum in SPECTRA:
            for products in (12, 30, 99):
                covered = share_covered(spectrum, method, products)
                assert covered >= 0.9, f"{spectrum}, {method.__name__}, {products} products: {covered}"
        for spectrum in ("spiked", "flat", "indefinite"):
            check_unbiased(spectrum, method, 300)
            for products in (30, 99):
                check_not_too_wide(spectrum, method, products)


def test_hutchinson_is_the_mean_of_the_quadratic_forms_of_its_signs():
    matrix, seen = rotated(SPECTRA["flat"]), []
    value, stderr = hutchinson(operator(lambda v: seen.append(v) or matrix @ v, SIZE), 3, seeded())
    (signs,) = seen
    forms = torch.stack([v @ matrix @ v for v in signs.T])
    assert value == pytest.approx(float(forms.mean()))
    # 4.5266: 95.45 % of Student's t with 2 degrees of freedom
    assert stderr == pytest.approx((1 + 4 / 3) * 4.5266 / 2 * float(forms.std()) / 3**0.5, rel=1e-4)


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


def test_hutch_pp_and_xtrace_are_exact_for_a_matrix_of_low_rank():
    matrix = rotated(SPECTRA["low rank"])
    value, stderr = hutch_pp(dense(matrix), 24, seeded())
    assert value == pytest.approx(36, rel=1e-13)
    assert stderr < 1e-12
    value, stderr = xtrace(dense(matrix), 18, seeded())
    assert value == pytest.approx(36, rel=1e-13)
    assert stderr == 0


@pytest.mark.parametrize("method", METHODS)
def test_products_are_limited_and_as_many_as_columns_give_the_exact_trace(method):
    for products in (4, 5, 12, 30, 31, 32, 99):
        flat = dense(rotated(SPECTRA["flat"]))
        method(flat, products, seeded())
        assert products - 1 <= flat.products <= products
    for size in (1, 2, 7):
        matrix = rotated(torch.randn(size, generator=seeded(), dtype=torch.float64))
        for products in (size, size + 5):
            small = dense(matrix)
            assert method(small, products, seeded()) == (pytest.approx(float(matrix.trace()), rel=1e-14), 0)
            assert small.products == size


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("method", METHODS)
def test_products_in_float32_of_any_size_lose_only_their_last_digits(method, scale):
    matrix = rotated(SPECTRA["spiked"])
    wanted, error = method(dense(matrix), 30, seeded(1))
    single = dense(matrix * scale, torch.float32)
    apply = single.apply
    # The same vectors for both: what is drawn depends on the type.
    value, stderr = method(operator(lambda v: apply(v.float()).double() / scale, SIZE), 30, seeded(1))
    assert value == pytest.approx(wanted, rel=1e-5)
    assert stderr == pytest.approx(error, rel=1e-3)
    value, stderr = method(single, 30, seeded(1))
    assert abs(value / scale - float(SPECTRA["spiked"].sum())) < 4 * stderr / scale


def test_long_vectors_in_float32_are_summed_up_in_float64():
    value, _ = hutchinson(operator(lambda v: 0.1 * v, 200_001, torch.float32), 2, seeded())
    assert value == pytest.approx(float(torch.tensor(0.1)) * 200_001, rel=1e-12)


def test_a_matrix_too_tall_for_float64_is_treated_in_the_type_of_its_products(monkeypatch):
    matrix = rotated(SPECTRA["spiked"])
    wanted = {method: method(dense(matrix, torch.float32), 30, seeded()) for method in METHODS}
    monkeypatch.setattr(estimators, "ENTRIES", 4 * SIZE)
    for method in METHODS:
        widths, single = [], matrix.float()
        tall = operator(lambda v, m=single, w=widths: w.append(v.shape[1]) or m @ v, SIZE, torch.float32)
        assert method(tall, 30, seeded()) == pytest.approx(wanted[method], rel=1e-3), method.__name__
        assert method is not hutchinson or widths == [4] * 7 + [2]


def test_the_seed_decides_and_the_trace_of_zero_is_zero():
    for method in METHODS:
        first, again, other = (method(dense(rotated(SPECTRA["flat"])), 12, seeded(s)) for s in (0, 0, 1))
        assert first == again != other, method.__name__
        for dtype in (torch.float32, torch.float64):
            assert method(dense(torch.zeros(SIZE, SIZE), dtype), 12, seeded()) == (0, 0), method.__name__


def test_too_few_products_for_a_standard_error_are_refused():
    flat = rotated(SPECTRA["flat"])
    cases = [((hutchinson, 1), ValueError, "2"), ((hutch_pp, 3), ValueError, "4"), ((xtrace, 3), ValueError, "4")]
    check_refused(lambda case: case[0](dense(flat), case[1], seeded()), cases)
    for (method, products), _, _ in cases:
        assert 0 < method(dense(flat), products + 1, seeded())[1] < float("inf")
