"""One row of a result table: a method, a data set, and how well the first finds the second."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.ranking import aupr, auroc, fpr_at_tpr
from .suites.suite import Group

METRICS = ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out", "aupr_in")


OPENOOD, PAPER = "OpenOOD", "FOLD paper"  # who averages so


@dataclass(frozen=True)
class Certainty:
    """How far a figure can be trusted, and whether its method can be told from the best one of its column.

    Attributes:
        intervals: Lower and upper end of the 95 % interval, by metric.
        behind: AUROC of the column's best method minus this one's, with its own 95 % interval: both methods saw the
            same images, so it is narrower than the two intervals make believe.
        p_value: Of the hypothesis that both are equally good.
        best: The method is the best of its column, or cannot be told from it.
    """

    intervals: dict[str, tuple[float, float]]
    behind: float
    behind_low: float
    behind_high: float
    p_value: float
    best: bool


@dataclass(frozen=True)
class Row:
    """A method's figures on one data set, all between 0 and 1. The FPR95 names say which class is positive."""

    method: str
    tuned_on: str
    dataset: str
    group: Group
    auroc: float
    fpr95_ood_positive: float
    fpr95_id_positive: float
    aupr_out: float
    aupr_in: float
    n_id: int
    n_ood: int
    certainty: Certainty | None = None


@dataclass(frozen=True)
class MethodRun:
    """What was done for one method before it was judged.

    Attributes:
        method: How tables and figures call it: the name, hyper-parameters that were asked for, and ``@id`` or ``@ood``
            when others were tuned on such data.
        name: In the registry.
        hyper: All hyper-parameters, tuned ones included.
        fits_on: Which in-distribution split it learnt from.
        tuned_on: Which data chose its hyper-parameters: ``"nothing"``, ``"id"`` or ``"ood"``.
        trials: What was tried in tuning, and how it was judged.
        peak_megabytes: Memory that fitting and scoring took beyond what was in use, where the system tells.
    """

    method: str
    name: str
    hyper: dict[str, Any]
    fits_on: str
    tuned_on: str
    fit_seconds: float
    microseconds_per_sample: float
    learnt: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)
    peak_megabytes: float | None = None

    @property
    def alpha(self) -> str:
        """The exponent of partial normalisation, with a star when AutoFold chose it, or nothing."""
        alpha = self.learnt.get("alpha_", self.hyper.get("alpha"))
        return "" if alpha is None else f"{alpha:g}{'*' if 'alpha_' in self.learnt else ''}"

    @property
    def tuned(self) -> str:
        """What a table says about the tuning: nothing, ``ID`` or ``OOD``."""
        return "" if self.tuned_on == "nothing" else self.tuned_on.upper()


@dataclass(frozen=True)
class Average:
    """Unweighted means of a method's rows over some data sets.

    Attributes:
        over: ``near``, ``far`` or ``all`` data sets.
        as_in: Who averages so: OpenOOD has ``near`` and ``far``; the FOLD paper's "Average" is over ``all``.
    """

    method: str
    tuned_on: str
    over: str
    as_in: str
    auroc: float
    fpr95_ood_positive: float
    fpr95_id_positive: float
    aupr_out: float
    aupr_in: float
    certainty: Certainty | None = None


Scores = NDArray[np.floating]


def make_row(method: str, tuned_on: str, dataset: str, group: Group, id_scores: Scores, ood_scores: Scores) -> Row:
    """Return all metrics of one method on one data set."""
    return Row(
        method,
        tuned_on,
        dataset,
        group,
        auroc(id_scores, ood_scores),
        fpr_at_tpr(id_scores, ood_scores, positive="ood"),
        fpr_at_tpr(id_scores, ood_scores, positive="id"),
        aupr(id_scores, ood_scores, positive="ood"),
        aupr(id_scores, ood_scores, positive="id"),
        len(id_scores),
        len(ood_scores),
    )


def averages(rows: Sequence[Row]) -> list[Average]:
    """Return near, far and overall means per method.

    ``near`` and ``far`` are OpenOOD's, ``all`` is the paper's "Average": the mean over all data sets, not of the two
    groups.
    """
    means = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        for over, as_in in {"near": OPENOOD, "far": OPENOOD, "all": PAPER}.items():
            chosen = [row for row in mine if over in (row.group, "all")]
            if chosen:
                figures = {metric: fmean(getattr(row, metric) for row in chosen) for metric in METRICS}
                means.append(Average(method, mine[0].tuned_on, over, as_in, **figures))  # type: ignore[arg-type]
    return means


def flat(figures: Row | Average) -> dict[str, Any]:
    """Return the figures as the columns of a table, the ends of each interval behind its metric."""
    columns: dict[str, Any] = {}
    for column in fields(figures):
        if column.name == "certainty":
            continue
        columns[column.name] = getattr(figures, column.name)
        if column.name in METRICS and figures.certainty is not None and column.name in figures.certainty.intervals:
            low, high = figures.certainty.intervals[column.name]
            columns |= {f"{column.name}_low": low, f"{column.name}_high": high}
    if figures.certainty is not None:
        columns |= {name: getattr(figures.certainty, name) for name in ("behind", "behind_low", "behind_high", "best")}
    return columns
