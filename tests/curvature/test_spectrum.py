"""`curvature.spectrum`: densities that integrate to one, widths that follow the spectrum, zeros that stand apart."""

import pytest
import torch
from scipy.stats import norm
from torch.testing import assert_close

from flatfold.curvature.operator import Operator
from flatfold.curvature.quadrature import lanczos_quadrature
from flatfold.curvature.spectrum import Spectrum


def make_spectrum(nodes, weights=None, seed=None, ends=None):
    nodes = torch.as_tensor(nodes, dtype=torch.float64)
    weights = torch.full_like(nodes, 1 / nodes.shape[1]) if weights is None else torch.as_tensor(weights).double()
    low, high = ends or (float(nodes.min()), float(nodes.max()))
    return Spectrum(nodes, weights, 10, low, high, "method", "hessian", "energy", 0, seed, 5)


def integral(density):
    return float(torch.trapezoid(density.mean, density.grid))


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
    error = (rows[0] - rows[1]).abs() / 2  # of the mean of two values
    assert_close(density.upper, density.mean + error)
    assert_close(density.lower, (density.mean - error).clamp(min=0))


@pytest.mark.parametrize("width", [0.003, 0.01, 0.2])
@pytest.mark.parametrize("nodes", [[[1.0, 2.0, 7.0]], [[-7.0, -1.0, 0.0, 0.0, 3.0]], [[5.0]], [[-5.0]]])
def test_density_and_atom_together_integrate_to_one(nodes, width):
    density = make_spectrum(nodes).density(width=width)
    assert integral(density) + density.atom == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e30])
def test_the_kernel_follows_the_spectrum(scale):
    nodes = torch.tensor([[-3.0, 0.0, 1.0, 2.0]]).double()
    usual, scaled = make_spectrum(nodes).density(), make_spectrum(nodes * scale).density()
    assert usual.width == pytest.approx(0.03)
    assert scaled.width / scale == pytest.approx(0.03)
    assert scaled.atom == usual.atom == 0.25
    assert_close(scaled.grid / scale, usual.grid, rtol=1e-9, atol=1e-9)
    assert_close(scaled.mean * scale, usual.mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("nodes", [[[-3.0, 1.0]], [[-1.0, 3.0]], [[2.0, 3.0]]])
def test_the_width_is_relative_to_the_largest_absolute_eigenvalue(nodes):
    assert make_spectrum(nodes).density().width == pytest.approx(0.03)


def test_the_grid_covers_the_spectrum_and_five_widths_beyond_with_four_points_to_a_width():
    density = make_spectrum([[-1.0, 4.0]], ends=(-2.0, 5.0)).density()
    assert density.width == pytest.approx(0.05)  # of an end that no node has
    assert (float(density.grid[0]), float(density.grid[-1])) == (pytest.approx(-2.25), pytest.approx(5.25))
    steps = density.grid.diff()
    assert 0.9 * 0.05 / 4 < float(steps.min()) <= float(steps.max()) <= 0.05 / 4


@pytest.mark.parametrize("ends", [(-6.0, 5.0), (-5.0, 6.0)])
def test_ends_that_no_node_has_count_for_the_width(ends):
    assert make_spectrum([[-1.0, 4.0]], ends=ends).density().width == pytest.approx(0.06)


def test_the_band_never_falls_below_zero():
    nodes = torch.tensor([[1.0], [1.3], [1.7]]).double()
    density = make_spectrum(nodes, seed=0).density()  # no two probes agree: the error is as large as the mean
    assert density.lower.min() == 0
    assert_close(density.upper, 2 * density.mean)


def test_what_is_a_millionth_of_the_largest_is_zero():
    nodes = [[-9e-7, 0.0, 9e-7, 2e-6, 1.0], [1e-9, 0.3, 0.4, 0.5, 1.0]]
    density = make_spectrum(nodes, seed=0).density()
    assert density.atom == pytest.approx((3 / 5 + 1 / 5) / 2)
    assert integral(density) == pytest.approx(0.6, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_zeros_of_a_singular_matrix_are_found_from_products_in_any_precision(dtype):
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(200, 200, generator=generator, dtype=torch.float64))[0]
    values = torch.cat([torch.tensor([1.0, 3.0, 4.0]).double(), torch.zeros(197).double()])
    matrix = ((basis * values) @ basis.T).to(dtype)
    operator = Operator(lambda v: matrix @ v, 200, dtype, torch.device("cpu"))
    density = make_spectrum(*lanczos_quadrature(operator, 20, 50, generator), seed=0).density()
    assert density.atom == pytest.approx(197 / 200, abs=0.005)


def test_an_exact_spectrum_has_no_band():
    spectrum = make_spectrum([[1.0, 2.0, 2.5]])
    density = spectrum.density()
    assert spectrum.exact
    assert torch.equal(density.lower, density.mean)
    assert torch.equal(density.upper, density.mean)


def test_an_estimated_spectrum_is_not_exact_and_its_band_shrinks_with_more_probes():
    nodes = torch.rand(400, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    grid = torch.linspace(1, 2, 20, dtype=torch.float64)
    few, many = (make_spectrum(nodes[:k], seed=0).density(grid, 0.1) for k in (4, 400))
    assert not make_spectrum(nodes, seed=0).exact
    assert (few.upper - few.mean).mean() > 5 * (many.upper - many.mean).mean() > 0


def test_a_single_probe_has_no_band_either():
    spectrum = make_spectrum([[1.0, 2.0]], seed=0)
    assert not spectrum.exact
    density = spectrum.density()
    assert torch.equal(density.lower, density.upper)


@pytest.mark.parametrize("grid", [None, torch.linspace(-1, 1, 5)])
def test_a_spectrum_of_zeros_is_all_atom(grid):
    density = make_spectrum([[0.0, 0.0], [0.0, 0.0]], seed=0).density(grid)
    assert (density.atom, density.width) == (1, 0)
    assert density.grid.tolist() == ([0] if grid is None else grid.tolist())
    for part in (density.mean, density.lower, density.upper):
        assert part.tolist() == [0] * len(density.grid)


def test_nodes_without_weight_add_nothing():
    density = make_spectrum([[1.0, 2.0, 2.0]], [[0.5, 0.5, 0.0]]).density()
    assert torch.equal(density.mean, make_spectrum([[1.0, 2.0]]).density().mean)


@pytest.mark.parametrize("width", [0, -0.01, float("nan"), float("inf")])
def test_a_width_that_is_none_is_refused(width):
    with pytest.raises(ValueError, match=r"width must be a finite number above 0, got .*\. 0\.01 is customary"):
        make_spectrum([[1.0]]).density(width=width)


@pytest.mark.parametrize("grid", [torch.zeros(2, 2), torch.zeros(0), torch.tensor([0.0, float("nan")])])
def test_a_grid_that_is_no_vector_is_refused(grid):
    with pytest.raises(ValueError, match=r"grid must be a vector of finite points, got shape .*\. Leave it out"):
        make_spectrum([[1.0]]).density(grid)


@pytest.mark.parametrize(
    ("nodes", "weights"), [((3,), (3,)), ((1, 3), (1, 2)), ((2, 3), (1, 3)), ((0, 3), (0, 3)), ((1, 0), (1, 0))]
)
def test_nodes_and_weights_of_different_shapes_are_refused(nodes, weights):
    with pytest.raises(ValueError, match=r"nodes and weights must have one shape \(probes, m\), got .*nodes\[None\]"):
        make_spectrum(torch.zeros(nodes), torch.ones(weights), ends=(0.0, 1.0))


def test_weights_that_are_no_shares_are_refused():
    with pytest.raises(ValueError, match=r"each row of weights must sum to 1, got 3\. Divide it by its sum"):
        make_spectrum([[1.0, 2.0], [1.0, 2.0]], [[0.5, 0.5], [1.0, 2.0]])
