"""Figure: what a method's AUROC costs."""

from functools import partial
from math import log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from ..evaluate.results import Results
from .drawing import Drawing, Key, Panel
from .family import in_family
from .frontier import Point, stairs
from .naming import write_names
from .style import ACCENT, GREY, KNOWN, Look, logarithmic

TICKS = (10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 93, 95, 97, 98, 99, 99.5, 99.8, 99.9)
LEAST = 0.05  # percent that may be missing: 100 itself has no place on the axis
FASTEST = 0.1  # microseconds: below, a clock says nothing
FRONT = Look(KNOWN, (1.0, 1.5))
WIDE, TALL = (8.4, 4.8), (3.9, 6.2)  # inches; the second is for narrow screens


def cost_figure(results: Results, size: tuple[float, float] = WIDE) -> Drawing:
    """Return one panel: the microseconds that a sample takes, against the average AUROC, every method named."""
    panel = Panel("AUROC and cost", partial(_draw, _points(results)))
    name = "costs" if size == WIDE else "costs-tall"
    keys = [
        Key("FOLD family", Look(ACCENT), filled=True),
        Key("others", Look(GREY), filled=True),
        Key("none is both better and faster", FRONT),
    ]
    return Drawing(name, [panel], keys, columns=1, size=size)


def radius(fit_seconds: float) -> float:
    """Return the radius of a marker in points: 2 up to a millisecond of fitting, one more for every factor of ten."""
    return 2 + max(0.0, log10(max(fit_seconds, 1e-9)) + 3)


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
    axes.plot(*zip(*stairs(points), strict=True), color=FRONT.colour, lw=1.2, ls=FRONT.stroke, zorder=1)
    for point in points:
        colour = ACCENT if point.ours else GREY
        axes.plot([point.cost] * 2, [point.low, point.high], color=colour, lw=1)
        axes.plot(point.cost, point.auroc, "o", ms=2 * point.radius, color=colour, mec="white", mew=0.5, zorder=3)
    costs = [point.cost for point in points]
    logarithmic(axes, "x", subs=(1.0,) if max(costs) > 100 * min(costs) else (1.0, 2.0, 5.0))
    _stretch(axes, [point.low for point in points], [point.high for point in points])
    axes.margins(x=0.12)
    axes.set_xlabel("microseconds per sample")
    axes.set_ylabel("average AUROC, %")
    write_names(points, axes)


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
