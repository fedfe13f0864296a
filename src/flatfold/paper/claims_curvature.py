"""Figures of a curvature study with everything that is known of their error."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import hypot, inf, sqrt
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.intervals import Influence, auroc_influence, interval, mean_influence, paired_difference
from ..evaluate.results import ID, Results, in_family
from ..evaluate.study_results import Name, Space, Statistic, Study, above, mean_statistic, typical_error
from .ablations import Cost
from .claims import (
    NAMES,
    SPACES,
    Check,
    Exhibit,
    Found,
    Material,
    above_zero,
    all_above,
    at_most,
    for_each,
    gained,
    listed,
    number,
    percent,
    slips,
)
from .claims_detection import ends
from .theory import Theorem, compare

REGIMES = {ID: "known", "near": "near", "far": "far"}

HOLDS = {1: True, 0: None, -1: False}


def figure(study: Study, dataset: str, space: Space, name: Name) -> Statistic:
    r"""Return a figure of a data set, or the mean over those of a group, with the error that images bring to a trace.

    .. math:: e^2 = e_{\text{computed}}^2 + s^2 / n

    with the standard deviation s of the traces of n single inputs. The largest eigenvalue is of a mean over inputs, and
    no trace tells how it would differ for others: it keeps the error of its computation alone.
    """
    if dataset in study.groups:
        members = [ood["name"] for ood in study.suite["ood"] if ood["group"] == dataset]
        return mean_statistic([figure(study, member, space, name) for member in members])
    told = study.cell(dataset, space, name)
    if name == "lambda_max":
        return told
    traces = study.traces[f"{space}/{dataset}"]
    drawn = float(traces.std(ddof=1)) / sqrt(len(traces)) if len(traces) > 1 else inf
    return replace(told, stderr=hypot(told.stderr or 0.0, drawn) if np.isfinite(drawn) else inf)


def regimes(study: Study) -> list[str]:
    """Return known, near and far, as far as the suite has them."""
    return [ID, *study.groups]


def steps(material: Material, space: Space, name: Name) -> list[Check]:
    """Return whether a figure grows from known to near and from near to far, as far as there are such data."""
    checks = [_grows(material, space, name, *pair) for pair in pairwise(regimes(material.study))]
    return checks + unasked(material, space, name)


def unasked(material: Material, space: Space, name: Name) -> list[Check]:
    """Return an open check on near against far data where the suite has no near or no far ones."""
    missing = [REGIMES[group] for group in REGIMES if group not in regimes(material.study)]
    what = f"{NAMES[name]} over {SPACES[space]}, near and far"
    return [Check(material.network, f"{what}: the suite has no {group} data", None) for group in missing]


def rises(material: Material, space: Space, name: Name) -> list[Check]:
    """Return whether a figure is larger for near and for far data than for known ones."""
    known, *others = regimes(material.study)
    return [_grows(material, space, name, known, other) for other in others]


def path(study: Study, space: Space, name: Name) -> str:
    """Return the figures of all regimes in a row, such as ``trace 13.5 known, 407 near, 362 far``."""
    values = (f"{number(figure(study, at, space, name).value)} {REGIMES[at]}" for at in regimes(study))
    return f"{NAMES[name]} {', '.join(values)}"


def plus_minus(told: Statistic) -> str:
    """Return a figure with its standard error."""
    return number(told.value) if told.stderr is None else f"{number(told.value)} ± {number(told.stderr)}"


def _grows(material: Material, space: Space, name: Name, before: str, after: str) -> Check:
    a, b = (figure(material.study, regime, space, name) for regime in (before, after))
    what = f"{NAMES[name]} over {SPACES[space]} grows from {REGIMES[before]} to {REGIMES[after]}"
    return Check(material.network, f"{what}: {plus_minus(a)}, {plus_minus(b)}", HOLDS[above(b, a)])


# Tables 1, 6 and 7: curvature of whole data sets.


BOTH: tuple[Name, ...] = ("lambda_max", "trace")

SPACES_SHOWN: tuple[Space, ...] = ("parameter", "feature")

ERRORS = (
    "Larger means: by more than two standard errors of both figures together. The error of a trace counts the "
    "computation and the images that were drawn, that of λmax the computation alone."
)


def by_regime(space: Space) -> Exhibit:
    """Return Table 1 (parameters) or Table 6 (features)."""

    def look(material: Material) -> Found:
        told = " and ".join(path(material.study, space, name) for name in BOTH)
        return Found(told, [check for name in BOTH for check in steps(material, space, name)])

    features = space == "feature"
    return Exhibit(
        "Table 6" if features else "Table 1",
        f"Hessian over {SPACES[space]}, by regime",
        f"The largest eigenvalue and the trace of the Hessian over {SPACES[space]} are smallest for known data, larger "
        "for near and largest for far unknown data.",
        for_each(look),
        f"{ERRORS} Averages of the paper that its own Table 7 contradicts: "
        f"{slips('hessian_feature_milli' if features else 'hessian_parameter')}."
        + " In the paper the feature trace of CIFAR-100 goes 546.3, 1394.5, 1262.4: it falls from near to far."
        * features
        + " The paper does not state of which loss its Hessian over parameters is on data without labels."
        * (not features),
    )


def table_7() -> Exhibit:
    """Return the curvature of every data set."""
    return Exhibit(
        "Table 7",
        "Hessians over parameters and over features, by data set",
        "In either space both figures are lowest for the known data, higher for near data sets, and reach their "
        "highest values for far ones.",
        for_each(_regimes_by_dataset),
        f"{ERRORS} Read as: every unknown data set lies above the known one, and the highest of all is a far one. The "
        "paper's own table has one exception, the feature trace of CIFAR-100, highest for TIN with 1470.9; that every "
        "far data set lies above every near one is not so in the paper either.",
    )


def _regimes_by_dataset(material: Material) -> Found:
    study, checks, told = material.study, list[Check](), list[str]()
    for space, name in product(SPACES_SHOWN, BOTH):
        higher = _compare(study, study.datasets[1:], [ID], space, name)
        what = f"{NAMES[name]} over {SPACES[space]}"
        told.append(f"{what} {higher.count(1)}")
        known = number(study.cell(ID, space, name).value)
        text = f"{what} exceeds that of known data, {known}, in {higher.count(1)} of {len(higher)} data sets"
        checks.append(Check(material.network, text, all_above(higher)))
        near, far = (_members(study, group) for group in ("near", "far"))
        if near and far:
            text, holds = _highest(study, near, far, space, name)
            checks.append(Check(material.network, f"{what} is highest in {text}", holds))
        checks += unasked(material, space, name)
    return Found(f"unknown data sets above the known one, of {len(study.datasets) - 1}: {listed(told)}", checks)


def _compare(study: Study, upper: list[str], lower: list[str], space: Space, name: Name) -> list[int]:
    return [above(figure(study, a, space, name), figure(study, b, space, name)) for a, b in product(upper, lower)]


def _highest(study: Study, near: list[str], far: list[str], space: Space, name: Name) -> tuple[str, bool | None]:
    """Return where a figure is highest among near and among far data sets, and whether the far one is above."""
    found = {each: figure(study, each, space, name) for each in (*near, *far)}
    a, b = (max(group, key=lambda each: found[each].value) for group in (near, far))
    told = " and ".join(f"{each}, {number(found[each].value)}" for each in (a, b))
    return f"{told} (near and far)", HOLDS[above(found[b], found[a])]


def _members(study: Study, group: str) -> list[str]:
    return [ood["name"] for ood in study.suite["ood"] if ood["group"] == group]


# Figures 2 and 12 to 15: traces of single inputs.


REPLICATES = 500

READ = (
    "“Shifted to larger values” is read as: the trace as a score has an AUROC whose 95 % interval lies above 50 %, "
    "even if the traces of all known inputs were larger by two typical errors, where they are estimates"
)

Values = NDArray[np.float64]


def figure_2() -> Exhibit:
    """Return the traces of known, near and far inputs."""
    return Exhibit(
        "Figure 2",
        "Traces of the Hessian over parameters at single inputs",
        "Traces of known inputs are concentrated at small values, those of near and far unknown inputs are shifted to "
        "larger values and spread more broadly.",
        for_each(_by_regime),
        f"{READ}; “broader” as: the distance between the quartiles is larger, by a 95 % bootstrap interval. The "
        "paper shows one near and one far data set; here all of each count.",
    )


def figures_12_to_15() -> Exhibit:
    """Return the traces of every data set."""
    return Exhibit(
        "Figures 12 to 15",
        "Traces of the Hessian at single inputs, by data set",
        "Traces at single inputs increase from known data to every unknown data set.",
        for_each(_by_dataset),
        f"{READ}. The paper's four figures are of CIFAR-10, CIFAR-100, ImageNet-200 and ImageNet-1K; this one, of the "
        "suite of this run, answers all four.",
    )


def _by_regime(material: Material) -> Found:
    study, checks, told = material.study, list[Check](), list[str]()
    for group in study.groups:
        members = [ood["name"] for ood in study.suite["ood"] if ood["group"] == group]
        shift = _shifted(material, group, members)
        known, unknown = (_traces(study, names) for names in ([ID], members))
        ratio, low, high = quartile_ratio(known, unknown)
        text = f"distance of the quartiles, {group} over known: ×{number(ratio)} (×{number(low)} to ×{number(high)})"
        checks += [shift, Check(material.network, text, above_zero(low - 1, high - 1))]
        told.append(f"{number(float(np.median(unknown)))} {group}")
    known_median = number(float(np.median(_traces(study, [ID]))))
    return Found(f"median trace {known_median} known, {', '.join(told)}", checks)


def _by_dataset(material: Material) -> Found:
    study = material.study
    checks = [_shifted(material, name, [name]) for name in study.datasets[1:]]
    higher = sum(check.holds is True for check in checks)
    return Found(f"traces are shifted to larger values in {higher} of {len(checks)} unknown data sets", checks)


def _shifted(material: Material, label: str, members: list[str]) -> Check:
    found = shift(material.study, members)
    low, high = interval(found.auroc, found.stderr, found.pairs, found.pairs)
    text = f"AUROC of the trace, {label}: {percent(found.auroc)} ({percent(low)} to {percent(high)})"
    return Check(material.network, text, above_zero(low - 0.5, high - 0.5))


def shift(study: Study, members: list[str]) -> Influence:
    """Return the mean AUROC of the trace over parameters, known traces enlarged by two typical errors."""
    room = 1 + 2 * (typical_error(study, "parameter") or 0.0)
    known = room * study.traces[f"parameter/{ID}"]
    return mean_influence([auroc_influence(known, study.traces[f"parameter/{name}"]) for name in members])


def quartile_ratio(known: Values, unknown: Values) -> tuple[float, float, float]:
    """Return how many times as far apart the quartiles of unknown traces are, with the 95 % interval of a bootstrap.

    The interval always holds the ratio. Known traces without any spread give ``inf``.
    """
    rng = np.random.default_rng(0)
    drawn = [rng.choice(values, (REPLICATES, len(values))) for values in (known, unknown)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(_apart(unknown[None])[0] / _apart(known[None])[0])
        ratios = _apart(drawn[1]) / _apart(drawn[0])
    low, high = np.quantile(np.nan_to_num(ratios, nan=1.0), [0.025, 0.975], method="inverted_cdf")
    return ratio, min(ratio, float(low)), max(ratio, float(high))


def _apart(rows: Values) -> Values:
    lower, upper = np.quantile(rows, [0.25, 0.75], axis=1)
    return np.asarray(upper - lower)


def _traces(study: Study, names: list[str]) -> Values:
    return np.concatenate([study.traces[f"parameter/{name}"] for name in names])


# Figures 7 to 11: spectra of the mean Hessian.


LARGE = 0.01  # of the largest eigenvalue

BENCHMARKS = "The paper has it for CIFAR-10 and for ImageNet-200; this one, of the suite of this run, answers both."


def figure_7() -> Exhibit:
    """Return the spectra over parameters and over features."""
    return Exhibit(
        "Figure 7",
        "Spectra of the Hessians over parameters and over features",
        "The largest eigenvalue grows from known to unknown data in both spaces, and the spectrum over features is "
        "broader than that over parameters.",
        for_each(_both),
        "Whether it grows further from near to far is asked with Tables 1 and 6. "
        f"“Broader” is read as: a larger share of the eigenvalues exceeds {100 * LARGE:g} % of the largest one, beyond "
        "two standard errors over the probes of an estimated spectrum. A network has many more parameters than "
        "features, so this says little about the inputs.",
    )


def by_dataset(space: Space) -> Exhibit:
    """Return Figures 8 and 10 (parameters) or Figures 9 and 11 (features)."""

    def look(material: Material) -> Found:
        study = material.study
        checks = [_larger(material, space, name) for name in study.datasets[1:]]
        higher = sum(check.holds is True for check in checks)
        known = number(study.cell(ID, space, "lambda_max").value)
        return Found(f"λmax exceeds that of known data, {known}, in {higher} of {len(checks)} data sets", checks)

    return Exhibit(
        "Figures 9 and 11" if space == "feature" else "Figures 8 and 10",
        f"Spectra of the Hessian over {SPACES[space]}, by data set",
        f"Over {SPACES[space]} the spectrum of every unknown data set reaches further than that of the known one.",
        for_each(look),
        f"{BENCHMARKS} Its text says only that these spectra agree with the figures of Table 7; “further” is read as: "
        "the largest eigenvalue is larger, beyond the error of the computation.",
    )


def broad(study: Study, space: Space, dataset: str) -> tuple[float, float]:
    """Return the share of eigenvalues above 1 % of the largest, and its standard error over the probes."""
    nodes, weights = study.nodes[f"{space}/{dataset}"], study.weights[f"{space}/{dataset}"]
    shares = (weights * (nodes > LARGE * study.cell(dataset, space, "lambda_max").value)).sum(axis=1)
    return float(shares.mean()), float(shares.std(ddof=1)) / sqrt(len(shares)) if len(shares) > 1 else 0.0


def _both(material: Material) -> Found:
    study = material.study
    checks = [check for space in ("parameter", "feature") for check in rises(material, space, "lambda_max")]
    broader = [_broader(material, name) for name in study.datasets]
    count = sum(check.holds is True for check in broader)
    paths = " and ".join(f"over {SPACES[s]} {path(study, s, 'lambda_max')}" for s in ("parameter", "feature"))
    return Found(f"{paths}, broader over features in {count} of {len(broader)} data sets", checks + broader)


def _broader(material: Material, dataset: str) -> Check:
    (wide, error), (narrow, doubt) = (broad(material.study, space, dataset) for space in ("feature", "parameter"))
    room = 2 * (error + doubt)
    order = (wide - narrow > room) - (narrow - wide > room)
    name = "known" if dataset == ID else dataset
    text = f"share of large eigenvalues, {name}: {percent(wide)} over features, {percent(narrow)} over parameters"
    return Check(material.network, text, HOLDS[order])


def _larger(material: Material, space: Space, dataset: str) -> Check:
    a, b = (material.study.cell(name, space, "lambda_max") for name in (ID, dataset))
    return Check(
        material.network,
        f"λmax of {dataset}, {number(b.value)}, exceeds that of known data, {number(a.value)}",
        HOLDS[above(b, a)],
    )


# Figure 6: at which ranks the eigenvalues of single inputs tell unknown from known.


COLLAPSED = 0.5  # of what an AUROC without normalisation has above guessing


def figure_6() -> Exhibit:
    """Return the largest eigenvalues of single inputs, by normalisation."""
    return Exhibit(
        "Figure 6",
        "Largest eigenvalues of the feature Hessian under three normalisations",
        "Partial normalisation widens the gap between known and unknown inputs over more of the spectrum than none, "
        "and full normalisation makes it collapse.",
        for_each(_look_at_eigenvalues),
        "The gap at a rank is read as the AUROC of this eigenvalue as a score, averaged over the unknown data sets: "
        "unlike a ratio it can be compared between normalisations that change all eigenvalues. “Over more of the "
        "spectrum” means: larger by a paired 95 % interval at more than half of the ranks. “Collapse” means: what the "
        f"mean AUROC over the ranks has above 50 % is less than {COLLAPSED:g} of that without normalisation. The ratio "
        "of medians is told and no test: where it is larger without normalisation, it speaks against the paper. The "
        "paper shows 50 ranks of ImageNet-200 alone; a head has one eigenvalue less than classes.",
    )


def gaps(study: Study, kind: str) -> list[Influence]:
    """Return how well the eigenvalue of each rank tells unknown from known inputs, largest first."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    ranks = min(study.suite["n_classes"] - 1, study.suite["n_features"], values[ID].shape[1])
    return [
        mean_influence([auroc_influence(values[ID][:, r], values[name][:, r]) for name in study.datasets[1:]])
        for r in range(ranks)
    ]


def _look_at_eigenvalues(material: Material) -> Found:
    none, partial, full = (gaps(material.study, kind) for kind in ("none", "partial", "full"))
    pairs = [paired_difference(b, a) for a, b in zip(none, partial, strict=True)]
    signs = [above_zero(pair.low, pair.high) for pair in pairs]
    wider, narrower, ranks = signs.count(True), signs.count(False), len(signs)
    holds = True if 2 * wider > ranks else False if 2 * narrower > ranks else None
    ratios = (number(_ratio(material.study, kind)) for kind in ("none", "partial", "full"))
    text = f"partial over none: wider at {wider}, narrower at {narrower} of {ranks} ranks"
    checks = [Check(material.network, text, holds), _collapsed(material.network, none, full)]
    medians = "typical ratio of unknown to known {} none, {} partial, {} full".format(*ratios)
    told = f"the gap is wider under partial normalisation at {wider} and narrower at {narrower} of {ranks} ranks"
    return Found(f"{told}, {medians}", checks)


def _collapsed(network: str, none: list[Influence], full: list[Influence]) -> Check:
    a, b = (fmean(each.auroc for each in found) for found in (none, full))
    (a_low, a_high), (b_low, b_high) = (_mean_interval(found) for found in (none, full))
    bound_low, bound_high = (0.5 + COLLAPSED * (end - 0.5) for end in (a_low, a_high))
    text = f"mean AUROC over the ranks: {percent(a)} none, {percent(b)} full"
    return Check(network, text, True if b_high < bound_low else False if b_low > bound_high else None)


def _mean_interval(found: list[Influence]) -> tuple[float, float]:
    """Return the interval of a mean over ranks: the mean of theirs, because all are of the same images."""
    ends = [interval(each.auroc, each.stderr, each.pairs, each.pairs) for each in found]
    return fmean(low for low, _ in ends), fmean(high for _, high in ends)


def _ratio(study: Study, kind: str) -> float:
    """Return the median over the ranks of the ratio of medians, unknown over known; those that are 0 do not count."""
    values = {name: study.eigenvalues[f"{kind}/{name}"] for name in study.datasets}
    known = np.median(values[ID], axis=0)
    unknown = np.median(np.concatenate([values[name] for name in study.datasets[1:]]), axis=0)
    positive = known > 0
    return float(np.median(unknown[positive] / known[positive])) if positive.any() else 0.0


# Table 4: the trace over logits against that over features.


TABLE = "logit_vs_feature_hessian"


def table_4() -> Exhibit:
    """Return both traces as detectors."""
    return Exhibit(
        "Table 4",
        "Trace of the logit Hessian against that of the feature Hessian",
        "As a score, the trace over features has a higher average AUROC than that over logits.",
        for_each(_look_at_logits),
        "The paper's numbers over features are those of FOLD in its Table 2, so both traces are judged under partial "
        "normalisation: on all images, by the paired 95 % interval of the average over the unknown data sets. The "
        "paper's claim is about the mean over four benchmarks: on CIFAR-10 the logits are ahead, 92.52 to 92.46. "
        f"Averages that are not the mean: {slips(TABLE)}.",
    )


def average(traces: Mapping[str, NDArray[np.floating]]) -> Influence:
    """Return the mean AUROC of a trace over the unknown data sets."""
    return mean_influence([auroc_influence(traces[ID], traces[name]) for name in traces if name != ID])


def _look_at_logits(material: Material) -> Found:
    ablations = material.ablations
    feature = average({name: ablations.scores[f"partial/{name}"] for name in ablations.logits})
    logit = average(ablations.logits)
    found = paired_difference(feature, logit)
    a, b = percent(feature.auroc), percent(logit.auroc)
    text = f"average AUROC {a} over features, {b} over logits, {gained(found.value, found.low, found.high)} points"
    told = f"at α {ablations.alphas['partial']:g} average AUROC {a} over features and {b} over logits"
    return Found(told, [Check(material.network, text, above_zero(found.low, found.high))])


# Theorem 1: unknown inputs bend the energy more, under a condition.


SETTINGS = 300


def theorem_1() -> Exhibit:
    """Return the theorem on random settings, which are the same in every run."""
    return Exhibit(
        "Theorem 1",
        "The expected trace of two Gaussian classes",
        "If c |μ′S⁻¹Rμ| is at most μ′S⁻¹μ, the expected trace of the feature Hessian is not smaller for unknown than "
        "for known inputs.",
        _look_at_theorem,
        "Computed on random settings, not on the data of this run. The condition is also necessary. The paper's slips: "
        "the training loss has the wrong sign as printed and falls without end; its minimiser is 2S⁻¹μ and not S⁻¹μ, "
        "which changes every number but not the order; the energy itself, which sees no labels, is smallest at w = 0; "
        "the proof lacks the step that the average of φ over a Gaussian falls as its mean leaves 0; and c < 1 is "
        "enough where S is a multiple of the identity, but not otherwise.",
    )


def random_settings(count: int, seed: int = 0) -> list[tuple[float, Theorem]]:
    """Return settings of 2 to 8 dimensions: c, and what the theorem is about.

    Args:
        count: How many.
        seed: Of means, covariances, rotations, c up to 3 and lengths of the classifier.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_setting(generator) for _ in range(count)]


def _setting(generator: torch.Generator) -> tuple[float, Theorem]:
    d = int(torch.randint(2, 9, (), generator=generator))
    root, turn = torch.randn(2, d, d, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT / d + 0.1 * torch.eye(d)
    mean = torch.randn(d, generator=generator, dtype=torch.float64)
    mean = mean / float(mean @ torch.linalg.solve(covariance, mean)) ** 0.5
    c, alpha = (float(end * torch.rand((), generator=generator)) + 0.02 for end in (3.0, 2.0))
    return c, compare(mean, covariance, torch.linalg.qr(turn).Q, c, alpha)


def _look_at_theorem(_: Sequence[Material]) -> Found:
    found = random_settings(SETTINGS)
    true, false = ([each for _, each in found if each.holds == holds] for holds in (True, False))
    wrong, reversed_ = sum(not each.agrees for each in true), sum(each.gap < 0 for each in false)
    short = [each for c, each in found if c < 1]
    unmet = sum(not each.holds for each in short)
    checks = [
        Check("any", f"condition true: {wrong} of {len(true)} settings contradict the theorem", wrong == 0),
        Check("any", f"condition false: {reversed_} of {len(false)} have the reverse order", reversed_ == len(false)),
    ]
    return Found(
        f"Of {len(true)} random settings that meet the condition {wrong} contradict the theorem, of {len(false)} that "
        f"do not {reversed_} have the reverse order, and of {len(short)} with c < 1 the condition "
        f"fails in {unmet}",
        checks,
    )


# Figure 1: curvature grows with the shift of the data, and FOLD gives much for little.


def figure_1() -> Exhibit:
    """Return the trace by regime, and AUROC against cost."""
    return Exhibit(
        "Figure 1",
        "Sharpness under distribution shift, and AUROC against cost",
        "(a) The trace of the Hessian over parameters grows from known over near to far data; (b) FOLD and AutoFold "
        "combine high AUROC with low cost.",
        for_each(_look_at_figure_1),
        "(b) is read as: every variant lies above the mean over all methods of the run in AUROC, by its 95 % interval, "
        "and below it in inference time, by its quartiles.",
    )


def _look_at_figure_1(material: Material) -> Found:
    results, costs = material.results, {cost.method: cost for cost in material.ablations.costs}
    timed = [run for run in results.methods if run.method in costs]
    ours = [run.method for run in timed if in_family(run.name)]
    checks, told = steps(material, "parameter", "trace"), path(material.study, "parameter", "trace")
    if not ours:
        return Found(f"{told}, and no variant of FOLD was timed", checks)
    level = fmean(results.cells[run.method, "all"].auroc for run in timed)
    pace = fmean(costs[run.method].inference_ms for run in timed)
    found = [_corner(material.network, results, costs[method], level, pace) for method in ours]
    good = sum(check.holds is True for check in found)
    has = "has" if good == 1 else "have"
    return Found(f"{told}, and {good} of {len(ours)} variants of FOLD {has} high AUROC at low cost", checks + found)


def _corner(network: str, results: Results, cost: Cost, level: float, pace: float) -> Check:
    """Return whether a variant is better and cheaper than the mean of all methods."""
    cell = results.cells[cost.method, "all"]
    low, high = (cell.certainty.intervals if cell.certainty else {}).get("auroc", (0.0, 1.0))
    sides = at_most(-high, -low, -level), at_most(*ends(cost), pace)
    holds = False if False in sides else None if None in sides else True
    text = f"AUROC {percent(cell.auroc)} (mean {percent(level)}), {number(cost.inference_ms)} ms (mean {number(pace)})"
    return Check(network, f"{cost.method}: {text}", holds)
