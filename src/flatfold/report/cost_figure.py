"""Figure of AUROC against cost, with the name of every method next to its marker."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import Stroke
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, NullLocator

from ..evaluate.results import Results, in_family
from .figure import ACCENT, GREY, INK, LIGHT_GREY, Drawing, Key, LineStyle, Numbers, Panel, logarithmic

WIDE, TALL = (8.4, 4.8), (3.9, 6.2)  # inches; the second is for narrow screens
TICKS = (10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 93, 95, 97, 98, 99, 99.5, 99.8, 99.9)
LEAST = 0.05  # percent below 100 at which the axis of AUROC ends
FASTEST = 0.1  # microseconds that a clock can measure
FRONT = LineStyle(LIGHT_GREY, (1.0, 1.5))
FONT = 7.5  # points
HALO = [Stroke(linewidth=2.5, foreground="white")]
RINGS, STEPS = 40, 16  # places that are tried for a name: rings around its marker, and directions


@dataclass(frozen=True)
class CostPoint:
    """A method: its cost, its average AUROC in percent with its interval, its radius as a marker."""

    method: str
    cost: float
    auroc: float
    low: float
    high: float
    radius: float
    in_family: bool


def cost_figure(results: Results, size: tuple[float, float] = WIDE) -> Drawing:
    """Return one panel: the microseconds per sample against the average AUROC of every method."""
    points = []
    for run in results.ranked:
        mean = results.cells[run.method, "all"]
        low, high = (mean.certainty.intervals if mean.certainty else {}).get("auroc", (mean.auroc, mean.auroc))
        cost = max(run.microseconds_per_sample, FASTEST)
        radius = 2 + max(0.0, log10(max(run.fit_seconds, 1e-9)) + 3)  # one point more for every factor of ten
        points.append(CostPoint(run.method, cost, 100 * mean.auroc, 100 * low, 100 * high, radius, in_family(run.name)))
    keys = [
        Key("FOLD family", LineStyle(ACCENT), filled=True),
        Key("others", LineStyle(GREY), filled=True),
        Key("no other is both better and faster", FRONT),
    ]
    panel = Panel("AUROC and cost", partial(_draw, points))
    return Drawing("costs" if size == WIDE else "costs-tall", [panel], keys, columns=1, size=size)


def frontier(points: Sequence[CostPoint]) -> list[CostPoint]:
    """Return the Pareto front, fastest first: the points that no other beats in both cost and AUROC."""
    best: list[CostPoint] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.auroc)):
        if not best or point.auroc > best[-1].auroc:
            best.append(point)
    return best


def stairs(points: Sequence[CostPoint]) -> list[tuple[float, float]]:
    """Return the corners of the line along the front: level up to the next cost, then straight up."""
    front = frontier(points)
    between = [corner for a, b in pairwise(front) for corner in ((a.cost, a.auroc), (b.cost, a.auroc))]
    return [*between, (front[-1].cost, front[-1].auroc)]


def place_labels(points: Numbers, radii: Numbers, sizes: Numbers, bounds: Numbers, obstacles: Numbers) -> Numbers:
    """Return the middle of each label ``(n, 2)``: the free place next to its point or, without any, the least covered.

    Args:
        points: Middles of the markers, ``(n, 2)``.
        radii: Of the markers, ``(n,)``.
        sizes: Width and height of the labels, ``(n, 2)``.
        bounds: Lower left and upper right corner of the space for labels, ``(4,)``.
        obstacles: Further boxes to keep free, as such corners, ``(m, 4)``.
    """
    angles = 2 * np.pi * np.arange(STEPS) / STEPS
    angles = angles[np.argsort(np.abs(np.sin(angles)).round(6), kind="stable")]  # right and left first
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    taken = np.concatenate([np.hstack([points - radii[:, None], points + radii[:, None]]), obstacles])
    middles = []
    for point, radius, size in zip(points, radii, sizes, strict=True):
        away = radius + 1 + 0.5 * size[1] * np.arange(RINGS)[:, None, None]
        places = (point + directions * (away + size / 2)).reshape(-1, 2)
        low, high = places - size / 2, places + size / 2
        sides = np.minimum(high[:, None], taken[:, 2:]) - np.maximum(low[:, None], taken[:, :2])
        covered = np.prod(np.maximum(sides, 0), axis=2).sum(axis=1)
        outside = np.any((low < bounds[:2]) | (high > bounds[2:]), axis=1)
        best = int(np.argmin(covered + np.prod(size) * len(taken) * outside))  # the first of equals is the nearest
        taken = np.vstack([taken, np.hstack([low[best], high[best]])])
        middles.append(places[best])
    return np.stack(middles)


def _draw(points: list[CostPoint], axes: Axes) -> None:
    axes.plot(*zip(*stairs(points), strict=True), color=FRONT.colour, lw=1.2, ls=FRONT.stroke, zorder=1)
    for point in points:
        colour = ACCENT if point.in_family else GREY
        axes.plot([point.cost] * 2, [point.low, point.high], color=colour, lw=1)
        axes.plot(point.cost, point.auroc, "o", ms=2 * point.radius, color=colour, mec="white", mew=0.5, zorder=3)
    costs = [point.cost for point in points]
    logarithmic(axes, "x", subs=(1.0,) if max(costs) > 100 * min(costs) else (1.0, 2.0, 5.0))
    axes.margins(x=0.12)
    axes.set_xlabel("microseconds per sample")
    axes.set_ylabel("average AUROC, %")
    # Good methods crowd near 100, so the axis is logarithmic in the distance from it.
    axes.set_yscale("function", functions=(_height, _auroc))
    low, high = _height(min(point.low for point in points)), _height(max(point.high for point in points))
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(_auroc(low - margin), _auroc(high + margin))
    axes.set_yticks([tick for tick in TICKS if axes.get_ylim()[0] <= tick <= axes.get_ylim()[1]])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _write_names(points, axes)


def _height(auroc: Any) -> Any:
    return -np.log(np.maximum(100 - np.asarray(auroc, dtype=np.float64), LEAST))


def _auroc(height: Any) -> Any:
    return 100 - np.exp(-np.asarray(height, dtype=np.float64))


def _write_names(points: list[CostPoint], axes: Axes) -> None:
    """Write each method's name near its marker, with a line to it where it is far away."""
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # fixes the layout, which places depend on
    pixels = axes.figure.dpi / 72
    middles = axes.transData.transform([(point.cost, point.auroc) for point in points])
    widths = [float(TextPath((0, 0), point.method, size=FONT).get_extents().width) for point in points]
    sizes = pixels * np.array([(width + 2, 1.25 * FONT) for width in widths])
    lines = [((point.cost, point.low), (point.cost, point.high)) for point in points] + [*pairwise(stairs(points))]
    ends = axes.transData.transform(np.reshape(lines, (-1, 2))).reshape(-1, 2, 2)
    boxes = np.hstack([ends.min(axis=1) - 1, ends.max(axis=1) + 1])
    radii = pixels * np.array([point.radius for point in points])
    places = place_labels(middles, radii, sizes, np.array(axes.bbox.extents), boxes)
    for point, offset in zip(points, (places - middles) / pixels, strict=True):
        shared: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": FONT}
        line = {"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkA": 0, "shrinkB": point.radius}
        colour = ACCENT if point.in_family else INK
        halo: dict[str, Any] = {"arrowprops": line, "path_effects": HALO, "zorder": 2.5}
        for kind in (halo, {"color": colour, "zorder": 3}):
            text = axes.annotate(point.method, (point.cost, point.auroc), tuple(offset), **shared, **kind)
            text.set_in_layout(False)  # or the axes would shrink away from the places
