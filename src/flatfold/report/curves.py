"""Figure: what each threshold finds, and what it flags by mistake."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ..evaluate.results import ID, Results
from .drawing import Drawing, Key, Panel
from .histograms import datasets
from .span import Numbers
from .style import logarithmic, look

SHOWN = 8  # methods: more lines could not be told apart
POINTS = 300  # of a curve: more could not be seen


def roc_curves(results: Results) -> Drawing:
    """Return one panel per unknown data set with the best methods' curves; false alarms are on a logarithmic axis."""
    shown = [run.method for run in results.ranked[:SHOWN]]
    panels = []
    for name in datasets(results):
        pairs = [(results.scores[f"{method}/{ID}"], results.scores[f"{method}/{name}"]) for method in shown]
        panels.append(Panel(name, partial(_draw, pairs)))
    keys = [Key(method, look(number)) for number, method in enumerate(shown)]
    return Drawing("roc", panels, keys, size=(3.4, 3.0))


def _draw(pairs: list[tuple[Numbers, Numbers]], axes: Axes) -> None:
    for number, (known, unknown) in enumerate(pairs):
        false_alarms, found = thinned(*roc(known, unknown))
        line = look(number)
        axes.plot(100 * false_alarms, 100 * found, color=line.colour, ls=line.stroke, lw=1.3)
    logarithmic(axes, "x")
    axes.set_xlim(100 * min(1 / len(known), 0.5), 100)
    axes.set_ylim(0, 102)
    axes.set_xlabel("known inputs flagged, %")
    axes.set_ylabel("unknown inputs found, %")


def roc(known: Numbers, unknown: Numbers) -> tuple[Numbers, Numbers]:
    """Return false and true alarm rates, ascending, at each known input's score as the threshold.

    Args:
        known: Scores of known inputs, ``(n,)``.
        unknown: Scores of unknown inputs, ``(m,)``.

    Example:
        >>> roc(np.array([1.0, 2.0]), np.array([1.5, 3.0]))
        (array([0.5, 1. ]), array([0.5, 1. ]))
    """
    thresholds = np.unique(known)[::-1]
    false_alarms = 1 - np.searchsorted(np.sort(known), thresholds) / len(known)
    found = 1 - np.searchsorted(np.sort(unknown), thresholds) / len(unknown)
    return false_alarms, found


def thinned(false_alarms: Numbers, found: Numbers) -> tuple[Numbers, Numbers]:
    """Return at most 300 points of a curve, evenly spaced on a logarithmic axis, both ends among them.

    Example:
        >>> rates = np.linspace(0.001, 1, 1000)
        >>> few, found = thinned(rates, rates)
        >>> len(few) <= 300, bool((few == found).all()), round(float(few[0]), 3), float(few[-1])
        (True, True, 0.001, 1.0)
    """
    if len(false_alarms) <= POINTS:
        return false_alarms, found
    steps = np.searchsorted(false_alarms, np.geomspace(false_alarms[0], false_alarms[-1], POINTS))
    kept = np.unique(np.concatenate([[0], np.minimum(steps[1:-1], len(false_alarms) - 1), [len(false_alarms) - 1]]))
    return false_alarms[kept], found[kept]
