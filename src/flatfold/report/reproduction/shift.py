"""Figure: the trace of the Hessian over parameters, from known over near to far data."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from ...evaluate.reproduce.claims.curvature import REGIMES, figure, regimes
from ...evaluate.reproduce.verdict import Material
from ...evaluate.study.certainty import ERRORS
from ...evaluate.study.rows import Statistic
from ..drawing import Drawing, Key, Panel
from ..style import Look, logarithmic, look

WIDE = 100  # ratio of the ends above which powers of ten are ticks enough


def trace_by_regime(materials: Sequence[Material], name: str) -> Drawing:
    """Return one panel: a line per network through the traces of its regimes, with two standard errors.

    Args:
        materials: Of every network.
        name: Of the drawing.
    """
    lines = [
        {REGIMES[at]: figure(each.study, at, "parameter", "trace") for at in regimes(each.study)} for each in materials
    ]
    named = [Key(each.network, look(number)) for number, each in enumerate(materials)] if len(materials) > 1 else []
    panel = Panel("Trace over parameters", partial(_draw, lines), f"± {ERRORS} errors")
    return Drawing(name, [panel], named, columns=1, size=(4.2, 2.8))


def _draw(lines: list[dict[str, Statistic]], axes: Axes) -> None:
    for number, line in enumerate(lines):
        style: Look = look(number)
        values = [told.value for told in line.values()]
        bars = [ERRORS * (told.stderr or 0.0) for told in line.values()]
        axes.plot(list(line), values, "o", color=style.colour, ls=style.stroke, lw=1.3, ms=5)
        axes.errorbar(list(line), values, bars, fmt="none", ecolor=style.colour, lw=1.2, capsize=3)
    lowest = [told.value - ERRORS * (told.stderr or 0.0) for line in lines for told in line.values()]
    highest = [told.value for line in lines for told in line.values()]
    if min(lowest) > 0:
        logarithmic(axes, "y", subs=(1.0,) if max(highest) > WIDE * min(lowest) else (1.0, 2.0, 5.0))
    axes.margins(x=0.12, y=0.1)
    axes.set_ylabel("trace of the mean Hessian")
