"""Estimates and spectra: densities that integrate to one, widths that follow the spectrum, zeros kept apart."""

import pytest
import torch
from scipy.stats import norm
from torch.testing import assert_close

from flatfold.curvature import Estimate, Spectrum
from flatfold.curvature.lanczos import lanczos_quadrature
from tests.curvature.matrices import check_refused, dense, rotated, seeded


def make_spectrum(nodes, weights=None, seed=None, ends=None):
    nodes = torch.as_tensor(nodes, dtype=torch.float64)
    weights = torch.full_like(nodes, 1 / nodes.shape[-1]) if weights is None else torch.as_tensor(weights).double()
    low, high = ends or (float(nodes.min()), float(nodes.max()))
    return Spectrum(nodes, weights, 10, low, high, "method", "hessian", "energy", 0, seed, 5)


def integral(density):
    return float(torch.trapezoid(density.mean, density.grid))


def test_an_estimate_reads_as_a_sentence():
    about = ("exact", "hessian", "energy", 3, None, 6)
    assert str(Estimate(1.5, None, *about)) == (
        "1.5 exactly (Hessian of the energy logsumexp(z), exact, 3 products, 6 inputs)"
    )
    assert str(Estimate(1.5, 0.25, *about)).startswith("1.5 ± 0.25 ")
    assert str(Estimate(torch.ones(6), None, *about)).startswith("6 values, mean 1 ")


def test_the_density_is_a_sum_of_kernels_over_all_probes():
    nodes, weights = [[-1.0, 2.0, 4.0], [0.5, 3.0, 4.0]], [[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]
    grid = torch.linspace(-2, 5, 50, dtype=torch.float64)
    density = make_spectrum(nodes, weights, seed=0).density(grid, width=0.1)
    rows = [
        sum(w * torch.from_numpy(norm.pdf(grid, loc=x, scale=0.4)) for x, w in zip(row, mass, strict=True))
        for row, mass in zip(nodes, weights, strict=True)
    ]
    assert density.width == pytest.approx(0.4)
    assert torch.equal(density.grid, grid)
    assert_close(density.mean, (rows[0] + rows[1]) / 2)
    padded = make_spectrum([[1.0, 2.0, 2.0]], [[0.5, 0.5, 0.0]]).density()
    assert torch.equal(padded.mean, make_spectrum([[1.0, 2.0]]).density().mean)
    error = (rows[0] - rows[1]).abs() / 2  # of the mean of two values
    assert_close(density.upper, density.mean + error)
    assert_close(density.lower, (density.mean - error).clamp(min=0))


def test_density_and_atom_together_integrate_to_one():
    for nodes in ([[1.0, 2.0, 7.0]], [[-7.0, -1.0, 0.0, 0.0, 3.0]], [[5.0]], [[-5.0]]):
        for width in (0.003, 0.01, 0.2):
            density = make_spectrum(nodes).density(width=width)
            assert integral(density) + density.atom == pytest.approx(1, abs=1e-5), (nodes, width)


def test_kernel_and_grid_follow_the_scale_of_the_spectrum():
    nodes = torch.tensor([[-3.0, 0.0, 1.0, 2.0]]).double()
    usual = make_spectrum(nodes).density()
    assert usual.width == pytest.approx(0.03)
    for scale in (1e-30, 1e-8, 1e30):
        scaled = make_spectrum(nodes * scale).density()
        assert scaled.width / scale == pytest.approx(0.03)
        assert scaled.atom == usual.atom == 0.25
        assert_close(scaled.grid / scale, usual.grid, rtol=1e-9, atol=1e-9)
        assert_close(scaled.mean * scale, usual.mean, rtol=1e-6, atol=1e-9)
    # the largest absolute eigenvalue counts, and so do ends that no node has
    for nodes, ends, width in (
        ([[-1.0, 3.0]], None, 0.03),
        ([[2.0, 3.0]], None, 0.03),
        ([[-1.0, 4.0]], (-6.0, 5.0), 0.06),
        ([[-1.0, 4.0]], (-5.0, 6.0), 0.06),
    ):
        density = make_spectrum(nodes, ends=ends).density()
        assert density.width == pytest.approx(width), (nodes, ends)
        # the grid goes five widths beyond the ends, with four points to a width
        low, high = ends or (nodes[0][0], nodes[0][-1])
        assert (float(density.grid[0]), float(density.grid[-1])) == pytest.approx((low - 5 * width, high + 5 * width))
        assert 0.9 * width / 4 < float(density.grid.diff().min()) <= float(density.grid.diff().max()) <= width / 4


def test_the_band_never_falls_below_zero_and_shrinks_with_more_probes():
    disjoint = make_spectrum([[1.0], [1.3], [1.7]], seed=0).density()  # the error is as large as the mean
    assert disjoint.lower.min() == 0
    assert_close(disjoint.upper, 2 * disjoint.mean)
    nodes = torch.rand(400, 6, generator=seeded(), dtype=torch.float64) + 1
    grid = torch.linspace(1, 2, 20, dtype=torch.float64)
    few, many = (make_spectrum(nodes[:k], seed=0).density(grid, 0.1) for k in (4, 400))
    assert (few.upper - few.mean).mean() > 5 * (many.upper - many.mean).mean() > 0


def test_neither_an_exact_spectrum_nor_a_single_probe_has_a_band():
    for seed in (None, 0):
        spectrum = make_spectrum([[1.0, 2.0, 2.5]], seed=seed)
        density = spectrum.density()
        assert spectrum.exact == (seed is None)
        assert torch.equal(density.lower, density.mean)
        assert torch.equal(density.upper, density.mean)


def test_what_is_a_millionth_of_the_largest_is_zero():
    nodes = [[-9e-7, 0.0, 9e-7, 2e-6, 1.0], [1e-9, 0.3, 0.4, 0.5, 1.0]]
    density = make_spectrum(nodes, seed=0).density()
    assert density.atom == pytest.approx((3 / 5 + 1 / 5) / 2)
    assert integral(density) == pytest.approx(0.6, abs=1e-5)


def test_the_zeros_of_a_singular_matrix_are_found_from_products_in_either_precision():
    matrix = rotated([1.0, 3.0, 4.0, *[0.0] * 197])
    for dtype in (torch.float32, torch.float64):
        density = make_spectrum(*lanczos_quadrature(dense(matrix, dtype), 20, 50, seeded(1)), seed=0).density()
        assert density.atom == pytest.approx(197 / 200, abs=0.005), dtype


def test_a_spectrum_of_zeros_is_all_atom():
    for grid in (None, torch.linspace(-1, 1, 5)):
        density = make_spectrum([[0.0, 0.0], [0.0, 0.0]], seed=0).density(grid)
        assert (density.atom, density.width) == (1, 0)
        assert density.grid.tolist() == ([0] if grid is None else grid.tolist())
        for part in (density.mean, density.lower, density.upper):
            assert part.tolist() == [0] * len(density.grid)


def test_malformed_spectra_and_settings_are_refused():
    one = make_spectrum([[1.0]])
    widths = [(width, ValueError, "width") for width in (0, -0.01, float("nan"), float("inf"))]
    check_refused(lambda width: one.density(width=width), widths)
    grids = (torch.zeros(2, 2), torch.zeros(0), torch.tensor([0.0, float("nan")]))
    check_refused(one.density, [(grid, ValueError, "grid") for grid in grids])
    shapes = [((3,), (3,)), ((1, 3), (1, 2)), ((2, 3), (1, 3)), ((0, 3), (0, 3)), ((1, 0), (1, 0))]
    check_refused(
        lambda shape: make_spectrum(torch.zeros(shape[0]), torch.ones(shape[1]), ends=(0.0, 1.0)),
        [(shape, ValueError, "shape") for shape in shapes],
    )
    check_refused(
        lambda weights: make_spectrum([[1.0, 2.0], [1.0, 2.0]], weights),
        [([[0.5, 0.5], [1.0, 2.0]], ValueError, "sum to 1, got 3")],
    )
