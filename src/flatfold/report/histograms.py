"""Figure: how the scores of each method separate known from unknown inputs."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ..evaluate.results import ID, Results
from .drawing import Drawing, Key, Panel
from .span import Numbers, Span
from .style import KNOWN, Look, look

BINS = 50


def histograms(results: Results) -> Drawing:
    """Return one panel per method, best first: its scores of known inputs and of each unknown data set."""
    panels = []
    for run in results.ranked:
        scores = {name: results.scores[f"{run.method}/{name}"] for name in (ID, *datasets(results))}
        note = f"AUROC {100 * results.cells[run.method, 'all'].auroc:.2f}"
        panels.append(Panel(run.method, partial(_draw, scores), note))
    return Drawing("histograms", panels, keys(results), size=(3.4, 1.9))


def datasets(results: Results) -> list[str]:
    """Return the names of the unknown data sets."""
    return [ood["name"] for ood in results.suite["ood"]]


def keys(results: Results) -> list[Key]:
    """Return the legend of known inputs and of each unknown data set; its look is the same in every figure."""
    known = Key("known", Look(KNOWN), filled=True)
    return [known, *(Key(name, look(number)) for number, name in enumerate(datasets(results)))]


def _draw(scores: dict[str, Numbers], axes: Axes) -> None:
    span = Span.of(np.concatenate(list(scores.values())))
    edges = span.edges(BINS)
    for number, (name, values) in enumerate(scores.items()):
        known = name == ID
        line = Look(KNOWN) if known else look(number - 1)
        axes.hist(
            span.clip(values),
            bins=edges,
            weights=np.full(len(values), 1 / len(values)),
            histtype="stepfilled" if known else "step",
            color=line.colour,
            linestyle=line.stroke,
            linewidth=1.2,
        )
    span.apply(axes, "x")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
