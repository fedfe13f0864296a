"""AutoFold's criteria: how well a score tells known inputs from pseudo-unknowns made by masking logits.

All return an AUROC, as a mean over classes or over all of them at once, and its standard error; all need one matrix
product or two for all classes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# What FOLD would say had the network never met a class: the moments of the weights with one logit masked.


class Moments(NamedTuple):
    """Moments of the class weights under some class probabilities."""

    trace: Tensor
    """Their total variance, which is the trace of the feature Hessian."""
    second: Tensor | None = None
    """Their mean squared norm, when it was asked for; ``second - trace`` is the squared norm of their mean."""


class Weights(NamedTuple):
    """What moments need to know of the class weights."""

    distances: Tensor
    """``(c, c)``, squared distances between them."""
    square_norms: Tensor | None = None
    """``(c,)``, their squared norms; without them there is no second moment."""


def masked_softmax(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the class probabilities without one class per row, and how the mass is shared while it is there.

    Args:
        logits: ``(n, c)``.
        classes: The class to leave out of each row, ``(n,)`` int64.

    Returns:
        ``q`` of shape ``(n, c)``, zero at the masked class; the mass ``r`` of all others and ``p_k = 1 - r`` of the
        class itself, ``(n,)`` each, both with all their digits.

    Example:
        >>> q, r, own = masked_softmax(torch.zeros(1, 3), torch.tensor([0]))
        >>> q, round(float(r), 4)
        (tensor([[0.0000, 0.5000, 0.5000]]), 0.6667)
    """
    column = classes[:, None]
    without = logits.scatter(-1, column, -torch.inf)
    q = without.softmax(dim=-1)
    logsumexp = without.amax(dim=-1) - q.amax(dim=-1).log()  # without another exponential of everything
    margin = logsumexp - logits.gather(-1, column).squeeze(-1)
    return q, torch.sigmoid(margin), torch.sigmoid(-margin)


def with_and_without(logits: Tensor, classes: Tensor, weights: Weights) -> tuple[Moments, Moments]:
    """Return the moments of each row as it is and with one class masked, from a single product.

    Args:
        logits: ``(n, c)``.
        classes: The class to mask in each row, ``(n,)`` int64.
        weights: Of the classes.

    Returns:
        The moments without a mask and with it, ``(n,)`` each.
    """
    q, r, own = masked_softmax(logits, classes)
    pull = q @ weights.distances
    u = 0.5 * (pull * q).sum(dim=-1)
    v = pull.gather(-1, classes[:, None]).squeeze(-1)
    trace = r * (r * u + own * v)
    if weights.square_norms is None:
        return Moments(trace), Moments(u)
    second = q @ weights.square_norms
    return Moments(trace, r * second + own * weights.square_norms[classes]), Moments(u, second)


def without_each(logits: Tensor, classes: Tensor, weights: Weights) -> Moments:
    r"""Return the moments of each row with each of some classes masked in turn, from a single product.

    Masking class k leaves the trace ``(tr H - p_k (D p)_k) / (1 - p_k)^2``. The difference would cancel for the
    likeliest class t of a confident row, so the product is taken with that class masked, ``p = r q + (1 - r) e_t``:

    .. math:: \operatorname{tr}_{k \neq t} =
        r\, \frac{r u + (1 - r) v - q_k \big( r (D q)_k + (1 - r) D_{tk} \big)}{(1 - r q_k)^2},
        \qquad \operatorname{tr}_{t} = u

    Call it in float64: at the runner-up of a row digits are still lost, all of them when it leaves less than 1e-16 of
    the remaining mass to the classes behind it.

    Args:
        logits: ``(n, c)``.
        classes: The k classes to mask, ``(k,)`` int64.
        weights: Of the classes.

    Returns:
        Moments of shape ``(k, n)`` each.
    """
    top = logits.argmax(dim=-1)
    column = top[:, None]
    q, r, own = masked_softmax(logits, top)
    pull = q @ weights.distances
    u = 0.5 * (pull * q).sum(dim=-1, keepdim=True)
    v = pull.gather(-1, column)
    r, own = r[:, None], own[:, None]
    others = r * q
    left = 1 - others  # of the mass when class k is masked: at least a half, for k is not the likeliest
    # In place from here on: these are matrices of all rows and all classes, made anew for every exponent.
    trace = pull.mul_(r).addcmul_(weights.distances[top], own).mul_(q).neg_().add_(r * u + own * v)
    trace = trace.mul_(r).div_(left).div_(left).clamp_min_(0.0).scatter_(-1, column, u)
    if weights.square_norms is None:
        return Moments(trace.mT[classes])
    masked = (q @ weights.square_norms)[:, None]
    whole = r * masked + own * weights.square_norms[column]
    second = ((whole - others * weights.square_norms) / left).scatter_(-1, column, masked)
    return Moments(trace.mT[classes], second.mT[classes])


# Many small AUROCs at once, with the influence every sample has on them.


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
