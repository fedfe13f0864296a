"""XTrace: the trace of a matrix, with a standard error, from few products with random vectors.

A standard deviation estimated from few values is itself uncertain, so standard errors are widened: with 12 products or
more, the estimate ± 2 of them covers the trace in at least nine of ten cases, for spectra that are flat, spiked,
indefinite or of low rank. With as many products as the matrix has columns the trace is exact and its standard error 0.
"""

from math import sqrt

import torch
from torch import Tensor
from torch.linalg import qr, solve_triangular, svdvals

from ..core.intervals import student_quantile
from .operators import Operator, random_directions

TWO_SIGMA = 0.9545  # share of a normal distribution within two standard deviations
SKEW = 4.0  # squares are skewed, and small samples miss large ones; enough for a single eigenvalue, the hardest case
OPTIMISM = 1.3  # the estimates of XTrace share their vectors: their spread is about 10 to 25 % too small
ENTRIES = 2**27  # largest number of entries of a tall matrix converted to float64: 1 GiB


def xtrace(operator: Operator, matvecs: int, generator: torch.Generator) -> tuple[float, float]:
    r"""Estimate the trace and its standard error, leaving out each test vector in turn (Epperly et al., 2024).

    .. math:: \operatorname{tr} A \approx \frac1k \sum_{i=1}^k \operatorname{tr} Q_i^\top A\, Q_i
       + \frac{n - k + 1}{\|u_i\|^2}\, u_i^\top A\, u_i, \qquad u_i = (I - Q_i Q_i^\top)\, \omega_i

    with :math:`Q_i` the orthonormal basis of the products with all test vectors but the i-th. Every test vector serves
    both as sketch and as probe. If the matrix has fewer than ``k`` non-zero eigenvalues, the trace is exact. Four tall
    matrices ``(size, matvecs / 2)`` are held in memory; an odd number of products is rounded down to an even one.
    """
    if matvecs >= operator.size:
        columns = torch.eye(operator.size, dtype=operator.dtype, device=operator.device)
        return float(operator(columns).diagonal().sum(dtype=torch.float64)), 0.0
    if matvecs < 4:
        raise ValueError(f"xtrace needs at least 4 products for a standard error, got {matvecs}. Try 30.")
    tests = random_directions(operator, matvecs // 2, generator)
    images = operator(tests)
    scale = float(images.abs().max())
    if scale == 0:
        return 0.0, 0.0
    basis, triangle = qr(_to_double(images / scale))
    basis, triangle = basis.to(images.dtype), triangle.double()
    spread = svdvals(triangle)
    if spread[-1] <= len(spread) * torch.finfo(torch.float64).eps * spread[0]:
        return float(_dots(basis, operator(basis)).sum()), 0.0
    estimates = _leave_one_out(tests, images / scale, basis, operator(basis) / scale, triangle)
    stderr = OPTIMISM * widening(len(estimates)) * float(estimates.std()) / sqrt(len(estimates))
    return scale * float(estimates.mean()), scale * stderr


def widening(draws: int) -> float:
    """Return the factor by which the standard error of a mean of few draws is widened."""
    return student_quantile(TWO_SIGMA, draws - 1) / 2 * (1 + SKEW / draws)


def _leave_one_out(tests: Tensor, images: Tensor, basis: Tensor, products: Tensor, triangle: Tensor) -> Tensor:
    """Return one estimate per test vector, ``(k,)``, without recomputing the basis for each.

    Leaving out the i-th image removes one direction ``s_i`` from the basis, the i-th column of the inverse transpose of
    the triangle of the QR decomposition.
    """
    size, k = tests.shape
    wide = _to_double(basis)
    inner = (wide.T @ _to_double(products)).double()
    shadows = (wide.T @ _to_double(tests)).double()
    cross = (_to_double(products).T @ _to_double(tests)).double()
    gone = solve_triangular(triangle.T, torch.eye(k, dtype=torch.float64, device=triangle.device), upper=False)
    gone = gone / torch.linalg.vector_norm(gone, dim=0)
    inside = inner.trace() - _dots(gone, inner @ gone)
    shadows = shadows - gone * _dots(gone, shadows)
    quadratic = _dots(tests, images) - 2 * _dots(shadows, cross) + _dots(shadows, inner @ shadows)
    length = _dots(tests, tests) - _dots(shadows, shadows)
    return inside + (size - k + 1) * quadratic / length


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """Return the dot products of matching columns, summed in float64."""
    return (left * right).sum(dim=0, dtype=torch.float64)


def _to_double(tall: Tensor) -> Tensor:
    """Return a tall matrix in float64 if it is not too large."""
    return tall.double() if tall.numel() <= ENTRIES else tall
