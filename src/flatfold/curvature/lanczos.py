"""The Lanczos process: the largest eigenvalue of a symmetric matrix, and quadrature rules for its spectrum."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .operators import Operator, random_directions

ROUNDING = 8  # units in the last place; two ways to compute a product of a network differ by up to about 6


class Tridiagonal(NamedTuple):
    r"""The state of the Lanczos process after some steps, for each of its start vectors.

    .. math:: A\, Q_m = Q_m T_m + \beta_m\, q_{m+1} e_m^\top

    Attributes:
        alpha: Diagonals of :math:`T_m`, ``(starts, m)`` in float64.
        beta: The off-diagonals, followed by :math:`\beta_m`, ``(starts, m)`` in float64; 0 after a process ended.
        scale: Largest length of a product with a unit vector so far, ``(starts,)``: a lower bound of the norm.
        basis: :math:`Q_m` and the next vector, ``(starts, size)`` each.
    """

    alpha: Tensor
    beta: Tensor
    scale: Tensor
    basis: list[Tensor]


class Largest(NamedTuple):
    """Approximation of the largest eigenvalue by the Lanczos process."""

    value: float  # the largest Ritz value, at most the largest eigenvalue, up to rounding
    bound: float  # length of its residual plus the rounding of the products: an eigenvalue is within this distance
    products: int
    converged: bool
    vector: Tensor  # its Ritz vector, (size,)


def lanczos(operator: Operator, starts: Tensor, steps: int) -> Iterator[Tridiagonal]:
    """Yield the state after each of ``steps`` steps, for all start vectors ``(size, starts)`` of length 1 together.

    Every new vector is orthogonalised twice against all previous ones, so that no eigenvalue appears twice. The process
    of a start vector ends early if the vectors span an invariant subspace: the eigenvalues of the tridiagonal matrix
    are then exact eigenvalues of the operator. Products are scaled to length 1 before any subtraction, so the scale of
    the matrix does not matter. All vectors are stored, ``(starts, size)`` per step in the operator's type.
    """
    basis = [starts.T.contiguous()]
    scale = torch.zeros(starts.shape[1], dtype=torch.float64, device=operator.device)
    alphas, betas = [], []
    for _ in range(steps):
        product, length = _unit(operator(basis[-1].T).T)
        scale = torch.maximum(scale, length)
        alphas.append(length * _dots(basis[-1], product))
        rest, share = _unit(_orthogonal(product, basis))
        beta = length * share
        # For a vector in the span of the others, the rest is rounding.
        goes_on = beta > rounding(operator) * scale
        betas.append(beta * goes_on)
        basis.append(rest * goes_on[:, None])
        yield Tridiagonal(torch.stack(alphas, dim=1), torch.stack(betas, dim=1), scale, basis)
        if not goes_on.any():
            return


def largest(operator: Operator, rtol: float, max_matvecs: int, generator: torch.Generator) -> Largest:
    r"""Compute the algebraically largest eigenvalue, however negative others are.

    .. math:: \min_\lambda |\lambda - \theta| \le \|A y - \theta y\| = \beta_m |s_m|

    for the largest eigenvalue :math:`\theta` of :math:`T_m` with eigenvector ``s`` and Ritz vector :math:`y = Q_m s`.
    It stops when this residual is at most ``rtol`` of the value and the value has not changed by more than that in the
    last step; or when the process ends, since the value is then exact.
    """
    before, previous, converged, noise = operator.products, float("-inf"), False, rounding(operator)
    for state in lanczos(operator, random_directions(operator, 1, generator), max_matvecs):
        values, vectors = ritz(state, 0)
        value, residual = float(values[-1]), float(state.beta[0, -1] * vectors[-1, -1].abs())
        tolerance = max(rtol * abs(value), noise * float(state.scale[0]))
        # A small residual alone may be accidental, if the component of an eigenvector in the start vector is tiny.
        settled = residual <= tolerance and value - previous <= tolerance
        converged = settled or float(state.beta[0, -1]) == 0
        if converged:
            break
        previous = value
    vector = sum(float(part) * q[0] for part, q in zip(vectors[:, -1], state.basis, strict=False))  # without the next q
    bound = residual + noise * float(values.abs().max())
    return Largest(value, bound, operator.products - before, converged, torch.as_tensor(vector))


def ritz(state: Tridiagonal, start: int) -> tuple[Tensor, Tensor]:
    """Return ascending eigenvalues ``(m,)`` and eigenvectors ``(m, m)`` of the tridiagonal matrix of a start vector."""
    ended = (state.beta[start] == 0).nonzero()
    m = int(ended[0]) + 1 if len(ended) else state.alpha.shape[1]
    off_diagonal = state.beta[start, : m - 1]
    matrix = torch.diag(state.alpha[start, :m]) + torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    values, vectors = torch.linalg.eigh(matrix.cpu())
    return values, vectors


def rounding(operator: Operator) -> float:
    """Return the rounding error of a product, relative to its length."""
    return ROUNDING * torch.finfo(operator.dtype).eps


def _orthogonal(vectors: Tensor, basis: list[Tensor]) -> Tensor:
    """Orthogonalise ``vectors`` against the basis; the second pass removes rounding of the first."""
    for _ in range(2):
        for direction in basis:
            vectors = vectors - direction * _dots(direction, vectors)[:, None].to(vectors.dtype)
    return vectors


def _unit(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows scaled to length 1, ``(starts, size)``, with zero rows unchanged, and their lengths in float64."""
    # Divide by the largest entry first: squares of entries below 1e-23 underflow in float32.
    peak = vectors.abs().amax(dim=1).double()
    vectors = (vectors / peak.where(peak > 0, 1.0)[:, None]).to(vectors.dtype)
    length = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
    return (vectors / length.clamp(min=1.0)[:, None]).to(vectors.dtype), peak * length


def _dots(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(dim=1, dtype=torch.float64)


def lanczos_quadrature(
    operator: Operator, steps: int, probes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    r"""Estimate the distribution of the eigenvalues, once per random start vector.

    .. math:: \frac1n \sum_{i=1}^n f(\lambda_i) = \operatorname{E}\, q^\top f(A)\, q
       \approx \frac1k \sum_{j=1}^k \sum_{l=1}^m s_{jl1}^2\, f(\theta_{jl})

    with nodes :math:`\theta_{jl}`, the eigenvalues of the j-th tridiagonal matrix, and weights, the squared first
    components of its eigenvectors: both ``(probes, m)``, in float64 on the CPU. All rules advance together, one product
    with ``(size, probes)`` per step, and ``steps + 1`` such matrices are held in memory. A rule with fewer nodes than
    others is padded with its last node and weight 0.
    """
    for state in lanczos(operator, random_directions(operator, probes, generator), steps):
        final = state
    rules = [_rule(*ritz(final, probe)) for probe in range(probes)]
    longest = max(len(nodes) for nodes, _ in rules)
    nodes = [torch.cat([nodes, nodes[-1:].expand(longest - len(nodes))]) for nodes, _ in rules]
    weights = [torch.cat([weights, weights.new_zeros(longest - len(weights))]) for _, weights in rules]
    return torch.stack(nodes), torch.stack(weights)


def _rule(values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    weights = vectors[0].square()
    return values, weights / weights.sum()
