r"""Bootstrap intervals of FPR95 and AUPR, without sorting the scores of each replicate.

A bootstrap draws images with replacement; the order of the scores stays, and only the count of each image changes. So
every side is sorted once, and all metrics of a replicate follow from :math:`P(i)` and :math:`N(i)`: the numbers of
draws of the positive and the negative class at or beyond the ``i``-th most positive score of the positive class. Where
:math:`P(i)` first reaches 95 % of the positives, :math:`N(i)` gives FPR95. AUPR is the area below the precision, by the
trapezoidal rule between the points just before and at each drawn score; in terms of the share of false alarms

.. math:: \operatorname{AUPR} = 1 - \sum_i \frac{p_i}{2 P} \left( \frac{N'(i)}{P(i - 1) + N'(i)}
    + \frac{N(i)}{P(i) + N(i)} \right), \qquad \frac00 = 0

with :math:`p_i = P(i) - P(i - 1)` of all ``P`` positives, and :math:`N'(i)` negatives strictly beyond the score.

All methods use the same resampled images. Draws have one row per image and one column per replicate, so that sorting
them for a method copies whole rows, and every step is one operation on many columns.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import log
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from .intervals import LEVEL, Vector, least_agreement
from .metrics import Scores, score_vector

METRICS = ("fpr95_ood_positive", "fpr95_id_positive", "aupr_out", "aupr_in")
CHUNK = 1 << 22  # images times replicates per chunk of a thread: about 80 MB
BLOCK = 32  # rows per block of running sums
ROWS = 1024  # points of curves processed together: they fit in a processor's cache

Counts = NDArray[np.integer]


def draws(n: int, replicates: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Return the number of draws of each of ``n`` images, ``(replicates, n)``; calls continue the stream."""
    counts = np.empty((replicates, n), dtype=np.int32)
    for row in counts:
        row[:] = np.bincount(rng.integers(n, size=n), minlength=n)
    return counts


def percentile_interval(estimate: float, replicates: Vector, level: float = LEVEL) -> tuple[float, float]:
    """Return the range of the middle ``level`` of the replicates, extended to contain the estimate."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return min(float(low), estimate), max(float(high), estimate)


def rate_interval(rate: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact binomial interval for a rate of 0 or 1 on ``n`` images; for other rates, the rate twice."""
    agreed = least_agreement(n, level)
    return (agreed if rate == 1 else rate), (1 - agreed if rate == 0 else rate)


def worst_case_aupr(share: float, positives: int, negatives: int) -> float:
    r"""Return the AUPR of perfect scores after a share of the negatives has moved above all positives.

    .. math:: \int_0^1 \frac{r}{r + x}\, dr = 1 - x \ln(1 + 1 / x), \qquad x = \text{share} \cdot \frac{n_-}{n_+}
    """
    x = share * negatives / positives
    return 1 - x * log(1 + 1 / x)


class _Ranking:
    """Scores of one side, sorted once."""

    def __init__(self, scores: Scores) -> None:
        vector = score_vector(scores)
        self.n = len(vector)
        self._order = np.argsort(vector)
        self.values, first = np.unique(vector[self._order], return_index=True)
        self._ends = np.append(first, self.n)

    def cumulative(self, counts: Counts) -> Counts:
        """Return the number of draws of the 0, 1, 2, ... lowest distinct scores, ``(g + 1, b)``, from ``(n, b)``."""
        # Running sums within short blocks, then over blocks: np.cumsum is three times slower along columns.
        blocks = np.empty((self.n // BLOCK + 1, BLOCK, counts.shape[1]), dtype=counts.dtype)
        sums = blocks.reshape(-1, counts.shape[1])[: self.n + 1]
        sums[0] = 0
        np.take(counts, self._order, axis=0, out=sums[1:], mode="clip")  # the mode that needs no buffer
        for row in range(1, BLOCK):
            blocks[:, row] += blocks[:, row - 1]
        blocks[1:] += np.cumsum(blocks[:-1, -1], axis=0, dtype=counts.dtype)[:, None]
        return sums if len(self.values) == self.n else sums.take(self._ends, axis=0)


class _Curve(NamedTuple):
    """Positions of the scores of the positive class among those of the negative class, the most positive score first.

    Row ``i`` of cumulative draws is for the ``i`` most positive scores.
    """

    at: NDArray[np.intp]  # for each row of the positives, the row of the negatives at or beyond the same score
    jumps: NDArray[np.intp]  # the rows after which negatives come before the next positive score
    before: NDArray[np.intp]  # for each jump, the row of the negatives strictly beyond that score

    @classmethod
    def between(cls, positive: NDArray[np.floating], negative: NDArray[np.floating]) -> Self:
        """Compare distinct scores of both classes, sorted, with the most positive one first and lowest."""
        at = np.append(0, np.searchsorted(negative, positive, side="right"))
        before = np.searchsorted(negative, positive, side="left")
        jumps = np.flatnonzero(before != at[:-1])
        return cls(at, jumps, before[jumps])

    def fpr95(self, positives: Counts, negatives: Counts) -> Vector:
        """Return the FPR at a TPR of 95 % for each column of cumulative draws."""
        needed = np.ceil(0.95 * positives[-1]).astype(positives.dtype)  # 0.95 n never rounds to just above an integer
        columns = np.arange(len(needed))
        low, high = np.zeros(len(needed), dtype=np.intp), np.full(len(needed), len(positives) - 1)
        for _ in range(len(positives).bit_length()):
            middle = (low + high) // 2
            reached = positives[middle, columns] >= needed
            low, high = np.where(reached, low, np.minimum(middle + 1, high)), np.where(reached, middle, high)
        rate: Vector = negatives[self.at[high], columns] / negatives[-1]
        return rate

    def aupr(self, positives: Counts, negatives: Counts) -> Vector:
        """Return the area under the precision-recall curve for each column of cumulative draws."""
        # The end of a step is the start of the next one, unless negatives come between them.
        weights = np.empty_like(positives)
        weights[0], weights[-1] = positives[1], positives[-1] - positives[-2]
        np.subtract(positives[2:], positives[:-2], out=weights[1:-1])
        before = positives[self.jumps]
        drawn = positives[self.jumps + 1] - before
        weights[self.jumps] -= drawn
        area = _weighted_share(weights, positives, negatives, self.at)
        area += _weighted_share(drawn, before, negatives, self.before)
        result: Vector = 1 - area / (2 * positives[-1])
        return result


def _weighted_share(weights: Counts, positives: Counts, negatives: Counts, rows: NDArray[np.intp]) -> Vector:
    """Return the weighted sum of the shares of negatives in the given rows, for each column; 0 / 0 counts as 0."""
    area = np.zeros(weights.shape[1])
    shares = np.empty((ROWS, len(area)))
    for first in range(np.searchsorted(rows, 1), len(rows), ROWS):  # before the first negative all shares are 0
        part = slice(first, first + ROWS)
        false = negatives.take(rows[part], axis=0)
        alarms = positives[part] + false
        if not alarms[0].all():  # later rows are not smaller
            np.maximum(alarms, 1, out=alarms)
        share = np.divide(false, alarms, out=shares[: len(false)])
        area += np.einsum("pb,pb->b", weights[part], share)
    return area


def _reverse_cumulative(sums: Counts) -> Counts:
    """Return the number of draws of the 0, 1, 2, ... highest distinct scores."""
    above: Counts = sums[-1] - sums[::-1]
    return above


class SortedScores:
    """Scores of several methods on the same ID images and OOD data sets, sorted once for any number of resamplings.

    Args:
        known: Scores of the ID images by method, ``(n,)`` each.
        unknown: By method, scores of each OOD data set, ``(m,)``.
    """

    def __init__(self, known: Sequence[Scores], unknown: Sequence[Sequence[Scores]]) -> None:
        self._known = [_Ranking(scores) for scores in known]
        self._unknown = [[_Ranking(scores) for scores in sets] for sets in unknown]
        sizes = {
            (ours.n, *(theirs.n for theirs in sets)) for ours, sets in zip(self._known, self._unknown, strict=True)
        }
        if len(sizes) > 1:
            raise ValueError(
                f"methods must have scored the same images, got {' and '.join(map(str, sorted(sizes)))} scores. "
                "Resample them one by one."
            )
        (self.sizes,) = sizes
        self._curves = [
            [
                (_Curve.between(-theirs.values[::-1], -ours.values[::-1]), _Curve.between(ours.values, theirs.values))
                for theirs in sets
            ]
            for ours, sets in zip(self._known, self._unknown, strict=True)
        ]

    def metrics(
        self, known_counts: Counts, unknown_counts: Sequence[Counts], names: Sequence[str] = METRICS
    ) -> dict[str, Vector]:
        """Return metrics of ``np.repeat(scores, counts)``, ``(methods, data sets, b)`` each.

        Args:
            known_counts: The count of each ID image, ``(b, n)``.
            unknown_counts: The same for each OOD data set, ``(b, m)``.
            names: The metrics to compute, a subset of ``METRICS``.
        """
        b = len(known_counts)
        most = int(known_counts.sum(axis=1).max() + max(counts.sum(axis=1).max() for counts in unknown_counts))
        # Short integers halve the time. A single column would be summed in another order than one among many.
        dtype: type[np.signedinteger] = np.int16 if most < 2**15 else np.int32 if most < 2**31 else np.int64
        ours, *theirs = (
            np.ascontiguousarray(counts.repeat(2 if b == 1 else 1, axis=0).astype(dtype).T)
            for counts in (known_counts, *unknown_counts)
        )
        metrics = {name: np.empty((len(self._known), len(theirs), b)) for name in names}

        def resample(method: int) -> None:
            known = self._known[method].cumulative(ours)
            known_above = _reverse_cumulative(known)
            for dataset, counts in enumerate(theirs):
                unknown = self._unknown[method][dataset].cumulative(counts)
                out, in_ = self._curves[method][dataset]
                ood_positive, id_positive = (_reverse_cumulative(unknown), known_above), (known, unknown)
                for name, metric, sums in (
                    ("fpr95_ood_positive", out.fpr95, ood_positive),
                    ("fpr95_id_positive", in_.fpr95, id_positive),
                    ("aupr_out", out.aupr, ood_positive),
                    ("aupr_in", in_.aupr, id_positive),
                ):
                    if name in names:
                        metrics[name][method, dataset] = metric(*sums)[:b]

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # numpy releases the interpreter lock
            list(pool.map(resample, range(len(self._known))))
        return metrics

    def bootstrap(
        self,
        replicates: int,
        rngs: Sequence[np.random.Generator],
        names: Sequence[str] = METRICS,
        track: Callable[[Sequence[int]], Iterable[int]] = iter,
    ) -> dict[str, Vector]:
        """Return metrics of bootstraps, ``(methods, data sets, replicates)`` each.

        Args:
            replicates: Number of resamplings, at least 1.
            rngs: Generators for the ID images and for each OOD data set; equal ones draw the same images.
            names: The metrics to compute, a subset of ``METRICS``.
            track: Called with the sizes of the chunks, to report progress.
        """
        most = max(1, CHUNK // (self.sizes[0] + max(self.sizes[1:])))
        chunks = [min(most, replicates - first) for first in range(0, replicates, most)]
        parts = []
        for size in track(chunks):
            known, *unknown = (draws(n, size, rng) for n, rng in zip(self.sizes, rngs, strict=True))
            parts.append(self.metrics(known, unknown, names))
        return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in names}
