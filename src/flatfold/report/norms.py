"""Figure: does a score see more than the length of a feature vector?"""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ..evaluate.results import ID, Results
from ..evaluate.rows import MethodRun
from .drawing import Drawing, Panel
from .family import best_of_family
from .histograms import datasets, keys
from .span import Numbers, Span
from .style import GREY, look

POINTS = 600  # of a data set
MANY = 200  # points, above which they are pixels inside the figure and not thousands of elements


def norm_figures(results: Results) -> list[Drawing]:
    """Return two figures, of the best method of the FOLD family and of the best of all; one is empty if they agree."""
    return [_figure(results, name, run) for name, (run, _) in _leaders(results).items()]


def headings(results: Results) -> dict[str, str]:
    """Return what stands above each of the figures, by its name."""
    return {name: f"{run.method}, {why}" if run else "" for name, (run, why) in _leaders(results).items()}


def _leaders(results: Results) -> dict[str, tuple[MethodRun | None, str]]:
    family, best = best_of_family(results), results.ranked[0]
    if family == best:
        return {"norms-fold": (best, "the best of all and of the FOLD family"), "norms-best": (None, "")}
    return {"norms-fold": (family, "the best of the FOLD family"), "norms-best": (best, "the best of all")}


def _figure(results: Results, figure: str, run: MethodRun | None) -> Drawing:
    """Return one panel per unknown data set: score, on the same axis in all of them, against norm."""
    names = [name for name in datasets(results) if name in results.norms]
    if run is None or ID not in results.norms or not names:
        return Drawing(figure, [])
    scores = {name: results.scores[f"{run.method}/{name}"] for name in (ID, *names)}
    height = Span.of(np.concatenate(list(scores.values())))
    panels = []
    for name in names:
        known, unknown = ((results.norms[which], scores[which]) for which in (ID, name))
        spans = [Span.of(np.concatenate([known[0], unknown[0]])), height]
        colour = look(datasets(results).index(name)).colour
        panels.append(Panel(name, partial(_draw, known, unknown, spans, colour)))
    return Drawing(figure, panels, keys(results), size=(3.4, 2.6))


def evenly(count: int, at_most: int = POINTS) -> list[int]:
    """Return at most ``at_most`` row numbers below ``count``, in even steps from the first to the last.

    Example:
        >>> evenly(10, 4), evenly(2, 4)
        ([0, 3, 6, 9], [0, 1])
    """
    return [int(row) for row in np.linspace(0, count - 1, min(count, at_most)).round()]


def _draw(
    known: tuple[Numbers, Numbers], unknown: tuple[Numbers, Numbers], spans: list[Span], colour: str, axes: Axes
) -> None:
    many = len(known[0]) + len(unknown[0]) > MANY
    for (norms, scores), ink in ((known, GREY), (unknown, colour)):
        rows = evenly(len(norms))
        x, y = (span.clip(values[rows]) for span, values in zip(spans, (norms, scores), strict=True))
        axes.scatter(x, y, s=5, color=ink, alpha=0.5, linewidths=0, rasterized=many)
    for span, which in zip(spans, "xy", strict=True):
        span.apply(axes, which)
    axes.set_xlabel("norm of the features")
    axes.set_ylabel("score")
