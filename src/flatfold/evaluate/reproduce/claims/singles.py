"""Figures 2 and 12 to 15: traces of single inputs."""

import numpy as np
from numpy.typing import NDArray

from ....core.delong import Influence, auroc_influence, interval, mean_influence
from ...results import ID
from ...study.certainty import typical_error
from ...study.files import Study
from ..verdict import Check, Material
from .exhibit import Exhibit, Found, for_each
from .words import above_zero, number, percent

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
