"""Checks of the paper's claims: what a run measured, against the claim of every table, figure and theorem.

A check is a condition that must hold if a claim is true; it is open where the intervals do not decide it. How claims
are read is in ``exhibits.toml``, the verdicts that follow from the checks in ``exhibits``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from math import ceil, hypot, inf, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import iqr

from ..core.bootstrap import percentile_interval
from ..core.intervals import Influence, auroc_influence, interval, mean_influence, paired_difference
from ..evaluate.compare import column_influence, resampled
from ..evaluate.results import ID, Results
from ..evaluate.study_results import NAMES, SPACES, Name, Space, Statistic, Study, above, typical_error
from ..evaluate.summary import family_of
from ..report.templates import percent as format_percent
from ..report.templates import quantity, signed
from .ablations import FORWARD, Ablations, Cost
from .tables import FOLD_FAMILY, run_labels
from .theory import random_theorems

REGIMES = {ID: "ID", "near": "near", "far": "far"}
BOTH: tuple[Name, ...] = ("lambda_max", "trace")
SHOWN: tuple[Space, ...] = ("parameter", "feature")
FPR95 = "fpr95_ood_positive"
METRICS = {"auroc": "AUROC", FPR95: "FPR95"}
HOLDS = {1: True, 0: None, -1: False}  # by the order of two statistics: above, not significantly different, below
NORMAL = 1.959964  # 95 % of a normal distribution lie within so many deviations
RATE_REPLICATES, QUARTILE_REPLICATES, MODE_REPLICATES = 400, 500, 200
MODE_BINS = 1024  # of the densities whose modes are counted
ROUNDING = 1e-9  # of the largest density: below, bumps are rounding

SIGNIFICANT = 0.05  # p of a single mode, below which a density has several
LARGE = 0.01  # of the largest eigenvalue: eigenvalues above count as large
COLLAPSED = 0.5  # of the AUROC above 50 % without normalisation: below, a gap has collapsed
COMPETITIVE = 0.02  # of AUROC: largest distance to the best method that counts as competitive
NEAR_OPTIMAL = 0.01  # of AUROC: largest regret that counts as nearly optimal
HARMFUL = 0.02  # of AUROC below partial normalisation
COMPARABLE = 2.0  # times a forward pass: what a pass with FOLD's score may take
CHEAPEST = 1 / 3  # of the other methods: up to the time of the last of them a method counts as cheap
SLOWER = 2.0  # times: how much longer than FOLD a method must score to count as far slower
MAGNITUDE = 10.0  # times: "orders of magnitude" longer to set up
SETUP_ROOM = 2.0  # times: what a set-up that is timed at most three times leaves open
FEW = 4  # rounds below which quartiles are not used
EQUAL = 1.25  # times: up to which two inference times count as the same

SLOW_SCORING = ("rmds", "knn")  # that the paper names for their inference
SLOW_SETUP = ("knn", "mds", "she", "vim", "rmds")  # that the paper names for their set-up
NO_DATA = ("fold", "fold-a")  # learn nothing from images

Values = NDArray[np.float64]
Check = tuple[str, bool | None]  # the condition in a few words, with the numbers, and whether it holds; None is open


class NetworkRun(NamedTuple):
    """All measurements of one network; ``network`` is its name in tables, empty if it is the only one."""

    network: str
    results: Results
    study: Study
    ablations: Ablations


class Finding(NamedTuple):
    """The result of a run for one exhibit: a clause without a full stop, and the checks."""

    shows: str
    checks: list[Check]


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def check_figure_1(run: NetworkRun) -> Finding:
    """Check that the trace grows by regime, and that FOLD is above the mean AUROC, as cheap as a third of others."""
    results, costs = run.results, {cost.method: cost for cost in run.ablations.costs}
    timed = [method for method in results.methods if method.method in costs]
    variants = [method.method for method in timed if method.name in FOLD_FAMILY]
    checks, shows = _check_steps(run.study, "parameter", "trace"), _list_values(run.study, "parameter", "trace")
    if not variants:
        return Finding(f"{shows}, and no variant of FOLD was timed", checks)
    average_auroc = fmean(results.cells[method.method, "all"].auroc for method in timed)
    others = sorted((costs[m.method] for m in timed if m.name not in FOLD_FAMILY), key=lambda cost: cost.inference_ms)
    limit = others[ceil(CHEAPEST * len(others)) - 1] if others else None
    corners = list[Check]()
    for method in variants:
        cell, cost = results.cells[method, "all"], costs[method]
        low, high = (cell.certainty.intervals if cell.certainty else {}).get("auroc", (0.0, 1.0))
        sides = {_decide(low >= average_auroc, high < average_auroc)}
        text = f"AUROC {_percent(cell.auroc)} (mean {_percent(average_auroc)}), {_number(cost.inference_ms)} ms"
        if limit is not None:
            slower = inference_range(cost)[0] > inference_range(limit)[1]
            sides.add(_decide(cost.inference_ms <= limit.inference_ms, slower))
            text += f" (cheapest third: up to {_number(limit.inference_ms)}, {limit.method})"
        corners.append((f"{method}: {text}", _decide(sides == {True}, False in sides)))
    good = count_held(corners)
    has = "has" if good == 1 else "have"
    shows += f", and {good} of {len(variants)} variants of FOLD {has} high AUROC at low cost"
    return Finding(shows, checks + corners)


def check_regimes(run: NetworkRun, space: Space) -> Finding:
    """Check that both statistics grow from ID to near to far data (Tables 1 and 6)."""
    shows = " and ".join(_list_values(run.study, space, name) for name in BOTH)
    return Finding(shows, [check for name in BOTH for check in _check_steps(run.study, space, name)])


def check_statistics(run: NetworkRun) -> Finding:
    """Check that all OOD data sets lie above the ID data, and that the highest is a far one (Table 7)."""
    study, checks, counts = run.study, list[Check](), list[str]()
    near, far = (_members(study, group) for group in ("near", "far"))
    for space, name in product(SHOWN, BOTH):
        values = {dataset: statistic(study, dataset, space, name) for dataset in study.datasets}
        orders = [above(values[dataset], values[ID]) for dataset in study.datasets[1:]]
        what = f"{NAMES[name]} over {SPACES[space]}"
        counts.append(f"{what} {orders.count(1)}")
        known = _number(study.cells[ID, space, name].value)
        text = f"{what} exceeds that of ID data, {known}, in {orders.count(1)} of {len(orders)} data sets"
        checks.append((text, _decide(set(orders) == {1}, -1 in orders)))
        if near and far:
            a, b = (max(group, key=lambda dataset: values[dataset].value) for group in (near, far))
            highest = " and ".join(f"{dataset}, {_number(values[dataset].value)}" for dataset in (a, b))
            checks.append((f"{what} is highest in {highest} (near and far)", HOLDS[above(values[b], values[a])]))
        checks += _report_missing(study, space, name)
    return Finding(f"OOD data sets above the ID data, of {len(study.datasets) - 1}: {_join_words(counts)}", checks)


def check_traces_by_regime(run: NetworkRun) -> Finding:
    """Check that traces of near and far inputs are larger, broader and often of several modes (Figure 2)."""
    study, checks, medians = run.study, list[Check](), list[str]()
    known = study.traces[f"parameter/{ID}"]
    for group in study.groups:
        members = _members(study, group)
        traces = np.concatenate([study.traces[f"parameter/{name}"] for name in members])
        ratio, low, high = quartile_ratio(known, traces)
        text = f"interquartile range, {group} over ID: ×{_number(ratio)} (×{_number(low)} to ×{_number(high)})"
        checks += [_check_shift(study, group, members), (text, _above_zero(low - 1, high - 1))]
        medians.append(f"{_number(float(np.median(traces)))} {group}")
    levels = {name: unimodality(study.traces[f"parameter/{name}"]) for name in study.datasets[1:]}
    several = [name for name, level in levels.items() if level < SIGNIFICANT]
    levels_text = ", ".join(f"{name} {level:.3f}" for name, level in levels.items())
    text = f"more than one mode in {len(several)} of {len(levels)} OOD data sets: p of a single mode {levels_text}"
    checks.append((text, _decide(2 * len(several) >= len(levels), not several)))
    shows = f"median trace {_number(float(np.median(known)))} ID, {', '.join(medians)}, and more than one mode in "
    return Finding(f"{shows}{len(several)} of {len(levels)} OOD data sets", checks)


def unimodality(values: Values) -> float:
    """Return the p-value of Silverman's test that a density has a single mode, on the axis on which it is drawn.

    The critical bandwidth is the smallest one at which a Gaussian kernel estimate has one mode. Data of several modes
    need a large one: p is the share of smooth redraws from that estimate that still have more than one mode at it. For
    fewer than three different values it is 1.
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
    shrink = 1 / sqrt(1 + high**2)  # redraws keep the variance of the data
    redrawn = (
        shrink * (rng.choice(points, len(points)) + high * rng.normal(size=len(points))) for _ in range(MODE_REPLICATES)
    )
    return fmean(count_modes(draw, high) > 1 for draw in redrawn)


def count_modes(values: Values, bandwidth: float) -> int:
    """Return the number of local maxima of a Gaussian kernel estimate of the density of some values."""
    margin = 6 * bandwidth  # so that the ends, which are neighbours in a Fourier transform, do not meet
    counts, edges = np.histogram(values, MODE_BINS, (values.min() - margin, values.max() + margin))
    damping = np.exp(-2 * (np.pi * bandwidth / (edges[1] - edges[0]) * np.fft.rfftfreq(MODE_BINS)) ** 2)
    density = np.fft.irfft(np.fft.rfft(counts) * damping, MODE_BINS)
    rises = np.diff(np.where(density > ROUNDING * density.max(), density, 0.0))
    rises = rises[rises != 0]
    return int(((rises[:-1] > 0) & (rises[1:] < 0)).sum())


def check_traces_by_data_set(run: NetworkRun) -> Finding:
    """Check that traces of every OOD data set are larger (Figures 12 to 15)."""
    checks = [_check_shift(run.study, name, [name]) for name in run.study.datasets[1:]]
    return Finding(
        f"traces are shifted to larger values in {count_held(checks)} of {len(checks)} OOD data sets", checks
    )


def check_spectra(run: NetworkRun) -> Finding:
    """Check that λmax grows with the shift, and that spectra over features are broader (Figure 7)."""
    study, broader = run.study, list[Check]()
    checks = [_check_growth(study, space, "lambda_max", ID, group) for space in SHOWN for group in study.groups]
    for dataset in study.datasets:
        (wide, error), (narrow, other) = (large_share(study, space, dataset) for space in ("feature", "parameter"))
        room = 2 * (error + other)
        shares = f"{_percent(wide)} over features, {_percent(narrow)} over parameters"
        text = f"share of large eigenvalues, {'ID' if dataset == ID else dataset}: {shares}"
        broader.append((text, _decide(wide - narrow > room, narrow - wide > room)))
    (known, error), dispersed = spectral_spread(study, ID), list[Check]()
    for dataset in study.datasets[1:]:
        spread, other = spectral_spread(study, dataset)
        text = f"deviation of the eigenvalues over features, {dataset}: {_number(spread)}, ID {_number(known)}"
        room = 2 * (error + other)
        dispersed.append((text, _decide(spread - known > room, known - spread > room)))
    paths = " and ".join(f"over {SPACES[space]} {_list_values(study, space, 'lambda_max')}" for space in SHOWN)
    shows = f"{paths}, broader over features in {count_held(broader)} of {len(broader)} data sets, more dispersed than "
    shows += f"that of ID data in {count_held(dispersed)} of {len(dispersed)}"
    return Finding(shows, checks + broader + dispersed)


def check_spectra_by_data_set(run: NetworkRun, space: Space) -> Finding:
    """Check that λmax of every OOD data set is larger (Figures 8 to 11)."""
    known, checks = statistic(run.study, ID, space, "lambda_max"), list[Check]()
    for dataset in run.study.datasets[1:]:
        cell = statistic(run.study, dataset, space, "lambda_max")
        text = f"λmax of {dataset}, {_format(cell)}, exceeds that of ID data, {_format(known)}"
        checks.append((text, HOLDS[above(cell, known)]))
    count = f"{count_held(checks)} of {len(checks)} data sets"
    return Finding(f"λmax exceeds that of ID data, {_number(known.value)}, in {count}", checks)


def check_eigenvalues(run: NetworkRun) -> Finding:
    """Check where partial normalisation widens the gap, and that full normalisation closes it (Figure 6)."""
    none, partial, full = (rank_aurocs(run.study, kind) for kind in ("none", "partial", "full"))
    pairs = [paired_difference(b, a) for a, b in zip(none, partial, strict=True)]
    signs = [_above_zero(pair.low, pair.high) for pair in pairs]
    wider, narrower, ranks = signs.count(True), signs.count(False), len(signs)
    text = f"partial over none: wider at {wider}, narrower at {narrower} of {ranks} ranks"
    before, after = _mean_over_ranks(none), _mean_over_ranks(full)
    bound_low, bound_high = (0.5 + COLLAPSED * (end - 0.5) for end in (before.low, before.high))
    means = f"mean AUROC over the ranks: {_percent(before.value)} none, {_percent(after.value)} full"
    checks = [
        (text, _decide(2 * wider > ranks, 2 * narrower > ranks)),
        (means, _decide(after.high < bound_low, after.low > bound_high)),
    ]
    ratios = ", ".join(f"{_number(_median_ratio(run.study, kind))} {kind}" for kind in ("none", "partial", "full"))
    shows = f"the gap is wider under partial normalisation at {wider} and narrower at {narrower} of {ranks} ranks"
    return Finding(f"{shows}, typical ratio of OOD to ID {ratios}", checks)


def check_logits(run: NetworkRun) -> Finding:
    """Check that the trace over features is the better score than that over logits (Table 4)."""
    ablations = run.ablations
    feature, logit = trace_aurocs(run).values()
    lead = paired_difference(feature, logit)
    a, b = _percent(feature.auroc), _percent(logit.auroc)
    text = f"average AUROC {a} over features, {b} over logits, {_points(lead.value, lead.low, lead.high)} points"
    shows = f"at α {ablations.alphas['partial']:g} average AUROC {a} over features and {b} over logits"
    return Finding(shows, [(text, _above_zero(lead.low, lead.high))])


def trace_aurocs(run: NetworkRun) -> dict[str, Influence]:
    """Return the mean AUROC of the trace over features and over logits, on all images, partially normalised."""
    ablations = run.ablations
    features = {name: ablations.scores[f"partial/{name}"] for name in ablations.logits}
    return {"feature": mean_auroc(features), "logit": mean_auroc(ablations.logits)}


def check_theorem(_: Sequence[NetworkRun]) -> Finding:
    """Check the theorem on random settings, which are the same in every run."""
    settings = random_theorems()
    true, false = ([theorem for _, theorem in settings if theorem.holds == holds] for holds in (True, False))
    wrong, reverse = sum(not theorem.agrees for theorem in true), sum(theorem.gap < 0 for theorem in false)
    return Finding(
        f"{len(true) - wrong} of {len(true)} random settings that meet the condition have the order that the theorem "
        f"states, and {reverse} of {len(false)} that do not meet it have the reverse order",
        [
            (f"condition true: {wrong} of {len(true)} settings contradict the theorem", wrong == 0),
            (f"condition false: {reverse} of {len(false)} have the reverse order", reverse == len(false)),
        ],
    )


def check_averages(run: NetworkRun) -> Finding:
    """Check that a variant of FOLD has the best average AUROC and FPR95 (Table 2)."""
    shows, checks = _compare_best(
        [[run.results]], "average {}", "the run has no method of the FOLD family, or no other"
    )
    return Finding(shows, checks + _check_shaping(run.results) if checks else checks)


def _check_shaping(results: Results) -> list[Check]:
    """Return whether ReAct and ASH in front of FOLD improve its average AUROC."""
    labels = {
        name: next((label for label in run_labels(name) if (label, "all") in results.cells), None)
        for name in ("fold", "fold-r", "fold-a")
    }
    plain, checks = labels["fold"], list[Check]()
    for name in ("fold-r", "fold-a"):
        label = labels[name]
        if plain is not None and label is not None:
            gain = compute_lead(results, "auroc", label, plain)
            checks.append((f"average AUROC, {label} over {plain}: {_points(*gain)} points", _above_zero(*gain[1:])))
    return checks


def check_benchmarks(benchmarks: Sequence[Sequence[Results]]) -> Finding:
    """Check the same for the means over several benchmarks (the last column of Table 2), each with its networks."""
    none = "no method of the FOLD family, or no other, is in the runs of all benchmarks"
    return _compare_best(benchmarks, f"average {{}} over {len(benchmarks)} benchmarks", none)


def check_networks(runs: Sequence[NetworkRun]) -> Finding:
    """Check the same for the means over several architectures (Table 5)."""
    results = [run.results for run in runs]
    if len(set(map(family_of, results))) == 1:
        return Finding("This run has one architecture, so that nothing can be said about several", [])
    none = "No method of the FOLD family, or no other, is in the runs of all networks"
    shows, checks = _compare_best([[each] for each in results], f"average {{}} over {len(runs)} networks", none)
    return Finding(f"Over {len(runs)} networks {shows}" if checks else shows, checks)


def _compare_best(groups: Sequence[Sequence[Results]], label: str, none: str) -> Finding:
    """Compare the best variant of FOLD with the best other method, by means over groups of the means over runs."""
    checks, shows = list[Check](), list[str]()
    for metric, name in METRICS.items():
        ours, other = (find_best(groups, metric, family) for family in (True, False))
        if ours is None or other is None:
            return Finding(none, [])
        leads = [_mean_interval([compute_lead(run, metric, ours, other) for run in group]) for group in groups]
        lead = _mean_interval(leads)
        a, b = (_percent(_mean(groups, metric, method)) for method in (ours, other))
        shows.append(f"{'mean' if len(groups) > 1 else 'average'} {name} of {ours} {a}, of {other} {b}")
        text = f"{label.format(name)}: {ours} {a}, {other} {b}, better by {_points(*lead)} points"
        checks.append((text, _above_zero(lead.low, lead.high)))
    return Finding(" and ".join(shows), checks)


def find_best(groups: Sequence[Sequence[Results]], metric: str, ours: bool) -> str | None:
    """Return the method with the best mean, of FOLD's variants or of all others, among those that are in all runs."""
    sign, runs = 1 if metric == FPR95 else -1, [run for group in groups for run in group]
    methods = [
        run.method
        for run in runs[0].methods
        if (run.name in FOLD_FAMILY) == ours and all((run.method, "all") in each.cells for each in runs)
    ]
    return min(methods, key=lambda method: sign * _mean(groups, metric, method), default=None)


def compute_lead(results: Results, metric: str, ours: str, other: str) -> Interval:
    """Return by how much one method is better than another on average, on the same images; lower FPR95 is better."""
    members = results.members["all"]
    if metric == "auroc":
        a, b = (column_influence(results.scores, method, members) for method in (ours, other))
        difference = paired_difference(a, b)
        return Interval(difference.value, difference.low, difference.high)
    value = _mean([[results]], FPR95, other) - _mean([[results]], FPR95, ours)
    redrawn = resampled(results.scores, (other, ours), members, RATE_REPLICATES, 0, (FPR95,))
    theirs, mine = (np.mean([redrawn[method, d][FPR95] for d in members], axis=0) for method in (other, ours))
    return Interval(value, *percentile_interval(value, theirs - mine))


def check_data_sets(run: NetworkRun) -> Finding:
    """Check that the best variant of FOLD is competitive on average (Tables 8 to 11)."""
    results, cells = run.results, run.results.cells
    ours = find_best([[results]], "auroc", ours=True)
    if ours is None:
        return Finding("the run has no method of the FOLD family", [])

    def competitive(column: str) -> bool | None:
        certainty = cells[ours, column].certainty
        return None if certainty is None else _at_most(certainty.behind_low, certainty.behind_high, COMPETITIVE)

    names = [str(ood["name"]) for ood in results.suite["ood"]]
    tops = {name: max(cells[method.method, name].auroc for method in results.methods) for name in names}
    first = sum(cells[ours, name].auroc >= tops[name] for name in names)
    behind = sum(competitive(name) is False for name in names)
    text, certainty = f"{ours} on average: AUROC {_percent(cells[ours, 'all'].auroc)}", cells[ours, "all"].certainty
    if certainty is not None:
        lag = _points(certainty.behind, certainty.behind_low, certainty.behind_high)
        text += f", behind the best by {lag} points"
    lag = "" if certainty is None else f" is {100 * certainty.behind:.2f} points behind the best method on average,"
    return Finding(
        f"the best variant, {ours},{lag} has the best AUROC on {first} of {len(names)} data sets, and is significantly"
        f" more than {100 * COMPETITIVE:g} points behind on {behind} of them",
        [(text, competitive("all"))],
    )


def check_exponents(run: NetworkRun) -> Finding:
    """Check that the regret of AutoFold's exponent is small (Figure 4)."""
    checks, regrets = list[Check](), list[str]()
    for curve in run.ablations.sensitivities:
        regret = _points(curve.regret, curve.regret_low, curve.regret_high)
        chosen = f"{curve.method}: chosen α {curve.chosen:g} gives {_percent(curve.chosen_auroc['all'])}"
        holds = _at_most(curve.regret_low, curve.regret_high, NEAR_OPTIMAL)
        checks.append((f"{chosen}, regret {regret} points", holds))
        best = curve.grid[int(np.argmax(curve.auroc["all"]))]
        loss = f"{100 * curve.regret:.2f}".replace("-", "−")  # the chosen one may lie between two of the grid
        regrets.append(f"{loss} for {curve.method} (α {curve.chosen:g}, best {best:g})")
    shows = f"points that AutoFold loses: {_join_words(regrets)}" if regrets else "no exponents were tried"
    return Finding(shows, checks)


def check_normalisation(run: NetworkRun) -> Finding:
    """Check that partial normalisation improves seven methods (Table 3)."""
    checks, harmed = list[Check](), 0
    for method in dict.fromkeys(effect.method for effect in run.ablations.effects):
        none, partial, full = (run.ablations.effect(method, kind) for kind in ("none", "partial", "full"))
        if none is None or partial is None:
            continue
        gain = _points(partial.gain, partial.gain_low, partial.gain_high)
        with_it = f"{_percent(partial.auroc)} with α {partial.alpha:g}"
        text = f"{method}: {_percent(none.auroc)} without, {with_it}, {gain} points"
        checks.append((text, _above_zero(partial.gain_low, partial.gain_high)))
        harmed += full is not None and full.auroc < partial.auroc - HARMFUL
    total, limit = len(checks), f"more than {100 * HARMFUL:g} points"
    side = f"full costs no method {limit}, as in the paper's CIFAR-10"
    if harmed:
        mostly = 2 * harmed > total
        like = "as in the paper's ImageNet-200" if mostly else "between the paper's CIFAR-10 and ImageNet-200"
        side = f"full costs {harmed} of {total} methods {limit}, {like}"
    return Finding(f"partial normalisation improves {count_held(checks)} of {total} methods, and {side}", checks)


def check_separation(run: NetworkRun) -> Finding:
    """Check that Cohen's d rises with partial and falls with full normalisation (Figure 5), and why it rises."""
    together = [row for row in run.ablations.separations if row.dataset == "all"]
    d: dict[str, float] = {row.normalisation: row.cohens_d for row in together}
    scores, influences, checks = dict[str, tuple[Values, Values]](), dict[str, Values](), list[Check]()
    for kind in d:
        members = [run.ablations.scores[f"{kind}/{ood['name']}"] for ood in run.results.suite["ood"]]
        sides = run.ablations.scores[f"{kind}/{ID}"], np.concatenate(members)
        scores[kind] = sides[0].astype(np.float64), sides[1].astype(np.float64)
        influences[kind] = cohens_d_influence(*scores[kind], d[kind])
    for before, after in (("none", "partial"), ("full", "none")):
        value = d[after] - d[before]
        error = NORMAL * float(np.linalg.norm(influences[after] - influences[before]))
        low, high = value - error, value + error
        both = ", ".join(f"{d[kind]:.3f} {kind}" for kind in (before, after))
        text = f"Cohen's d rises from {before} to {after}: {both}, {value:+.3f} ({low:+.3f} to {high:+.3f})"
        checks.append((text.replace("-", "−"), _above_zero(low, high)))
    (known, unknown), (known_after, unknown_after) = scores["none"], scores["partial"]
    moved, other = unknown_after - unknown, known_after - known
    narrowed = (unknown - unknown.mean()) ** 2 - (unknown_after - unknown_after.mean()) ** 2
    for what, value, error in (
        ("the gap of the means rises", moved.mean() - other.mean(), hypot(_mean_error(moved), _mean_error(other))),
        ("the variance of the OOD scores falls", narrowed.mean(), _mean_error(narrowed)),
    ):
        low, high = float(value) - NORMAL * error, float(value) + NORMAL * error
        text = f"{what} from none to partial, by {_number(float(value))} ({_number(low)} to {_number(high)})"
        checks.append((text, _above_zero(low, high)))
    parts = {
        "Cohen's d": [f"{row.cohens_d:.3f}".replace("-", "−") for row in together],
        "gap of the means": [_number(row.gap) for row in together],
        "variance of OOD scores": [_number(row.ood_variance) for row in together],
        "FPR95": [_percent(row.fpr95) for row in together],
    }
    shows = ", ".join(f"{name} {' / '.join(values)}" for name, values in parts.items())
    return Finding(f"{shows} ({' / '.join(d)})", checks)


def cohens_d_influence(known: Values, unknown: Values, d: float) -> Values:
    """Return the influence of every image on Cohen's d, ID images first; their squares add up to its variance.

    To first order an ID image moves d by ``-(x - x̄) / (n s) - d ((x - x̄)² - s_x²) / (2 s² (n + m))``, an OOD image
    likewise with the other sign of the first term. Scores without any spread have no influence.
    """
    n, m = len(known), len(unknown)
    x, y = known - known.mean(), unknown - unknown.mean()
    variance = float(x @ x + y @ y) / (n + m - 2)
    if variance == 0:
        return np.zeros(n + m)
    scale, pull = np.sqrt(variance), d / (2 * variance * (n + m))
    return np.concatenate([-x / (n * scale) - pull * (x**2 - x.var()), y / (m * scale) - pull * (y**2 - y.var())])


def check_costs(run: NetworkRun) -> Finding:
    """Check set-up and inference times of FOLD and AutoFold against others (Figure 3)."""
    costs, forward, checks = _costs_by_name(run), forward_cost(run), list[Check]()
    if "fold" not in costs:
        return Finding("FOLD was not timed", [])
    fold = costs["fold"]
    for suffix in ("", "-r", "-a"):
        variant, auto = costs.get(f"fold{suffix}"), costs.get(f"autofold{suffix}")
        if variant is not None and forward is not None:
            times = variant.inference_ms, *inference_range(variant)
            passes, low, high = (1 + time / forward.inference_ms for time in times)
            text = f"a pass with {variant.method} takes {_number(passes)} forward passes"
            checks.append((text, _at_most(low, high, COMPARABLE)))
        if variant is not None and auto is not None:
            same = auto.inference_ms <= EQUAL * variant.inference_ms
            slower = inference_range(auto)[0] > EQUAL * inference_range(variant)[1]
            checks.append((_compare_times(auto, variant), _decide(same, slower)))
    for slow in (costs[name] for name in SLOW_SCORING if name in costs):
        (low, high), (least, most) = inference_range(slow), inference_range(fold)
        checks.append((_compare_times(slow, fold), _decide(low >= SLOWER * most, high < SLOWER * least)))
    if forward is None:
        shows = f"the score of {fold.method} takes {_number(fold.inference_ms)} ms with no network in front of it"
    else:  # without it, the time to collect the features is not known
        pairs = [pair for pair in product(("fold", "autofold"), SLOW_SETUP) if costs.keys() >= {*pair}]
        for ours, slow in ((costs[name], costs[other]) for name, other in pairs):
            mine, theirs = setup_time(run, ours), setup_time(run, slow)
            text = f"{slow.method} sets up in {_number(theirs)} ms, {ours.method} in {_number(mine)}, features included"
            wanted = MAGNITUDE * mine
            checks.append((text, _decide(theirs >= wanted, theirs < wanted / SETUP_ROOM)))
        share = _number(100 * fold.inference_ms / forward.inference_ms)
        shows = f"the score of {fold.method} adds {share} % to a forward pass of {_number(forward.inference_ms)} ms"
    count = f", {count_held(checks)} of {len(checks)} comparisons hold"
    return Finding(shows + (count if checks else ", and there is nothing to compare it with"), checks)


def inference_range(cost: Cost) -> tuple[float, float]:
    """Return the quartiles of the inference time in ms, or half and double the median of few rounds."""
    if cost.rounds < FEW:
        return cost.inference_ms / 2, 2 * cost.inference_ms
    return cost.inference_low, cost.inference_high


def forward_cost(run: NetworkRun) -> Cost | None:
    """Return the cost of a forward pass; None if it was not timed or the network is its last layer alone."""
    suite = run.study.suite
    if suite["n_parameters"] <= suite["n_classes"] * (suite["n_features"] + 1):
        return None
    return _costs_by_name(run).get(FORWARD)


def setup_time(run: NetworkRun, cost: Cost) -> float:
    """Return the milliseconds to set a method up, with the forward passes that collect the features it learns from."""
    method = next(method for method in run.results.methods if method.method == cost.method)
    forward = forward_cost(run)
    if forward is None or method.name in NO_DATA:
        return cost.setup_ms
    images = int(run.results.suite.get(f"n_{method.fits_on}") or 0)
    return cost.setup_ms + forward.inference_ms * images / forward.batch_size


def _compare_times(first: Cost, second: Cost) -> str:
    times = f"{_number(first.inference_ms)} ms, {second.method} in {_number(second.inference_ms)}"
    return f"{first.method} scores in {times}"


def _costs_by_name(run: NetworkRun) -> dict[str, Cost]:
    """Return the cost of each method by its name in the registry, the first one of a method with several labels."""
    return {re.split("[:@]", cost.method)[0]: cost for cost in reversed(run.ablations.costs)}


def _mean(groups: Sequence[Sequence[Results]], metric: str, method: str) -> float:
    return fmean(fmean(getattr(run.cells[method, "all"], metric) for run in group) for group in groups)


def _mean_interval(intervals: Sequence[Interval]) -> Interval:
    """Return the mean of values, with the mean of their intervals: wide enough for any overlap of their images."""
    return Interval(*(fmean(ends) for ends in zip(*intervals, strict=True)))


def statistic(study: Study, dataset: str, space: Space, name: Name) -> Statistic:
    """Return a statistic of a data set, or its mean over a group, with an error that covers the sampling of images.

    λmax of the mean Hessian changes with the images, to first order, as the mean of their curvatures along its
    eigenvector does: that is a bootstrap over images without its replicates. Where a study has no such curvatures, the
    error is infinite.
    """
    members = _members(study, dataset) if dataset in study.groups else [dataset]
    values = study.traces if name == "trace" else study.top_shares
    sampled = [_mean_error(values.get(f"{space}/{member}")) for member in members]
    cell = study.cells[dataset, space, name]
    return replace(cell, stderr=hypot(cell.stderr or 0.0, hypot(*sampled) / len(sampled)))


def _mean_error(values: Values | None) -> float:
    """Return the standard error of a mean over images; infinite if it is not known."""
    if values is None or len(values) < 2:
        return inf
    error = float(values.std(ddof=1)) / sqrt(len(values))
    return error if np.isfinite(error) else inf


def list_regimes(study: Study) -> list[str]:
    """Return ``id``, ``near`` and ``far`` as far as the suite has them."""
    return [ID, *study.groups]


def trace_auroc(study: Study, members: Sequence[str]) -> Influence:
    """Return the mean AUROC of the trace over parameters, traces of ID inputs enlarged by two typical errors."""
    room = 1 + 2 * (typical_error(study, "parameter") or 0.0)
    return mean_auroc(
        {name: study.traces[f"parameter/{name}"] * (room if name == ID else 1) for name in (ID, *members)}
    )


def mean_auroc(scores: Mapping[str, NDArray[np.floating]]) -> Influence:
    """Return the mean AUROC of scores over the OOD data sets."""
    return mean_influence([auroc_influence(scores[ID], scores[name]) for name in scores if name != ID])


def quartile_ratio(known: Values, unknown: Values) -> Interval:
    """Return the ratio of the interquartile ranges, OOD over ID, with the 95 % interval of a bootstrap around it.

    ID traces without any spread give ``inf``.
    """
    rng = np.random.default_rng(0)
    ours, theirs = (rng.choice(values, (QUARTILE_REPLICATES, len(values))) for values in (known, unknown))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, ratios = float(iqr(unknown) / iqr(known)), iqr(theirs, axis=1) / iqr(ours, axis=1)
    low, high = np.quantile(np.nan_to_num(ratios, nan=1.0), [0.025, 0.975], method="inverted_cdf")
    return Interval(ratio, min(ratio, float(low)), max(ratio, float(high)))


def spectral_spread(study: Study, dataset: str) -> tuple[float, float]:
    r"""Return the standard deviation of the eigenvalues over features, and its standard error over the images.

    .. math:: s^2 = \frac1d \sum_j \lambda_j^2 - \Big(\frac1d \sum_j \lambda_j\Big)^2

    Both sums are means over the images, to first order twice that of ``square_shares`` and that of the traces.
    """
    d, key = study.sizes["feature"], f"feature/{dataset}"
    traces, squares = study.traces[key], study.square_shares.get(key)
    nodes, weights = study.nodes[key][0], study.weights[key][0]
    mean = float(nodes @ weights)
    spread = sqrt(max(float((nodes - mean) ** 2 @ weights), 0.0))
    if squares is None or spread == 0:
        return spread, inf if squares is None else 0.0
    return spread, _mean_error((squares / d - mean * traces / d) / spread)


def large_share(study: Study, space: Space, dataset: str) -> tuple[float, float]:
    """Return the share of eigenvalues above 1 % of the largest, and its standard error over the probes."""
    nodes, weights = study.nodes[f"{space}/{dataset}"], study.weights[f"{space}/{dataset}"]
    shares = (weights * (nodes > LARGE * study.cells[dataset, space, "lambda_max"].value)).sum(axis=1)
    return float(shares.mean()), float(shares.std(ddof=1)) / sqrt(len(shares)) if len(shares) > 1 else 0.0


def rank_aurocs(study: Study, kind: str) -> list[Influence]:
    """Return the mean AUROC of the eigenvalue of each rank as a score, largest eigenvalue first."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    ranks = min(study.suite["n_classes"] - 1, study.suite["n_features"], values[ID].shape[1])
    return [mean_auroc({name: eigenvalues[:, rank] for name, eigenvalues in values.items()}) for rank in range(ranks)]


def _check_steps(study: Study, space: Space, name: Name) -> list[Check]:
    """Return whether a statistic grows from ID to near and from near to far data."""
    steps = pairwise(list_regimes(study))
    return [_check_growth(study, space, name, *step) for step in steps] + _report_missing(study, space, name)


def _check_growth(study: Study, space: Space, name: Name, before: str, after: str) -> Check:
    a, b = (statistic(study, regime, space, name) for regime in (before, after))
    what = f"{NAMES[name]} over {SPACES[space]} grows from {REGIMES[before]} to {REGIMES[after]}"
    return f"{what}: {_format(a)}, {_format(b)}", HOLDS[above(b, a)]


def _format(statistic: Statistic) -> str:
    """Return a value with its error, such as ``13.5 ± 0.2``."""
    error = statistic.stderr
    text = "" if error is None else " ± ∞" if error == inf else f" ± {_number(error)}"
    return _number(statistic.value) + text


def _report_missing(study: Study, space: Space, name: Name) -> list[Check]:
    """Return an open check for each of near and far data that the suite does not have."""
    what = f"{NAMES[name]} over {SPACES[space]}, near and far"
    missing = [group for group in REGIMES if group not in list_regimes(study)]
    return [(f"{what}: the suite has no {group} data", None) for group in missing]


def _check_shift(study: Study, label: str, members: Sequence[str]) -> Check:
    trace = trace_auroc(study, members)
    low, high = interval(trace.auroc, trace.stderr, trace.pairs, trace.pairs)
    text = f"AUROC of the trace, {label}: {_percent(trace.auroc)} ({_percent(low)} to {_percent(high)})"
    return text, _above_zero(low - 0.5, high - 0.5)


def _list_values(study: Study, space: Space, name: Name) -> str:
    """Return a statistic in all regimes, such as ``trace 13.5 ID, 407 near, 362 far``."""
    values = (f"{_number(statistic(study, at, space, name).value)} {REGIMES[at]}" for at in list_regimes(study))
    return f"{NAMES[name]} {', '.join(values)}"


def _members(study: Study, group: str) -> list[str]:
    return [ood["name"] for ood in study.suite["ood"] if ood["group"] == group]


def _mean_over_ranks(aurocs: list[Influence]) -> Interval:
    """Return a mean over ranks with its interval: the mean of theirs, because all are of the same images."""
    ranks = [(rank.auroc, *interval(rank.auroc, rank.stderr, rank.pairs, rank.pairs)) for rank in aurocs]
    return Interval(*(fmean(ends) for ends in zip(*ranks, strict=True)))


def _median_ratio(study: Study, kind: str) -> float:
    """Return the median over the ranks of the ratio of medians, OOD over ID, without ranks whose ID median is 0."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    known = np.median(values[ID], axis=0)
    unknown = np.median(np.concatenate([values[name] for name in study.datasets[1:]]), axis=0)
    positive = known > 0
    return float(np.median(unknown[positive] / known[positive])) if positive.any() else 0.0


_number = partial(quantity, digits=3)


def _percent(share: float) -> str:
    return f"{format_percent(share)} %"


def _points(value: float, low: float, high: float) -> str:
    """Return a difference of shares in percentage points with its interval, such as ``+1.23 (−0.10 to +2.00)``."""
    return f"{signed(value)} ({signed(low)} to {signed(high)})"


def _join_words(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])


def count_held(checks: Sequence[Check]) -> int:
    """Return the number of checks that hold."""
    return sum(holds is True for _, holds in checks)


def _decide(true: bool, false: bool) -> bool | None:
    return True if true else False if false else None


def _above_zero(low: float, high: float) -> bool | None:
    """Return whether an interval lies above 0; None if it contains 0."""
    return _decide(low > 0, high < 0)


def _at_most(low: float, high: float, bound: float) -> bool | None:
    """Return whether an interval lies at or below a bound; None if it contains the bound."""
    return _decide(high <= bound, low > bound)
