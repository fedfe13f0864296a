"""The part of an axis that numbers fill, without the few that lie far out."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from .style import logarithmic

Numbers = NDArray[np.floating]
ROOM = 0.03  # of the axis
DECADES = 100  # traces of confident samples span many; above this ratio a logarithmic axis is used


@dataclass(frozen=True)
class Span:
    """The ends of an axis, and whether it is logarithmic."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Numbers) -> Self:
        """Return the span of all but 1 % of the finite values, half of them left out at either end."""
        finite = values[np.isfinite(values)].astype(np.float64)
        if finite.size == 0:
            return cls(0.0, 1.0, False)
        low, high = (float(end) for end in np.quantile(finite, [0.005, 0.995], method="inverted_cdf"))
        if not high > low:  # constant scores need some room as well
            room = 0.01 * abs(low) or 0.5
            low, high = low - room, high + room
        return cls(low, high, low > 0 and high / low > DECADES)

    def clip(self, values: Numbers) -> Numbers:
        """Return the values with those beyond the ends moved onto them."""
        return np.clip(values.astype(np.float64), self.low, self.high)

    def edges(self, count: int) -> list[float]:
        """Return the edges of ``count`` bins, evenly spaced on this axis."""
        space = np.geomspace if self.logarithmic else np.linspace
        edges = space(self.low, self.high, count + 1)
        edges[[0, -1]] = self.low, self.high  # geomspace may miss them by a rounding
        return [float(edge) for edge in edges]

    def apply(self, axes: Axes, which: str) -> None:
        """Make the axis ``x`` or ``y`` of ``axes`` this one, with a little room at its ends."""
        if self.logarithmic:
            logarithmic(axes, which)
            room = (self.high / self.low) ** ROOM
            ends = self.low / room, self.high * room
        else:
            ends = self.low - ROOM * (self.high - self.low), self.high + ROOM * (self.high - self.low)
            axes.locator_params(axis="x" if which == "x" else "y", nbins=5)  # long numbers would run into each other
        (axes.set_xlim if which == "x" else axes.set_ylim)(*ends)
