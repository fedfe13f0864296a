"""Figures of a curvature study with everything that is known of their error."""

from dataclasses import replace
from itertools import pairwise
from math import hypot, inf, sqrt

import numpy as np

from ...results import ID
from ...study.certainty import above
from ...study.files import Study
from ...study.rows import Name, Space, Statistic, mean_statistic
from ..verdict import Check, Material
from .words import NAMES, SPACES, number

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
