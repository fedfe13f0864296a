"""Figure: which exponent AutoFold chose, and what it gave away."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ..evaluate.results import AlphaCurve, Results
from .drawing import Drawing, Key, Panel
from .histograms import datasets
from .style import INK, KNOWN, Look, look

CRITERION = Key("criterion on ID data, ± 2 standard errors", Look(INK))
TRUTH = Key("true: average", Look(INK, (3.0, 1.5)))
CHOICE = Key("chosen", Look(INK, (1.0, 1.5)))


def alpha_curves(results: Results) -> Drawing:
    """Return one panel per AutoFold: its criterion, the true AUROC it never saw, the exponent it took."""
    names = datasets(results)
    keys = [CRITERION, TRUTH, CHOICE, *(Key(f"true: {name}", look(number)) for number, name in enumerate(names))]
    panels = [
        Panel(f"{curve.method}: α = {curve.chosen:g}", partial(_draw, curve, names), regret(curve))
        for curve in results.alpha_curves
    ]
    return Drawing("alpha", panels, keys, size=(3.4, 2.8))


def regret(curve: AlphaCurve) -> str:
    """Return which exponent was best, and how much AUROC the chosen one gave away, in percentage points.

    Example:
        >>> regret(AlphaCurve("autofold", [0.1, 0.2], [0.5, 0.6], [0.0, 0.0], 0.2, {"all": [0.95, 0.93]}))
        'best 0.1, regret 2.00'
    """
    truth = curve.auroc["all"]
    best = int(np.argmax(truth))
    chosen = int(np.argmin(np.abs(np.asarray(curve.grid) - curve.chosen)))
    return f"best {curve.grid[best]:g}, regret {100 * (truth[best] - truth[chosen]):.2f}"


def _draw(curve: AlphaCurve, names: list[str], axes: Axes) -> None:
    grid, criterion, stderr = (np.asarray(values) for values in (curve.grid, curve.curve, curve.stderr))
    low, high = 100 * (criterion - 2 * stderr), 100 * (criterion + 2 * stderr)
    axes.fill_between(grid, low, high, color=KNOWN, alpha=0.6, linewidth=0)
    axes.plot(grid, 100 * criterion, color=INK, lw=1.6)
    for number, name in enumerate(names):
        line = look(number)
        axes.plot(grid, 100 * np.asarray(curve.auroc[name]), color=line.colour, ls=line.stroke, lw=1)
    axes.plot(grid, 100 * np.asarray(curve.auroc["all"]), color=INK, lw=1.2, ls=TRUTH.look.stroke)
    axes.axvline(curve.chosen, color=INK, lw=0.9, ls=CHOICE.look.stroke)
    axes.set_xlabel("α")
    axes.set_ylabel("AUROC, %")
