"""The name of every method beside its point in the figure of costs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import Stroke
from matplotlib.textpath import TextPath

from .frontier import Point, stairs
from .labels import Box, place
from .style import ACCENT, GREY, INK

FONT = 7.5  # points
EDGE = 1.0  # points around a name: the page brings a font of its own, if mostly a narrower one
HALO = [Stroke(linewidth=2.5, foreground="white")]


def write_names(points: list[Point], axes: Axes) -> None:
    """Write each method's name near its point, with a line to it where it had to go far."""
    figure = axes.figure
    figure.draw_without_rendering()  # type: ignore[union-attr]  # places are known once the layout is
    scale = figure.dpi / 72
    middles = [tuple(axes.transData.transform((point.cost, point.auroc))) for point in points]
    sizes = [(scale * (width_of(point.method) + 2 * EDGE), 1.25 * FONT * scale) for point in points]
    radii = [point.radius * scale for point in points]
    boxes = place(middles, radii, sizes, Box(*axes.bbox.extents), _lines(points, axes))
    for point, middle, box in zip(points, middles, boxes, strict=True):
        _write(point, ((box.middle[0] - middle[0]) / scale, (box.middle[1] - middle[1]) / scale), axes)


def width_of(name: str) -> float:
    """Return the width of a name, in points."""
    return float(TextPath((0, 0), name, size=FONT).get_extents().width)


def _lines(points: Sequence[Point], axes: Axes) -> list[Box]:
    """Return where the bars and the frontier are, a little wider than drawn: all of them run straight up or across."""
    pairs = [((point.cost, point.low), (point.cost, point.high)) for point in points] + [*pairwise(stairs(points))]
    ends = [axes.transData.transform(pair) for pair in pairs]
    return [Box(*(np.min(pair, axis=0) - 1), *(np.max(pair, axis=0) + 1)) for pair in ends]


def _write(point: Point, offset: tuple[float, float], axes: Axes) -> None:
    """Write a name twice: as a halo, which is made of outlines and has the line to its point, and as text above it."""
    shared: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": FONT}
    line = {"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkA": 0, "shrinkB": point.radius}
    kinds: list[dict[str, Any]] = [
        {"arrowprops": line, "path_effects": HALO, "zorder": 2.5},
        {"color": ACCENT if point.ours else INK, "zorder": 3},
    ]
    for kind in kinds:
        text = axes.annotate(point.method, (point.cost, point.auroc), offset, **shared, **kind)
        text.set_in_layout(False)  # or the axes would shrink away from the places just found
