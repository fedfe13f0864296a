"""Names beside points, none on top of another."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import cos, inf, pi, sin
from typing import NamedTuple

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
