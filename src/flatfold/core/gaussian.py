r"""Gaussians fitted to features, and distances under them.

A covariance is decomposed once, ``pinv(S) = A A'``, and features are whitened by ``A``: every Mahalanobis distance is
then a plain one, and all classes come out of a single matrix product. The work is done in float64, a chunk of rows at a
time, because the small eigenvalues of a covariance decide, and float32 has no digits left for them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .chunks import row_chunks
from .precision import as_double


class Gaussian(NamedTuple):
    """Means that share one covariance, seen from ``centre`` through a whitening."""

    centre: Tensor
    """``(d,)``, the mean of everything: distances from here lose fewer digits than from the origin."""
    whitening: Tensor
    """``(d, r)``, with ``A A'`` the pseudo-inverse of the covariance, of rank r."""
    means: Tensor
    """``(k, r)``, the whitened means."""


def class_means(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes that occur, ``(k,)``, and their means ``(k, d)`` in float64.

    Example:
        >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([4, 4, 7]))
        (tensor([4, 7]), tensor([[2.],
                [5.]], dtype=torch.float64))
    """
    classes, rows, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = as_double(features.new_zeros(len(classes), features.shape[1]))
    for part in row_chunks(len(features)):
        sums.index_add_(0, rows[part].to(sums.device), as_double(features[part]))
    return classes, sums / counts.to(sums.device)[:, None]


def mean_row(features: Tensor) -> Tensor:
    """Return the mean of all rows, ``(d,)``, summed in float64 and in the type of the features."""
    return class_means(features, _one_class(features))[1][0].to(features)


def _one_class(features: Tensor) -> Tensor:
    return torch.zeros(len(features), dtype=torch.int64, device=features.device)


def fit_gaussian(features: Tensor, labels: Tensor | None = None) -> Gaussian:
    """Fit one mean per class, and one covariance around them; without labels all rows are one class.

    The covariance has the divisor n, and eigenvalues below ``d * eps`` times the largest count as 0, as in
    scikit-learn's ``EmpiricalCovariance`` and scipy's ``pinvh``.

    Args:
        features: ``(n, d)``.
        labels: ``(n,)`` or None. Classes that do not occur have no mean.
    """
    labels = _one_class(features) if labels is None else labels
    classes, means = class_means(features, labels)
    rows = torch.searchsorted(classes, labels.contiguous()).to(means.device)
    centre = rows.bincount().to(means) @ means / len(features)
    scatter = means.new_zeros(means.shape[1], means.shape[1])
    for part in row_chunks(len(features)):
        centred = as_double(features[part]) - means[rows[part]]
        scatter.addmm_(centred.mT, centred)
    whitening = whitening_of(scatter / len(features))
    return Gaussian(centre, whitening, (means - centre) @ whitening)


def whitening_of(covariance: Tensor) -> Tensor:
    """Return ``A`` of shape ``(d, r)`` with ``A A' = pinv(covariance)``."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > values.amax() * len(values) * torch.finfo(values.dtype).eps
    if not bool(kept.any()):
        raise ValueError(
            "a covariance needs features that vary within a class, but these are all the same. "
            "Give more than one sample a class, and check that the bank holds real features."
        )
    whitening: Tensor = vectors[:, kept] / values[kept].sqrt()
    return whitening


def squared_distances(h: Tensor, gaussian: Gaussian) -> Tensor:
    r"""Return the squared Mahalanobis distance of each row to each mean, ``(n, k)``.

    .. math:: d_c(h) = (h - \mu_c)^\top \Sigma^{-1} (h - \mu_c)

    Computed, and returned, in the type of the Gaussian.
    """
    white = (h.to(gaussian.centre.dtype) - gaussian.centre) @ gaussian.whitening
    squares = white.square().sum(dim=-1, keepdim=True) + gaussian.means.square().sum(dim=-1)
    return (squares - 2 * white @ gaussian.means.mT).clamp_min(0.0)
