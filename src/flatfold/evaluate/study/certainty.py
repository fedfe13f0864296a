"""What the errors of a study allow to be said: which figure is larger, and how far a trace of a single input is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .rows import Space, Statistic

if TYPE_CHECKING:
    from .files import Study

ERRORS = 2  # standard errors, of both figures together, that must lie between them


def above(figure: Statistic, known: Statistic) -> int:
    """Return 1 if a figure lies above the known one, -1 if below, 0 if their errors do not tell."""
    room = ERRORS * ((figure.stderr or 0.0) + (known.stderr or 0.0))
    return (figure.value - known.value > room) - (known.value - figure.value > room)


def typical_error(study: Study, space: Space) -> float | None:
    """Return the error of a single input's trace as a share of that trace, the median over all inputs.

    Traces that are zero or not finite have no such share.

    Returns:
        None where the traces are exact, or none has a size to compare its error to.
    """
    shares = []
    for name in study.datasets:
        error = study.trace_stderr.get(f"{space}/{name}")
        if error is not None:
            trace = np.abs(study.traces[f"{space}/{name}"])
            shares.append(error / np.where(trace == 0, np.nan, trace))
    finite = np.concatenate([*shares, np.empty(0)])
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if finite.size else None
