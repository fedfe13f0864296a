"""Stochastic Lanczos quadrature: the spectrum of a matrix from a few products with random vectors."""

import torch
from torch import Tensor

from ..core.check import check_count
from .lanczos import lanczos, ritz
from .operator import Operator, random_directions


def lanczos_quadrature(
    operator: Operator, steps: int, probes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    r"""Estimate the distribution of the eigenvalues, once per random start vector.

    .. math:: \frac1n \sum_{i=1}^n f(\lambda_i) = \operatorname{E}\, q^\top f(A)\, q
       \approx \frac1k \sum_{j=1}^k \sum_{l=1}^m s_{jl1}^2\, f(\theta_{jl})

    with nodes :math:`\theta_{jl}`, the eigenvalues of the j-th tridiagonal matrix, and weights, the squared first
    components of its eigenvectors. A rule is exact for polynomials up to degree ``2 m - 1`` in what its start vector
    sees; what start vectors see differs, so more of them matter more than more steps. All rules advance together, one
    product with ``(size, probes)`` a step, and ``steps + 1`` such matrices are held in memory.

    Args:
        operator: The matrix.
        steps: Nodes of a rule, fewer where the matrix has fewer distinct eigenvalues.
        probes: Number of rules.
        generator: Of the start vectors.

    Returns:
        Nodes, smallest first, and weights, both ``(probes, m)`` in float64 on the CPU. A row of weights sums to 1. A
        rule that needs fewer nodes than others repeats its last one with weight 0.
    """
    check_count("steps", steps)
    check_count("probes", probes)
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
