"""Criteria of AutoFold: moments of masked logits, and AUROCs of ID against pseudo-OOD samples.

A criterion needs one or two matrix products for all classes. With many classes no matrix over pairs of classes is
built, nor one over all classes and samples, unless the caller passes it.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodRefusedError
from .class_statistics import distances_to
from .hessian import affordable_distances, entry_chunks, variance_and_mean
from .shaping import softmax
from .validation import check_seed


class Moments(NamedTuple):
    """Moments of the class weights under class probabilities."""

    trace: Tensor  # their total variance, which is the trace of the feature Hessian
    second: Tensor | None = None
    """Their mean squared norm, if requested; ``second - trace`` is the squared norm of their mean."""


class Weights(NamedTuple):
    """Class weights prepared for computing moments."""

    centred: Tensor
    """``(c, d)``, minus their mean, which changes no distance between them."""
    squares: Tensor
    """``(c,)``, squared norms of the centred weights."""
    distances: Tensor | None
    """``(c, c)``, squared distances between them, if these are cheaper (:func:`prefers_distances`)."""
    mean: Tensor
    """``(d,)``, the mean of the original weights."""
    square_norms: Tensor | None
    """``(c,)``, squared norms of the original weights; None without second moments."""

    @classmethod
    def of(cls, weight: Tensor, second: bool = False) -> "Weights":
        """Prepare the weights ``(c, d)`` of a head, with ``second`` for second moments too."""
        mean = weight.mean(dim=0)
        centred, distances = weight - mean, affordable_distances(weight)
        square_norms = weight.square().sum(dim=-1) if second else None
        return cls(centred, centred.square().sum(dim=-1), distances, mean, square_norms)

    def draw(self, probs: Tensor) -> "Drawn":
        """Return the mean squared distances of classes from one drawn with probabilities ``(n, c)``."""
        if self.distances is None:
            return Drawn(*variance_and_mean(probs, self.centred, self.squares), self)
        product = probs @ self.distances
        return Drawn(0.5 * (product * probs).sum(dim=-1), product, self)


class Drawn(NamedTuple):
    r"""Mean squared distances ``D q`` of classes from one drawn with probabilities q, row by row.

    .. math:: (D q)_k = \sum_j q_j \|w_k - w_j\|^2 = \|w_k - m\|^2 + \tfrac12 q^\top D q, \qquad m = \sum_j q_j w_j

    The second form needs the mean weight m only, and no matrix over pairs of classes.
    """

    trace: Tensor
    """``(n,)``, total variance of the weights, ``q' D q / 2``."""
    product: Tensor
    """``(n, c)``, ``D q``; or ``(n, d)``, m, if the weights have no ``distances``."""
    weights: Weights

    def to_own(self, classes: Tensor) -> Tensor:
        """Return the mean squared distance ``(n,)`` of one class per row."""
        if self.weights.distances is None:
            return (self.weights.centred[classes] - self.product).square().sum(dim=-1) + self.trace
        return self.product.gather(-1, classes[:, None]).squeeze(-1)

    def to_each(self, classes: Tensor | slice) -> Tensor:
        """Return the mean squared distance of each of k classes, ``(n, k)``; may overwrite ``self``."""
        if self.weights.distances is None:
            means, squares = self.weights.centred[classes], self.weights.squares[classes]
            return distances_to(self.product, means, squares).add_(self.trace[:, None])
        return self.product[:, classes]

    def mix(self, classes: Tensor, trace: Tensor, share: Tensor, rest: Tensor) -> "Drawn":
        """Mix q, with weight ``rest``, with one class per row; ``trace`` is the mixture's. Overwrites ``self``."""
        points = self.weights.centred if self.weights.distances is None else self.weights.distances
        return Drawn(trace, self.product.mul_(rest[:, None]).addcmul_(points[classes], share[:, None]), self.weights)


def masked_softmax(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the class probabilities ``q`` without one class per row, the mass ``r`` of the others, and ``1 - r``."""
    column = classes[:, None]
    without = logits.scatter(-1, column, -torch.inf)
    q = softmax(without)
    logsumexp = without.amax(dim=-1) - q.amax(dim=-1).log()  # saves another exponential of all entries
    margin = logsumexp - logits.gather(-1, column).squeeze(-1)
    return q, torch.sigmoid(margin), torch.sigmoid(-margin)


class KeptMoments:
    """Moments whose trace counts only some dimensions, selected per row: the authors' FOLD-R.

    ``kept`` is ``(n, d)``. Moments per dimension need one product with the weights; with a class masked they follow
    from ``q``, the distribution with the likeliest class t masked: the diagonal is that of
    :func:`~flatfold.core.hessian.feature_hessian_diagonal`, whose terms are non-negative.
    """

    def __init__(self, logits: Tensor, weights: Weights, kept: Tensor) -> None:
        self.top = logits.argmax(dim=-1)
        self.q, self.r, self.own = masked_softmax(logits, self.top)
        self.weights, self.kept = weights, kept
        self.mean, self.second = self.q @ weights.centred, self.q @ weights.centred.square()

    def whole(self) -> Moments:
        """Return the moments without a mask."""
        return self._moments(self.mean, self.second, self.r, self.own)

    def without(self, classes: Tensor) -> Moments:
        """Return the moments with one class per row masked."""
        weight, q_k = self.weights.centred[classes], self.q.gather(-1, classes[:, None]).squeeze(-1)
        left = (1 - q_k).clamp_min(torch.finfo(q_k.dtype).eps)
        mean = (self.mean - q_k[:, None] * weight) / left[:, None]
        second = (self.second - q_k[:, None] * weight.square()) / left[:, None]
        mass = 1 - self.r * q_k  # of all classes but this one
        others = self._moments(mean, second, self.r * left / mass, self.own / mass)
        likeliest = self._moments(self.mean, self.second, torch.ones_like(mass), torch.zeros_like(mass))
        top = classes == self.top
        trace = torch.where(top, likeliest.trace, others.trace)
        if likeliest.second is None or others.second is None:
            return Moments(trace)
        return Moments(trace, torch.where(top, likeliest.second, others.second))

    def _moments(self, mean: Tensor, second: Tensor, r: Tensor, own: Tensor) -> Moments:
        """Return the moments of a mixture: the likeliest class, with probability ``own``, and the other classes."""
        top, r, own = self.weights.centred[self.top], r[:, None], own[:, None]
        diagonal = r * ((second - mean.square()).clamp_min(0.0) + own * (top - mean).square())
        trace = (diagonal * self.kept).sum(dim=-1)
        if self.weights.square_norms is None:
            return Moments(trace)
        return Moments(trace, trace + (r * mean + own * top + self.weights.mean).square().sum(dim=-1))


def with_and_without(
    logits: Tensor, classes: Tensor, weights: Weights, kept: Tensor | None = None
) -> tuple[Moments, Moments]:
    """Return the moments of each row of logits without a mask and with one class masked, from a single product.

    ``kept``, ``(n, d)``, selects the dimensions whose variance counts; None means all.
    """
    if kept is not None:
        moments = KeptMoments(logits, weights, kept)
        return moments.whole(), moments.without(classes)
    q, r, own = masked_softmax(logits, classes)
    drawn = weights.draw(q)
    u, v = drawn.trace, drawn.to_own(classes)
    trace = r * (r * u + own * v)
    if weights.square_norms is None:
        return Moments(trace), Moments(u)
    second = q @ weights.square_norms
    return Moments(trace, r * second + own * weights.square_norms[classes]), Moments(u, second)


def without_each(logits: Tensor, classes: Tensor, weights: Weights, kept: Tensor | None = None) -> Moments:
    r"""Return the moments ``(k, n)`` of all rows with each of k classes masked in turn, from a single product.

    Masking class k gives the trace ``(tr H - p_k (D p)_k) / (1 - p_k)^2``. The difference would cancel for the
    likeliest class t of a confident row, so the product is computed with that class masked, ``p = r q + (1 - r) e_t``:

    .. math:: \operatorname{tr}_{k \neq t} =
        r\, \frac{r u + (1 - r) v - q_k \big( r (D q)_k + (1 - r) D_{tk} \big)}{(1 - r q_k)^2},
        \qquad \operatorname{tr}_{t} = u

    Call it in float64: at the second likeliest class of a row digits are still lost, all of them if the other classes
    have less than 1e-16 of the remaining mass. ``kept`` is that of :func:`with_and_without`.
    """
    if kept is not None:
        moments = KeptMoments(logits, weights, kept)
        each = [moments.without(torch.full_like(moments.top, int(k))) for k in classes]
        squares = [m.second for m in each if m.second is not None]
        return Moments(torch.stack([m.trace for m in each]), torch.stack(squares) if squares else None)
    few = 2 * len(classes) < logits.shape[-1]  # else selecting their columns of each matrix costs more than all columns
    columns: Tensor | slice = classes if few else slice(None)
    top = logits.argmax(dim=-1)
    q, r, own = masked_softmax(logits, top)
    drawn = weights.draw(q)
    u = drawn.trace
    whole = r * u + own * drawn.to_own(top)  # the trace without a mask, over r
    pull = drawn.mix(top, r * whole, own, r).to_each(columns)
    q_k, r, own = q[:, columns], r[:, None], own[:, None]
    left = 1 - r * q_k  # the mass without class k: at least a half, because k is not the likeliest class
    # In place: these large matrices would be allocated again for every exponent.
    trace = pull.mul_(q_k).neg_().add_(whole[:, None]).mul_(r).div_(left).div_(left).clamp_min_(0.0)
    place = torch.full_like(logits[0], -1, dtype=torch.int64)
    place[columns] = torch.arange(trace.shape[-1], device=place.device)
    rows = (place[top] >= 0).nonzero().squeeze(-1)
    masked_top = rows, place[top[rows]]
    trace[masked_top] = u[rows]
    chosen = slice(None) if few else classes
    if weights.square_norms is None:
        return Moments(trace.mT[chosen])
    others = q @ weights.square_norms
    second = r * others[:, None] + own * weights.square_norms[top, None]
    second = second.sub(q_k.mul_(r).mul_(weights.square_norms[columns])).div_(left)
    second[masked_top] = others[rows]
    return Moments(trace.mT[chosen], second.mT[chosen])


FEW = 16  # up to this number of samples per class comparing is faster than searching


class Side(NamedTuple):
    """Mask of the samples in padded groups; computed once for many scores."""

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

    Groups are padded to one length with any finite value. ``high`` is sorted, so it should be the shorter side.
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
    """Return the number of entries of the sorted rows ``(g, m)`` strictly below each score ``(g, n)``."""
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


class Block:
    """A block of classes and their rows, padded to one length."""

    def __init__(self, labels: Tensor, classes: Tensor, rows: Tensor, members: Side) -> None:
        self.labels = labels  # (n,)
        self.classes = classes  # (k,)
        self.rows = rows  # (k, m), indices of the rows of each class
        self.members = members  # mask of the entries of rows that are not padding, (k, m)

    @cached_property
    def others(self) -> Side:
        """Mask of the rows of all other classes, ``(k, n)``."""
        return Side.of(self.labels != self.classes[:, None])


class Groups(NamedTuple):
    """The rows of each class, in blocks of classes."""

    classes: Tensor  # (k,), the classes averaged over
    blocks: list[Block]


MIN_PER_CLASS = 3  # a class with fewer samples has no AUROC worth averaging


def calibration_classes(labels: Tensor, max_classes: int | None, seed: int, who: str) -> Tensor:
    """Return the classes with enough samples, at most ``max_classes`` of them, drawn with ``seed``."""
    if max_classes is not None and (not isinstance(max_classes, int) or max_classes < 1):
        raise MethodRefusedError(f"max_classes must be at least 1, or None for all classes, got {max_classes!r}.")
    present, counts = torch.unique(labels, return_counts=True)
    enough: Tensor = present[counts >= MIN_PER_CLASS]
    if len(enough) == 0:
        raise MethodRefusedError(
            f"{who} needs a class with at least {MIN_PER_CLASS} samples, but the largest of the {len(present)} classes "
            f"here has {int(counts.max())}. Pass more in-distribution data, or choose hyper-parameters yourself."
        )
    if max_classes is not None and len(enough) > max_classes:
        check_seed(seed)
        # The generator of the authors' code, so that the same seed draws the same classes.
        drawn = np.random.RandomState(seed).choice(enough.cpu().numpy(), max_classes, replace=False)
        enough = torch.from_numpy(drawn).to(labels)
    return enough


def flatness(curve: Tensor, stderr: Tensor) -> str:
    """Describe a curve that varies by no more than its standard error; return an empty string for any other."""
    spread = float(curve.max() - curve.min())
    # At an AUROC of 1 the error is always 0, so the error at the minimum counts too.
    error = float(max(stderr[curve.argmax()], stderr[curve.argmin()]))
    if len(curve) == 1 or spread > error:
        return ""
    return f"it varies by {spread:.4f} over the grid and its standard error is {error:.4f}"


def group_rows(labels: Tensor, classes: Tensor) -> Groups:
    """Return the rows of each of ``classes`` ``(k,)`` among ``labels`` ``(n,)``."""
    ranked, order = labels.sort(stable=True)
    starts = torch.searchsorted(ranked, classes)
    counts = torch.searchsorted(ranked, classes, right=True) - starts
    blocks = []
    for part in entry_chunks(len(classes), len(labels)):
        place = torch.arange(int(counts[part].max()), device=labels.device)
        rows = order[(starts[part, None] + place).clamp_max(len(labels) - 1)]
        blocks.append(Block(labels, classes[part], rows, Side.of(place < counts[part, None])))
    return Groups(classes, blocks)


class ClassAurocs(NamedTuple):
    """One AUROC per class, and the influence of each sample on their sum."""

    auroc: Tensor  # (k,)
    influence: Tensor  # (n,)

    def join(self, other: "ClassAurocs") -> "ClassAurocs":
        """Concatenate the classes of both, measured on the same samples."""
        return ClassAurocs(torch.cat([self.auroc, other.auroc]), self.influence + other.influence)

    def mean(self) -> tuple[Tensor, Tensor]:
        """Return the mean over classes and its standard error."""
        return self.auroc.mean(), self.influence.norm() / len(self.auroc)


def paired_auroc(known: Tensor, masked: Tensor, groups: Groups) -> ClassAurocs:
    """Return the AUROCs of samples ``(n,)`` against their masked copies."""
    aurocs, influence = [], torch.zeros_like(known)
    for block in groups.blocks:
        result = grouped_auroc(known[block.rows], block.members, masked[block.rows], block.members)
        together = result.low_influence + result.high_influence  # a sample and its copy are not independent
        influence.index_add_(0, block.rows.flatten(), together.flatten())
        aurocs.append(result.auroc)
    return ClassAurocs(torch.cat(aurocs), influence)


def one_vs_rest_auroc(masked: Tensor, groups: Groups) -> ClassAurocs:
    """Return the AUROCs of the samples of each masked class against all others, given scores ``(k, n)``."""
    aurocs, influence = [], torch.zeros_like(masked[0])
    for block, scores in zip(groups.blocks, torch.split(masked, len(groups.blocks[0].classes)), strict=True):
        result = grouped_auroc(scores, block.others, scores.gather(-1, block.rows), block.members)
        influence += result.low_influence.sum(dim=0)  # a sample contributes to the AUROC of every class
        influence.index_add_(0, block.rows.flatten(), result.high_influence.flatten())
        aurocs.append(result.auroc)
    return ClassAurocs(torch.cat(aurocs), influence)


def middle_of_maximum(curve: Tensor, tie: float = 1e-12) -> int:
    """Return the index of the largest value, the middle one of several that are equal up to ``tie``."""
    best = (curve >= curve.max() - tie).nonzero().flatten()
    return int(best[(len(best) - 1) // 2])
