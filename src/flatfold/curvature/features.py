"""Curvature of the energy in features and in logits: closed forms, exact, for single inputs and for data sets.

For a last layer ``z = W h + b`` with class probabilities ``p = softmax(z)`` the energy ``logsumexp(z)`` has the Hessian
``diag p - p p'`` in the logits and ``W' (diag p - p p') W`` in the features. Neither needs features or bias once the
logits are known, and neither needs labels: the cross-entropy of any label has the same Hessians.

All functions compute in float64 where digits could be lost and return the type of the logits. Eigenvalues are exact up
to the rounding of that type, relative to the largest: pass ``logits.double()`` to resolve very small ones.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..core.eigenvalues import MeanHessian, hessian_eigenvalues, largest_hessian_eigenvalue, logit_hessian_eigenvalues
from ..core.hessian import (
    as_double,
    centred_hessian_trace,
    class_distances,
    feature_hessian_trace,
    logit_hessian_trace,
    prefers_distances,
)
from ..core.validation import as_matrix, check_count
from ..io.progress import track
from .estimate import Spectrum


def feature_trace(weight: Tensor, logits: Tensor) -> Tensor:
    r"""Return the trace of the Hessian in the features, for each input.

    .. math:: \operatorname{tr} H = \tfrac12\, p^\top D\, p, \qquad D_{ij} = \|w_i - w_j\|^2

    Args:
        weight: Class weights of the last layer, ``(c, d)``.
        logits: ``(n, c)``, the bias included.

    Returns:
        ``(n,)``, never negative, in the dtype of ``logits``.

    Example:
        >>> feature_trace(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[3.0, 3.0]]))
        tensor([1.])
    """
    weight, logits = _check_pair(weight, logits)
    exact, probs = as_double(weight), as_double(logits).softmax(dim=-1)
    # The distances of all pairs of classes cost as much as the centred form of c inputs.
    if prefers_distances(*weight.shape) and len(logits) >= len(weight):
        return feature_hessian_trace(probs, class_distances(exact)).to(logits)
    return centred_hessian_trace(probs, exact).to(logits)


def feature_eigenvalues(weight: Tensor, logits: Tensor, k: int | None = None) -> Tensor:
    """Return the largest eigenvalues of the Hessian in the features, for each input.

    There are d eigenvalues. Only ``min(c - 1, d)`` can differ from zero, so at most ``min(c, d)`` are returned.

    Args:
        weight: Class weights of the last layer, ``(c, d)``.
        logits: ``(n, c)``, the bias included.
        k: Number of eigenvalues, all ``min(c, d)`` by default.

    Returns:
        ``(n, min(k, c, d))``, largest first, never negative, in the dtype of ``logits``.

    Example:
        >>> feature_eigenvalues(torch.eye(2, 3), torch.zeros(1, 2), k=1)
        tensor([[0.5000]])
    """
    weight, logits = _check_pair(weight, logits)
    _check_k(k)
    return hessian_eigenvalues(_probabilities(logits), weight, k)


def feature_lambda_max(weight: Tensor, logits: Tensor) -> Tensor:
    """Return the largest eigenvalue of the Hessian in the features, for each input.

    For heads with more than 256 classes and features it is iterative, to 1e-5 of the value or better.

    Args:
        weight: Class weights of the last layer, ``(c, d)``.
        logits: ``(n, c)``, the bias included.

    Returns:
        ``(n,)``, never negative, in the dtype of ``logits``.
    """
    weight, logits = _check_pair(weight, logits)
    return largest_hessian_eigenvalue(_probabilities(logits), weight)


def feature_spectrum(weight: Tensor, batches: Iterable[Tensor]) -> Spectrum:
    """Return all eigenvalues of the mean Hessian in the features over a data set, exactly.

    The trace of that mean is the mean of :func:`feature_trace`; its largest eigenvalue is not the mean of
    :func:`feature_lambda_max`, but at most that.

    Args:
        weight: Class weights of the last layer, ``(c, d)``.
        batches: Logits, ``(n, c)`` each; the result does not depend on how they are split.

    Returns:
        Nodes in ascending order; the eigenvalues that are zero for every data set are one node.
    """
    weight = as_matrix(weight, "weight")
    mean = _mean_hessian(batches, len(weight))
    return _spectrum(mean.eigenvalues(weight), mean.rows, len(weight), weight.shape[1])


def feature_shares(weight: Tensor, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    r"""Return each input's share of the largest eigenvalue and of the sum of squared eigenvalues of the mean Hessian.

    .. math:: v^\top H_i v \quad\text{and}\quad \operatorname{tr}(H H_i), \qquad H = \frac1n \sum_i H_i, \quad H v =
       \lambda_{\max} v

    Their means are :math:`\lambda_{\max}` and :math:`\sum_j \lambda_j^2`. To first order these statistics vary with the
    inputs like these means, the second one twice as much: their standard errors follow from the spread over the inputs.

    Args:
        weight: Class weights of the last layer, ``(c, d)``.
        batches: Logits, ``(n, c)`` each; they are held in memory.

    Returns:
        Two tensors ``(n,)`` in float64.
    """
    weight, kept = as_matrix(weight, "weight"), list(batches)
    values, sides = _mean_hessian(kept, len(weight)).eigenvectors(weight)
    shares = [
        torch.cat([feature_trace(side, as_double(logits).cpu()) for logits in kept])
        for side in (sides[:, :1], sides * values.sqrt())
    ]
    return shares[0], shares[1]


def logit_trace(logits: Tensor) -> Tensor:
    r"""Return the trace of the Hessian in the logits, for each input.

    .. math:: \operatorname{tr} (\operatorname{diag} p - p p^\top) = \sum_i p_i (1 - p_i)

    Args:
        logits: ``(n, c)``.

    Returns:
        ``(n,)``, never negative, in the dtype of ``logits``.

    Example:
        >>> logit_trace(torch.zeros(1, 2))
        tensor([0.5000])
    """
    logits = _check_logits(logits)
    return logit_hessian_trace(as_double(logits).softmax(dim=-1)).to(logits)


def logit_eigenvalues(logits: Tensor, k: int | None = None) -> Tensor:
    """Return the largest eigenvalues of the Hessian in the logits, for each input.

    Args:
        logits: ``(n, c)``.
        k: Number of eigenvalues, all c by default, of which the last is zero.

    Returns:
        ``(n, min(k, c))``, largest first, never negative, in the dtype of ``logits``.

    Example:
        >>> logit_eigenvalues(torch.zeros(1, 2))
        tensor([[0.5000, 0.0000]])
    """
    logits = _check_logits(logits)
    _check_k(k)
    return logit_hessian_eigenvalues(_probabilities(logits), k)


def logit_lambda_max(logits: Tensor) -> Tensor:
    """Return the largest eigenvalue of the Hessian in the logits ``(n, c)`` for each input, ``(n,)``."""
    return logit_eigenvalues(logits, 1)[:, 0]


def logit_spectrum(batches: Iterable[Tensor]) -> Spectrum:
    """Return all eigenvalues of the mean Hessian in the logits over a data set, exactly.

    Args:
        batches: Logits, ``(n, c)`` each; the result does not depend on how they are split.

    Returns:
        Nodes in ascending order, the first of them zero.
    """
    mean = _mean_hessian(batches, None)
    values = mean.eigenvalues()
    return _spectrum(values, mean.rows, len(values), len(values))


def _mean_hessian(batches: Iterable[Tensor], n_classes: int | None) -> MeanHessian:
    if isinstance(batches, Tensor):
        raise TypeError("batches must be an iterable of logits, got a single tensor. Pass [logits].")
    mean = None
    for number, batch in enumerate(track(batches, "class probabilities")):
        logits = _check_logits(batch, n_classes, f"logits of batch {number}")
        n_classes = logits.shape[1]
        mean = mean or MeanHessian(n_classes)
        mean.add(as_double(logits).softmax(dim=-1))
    if mean is None:
        raise ValueError("batches must contain at least one batch of logits, got none. Is the iterator exhausted?")
    return mean


def _spectrum(values: Tensor, rows: int, n_classes: int, size: int) -> Spectrum:
    """Return a spectrum of ``size`` eigenvalues: the given largest ones, and zeros."""
    largest = values[: min(n_classes - 1, size)].flip(0)
    zeros = size - len(largest)
    atom = largest.new_full((min(zeros, 1),), zeros)  # one node for all zeros, none without zeros
    nodes = torch.cat([torch.zeros_like(atom), largest])
    counts = torch.cat([atom, torch.ones_like(largest)])
    weights, ends = counts[None] / size, (float(nodes[0]), float(nodes[-1]))
    return Spectrum(nodes[None], weights, size, *ends, "exact", "hessian", "energy", matvecs=0, seed=None, rows=rows)


def _probabilities(logits: Tensor) -> Tensor:
    """Return the class probabilities in the type of the logits, to its full precision."""
    return as_double(logits).softmax(dim=-1).to(logits)


def _check_pair(weight: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    weight = as_matrix(weight, "weight")
    return weight, _check_logits(logits, len(weight))


def _check_logits(logits: Tensor, n_classes: int | None = None, name: str = "logits") -> Tensor:
    logits = as_matrix(logits, name)
    if logits.shape[1] < 2:
        raise ValueError(
            f"{name} must have at least two columns, one per class, got one. "
            "For a binary model with one output use the two logits (0, z)."
        )
    if n_classes is not None and logits.shape[1] != n_classes:
        raise ValueError(
            f"{name} have {logits.shape[1]} columns but there are {n_classes} classes. "
            "Logits are (n, c) and weights (c, d): was one of them transposed, or are these features?"
        )
    return logits


def _check_k(k: int | None) -> None:
    if k is not None:
        check_count("k", k)
