"""Transformations of features applied before a score: ASH-B, SCALE, caps, partial normalisation."""

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodRefusedError
from .hessian import entry_chunks, widen

FEW_CLASSES = 32  # up to this number the separate steps of a softmax are faster
ENTRIES_SORTED = 2**24  # up to this number percentiles are computed from a copy
SMALLEST_NORM = torch.finfo(torch.float32).tiny  # of any dtype: that of float64 would be 0 in an ONNX graph
SMALLEST_DIVISOR = 1e-7  # lower bound of norms that scores are divided by, as in the authors' AutoFold


def row_norms(h: Tensor) -> Tensor:
    """Return ``|h|`` per row as ``(n, 1)``, clamped above zero so that any power of it is finite."""
    norms: Tensor = torch.linalg.vector_norm(h, dim=-1, keepdim=True)
    return norms.clamp_min(SMALLEST_NORM)


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
    largest = h.abs().amax(dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)
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
    if features.numel() <= ENTRIES_SORTED or features.dtype != torch.float32:
        return [float(value) for value in np.percentile(features.detach().cpu().numpy(), shares)]
    places = [(features.numel() - 1) * (float(share) / 100) for share in shares]
    values = order_statistics(features, [rank for place in places for rank in (int(place), int(place) + 1)])
    pairs = zip(values[::2], values[1::2], places, strict=True)
    return [float(np.quantile(np.array(pair, np.float32), [place - int(place)])[0]) for *pair, place in pairs]


def order_statistics(features: Tensor, ranks: Sequence[int]) -> list[float]:
    """Return the entries of float32 features that would be at some ranks, from 0, if all entries were sorted.

    Entries are counted by the upper half of their bits, then those that share it with a wanted one by the lower half:
    two passes over chunks, and no copy of the features.
    """
    ranks = [min(rank, features.numel() - 1) for rank in ranks]
    upper = np.zeros(2**16, dtype=np.int64)
    for keys in _sortable(features):
        upper += np.bincount(keys >> 16, minlength=2**16)
    below = upper.cumsum()
    halves = [int(np.searchsorted(below, rank, side="right")) for rank in ranks]
    lower = {half: np.zeros(2**16, dtype=np.int64) for half in halves}
    for keys in _sortable(features):
        for half, counts in lower.items():
            counts += np.bincount(keys[keys >> 16 == half] & 0xFFFF, minlength=2**16)
    found = []
    for rank, half in zip(ranks, halves, strict=True):
        inside = rank - (below[half] - upper[half])
        key = np.uint32((half << 16) | int(np.searchsorted(lower[half].cumsum(), inside, side="right")))
        bits = key ^ np.uint32(0x80000000) if key >> 31 else ~key
        found.append(float(bits.view(np.float32)))
    return found


def _sortable(features: Tensor) -> Iterator[np.ndarray[Any, np.dtype[np.uint32]]]:
    """Yield the bits of float32 entries, a chunk at a time, as integers in the order of the entries."""
    for part in entry_chunks(len(features), features[0].numel()):
        bits = features[part].detach().cpu().contiguous().numpy().reshape(-1).view(np.uint32)
        # Positive numbers move above the negative ones, whose order is reversed.
        yield bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))


def column_percentiles(features: Tensor, percentile: float) -> Tensor:
    """Return a percentile of each column of ``features`` as ``(d,)``, linearly interpolated."""
    check_percentile(percentile)
    n, width = features.shape
    blocks = (features[:, columns].detach().cpu().numpy() for columns in entry_chunks(width, n))
    return torch.from_numpy(np.concatenate([np.percentile(block, percentile, axis=0) for block in blocks]))


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
    return h.sum(dim=-1, keepdim=True) / largest.clamp_min(SMALLEST_NORM)


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
