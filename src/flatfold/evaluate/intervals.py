"""Figures of every method and data set, their averages, and intervals and comparisons with the best for all of them.

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
from ..core.metrics import aupr, auroc, fpr_at_tpr
from ..io.progress import track
from .results import ID, OPENOOD, PAPER, Average, Certainty, Row, columns_of
from .suites.suite import Group

SIGNIFICANT = 0.05
FIGURES: dict[str, Callable[[NDArray[np.floating], NDArray[np.floating]], float]] = {
    "auroc": auroc,
    "fpr95_ood_positive": partial(fpr_at_tpr, positive="ood"),
    "fpr95_id_positive": partial(fpr_at_tpr, positive="id"),
    "aupr_out": partial(aupr, positive="ood"),
    "aupr_in": partial(aupr, positive="id"),
}

Scores = Mapping[str, NDArray[np.floating]]
Columns = Mapping[str, Sequence[str]]


def tabulate(
    scores: Scores, tuned_on: Mapping[str, str], groups: Mapping[str, Group], replicates: int = 1000, seed: int = 0
) -> tuple[list[Row], list[Average]]:
    """Return the figures of every method on every data set, and their means over near, far and all data sets.

    AUROC gets DeLong's interval on the logit scale; an average over data sets counts that they share the ID images.
    Every other metric gets the percentiles of a bootstrap. One that is perfect on every image is perfect on all redrawn
    ones too: a rate of 0 or 1 also gets the exact binomial bound, an AUPR of 1 the area that is left when as many
    negatives as could have been missed are ranked before all positives. Every interval holds its figure.

    A method is among the best when it has the highest AUROC of the column, or when the paired test against that one has
    a p-value of at least 0.05 over the number of other methods (Bonferroni).

    Scores are keyed by ``method/dataset``, with ``id`` for the ID test images; ``tuned_on`` is by method and ``groups``
    by data set. Without replicates there are intervals of AUROC only. The other methods do not change those of one.
    """
    if replicates < 0:
        raise ValueError(f"replicates must be 0 or more, got {replicates}. 1000 is customary, 0 leaves them out.")
    columns = columns_of(groups)
    pairs = [(method, dataset) for method in tuned_on for dataset in groups]
    singles = {
        (m, d): {name: f(scores[f"{m}/{ID}"], scores[f"{m}/{d}"]) for name, f in FIGURES.items()} for m, d in pairs
    }
    work = track(pairs if replicates else [], "resampling images")
    redrawn = {pair: resampled(scores, *pair, replicates, seed) for pair in work}
    influences = {
        column: {method: column_influence(scores, method, members) for method in tuned_on}
        for column, members in columns.items()
    }
    rows, averages = [], []
    for method, tuned in tuned_on.items():
        n_id = len(scores[f"{method}/{ID}"])
        for column, members in columns.items():
            sizes = [len(scores[f"{method}/{dataset}"]) for dataset in members]
            figures = {name: fmean(singles[method, dataset][name] for dataset in members) for name in FIGURES}
            it = influences[column][method]
            intervals = {"auroc": interval(it.auroc, it.stderr, it.pairs, it.pairs)}
            for metric in METRICS if replicates else ():
                means = np.mean([redrawn[method, dataset][metric] for dataset in members], axis=0)
                low, high = percentile_interval(figures[metric], means)
                exact = _bounds_if_perfect(metric, figures[metric], n_id, sizes)
                intervals[metric] = min(low, exact[0]), max(high, exact[1])
            certainty = Certainty(intervals, *_compare_with_best(method, influences[column]))
            if column in groups:
                group, n_ood = groups[column], sizes[0]
                rows.append(Row(method, tuned, column, group, **figures, n_id=n_id, n_ood=n_ood, certainty=certainty))
            else:
                as_in = PAPER if column == "all" else OPENOOD
                averages.append(Average(method, tuned, column, as_in, **figures, certainty=certainty))
    return rows, averages


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
