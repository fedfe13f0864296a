"""Statistics of classes: Gaussians, templates, temperatures and Weibull tails.

A covariance is decomposed once, ``pinv(S) = A A'``, and features are whitened by ``A``: every Mahalanobis distance is
then Euclidean, and a single matrix product covers all classes. Computation is in float64, in chunks of rows, because
the small eigenvalues of a covariance dominate, and float32 cannot resolve them. No function holds more than a chunk of
the features in float64, so they may be mapped from a file larger than the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import MethodRefusedError
from .hessian import as_double, entry_chunks


@dataclass(frozen=True)
class LazyRows:
    """Rows ``(n, w)`` computed on access from features ``(m, d)``: all of them, or those at some ``rows``."""

    features: "Rows"
    of: Callable[[Tensor], Tensor]
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.features if self.rows is None else self.rows)

    def __getitem__(self, part: slice | Tensor) -> Tensor:
        return self.of(self.features[part if self.rows is None else self.rows[part]])


Rows = Tensor | LazyRows
IN_CACHE = 16  # one part of a usual chunk: 1 MB in float64


class Gaussian(NamedTuple):
    """Means that share one covariance, centred at ``centre`` and whitened."""

    centre: Tensor  # (d,), the overall mean: distances from here lose fewer digits than from the origin
    whitening: Tensor  # (d, r), with A A' the pseudo-inverse of the covariance, of rank r
    means: Tensor  # (k, r), the whitened means


class ClassMoments(NamedTuple):
    """Counts, means and scatter of the classes of labelled rows, in float64."""

    classes: Tensor  # (k,), those that occur
    counts: Tensor  # (k,)
    means: Tensor  # (k, d)
    scatter: Tensor  # (d, d), within classes; (0, 0) if it was not wanted

    @property
    def mean(self) -> Tensor:
        """The mean of all rows, ``(d,)``."""
        return self.counts @ self.means / self.counts.sum()

    def scatter_about(self, point: Tensor) -> Tensor:
        r"""Return the scatter of all rows about a point ``(d,)``, as a sum of terms that do not cancel, ``(d, d)``.

        .. math:: \sum_i (h_i - u)(h_i - u)^\top = S + \sum_k n_k (m_k - u)(m_k - u)^\top
        """
        moved = (self.means - point) * self.counts.sqrt()[:, None]
        return self.scatter + moved.mT @ moved

    def pooled(self) -> "ClassMoments":
        """Return the moments of the same rows as a single class."""
        mean = self.mean
        return ClassMoments(self.classes[:1], self.counts.sum(0, keepdim=True), mean[None], self.scatter_about(mean))


def class_moments(
    rows: Rows, labels: Tensor | None = None, *, scatter: bool = True, used: Tensor | None = None
) -> ClassMoments:
    r"""Accumulate counts, means and the scatter within classes in one pass over chunks of rows ``(n, d)``.

    Rows are moved by an anchor near the mean of their class, the mean of its rows in the first chunk that has any:

    .. math:: m_k = a_k + \delta_k, \qquad \delta_k = \frac1{n_k} \sum_{i:\, y_i = k} (h_i - a_k), \qquad
        S = \sum_i (h_i - a_{y_i})(h_i - a_{y_i})^\top - \sum_k n_k \delta_k \delta_k^\top

    The subtracted term is small, so that the small eigenvalues of S keep their digits, as with exact means and a second
    pass.

    Args:
        rows: Features ``(n, d)``; at most a chunk of them is held in float64.
        labels: Classes, ``(n,)``; without labels all rows are one class.
        scatter: Whether to compute S, which takes nearly all of the time.
        used: Mask ``(n,)`` of the rows that count; all by default.
    """
    first = as_double(rows[:1])
    labels = torch.zeros(len(rows), dtype=torch.int64) if labels is None else labels
    labels, width = labels.to(first.device), first.shape[1]
    used = None if used is None else used.to(first.device)
    there = labels if used is None else labels[used]
    classes, place, counts = torch.unique(there, return_inverse=True, return_counts=True)
    if used is not None:
        place = torch.zeros_like(labels).masked_scatter(used, place)
    anchors, sums = first.new_zeros(2, len(classes), width)
    anchored = torch.zeros(len(classes), dtype=torch.bool, device=first.device)
    total = first.new_zeros((width, width) if scatter else (0, 0))
    # A matrix product is fastest with many rows; all else with chunks that stay in the processor's cache.
    for part in entry_chunks(len(rows), width if scatter else IN_CACHE * width):
        h, own = rows[part], place[part]
        if used is not None:
            h, own = h[used[part].to(h.device)], own[used[part]]
        h = as_double(h)
        fresh = ~anchored[own]
        if bool(fresh.any()):
            anchors.index_add_(0, own[fresh], h[fresh] / own.bincount(minlength=len(classes))[own[fresh], None])
            anchored[own] = True
        if len(classes) == 1:  # faster than to gather and scatter rows
            moved = h - anchors[0]
            sums[0] += moved.sum(dim=0)
        else:
            moved = h - anchors[own]
            sums.index_add_(0, own, moved)
        if scatter:
            total.addmm_(moved.mT, moved)
    n = counts.to(sums)
    if scatter:
        shifts = sums / n.sqrt()[:, None]
        total.addmm_(shifts.mT, shifts, alpha=-1)
    return ClassMoments(classes, n, anchors + sums / n[:, None], total)


class SharedMoments:
    """Moments of one bank, computed when they are first needed; those of all rows together follow from the classes'."""

    def __init__(self) -> None:
        self.saved = 0.0  # seconds
        self._seconds = 0.0
        self._moments: ClassMoments | None = None

    def get(self, features: Rows, labels: Tensor | None, by_class: bool) -> ClassMoments:
        """Return the moments of classes or of all rows, given the same bank in every call."""
        if self._moments is None:
            start = perf_counter()
            self._moments = class_moments(features, labels)
            self._seconds = perf_counter() - start
        else:
            self.saved += self._seconds
        return self._moments if by_class else self._moments.pooled()


def class_means(rows: Rows, labels: Tensor, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the classes that occur, ``(k,)``, and their means ``(k, d)`` in float64."""
    moments = class_moments(rows, labels, scatter=False, used=used)
    return moments.classes, moments.means


def mean_row(rows: Rows) -> Tensor:
    """Return the mean of all rows, ``(d,)``, computed in float64 and returned in their type."""
    return class_moments(rows, scatter=False).means[0].to(rows[:1])


def shrunk_class_means(values: Rows, labels: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return class means shrunk towards anchors ``(c, d)`` by empirical Bayes, and effective sample sizes, ``(c,)``.

    .. math:: m_k = \frac{n_k M_k + \nu a_k}{n_k + \nu}, \qquad
        \nu = \frac{\text{within}}{\text{between}}, \qquad
        \text{within} = \frac{\sum_i \|v_i - M_{y_i}\|^2}{n - K}, \qquad
        \text{between} = \frac1K \sum_k \|M_k - a_k\|^2 - \frac{\text{within}}{n_k}

    with K classes that occur; a class without samples has its anchor as mean. ``between`` is at least a thousandth of
    ``within``. With about one sample per class the two cannot be separated, and are assumed equal. The effective sample
    size of a mean is :math:`n_k + \nu`.
    """
    classes, means = class_means(values, labels)
    counts = labels.bincount(minlength=len(anchors)).to(means)
    gaps = (means - anchors[classes]).square().sum(dim=-1)
    n, spare = len(values), len(values) - len(classes)
    if spare < 0.2 * n:
        prior = means.new_ones(())
    else:
        rows = torch.searchsorted(classes, labels.contiguous())
        parts = entry_chunks(n, means.shape[1])
        within = sum((as_double(values[part]) - means[rows[part]]).square().sum() for part in parts) / spare
        between = (gaps - within / counts[classes]).mean().clamp_min(1e-3 * within)
        prior = (within / between).nan_to_num(1.0).clamp_min(torch.finfo(means.dtype).eps)
    shrunk = anchors.to(means).clone()
    weights = (counts[classes] / (counts[classes] + prior))[:, None]
    shrunk[classes] = weights * means + (1 - weights) * shrunk[classes]
    return shrunk, counts + prior


def fit_gaussian(features: Rows, labels: Tensor | None = None) -> Gaussian:
    """Fit one mean per class and a shared covariance; without labels all rows are one class.

    The covariance has the divisor n, and eigenvalues below ``d * eps`` times the largest count as 0, as in
    scikit-learn's ``EmpiricalCovariance`` and scipy's ``pinvh``.
    """
    return gaussian_of(class_moments(features, labels))


def gaussian_of(moments: ClassMoments) -> Gaussian:
    """Return the Gaussian of the classes whose moments are given (:func:`fit_gaussian`)."""
    centre, whitening = moments.mean, whitening_of(moments.scatter / moments.counts.sum())
    return Gaussian(centre, whitening, (moments.means - centre) @ whitening)


def whitening_of(covariance: Tensor) -> Tensor:
    """Return ``A`` of shape ``(d, r)`` with ``A A' = pinv(covariance)``."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > values.amax() * len(values) * torch.finfo(values.dtype).eps
    if not bool(kept.any()):
        raise MethodRefusedError(
            "a covariance needs features that vary within a class, but these are all equal. "
            "Pass more than one sample per class, and check the features of the bank."
        )
    whitening: Tensor = vectors[:, kept] / values[kept].sqrt()
    return whitening


def squared_distances(h: Tensor, gaussian: Gaussian) -> Tensor:
    r"""Return the squared Mahalanobis distance of each row to each mean, ``(n, k)``.

    .. math:: d_c(h) = (h - \mu_c)^\top \Sigma^{-1} (h - \mu_c)

    Computed, and returned, in the type of the Gaussian.
    """
    white = (h.to(gaussian.centre.dtype) - gaussian.centre) @ gaussian.whitening
    return distances_to(white, gaussian.means, gaussian.means.square().sum(dim=-1))


def distances_to(points: Tensor, means: Tensor, squares: Tensor) -> Tensor:
    """Return the squared distances ``(n, k)`` of points ``(n, r)`` to means, given the squared norms of the means."""
    return (points.square().sum(dim=-1, keepdim=True) + squares - 2 * points @ means.mT).clamp_min(0.0)


class Templates(NamedTuple):
    """The mean of each class and the samples it was computed from."""

    means: Tensor  # (c, d), float64
    used: Tensor  # (n,) bool
    note: str  # a warning about classes without a correct sample, empty if there are none


def class_templates(values: Rows, labels: Tensor, predicted: Tensor, n_classes: int, who: str) -> Templates:
    """Return the mean of each class over its correctly classified samples.

    A class without a correctly classified sample is averaged over all its samples, as ``note`` then states. Raise if a
    class has no sample.
    """
    check_every_class(labels, n_classes, who)
    used, note = template_samples(labels, predicted, n_classes, who)
    return Templates(class_means(values, labels, used)[1], used, note)


def check_every_class(labels: Tensor, n_classes: int, who: str) -> None:
    """Raise unless every class has a sample."""
    absent = _classes(labels.bincount(minlength=n_classes) == 0)
    if absent:
        raise MethodRefusedError(
            f"{who} needs samples of every class, but the bank has none of {absent}. Pass training data of all "
            "classes, or a head with only the rows of the classes you have: Head(weight[rows], bias[rows])."
        )


def template_samples(labels: Tensor, predicted: Tensor, n_classes: int, who: str) -> tuple[Tensor, str]:
    """Return the mask ``(n,)`` of the samples that templates are computed from, and a note or an empty string."""
    correct = labels == predicted
    never = labels[correct].bincount(minlength=n_classes) == 0
    note = f"{who} found no correctly classified sample of {_classes(never)} and uses all its samples instead."
    return correct | never[labels], note if bool(never.any()) else ""


def _classes(chosen: Tensor) -> str:
    """Return the first few classes of a mask as text."""
    numbers = torch.nonzero(chosen).flatten().tolist()
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"class {shown}" if numbers else ""


LOGITS_AT_ONCE = 2**25


def logits_by_rows(
    h: Rows,
    weight: Tensor,
    bias: Tensor | None = None,
    of: Callable[[Tensor], Tensor] | None = None,
    rows: Tensor | None = None,
) -> Rows:
    """Return the logits of features ``(n, d)``, computed lazily if they would take more than 256 MB.

    Features are transformed by ``of``, a chunk at a time; with ``rows`` only those are used.
    """

    def logits(part: Tensor) -> Tensor:
        return torch.nn.functional.linear(part if of is None else of(part), weight, bias)

    lazy = LazyRows(h, logits, rows)
    n, (classes, width) = len(lazy), weight.shape
    if n * classes > LOGITS_AT_ONCE:
        return lazy
    if of is None and rows is None:
        return lazy[:]
    filled = weight.new_empty(n, classes)
    for part in entry_chunks(n, max(classes, width)):
        filled[part] = lazy[part]
    return filled


COLDEST, HOTTEST = 1e-3, 1e3
_HALVINGS = 60
_STEPS, _RATE = 50, 0.01  # those of the reference; below, the stopping criteria of torch's L-BFGS
_NO_CHANGE, _NO_SLOPE, _NO_BEND = 1e-9, 1e-7, 1e-10


def best_temperature(logits: Rows, labels: Tensor, bias: Tensor | None = None) -> float:
    r"""Return the temperature T that minimises the mean cross-entropy of ``softmax(z / T + b)``.

    The cross-entropy is convex in :math:`\beta = 1 / T`, so its slope rises, and has at most one root,

    .. math:: g(\beta) = \frac1n \sum_i \Big( \sum_c p_{ic} z_{ic} - z_{i y_i} \Big) = 0, \qquad
        g'(\beta) = \frac1n \sum_i \operatorname{Var}_{c \sim p_i} z_{ic},

    which is found by Newton's method in :math:`\log \beta`, or by bisection where that is faster. If every label has
    the largest logit, the best temperature is 0; the result is clipped to 0.001 to 1000.
    """
    low, high = log(1 / HOTTEST), log(1 / COLDEST)
    x, step = (low + high) / 2, high - low
    for _ in range(2 * _HALVINGS):
        slope, curvature = _slope(logits, labels, bias, exp(x))
        low, high = (low, x) if slope > 0 else (x, high)
        newton = x - slope / curvature if curvature > 0 else inf
        fast = low < newton < high and abs(newton - x) < abs(step) / 2
        x, step = (newton, newton - x) if fast else ((low + high) / 2, (high - low) / 2)
        # The number of correct digits doubles with each step of Newton's method.
        if abs(step) < (1e-9 if fast else 1e-15):
            break
    return exp(-x)


def _slope(logits: Rows, labels: Tensor, bias: Tensor | None, beta: float) -> tuple[float, float]:
    """Return the derivative of the mean cross-entropy in beta, and the derivative of that in log beta."""
    slope = curvature = 0.0
    width = logits[:1].shape[-1]
    for part in entry_chunks(len(labels), width):
        z = logits[part].double()
        scaled = z * beta
        p = (scaled if bias is None else scaled + bias.double()).softmax(dim=-1)
        own = z.gather(-1, labels[part, None]).squeeze(-1)
        mean = p.mul_(z).sum(dim=-1)
        slope += float((mean - own).sum())
        curvature += beta * float((p.mul_(z).sum(dim=-1) - mean.square()).clamp_min_(0.0).sum())
    return slope / len(labels), curvature / len(labels)


def likeliest_temperature(logits: Rows, labels: Tensor, bias: Tensor | None = None) -> float | None:
    """Return the best temperature, or None if there is none: if every label has the largest logit, lower is better."""
    parts = entry_chunks(len(labels), logits[:1].shape[-1])
    if all(bool((logits[part].argmax(dim=-1) == labels[part]).all()) for part in parts):
        return None
    temperature = best_temperature(logits, labels, bias)
    return temperature if COLDEST * 1.001 < temperature < HOTTEST / 1.001 else None


def reference_temperature(logits: Rows, labels: Tensor) -> float:
    """Return the temperature at which OpenOOD's fifty L-BFGS steps stop, often far from the best one.

    The steps are those of ``torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)`` from 1.5, bit for bit. They are
    implemented here because the first optimiser of a process imports torch's compiler, which takes longer than most
    methods need for a whole benchmark.
    """
    with torch.inference_mode(False), torch.enable_grad():
        labels = labels.clone()  # tensors created in inference mode have no gradients
        first = logits[:1]
        temperature = torch.full((1,), 1.5, dtype=first.dtype, device=first.device, requires_grad=True)

        def evaluate() -> tuple[float, Tensor]:
            loss, gradient = 0.0, torch.zeros_like(temperature)
            for part in entry_chunks(len(labels), first.shape[-1]):
                own = labels[part]
                mean = torch.nn.functional.cross_entropy(logits[part].clone() / temperature, own)
                share = mean * (len(own) / len(labels))
                loss += share.item()
                gradient = gradient + torch.autograd.grad(share, temperature)[0]
            return loss, gradient

        loss, gradient = evaluate()
        direction, step = -gradient, (_RATE * (1 / gradient.abs()).clamp_max(1.0)).item()
        history: list[tuple[Tensor, Tensor, Tensor]] = []
        scale = gradient.new_ones(())
        for left in reversed(range(_STEPS)):
            if gradient.dot(direction) > -_NO_CHANGE or gradient.abs() <= _NO_SLOPE:
                break
            with torch.no_grad():
                temperature.add_(direction, alpha=step)
            if not left:
                break
            before = loss, gradient
            loss, gradient = evaluate()
            moved = direction * step
            if moved.abs() <= _NO_CHANGE or abs(loss - before[0]) < _NO_CHANGE:
                break
            bend = gradient - before[1]
            if (product := bend.dot(moved)) > _NO_BEND:
                history.append((moved, bend, 1.0 / product))
                scale = product / bend.dot(bend)
            direction, step = _two_loops(-gradient, history, scale), _RATE
    return temperature.item()


def _two_loops(direction: Tensor, history: list[tuple[Tensor, Tensor, Tensor]], scale: Tensor) -> Tensor:
    """Multiply by L-BFGS's inverse Hessian; ``history`` holds steps, gradient changes and inverse products of both."""
    shares = []
    for moved, bend, inverse in reversed(history):
        shares.append(moved.dot(direction) * inverse)
        direction = direction.add(bend, alpha=-shares[-1].item())
    direction = direction * scale
    for (moved, bend, inverse), share in zip(history, reversed(shares), strict=True):
        direction = direction.add(moved, alpha=(share - bend.dot(direction) * inverse).item())
    return direction


STEEPEST = 1e6  # shape of a tail whose distances are all equal: a step function


class Weibull(NamedTuple):
    """One fitted tail per class, ``(k,)`` each."""

    smallest: Tensor
    scale: Tensor
    shape: Tensor

    def cdf(self, distances: Tensor) -> Tensor:
        """Return the cumulative distribution at each distance; ``distances`` broadcast with the fits."""
        shifted = (distances - self.smallest + 1).clamp_min(0.0)
        return -torch.expm1(-((shifted / self.scale) ** self.shape))


def fit_tails(tails: Tensor, valid: Tensor) -> Weibull:
    r"""Fit one Weibull per row of distances ``(k, t)`` by maximum likelihood; ``valid`` is False at the padding.

    With ``y = log x`` scaled to ``u = (y - max y) / (max y - min y)``, the likelihood is maximal where

    .. math:: s + \operatorname{mean}(u) - \frac{\sum u\, e^{u / s}}{\sum e^{u / s}} = 0, \qquad \text{shape} = 1 / s,

    which increases with s and changes sign between 0 and 1: s is found by bisection to float64 precision.
    """
    tails = tails.double()
    smallest = tails.masked_fill(~valid, torch.inf).amin(dim=-1)
    logs = (tails - smallest[:, None] + 1).clamp_min(1.0).log()
    top = logs.masked_fill(~valid, 0.0).amax(dim=-1)  # the smallest is log 1 = 0, so this is the range
    spread = top.clamp_min(torch.finfo(top.dtype).tiny)
    u = ((logs - top[:, None]) / spread[:, None]).masked_fill(~valid, 0.0)
    s = _solve(u, valid)
    mean_power = (_powers(u, s, valid).sum(dim=-1) / valid.sum(dim=-1)).log()
    scale, shape = (s * mean_power * spread + top).exp(), 1 / (s * spread)
    degenerate = top * STEEPEST <= 1
    return Weibull(smallest, scale.where(~degenerate, top.exp()), shape.where(~degenerate, STEEPEST))


def _powers(u: Tensor, s: Tensor, valid: Tensor) -> Tensor:
    return (u / s[:, None]).exp() * valid


def _solve(u: Tensor, valid: Tensor) -> Tensor:
    mean = u.sum(dim=-1) / valid.sum(dim=-1)
    low, high = torch.zeros_like(mean), torch.ones_like(mean)
    for _ in range(_HALVINGS):
        s = (low + high) / 2
        powers = _powers(u, s, valid)
        above = s + mean - (u * powers).sum(dim=-1) / powers.sum(dim=-1) > 0
        low, high = torch.where(above, low, s), torch.where(above, s, high)
    return (low + high) / 2
