"""Bootstrap intervals of FPR95 and AUPR, without sorting the scores of each replicate.

A bootstrap draws images with replacement; the order of the scores stays, and only how often each image counts changes.
So both sides are sorted once, and every metric of a replicate comes from :math:`K(i)` and :math:`U(j)`, how many draws
fell on the ``i`` lowest ID and the ``j`` lowest OOD scores: at a threshold with ``i`` ID and ``j`` OOD scores below it,
:math:`K(n) - K(i)` ID and :math:`U(m) - U(j)` OOD draws raise an alarm.
"""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .intervals import LEVEL, Vector, least_agreement
from .metrics import Scores, score_vectors

METRICS = ("fpr95_ood_positive", "fpr95_id_positive", "aupr_out", "aupr_in")
CHUNK = 1 << 18  # images times replicates that are worked on at once: some 20 MB

Counts = NDArray[np.integer]


def draws(n: int, replicates: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Return how often each of ``n`` images is drawn, ``(replicates, n)``; two calls continue as one would."""
    counts = np.empty((replicates, n), dtype=np.int32)
    for row in counts:
        row[:] = np.bincount(rng.integers(n, size=n), minlength=n)
    return counts


def percentile_interval(estimate: float, replicates: Vector, level: float = LEVEL) -> tuple[float, float]:
    """Return the range of the middle ``level`` of the replicates, stretched to hold the estimate if it does not."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return min(float(low), estimate), max(float(high), estimate)


def rate_interval(rate: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact binomial interval for a rate that was 0 or 1 on all of ``n`` images, else the rate twice."""
    agreed = least_agreement(n, level)
    return (agreed if rate == 1 else rate), (1 - agreed if rate == 0 else rate)


def worst_case_aupr(share: float, positives: int, negatives: int) -> float:
    r"""Return the AUPR of perfect scores after a share of the negatives has moved above all positives.

    .. math:: \int_0^1 \frac{r}{r + x}\, dr = 1 - x \ln(1 + 1 / x), \qquad x = \text{share} \cdot \frac{n_-}{n_+}
    """
    x = share * negatives / positives
    return 1 - x * log(1 + 1 / x)


class _Curve(NamedTuple):
    """Draws above each score of the positive class, the most positive score first, each ``(b, g)``."""

    before: Counts  # positives strictly above it
    found: Counts  # positives at or above it
    above: Counts  # negatives strictly above it
    at_least: Counts  # negatives at or above it

    def fpr95(self, negatives: Counts) -> Vector:
        needed = np.ceil(0.95 * self.found[:, -1:]).astype(np.int32)  # in floats too it is never above a whole number
        threshold = (self.found < needed).sum(axis=1, keepdims=True)
        return np.take_along_axis(self.at_least, threshold, axis=1)[:, 0] / negatives

    def aupr(self) -> Vector:
        # Above the first draw there is no precision: 1 by convention at the start, and no weight at the end.
        flagged = self.before + self.above
        start = np.where(flagged > 0, self.before / np.maximum(flagged, 1), 1.0)
        end = self.found / np.maximum(self.found + self.at_least, 1)
        area: Vector = ((self.found - self.before) * (start + end)).sum(axis=1)
        return area / (2 * self.found[:, -1])


class SortedPair:
    """Scores of ID (``known``) and OOD (``unknown``) images, sorted once for any number of resamplings."""

    def __init__(self, known: Scores, unknown: Scores) -> None:
        known, unknown = score_vectors(known, unknown)
        self.n, self.m = len(known), len(unknown)
        self._known_order, self._unknown_order = np.argsort(known), np.argsort(unknown)
        known, unknown = known[self._known_order], unknown[self._unknown_order]
        known_values, unknown_values = np.unique(known), np.unique(unknown)[::-1]  # each from the most positive on
        self._at_known = (*_places(known, known_values), *_places(unknown, known_values))
        self._at_unknown = (*_places(unknown, unknown_values)[::-1], *_places(known, unknown_values)[::-1])

    def metrics(
        self, known_counts: Counts, unknown_counts: Counts, names: Sequence[str] = METRICS
    ) -> dict[str, Vector]:
        """Return the metrics of ``np.repeat(scores, counts)`` for each row of counts ``(b, n)`` and ``(b, m)``."""
        known = _cumulative(known_counts.take(self._known_order, axis=1))
        unknown = _cumulative(unknown_counts.take(self._unknown_order, axis=1))
        metrics: dict[str, Vector] = {}
        for positive, fpr95, aupr in (
            ("ood", "fpr95_ood_positive", "aupr_out"),
            ("id", "fpr95_id_positive", "aupr_in"),
        ):
            if fpr95 in names or aupr in names:
                curve, negatives = self._curve(known, unknown, positive)
                metrics |= {fpr95: curve.fpr95(negatives)} if fpr95 in names else {}
                metrics |= {aupr: curve.aupr()} if aupr in names else {}
        return metrics

    def bootstrap(
        self,
        replicates: int,
        rngs: tuple[np.random.Generator, np.random.Generator],
        names: Sequence[str] = METRICS,
    ) -> dict[str, Vector]:
        """Return metrics of bootstraps, ``(replicates,)`` each; equal generators draw the same images."""
        rows = max(1, CHUNK // (self.n + self.m))
        sizes = (min(rows, replicates - first) for first in range(0, replicates, rows))
        parts = [self.metrics(draws(self.n, size, rngs[0]), draws(self.m, size, rngs[1]), names) for size in sizes]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def _curve(self, known: Counts, unknown: Counts, positive: str) -> tuple[_Curve, Counts]:
        """Return the draws at each score of the positive class, and how many negatives were drawn."""
        # take, not an index: rows stay contiguous, and a sum along one does not depend on how many rows there are
        if positive == "id":
            places = zip((known, known, unknown, unknown), self._at_known, strict=True)
            return _Curve(*(sums.take(place, axis=1) for sums, place in places)), unknown[:, -1]
        places = zip((unknown, unknown, known, known), self._at_unknown, strict=True)
        return _Curve(*(sums[:, -1:] - sums.take(place, axis=1) for sums, place in places)), known[:, -1]


def _cumulative(counts: Counts) -> NDArray[np.int32]:
    """Return how many draws fell on the first 0, 1, 2, ... images, ``(b, n + 1)``."""
    sums = np.zeros((len(counts), counts.shape[1] + 1), dtype=np.int32)
    np.cumsum(counts, axis=1, out=sums[:, 1:])
    return sums


def _places(ranked: NDArray[np.floating], values: NDArray[np.floating]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return how many of the ranked scores are below each value, and how many are not above it."""
    return np.searchsorted(ranked, values, side="left"), np.searchsorted(ranked, values, side="right")
