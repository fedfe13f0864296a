"""Figure: the largest eigenvalues of the feature Hessian at single inputs, by how features are normalised."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ...evaluate.results import ID
from ...evaluate.study.files import Study
from ..drawing import Drawing, Panel
from ..span import Numbers
from ..style import GREY, KNOWN, Look, logarithmic, look
from .traces import WIDE, legend
from .wording import matrix_and_loss

TITLES = {"none": "no normalisation", "partial": "partial normalisation", "full": "full normalisation"}
FEW = 12  # eigenvalues, up to which each is a dot
DEPTH = 1e-12  # of the largest: what is smaller is below the axis
LEAST = 6.25  # ratio of the ends of the axis: two of the ticks 1, 2, 5, 10, ... are always between them


def top_eigenvalues(study: Study) -> Drawing:
    """Return one panel per normalisation: the median over inputs of each eigenvalue, with a band of quartiles.

    The Hessian has one eigenvalue less than there are classes, and no more than features: what comes after is zero, has
    no place on a logarithmic axis, and is left out.
    """
    rank = min(study.suite["n_classes"] - 1, study.suite["n_features"])
    panels = []
    label = f"eigenvalue,\n{matrix_and_loss(study, 'feature')}"
    for kind, alpha in study.alphas.items():
        bands = {name: quartiles(study.eigenvalues[f"{kind}/{name}"][:, :rank]) for name in study.datasets}
        panels.append(Panel(TITLES[kind], partial(_draw, bands, label), f"α = {alpha:g}"))
    return Drawing("curvature-eigenvalues", panels, legend(study), size=(3.4, 2.6))


def quartiles(values: Numbers) -> Numbers:
    """Return the lower quartile, median and upper quartile of each column of ``(n, k)``, as ``(3, k)``.

    Example:
        >>> quartiles(np.array([[1.0], [2.0], [3.0]])).T
        array([[1.5, 2. , 2.5]])
    """
    finite = np.where(np.isfinite(values), values, 0.0)
    return np.asarray(np.quantile(finite, [0.25, 0.5, 0.75], axis=0))


def _draw(bands: dict[str, Numbers], label: str, axes: Axes) -> None:
    every = np.concatenate([band.ravel() for band in bands.values()])
    top = float(every.max(initial=0.0)) or 1.0
    floor = max(float(every[every > 0].min(initial=top)), DEPTH * top)
    for number, (name, band) in enumerate(bands.items()):
        low, middle, high = np.where(band > 0, band, np.nan)
        index = np.arange(1, band.shape[1] + 1)
        line = Look(GREY) if name == ID else look(number - 1)
        shade, strength = (KNOWN, 0.6) if name == ID else (line.colour, 0.15)
        axes.fill_between(index, np.fmax(low, floor), high, color=shade, alpha=strength, linewidth=0)
        marker = "o" if len(index) <= FEW else ""
        axes.plot(index, middle, color=line.colour, ls=line.stroke, lw=1.3, marker=marker, ms=3)
    logarithmic(axes, "y", subs=(1.0,) if top > WIDE * floor else (1.0, 2.0, 5.0))
    room = max(1.5, (LEAST * floor / top) ** 0.5)
    axes.set_ylim(floor / room, room * top)
    axes.set_ylabel(label)
    axes.set_xlabel("rank of the eigenvalue, largest first")
    axes.set_xlim(*_beside(len(next(iter(bands.values()))[0])))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def _beside(count: int) -> tuple[float, float]:
    """Return the ends of the axis of ranks, with room beside the first and the last."""
    room = max(0.04 * count, 0.25)
    return 1 - room, count + room
