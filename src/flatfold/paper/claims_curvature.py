"""Checks of the claims about curvature: Tables 1, 4, 6 and 7, Figures 1, 2, 6, 7 and 8 to 15, and Theorem 1."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import hypot, inf, sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.stats import iqr

from ..core.intervals import Influence, auroc_influence, interval, mean_influence, paired_difference
from ..evaluate.results import ID
from ..evaluate.study_results import (
    NAMES,
    SPACES,
    Name,
    Space,
    Statistic,
    Study,
    above,
    mean_statistic,
    typical_error,
)
from .claims import (
    HOLDS,
    Check,
    Finding,
    NetworkRun,
    above_zero,
    all_hold,
    at_most,
    count_held,
    join_words,
    number,
    percent,
    points,
)
from .claims_detection import inference_range
from .tables import FOLD_FAMILY
from .theory import random_theorems

REGIMES = {ID: "ID", "near": "near", "far": "far"}
BOTH: tuple[Name, ...] = ("lambda_max", "trace")
SHOWN: tuple[Space, ...] = ("parameter", "feature")
LARGE = 0.01  # of the largest eigenvalue: eigenvalues above count as large
COLLAPSED = 0.5  # of the AUROC above 50 % without normalisation: below, a gap has collapsed
REPLICATES = 500

Values = NDArray[np.float64]


def check_figure_1(run: NetworkRun) -> Finding:
    """Check that the trace grows by regime, and that FOLD lies above the mean in AUROC and below it in cost."""
    results, costs = run.results, {cost.method: cost for cost in run.ablations.costs}
    timed = [method for method in results.methods if method.method in costs]
    variants = [method.method for method in timed if method.name in FOLD_FAMILY]
    checks, shows = _check_steps(run, "parameter", "trace"), _list_regimes(run.study, "parameter", "trace")
    if not variants:
        return Finding(f"{shows}, and no variant of FOLD was timed", checks)
    mean_auroc = fmean(results.cells[method.method, "all"].auroc for method in timed)
    mean_time = fmean(costs[method.method].inference_ms for method in timed)
    corners = []
    for method in variants:
        cell, time = results.cells[method, "all"], costs[method].inference_ms
        low, high = (cell.certainty.intervals if cell.certainty else {}).get("auroc", (0.0, 1.0))
        sides = at_most(-high, -low, -mean_auroc), at_most(*inference_range(costs[method]), mean_time)
        text = f"AUROC {percent(cell.auroc)} (mean {percent(mean_auroc)}), {number(time)} ms (mean {number(mean_time)})"
        corners.append(Check(run.network, f"{method}: {text}", all_hold(sides)))
    good = count_held(corners)
    has = "has" if good == 1 else "have"
    shows += f", and {good} of {len(variants)} variants of FOLD {has} high AUROC at low cost"
    return Finding(shows, checks + corners)


def check_regimes(run: NetworkRun, space: Space) -> Finding:
    """Check that both statistics grow from ID to near to far data (Tables 1 and 6)."""
    shows = " and ".join(_list_regimes(run.study, space, name) for name in BOTH)
    return Finding(shows, [check for name in BOTH for check in _check_steps(run, space, name)])


def check_data_sets(run: NetworkRun) -> Finding:
    """Check that all OOD data sets lie above the ID data, and that the highest is a far one (Table 7)."""
    study, checks, counts = run.study, list[Check](), list[str]()
    near, far = (_members(study, group) for group in ("near", "far"))
    for space, name in product(SHOWN, BOTH):
        values = {dataset: statistic(study, dataset, space, name) for dataset in study.datasets}
        orders = [above(values[dataset], values[ID]) for dataset in study.datasets[1:]]
        what = f"{NAMES[name]} over {SPACES[space]}"
        counts.append(f"{what} {orders.count(1)}")
        known = number(study.cells[ID, space, name].value)
        text = f"{what} exceeds that of ID data, {known}, in {orders.count(1)} of {len(orders)} data sets"
        checks.append(Check(run.network, text, all_hold(HOLDS[order] for order in orders)))
        if near and far:
            a, b = (max(group, key=lambda dataset: values[dataset].value) for group in (near, far))
            highest = " and ".join(f"{dataset}, {number(values[dataset].value)}" for dataset in (a, b))
            text = f"{what} is highest in {highest} (near and far)"
            checks.append(Check(run.network, text, HOLDS[above(values[b], values[a])]))
        checks += _report_missing(run, space, name)
    return Finding(f"OOD data sets above the ID data, of {len(study.datasets) - 1}: {join_words(counts)}", checks)


def check_traces_by_regime(run: NetworkRun) -> Finding:
    """Check that traces of near and far inputs are larger and broader than those of ID inputs (Figure 2)."""
    study, checks, medians = run.study, list[Check](), list[str]()
    known = study.traces[f"parameter/{ID}"]
    for group in study.groups:
        members = _members(study, group)
        traces = np.concatenate([study.traces[f"parameter/{name}"] for name in members])
        ratio, low, high = quartile_ratio(known, traces)
        text = f"interquartile range, {group} over ID: ×{number(ratio)} (×{number(low)} to ×{number(high)})"
        checks += [_check_shift(run, group, members), Check(run.network, text, above_zero(low - 1, high - 1))]
        medians.append(f"{number(float(np.median(traces)))} {group}")
    return Finding(f"median trace {number(float(np.median(known)))} ID, {', '.join(medians)}", checks)


def check_traces_by_data_set(run: NetworkRun) -> Finding:
    """Check that traces of every OOD data set are larger (Figures 12 to 15)."""
    checks = [_check_shift(run, name, [name]) for name in run.study.datasets[1:]]
    count = f"{count_held(checks)} of {len(checks)} OOD data sets"
    return Finding(f"traces are shifted to larger values in {count}", checks)


def check_spectra(run: NetworkRun) -> Finding:
    """Check that λmax grows with the shift, and that spectra over features are broader (Figure 7)."""
    regimes = list_regimes(run.study)[1:]
    checks = [_check_growth(run, space, "lambda_max", ID, regime) for space in SHOWN for regime in regimes]
    broader = []
    for dataset in run.study.datasets:
        (wide, error), (narrow, other) = (large_share(run.study, space, dataset) for space in ("feature", "parameter"))
        room = 2 * (error + other)
        order = (wide - narrow > room) - (narrow - wide > room)
        shares = f"{percent(wide)} over features, {percent(narrow)} over parameters"
        text = f"share of large eigenvalues, {'ID' if dataset == ID else dataset}: {shares}"
        broader.append(Check(run.network, text, HOLDS[order]))
    paths = " and ".join(f"over {SPACES[space]} {_list_regimes(run.study, space, 'lambda_max')}" for space in SHOWN)
    shows = f"{paths}, broader over features in {count_held(broader)} of {len(broader)} data sets"
    return Finding(shows, checks + broader)


def check_spectra_by_data_set(run: NetworkRun, space: Space) -> Finding:
    """Check that λmax of every OOD data set is larger (Figures 8 to 11)."""
    known = run.study.cells[ID, space, "lambda_max"]
    checks = []
    for dataset in run.study.datasets[1:]:
        cell = run.study.cells[dataset, space, "lambda_max"]
        text = f"λmax of {dataset}, {number(cell.value)}, exceeds that of ID data, {number(known.value)}"
        checks.append(Check(run.network, text, HOLDS[above(cell, known)]))
    count = f"{count_held(checks)} of {len(checks)} data sets"
    return Finding(f"λmax exceeds that of ID data, {number(known.value)}, in {count}", checks)


def check_eigenvalues(run: NetworkRun) -> Finding:
    """Check where partial normalisation widens the gap, and that full normalisation closes it (Figure 6)."""
    none, partial, full = (rank_aurocs(run.study, kind) for kind in ("none", "partial", "full"))
    pairs = [paired_difference(b, a) for a, b in zip(none, partial, strict=True)]
    signs = [above_zero(pair.low, pair.high) for pair in pairs]
    wider, narrower, ranks = signs.count(True), signs.count(False), len(signs)
    holds = True if 2 * wider > ranks else False if 2 * narrower > ranks else None
    text = f"partial over none: wider at {wider}, narrower at {narrower} of {ranks} ranks"
    (a, a_low, a_high), (b, b_low, b_high) = (_mean_over_ranks(aurocs) for aurocs in (none, full))
    bound_low, bound_high = (0.5 + COLLAPSED * (end - 0.5) for end in (a_low, a_high))
    collapsed = True if b_high < bound_low else False if b_low > bound_high else None
    means = f"mean AUROC over the ranks: {percent(a)} none, {percent(b)} full"
    checks = [Check(run.network, text, holds), Check(run.network, means, collapsed)]
    ratios = ", ".join(f"{number(_median_ratio(run.study, kind))} {kind}" for kind in ("none", "partial", "full"))
    shows = f"the gap is wider under partial normalisation at {wider} and narrower at {narrower} of {ranks} ranks"
    return Finding(f"{shows}, typical ratio of OOD to ID {ratios}", checks)


def check_logits(run: NetworkRun) -> Finding:
    """Check that the trace over features is the better score than that over logits (Table 4)."""
    ablations = run.ablations
    feature = mean_auroc({name: ablations.scores[f"partial/{name}"] for name in ablations.logits})
    logit = mean_auroc(ablations.logits)
    lead = paired_difference(feature, logit)
    a, b = percent(feature.auroc), percent(logit.auroc)
    text = f"average AUROC {a} over features, {b} over logits, {points(lead.value, lead.low, lead.high)} points"
    shows = f"at α {ablations.alphas['partial']:g} average AUROC {a} over features and {b} over logits"
    return Finding(shows, [Check(run.network, text, above_zero(lead.low, lead.high))])


def check_theorem(_: Sequence[NetworkRun]) -> Finding:
    """Check the theorem on random settings, which are the same in every run."""
    settings = random_theorems()
    true, false = ([theorem for _, theorem in settings if theorem.holds == holds] for holds in (True, False))
    wrong, reverse = sum(not theorem.agrees for theorem in true), sum(theorem.gap < 0 for theorem in false)
    short = [theorem for setting, theorem in settings if setting.c < 1]
    unmet = sum(not theorem.holds for theorem in short)
    checks = [
        Check("any", f"condition true: {wrong} of {len(true)} settings contradict the theorem", wrong == 0),
        Check("any", f"condition false: {reverse} of {len(false)} have the reverse order", reverse == len(false)),
    ]
    return Finding(
        f"Of {len(true)} random settings that meet the condition {wrong} contradict the theorem, of {len(false)} that "
        f"do not {reverse} have the reverse order, and of {len(short)} with c < 1 the condition fails in {unmet}",
        checks,
    )


def statistic(study: Study, dataset: str, space: Space, name: Name) -> Statistic:
    """Return a statistic of a data set, or its mean over a group; the error of a trace covers the sampling of images.

    λmax belongs to the mean Hessian, for which no single input has a value: it keeps the error of its computation.
    """
    if dataset in study.groups:
        return mean_statistic([statistic(study, member, space, name) for member in _members(study, dataset)])
    cell = study.cells[dataset, space, name]
    if name == "lambda_max":
        return cell
    traces = study.traces[f"{space}/{dataset}"]
    sampled = float(traces.std(ddof=1)) / sqrt(len(traces)) if len(traces) > 1 else inf
    return replace(cell, stderr=hypot(cell.stderr or 0.0, sampled) if np.isfinite(sampled) else inf)


def list_regimes(study: Study) -> list[str]:
    """Return ``id``, ``near`` and ``far`` as far as the suite has them."""
    return [ID, *study.groups]


def trace_auroc(study: Study, members: list[str]) -> Influence:
    """Return the mean AUROC of the trace over parameters, traces of ID inputs enlarged by two typical errors."""
    room = 1 + 2 * (typical_error(study, "parameter") or 0.0)
    known = room * study.traces[f"parameter/{ID}"]
    return mean_influence([auroc_influence(known, study.traces[f"parameter/{name}"]) for name in members])


def mean_auroc(scores: Mapping[str, NDArray[np.floating]]) -> Influence:
    """Return the mean AUROC of scores over the OOD data sets."""
    return mean_influence([auroc_influence(scores[ID], scores[name]) for name in scores if name != ID])


def quartile_ratio(known: Values, unknown: Values) -> tuple[float, float, float]:
    """Return the ratio of the interquartile ranges, OOD over ID, with the 95 % interval of a bootstrap around it.

    ID traces without any spread give ``inf``.
    """
    rng = np.random.default_rng(0)
    ours, theirs = (rng.choice(values, (REPLICATES, len(values))) for values in (known, unknown))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, ratios = float(iqr(unknown) / iqr(known)), iqr(theirs, axis=1) / iqr(ours, axis=1)
    low, high = np.quantile(np.nan_to_num(ratios, nan=1.0), [0.025, 0.975], method="inverted_cdf")
    return ratio, min(ratio, float(low)), max(ratio, float(high))


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


def _check_steps(run: NetworkRun, space: Space, name: Name) -> list[Check]:
    """Return whether a statistic grows from ID to near and from near to far data."""
    steps = pairwise(list_regimes(run.study))
    return [_check_growth(run, space, name, *step) for step in steps] + _report_missing(run, space, name)


def _check_growth(run: NetworkRun, space: Space, name: Name, before: str, after: str) -> Check:
    a, b = (statistic(run.study, regime, space, name) for regime in (before, after))
    what = f"{NAMES[name]} over {SPACES[space]} grows from {REGIMES[before]} to {REGIMES[after]}"
    values = ", ".join(number(s.value) + ("" if s.stderr is None else f" ± {number(s.stderr)}") for s in (a, b))
    return Check(run.network, f"{what}: {values}", HOLDS[above(b, a)])


def _report_missing(run: NetworkRun, space: Space, name: Name) -> list[Check]:
    """Return an open check for each of near and far data that the suite does not have."""
    missing = [group for group in REGIMES if group not in list_regimes(run.study)]
    what = f"{NAMES[name]} over {SPACES[space]}, near and far"
    return [Check(run.network, f"{what}: the suite has no {group} data", None) for group in missing]


def _check_shift(run: NetworkRun, label: str, members: list[str]) -> Check:
    trace = trace_auroc(run.study, members)
    low, high = interval(trace.auroc, trace.stderr, trace.pairs, trace.pairs)
    text = f"AUROC of the trace, {label}: {percent(trace.auroc)} ({percent(low)} to {percent(high)})"
    return Check(run.network, text, above_zero(low - 0.5, high - 0.5))


def _list_regimes(study: Study, space: Space, name: Name) -> str:
    """Return a statistic in all regimes, such as ``trace 13.5 ID, 407 near, 362 far``."""
    values = (f"{number(statistic(study, at, space, name).value)} {REGIMES[at]}" for at in list_regimes(study))
    return f"{NAMES[name]} {', '.join(values)}"


def _members(study: Study, group: str) -> list[str]:
    return [ood["name"] for ood in study.suite["ood"] if ood["group"] == group]


def _mean_over_ranks(aurocs: list[Influence]) -> tuple[float, float, float]:
    """Return a mean over ranks with its interval: the mean of theirs, because all are of the same images."""
    ends = [interval(rank.auroc, rank.stderr, rank.pairs, rank.pairs) for rank in aurocs]
    return fmean(rank.auroc for rank in aurocs), fmean(low for low, _ in ends), fmean(high for _, high in ends)


def _median_ratio(study: Study, kind: str) -> float:
    """Return the median over the ranks of the ratio of medians, OOD over ID, without ranks whose ID median is 0."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    known = np.median(values[ID], axis=0)
    unknown = np.median(np.concatenate([values[name] for name in study.datasets[1:]]), axis=0)
    positive = known > 0
    return float(np.median(unknown[positive] / known[positive])) if positive.any() else 0.0
