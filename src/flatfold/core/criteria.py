"""AutoFold's criteria: how well a score tells known inputs from pseudo-unknowns made by masking logits.

All return an AUROC, as a mean over classes or over all of them at once, and its standard error; all need one matrix
product or two for all classes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
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
MIN_PER_CLASS = 3  # a class with fewer samples has no AUROC worth averaging


def calibration_classes(labels: Tensor, max_classes: int | None, seed: int, who: str) -> Tensor:
    """Return the classes with enough samples, at most ``max_classes`` of them, or say that there are none.

    Args:
        labels: ``(n,)``.
        max_classes: None means all.
        seed: Of the draw when there are more.
        who: For the message.
    """
    if max_classes is not None and (not isinstance(max_classes, int) or max_classes < 1):
        raise ValueError(f"max_classes must be at least 1, or None for all classes, got {max_classes!r}.")
    present, counts = torch.unique(labels, return_counts=True)
    enough: Tensor = present[counts >= MIN_PER_CLASS]
    if len(enough) == 0:
        raise ValueError(
            f"{who} needs a class with at least {MIN_PER_CLASS} samples, but the largest of the {len(present)} classes "
            f"here has {int(counts.max())}. Give it more in-distribution data, or choose hyper-parameters yourself."
        )
    if max_classes is not None and len(enough) > max_classes:
        # The generator of the authors' code: the same seed draws the same classes.
        drawn = np.random.RandomState(seed).choice(enough.cpu().numpy(), max_classes, replace=False)
        enough = torch.from_numpy(drawn).to(labels)
    return enough


def flatness(curve: Tensor, stderr: Tensor) -> str:
    """Return a sentence about a curve that moves no more than its standard error, or nothing.

    Example:
        >>> flatness(torch.tensor([0.5, 0.9]), torch.tensor([0.01, 0.01]))
        ''
    """
    spread = float(curve.max() - curve.min())
    # At an AUROC of 1 the error is 0 whatever the sample, so the other end of the curve has a say.
    error = float(max(stderr[curve.argmax()], stderr[curve.argmin()]))
    if len(curve) == 1 or spread > error:
        return ""
    return f"it moves by {spread:.4f} over the grid and its standard error is {error:.4f}"


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
    known, masked = (score(moments) for moments in with_and_without(logits, labels, weights))
    return paired_auroc(known, masked, groups)


def one_vs_rest(
    logits: Tensor, labels: Tensor, groups: Groups, weights: Weights, score: Score
) -> tuple[Tensor, Tensor]:
    """Mask a class for everybody and compare its samples with those of all other classes (the authors' code).

    Args and returns as in :func:`paired`; ``score`` meets moments of shape ``(k, n)``.
    """
    return one_vs_rest_auroc(score(without_each(logits, groups.classes, weights)), groups)


def shrunk(
    logits: Tensor, short_logits: Tensor, labels: Tensor, groups: Groups, weights: Weights, scores: tuple[Score, Score]
) -> tuple[Tensor, Tensor]:
    r"""Compare all samples with all copies that are masked and half as long (not in the paper).

    .. math:: \operatorname{AUROC}\big( s(h_i),\; s^{\setminus y_j}(\tfrac12 h_j) \big)

    Unknown inputs often have short features, and in use there is one threshold for all classes.

    Args:
        logits: ``(n, c)``.
        short_logits: Of the features at half their length, ``(n, c)``.
        labels: ``(n,)``.
        groups: Rows of the classes that count, which are pooled.
        weights: Of the classes.
        scores: Turn moments ``(n,)`` into scores ``(n,)``, of samples and of their copies.

    Returns:
        The AUROC and its standard error.
    """
    known = scores[0](with_and_without(logits, labels, weights)[0])
    masked = scores[1](with_and_without(short_logits, labels, weights)[1])
    everybody = group_rows(torch.isin(labels, groups.classes).long(), torch.ones_like(labels[:1]))
    return paired_auroc(known, masked, everybody)


def paired_auroc(known: Tensor, masked: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Return how well scores tell samples from their masked copies, as a mean over classes, and its standard error.

    Args:
        known: Scores of the samples, ``(n,)``.
        masked: Scores of their copies, ``(n,)``.
        groups: Rows of the classes to average over.
    """
    result = grouped_auroc(known[groups.rows], groups.members, masked[groups.rows], groups.members)
    influence = result.low_influence + result.high_influence  # a sample and its copy move together
    return result.auroc.mean(), influence.norm() / len(groups.classes)


def one_vs_rest_auroc(masked: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Return how well scores tell the samples of a masked class from all others, as a mean over classes, and its error.

    Args:
        masked: Scores of everybody with each class masked, ``(k, n)``.
        groups: Rows of the classes to average over.
    """
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
