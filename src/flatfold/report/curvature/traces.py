"""Figure: how much the loss bends at single inputs, known and unknown."""

from dataclasses import replace
from functools import partial
from math import sqrt

import numpy as np
from matplotlib.axes import Axes

from ...evaluate.results import ID
from ...evaluate.study.certainty import typical_error
from ...evaluate.study.files import Space, Study
from ..drawing import Drawing, Key, Panel
from ..span import Numbers, Span
from ..style import KNOWN, Look, logarithmic, look
from .compare import SPACES
from .wording import matrix_and_loss

BINS = 10, 50  # at least and at most
WIDE, NARROW = 100, 10  # ratio of the ends above which powers of ten are ticks enough; below, no axis is logarithmic


def trace_densities(study: Study) -> Drawing:
    """Return one panel per space: the traces of known inputs and of each unknown data set, on a logarithmic axis.

    Each data set is as high as the others: known inputs spread over many powers of ten, and their share of any bar is
    so small that nothing would be seen of them. Traces of exactly zero are in the leftmost bar. Where some are
    negative, the axis is linear.
    """
    panels = []
    for space, words in SPACES.items():
        traces = {name: _finite(study.traces[f"{space}/{name}"]) for name in study.datasets}
        panels.append(
            Panel(f"over {words}", partial(_draw, traces, matrix_and_loss(study, space)), _note(study, space, traces))
        )
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


def _note(study: Study, space: Space, traces: dict[str, Numbers]) -> str:
    """Return the typical error of a trace, and how many traces are zero."""
    error = typical_error(study, space)
    told = "exact" if error is None else f"± {100 * error:.2g} %"
    every = np.concatenate(list(traces.values()))
    zeros = int(np.sum(every == 0))
    return f"{told}, {zeros:,} of {len(every):,} are 0" if zeros else told


def bin_count(traces: dict[str, Numbers]) -> int:
    """Return how many bars there are: twice the root of the size of the smallest data set, from 10 to 50.

    Example:
        >>> bin_count({"id": np.zeros(500), "few": np.zeros(100)})
        20
    """
    least, most = BINS
    smallest = min(len(values) for values in traces.values())
    return min(max(round(2 * sqrt(smallest)), least), most)


def _draw(traces: dict[str, Numbers], what: str, axes: Axes) -> None:
    span = trace_axis(np.concatenate(list(traces.values())))
    edges = span.edges(bin_count(traces))
    for number, (name, values) in enumerate(traces.items()):
        known = name == ID
        line = Look(KNOWN) if known else look(number - 1)
        counts, _ = np.histogram(span.clip(values), edges)
        axes.hist(
            edges[:-1],
            bins=edges,
            weights=counts / max(counts.max(), 1),
            histtype="stepfilled" if known else "step",
            color=line.colour,
            linestyle=line.stroke,
            linewidth=1.2,
        )
    span.apply(axes, "x")
    if span.logarithmic and span.high / span.low <= WIDE:
        logarithmic(axes, "x", subs=(1.0, 2.0, 5.0))
    axes.set_xlabel(f"trace at one input, {what}")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
