"""Figures: what AutoFold saw and what was true, network by network; what every rule gained over it."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from flatfold.display.figure import ACCENT, GREY, INK, LIGHT_GREY, Drawing, Key, LineStyle, Panel

from .families import ALPHAS
from .results import ORACLE, REFERENCE, Found, with_interval
from .rules import RULES
from .selection import mean_gain

TICKS = (-20, -5, -1, 0, 1, 5, 20)  # percentage points; between -1 and 1 the axis is linear
CRITERION = Key("paired criterion on ID data, ± 2 standard errors", LineStyle(INK))
TRUTH = Key("true AUROC, mean over OOD data sets", LineStyle(ACCENT))
CHOICE = Key("chosen", LineStyle(INK, (1.0, 1.5)))
BEST = Key("best", LineStyle(ACCENT, (1.0, 1.5)))


def figures(found: Sequence[Found]) -> list[Drawing]:
    """Return the figures of the page."""
    return [curves(found), gains(found)]


def curves(found: Sequence[Found]) -> Drawing:
    """Return one panel per network: the criterion, the AUROC it never saw, the exponent it took and the best one."""
    panels = [Panel(each.name, partial(_draw_curve, each), _regret(each)) for each in found]
    return Drawing("autofold-curves", panels, [CRITERION, TRUTH, CHOICE, BEST])


def gains(found: Sequence[Found]) -> Drawing:
    """Return one panel per role: every rule's mean gain over ``paired``, with its interval."""
    roles = dict.fromkeys(each.role for each in found)
    panels = [Panel(f"{role} networks", partial(_draw_gains, [f for f in found if f.role == role])) for role in roles]
    return Drawing("autofold-gains", panels, size=(5.0, 0.2 * len(RULES) + 0.6))


def _regret(found: Found) -> str:
    return f"regret {found.regret(REFERENCE)[0]:.2f}"


def _draw_curve(found: Found, axes: Axes) -> None:
    measured = found.measured
    criterion, error = 100 * measured.criterion
    axes.fill_between(ALPHAS, criterion - 2 * error, criterion + 2 * error, color=LIGHT_GREY, alpha=0.6, linewidth=0)
    axes.plot(ALPHAS, criterion, color=INK, lw=1.6)
    axes.plot(ALPHAS, 100 * measured.truth[:, -1], color=ACCENT, lw=1.6)
    for name, key in ((REFERENCE, CHOICE), (ORACLE, BEST)):
        alpha = measured.alphas[measured.methods.index(name), 0, -1]
        axes.axvline(alpha, color=key.style.colour, lw=0.9, ls=key.style.stroke)
    axes.set_xlabel("α")
    axes.set_ylabel("AUROC, %")


def _draw_gains(found: Sequence[Found], axes: Axes) -> None:
    names = [name for name in RULES if name != REFERENCE]
    heights = np.arange(len(names))[::-1]
    for height, name in zip(heights, names, strict=True):
        value, low, high = with_interval(mean_gain(found, name))
        colour = ACCENT if low > 0 else INK
        axes.plot([low, high], [height, height], color=colour, lw=1.2)
        axes.plot([value], [height], "o", color=colour, ms=3.5)
    axes.axvline(0, color=GREY, lw=0.9)
    axes.set_yticks(heights, names)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(TICKS, [f"{tick:+g}" if tick else "0" for tick in TICKS])
    axes.minorticks_off()
    axes.set_xlabel("AUROC minus that of paired, percentage points")
