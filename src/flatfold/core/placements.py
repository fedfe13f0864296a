r"""Many small AUROCs at once, with the influence every sample has on them.

The *placement* of a score is the share of the other side it beats, ties counted half. The AUROC is the mean
placement, and a sample's influence on it is its placement minus that mean, over the size of its side (DeLong et al.
1988). The influences of all samples on any average of AUROCs add up per sample, and the root of the sum of their
squares is its standard error, also when the same sample takes part in several of them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

FEW = 16  # up to here, as with ImageNet's 5 or 10 validation samples a class, comparing beats searching


class Side(NamedTuple):
    """Which entries of padded groups are samples, and how many there are; made once for many scores."""

    valid: Tensor
    """``(g, n)``, False at the padding."""
    size: Tensor
    """``(g, 1)``, in float64."""

    @classmethod
    def of(cls, valid: Tensor) -> "Side":
        """Count the samples of each group."""
        return cls(valid, valid.sum(dim=-1, keepdim=True).double())


class GroupedAuroc(NamedTuple):
    """One AUROC per group and the influence of each sample on it."""

    auroc: Tensor
    """``(g,)``."""
    low_influence: Tensor
    """``(g, n)``, zero where there is no sample."""
    high_influence: Tensor
    """``(g, m)``, zero where there is no sample."""


def grouped_auroc(low: Tensor, low_side: Side, high: Tensor, high_side: Side) -> GroupedAuroc:
    """Return, for each group, the probability that a sample of ``high`` scores above one of ``low``.

    Args:
        low: Scores that should be low, ``(g, n)``, groups padded to one length with any finite value.
        low_side: Which of them are samples.
        high: Scores that should be high, ``(g, m)``; the shorter side should come here, it is the one that is sorted.
        high_side: Which of them are samples.

    Example:
        >>> both = Side.of(torch.ones(1, 2, dtype=torch.bool))
        >>> grouped_auroc(torch.tensor([[0.1, 0.4]]), both, torch.tensor([[0.4, 0.9]]), both).auroc
        tensor([0.8750], dtype=torch.float64)
    """
    ranked, order = high.masked_fill(~high_side.valid, torch.inf).sort(dim=-1)
    below = _count_below(ranked, low)
    tied = (ranked.gather(-1, below.clamp_max(ranked.shape[-1] - 1)) == low).logical_and_(low_side.valid)
    upto = torch.searchsorted(ranked, low, right=True) if bool(tied.any()) else below
    # A low score lies strictly below the j-th high one iff upto <= j, and not above it iff below <= j.
    weakly = _cumulative_counts(below, low_side, high.shape[-1])
    strictly = weakly if upto is below else _cumulative_counts(upto, low_side, high.shape[-1])
    beaten = torch.zeros_like(weakly).scatter(-1, order, strictly + weakly)
    auroc = (beaten * high_side.valid).sum(dim=-1, keepdim=True) / (2 * low_side.size * high_side.size)
    return GroupedAuroc(
        auroc.squeeze(-1),
        _influence((below + upto) / (-2 * high_side.size) + 1, auroc, low_side),
        _influence(beaten / (2 * low_side.size), auroc, high_side),
    )


def _count_below(ranked: Tensor, low: Tensor) -> Tensor:
    """Return how many entries of the sorted rows ``(g, m)`` lie strictly below each score ``(g, n)``."""
    if ranked.shape[-1] > FEW:
        return torch.searchsorted(ranked, low)
    count = torch.zeros(low.shape, dtype=torch.uint8, device=low.device)
    for column in ranked.unbind(dim=-1):
        count += low > column[:, None]
    return count.long()


def _cumulative_counts(position: Tensor, side: Side, length: int) -> Tensor:
    counts = torch.zeros(len(position), length + 1, dtype=torch.int64, device=position.device)
    return counts.scatter_add(-1, position, side.valid.long()).cumsum(dim=-1)[:, :length]


def _influence(placement: Tensor, auroc: Tensor, side: Side) -> Tensor:
    """Return deviations scaled so that their squares add up to the unbiased variance of the mean."""
    scale = side.valid / (side.size * (side.size - 1).clamp_min(1)).sqrt()
    return placement.sub_(auroc).mul_(scale)
