"""Intervals of every figure of a table, and the methods that are not significantly different from the best.

All methods saw the same images, so they are compared image by image: AUROCs through the influence of every image
(:mod:`~flatfold.core.intervals`), the other metrics on the same redrawn images (:mod:`~flatfold.core.bootstrap`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ..core.bootstrap import METRICS, SortedPair, percentile_interval, rate_interval, worst_case_aupr
from ..core.intervals import Influence, auroc_influence, interval, least_agreement, mean_influence, paired_difference
from ..core.metrics import aupr, fpr_at_tpr
from ..io.progress import track
from .results import ID, Certainty

SIGNIFICANT = 0.05
FIGURES: dict[str, Callable[[NDArray[np.floating], NDArray[np.floating]], float]] = {
    "fpr95_ood_positive": partial(fpr_at_tpr, positive="ood"),
    "fpr95_id_positive": partial(fpr_at_tpr, positive="id"),
    "aupr_out": partial(aupr, positive="ood"),
    "aupr_in": partial(aupr, positive="id"),
}

Scores = Mapping[str, NDArray[np.floating]]
Columns = Mapping[str, Sequence[str]]


def certainty(
    scores: Scores, methods: Sequence[str], columns: Columns, replicates: int = 1000, seed: int = 0
) -> dict[tuple[str, str], Certainty]:
    """Return 95 % intervals of every figure, and the difference of each method from the best of its column.

    AUROC gets DeLong's interval on the logit scale; an average over data sets counts that they share the ID images.
    Every other metric gets the percentiles of a bootstrap. One that is perfect on every image is perfect on all redrawn
    ones too: a rate of 0 or 1 also gets the exact binomial bound, an AUPR of 1 the area that is left when as many
    negatives as could have been missed are ranked before all positives. Every interval holds its figure.

    A method is among the best when it has the highest AUROC of the column, or when the paired test against that one has
    a p-value of at least 0.05 over the number of other methods (Bonferroni).

    Scores are keyed by ``method/dataset``, with ``id`` for the ID test images, and the result by method and column.
    Without replicates there are intervals of AUROC only. The other methods do not change the intervals of one.
    """
    _check(scores, methods, columns, replicates)
    datasets = list(dict.fromkeys(dataset for members in columns.values() for dataset in members))
    pairs = [(method, dataset) for method in methods for dataset in datasets]
    work = track(pairs if replicates else [], "resampling images")
    redrawn = {pair: resampled(scores, *pair, replicates, seed) for pair in work}
    cells: dict[tuple[str, str], Certainty] = {}
    for column, members in columns.items():
        influences = {method: column_influence(scores, method, members) for method in methods}
        for method, it in influences.items():
            intervals = {"auroc": interval(it.auroc, it.stderr, it.pairs, it.pairs)}
            if replicates:
                intervals |= _intervals(scores, method, members, [redrawn[method, dataset] for dataset in members])
            cells[method, column] = Certainty(intervals, *_compare_with_best(method, influences))
    return cells


def column_influence(scores: Scores, method: str, members: Sequence[str]) -> Influence:
    """Return the mean AUROC of a method over some data sets, with the influence of every image on it."""
    id_scores = scores[f"{method}/{ID}"]
    return mean_influence([auroc_influence(id_scores, scores[f"{method}/{dataset}"]) for dataset in members])


def resampled(
    scores: Scores, method: str, dataset: str, replicates: int, seed: int, names: Sequence[str] = METRICS
) -> dict[str, NDArray[np.float64]]:
    """Return metrics of a method on redrawn images, ``(replicates,)`` each.

    The draws depend on the seed, the data set's name and its size alone: the ID images are the same for every data set,
    and all images for every method.
    """
    pair = SortedPair(scores[f"{method}/{ID}"], scores[f"{method}/{dataset}"])
    rngs = np.random.default_rng([seed, *ID.encode()]), np.random.default_rng([seed, *dataset.encode()])
    return pair.bootstrap(replicates, rngs, names)


def _compare_with_best(method: str, influences: Mapping[str, Influence]) -> tuple[float, float, float, float, bool]:
    """Return the lead of the best method, the ends of its interval, the p-value, and whether it is insignificant."""
    best = max(influences, key=lambda name: influences[name].auroc)  # the first of equals
    if method == best:
        return 0.0, 0.0, 0.0, 1.0, True
    difference = paired_difference(influences[best], influences[method])
    among = difference.p_value >= SIGNIFICANT / (len(influences) - 1)
    return difference.value, difference.low, difference.high, difference.p_value, among


def _intervals(
    scores: Scores, method: str, members: Sequence[str], parts: Sequence[Mapping[str, NDArray[np.float64]]]
) -> dict[str, tuple[float, float]]:
    """Return the interval of the mean over some data sets, for every metric but AUROC."""
    id_scores, ood_scores = scores[f"{method}/{ID}"], [scores[f"{method}/{dataset}"] for dataset in members]
    intervals = {}
    for metric, figure in FIGURES.items():
        estimate = fmean(figure(id_scores, ood) for ood in ood_scores)
        low, high = percentile_interval(estimate, np.mean([part[metric] for part in parts], axis=0))
        exact = _bounds_if_perfect(metric, estimate, len(id_scores), [len(ood) for ood in ood_scores])
        intervals[metric] = min(low, exact[0]), max(high, exact[1])
    return intervals


def _bounds_if_perfect(metric: str, estimate: float, n: int, sizes: Sequence[int]) -> tuple[float, float]:
    """Return bounds for a figure that no redrawn image can change, or any other figure twice."""
    if metric == "fpr95_ood_positive":
        return rate_interval(estimate, n)
    if metric == "fpr95_id_positive":
        return rate_interval(estimate, min(sizes))
    if estimate < 1:
        return estimate, estimate
    missed = 1 - least_agreement(min(n, *sizes))
    areas = (worst_case_aupr(missed, *((m, n) if metric == "aupr_out" else (n, m))) for m in sizes)
    return fmean(areas), 1.0


def _check(scores: Scores, methods: Sequence[str], columns: Columns, replicates: int) -> None:
    if not methods:
        raise ValueError("intervals need at least one method, got none. Name one.")
    if replicates < 0:
        raise ValueError(f"replicates must be 0 or more, got {replicates}. 1000 is customary, 0 leaves them out.")
    for column, members in columns.items():
        if not members:
            raise ValueError(f"the column {column!r} has no data set. Leave it out.")
    for dataset in (ID, *(dataset for members in columns.values() for dataset in members)):
        for method in methods:
            if f"{method}/{dataset}" not in scores:
                raise ValueError(f"there are no scores {method}/{dataset}. Score every data set with every method.")
        sizes = {method: len(scores[f"{method}/{dataset}"]) for method in methods}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{method} {size}" for method, size in sizes.items())
            raise ValueError(f"all methods must have scored the same images, but of {dataset!r} there are: {listed}.")
