"""Checks of the paper's claims: for each claim a function from the measurements of a run to conditions.

A condition must hold if the claim is true; it is open where the intervals do not decide it. The text of the claims is
in ``claims.toml``; ``verdicts`` draws the conclusions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from math import hypot, inf
from statistics import fmean
from typing import NamedTuple, TypeVar

import numpy as np

from ..evaluate.results import ID, Results
from ..evaluate.study_results import NAMES, SPACES, Name, Space, Statistic, Study, above
from ..evaluate.summary import family_of
from ..report.templates import percent as format_percent
from ..report.templates import quantity, signed
from . import measurements as measured
from .ablations import NORMALISATIONS, Cost, Separation
from .measurements import REGIMES, SPACES_SHOWN, STATISTICS, Interval, NetworkRun, decide, list_regimes, statistic
from .tables import FOLD_FAMILY, run_labels
from .theory import random_theorems

# Thresholds; the notes in claims.toml name them. Times are ratios.
SIGNIFICANT = 0.05  # p-value of a single mode below which a density has several
LARGE = 0.01  # share of the largest eigenvalue above which an eigenvalue counts as large
COLLAPSED = 0.5  # share of the AUROC above 50 % without normalisation below which a gap has collapsed
COMPETITIVE = 0.02  # largest difference in AUROC from the best method that counts as competitive
NEAR_OPTIMAL = 0.01  # largest regret in AUROC that counts as nearly optimal
HARMFUL = 0.02  # loss in AUROC from partial to full normalisation that counts as harm
COMPARABLE = 2.0  # of a pass with FOLD's score to a forward pass: at most
LOW_COST = 1.05  # of network and method to a bare forward pass: at most
SLOWER = 2.0  # of far slower inference to FOLD's: at least
MAGNITUDE = 10.0  # of a set-up that is orders of magnitude slower: at least
SETUP_ROOM = 2.0  # uncertainty of a set-up time, which is measured at most three times
EQUAL = 1.25  # of two inference times that count as the same: at most

SLOW_SCORING = ("rmds", "knn")  # slow inference according to the paper
SLOW_SETUP = ("knn", "mds", "she", "vim", "rmds")  # slow set-up according to the paper
METRICS = {"auroc": "AUROC", measured.FPR95: "FPR95"}


@dataclass(frozen=True)
class Check:
    """A condition that must hold if a claim is true."""

    network: str = field(default="", kw_only=True)  # "all" for a mean over networks, "any" for the theorem
    what: str  # the condition in a few words, with the numbers
    holds: bool | None  # None if the intervals leave it open


class Finding(NamedTuple):
    """The result of a run for one claim: a clause without a full stop, and the checks."""

    shows: str
    checks: list[Check]


CHECKS: dict[str, Callable[..., Finding]] = {}  # by the exhibit of the claim, from a run, or from all of them
_F = TypeVar("_F", bound=Callable[..., Finding])


def check_of(exhibit: str, **options: str) -> Callable[[_F], _F]:
    """Register a check function under the exhibit of its claim, called with these options."""

    def register(function: _F) -> _F:
        CHECKS[exhibit] = partial(function, **options)
        return function

    return register


@check_of("Figure 1")
def check_trend_and_cost(run: NetworkRun) -> Finding:
    """Check that the trace grows by regime, and that FOLD has a high AUROC at a low cost."""
    checks, shows = _check_steps(run.study, "parameter", "trace"), _list_values(run.study, "parameter", "trace")
    variants = _check_variants(run)
    if not variants:
        return Finding(f"{shows}, and no variant of FOLD was timed", checks)
    have = "has" if _count_held(variants) == 1 else "have"
    shows += f", and {_count(variants)} variants of FOLD {have} high AUROC at low cost"
    return Finding(shows, checks + variants)


def _check_variants(run: NetworkRun) -> list[Check]:
    """Check for each variant of FOLD that it exceeds the mean AUROC, and takes hardly more than the bare network."""
    costs, cells = {cost.method: cost for cost in run.ablations.costs}, run.results.cells
    timed = [method for method in run.results.methods if method.method in costs]
    mean = fmean(cells[method.method, "all"].auroc for method in timed) if timed else 0.0
    checks = list[Check]()
    for method in (method.method for method in timed if method.name in FOLD_FAMILY):
        cell, cost = cells[method, "all"], costs[method]
        low, high = (cell.certainty.intervals if cell.certainty else {}).get("auroc", (0.0, 1.0))
        parts, text = {decide(low >= mean, high < mean)}, f"{method}: AUROC {_percent(cell.auroc)}"
        text += f" (mean {_percent(mean)}), "
        if measured.forward_cost(run) is None:
            parts.add(None)
            text += "no network in front of it"
        else:
            passes = measured.count_passes(cost)
            parts.add(passes.at_most(LOW_COST))
            text += f"with the network {_with_ends(passes, _number)} bare passes"
        text += f", alone {_number(cost.inference_ms)} ms"
        checks.append(Check(text, decide(parts == {True}, False in parts)))
    return checks


@check_of("Table 1", space="parameter")
@check_of("Table 6", space="feature")
def check_regimes(run: NetworkRun, space: Space) -> Finding:
    """Check that both statistics grow from ID to near-OOD to far-OOD data."""
    shows = " and ".join(_list_values(run.study, space, name) for name in STATISTICS)
    return Finding(shows, [check for name in STATISTICS for check in _check_steps(run.study, space, name)])


@check_of("Figure 2")
def check_traces_by_regime(run: NetworkRun) -> Finding:
    """Check that traces of near-OOD and far-OOD inputs are larger, broader and often have several modes."""
    study, checks, medians = run.study, list[Check](), list[str]()
    known = study.traces[f"parameter/{ID}"]
    for group in study.groups:
        members = measured.list_members(study, group)
        traces = np.concatenate([study.traces[f"parameter/{name}"] for name in members])
        ratio = measured.quartile_ratio(known, traces)
        text = f"interquartile range, {group} over ID: {_with_ends(ratio, lambda number: f'×{_number(number)}')}"
        checks += [_check_shift(study, group, members), Check(text, ratio.above(1))]
        medians.append(f"{_number(float(np.median(traces)))} {group}")
    levels = {name: measured.unimodality(study.traces[f"parameter/{name}"]) for name in study.datasets[1:]}
    several = sum(level < SIGNIFICANT for level in levels.values())
    count = f"more than one mode in {several} of {len(levels)} OOD data sets"
    text = f"{count}: p of a single mode {', '.join(f'{name} {level:.3f}' for name, level in levels.items())}"
    checks.append(Check(text, decide(2 * several >= len(levels), not several)))
    medians = [f"{_number(float(np.median(known)))} ID", *medians]
    return Finding(f"median trace {', '.join(medians)}, and {count}", checks)


@check_of("Table 2")
def check_averages(run: NetworkRun) -> Finding:
    """Check that a variant of FOLD has the best average AUROC and FPR95, and that ReAct and ASH improve FOLD."""
    results = run.results
    shows, checks = _compare_best([[results]], "average {}", "the run has no method of the FOLD family, or no other")
    plain, *shaped = (
        next((label for label in run_labels(name) if (label, "all") in results.cells), None)
        for name in ("fold", "fold-r", "fold-a")
    )
    for label in filter(None, shaped if checks and plain else ()):
        gain = measured.compute_lead(results, "auroc", label, str(plain))
        checks.append(Check(f"average AUROC, {label} over {plain}: {_with_ends(gain)} points", gain.above()))
    return Finding(shows, checks)


def check_benchmarks(benchmarks: Sequence[Sequence[Results]]) -> Finding:
    """Check the same for the means over several benchmarks, the last column of Table 2, each with its networks."""
    none = "no method of the FOLD family, or no other, is in the runs of all benchmarks"
    return _compare_best(benchmarks, f"average {{}} over {len(benchmarks)} benchmarks", none)


@check_of("Table 5")
def check_networks(runs: Sequence[NetworkRun]) -> Finding:
    """Check the same for the means over several architectures."""
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
        ours, other = (measured.find_best(groups, metric, family) for family in (True, False))
        if ours is None or other is None:
            return Finding(none, [])
        leads = [Interval.mean([measured.compute_lead(run, metric, ours, other) for run in group]) for group in groups]
        lead = Interval.mean(leads)
        a, b = (_percent(measured.mean_over_groups(groups, metric, method)) for method in (ours, other))
        shows.append(f"{'mean' if len(groups) > 1 else 'average'} {name} of {ours} {a}, of {other} {b}")
        text = f"{label.format(name)}: {ours} {a}, {other} {b}, better by {_with_ends(lead)} points"
        checks.append(Check(text, lead.above()))
    return Finding(" and ".join(shows), checks)


@check_of("Figure 3")
def check_costs(run: NetworkRun) -> Finding:
    """Check set-up and inference times of FOLD and AutoFold against those of other methods."""
    costs, forward, checks = measured.costs_by_name(run), measured.forward_cost(run), list[Check]()
    if "fold" not in costs:
        return Finding("FOLD was not timed", [])
    fold = costs["fold"]
    for suffix in ("", "-r", "-a"):
        variant, auto = costs.get(f"fold{suffix}"), costs.get(f"autofold{suffix}")
        if variant is not None and forward is not None:
            passes = measured.count_passes(variant)
            text = f"the network and {variant.method} take {_with_ends(passes, _number)} bare passes"
            checks.append(Check(text, passes.at_most(COMPARABLE)))
        if variant is not None and auto is not None:
            ours, theirs = (measured.inference_time(run, cost) for cost in (auto, variant))
            decision = decide(ours.value <= EQUAL * theirs.value, ours.low > EQUAL * theirs.high)
            checks.append(Check(_format_times(run, auto, variant), decision))
    for slow in (costs[name] for name in SLOW_SCORING if name in costs):
        theirs, ours = (measured.inference_time(run, cost) for cost in (slow, fold))
        decision = decide(theirs.low >= SLOWER * ours.high, theirs.high < SLOWER * ours.low)
        checks.append(Check(_format_times(run, slow, fold), decision))
    if forward is None:  # then the time to collect the features is unknown
        shows = f"the score of {fold.method} takes {_number(fold.inference_ms)} ms with no network in front of it"
    else:
        pairs = [pair for pair in product(("fold", "autofold"), SLOW_SETUP) if costs.keys() >= {*pair}]
        for own, slow in ((costs[name], costs[other]) for name, other in pairs):
            mine, other = measured.setup_time(run, own), measured.setup_time(run, slow)
            text = f"{slow.method} sets up in {_number(other)} ms, {own.method} in {_number(mine)}, features included"
            checks.append(Check(text, decide(other >= MAGNITUDE * mine, other < MAGNITUDE * mine / SETUP_ROOM)))
        ratio = _with_ends(measured.count_passes(fold), _number)
        shows = f"the network and {fold.method} take {ratio} bare passes of {_number(forward.inference_ms)} ms, "
        shows += f"{fold.method} alone {_number(fold.inference_ms)} ms"
    count = f", {_count(checks)} comparisons hold"
    return Finding(shows + (count if checks else ", and there is nothing to compare it with"), checks)


@check_of("Figure 4")
def check_exponents(run: NetworkRun) -> Finding:
    """Check that the regret of AutoFold's exponent is small."""
    checks, regrets = list[Check](), list[str]()
    for curve in run.ablations.sensitivities:
        regret = Interval(curve.regret, curve.regret_low, curve.regret_high)
        chosen = f"{curve.method}: chosen α {curve.chosen:g} gives {_percent(curve.chosen_auroc['all'])}"
        checks.append(Check(f"{chosen}, regret {_with_ends(regret)} points", regret.at_most(NEAR_OPTIMAL)))
        best = curve.grid[int(np.argmax(curve.auroc["all"]))]
        loss = _minus(f"{100 * regret.value:.2f}")  # negative if the choice, between two grid points, beats both
        regrets.append(f"{loss} for {curve.method} (α {curve.chosen:g}, best {best:g})")
    shows = f"points that AutoFold loses: {_join_words(regrets)}" if regrets else "no exponents were tried"
    return Finding(shows, checks)


@check_of("Table 3")
def check_normalisation(run: NetworkRun) -> Finding:
    """Check that partial normalisation improves seven methods."""
    checks, harmed = list[Check](), 0
    for method in dict.fromkeys(effect.method for effect in run.ablations.effects):
        none, partly, full = (run.ablations.effect(method, kind) for kind in NORMALISATIONS)
        if none is None or partly is None:
            continue
        gain = Interval(partly.gain, partly.gain_low, partly.gain_high)
        text = f"{_percent(none.auroc)} without, {_percent(partly.auroc)} with α {partly.alpha:g}"
        checks.append(Check(f"{method}: {text}, {_with_ends(gain)} points", gain.above()))
        harmed += full is not None and full.auroc < partly.auroc - HARMFUL
    total, limit = len(checks), f"more than {100 * HARMFUL:g} points"
    side = f"full costs no method {limit}, as in the paper's CIFAR-10"
    if harmed:
        mostly = 2 * harmed > total
        like = "as in the paper's ImageNet-200" if mostly else "between the paper's CIFAR-10 and ImageNet-200"
        side = f"full costs {harmed} of {total} methods {limit}, {like}"
    return Finding(f"partial normalisation improves {_count(checks)} methods, and {side}", checks)


@check_of("Figure 5")
def check_separation(run: NetworkRun) -> Finding:
    """Check that Cohen's d rises with partial and falls with full normalisation, and why it rises."""
    scores, datasets = run.ablations.scores, [ood["name"] for ood in run.results.suite["ood"]]
    rows: dict[str, Separation] = {row.normalisation: row for row in run.ablations.separations if row.dataset == "all"}
    known = {kind: scores[f"{kind}/{ID}"].astype(np.float64) for kind in rows}
    unknown = {
        kind: np.concatenate([scores[f"{kind}/{name}"] for name in datasets]).astype(np.float64) for kind in rows
    }
    influences = {
        kind: measured.cohens_d_influence(known[kind], unknown[kind], row.cohens_d) for kind, row in rows.items()
    }
    checks = list[Check]()
    for before, after in (("none", "partial"), ("full", "none")):
        a, b = rows[before].cohens_d, rows[after].cohens_d
        rise = Interval.around(b - a, measured.NORMAL * float(np.linalg.norm(influences[after] - influences[before])))
        text = f"Cohen's d rises from {before} to {after}: {a:.3f} {before}, {b:.3f} {after}"
        checks.append(Check(_minus(f"{text}, {_with_ends(rise, '{:+.3f}'.format)}"), rise.above()))
    moved, other = unknown["partial"] - unknown["none"], known["partial"] - known["none"]
    before, after = ((unknown[kind] - unknown[kind].mean()) ** 2 for kind in ("none", "partial"))
    narrowed = before - after
    gap = Interval.around(
        float(moved.mean() - other.mean()),
        measured.NORMAL * hypot(measured.mean_error(moved), measured.mean_error(other)),
    )
    fall = Interval.around(float(narrowed.mean()), measured.NORMAL * measured.mean_error(narrowed))
    for what, change in (("the gap of the means rises", gap), ("the variance of the OOD scores falls", fall)):
        checks.append(Check(f"{what} from none to partial, by {_with_ends(change, _number)}", change.above()))
    parts = {
        "Cohen's d": [_minus(f"{row.cohens_d:.3f}") for row in rows.values()],
        "gap of the means": [_number(row.gap) for row in rows.values()],
        "variance of OOD scores": [_number(row.ood_variance) for row in rows.values()],
        "FPR95": [_percent(row.fpr95) for row in rows.values()],
    }
    shows = ", ".join(f"{name} {' / '.join(values)}" for name, values in parts.items())
    return Finding(f"{shows} ({' / '.join(rows)})", checks)


@check_of("Figure 6")
def check_eigenvalues(run: NetworkRun) -> Finding:
    """Check at how many ranks partial normalisation widens the gap, and that full normalisation closes it."""
    none, partly, full = (measured.rank_aurocs(run.study, kind) for kind in NORMALISATIONS)
    signs = [Interval.of_difference(b, a).above() for a, b in zip(none, partly, strict=True)]
    wider, narrower, ranks = signs.count(True), signs.count(False), len(signs)
    text = f"partial over none: wider at {wider}, narrower at {narrower} of {ranks} ranks"
    before, after = (Interval.mean([Interval.of_auroc(rank) for rank in aurocs]) for aurocs in (none, full))
    low, high = (0.5 + COLLAPSED * (end - 0.5) for end in (before.low, before.high))
    means = f"mean AUROC over the ranks: {_percent(before.value)} none, {_percent(after.value)} full"
    checks = [
        Check(text, decide(2 * wider > ranks, 2 * narrower > ranks)),
        Check(means, decide(after.high < low, after.low > high)),
    ]
    ratios = ", ".join(f"{_number(measured.median_ratio(run.study, kind))} {kind}" for kind in NORMALISATIONS)
    shows = f"the gap is wider under partial normalisation at {wider} and narrower at {narrower} of {ranks} ranks"
    return Finding(f"{shows}, typical ratio of OOD to ID {ratios}", checks)


@check_of("Table 4")
def check_logits(run: NetworkRun) -> Finding:
    """Check that the trace over features has a higher AUROC than that over logits."""
    feature, logit = measured.trace_aurocs(run).values()
    lead = Interval.of_difference(feature, logit)
    a, b = _percent(feature.auroc), _percent(logit.auroc)
    text = f"average AUROC {a} over features, {b} over logits, {_with_ends(lead)} points"
    shows = f"at α {run.ablations.alphas['partial']:g} average AUROC {a} over features and {b} over logits"
    return Finding(shows, [Check(text, lead.above())])


@check_of("Figure 7")
def check_spectra(run: NetworkRun) -> Finding:
    """Check that λmax grows, that spectra over features are broader, and that those of OOD data are more dispersed."""
    study, broader, dispersed = run.study, list[Check](), list[Check]()
    for dataset in study.datasets:
        (wide, error), (narrow, other) = (
            measured.large_share(study, space, dataset, LARGE) for space in ("feature", "parameter")
        )
        shares = f"{_percent(wide)} over features, {_percent(narrow)} over parameters"
        text = f"share of large eigenvalues, {'ID' if dataset == ID else dataset}: {shares}"
        broader.append(Check(text, Interval.around(wide - narrow, 2 * (error + other)).above()))
    known, error = measured.spectral_spread(study, ID)
    for dataset in study.datasets[1:]:
        spread, other = measured.spectral_spread(study, dataset)
        text = f"deviation of the eigenvalues over features, {dataset}: {_number(spread)}, ID {_number(known)}"
        dispersed.append(Check(text, Interval.around(spread - known, 2 * (error + other)).above()))
    growth = [_check_growth(study, space, "lambda_max", ID, at) for space in SPACES_SHOWN for at in study.groups]
    paths = " and ".join(f"over {SPACES[at]} {_list_values(study, at, 'lambda_max')}" for at in SPACES_SHOWN)
    shows = f"{paths}, broader over features in {_count(broader)} data sets"
    return Finding(f"{shows}, more dispersed than that of ID data in {_count(dispersed)}", growth + broader + dispersed)


@check_of("Theorem 1")
def check_theorem(_: Sequence[NetworkRun]) -> Finding:
    """Check the theorem on random settings, which are the same in every run."""
    settings = random_theorems()
    true, false = ([theorem for _, theorem in settings if theorem.holds == holds] for holds in (True, False))
    wrong, reverse = sum(not theorem.agrees for theorem in true), sum(theorem.gap < 0 for theorem in false)
    return Finding(
        f"{len(true) - wrong} of {len(true)} random settings that meet the condition have the order that the theorem "
        f"states, and {reverse} of {len(false)} that do not meet it have the reverse order",
        [
            Check(f"condition true: {wrong} of {len(true)} settings contradict the theorem", wrong == 0),
            Check(f"condition false: {reverse} of {len(false)} have the reverse order", reverse == len(false)),
        ],
    )


@check_of("Table 7")
def check_statistics(run: NetworkRun) -> Finding:
    """Check that both statistics of all OOD data sets exceed those of ID data, and that the highest is far-OOD."""
    study, checks, counts = run.study, list[Check](), list[str]()
    near, far = (measured.list_members(study, group) for group in ("near", "far"))
    for space, name in product(SPACES_SHOWN, STATISTICS):
        values = {dataset: statistic(study, dataset, space, name) for dataset in study.datasets}
        orders = [above(values[dataset], values[ID]) for dataset in study.datasets[1:]]
        what, known = f"{NAMES[name]} over {SPACES[space]}", _number(values[ID].value)
        counts.append(f"{what} {orders.count(1)}")
        text = f"{what} exceeds that of ID data, {known}, in {orders.count(1)} of {len(orders)} data sets"
        checks.append(Check(text, decide(set(orders) == {1}, -1 in orders)))
        if near and far:
            a, b = (max(group, key=lambda dataset: values[dataset].value) for group in (near, far))
            highest = " and ".join(f"{dataset}, {_number(values[dataset].value)}" for dataset in (a, b))
            checks.append(Check(f"{what} is highest in {highest} (near and far)", _exceeds(values[b], values[a])))
        checks += _report_missing(study, space, name)
    return Finding(f"OOD data sets above the ID data, of {len(study.datasets) - 1}: {_join_words(counts)}", checks)


@check_of("Figures 8 and 10", space="parameter")
@check_of("Figures 9 and 11", space="feature")
def check_spectra_by_data_set(run: NetworkRun, space: Space) -> Finding:
    """Check that λmax of every OOD data set exceeds that of ID data."""
    known, checks = statistic(run.study, ID, space, "lambda_max"), list[Check]()
    for dataset in run.study.datasets[1:]:
        cell = statistic(run.study, dataset, space, "lambda_max")
        text = f"λmax of {dataset}, {_with_error(cell)}, exceeds that of ID data, {_with_error(known)}"
        checks.append(Check(text, _exceeds(cell, known)))
    return Finding(f"λmax exceeds that of ID data, {_number(known.value)}, in {_count(checks)} data sets", checks)


@check_of("Figures 12 to 15")
def check_traces_by_data_set(run: NetworkRun) -> Finding:
    """Check that traces of every OOD data set are larger than those of ID data."""
    checks = [_check_shift(run.study, name, [name]) for name in run.study.datasets[1:]]
    return Finding(f"traces are shifted to larger values in {_count(checks)} OOD data sets", checks)


@check_of("Tables 8 to 11")
def check_data_sets(run: NetworkRun) -> Finding:
    """Check that the best variant of FOLD is competitive on average."""
    results, cells = run.results, run.results.cells
    ours = measured.find_best([[results]], "auroc", ours=True)
    if ours is None:
        return Finding("the run has no method of the FOLD family", [])
    names = [str(ood["name"]) for ood in results.suite["ood"]]
    lags = {
        column: Interval(certainty.behind, certainty.behind_low, certainty.behind_high)
        for column in (*names, "all")
        if (certainty := cells[ours, column].certainty) is not None
    }
    first = sum(cells[ours, name].auroc >= max(cells[m.method, name].auroc for m in results.methods) for name in names)
    behind = sum(name in lags and lags[name].at_most(COMPETITIVE) is False for name in names)
    shows, text = f"the best variant, {ours},", f"{ours} on average: AUROC {_percent(cells[ours, 'all'].auroc)}"
    lag = lags.get("all")
    if lag is not None:
        shows += f" is {100 * lag.value:.2f} points behind the best method on average,"
        text += f", behind the best by {_with_ends(lag)} points"
    shows += f" has the best AUROC on {first} of {len(names)} data sets, and is significantly"
    shows += f" more than {100 * COMPETITIVE:g} points behind on {behind} of them"
    return Finding(shows, [Check(text, None if lag is None else lag.at_most(COMPETITIVE))])


def _check_steps(study: Study, space: Space, name: Name) -> list[Check]:
    """Check that a statistic grows from ID to near-OOD and from near-OOD to far-OOD data."""
    steps = pairwise(list_regimes(study))
    return [_check_growth(study, space, name, *step) for step in steps] + _report_missing(study, space, name)


def _check_growth(study: Study, space: Space, name: Name, before: str, after: str) -> Check:
    a, b = (statistic(study, regime, space, name) for regime in (before, after))
    what = f"{NAMES[name]} over {SPACES[space]} grows from {REGIMES[before]} to {REGIMES[after]}"
    return Check(f"{what}: {_with_error(a)}, {_with_error(b)}", _exceeds(b, a))


def _report_missing(study: Study, space: Space, name: Name) -> list[Check]:
    """Return an open check for each of near-OOD and far-OOD data that the suite lacks."""
    what = f"{NAMES[name]} over {SPACES[space]}, near and far"
    missing = [group for group in REGIMES if group not in list_regimes(study)]
    return [Check(f"{what}: the suite has no {group} data", None) for group in missing]


def _check_shift(study: Study, label: str, members: Sequence[str]) -> Check:
    auroc = Interval.of_auroc(measured.trace_auroc(study, members))
    return Check(f"AUROC of the trace, {label}: {_with_ends(auroc, _percent)}", auroc.above(0.5))


def _exceeds(first: Statistic, second: Statistic) -> bool | None:
    """Return whether the first statistic is significantly larger than the second; None if neither is."""
    order = above(first, second)
    return decide(order == 1, order == -1)


def _count_held(checks: Sequence[Check]) -> int:
    return sum(check.holds is True for check in checks)


def _count(checks: Sequence[Check]) -> str:
    """Return how many checks hold, such as ``3 of 7``."""
    return f"{_count_held(checks)} of {len(checks)}"


def _list_values(study: Study, space: Space, name: Name) -> str:
    """Return a statistic in all regimes, such as ``trace 13.5 ID, 407 near, 362 far``."""
    values = (f"{_number(statistic(study, at, space, name).value)} {REGIMES[at]}" for at in list_regimes(study))
    return f"{NAMES[name]} {', '.join(values)}"


def _format_times(run: NetworkRun, first: Cost, second: Cost) -> str:
    """Return the times of two methods with the network, and alone."""
    alone = [f"{_number(cost.inference_ms)} ms" for cost in (first, second)]
    if measured.forward_cost(run) is None:
        return f"{first.method} scores in {alone[0]}, {second.method} in {alone[1]}"
    both = [f"{_number(measured.inference_time(run, cost).value)} ms" for cost in (first, second)]
    times = f"the network and {first.method} take {both[0]}, with {second.method} {both[1]}"
    return f"{times} (alone {' and '.join(alone)})"


def _with_error(figure: Statistic) -> str:
    """Return a value with its error, such as ``13.5 ± 0.2``."""
    error = figure.stderr
    text = "" if error is None else " ± ∞" if error == inf else f" ± {_number(error)}"
    return _number(figure.value) + text


_number = partial(quantity, digits=3)


def _percent(share: float) -> str:
    return f"{format_percent(share)} %"


def _with_ends(interval: Interval, show: Callable[[float], str] = signed) -> str:
    """Return a value with its interval, such as ``+1.23 (−0.10 to +2.00)``; by default a share in percentage points."""
    value, low, high = map(show, interval)
    return f"{value} ({low} to {high})"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _join_words(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])
