r"""Signs that an input is out-of-distribution: direction, length, margin and curvature of its features, and doubt.

With features h, their norm r, their direction u = h / r, logits z = W h + b and the predicted class k:

.. math::
    \text{direction} &= \min_j\, (u - m_j)^\top S^{-1} (u - m_j) \\
    \text{length} &= (\log r - l_k)^2 \\
    \text{margin} &= -\frac{1}{\|h - \bar h\|} \sum_{j \neq k} \frac{z_k - z_j}{\|w_k - w_j\|} \\
    \text{curvature} &= \log \tfrac12 p^\top D p, \qquad
        p = \operatorname{softmax}\big(W h \min(1, c / r) / T + b\big) \\
    \text{doubt} &= \log (1 - \max_j \operatorname{softmax}(z)_j)

Each is higher for more out-of-distribution inputs, and each misses cases that another one detects: margin and curvature
are low for long features, direction ignores the decision, length detects only unusual norms. Doubt, which ranks inputs
as MSP does, needs no data: it replaces direction and length where classes have few samples.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..errors import MethodRefusedError, warn
from .bank import FeatureBank, Head
from .class_statistics import (
    Gaussian,
    LazyRows,
    class_moments,
    distances_to,
    likeliest_temperature,
    logits_by_rows,
    shrunk_class_means,
)
from .hessian import as_double, distances_from, entry_chunks, log_hessian_trace, widen
from .shaping import SMALLEST_DIVISOR, cap_norms, percentile_threshold, split_norm

CURVATURE = "curvature"
BLOCK = 512  # columns of a whitening multiplied at once
SIGNS = ("direction", "length", "margin", CURVATURE, "doubt")


class Signs(NamedTuple):
    """Parameters of the signs, learnt from ID features and the head."""

    centre: Tensor
    """``(d,)``, mean direction; with ``whitening`` and ``means`` the :class:`Gaussian` of directions."""
    whitening: Tensor
    """``(d, d)``."""
    means: Tensor
    """``(c, d)``, the whitened mean direction of each class."""
    squares: Tensor
    """``(c,)``, their squared norms."""
    lengths: Tensor
    """``(c,)``, the usual log norm of features predicted as each class."""
    mean: Tensor
    """``(d,)``, mean of the features."""
    longest: Tensor
    """``()``, median norm: the curvature is computed at features capped to this norm."""
    temperature: Tensor
    """``()``, the likeliest temperature at such features."""


def labels_or_predictions(bank: FeatureBank, head: Head) -> Tensor:
    """Return the labels of a bank; if it has none, warn and return the predicted classes."""
    if bank.labels is not None:
        return bank.labels
    warn("this data has no labels; the predicted classes are used instead.")
    return head.predict(bank.features)


def fit_signs(features: Tensor, labels: Tensor, head: Head, rows: Tensor | None = None) -> Signs:
    """Fit all signs to labelled ID features ``(n, d)``, or some ``rows`` of them, in float64, in chunks."""
    weight = as_double(head.weight)
    labels = (labels if rows is None else labels[rows]).to(weight.device)
    bias = None if head.bias is None else as_double(head.bias)
    wide_head, norms, predicted = Head(weight, bias), weight.new_empty(len(labels), 1), torch.empty_like(labels)
    h = LazyRows(features, as_double, rows)
    for part in entry_chunks(len(h), max(weight.shape)):
        norms[part], predicted[part] = split_norm(h[part])[0], wide_head.predict(h[part])
    longest = max(percentile_threshold(norms, 50), SMALLEST_DIVISOR)
    capped = logits_by_rows(features, weight, of=lambda some: cap_norms(as_double(some), longest), rows=rows)
    temperature = likeliest_temperature(capped, labels, bias)
    directions = fit_directions(features, labels, weight, rows)
    return Signs(
        *directions,
        squares=directions.means.square().sum(dim=-1),
        lengths=fit_lengths(norms, predicted, len(weight)),
        mean=class_moments(h, scatter=False).means[0],
        longest=norms.new_tensor(longest),
        temperature=norms.new_tensor(1.0 if temperature is None else temperature),
    )


def measure_signs(
    h: Tensor, signs: Signs, weight: Tensor, bias: Tensor | None, distances: Tensor | None, logits: Tensor | None = None
) -> Tensor:
    """Return the signs of each row of features as ``(n, 5)``, given ``class_distances(weight)`` or None.

    Logits are computed in float64 unless the head is large (:func:`widen`); passing ``logits`` of that type saves the
    product. Directions are computed in the type of the whitening.
    """
    wide_weight, wide = widen(weight, h)
    if logits is None or logits.dtype != wide.dtype:
        projected = wide @ wide_weight.mT
        logits = projected if bias is None else projected + bias
    else:
        projected = logits if bias is None else logits - bias
    norms, units = split_norm(wide)
    predicted = logits.argmax(dim=-1)
    columns = (
        direction(units, signs.centre, signs.whitening, signs.means, signs.squares),
        length(norms, predicted, signs.lengths),
        margin(wide - signs.mean, logits, weight, distances),
        log_hessian_trace(tempered_logits(projected, norms, signs, bias), distances, weight),
        doubt(logits, predicted),
    )
    return torch.stack([column.to(wide.dtype) for column in columns], dim=-1)


def tempered_logits(projected: Tensor, norms: Tensor, signs: Signs, bias: Tensor | None) -> Tensor:
    """Return the logits at features capped to the usual norm and at the likeliest temperature, given ``W h``."""
    tempered = projected * ((signs.longest / norms).clamp_max(1.0) / signs.temperature)
    return tempered if bias is None else tempered + bias


def direction(units: Tensor, centre: Tensor, whitening: Tensor, means: Tensor, squares: Tensor) -> Tensor:
    """Return the squared Mahalanobis distance of directions ``(n, d)`` to the nearest class, ``(n,)``."""
    centred = units.to(centre.dtype) - centre
    # The whitening is triangular: its zeros need not be read.
    ends = range(BLOCK, len(whitening) + BLOCK, BLOCK)
    white = torch.cat([centred[:, :end] @ whitening[:end, end - BLOCK : end] for end in ends], dim=-1)
    return distances_to(white, means, squares).amin(dim=-1)


def fit_directions(features: Tensor, labels: Tensor, weight: Tensor, rows: Tensor | None = None) -> Gaussian:
    r"""Fit the Gaussian of directions: empirical-Bayes means, Ledoit-Wolf covariance.

    Class means are shrunk (:func:`shrunk_class_means`) towards the directions of the head,
    :math:`a_k = g + \kappa (w_k - \bar w)`, with g the mean of all directions and :math:`\kappa` the least-squares
    slope; the mean of a class without samples is its anchor. The covariance is that of residuals from leave-one-out
    means: :math:`(u - m_y) \sqrt{(n_y + \nu) / (n_y - 1 + \nu)}`. With ``rows`` only those are used, to which the
    labels belong.
    """
    u = LazyRows(features, lambda some: split_norm(as_double(some))[1], rows)
    classes, counts, plain, _ = moments = class_moments(u, labels, scatter=False)
    centre, offsets = moments.mean, weight - weight.mean(dim=0)
    seen = offsets[classes] * counts[:, None]
    slope = (seen * (plain - centre)).sum() / (seen * offsets[classes]).sum().clamp_min(torch.finfo(plain.dtype).tiny)
    means, worth = shrunk_class_means(u, labels, centre + slope * offsets)
    share = (worth / (worth - 1)).sqrt()[:, None]
    parts = entry_chunks(len(u), weight.shape[1])
    residuals = ((u[part] - means[labels[part]]) * share[labels[part]] for part in parts)
    whitening = whitening_of_shrunk(ledoit_wolf(residuals))
    return Gaussian(centre, whitening, (means - centre) @ whitening)


def ledoit_wolf(chunks: Iterable[Tensor]) -> Tensor:
    r"""Return the covariance of chunks of centred rows, shrunk towards its mean eigenvalue (Ledoit and Wolf, 2004).

    .. math:: (1 - \rho)\, S + \rho\, \tfrac{\operatorname{tr} S}{d} I, \qquad
        \rho = \min\Big(1, \frac{\frac1n \sum_i \|x_i\|^4 - \|S\|^2}{n\,(\|S\|^2 - (\operatorname{tr} S)^2 / d)}\Big)
    """
    n, fourth, scatter = 0, 0.0, torch.zeros(())
    for centred in chunks:
        if n == 0:
            scatter = centred.new_zeros(centred.shape[1], centred.shape[1])
        n += len(centred)
        scatter.addmm_(centred.mT, centred)
        fourth += float(centred.square().sum(dim=-1).square().sum())
    covariance, d = scatter / n, len(scatter)
    level, square = covariance.diagonal().mean(), covariance.square().sum()
    noise = (fourth / n - square) / n
    excess = square - d * level.square()
    shrinkage = (noise / excess).clamp(0.0, 1.0) if excess > 0 else torch.zeros_like(level)
    return (1 - shrinkage) * covariance + shrinkage * level * torch.eye(d).to(covariance)


def whitening_of_shrunk(covariance: Tensor) -> Tensor:
    """Return ``A`` with ``A A'`` the inverse of a covariance of full rank, by its Cholesky factor."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        raise MethodRefusedError(
            "directions of features must vary within a class, but these do not. "
            "Pass more than one sample per class, and check the features of the bank."
        )
    identity = torch.eye(len(factor)).to(factor)
    whitening: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False).mT.contiguous()
    return whitening


def length(norms: Tensor, predicted: Tensor, lengths: Tensor) -> Tensor:
    """Return the squared deviation of log norms ``(n, 1)`` from the usual one of the predicted class, ``(n,)``."""
    return (norms.log().squeeze(-1) - lengths[predicted]).square()


def fit_lengths(norms: Tensor, predicted: Tensor, n_classes: int) -> Tensor:
    """Return the mean log norm of features predicted as each class, ``(c,)``, shrunk towards that of all features."""
    log_norms = norms.log()
    anchors = log_norms.mean(dim=0).expand(n_classes, 1)
    return shrunk_class_means(log_norms, predicted, anchors)[0].squeeze(-1)


def margin(offset: Tensor, logits: Tensor, weight: Tensor, distances: Tensor | None) -> Tensor:
    """Return minus the sum of distances to the decision boundaries over the norm of ``offset`` (fDBD), ``(n,)``.

    The offset ``(n, d)`` is that of the features from their mean.
    """
    best, predicted = logits.max(dim=-1, keepdim=True)
    gaps = distances_from(predicted.squeeze(-1), weight, distances).sqrt()
    boundaries = ((best - logits) / gaps.where(gaps > 0, 1.0)).sum(dim=-1)  # no boundary between a class and itself
    return -boundaries / split_norm(offset)[0].squeeze(-1).clamp_min(SMALLEST_DIVISOR)


def doubt(logits: Tensor, predicted: Tensor) -> Tensor:
    """Return the log of the network's own probability that its prediction is wrong, ``(n,)``.

    It is computed from the other logits, so that nothing cancels where the network is confident.
    """
    best = predicted.unsqueeze(-1)
    others = logits.scatter(-1, best, -torch.inf).logsumexp(dim=-1)
    return logsigmoid(others - logits.gather(-1, best).squeeze(-1))
