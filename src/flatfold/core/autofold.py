"""What AutoFold's criteria are made of: moments of masked logits, and AUROCs of ID against pseudo-OOD samples.

A criterion needs one or two matrix products for all classes.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .validation import MethodRefused


class Moments(NamedTuple):
    """Moments of the class weights under some class probabilities."""

    trace: Tensor  # their total variance, which is the trace of the feature Hessian
    second: Tensor | None = None
    """Their mean squared norm, when it was asked for; ``second - trace`` is the squared norm of their mean."""


class Weights(NamedTuple):
    """The class weights as far as moments need them."""

    distances: Tensor  # (c, c), squared distances between them
    square_norms: Tensor | None = None  # (c,), their squared norms; without them there is no second moment


def masked_softmax(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the class probabilities ``q`` without one class per row, the mass ``r`` of the others, and ``1 - r``."""
    column = classes[:, None]
    without = logits.scatter(-1, column, -torch.inf)
    q = without.softmax(dim=-1)
    logsumexp = without.amax(dim=-1) - q.amax(dim=-1).log()  # without another exponential of everything
    margin = logsumexp - logits.gather(-1, column).squeeze(-1)
    return q, torch.sigmoid(margin), torch.sigmoid(-margin)


def with_and_without(logits: Tensor, classes: Tensor, weights: Weights) -> tuple[Moments, Moments]:
    """Return the moments of each row of logits without a mask and with one class masked, from a single product."""
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
    r"""Return the moments ``(k, n)`` of all rows with each of k classes masked in turn, from a single product.

    Masking class k leaves the trace ``(tr H - p_k (D p)_k) / (1 - p_k)^2``. The difference would cancel for the
    likeliest class t of a confident row, so the product is taken with that class masked, ``p = r q + (1 - r) e_t``:

    .. math:: \operatorname{tr}_{k \neq t} =
        r\, \frac{r u + (1 - r) v - q_k \big( r (D q)_k + (1 - r) D_{tk} \big)}{(1 - r q_k)^2},
        \qquad \operatorname{tr}_{t} = u

    Call it in float64: at the second likeliest class of a row digits are still lost, all of them when it leaves less
    than 1e-16 of the remaining mass to the other classes.
    """
    top = logits.argmax(dim=-1)
    column = top[:, None]
    q, r, own = masked_softmax(logits, top)
    pull = q @ weights.distances
    u = 0.5 * (pull * q).sum(dim=-1, keepdim=True)
    v = pull.gather(-1, column)
    r, own = r[:, None], own[:, None]
    others = r * q
    left = 1 - others  # the mass without class k: at least a half, because k is not the likeliest class
    # In place from here on: these matrices of all rows and all classes are made anew for every exponent.
    trace = pull.mul_(r).addcmul_(weights.distances[top], own).mul_(q).neg_().add_(r * u + own * v)
    trace = trace.mul_(r).div_(left).div_(left).clamp_min_(0.0).scatter_(-1, column, u)
    if weights.square_norms is None:
        return Moments(trace.mT[classes])
    masked = (q @ weights.square_norms)[:, None]
    whole = r * masked + own * weights.square_norms[column]
    second = ((whole - others * weights.square_norms) / left).scatter_(-1, column, masked)
    return Moments(trace.mT[classes], second.mT[classes])


FEW = 16  # samples a class up to which comparing is faster than searching


class Side(NamedTuple):
    """The entries of padded groups that are samples; made once for many scores."""

    valid: Tensor  # (g, n), False at the padding
    size: Tensor  # (g, 1), in float64

    @classmethod
    def of(cls, valid: Tensor) -> "Side":
        """Count the samples of each group."""
        return cls(valid, valid.sum(dim=-1, keepdim=True).double())


class GroupedAuroc(NamedTuple):
    """One AUROC per group and the influence of each sample on it."""

    auroc: Tensor  # (g,)
    low_influence: Tensor  # (g, n), zero where there is no sample
    high_influence: Tensor  # (g, m), zero where there is no sample


def grouped_auroc(low: Tensor, low_side: Side, high: Tensor, high_side: Side) -> GroupedAuroc:
    """Return, for each group, the probability that a sample of ``high`` ``(g, m)`` scores above one of ``low``.

    Groups are padded to one length with any finite value. ``high`` is sorted, so the shorter side should be there.
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
    """The rows of each class, padded to one length."""

    classes: Tensor  # (k,), the classes averaged over
    rows: Tensor  # (k, m), indices of the rows of each class
    members: Side  # which entries of rows are no padding, (k, m)
    others: Side  # which rows belong to any other class, (k, n)


MIN_PER_CLASS = 3  # a class with fewer samples has no AUROC worth averaging


def calibration_classes(labels: Tensor, max_classes: int | None, seed: int, who: str) -> Tensor:
    """Return the classes with enough samples, at most ``max_classes`` of them, drawn with ``seed``."""
    if max_classes is not None and (not isinstance(max_classes, int) or max_classes < 1):
        raise MethodRefused(f"max_classes must be at least 1, or None for all classes, got {max_classes!r}.")
    present, counts = torch.unique(labels, return_counts=True)
    enough: Tensor = present[counts >= MIN_PER_CLASS]
    if len(enough) == 0:
        raise MethodRefused(
            f"{who} needs a class with at least {MIN_PER_CLASS} samples, but the largest of the {len(present)} classes "
            f"here has {int(counts.max())}. Give it more in-distribution data, or choose hyper-parameters yourself."
        )
    if max_classes is not None and len(enough) > max_classes:
        # The generator of the authors' code: the same seed draws the same classes.
        drawn = np.random.RandomState(seed).choice(enough.cpu().numpy(), max_classes, replace=False)
        enough = torch.from_numpy(drawn).to(labels)
    return enough


def flatness(curve: Tensor, stderr: Tensor) -> str:
    """Return a sentence about a curve that varies by no more than its standard error, or an empty string."""
    spread = float(curve.max() - curve.min())
    # At an AUROC of 1 the error is 0 whatever the sample, so the error at the minimum counts too.
    error = float(max(stderr[curve.argmax()], stderr[curve.argmin()]))
    if len(curve) == 1 or spread > error:
        return ""
    return f"it varies by {spread:.4f} over the grid and its standard error is {error:.4f}"


def group_rows(labels: Tensor, classes: Tensor) -> Groups:
    """Return the rows of each of ``classes`` ``(k,)`` among ``labels`` ``(n,)``."""
    inside = labels == classes[:, None]
    valid, rows = inside.sort(dim=-1, descending=True, stable=True)
    longest = int(valid.sum(dim=-1).max())
    return Groups(classes, rows[:, :longest].contiguous(), Side.of(valid[:, :longest]), Side.of(~inside))


def paired_auroc(known: Tensor, masked: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Return the AUROC of samples against their masked copies, as a mean over classes, and its standard error."""
    result = grouped_auroc(known[groups.rows], groups.members, masked[groups.rows], groups.members)
    influence = result.low_influence + result.high_influence  # a sample and its copy move together
    return result.auroc.mean(), influence.norm() / len(groups.classes)


def one_vs_rest_auroc(masked: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Return the AUROC of all other samples against those of a masked class, as a mean, and its standard error."""
    result = grouped_auroc(masked, groups.others, masked.gather(-1, groups.rows), groups.members)
    influence = result.low_influence.sum(dim=0)  # one sample takes part in the AUROC of every class
    influence = influence.index_add(0, groups.rows.flatten(), result.high_influence.flatten())
    return result.auroc.mean(), influence.norm() / len(groups.classes)


def middle_of_maximum(curve: Tensor, tie: float = 1e-12) -> int:
    """Return the index of the largest value, the middle one where several are equal up to ``tie``."""
    best = (curve >= curve.max() - tie).nonzero().flatten()
    return int(best[(len(best) - 1) // 2])
