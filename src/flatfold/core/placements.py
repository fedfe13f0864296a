r"""Many small AUROCs at once, with the influence every sample has on them.

The *placement* of a score is the share of the other side it beats, ties counted half. The AUROC is the mean
placement, and a sample's influence on it is its placement minus that mean, over the size of its side (DeLong et al.
1988). The influences of all samples on any average of AUROCs add up per sample, and the root of the sum of their
squares is its standard error, also when the same sample takes part in several of them.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class GroupedAuroc(NamedTuple):
    """One AUROC per group and the influence of each sample on it."""

    auroc: Tensor
    """``(g,)``."""
    low_influence: Tensor
    """``(g, n)``, zero where there is no sample."""
    high_influence: Tensor
    """``(g, m)``, zero where there is no sample."""


def grouped_auroc(low: Tensor, low_valid: Tensor, high: Tensor, high_valid: Tensor) -> GroupedAuroc:
    """Return, for each group, the probability that a sample of ``high`` scores above one of ``low``.

    Args:
        low: Scores that should be low, ``(g, n)``, groups padded to one length with any finite value.
        low_valid: False at the padding, ``(g, n)``.
        high: Scores that should be high, ``(g, m)``; the shorter side should come here, it is the one that is sorted.
        high_valid: False at the padding, ``(g, m)``.

    Example:
        >>> everything = torch.ones(1, 2, dtype=torch.bool)
        >>> grouped_auroc(torch.tensor([[0.1, 0.4]]), everything, torch.tensor([[0.4, 0.9]]), everything).auroc
        tensor([0.8750])
    """
    ranked, order = high.masked_fill(~high_valid, torch.inf).sort(dim=-1)
    below = torch.searchsorted(ranked, low)
    tied = ranked.gather(-1, below.clamp_max(ranked.shape[-1] - 1)) == low
    upto = torch.searchsorted(ranked, low, right=True) if bool(tied.any()) else below
    n_low = low_valid.sum(dim=-1, keepdim=True).to(low.dtype)
    n_high = high_valid.sum(dim=-1, keepdim=True).to(low.dtype)
    low_placement = 1 - (below + upto) / (2 * n_high)
    auroc = (low_placement * low_valid).sum(dim=-1, keepdim=True) / n_low
    # A low score lies strictly below the j-th high one iff upto <= j, and not above it iff below <= j.
    weakly = _cumulative_counts(below, low_valid, high.shape[-1])
    strictly = weakly if upto is below else _cumulative_counts(upto, low_valid, high.shape[-1])
    high_placement = torch.zeros_like(ranked).scatter(-1, order, (strictly + weakly).to(low.dtype)) / (2 * n_low)
    return GroupedAuroc(
        auroc.squeeze(-1),
        _influence(low_placement, auroc, low_valid, n_low),
        _influence(high_placement, auroc, high_valid, n_high),
    )


def _cumulative_counts(position: Tensor, valid: Tensor, length: int) -> Tensor:
    counts = torch.zeros(len(position), length + 1, dtype=torch.int64, device=position.device)
    return counts.scatter_add(-1, position, valid.long()).cumsum(dim=-1)[:, :length]


def _influence(placement: Tensor, auroc: Tensor, valid: Tensor, n: Tensor) -> Tensor:
    """Return deviations scaled so that their squares add up to the unbiased variance of the mean."""
    return (placement - auroc) * valid / (n * (n - 1).clamp_min(1)).sqrt()
