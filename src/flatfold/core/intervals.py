r"""Confidence intervals and tests for AUROCs: DeLong's variance, decomposed by image, and Student's t.

The AUROC is the mean *placement* of either side: the share of ID scores below an OOD one, or of OOD scores above an
ID one, ties counted half. With the placements :math:`u_j` and :math:`k_i` of ``m`` OOD and ``n`` ID images, the
unbiased variance of DeLong et al. (1988) is

.. math:: \widehat{\operatorname{var}} = \sum_j \frac{(u_j - A)^2}{m (m - 1)} + \sum_i \frac{(k_i - A)^2}{n (n - 1)}

The *influence* of an image is the root of its term with the sign of its deviation. Influences add up image by image
over data sets that share images, and are subtracted image by image for methods on the same images, so no covariance
has to be computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, log, sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, stdtr, stdtrit

from .metrics import Scores, score_vectors

LEVEL = 0.95
ROUNDING_ERROR = 1e-15  # a smaller standard error is rounding: the smallest real one is about 1 / (2 n m)

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Influence:
    """An AUROC and the contribution of every image to its uncertainty.

    Attributes:
        auroc: Between 0 and 1.
        known: ``(n,)``; its squares and those of ``unknown`` add up to the variance.
        unknown: ``(m,)``, one data set after the other when several are averaged.
        pairs: The size of the smaller side: the number of pairs of an ID and an OOD image without a common image.
    """

    auroc: float
    known: Vector
    unknown: Vector
    pairs: int

    @property
    def stderr(self) -> float:
        """The standard error of the AUROC."""
        return _norm(self.known, self.unknown)


@dataclass(frozen=True)
class Difference:
    """One AUROC minus another, with its interval and the two-sided p-value of the hypothesis that they are equal."""

    value: float
    stderr: float
    low: float
    high: float
    p_value: float


def auroc_influence(known: Scores, unknown: Scores) -> Influence:
    """Return the AUROC of two score vectors and the influence of every image on it, in the order of the images.

    A side with a single image has no measurable variance, and influence 0.
    """
    known, unknown = score_vectors(known, unknown)
    n, m = len(known), len(unknown)
    beaten = _twice_below(np.sort(known), unknown)  # whole numbers up to 2 n: no rounding before the division
    auroc = int(beaten.sum()) / (2 * n * m)
    losses = _twice_below(np.sort(unknown), known)
    return Influence(
        auroc, _influence(1 - losses / (2 * m), auroc), _influence(beaten / (2 * n), auroc), pairs=min(n, m)
    )


def mean_influence(parts: Sequence[Influence]) -> Influence:
    """Return the mean of AUROCs that share their ID images, each with its own OOD images."""
    _check_lengths("known", [len(part.known) for part in parts])
    return Influence(
        fmean(part.auroc for part in parts),
        np.mean([part.known for part in parts], axis=0),
        np.concatenate([part.unknown for part in parts]) / len(parts),
        pairs=min(part.pairs for part in parts),
    )


def interval(auroc: float, stderr: float, n: int, m: int, level: float = LEVEL) -> tuple[float, float]:
    r"""Return the ends of a confidence interval for an AUROC.

    .. math:: \operatorname{logit} A \pm t_{k - 1} \, \frac{s}{A (1 - A)}, \qquad k = \min(n, m)

    on the logit scale, so that it stays between 0 and 1 and is longer towards the middle; with Student's t, because
    ``s`` is itself estimated from ``k`` images. With normal scores, 100 images a side and level 0.95 it covers an AUROC
    of 0.8 or 0.95 in 95 % of trials and one of 0.99 in 93 %; with 10 to 40 images on one side and many on the other an
    AUROC of 0.8 in 94 %, but one of 0.95 or 0.99 in as few as 87 %.

    With perfect separation, or if all scores are equal, the standard error is 0. Then ``k`` pairs without a common
    image all agreed, which has a probability below ``tail = (1 - level) / 2`` if a pair agrees with a probability below
    ``tail ** (1 / k)``: the lower end for an AUROC of 1, mirrored for 0. One image on a side gives (0, 1).
    """
    pairs = min(n, m)
    if pairs < 2:
        return 0.0, 1.0
    return _interval_ends(auroc, stderr, pairs, student_quantile(level, pairs - 1), (1 - level) / 2)


def auroc_interval(id_scores: Scores, ood_scores: Scores, level: float = LEVEL) -> tuple[float, float]:
    """Return the ends of a confidence interval for the AUROC of two vectors of scores (see ``interval``).

    Args:
        id_scores: Scores of in-distribution inputs, ``(n,)``, torch or numpy.
        ood_scores: Scores of out-of-distribution inputs, ``(m,)``.
        level: Confidence level: the share of such intervals that contain the true value.

    Example:
        >>> low, high = auroc_interval(np.arange(100.0), np.arange(50.0, 150.0))
        >>> round(low, 3), round(high, 3)
        (0.822, 0.914)
    """
    influence = auroc_influence(id_scores, ood_scores)
    return interval(influence.auroc, influence.stderr, len(influence.known), len(influence.unknown), level)


def paired_difference(a: Influence, b: Influence, level: float = LEVEL) -> Difference:
    r"""Return the AUROC of ``a`` minus that of ``b``, both from the same images in the same order.

    .. math:: s^2 = \sum_i (a_i - b_i)^2, \qquad D \pm t_{k - 1} s, \qquad p = P(|T_{k - 1}| \ge |D| / s)

    with Student's t for the ``k`` images of the smaller side: with at least 2 images, equal methods with normal scores
    differ significantly at level 0.95 in at most 5 % of trials. One image gives the interval (-1, 1) and p = 1.

    If ``s = 0`` because both rank the images alike, the difference is exactly 0, with p = 1. If it is 0 because neither
    has any variance, as with two perfect methods, ``k`` pairs of images without a common one all agreed: the interval
    and ``p <= 2 / (1 + |D|)^k`` are then bounds.
    """
    _check_lengths("known", [len(a.known), len(b.known)])
    _check_lengths("unknown", [len(a.unknown), len(b.unknown)])
    value, stderr = a.auroc - b.auroc, _norm(a.known - b.known, a.unknown - b.unknown)
    pairs = min(a.pairs, b.pairs)
    if pairs < 2:
        return Difference(value, stderr, -1.0, 1.0, 1.0)
    if stderr >= ROUNDING_ERROR:
        step = student_quantile(level, pairs - 1) * stderr
        p_value = student_p_value(value / stderr, pairs - 1)
        return Difference(value, stderr, max(-1.0, value - step), min(1.0, value + step), p_value)
    if value == 0 and a.stderr >= ROUNDING_ERROR:
        return Difference(0.0, 0.0, 0.0, 0.0, 1.0)
    agreed = least_agreement(pairs, level)
    low, high = value * agreed - (1 - agreed), value * agreed + (1 - agreed)
    return Difference(value, 0.0, low, high, min(1.0, 2 / (1 + abs(value)) ** pairs))


def independent_difference(a: Influence, b: Influence, level: float = LEVEL) -> Difference:
    r"""Return the AUROC of ``a`` minus that of ``b``, measured on independent images.

    .. math:: D - \sqrt{(A - l_A)^2 + (u_B - B)^2} \quad\text{to}\quad D + \sqrt{(u_A - A)^2 + (B - l_B)^2}

    from the ends of an :func:`interval` of each (Newcombe, 1998), both with the t quantile of the smaller sample, so
    that the one-sided uncertainty of a perfect AUROC is included. ``1 - p`` is the level at which the interval just
    reaches 0.
    Equal methods with normal scores differ significantly at level 0.95 in at most 5 % of trials; in up to 10 % with
    few OOD images, many ID images and an AUROC near 1. One image on a side gives the interval (-1, 1) and p = 1.
    """
    value, stderr, degrees = a.auroc - b.auroc, hypot(a.stderr, b.stderr), min(a.pairs, b.pairs) - 1
    if degrees < 1:
        return Difference(value, stderr, -1.0, 1.0, 1.0)
    down, up = _half_widths(a, b, student_quantile(level, degrees), degrees)
    towards_0 = 0 if value > 0 else 1
    touching = smallest(lambda t: _half_widths(a, b, t, degrees)[towards_0] >= abs(value))
    return Difference(value, stderr, value - down, value + up, student_p_value(touching, degrees))


def student_p_value(t: float, degrees: int) -> float:
    """Return the two-sided p-value of a value ``t`` under Student's t distribution."""
    return float(2 * stdtr(degrees, -abs(t)))


def student_quantile(level: float, degrees: int) -> float:
    """Return the two-sided quantile of Student's t: the half-width of its central interval of probability ``level``."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level:g}. The customary value is 0.95.")
    return float(-stdtrit(degrees, (1 - level) / 2))


def least_agreement(trials: int, level: float = LEVEL) -> float:
    """Return the lower confidence limit of a success probability after ``trials`` trials that all succeeded."""
    return float(((1 - level) / 2) ** (1 / trials))


def smallest(reached: Callable[[float], bool]) -> float:
    """Return the smallest non-negative number that satisfies a monotone condition, by bisection."""
    if reached(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not reached(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _half_widths(a: Influence, b: Influence, t: float, degrees: int) -> tuple[float, float]:
    """Return the lower and upper half-widths of the interval of ``t`` standard errors for a difference of AUROCs."""
    tail = student_p_value(t, degrees) / 2
    (a_low, a_high), (b_low, b_high) = (_interval_ends(x.auroc, x.stderr, x.pairs, t, tail) for x in (a, b))
    return hypot(a.auroc - a_low, b_high - b.auroc), hypot(a_high - a.auroc, b.auroc - b_low)


def _interval_ends(auroc: float, stderr: float, pairs: int, t: float, tail: float) -> tuple[float, float]:
    """Return the ends of an interval of ``t`` standard errors, or for agreeing ``pairs`` if the error is 0."""
    if stderr < ROUNDING_ERROR:
        agreed = tail ** (1 / pairs)
        return auroc * agreed, 1 - (1 - auroc) * agreed
    middle, step = log(auroc / (1 - auroc)), t * stderr / (auroc * (1 - auroc))
    return float(expit(middle - step)), float(expit(middle + step))


def _twice_below(ranked: NDArray[np.floating], scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return twice the number of ``ranked`` below each score, with equal ones counted half."""
    return np.searchsorted(ranked, scores, side="left") + np.searchsorted(ranked, scores, side="right")


def _influence(placement: Vector, auroc: float) -> Vector:
    return (placement - auroc) / sqrt(len(placement) * max(len(placement) - 1, 1))


def _check_lengths(side: str, lengths: Sequence[int]) -> None:
    if len(set(lengths)) != 1:
        raise ValueError(
            f"AUROCs on the same images need equally many {side} scores, got {' and '.join(map(str, lengths))}. "
            "Score the same images with both, or compare them as independent."
        )


def _norm(known: Vector, unknown: Vector) -> float:
    return float(np.sqrt((known * known).sum() + (unknown * unknown).sum()))
