"""Figure: AUROC and FPR95 along the exponents, and what AutoFold chose."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from matplotlib.axes import Axes

from ...evaluate.reproduce.rows import Sensitivity
from ..drawing import Drawing, Key, Panel
from ..style import INK, Look, look

DOTS = (1.0, 1.5)
CHOICE = Key("AutoFold's choice", Look(INK, DOTS))
Metric = Literal["auroc", "fpr95"]
LABELS: dict[Metric, str] = {"auroc": "average AUROC, %", "fpr95": "average FPR95, %"}


def alpha_sensitivity(sensitivities: Sequence[Sensitivity], name: str) -> Drawing:
    """Return two panels: averages of AUROC and FPR95 against α, a line per variant.

    AutoFold's choice is a dot, and a dotted line across at what it gives.

    Args:
        sensitivities: Of the variants.
        name: Of the drawing.
    """
    if not sensitivities:
        return Drawing(name, [])
    panels = [
        Panel("AUROC", partial(_draw, sensitivities, "auroc"), "higher is better"),
        Panel("FPR95", partial(_draw, sensitivities, "fpr95"), "lower is better"),
    ]
    keys = [*(Key(each.method, look(number)) for number, each in enumerate(sensitivities)), CHOICE]
    return Drawing(name, panels, keys, columns=2, size=(3.6, 2.7))


def _draw(sensitivities: Sequence[Sensitivity], metric: Metric, axes: Axes) -> None:
    for number, each in enumerate(sensitivities):
        colour = look(number).colour
        curves: Mapping[Metric, Mapping[str, list[float]]] = {"auroc": each.auroc, "fpr95": each.fpr95}
        chosen = {"auroc": each.chosen_auroc, "fpr95": each.chosen_fpr95}[metric]["all"]
        axes.axhline(100 * chosen, color=colour, lw=0.9, ls=CHOICE.look.stroke)
        axes.plot(each.grid, 100 * np.asarray(curves[metric]["all"]), color=colour, lw=1.4)
        axes.plot(each.chosen, 100 * chosen, "o", ms=6, color=colour, mec="white", mew=0.8, zorder=3)
    axes.set_xlabel("α")
    axes.set_ylabel(LABELS[metric])
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.locator_params(axis="y", nbins=5)
