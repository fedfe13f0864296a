"""Symmetric matrices with known eigenvalues, as operators, and tables of refused input."""

import torch

from flatfold.curvature.operators import Operator
from tests.refusals import assert_refused


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rotated(eigenvalues, seed=0):
    """Return a symmetric matrix in float64 with these eigenvalues and random eigenvectors."""
    eigenvalues = torch.as_tensor(eigenvalues, dtype=torch.float64)
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, generator=seeded(seed), dtype=torch.float64))[0]
    matrix = (basis * eigenvalues) @ basis.T
    return (matrix + matrix.T) / 2


def dense(matrix, dtype=torch.float64):
    matrix = matrix.to(dtype)
    return operator(lambda vectors: matrix @ vectors, len(matrix), dtype)


def operator(apply, size, dtype=torch.float64):
    return Operator(apply, size, dtype, torch.device("cpu"))


def check_refused(call, cases):
    """Check that ``call`` refuses each (input, error type, keyword)."""
    for case, error, keyword in cases:
        assert_refused(error, keyword, call, case)
