"""Figure: how much the loss bends at single inputs, known and unknown."""

from dataclasses import replace
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ...evaluate.results import ID
from ...evaluate.study.files import Study
from ..drawing import Drawing, Key, Panel
from ..span import Numbers, Span
from ..style import KNOWN, Look, logarithmic, look
from .compare import SPACES

BINS = 50
WIDE, NARROW = 100, 10  # ratio of the ends above which powers of ten are ticks enough; below, no axis is logarithmic


def trace_densities(study: Study) -> Drawing:
    """Return one panel per space: the traces of known inputs and of each unknown data set, on a logarithmic axis.

    Traces of exactly zero are in the leftmost bar. Where some are negative, the axis is linear.
    """
    panels = []
    for space, words in SPACES.items():
        traces = {name: _finite(study.traces[f"{space}/{name}"]) for name in study.datasets}
        panels.append(Panel(f"over {words}", partial(_draw, traces), _note(study, space, traces)))
    return Drawing("curvature-traces", panels, legend(study))


def legend(study: Study) -> list[Key]:
    """Return the legend of known inputs and of each unknown data set, with the looks of all other figures."""
    known = Key("known", Look(KNOWN), filled=True)
    return [known, *(Key(name, look(number)) for number, name in enumerate(study.datasets[1:]))]


def trace_axis(values: Numbers) -> Span:
    """Return the axis for traces: logarithmic unless some are negative or all lie within a factor of ten."""
    if np.any(values < 0) or not np.any(values > 0):
        return replace(Span.of(values), logarithmic=False)
    span = Span.of(values[values > 0])
    return replace(span, logarithmic=span.low > 0 and span.high / span.low > NARROW)


def _finite(values: Numbers) -> Numbers:
    return values[np.isfinite(values)]


def _note(study: Study, space: str, traces: dict[str, Numbers]) -> str:
    """Return the typical error of a trace, and how many traces are zero."""
    errors = [_relative(study, f"{space}/{name}") for name in traces]
    relative = np.concatenate([error for error in errors if error is not None] or [np.empty(0)])
    told = f"± {100 * np.median(relative):.2g} %" if relative.size else "exact"
    every = np.concatenate(list(traces.values()))
    zeros = int(np.sum(every == 0))
    return f"{told}, {zeros:,} of {len(every):,} are 0" if zeros else told


def _relative(study: Study, key: str) -> Numbers | None:
    """Return the errors of traces as shares of them, those of traces that are zero or not finite left out."""
    if key not in study.trace_stderr:
        return None
    shares = study.trace_stderr[key] / np.where(study.traces[key] == 0, np.nan, np.abs(study.traces[key]))
    return shares[np.isfinite(shares)]


def _draw(traces: dict[str, Numbers], axes: Axes) -> None:
    span = trace_axis(np.concatenate(list(traces.values())))
    edges = span.edges(BINS)
    for number, (name, values) in enumerate(traces.items()):
        known = name == ID
        line = Look(KNOWN) if known else look(number - 1)
        axes.hist(
            span.clip(values),
            bins=edges,
            weights=np.full(len(values), 1 / max(len(values), 1)),
            histtype="stepfilled" if known else "step",
            color=line.colour,
            linestyle=line.stroke,
            linewidth=1.2,
        )
    span.apply(axes, "x")
    if span.logarithmic and span.high / span.low <= WIDE:
        logarithmic(axes, "x", subs=(1.0, 2.0, 5.0))
    axes.set_xlabel("trace at one input")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
