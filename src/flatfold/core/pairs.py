r"""The pairs of classes that contribute most to the curvature of an input.

The trace of the feature Hessian is half of ``p' D p``, and so exactly a sum over pairs of classes:

.. math:: \operatorname{tr} H = \sum_{i < j} p_i\, p_j\, \|w_i - w_j\|^2

A pair contributes when both classes are likely and their weights are far apart. The largest terms are found without
computing all of them. For any centre m, with :math:`r_i = \|w_i - m\|`, the triangle inequality bounds all terms of a
class j:

.. math:: p_i\, p_j\, \|w_i - w_j\|^2 \le \big( \sqrt{p_i p_j}\, (r_i + r_j) \big)^2
    \le p_j \big( \max_i \sqrt{p_i}\, r_i + \max_i \sqrt{p_i}\; r_j \big)^2

Classes are visited in the order of that bound. Once the k-th largest term found so far reaches the bound of the next
class, the remaining classes cannot contribute.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .hessian import as_double, centred_hessian_trace, feature_hessian_diagonal
from .validation import check_count

FIRST_CLASSES = 16  # classes visited before the bound is first checked; the number then doubles
TERMS_AT_ONCE = 2**22  # terms in memory at once, 32 MB: 20,000 similar classes are visited 200 at a time


class Pairs(NamedTuple):
    """The pairs of classes that contribute most to the trace of each input, largest first."""

    first: Tensor
    """``(n, k)``, the likelier class of each pair; the one with the smaller index if both are equally likely."""
    second: Tensor
    """``(n, k)``, the other class."""
    share: Tensor
    """``(n, k)``, the pair's share of the trace: between 0 and 1, in descending order."""


@torch.no_grad()
def largest_pairs(probs: Tensor, weight: Tensor, k: int, kept: Tensor | None = None) -> Pairs:
    r"""Return the k pairs of classes with the largest terms in each row's trace, and their shares of it.

    .. math:: \text{share}_{ij} = p_i\, p_j\, \|w_i - w_j\|^2 / \operatorname{tr} H

    The result is exact, and no matrix over all pairs of classes is built. ``kept``, ``(n, d)`` bool, selects dimensions
    of the weights. A row so confident that its trace is 0 has shares of 0.
    """
    check_count("the number of pairs", k)
    every = len(weight) * (len(weight) - 1) // 2
    k = min(k, every)
    p, w = as_double(probs), as_double(weight)  # a product of two small probabilities may underflow in float32
    p = p / p.sum(dim=-1, keepdim=True)  # probs are rounded: without this, shares would add up to 1 only roughly
    masks = None if kept is None else kept.to(p.device)
    reach = _bounds(p, w, masks)
    terms, first, second = p.new_empty(len(p), k), reach.new_empty(len(p), k).long(), reach.new_empty(len(p), k).long()
    for n in range(len(p)):
        terms[n], first[n], second[n] = _largest_in_row(p[n], w, reach[n], k, None if masks is None else masks[n])
    whole = terms.sum(dim=-1)
    if k < every:  # rounding must not make any part larger than the whole
        exact = centred_hessian_trace(p, w) if masks is None else (feature_hessian_diagonal(p, w) * masks).sum(dim=-1)
        whole = torch.maximum(exact, whole)
    share = terms / whole.clamp_min(torch.finfo(p.dtype).tiny)[:, None]
    return Pairs(first.to(probs.device), second.to(probs.device), share.to(probs))


def _bounds(p: Tensor, w: Tensor, masks: Tensor | None) -> Tensor:
    """Return a bound on all terms of each class, ``(n, c)``."""
    squares = (w - w.mean(dim=0)).square()
    radius = (squares.sum(dim=-1) if masks is None else masks.to(w) @ squares.mT).sqrt()
    root = p.sqrt()
    farthest = (root * radius).amax(dim=-1, keepdim=True)
    return p * (farthest + root.amax(dim=-1, keepdim=True) * radius).square()


def _largest_in_row(p: Tensor, w: Tensor, reach: Tensor, k: int, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k largest terms of one row of probabilities ``(c,)`` and their two classes, the likelier first."""
    order = reach.argsort(descending=True, stable=True)
    terms, pairs = p.new_empty(0), order.new_empty(2, 0)
    for start, end in _class_ranges(len(order)):
        new = _terms(p, w, order[:end], start, k, mask)
        terms, best = torch.cat([terms, new[0]]).topk(min(k, len(terms) + len(new[0])))
        pairs = torch.cat([pairs, new[1]], dim=-1)[:, best]
        if end < len(order) and len(terms) == k and terms[-1] >= reach[order[end]]:
            break
    first, second = pairs.sort(dim=0).values  # equally likely classes are ordered by index
    swap = p[second] > p[first]
    return terms, torch.where(swap, second, first), torch.where(swap, first, second)


def _class_ranges(c: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of c classes; each doubles the number visited, within the limit ``TERMS_AT_ONCE``."""
    start = 0
    while start < c:
        end = min(c, start + max(FIRST_CLASSES, min(start, TERMS_AT_ONCE // c)))
        yield start, end
        start = end


def _terms(p: Tensor, w: Tensor, visited: Tensor, start: int, k: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the k largest terms of the classes after ``start`` with all before them, and their pairs ``(2, k)``."""
    points = w[visited] if mask is None else w[visited][:, mask]
    # Differences, not Gram products: near-equal classes would cancel.
    distances = torch.cdist(points[start:], points, compute_mode="donot_use_mm_for_euclid_dist").square()
    terms = p[visited[start:], None] * p[visited] * distances
    once = torch.ones_like(terms, dtype=torch.bool).tril(start - 1)  # each pair once, at the row of its later class
    largest, at = terms.masked_fill(~once, -1.0).flatten().topk(min(k, int(once.sum())))
    return largest, visited[torch.stack([start + at // len(visited), at % len(visited)])]
