"""The trace of a matrix from few products with random vectors: Hutchinson, Hutch++ and XTrace.

Each takes an operator, how many products it may spend and a generator, and returns the estimate with its standard
error. Few values know little of their own spread, so standard errors are widened: the estimate ± 2 of them covers the
trace in nine of ten cases or more, from 12 products on, for spectra that are flat, spiked, indefinite or of low rank.
With as many products as the matrix has columns the trace is exact, by the columns of the identity, and its standard
error 0.
"""

from math import sqrt

import torch
from torch import Tensor
from torch.linalg import qr, solve_triangular, svdvals

from ..core.intervals import student_quantile
from .operators import Operator, random_directions, random_signs

TWO_SIGMA = 0.9545  # share of a normal distribution within two standard deviations
SKEW = (
    4.0  # squares are skewed, and a few of them miss the large ones; enough for a single eigenvalue, the hardest case
)

OPTIMISM = 1.3  # the estimates of XTrace share their vectors: their spread is some 10 to 25 % too small
ENTRIES = 2**27  # numbers in a tall matrix that may be held in float64 (1 GiB), or handed over at once


def hutchinson(operator: Operator, probes: int, generator: torch.Generator) -> tuple[float, float]:
    r"""Estimate the trace by the mean over random signs (Hutchinson, 1990).

    .. math:: \operatorname{tr} A \approx \frac1k \sum_{i=1}^k v_i^\top A\, v_i, \qquad v_i \in \{-1, 1\}^n

    Args:
        operator: The matrix.
        probes: Number of products, at least 2.
        generator: Of the signs.

    Returns:
        The estimate and its standard error.
    """
    if probes >= operator.size:
        return _exact(operator)
    _check(probes, 2, "hutchinson")
    at_once = max(1, ENTRIES // operator.size)
    values = []
    for start in range(0, probes, at_once):
        signs = random_signs(operator, min(at_once, probes - start), generator)
        values.append(_dots(signs, operator(signs)))
    return _mean(torch.cat(values))


def hutch_pp(operator: Operator, matvecs: int, generator: torch.Generator) -> tuple[float, float]:
    r"""Estimate the trace, exact in the range of a few products and by Hutchinson beyond (Meyer et al., 2021).

    .. math:: \operatorname{tr} A \approx \operatorname{tr} Q^\top A\, Q
       + \frac1k \sum_{i=1}^k v_i^\top P A P\, v_i, \qquad Q = \operatorname{orth}(A S),\ P = I - Q Q^\top

    A third of the products goes into the sketch ``A S``, a third into ``A Q``, the rest into the mean. Several tall
    matrices ``(size, matvecs / 3)`` are held in memory.

    Args:
        operator: The matrix.
        matvecs: Number of products, at least 4.
        generator: Of the sketch and the random signs.

    Returns:
        The estimate and its standard error.
    """
    if matvecs >= operator.size:
        return _exact(operator)
    _check(matvecs, 4, "hutch++")
    third = matvecs // 3
    basis = _orthonormal(operator(random_directions(operator, third, generator)))[0]
    inside = float(_dots(basis, operator(basis)).sum())
    signs = _wide(random_signs(operator, matvecs - 2 * third, generator))
    basis = basis.to(signs.dtype)
    beyond = (signs - basis @ (basis.T @ signs)).to(operator.dtype)
    value, stderr = _mean(_dots(beyond, operator(beyond)))
    return inside + value, stderr


def xtrace(operator: Operator, matvecs: int, generator: torch.Generator) -> tuple[float, float]:
    r"""Estimate the trace by leaving out each test vector in turn (Epperly, Tropp and Webber, 2024).

    .. math:: \operatorname{tr} A \approx \frac1k \sum_{i=1}^k \operatorname{tr} Q_i^\top A\, Q_i
       + \frac{n - k + 1}{\|u_i\|^2}\, u_i^\top A\, u_i, \qquad u_i = (I - Q_i Q_i^\top)\, \omega_i

    with :math:`Q_i` the orthonormal basis of the products with all test vectors but the i-th. Every test vector serves
    both as sketch and as probe. Where the matrix has fewer than ``k`` eigenvalues other than 0, the trace is exact.
    Four tall matrices ``(size, matvecs / 2)`` are held in memory.

    Args:
        operator: The matrix.
        matvecs: Number of products, at least 4; of an odd number one is not used.
        generator: Of the test vectors.

    Returns:
        The estimate and its standard error.
    """
    if matvecs >= operator.size:
        return _exact(operator)
    _check(matvecs, 4, "xtrace")
    tests = random_directions(operator, matvecs // 2, generator)
    images = operator(tests)
    scale = float(images.abs().max())
    if scale == 0:
        return 0.0, 0.0
    basis, triangle = _orthonormal(images / scale)
    spread = svdvals(triangle)
    if spread[-1] <= len(spread) * torch.finfo(torch.float64).eps * spread[0]:
        return float(_dots(basis, operator(basis)).sum()), 0.0
    estimates = _left_out(tests, images / scale, basis, operator(basis) / scale, triangle)
    value, stderr = _mean(estimates)
    return scale * value, scale * OPTIMISM * stderr


def _left_out(tests: Tensor, images: Tensor, basis: Tensor, products: Tensor, triangle: Tensor) -> Tensor:
    """Return one estimate per test vector, ``(k,)``, without a new basis for each.

    Leaving out the i-th image takes one direction ``s_i`` out of the basis, the i-th column of the inverse transpose of
    the triangle of the QR decomposition.
    """
    size, k = tests.shape
    wide = _wide(basis)
    inner, shadows, cross = (
        (wide.T @ _wide(products)).double(),
        (wide.T @ _wide(tests)).double(),
        (_wide(products).T @ _wide(tests)).double(),
    )
    gone = solve_triangular(triangle.T, torch.eye(k, dtype=torch.float64, device=triangle.device), upper=False)
    gone = gone / torch.linalg.vector_norm(gone, dim=0)
    inside = inner.trace() - _dots(gone, inner @ gone)
    shadows = shadows - gone * _dots(gone, shadows)
    quadratic = _dots(tests, images) - 2 * _dots(shadows, cross) + _dots(shadows, inner @ shadows)
    length = _dots(tests, tests) - _dots(shadows, shadows)
    return inside + (size - k + 1) * quadratic / length


def _exact(operator: Operator) -> tuple[float, float]:
    columns = torch.eye(operator.size, dtype=operator.dtype, device=operator.device)
    return float(operator(columns).diagonal().sum(dtype=torch.float64)), 0.0


def _check(products: int, least: int, who: str) -> None:
    if products < least:
        raise ValueError(f"{who} needs at least {least} products to know its own error, got {products}. Try 30.")


def _mean(values: Tensor) -> tuple[float, float]:
    """Return the mean and its standard error, widened for the few values it comes from."""
    return float(values.mean()), widening(len(values)) * float(values.std()) / sqrt(len(values))


def widening(draws: int) -> float:
    """Return the factor by which the standard error of a mean of few draws is widened.

    Example:
        >>> round(widening(4), 2), round(widening(1000), 2)
        (3.31, 1.01)
    """
    return student_quantile(TWO_SIGMA, draws - 1) / 2 * (1 + SKEW / draws)


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of matching columns, summed up in float64."""
    return (left * right).sum(dim=0, dtype=torch.float64)


def _wide(tall: Tensor) -> Tensor:
    """Return a tall matrix in float64 where memory allows."""
    return tall.double() if tall.numel() <= ENTRIES else tall


def _orthonormal(tall: Tensor) -> tuple[Tensor, Tensor]:
    """Return the QR decomposition, the basis in the type of ``tall``, the triangle in float64."""
    basis, triangle = qr(_wide(tall))
    return basis.to(tall.dtype), triangle.double()
