"""AutoFold's two criteria: how well a score tells known inputs from pseudo-unknowns made by masking logits.

Both return the mean over classes of an AUROC and its standard error, and both need one matrix product for all classes.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .masking import Moments, Weights, with_and_without, without_each
from .placements import Side, grouped_auroc


class Groups(NamedTuple):
    """Which rows belong to which class, padded to one length."""

    classes: Tensor
    """``(k,)``, the classes averaged over."""
    rows: Tensor
    """``(k, m)``, indices of the rows of each class."""
    members: Side
    """Which entries of ``rows`` are no padding, ``(k, m)``."""
    others: Side
    """Which rows belong to any other class, ``(k, n)``."""


Score = Callable[[Moments], Tensor]


def group_rows(labels: Tensor, classes: Tensor) -> Groups:
    """Return the rows of each of ``classes`` ``(k,)`` among ``labels`` ``(n,)``.

    Example:
        >>> import torch
        >>> group_rows(torch.tensor([1, 0, 1]), torch.tensor([1])).rows
        tensor([[0, 2]])
    """
    inside = labels == classes[:, None]
    valid, rows = inside.sort(dim=-1, descending=True, stable=True)
    longest = int(valid.sum(dim=-1).max())
    return Groups(classes, rows[:, :longest].contiguous(), Side.of(valid[:, :longest]), Side.of(~inside))


def paired(logits: Tensor, labels: Tensor, groups: Groups, weights: Weights, score: Score) -> tuple[Tensor, Tensor]:
    """Compare the samples of each class with their own copies whose label is masked (the paper).

    Args:
        logits: ``(n, c)``.
        labels: ``(n,)``.
        groups: Rows of the classes to average over.
        weights: Of the classes.
        score: Turns moments ``(n,)`` into scores ``(n,)``.

    Returns:
        The mean AUROC and its standard error.
    """
    known, masked = (score(moments)[groups.rows] for moments in with_and_without(logits, labels, weights))
    result = grouped_auroc(known, groups.members, masked, groups.members)
    influence = result.low_influence + result.high_influence  # a sample and its copy move together
    return result.auroc.mean(), influence.norm() / len(groups.classes)


def one_vs_rest(
    logits: Tensor, labels: Tensor, groups: Groups, weights: Weights, score: Score
) -> tuple[Tensor, Tensor]:
    """Mask a class for everybody and compare its samples with those of all other classes (the authors' code).

    Args and returns as in :func:`paired`; ``score`` meets moments of shape ``(k, n)``.
    """
    masked = score(without_each(logits, groups.classes, weights))
    result = grouped_auroc(masked, groups.others, masked.gather(-1, groups.rows), groups.members)
    influence = result.low_influence.sum(dim=0)  # one sample takes part in the AUROC of every class
    influence = influence.index_add(0, groups.rows.flatten(), result.high_influence.flatten())
    return result.auroc.mean(), influence.norm() / len(groups.classes)


def middle_of_maximum(curve: Tensor, tie: float = 1e-12) -> int:
    """Return the index of the largest value, the middle one where several are equal.

    AUROCs are ratios of counts: what differs by less than ``tie`` is the same number, summed in another order.

    Example:
        >>> import torch
        >>> middle_of_maximum(torch.tensor([0.5, 0.9, 0.9, 0.9, 0.2]))
        2
    """
    best = (curve >= curve.max() - tie).nonzero().flatten()
    return int(best[(len(best) - 1) // 2])
