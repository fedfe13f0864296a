"""Figure: what a method's AUROC costs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from math import cos, inf, log10, pi, sin
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import Stroke
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, NullLocator

from ..evaluate.results import Results, in_family
from .figure import ACCENT, GREY, INK, KNOWN, Drawing, Key, Look, Panel, logarithmic

# Methods by cost and AUROC, and those that none beats in both.


@dataclass(frozen=True)
class CostPoint:
    """A method: its cost, its average AUROC in percent with its interval, its size as a marker."""

    method: str
    cost: float
    auroc: float
    low: float
    high: float
    radius: float
    ours: bool


def frontier(points: Sequence[CostPoint]) -> list[CostPoint]:
    """Return the points, fastest first, than which none is at once as fast and better."""
    best: list[CostPoint] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.auroc)):
        if not best or point.auroc > best[-1].auroc:
            best.append(point)
    return best


def stairs(points: Sequence[CostPoint]) -> list[tuple[float, float]]:
    """Return the corners of the line that joins the frontier: level up to the next cost, then straight up."""
    edge = frontier(points)
    between = [corner for a, b in pairwise(edge) for corner in ((a.cost, a.auroc), (b.cost, a.auroc))]
    return [*between, (edge[-1].cost, edge[-1].auroc)]


# Names beside points, none on top of another.


ANGLES = [step * pi / 12 for step in (0, 12, 6, 18, 3, 21, 9, 15, 1, 23, 11, 13, 5, 7, 17, 19)]  # right and left first

RINGS = 40

GAP = 1.0

DETOUR = 6  # rings that a name goes further out so that its line crosses no marker


Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle by its edges."""

    left: float
    low: float
    right: float
    high: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> "Box":
        """Return the rectangle with this middle and size."""
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def overlap(self, other: "Box") -> float:
        """Return the area that both cover."""
        across = min(self.right, other.right) - max(self.left, other.left)
        up = min(self.high, other.high) - max(self.low, other.low)
        return max(across, 0.0) * max(up, 0.0)

    def crossed(self, start: Point, end: Point) -> bool:
        """Return whether a straight line passes through, beyond touching an edge."""
        first, last = 0.0, 1.0  # the part of the line that is inside, between its start and its end
        for at, to, low, high in ((start[0], end[0], self.left, self.right), (start[1], end[1], self.low, self.high)):
            if at == to:
                if not low < at < high:
                    return False
            else:
                ends = sorted(((low - at) / (to - at), (high - at) / (to - at)))
                first, last = max(first, ends[0]), min(last, ends[1])
        return first < last

    @property
    def middle(self) -> Point:
        """Its centre."""
        return (self.left + self.right) / 2, (self.low + self.high) / 2

    def within(self, other: "Box") -> bool:
        """Return whether this one lies inside the other."""
        return (
            self.left >= other.left and self.right <= other.right and self.low >= other.low and self.high <= other.high
        )


Names = list[tuple[Point, Box]]  # with the point that each belongs to


def place(
    points: Sequence[Point],
    radii: Sequence[float],
    sizes: Sequence[tuple[float, float]],
    bounds: Box,
    obstacles: Sequence[Box] = (),
) -> list[Box]:
    """Return a box for the name of each point, as near to it as points, obstacles and the earlier names allow.

    A line joins the middle of a name to its point: names and such lines keep clear of each other where they can. A name
    that has no free place at all goes where it hides least.

    Args:
        points: Middles of the markers.
        radii: Of the markers.
        sizes: Width and height of the names.
        bounds: Where names may stand.
        obstacles: What else is not to be hidden.
    """
    markers = [Box.around(*point, 2 * radius, 2 * radius) for point, radius in zip(points, radii, strict=True)]
    taken = [*markers, *obstacles]
    names: Names = []
    for number, (point, size) in enumerate(zip(points, sizes, strict=True)):
        around = list(_around(point, radii[number], size))
        candidates = [(ring, box) for ring, box in around if box.within(bounds)] or around
        best = _nearest(candidates, point, markers[:number] + markers[number + 1 :], taken, names)
        if best is None:
            best = min((box for _, box in candidates), key=lambda box: sum(box.overlap(other) for other in taken))
        taken.append(best)
        names.append((point, best))
    return [box for _, box in names]


def _nearest(
    candidates: Iterable[tuple[int, Box]], point: Point, markers: Sequence[Box], taken: Sequence[Box], names: Names
) -> Box | None:
    """Return the place on the innermost ring that hides nothing; every crossing counts as some rings more."""
    best, least = None, inf
    for ring, box in candidates:
        if ring >= least:
            break
        if not any(box.overlap(other) for other in taken):
            across_markers = sum(marker.crossed(point, box.middle) for marker in markers)
            across_names = sum(box.crossed(at, name.middle) or name.crossed(point, box.middle) for at, name in names)
            cost = ring + DETOUR * across_markers + RINGS * across_names
            if cost < least:
                best, least = box, cost
    return best


def _around(point: Point, radius: float, size: tuple[float, float]) -> Iterator[tuple[int, Box]]:
    """Yield places for a name and the ring that they lie on, near ones first."""
    width, height = size
    for ring, angle in product(range(RINGS), ANGLES):
        away = radius + GAP + ring * height / 2
        x = point[0] + cos(angle) * (away + width / 2)
        y = point[1] + sin(angle) * (away + height / 2)
        yield ring, Box.around(x, y, width, height)


# The name of every method beside its point in the figure of costs.


FONT = 7.5  # points

EDGE = 1.0  # points around a name: the page brings a font of its own, if mostly a narrower one

HALO = [Stroke(linewidth=2.5, foreground="white")]


def write_names(points: list[CostPoint], axes: Axes) -> None:
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


def _lines(points: Sequence[CostPoint], axes: Axes) -> list[Box]:
    """Return where the bars and the frontier are, a little wider than drawn: all of them run straight up or across."""
    pairs = [((point.cost, point.low), (point.cost, point.high)) for point in points] + [*pairwise(stairs(points))]
    ends = [axes.transData.transform(pair) for pair in pairs]
    return [Box(*(np.min(pair, axis=0) - 1), *(np.max(pair, axis=0) + 1)) for pair in ends]


def _write(point: CostPoint, offset: tuple[float, float], axes: Axes) -> None:
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


def _points(results: Results) -> list[CostPoint]:
    points = []
    for run in results.ranked:
        mean = results.cells[run.method, "all"]
        low, high = (mean.certainty.intervals if mean.certainty else {}).get("auroc", (mean.auroc, mean.auroc))
        cost = max(run.microseconds_per_sample, FASTEST)
        size = radius(run.fit_seconds)
        points.append(CostPoint(run.method, cost, 100 * mean.auroc, 100 * low, 100 * high, size, in_family(run.name)))
    return points


def _draw(points: list[CostPoint], axes: Axes) -> None:
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
