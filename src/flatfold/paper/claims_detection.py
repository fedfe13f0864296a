"""Checks of the claims about detection, ablations and costs: Tables 2, 3, 5 and 8 to 11, Figures 3 to 5."""

import re
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.bootstrap import percentile_interval
from ..core.intervals import paired_difference
from ..evaluate.compare import column_influence, resampled
from ..evaluate.results import ID, Results
from ..evaluate.summary import family_of
from .ablations import FORWARD, Cost, Separation
from .claims import Check, Finding, NetworkRun, above_zero, at_most, count_held, join_words, number, percent, points
from .tables import FOLD_FAMILY

FPR95 = "fpr95_ood_positive"
METRICS = {"auroc": "AUROC", FPR95: "FPR95"}
REPLICATES = 400
NORMAL = 1.959964  # 95 % of a normal distribution lie within so many deviations

COMPETITIVE = 0.02  # of AUROC: largest distance to the best method that counts as competitive
NEAR_OPTIMAL = 0.01  # of AUROC: largest regret that counts as nearly optimal
HARMFUL = 0.02  # of AUROC below partial normalisation
COMPARABLE = 2.0  # times a forward pass: what a pass with FOLD's score may take
SLOWER = 2.0  # times: how much longer than FOLD a method must take to count as far slower
FEW = 4  # rounds below which quartiles are not used
EQUAL = 1.25  # times: up to which two inference times count as the same

SLOW_SCORING = ("rmds", "knn")  # that the paper names for their inference
SLOW_SETUP = ("vim", "rmds", "knn")  # that the paper names for their set-up
NO_DATA = ("fold", "fold-a")  # learn nothing from images

Values = NDArray[np.float64]


class Lead(NamedTuple):
    """How much better one method is than another, with its 95 % interval."""

    value: float
    low: float
    high: float


def check_averages(run: NetworkRun) -> Finding:
    """Check that a variant of FOLD has the best average AUROC and FPR95 (Table 2)."""
    none = "the run has no method of the FOLD family, or no other"
    return _compare_best([run.results], run.network, "average {}", none)


def check_networks(runs: Sequence[NetworkRun]) -> Finding:
    """Check the same for the means over several architectures (Table 5)."""
    results = [run.results for run in runs]
    if len(set(map(family_of, results))) == 1:
        return Finding("This run has one architecture, so that nothing can be said about several", [])
    none = "No method of the FOLD family, or no other, is in the runs of all networks"
    finding = _compare_best(results, "all", f"average {{}} over {len(runs)} networks", none)
    return finding if not finding.checks else Finding(f"Over {len(runs)} networks {finding.shows}", finding.checks)


def _compare_best(runs: Sequence[Results], network: str, label: str, none: str) -> Finding:
    """Compare the best variant of FOLD with the best other method, by means over runs."""
    checks, shows = list[Check](), list[str]()
    for metric, name in METRICS.items():
        ours, other = (find_best(runs, metric, family) for family in (True, False))
        if ours is None or other is None:
            return Finding(none, [])
        leads = [compute_lead(run, metric, ours, other) for run in runs]
        lead = Lead(*(fmean(ends) for ends in zip(*leads, strict=True)))
        a, b = (percent(_mean(runs, metric, method)) for method in (ours, other))
        shows.append(f"{'mean' if len(runs) > 1 else 'average'} {name} of {ours} {a}, of {other} {b}")
        text = f"{label.format(name)}: {ours} {a}, {other} {b}, better by {points(*lead)} points"
        checks.append(Check(network, text, above_zero(lead.low, lead.high)))
    return Finding(" and ".join(shows), checks)


def find_best(runs: Sequence[Results], metric: str, ours: bool) -> str | None:
    """Return the method with the best mean, of FOLD's variants or of all others, among those that are in all runs."""
    sign = 1 if metric == FPR95 else -1
    methods = [
        run.method
        for run in runs[0].methods
        if (run.name in FOLD_FAMILY) == ours and all((run.method, "all") in each.cells for each in runs)
    ]
    return min(methods, key=lambda method: sign * _mean(runs, metric, method), default=None)


def compute_lead(results: Results, metric: str, ours: str, other: str) -> Lead:
    """Return by how much one method is better than another on average, on the same images; lower FPR95 is better."""
    members = results.members["all"]
    if metric == "auroc":
        a, b = (column_influence(results.scores, method, members) for method in (ours, other))
        difference = paired_difference(a, b)
        return Lead(difference.value, difference.low, difference.high)
    value = _mean([results], FPR95, other) - _mean([results], FPR95, ours)
    theirs, mine = (
        np.mean([resampled(results.scores, method, d, REPLICATES, 0, (FPR95,))[FPR95] for d in members], axis=0)
        for method in (other, ours)
    )
    return Lead(value, *percentile_interval(value, theirs - mine))


def _mean(runs: Sequence[Results], metric: str, method: str) -> float:
    return fmean(getattr(run.cells[method, "all"], metric) for run in runs)


def check_data_sets(run: NetworkRun) -> Finding:
    """Check that the best variant of FOLD is competitive on average (Tables 8 to 11)."""
    results, cells = run.results, run.results.cells
    ours = find_best([results], "auroc", ours=True)
    if ours is None:
        return Finding("the run has no method of the FOLD family", [])

    def competitive(column: str) -> bool | None:
        certainty = cells[ours, column].certainty
        return None if certainty is None else at_most(certainty.behind_low, certainty.behind_high, COMPETITIVE)

    names = [str(ood["name"]) for ood in results.suite["ood"]]
    tops = {name: max(cells[method.method, name].auroc for method in results.methods) for name in names}
    first = sum(cells[ours, name].auroc >= tops[name] for name in names)
    behind = sum(competitive(name) is False for name in names)
    text, certainty = f"{ours} on average: AUROC {percent(cells[ours, 'all'].auroc)}", cells[ours, "all"].certainty
    if certainty is not None:
        lag = points(certainty.behind, certainty.behind_low, certainty.behind_high)
        text += f", behind the best by {lag} points"
    return Finding(
        f"the best variant, {ours}, has the best AUROC on {first} of {len(names)} data sets, and is significantly more "
        f"than {100 * COMPETITIVE:g} points behind on {behind}",
        [Check(run.network, text, competitive("all"))],
    )


def check_exponents(run: NetworkRun) -> Finding:
    """Check that the regret of AutoFold's exponent is small (Figure 4)."""
    checks, regrets = list[Check](), list[str]()
    for curve in run.ablations.sensitivities:
        regret = points(curve.regret, curve.regret_low, curve.regret_high)
        chosen = f"{curve.method}: chosen α {curve.chosen:g} gives {percent(curve.chosen_auroc['all'])}"
        holds = at_most(curve.regret_low, curve.regret_high, NEAR_OPTIMAL)
        checks.append(Check(run.network, f"{chosen}, regret {regret} points", holds))
        best = curve.grid[int(np.argmax(curve.auroc["all"]))]
        loss = f"{100 * curve.regret:.2f}".replace("-", "−")  # the chosen one may lie between two of the grid
        regrets.append(f"{loss} for {curve.method} (α {curve.chosen:g}, best {best:g})")
    shows = f"points that AutoFold loses: {join_words(regrets)}" if regrets else "no exponents were tried"
    return Finding(shows, checks)


def check_normalisation(run: NetworkRun) -> Finding:
    """Check that partial normalisation improves seven methods (Table 3)."""
    checks, harmed = list[Check](), 0
    for method in dict.fromkeys(effect.method for effect in run.ablations.effects):
        none, partial, full = (run.ablations.effect(method, kind) for kind in ("none", "partial", "full"))
        if none is None or partial is None:
            continue
        gain = points(partial.gain, partial.gain_low, partial.gain_high)
        with_it = f"{percent(partial.auroc)} with α {partial.alpha:g}"
        text = f"{method}: {percent(none.auroc)} without, {with_it}, {gain} points"
        checks.append(Check(run.network, text, above_zero(partial.gain_low, partial.gain_high)))
        harmed += full is not None and full.auroc < partial.auroc - HARMFUL
    total, limit = len(checks), f"more than {100 * HARMFUL:g} points"
    side = f"full costs no method {limit}, as in the paper's CIFAR-10"
    if harmed:
        mostly = 2 * harmed > total
        like = "as in the paper's ImageNet-200" if mostly else "between the paper's CIFAR-10 and ImageNet-200"
        side = f"full costs {harmed} of {total} methods {limit}, {like}"
    return Finding(f"partial normalisation improves {count_held(checks)} of {total} methods, and {side}", checks)


def check_separation(run: NetworkRun) -> Finding:
    """Check that Cohen's d rises with partial and falls with full normalisation (Figure 5)."""
    rows: dict[str, Separation] = {row.normalisation: row for row in run.ablations.separations if row.dataset == "all"}
    influences, checks = dict[str, Values](), list[Check]()
    for kind, row in rows.items():
        scores = [run.ablations.scores[f"{kind}/{ood['name']}"] for ood in run.results.suite["ood"]]
        known, unknown = run.ablations.scores[f"{kind}/{ID}"], np.concatenate(scores)
        influences[kind] = cohens_d_influence(known.astype(np.float64), unknown.astype(np.float64), row.cohens_d)
    for before, after in (("none", "partial"), ("full", "none")):
        value = rows[after].cohens_d - rows[before].cohens_d
        error = NORMAL * float(np.linalg.norm(influences[after] - influences[before]))
        low, high = value - error, value + error
        both = ", ".join(f"{rows[kind].cohens_d:.3f} {kind}" for kind in (before, after))
        text = f"Cohen's d rises from {before} to {after}: {both}, {value:+.3f} ({low:+.3f} to {high:+.3f})"
        checks.append(Check(run.network, text.replace("-", "−"), above_zero(low, high)))
    return Finding(f"Cohen's d {', '.join(f'{row.cohens_d:.3f} {kind}' for kind, row in rows.items())}", checks)


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
    costs, forward = _costs_by_name(run), forward_cost(run)
    if "fold" not in costs:
        return Finding("FOLD was not timed", [])
    fold, checks = costs["fold"], list[Check]()
    for suffix in ("", "-r", "-a"):
        variant, auto = costs.get(f"fold{suffix}"), costs.get(f"autofold{suffix}")
        if variant is not None and forward is not None:
            passes, low, high = (
                1 + time / forward.inference_ms for time in (variant.inference_ms, *inference_range(variant))
            )
            text = f"a pass with {variant.method} takes {number(passes)} forward passes"
            checks.append(Check(run.network, text, at_most(low, high, COMPARABLE)))
        if variant is not None and auto is not None:
            same = auto.inference_ms <= EQUAL * variant.inference_ms
            slower = inference_range(auto)[0] > EQUAL * inference_range(variant)[1]
            holds = True if same else False if slower else None
            checks.append(Check(run.network, _compare_times(auto, variant), holds))
    for slow in (costs[name] for name in SLOW_SCORING if name in costs):
        (low, high), (least, most) = inference_range(slow), inference_range(fold)
        holds = True if low >= SLOWER * most else None if high >= SLOWER * least else False
        checks.append(Check(run.network, _compare_times(slow, fold), holds))
    if forward is None:
        shows = f"the score of {fold.method} takes {number(fold.inference_ms)} ms with no network in front of it"
    else:  # without it, the time to collect the features is not known
        pairs = [pair for pair in product(("fold", "autofold"), SLOW_SETUP) if costs.keys() >= {*pair}]
        for ours, slow in ((costs[name], costs[other]) for name, other in pairs):
            mine, theirs = setup_time(run, ours), setup_time(run, slow)
            holds = True if theirs >= SLOWER * mine else False if mine >= SLOWER * theirs else None
            text = f"{slow.method} sets up in {number(theirs)} ms, {ours.method} in {number(mine)}, features included"
            checks.append(Check(run.network, text, holds))
        share = number(100 * fold.inference_ms / forward.inference_ms)
        shows = f"the score of {fold.method} adds {share} % to a forward pass of {number(forward.inference_ms)} ms"
    count = f", {count_held(checks)} of {len(checks)} comparisons hold"
    return Finding(shows + (count if checks else ", and there is nothing to compare it with"), checks)


def _compare_times(first: Cost, second: Cost) -> str:
    times = f"{number(first.inference_ms)} ms, {second.method} in {number(second.inference_ms)}"
    return f"{first.method} scores in {times}"


def _costs_by_name(run: NetworkRun) -> dict[str, Cost]:
    """Return the cost of each method by its name in the registry, the first one of a method with several labels."""
    return {re.split("[:@]", cost.method)[0]: cost for cost in reversed(run.ablations.costs)}


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
