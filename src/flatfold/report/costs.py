"""Figure: what a method's AUROC costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from ..evaluate.results import Results
from .drawing import Drawing, Key, Panel
from .family import in_family
from .labels import Box, place
from .style import ACCENT, GREY, INK, Look, logarithmic

FONT = 7.5  # points
LETTER = 0.62  # width of a letter in its height: wider than those of most fonts, for the page brings its own
TICKS = (10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 93, 95, 97, 98, 99, 99.5, 99.8, 99.9)
LEAST = 0.05  # percent that may be missing: 100 itself has no place on the axis
FASTEST = 0.1  # microseconds: below, a clock says nothing
WIDE, TALL = (8.4, 4.8), (3.9, 6.2)  # inches; the second is for narrow screens


@dataclass(frozen=True)
class Point:
    """A method: its cost, its average AUROC in percent with its interval, its size as a marker."""

    method: str
    cost: float
    auroc: float
    low: float
    high: float
    radius: float
    ours: bool


def cost_figure(results: Results, size: tuple[float, float] = WIDE) -> Drawing:
    """Return one panel: the microseconds that a sample takes, against the average AUROC, every method named."""
    panel = Panel("AUROC and cost", partial(_draw, _points(results)))
    name = "costs" if size == WIDE else "costs-tall"
    keys = [
        Key("FOLD family", Look(ACCENT), filled=True),
        Key("others", Look(GREY), filled=True),
        Key("none is both better and faster", Look(INK, (1.0, 1.5))),
    ]
    return Drawing(name, [panel], keys, columns=1, size=size)


def radius(fit_seconds: float) -> float:
    """Return the radius of a marker in points: 2 up to a millisecond of fitting, one more for every factor of ten."""
    return 2 + max(0.0, log10(max(fit_seconds, 1e-9)) + 3)


def frontier(points: Sequence[Point]) -> list[Point]:
    """Return the points, fastest first, than which none is at once as fast and better."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.auroc)):
        if not best or point.auroc > best[-1].auroc:
            best.append(point)
    return best


def _points(results: Results) -> list[Point]:
    points = []
    for run in results.ranked:
        mean = results.cells[run.method, "all"]
        low, high = (mean.certainty.intervals if mean.certainty else {}).get("auroc", (mean.auroc, mean.auroc))
        cost = max(run.microseconds_per_sample, FASTEST)
        size = radius(run.fit_seconds)
        points.append(Point(run.method, cost, 100 * mean.auroc, 100 * low, 100 * high, size, in_family(run)))
    return points


def _draw(points: list[Point], axes: Axes) -> None:
    edge = frontier(points)
    axes.step([p.cost for p in edge], [p.auroc for p in edge], where="post", color=INK, lw=0.8, ls=(0, (1, 1.5)))
    for point in points:
        colour = ACCENT if point.ours else GREY
        axes.plot([point.cost] * 2, [point.low, point.high], color=colour, lw=1)
        axes.plot(point.cost, point.auroc, "o", ms=2 * point.radius, color=colour, mec="white", mew=0.5)
    costs = [point.cost for point in points]
    logarithmic(axes, "x", subs=(1.0,) if max(costs) > 100 * min(costs) else (1.0, 2.0, 5.0))
    _stretch(axes, [point.low for point in points], [point.high for point in points])
    axes.margins(x=0.12)
    axes.set_xlabel("microseconds per sample")
    axes.set_ylabel("average AUROC, %")
    _name(points, axes)


def _stretch(axes: Axes, lows: list[float], highs: list[float]) -> None:
    """Stretch the axis of AUROC towards 100, where good methods crowd: a step is a factor of what is missing."""
    axes.set_yscale("function", functions=(_height, _auroc))
    low, high = _height(min(lows)), _height(max(highs))
    room = 0.08 * (high - low) or 0.1
    axes.set_ylim(_auroc(low - room), _auroc(high + room))
    axes.set_yticks([tick for tick in TICKS if axes.get_ylim()[0] <= tick <= axes.get_ylim()[1]])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _height(auroc: Any) -> Any:
    return -np.log(np.maximum(100 - np.asarray(auroc, dtype=np.float64), LEAST))


def _auroc(height: Any) -> Any:
    return 100 - np.exp(-np.asarray(height, dtype=np.float64))


def _name(points: list[Point], axes: Axes) -> None:
    """Write each method's name near its point, with a line to it where it had to go far."""
    figure = axes.figure
    figure.draw_without_rendering()  # type: ignore[union-attr]  # places are known once the layout is
    scale = figure.dpi / 72
    middles = [tuple(axes.transData.transform((point.cost, point.auroc))) for point in points]
    ends = [axes.transData.transform([(p.cost, p.low), (p.cost, p.high)]) for p in points]
    bars = [Box(low[0] - 1, low[1], high[0] + 1, high[1]) for low, high in ends]
    sizes = [(LETTER * FONT * scale * len(point.method), 1.25 * FONT * scale) for point in points]
    radii = [point.radius * scale for point in points]
    for point, middle, box in zip(
        points, middles, place(middles, radii, sizes, Box(*axes.bbox.extents), bars), strict=True
    ):
        x, y = (box.left + box.right) / 2 - middle[0], (box.low + box.high) / 2 - middle[1]
        text = axes.annotate(
            point.method,
            (point.cost, point.auroc),
            (x / scale, y / scale),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=FONT,
            color=ACCENT if point.ours else INK,
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkA": 0, "shrinkB": point.radius},
        )
        text.set_in_layout(False)  # or the axes would shrink away from the places just found
