"""Compute metrics with intervals, and compare methods and runs.

All methods score the same images, so comparisons are paired: AUROCs by the influence function
(:mod:`~flatfold.core.intervals`), other metrics on the same bootstrap samples (:mod:`~flatfold.core.bootstrap`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.bootstrap import METRICS, SortedScores, percentile_interval, rate_interval, worst_case_aupr
from ..core.intervals import (
    Influence,
    auroc_influence,
    independent_difference,
    interval,
    least_agreement,
    mean_influence,
    paired_difference,
)
from ..core.metrics import aupr, auroc, fpr_at_tpr
from ..io.progress import track
from .metrics import SHOWN
from .results import ID, OPENOOD, PAPER, Average, Certainty, Results, Row, columns_of
from .suites.suite import Group

SIGNIFICANT = 0.05
AUROC = "auroc"
FPR95 = "fpr95_ood_positive"
FIGURES: dict[str, Callable[[NDArray[np.floating], NDArray[np.floating]], float]] = {
    "auroc": auroc,
    FPR95: partial(fpr_at_tpr, positive="ood"),
    "fpr95_id_positive": partial(fpr_at_tpr, positive="id"),
    "aupr_out": partial(aupr, positive="ood"),
    "aupr_in": partial(aupr, positive="id"),
}

Scores = Mapping[str, NDArray[np.floating]]
Columns = Mapping[str, Sequence[str]]
_Side = tuple[Scores, str]  # the scores of a run, and one of its methods


@dataclass(frozen=True)
class Change:
    """Difference of one metric between A and B."""

    method: str  # label in both runs, or "first -> second"
    column: str  # a data set, or near, far or all for an average
    metric: str  # its field in results
    a: float
    b: float
    difference: float  # b - a, with its 95 % interval
    low: float
    high: float
    p_value: float | None  # two-sided; of AUROC only, other metrics have an interval
    paired: bool  # both used the same images, and the test is paired
    runs: int = 1  # whose mean it is; they differ by their seed

    @property
    def significant(self) -> bool:
        """Whether 0 lies outside the interval."""
        return not self.low <= 0 <= self.high


def tabulate(
    scores: Scores, tuned_on: Mapping[str, str], groups: Mapping[str, Group], replicates: int = 1000, seed: int = 0
) -> tuple[list[Row], list[Average]]:
    """Compute the metrics of every method on every data set, and their means over near, far and all data sets.

    AUROC gets DeLong's interval on the logit scale; averages account for the ID images shared by the data sets.
    Other metrics get bootstrap percentile intervals. The bootstrap of a perfect score has no spread, so
    a rate of 0 or 1 also gets the exact binomial bound, and an AUPR of 1 the area that remains if as many
    negatives as could have been missed are ranked before all positives. Every interval contains its estimate.

    A method is among the best if it has the highest AUROC of the column, or if the paired test against the best has
    a p-value of at least 0.05 over the number of other methods (Bonferroni).

    Scores are keyed by ``method/dataset``, with ``id`` for the ID test images; ``tuned_on`` is by method and ``groups``
    by data set. Without replicates only AUROC has intervals. Intervals of a method do not depend on other methods.
    """
    if replicates < 0:
        raise ValueError(f"replicates must be 0 or more, got {replicates}. The default is 1000.")
    columns = columns_of(groups)
    pairs = [(method, dataset) for method in tuned_on for dataset in groups]
    sides = [(scores[f"{method}/{ID}"], scores[f"{method}/{dataset}"]) for method, dataset in pairs]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # numpy releases the lock while sorting
        values = zip(*(pool.map(figure, *zip(*sides, strict=True)) for figure in FIGURES.values()), strict=True)
        singles = {pair: dict(zip(FIGURES, row, strict=True)) for pair, row in zip(pairs, values, strict=True)}
        single_influences = dict(zip(pairs, pool.map(auroc_influence, *zip(*sides, strict=True)), strict=True))
    redrawn = resampled(scores, list(tuned_on), list(groups), replicates, seed) if replicates else {}
    influences = {
        column: {method: mean_influence([single_influences[method, d] for d in members]) for method in tuned_on}
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
            certainty = Certainty(intervals, *compare_with_best(method, influences[column]))
            if column in groups:
                group, n_ood = groups[column], sizes[0]
                its: dict[str, Any] = {**figures, "n_id": n_id, "n_ood": n_ood, "certainty": certainty}
                rows.append(Row(method, tuned, column, group, **its))
            else:
                as_in = PAPER if column == "all" else OPENOOD
                averages.append(Average(method, tuned, column, as_in, **figures, certainty=certainty))
    return rows, averages


def column_influence(scores: Scores, method: str, members: Sequence[str]) -> Influence:
    """Return the mean AUROC of a method over data sets, with the influence of every image."""
    id_scores = scores[f"{method}/{ID}"]
    return mean_influence([auroc_influence(id_scores, scores[f"{method}/{dataset}"]) for dataset in members])


def resampled(
    scores: Scores,
    methods: Sequence[str],
    datasets: Sequence[str],
    replicates: int,
    seed: int,
    names: Sequence[str] = METRICS,
) -> dict[tuple[str, str], dict[str, NDArray[np.float64]]]:
    """Return bootstrap replicates of metrics, ``(replicates,)`` each, by method and data set.

    The draws depend only on the seed and on the name and size of the data set: ID images are the same for every data
    set, and all images for every method.
    """
    known = [scores[f"{method}/{ID}"] for method in methods]
    unknown = [[scores[f"{method}/{dataset}"] for dataset in datasets] for method in methods]
    rngs = [np.random.default_rng([seed, *dataset.encode()]) for dataset in (ID, *datasets)]
    follow = partial(track, description="resampling images")
    metrics = SortedScores(known, unknown).bootstrap(replicates, rngs, names, follow)
    return {
        (method, dataset): {name: values[i, j] for name, values in metrics.items()}
        for i, method in enumerate(methods)
        for j, dataset in enumerate(datasets)
    }


def compare(
    a: Results,
    b: Results,
    methods: Sequence[str] | None = None,
    replicates: int = 1000,
    seed: int = 0,
    metrics: Sequence[str] = SHOWN,
) -> list[Change]:
    """Compare runs A and B, for every method and column that both have.

    If both used the same images, by the fingerprints of the ID test data and of the data sets of the column, AUROCs
    are compared by DeLong's paired test and other metrics on the same bootstrap samples; methods with identical
    rankings differ by exactly 0. Otherwise the images of both runs are treated as independent, which has less power.
    :func:`only_one_has` lists what could not be compared.

    Args:
        a: The first run.
        b: The second run; differences are B - A.
        methods: Labels of the methods to compare; by default all that both runs have.
        replicates: Bootstrap replicates for other metrics than AUROC; 0 omits them.
        seed: Random seed of the bootstrap.
        metrics: Fields of results to compare: AUROC and FPR95 by default.
    """
    if methods is None:
        methods = [method for method in _labels(a) if method in _labels(b)]
    for run, name in ((a, "A"), (b, "B")):
        run.require_scores()
        check_labels(run, methods, name)
    methods = list(dict.fromkeys(methods))
    columns = {column: members for column, members in a.members.items() if b.members.get(column) == members}
    if not methods or not columns:
        what = "data set" if methods else "method"
        raise ValueError(f"the runs have no {what} in common. {' '.join(only_one_has(a, b))}")
    same = {dataset for members in columns.values() for dataset in (ID, *members) if _same_images(a, b, dataset)}
    paired = {column for column, members in columns.items() if {ID, *members} <= same}
    changes = []
    for method in track(methods, "comparing"):
        sides = [(run.scores, method) for run in (a, b)]
        changes += _changes(method, sides, columns, paired, metrics, replicates, seed)
    return changes


def compare_methods(
    results: Results,
    first: str,
    second: str,
    replicates: int = 1000,
    seed: int = 0,
    metrics: Sequence[str] = SHOWN,
) -> list[Change]:
    """Compare two methods of one run in every column, by paired tests.

    Args:
        results: The run.
        first: Label of the method used as A.
        second: Label of the method used as B.
        replicates: Bootstrap replicates for other metrics than AUROC; 0 omits them.
        seed: Random seed of the bootstrap.
        metrics: Fields of results to compare: AUROC and FPR95 by default.
    """
    results.require_scores()
    check_labels(results, (first, second))
    if first == second:
        raise ValueError(f"the methods must differ, got {first!r} twice. Available: {', '.join(_labels(results))}.")
    sides = [(results.scores, method) for method in (first, second)]
    return _changes(f"{first} -> {second}", sides, results.members, results.members, metrics, replicates, seed)


def only_one_has(a: Results, b: Results) -> list[str]:
    """Return sentences about methods, data sets and averages that cannot be compared between two runs."""
    of_a, of_b = a.members, b.members
    sentences = []
    for what, in_a, in_b in (("methods", _labels(a), _labels(b)), ("data sets", of_a["all"], of_b["all"])):
        for run, these, those in (("A", in_a, in_b), ("B", in_b, in_a)):
            alone = [name for name in these if name not in those]
            sentences += [f"Only {run} has the {what} {', '.join(alone)}."] if alone else []
    for column in of_a:
        if column in of_b and of_a[column] != of_b[column]:
            sentences.append(f"The average {column!r} is over different data sets in A and B.")
    return sentences


def check_labels(results: Results, methods: Iterable[str], run: str = "the run") -> None:
    """Raise unless a run has all methods, with similar names as a hint; ``run`` is its name in the message."""
    for method in methods:
        if method not in _labels(results):
            near = get_close_matches(method, _labels(results), n=3, cutoff=0.5)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"It has {', '.join(_labels(results))}."
            raise ValueError(f"no method of {run} is called {method!r}. {hint}")


def compare_with_best(method: str, influences: Mapping[str, Influence]) -> tuple[float, float, float, float, bool]:
    """Return the lead of the best method with its interval and p-value, and whether it is insignificant."""
    best = max(influences, key=lambda name: influences[name].auroc)  # the first of equals
    if method == best:
        return 0.0, 0.0, 0.0, 1.0, True
    difference = paired_difference(influences[best], influences[method])
    among = difference.p_value >= SIGNIFICANT / (len(influences) - 1)
    return difference.value, difference.low, difference.high, difference.p_value, among


def _bounds_if_perfect(metric: str, estimate: float, n: int, sizes: Sequence[int]) -> tuple[float, float]:
    """Return bounds for a perfect estimate, whose bootstrap has no spread; other estimates are returned twice."""
    if metric == FPR95:
        return rate_interval(estimate, n)
    if metric == "fpr95_id_positive":
        return rate_interval(estimate, min(sizes))
    if estimate < 1:
        return estimate, estimate
    missed = 1 - least_agreement(min(n, *sizes))
    areas = (worst_case_aupr(missed, *((m, n) if metric == "aupr_out" else (n, m))) for m in sizes)
    return fmean(areas), 1.0


def _changes(
    name: str,
    sides: Sequence[_Side],
    columns: Columns,
    paired: Collection[str],
    metrics: Sequence[str],
    replicates: int,
    seed: int,
) -> list[Change]:
    """Return the differences between two sides in each column; ``paired`` columns share their images."""
    others = [metric for metric in metrics if metric != AUROC] if replicates else []

    @cache  # the averages need them again
    def redrawn(side: int, dataset: str, seed: int) -> dict[str, NDArray[np.float64]]:
        scores, method = sides[side]
        return resampled(scores, [method], [dataset], replicates, seed, others)[method, dataset]

    changes = []
    for column, members in columns.items():
        together = column in paired
        rows = list[Change]()
        if AUROC in metrics:
            a, b = (column_influence(*side, members) for side in sides)
            change = paired_difference(b, a) if together else independent_difference(b, a)
            numbers = (a.auroc, b.auroc, change.value, change.low, change.high, change.p_value)
            rows.append(Change(name, column, AUROC, *numbers, together))
        seeds = (seed, seed if together else seed + 1)
        for metric in others:
            means = [
                np.mean([redrawn(side, dataset, seeds[side])[metric] for dataset in members], axis=0) for side in (0, 1)
            ]
            values = _values(metric, sides, members, means[1] - means[0])
            rows.append(Change(name, column, metric, *values, None, together))
        if together and all(_rank_alike(sides, dataset) for dataset in members):
            rows = [replace(row, low=0.0, high=0.0) for row in rows]
        changes += rows
    return changes


def _rank_alike(sides: Sequence[_Side], dataset: str) -> bool:
    """Return whether both methods rank the images of a data set and the ID images identically, including ties."""
    both = [np.append(scores[f"{method}/{ID}"], scores[f"{method}/{dataset}"]) for scores, method in sides]
    a, b = (np.unique(values, return_inverse=True)[1] for values in both)
    return bool(np.array_equal(a, b))


def _values(
    metric: str, sides: Sequence[_Side], members: Sequence[str], redrawn: NDArray[np.float64]
) -> tuple[float, float, float, float, float]:
    """Return a metric of both sides and the difference with its interval."""
    found = []
    for scores, method in sides:
        id_scores, sets = scores[f"{method}/{ID}"], [scores[f"{method}/{name}"] for name in members]
        value = fmean(FIGURES[metric](id_scores, ood_scores) for ood_scores in sets)
        found.append((value, *_bounds_if_perfect(metric, value, len(id_scores), list(map(len, sets)))))
    (a, a_low, a_high), (b, b_low, b_high) = found
    low, high = percentile_interval(b - a, redrawn)
    return a, b, b - a, min(low, b_low - a_high), max(high, b_high - a_low)


def _same_images(a: Results, b: Results, dataset: str) -> bool:
    """Return whether two runs used the same images of a data set, in the same order."""
    name = "test" if dataset == ID else dataset
    prints = [run.suite.get("fingerprints", {}).get(name) for run in (a, b)]
    unreadable = [run.unreadable.get(name, {}).keys() for run in (a, b)]
    sizes = [{len(run.scores[f"{method}/{dataset}"]) for method in _labels(run)} for run in (a, b)]
    same = prints[0] == prints[1] and unreadable[0] == unreadable[1] and sizes[0] == sizes[1]
    return prints[0] is not None and same


def _labels(results: Results) -> list[str]:
    return [run.method for run in results.methods]
