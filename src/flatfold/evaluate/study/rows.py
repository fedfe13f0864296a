"""The figures of a curvature study: one statistic of a data set, one trace as a detector."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from statistics import fmean
from typing import Literal

Space = Literal["parameter", "feature", "logit"]
Name = Literal["lambda_max", "trace"]


@dataclass(frozen=True)
class Statistic:
    """One figure of the table.

    Attributes:
        dataset: ``id`` for the known test images, else the name of an unknown data set.
        group: ``id``, ``near`` or ``far``.
        space: In what the loss bends: parameters, features, or logits.
        name: ``lambda_max`` or ``trace``, of the mean over the inputs.
        value: The figure.
        stderr: As in :class:`~flatfold.curvature.Estimate`; None where it is exact.
        method: How it was computed.
        matrix: ``hessian`` or ``ggn``.
        loss: Of which this is the curvature.
        matvecs: Products of the matrix with a vector that it took.
        n: Number of inputs.
    """

    dataset: str
    group: str
    space: Space
    name: Name
    value: float
    stderr: float | None
    method: str
    matrix: str
    loss: str
    matvecs: int
    n: int


@dataclass(frozen=True)
class Detection:
    """How well the trace of single inputs tells one unknown data set from the known one.

    Attributes:
        space: Whose Hessian.
        alpha: Exponent of partial normalisation; 0 for parameters.
        dataset: The unknown data set, or ``near``, ``far``, ``all`` for the unweighted mean over some.
        auroc: Between 0 and 1, with its 95 % interval.
    """

    space: Space
    alpha: float
    dataset: str
    auroc: float
    low: float
    high: float


def mean_statistic(members: Sequence[Statistic]) -> Statistic:
    """Return the unweighted mean of some figures; all of a data set are there, so none means a damaged file."""
    first, errors = members[0], [each.stderr or 0.0 for each in members]
    bound = first.name == "lambda_max"  # bounds add up at worst, standard errors of independent probes by their squares
    stderr = fmean(errors) if bound else hypot(*errors) / len(errors)
    return Statistic(
        first.group,
        first.group,
        first.space,
        first.name,
        fmean(each.value for each in members),
        None if all(each.stderr is None for each in members) else stderr,
        first.method,
        first.matrix,
        first.loss,
        sum(each.matvecs for each in members),
        sum(each.n for each in members),
    )
