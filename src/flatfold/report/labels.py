"""Names beside points, none on top of another."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import cos, pi, sin
from typing import NamedTuple

ANGLES = [step * pi / 12 for step in (0, 12, 6, 18, 3, 21, 9, 15, 1, 23, 11, 13, 5, 7, 17, 19)]  # right and left first
RINGS = 40
GAP = 1.0


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

    def within(self, other: "Box") -> bool:
        """Return whether this one lies inside the other."""
        return (
            self.left >= other.left and self.right <= other.right and self.low >= other.low and self.high <= other.high
        )


def place(
    points: Sequence[tuple[float, float]],
    radii: Sequence[float],
    sizes: Sequence[tuple[float, float]],
    bounds: Box,
    obstacles: Sequence[Box] = (),
) -> list[Box]:
    """Return a box for the name of each point, as near to it as points, obstacles and the earlier names allow.

    Args:
        points: Middles of the markers.
        radii: Of the markers.
        sizes: Width and height of the names.
        bounds: Where names may stand.
        obstacles: What else is not to be hidden.
    """
    taken = [Box.around(*point, 2 * radius, 2 * radius) for point, radius in zip(points, radii, strict=True)]
    taken += obstacles
    boxes = []
    for point, radius, size in zip(points, radii, sizes, strict=True):
        candidates = [box for box in _around(point, radius, size) if box.within(bounds)]
        best = next((box for box in candidates if not any(box.overlap(other) for other in taken)), None)
        if best is None:  # no free place at all: the one that hides least
            candidates = candidates or list(_around(point, radius, size))
            best = min(candidates, key=lambda box: sum(box.overlap(other) for other in taken))
        taken.append(best)
        boxes.append(best)
    return boxes


def _around(point: tuple[float, float], radius: float, size: tuple[float, float]) -> Iterator[Box]:
    """Yield places for a name, near ones first."""
    width, height = size
    for ring, angle in product(range(RINGS), ANGLES):
        away = radius + GAP + ring * height / 2
        x = point[0] + cos(angle) * (away + width / 2)
        y = point[1] + sin(angle) * (away + height / 2)
        yield Box.around(x, y, width, height)
