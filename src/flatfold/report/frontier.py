"""Methods by cost and AUROC, and those that none beats in both."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


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


def frontier(points: Sequence[Point]) -> list[Point]:
    """Return the points, fastest first, than which none is at once as fast and better."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.auroc)):
        if not best or point.auroc > best[-1].auroc:
            best.append(point)
    return best


def stairs(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return the corners of the line that joins the frontier: level up to the next cost, then straight up."""
    edge = frontier(points)
    between = [corner for a, b in pairwise(edge) for corner in ((a.cost, a.auroc), (b.cost, a.auroc))]
    return [*between, (edge[-1].cost, edge[-1].auroc)]
