"""Transformations of features applied before a score: ASH-B, SCALE, caps, partial normalisation."""

from numbers import Real

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodRefusedError
from .hessian import widen

FEW_CLASSES = 32  # up to this number the separate steps of a softmax are faster
SMALLEST_DIVISOR = 1e-7  # lower bound of norms that scores are divided by, as in the authors' AutoFold


def row_norms(h: Tensor) -> Tensor:
    """Return ``|h|`` per row as ``(n, 1)``, clamped above zero so that any power of it is finite."""
    norms: Tensor = torch.linalg.vector_norm(h, dim=-1, keepdim=True)
    return norms.clamp_min(torch.finfo(h.dtype).tiny)


def partially_normalised(h: Tensor, alpha: float | Tensor) -> Tensor:
    r"""Return features ``(n, d)`` divided by a power of their norm; a row of zeros stays a row of zeros.

    .. math:: \tilde h = h / \|h\|^\alpha
    """
    return h / row_norms(h) ** alpha


def partially_normalised_probs(
    h: Tensor, weight: Tensor, bias: Tensor | None, alpha: float | Tensor, logits: Tensor | None = None
) -> Tensor:
    r"""Return the class probabilities ``(n, c)`` of partially normalised features ``(n, d)``.

    .. math:: p = \operatorname{softmax}(W h / \|h\|^\alpha + b)

    Unless the head is very large, logits stay in float64 until the probabilities are computed (:func:`widen`).
    Passing ``logits``, ``W h + b``, saves the matrix product if they have that type.
    """
    projected, norms = project(h, weight, bias, logits)
    return softmax(rescaled_logits(projected, norms**alpha, bias)).to(h.dtype)


def softmax(logits: Tensor) -> Tensor:
    """Return the class probabilities of logits ``(n, c)``; for few classes twice as fast as torch."""
    if torch.compiler.is_compiling() or logits.requires_grad or not 1 < logits.shape[-1] <= FEW_CLASSES:
        return logits.softmax(dim=-1)
    probs = (logits - logits.amax(dim=-1, keepdim=True)).exp_()
    return probs.div_(probs.sum(dim=-1, keepdim=True))


def project(h: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return ``W h`` as ``(n, c)`` and ``|h|`` as ``(n, 1)``, from which probabilities follow at any exponent.

    Passing ``logits``, ``W h + b``, saves the matrix product if they have the type of the result.
    """
    wide_weight, wide_h = widen(weight, h)
    if logits is None or logits.dtype != wide_h.dtype:
        projected = wide_h @ wide_weight.mT
    else:
        projected = logits if bias is None else logits - bias
    return projected, row_norms(wide_h)


def rescaled_logits(projected: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``projected / scale + bias`` for bias-free logits ``(n, c)`` and a scale per row ``(n, 1)``."""
    logits = projected / scale
    return logits if bias is None else logits + bias


def split_norm(h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm ``(n, 1)`` and the direction ``(n, d)`` of each row, without overflow of squares."""
    largest = h.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(h.dtype).tiny)
    scaled = h / largest
    norms = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return largest * norms.clamp_min(1.0), scaled / norms.clamp_min(1.0)


def cap_norms(h: Tensor, longest: float | Tensor) -> Tensor:
    r"""Return features ``(n, d)`` scaled down to a given norm; shorter rows are returned bit for bit.

    .. math:: h' = h \cdot \min(1, c / \|h\|)
    """
    norms, units = split_norm(h)
    return torch.where(norms > longest, units * longest, h)


def percentile_threshold(features: Tensor, percentile: float) -> float:
    """Return a percentile of all entries of ``features``, linearly interpolated: ReAct's threshold."""
    check_percentile(percentile)
    return percentiles(features, (percentile,))[0]


def percentiles(features: Tensor, shares: tuple[float, ...]) -> list[float]:
    """Return percentiles of all entries of ``features``, linearly interpolated."""
    # numpy, because torch.quantile rejects more than 16 million entries
    return [float(value) for value in np.percentile(features.detach().cpu().numpy(), shares)]


def column_percentiles(features: Tensor, percentile: float) -> Tensor:
    """Return a percentile of each column of ``features`` as ``(d,)``, linearly interpolated."""
    check_percentile(percentile)
    return torch.from_numpy(np.percentile(features.detach().cpu().numpy(), percentile, axis=0))


def ash_b(h: Tensor, percentile: float) -> Tensor:
    r"""Return features binarised by activation shaping (ASH-B, Djurisic et al. 2023).

    Keep the k largest entries of a row and set each to S / k, the others to 0:

    .. math:: S = \sum_j h_j, \qquad k = d - \operatorname{round}(d \cdot \text{percentile} / 100)

    Rounding is to even and ties at the k-th entry are broken by position, as in OpenOOD.
    """
    k = kept_entries(h.shape[-1], percentile)
    kept = h.topk(k, dim=-1).indices
    level = h.sum(dim=-1, keepdim=True) / k
    return torch.zeros_like(h).scatter(-1, kept, level.expand(-1, k))


def scale(h: Tensor, percentile: float) -> Tensor:
    r"""Return features scaled by how much of their sum the largest entries hold (SCALE, Xu et al. 2024).

    .. math:: h' = h\, e^{r}, \qquad r = \sum_j h_j \Big/ \sum_{j \in \text{top } k} h_j, \qquad
        k = d - \operatorname{round}(d \cdot \text{percentile} / 100)
    """
    return h * scale_ratio(h, largest_sum(h, kept_entries(h.shape[-1], percentile))).exp()


def scale_ratio(h: Tensor, largest: Tensor) -> Tensor:
    """Return SCALE's r ``(n, 1)`` of features ``(n, d)``, given the sum of the largest entries of each row."""
    return total_over(h, largest).clamp_max(60.0)  # flat features make r large, and e^88 overflows float32


def total_over(h: Tensor, largest: Tensor) -> Tensor:
    """Return the sum of all entries over that of the largest ``(n, 1)``; 0 for a row of zeros."""
    return h.sum(dim=-1, keepdim=True) / largest.clamp_min(torch.finfo(h.dtype).tiny)


def largest_sum(h: Tensor, k: int) -> Tensor:
    """Return the sum of the k largest entries of each row, ``(n, 1)``."""
    return h.topk(k, dim=-1).values.sum(dim=-1, keepdim=True)


def kept_entries(width: int, percentile: float) -> int:
    """Return the number of ``width`` entries above a percentile, rounded to even as in OpenOOD."""
    check_percentile(percentile)
    k = width - round(width * percentile / 100)
    if k < 1:
        raise MethodRefusedError(
            f"percentile {percentile:g} leaves none of {width} features. Use a smaller percentile."
        )
    return k


def check_percentile(percentile: float, name: str = "percentile") -> None:
    """Raise unless ``percentile`` is between 0 and 100; a fraction such as 0.9 is rejected."""
    if not isinstance(percentile, Real) or not 0 <= percentile < 100 or 0 < percentile < 1:
        raise MethodRefusedError(
            f"{name} must be 0, or at least 1 and below 100, got {percentile!r}. Use percent: 90 is customary."
        )


def check_alpha(alpha: float) -> None:
    """Raise unless ``alpha`` is between 0 and 1."""
    if not isinstance(alpha, Real) or not 0 <= alpha <= 1:
        raise MethodRefusedError(
            f"alpha must be a number between 0 (no normalisation) and 1 (unit sphere), got {alpha!r}."
        )
