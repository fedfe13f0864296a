"""`curvature.quadrature` against true spectra: moments, distances, and rules that end early."""

import pytest
import torch
from scipy.stats import wasserstein_distance
from torch.testing import assert_close

from flatfold.curvature.operator import Operator, random_directions
from flatfold.curvature.quadrature import lanczos_quadrature

SIZE = 300
RANKS = torch.arange(1, SIZE + 1, dtype=torch.float64)
SPECTRA = {
    "spiked": torch.cat([torch.tensor([34.6, 20.0, 15.0, 9.0, 7.0]).double(), 1 / RANKS[5:]]),
    "flat": RANKS / SIZE,
    "indefinite": torch.randn(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rotated(eigenvalues, seed=0):
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, generator=seeded(seed), dtype=torch.float64))[0]
    return (basis * eigenvalues) @ basis.T


def dense(matrix, dtype=torch.float64):
    matrix = matrix.to(dtype)
    return Operator(lambda vectors: matrix @ vectors, len(matrix), dtype, torch.device("cpu"))


def distance(eigenvalues, nodes, weights):
    """Wasserstein distance to the true spectrum, relative to the largest eigenvalue."""
    moved = wasserstein_distance(eigenvalues, nodes.flatten(), None, weights.flatten())
    return moved / float(eigenvalues.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_it_comes_close_to_the_true_spectrum(spectrum, dtype):
    nodes, weights = lanczos_quadrature(dense(rotated(SPECTRA[spectrum]), dtype), 20, 8, seeded())
    assert (nodes.dtype, weights.dtype) == (torch.float64, torch.float64)
    assert nodes.shape == weights.shape == (8, 20)
    assert distance(SPECTRA[spectrum], nodes, weights) < 0.03


def test_more_probes_bring_it_closer():
    matrix = rotated(SPECTRA["spiked"])
    few, many = (distance(SPECTRA["spiked"], *lanczos_quadrature(dense(matrix), 20, k, seeded(1))) for k in (2, 200))
    assert many < few / 3


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
    eigenvalues = RANKS[:12]
    operator = dense(rotated(eigenvalues))
    nodes, weights = lanczos_quadrature(operator, 50, 3, seeded())
    assert_close(nodes, eigenvalues.expand(3, 12), rtol=1e-10, atol=0)
    assert operator.products == 36
    assert weights.min() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rules_of_a_matrix_with_few_distinct_eigenvalues_end_early(dtype):
    eigenvalues = torch.tensor([2.0, -1.0, 0.0]).double().repeat_interleave(20)
    nodes, weights = lanczos_quadrature(dense(rotated(eigenvalues), dtype), 30, 6, seeded())
    for row, mass in zip(nodes, weights, strict=True):
        assert sum(float(mass[(row - value).abs() < 1e-5].sum()) for value in (2, -1, 0)) == pytest.approx(1, abs=1e-9)
    assert distance(eigenvalues, nodes, weights) < 0.1


def test_a_rule_that_ends_early_repeats_its_last_node_without_weight(monkeypatch):
    starts = torch.stack([torch.eye(30).double()[4], torch.ones(30).double() / 30**0.5], dim=1)
    monkeypatch.setattr("flatfold.curvature.quadrature.random_directions", lambda *_: starts)
    nodes, weights = lanczos_quadrature(dense(torch.diag(RANKS[:30])), 6, 2, seeded())
    assert nodes[0].tolist() == [5] * 6
    assert weights[0].tolist() == [1, 0, 0, 0, 0, 0]
    assert weights[1].min() > 0
    assert weights[1].sum() == pytest.approx(1, abs=1e-14)


def test_nodes_ascend_and_weights_are_shares():
    nodes, weights = lanczos_quadrature(dense(rotated(SPECTRA["indefinite"])), 20, 4, seeded())
    assert (nodes.diff(dim=1) > 0).all()
    assert (weights >= 0).all()
    assert_close(weights.sum(dim=1), torch.ones(4).double(), rtol=1e-14, atol=0)


def test_the_spectrum_of_zero_is_zero():
    nodes, weights = lanczos_quadrature(dense(torch.zeros(9, 9)), 5, 2, seeded())
    assert nodes.tolist() == [[0], [0]]
    assert weights.tolist() == [[1], [1]]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_size_of_the_entries_makes_no_difference(scale):
    matrix = rotated(SPECTRA["spiked"])
    nodes, weights = lanczos_quadrature(dense(matrix), 12, 3, seeded())
    scaled, same = lanczos_quadrature(dense(matrix * scale), 12, 3, seeded())
    assert_close(scaled / scale, nodes, rtol=1e-9, atol=1e-9)
    assert_close(same, weights, rtol=1e-6, atol=1e-9)


def test_all_rules_take_each_step_in_one_product():
    widths, matrix = [], rotated(SPECTRA["flat"])
    operator = Operator(lambda v: widths.append(v.shape[1]) or matrix @ v, SIZE, torch.float64, torch.device("cpu"))
    lanczos_quadrature(operator, 7, 5, seeded())
    assert widths == [5] * 7


def test_a_seed_gives_the_same_rules_again_and_another_one_others():
    first, again, other = (lanczos_quadrature(dense(rotated(SPECTRA["flat"])), 5, 2, seeded(s)) for s in (0, 0, 1))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("name", ["steps", "probes"])
def test_a_number_below_one_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be a whole number from 1 on, got 0"):
        lanczos_quadrature(dense(torch.eye(3)), **{"steps": 3, "probes": 2, name: 0}, generator=seeded())
