"""Figure: norm of the features against FOLD's score, under three normalisations."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ...evaluate.reproduce.claims.separation import effect_size
from ...evaluate.reproduce.files import Ablations
from ...evaluate.reproduce.rows import NORMALISATIONS
from ...evaluate.results import ID
from ..drawing import Drawing, Key, Panel
from ..norms import MANY, evenly
from ..span import Numbers, Span
from ..style import GREY, Look, look

TITLES = {"none": "no normalisation", "partial": "partial", "full": "full"}
POINTS = 400  # of a data set


def norm_scatter(ablations: Ablations, datasets: list[str], name: str) -> Drawing:
    """Return one panel per normalisation: score against norm, known and unknown, with Cohen's d of all of them.

    Args:
        ablations: With scores and norms.
        datasets: The unknown data sets.
        name: Of the drawing.
    """
    norms = {each: ablations.norms[each] for each in (ID, *datasets)}
    across = Span.of(np.concatenate(list(norms.values())))
    panels = []
    for kind in NORMALISATIONS:
        scores = {each: ablations.scores[f"{kind}/{each}"] for each in (ID, *datasets)}
        known, unknown = scores[ID], np.concatenate([scores[each] for each in datasets])
        d = effect_size(known.astype(np.float64), unknown.astype(np.float64)).d
        note = f"α = {ablations.alphas[kind]:g}, d = {d:.3f}".replace("-", "−")
        panels.append(Panel(TITLES[kind], partial(_draw, norms, scores, across), note))
    keys = [Key("known", Look(GREY), filled=True)]
    keys += [Key(each, Look(look(number).colour), filled=True) for number, each in enumerate(datasets)]
    return Drawing(name, panels, keys, size=(3.4, 2.6))


def _draw(norms: dict[str, Numbers], scores: dict[str, Numbers], across: Span, axes: Axes) -> None:
    up = Span.of(np.concatenate(list(scores.values())))
    many = sum(map(len, norms.values())) > MANY
    for number, name in enumerate(norms):
        rows = evenly(len(norms[name]), POINTS)
        x, y = across.clip(norms[name][rows]), up.clip(scores[name][rows])
        colour = GREY if name == ID else look(number - 1).colour
        axes.scatter(x, y, s=5, color=colour, alpha=0.5, linewidths=0, rasterized=many)
    across.apply(axes, "x")
    up.apply(axes, "y")
    axes.set_xlabel("norm of the features")
    axes.set_ylabel("FOLD's score")
