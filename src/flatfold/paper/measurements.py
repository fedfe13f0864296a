"""Quantities of a run that the checks of the paper's claims compare, with their uncertainty."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot, inf, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import iqr

from ..core.bootstrap import percentile_interval
from ..core.intervals import Influence, auroc_influence, interval, mean_influence, paired_difference
from ..evaluate.compare import column_influence, resampled
from ..evaluate.results import ID, Results
from ..evaluate.study_results import Name, Space, Statistic, Study, typical_error
from .ablations import FORWARD, Ablations, Cost
from .tables import FOLD_FAMILY

REGIMES = {ID: "ID", "near": "near", "far": "far"}  # with their names in tables
STATISTICS: tuple[Name, ...] = ("lambda_max", "trace")
SPACES_SHOWN: tuple[Space, ...] = ("parameter", "feature")
FPR95 = "fpr95_ood_positive"
NORMAL = 1.959964  # half the width of a 95 % interval, in standard deviations of a normal distribution
RATE_REPLICATES, QUARTILE_REPLICATES, MODE_REPLICATES = 400, 500, 200
MODE_BINS = 1024  # bins of the density whose modes are counted
FLAT = 1e-9  # share of the largest density below which modes are rounding errors
FEW_ROUNDS = 4  # below, the quartiles of a time are not used
NO_DATA = ("fold", "fold-a")  # methods that do not learn from images

Vector = NDArray[np.float64]


class NetworkRun(NamedTuple):
    """All measurements of one network; ``network`` is its name in tables, empty if it is the only one."""

    network: str
    results: Results
    study: Study
    ablations: Ablations


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, half: float) -> "Interval":
        """Return a symmetric interval of the given half-width."""
        return cls(value, value - half, value + half)

    @classmethod
    def of_auroc(cls, auroc: Influence) -> "Interval":
        """Return an AUROC with its interval."""
        return cls(auroc.auroc, *interval(auroc.auroc, auroc.stderr, auroc.pairs, auroc.pairs))

    @classmethod
    def of_difference(cls, a: Influence, b: Influence) -> "Interval":
        """Return the difference ``a - b`` of two AUROCs on the same images."""
        found = paired_difference(a, b)
        return cls(found.value, found.low, found.high)

    @classmethod
    def mean(cls, intervals: Sequence["Interval"]) -> "Interval":
        """Return the mean of values with the mean of their intervals, which allows for any overlap of their images."""
        return cls(*(fmean(ends) for ends in zip(*intervals, strict=True)))

    def above(self, bound: float = 0.0) -> bool | None:
        """Return whether the interval lies above ``bound``, or below it; None if it contains ``bound``."""
        return decide(self.low > bound, self.high < bound)

    def at_most(self, bound: float) -> bool | None:
        """Return whether the interval lies at or below ``bound``, or above it; None if it contains ``bound``."""
        return decide(self.high <= bound, self.low > bound)


def decide(true: bool, false: bool) -> bool | None:
    """Return whether a condition holds; None if neither it nor its opposite is significant."""
    return True if true else False if false else None


def statistic(study: Study, dataset: str, space: Space, name: Name) -> Statistic:
    """Return a statistic of a data set, or its mean over a group, with an error that covers the sampling of images.

    To first order, λmax of the mean Hessian varies with the images as the mean of their curvatures along its
    eigenvector. The error is infinite if the study has no such curvatures.
    """
    members = list_members(study, dataset) if dataset in study.groups else [dataset]
    values = study.traces if name == "trace" else study.top_shares
    sampled = [mean_error(values.get(f"{space}/{member}")) for member in members]
    cell = study.cells[dataset, space, name]
    return replace(cell, stderr=hypot(cell.stderr or 0.0, hypot(*sampled) / len(sampled)))


def mean_error(values: Vector | None) -> float:
    """Return the standard error of a mean over images; infinite if it is unknown."""
    if values is None or len(values) < 2:
        return inf
    error = float(values.std(ddof=1)) / sqrt(len(values))
    return error if np.isfinite(error) else inf


def list_regimes(study: Study) -> list[str]:
    """Return those of ``id``, ``near`` and ``far`` that the suite has."""
    return [ID, *study.groups]


def list_members(study: Study, group: str) -> list[str]:
    """Return the OOD data sets of a group."""
    return [ood["name"] for ood in study.suite["ood"] if ood["group"] == group]


def trace_auroc(study: Study, members: Sequence[str]) -> Influence:
    """Return the mean AUROC of the trace over parameters, with traces of ID inputs enlarged by two typical errors."""
    room = 1 + 2 * (typical_error(study, "parameter") or 0.0)
    return mean_auroc(
        {name: study.traces[f"parameter/{name}"] * (room if name == ID else 1) for name in (ID, *members)}
    )


def trace_aurocs(run: NetworkRun) -> dict[str, Influence]:
    """Return the mean AUROC of the trace over features and over logits, on all images, partially normalised."""
    ablations = run.ablations
    features = {name: ablations.scores[f"partial/{name}"] for name in ablations.logits}
    return {"feature": mean_auroc(features), "logit": mean_auroc(ablations.logits)}


def rank_aurocs(study: Study, kind: str) -> list[Influence]:
    """Return the mean AUROC of the eigenvalue of each rank as a score, largest eigenvalue first."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    ranks = min(study.suite["n_classes"] - 1, study.suite["n_features"], values[ID].shape[1])
    return [mean_auroc({name: eigenvalues[:, rank] for name, eigenvalues in values.items()}) for rank in range(ranks)]


def mean_auroc(scores: Mapping[str, NDArray[np.floating]]) -> Influence:
    """Return the mean AUROC of scores over the OOD data sets."""
    return mean_influence([auroc_influence(scores[ID], scores[name]) for name in scores if name != ID])


def median_ratio(study: Study, kind: str) -> float:
    """Return the median over the ranks of the ratio of medians, OOD over ID, without ranks whose ID median is 0."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    known = np.median(values[ID], axis=0)
    unknown = np.median(np.concatenate([values[name] for name in study.datasets[1:]]), axis=0)
    positive = known > 0
    return float(np.median(unknown[positive] / known[positive])) if positive.any() else 0.0


def quartile_ratio(known: Vector, unknown: Vector) -> Interval:
    """Return the ratio of the interquartile ranges, OOD over ID, with a 95 % bootstrap interval.

    The ratio is ``inf`` if the ID values do not vary.
    """
    rng = np.random.default_rng(0)
    ours, theirs = (rng.choice(values, (QUARTILE_REPLICATES, len(values))) for values in (known, unknown))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, ratios = float(iqr(unknown) / iqr(known)), iqr(theirs, axis=1) / iqr(ours, axis=1)
    low, high = np.quantile(np.nan_to_num(ratios, nan=1.0), [0.025, 0.975], method="inverted_cdf")
    return Interval(ratio, min(ratio, float(low)), max(ratio, float(high)))


def unimodality(values: Vector) -> float:
    """Return the p-value of Silverman's test that a density has a single mode, on the axis on which it is drawn.

    The critical bandwidth is the smallest at which a Gaussian kernel estimate has one mode. The p-value is the share of
    smoothed bootstrap samples that have more than one mode at this bandwidth; 1 for fewer than three distinct values.
    """
    points = values[np.isfinite(values)]
    if points.size and points.min() >= 0:
        points = np.log(points[points > 0])
    if len(np.unique(points)) < 3:
        return 1.0
    points = (points - points.mean()) / points.std()
    low, high = 1e-3, float(np.ptp(points))
    for _ in range(20):
        middle = sqrt(low * high)
        low, high = (low, middle) if count_modes(points, middle) == 1 else (middle, high)
    rng = np.random.default_rng(0)
    shrink = 1 / sqrt(1 + high**2)  # keeps the variance of the data
    redrawn = (
        shrink * (rng.choice(points, len(points)) + high * rng.normal(size=len(points))) for _ in range(MODE_REPLICATES)
    )
    return fmean(count_modes(draw, high) > 1 for draw in redrawn)


def count_modes(values: Vector, bandwidth: float) -> int:
    """Return the number of local maxima of a Gaussian kernel density estimate."""
    margin = 6 * bandwidth  # keeps the two ends apart, which a Fourier transform treats as neighbours
    counts, edges = np.histogram(values, MODE_BINS, (values.min() - margin, values.max() + margin))
    damping = np.exp(-2 * (np.pi * bandwidth / (edges[1] - edges[0]) * np.fft.rfftfreq(MODE_BINS)) ** 2)
    density = np.fft.irfft(np.fft.rfft(counts) * damping, MODE_BINS)
    rises = np.diff(np.where(density > FLAT * density.max(), density, 0.0))
    rises = rises[rises != 0]
    return int(((rises[:-1] > 0) & (rises[1:] < 0)).sum())


def spectral_spread(study: Study, dataset: str) -> tuple[float, float]:
    r"""Return the standard deviation of the eigenvalues over features, and its standard error over the images.

    .. math:: s^2 = \frac1d \sum_j \lambda_j^2 - \Big(\frac1d \sum_j \lambda_j\Big)^2

    Both sums are means over the images; the first one varies as twice ``square_shares``, to first order.
    """
    d, key = study.sizes["feature"], f"feature/{dataset}"
    traces, squares = study.traces[key], study.square_shares.get(key)
    nodes, weights = study.nodes[key][0], study.weights[key][0]
    mean = float(nodes @ weights)
    spread = sqrt(max(float((nodes - mean) ** 2 @ weights), 0.0))
    if squares is None or spread == 0:
        return spread, inf if squares is None else 0.0
    return spread, mean_error((squares / d - mean * traces / d) / spread)


def large_share(study: Study, space: Space, dataset: str, large: float) -> tuple[float, float]:
    """Return the share of eigenvalues above ``large`` times the largest, and its standard error over the probes."""
    nodes, weights = study.nodes[f"{space}/{dataset}"], study.weights[f"{space}/{dataset}"]
    shares = (weights * (nodes > large * study.cells[dataset, space, "lambda_max"].value)).sum(axis=1)
    return float(shares.mean()), float(shares.std(ddof=1)) / sqrt(len(shares)) if len(shares) > 1 else 0.0


def cohens_d_influence(known: Vector, unknown: Vector, d: float) -> Vector:
    """Return the influence of every image on Cohen's d, ID images first; the variance is the sum of their squares.

    To first order an ID image changes d by ``-(x - x̄) / (n s) - d ((x - x̄)² - s_x²) / (2 s² (n + m))``, an OOD image
    likewise with the other sign of the first term. The influence is 0 if no score varies.
    """
    n, m = len(known), len(unknown)
    x, y = known - known.mean(), unknown - unknown.mean()
    variance = float(x @ x + y @ y) / (n + m - 2)
    if variance == 0:
        return np.zeros(n + m)
    scale, pull = np.sqrt(variance), d / (2 * variance * (n + m))
    return np.concatenate([-x / (n * scale) - pull * (x**2 - x.var()), y / (m * scale) - pull * (y**2 - y.var())])


def mean_over_groups(groups: Sequence[Sequence[Results]], metric: str, method: str) -> float:
    """Return the mean over groups of runs of the means over their runs of a method's average."""
    return fmean(fmean(getattr(run.cells[method, "all"], metric) for run in group) for group in groups)


def find_best(groups: Sequence[Sequence[Results]], metric: str, ours: bool) -> str | None:
    """Return the best of FOLD's variants, or of all other methods, by its mean; it must be in all runs."""
    sign, runs = 1 if metric == FPR95 else -1, [run for group in groups for run in group]
    methods = [
        run.method
        for run in runs[0].methods
        if (run.name in FOLD_FAMILY) == ours and all((run.method, "all") in each.cells for each in runs)
    ]
    return min(methods, key=lambda method: sign * mean_over_groups(groups, metric, method), default=None)


def compute_lead(results: Results, metric: str, ours: str, other: str) -> Interval:
    """Return how much better one method is than another on average, on the same images; lower FPR95 is better."""
    members = results.members["all"]
    if metric == "auroc":
        a, b = (column_influence(results.scores, method, members) for method in (ours, other))
        return Interval.of_difference(a, b)
    value = results.cells[other, "all"].fpr95_ood_positive - results.cells[ours, "all"].fpr95_ood_positive
    redrawn = resampled(results.scores, (other, ours), members, RATE_REPLICATES, 0, (FPR95,))
    theirs, mine = (np.mean([redrawn[method, d][FPR95] for d in members], axis=0) for method in (other, ours))
    return Interval(value, *percentile_interval(value, theirs - mine))


def costs_by_name(run: NetworkRun) -> dict[str, Cost]:
    """Return the cost of each method by its name in the registry; the first one of a method with several labels."""
    return {re.split("[:@]", cost.method)[0]: cost for cost in reversed(run.ablations.costs)}


def inference_time(run: NetworkRun, cost: Cost) -> Interval:
    """Return the time of network and method in ms with its quartiles; without a network, of the method alone."""
    if forward_cost(run) is None:
        times = Interval(cost.inference_ms, cost.inference_low, cost.inference_high)
    else:
        times = Interval(cost.total_ms, cost.total_low, cost.total_high)
    return _with_doubt(times, cost.rounds)


def count_passes(cost: Cost) -> Interval:
    """Return the time of network and method in bare forward passes, with quartiles."""
    return _with_doubt(Interval(cost.passes, cost.passes_low, cost.passes_high), cost.rounds)


def _with_doubt(times: Interval, rounds: int) -> Interval:
    """Return a median with its quartiles over the rounds, or with its half and its double if the rounds are few."""
    return times if rounds >= FEW_ROUNDS else Interval(times.value, times.value / 2, 2 * times.value)


def forward_cost(run: NetworkRun) -> Cost | None:
    """Return the cost of a forward pass; None if it was not timed or the network is a single linear layer."""
    suite = run.study.suite
    if suite["n_parameters"] <= suite["n_classes"] * (suite["n_features"] + 1):
        return None
    return costs_by_name(run).get(FORWARD)


def setup_time(run: NetworkRun, cost: Cost) -> float:
    """Return the set-up time of a method in ms, including the forward passes over the images that it learns from."""
    method = next(method for method in run.results.methods if method.method == cost.method)
    forward = forward_cost(run)
    if forward is None or method.name in NO_DATA:
        return cost.setup_ms
    images = int(run.results.suite.get(f"n_{method.fits_on}") or 0)
    return cost.setup_ms + forward.inference_ms * images / forward.batch_size
