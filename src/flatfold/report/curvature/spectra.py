"""Figure: the spectrum of the mean curvature matrix, of known images and of each unknown data set."""

from dataclasses import replace
from functools import partial
from math import pi, sqrt
from typing import NamedTuple, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ...curvature.estimate import Loss, Matrix
from ...curvature.spectrum import ZERO, Density, Spectrum
from ...evaluate.study.files import Space, Study
from ..drawing import Drawing, Key, Panel
from ..span import Numbers
from ..style import GREY, INK, KNOWN, Look, logarithmic, look
from .numbers import tick
from .traces import WIDE, legend
from .wording import matrix_and_loss

HIGHEST = 100  # times the highest density of an unknown set: a narrow spectrum of known images goes beyond
ROOM = 0.03  # of the axis of eigenvalues
DOTS = (1.0, 1.5)
LARGEST = Key("λmax", Look(INK, DOTS))


class Curve(NamedTuple):
    """A spectrum as it is drawn: its density with a band, and its ends.

    ``zeros`` says how many eigenvalues are zero or, of an estimated spectrum, which cannot know, how many are nearer to
    zero than the width of the kernel. ``least`` is a tenth of the height of a single eigenvalue: what is lower is the
    tail of the kernel, no eigenvalue.
    """

    grid: Numbers
    mean: Numbers
    lower: Numbers
    upper: Numbers
    zeros: str
    smallest: float
    largest: float
    least: float


def spectral_densities(study: Study, space: Space) -> Drawing:
    """Return a panel of the known images alone, then one per unknown data set against them."""
    known, *unknown = (curve(study, space, name) for name in study.datasets)
    label = f"eigenvalue, {matrix_and_loss(study, space)}"
    panels = [Panel("known", partial(_draw, [(known, None)], label), known.zeros)]
    for number, (name, found) in enumerate(zip(study.datasets[1:], unknown, strict=True)):
        panels.append(Panel(name, partial(_draw, [(known, None), (found, look(number))], label), found.zeros))
    return Drawing(f"curvature-spectrum-{space}", panels, [*legend(study), LARGEST], size=(3.4, 2.4))


def share(part: float) -> str:
    """Return a share in percent, never rounded up to all or down to none.

    Example:
        >>> share(0.9871), share(0.99996), share(1.0), share(0.0), share(0.0001)
        ('98.7 %', 'over 99.9 %', '100 %', '0 %', 'under 0.1 %')
    """
    if part <= 0 or part >= 1:
        return "100 %" if part > 0 else "0 %"
    if part > 0.9995:
        return "over 99.9 %"
    return f"{100 * part:.1f} %" if part >= 0.0005 else "under 0.1 %"


def curve(study: Study, space: Space, name: str) -> Curve:
    """Return the density of one spectrum of a study.

    Eigenvalues that are zero are not in it. An estimate does not know them from its neighbours: whether one of its
    points falls on zero is chance, so there all of them are drawn.
    """
    exact = study.cell(name, space, "lambda_max").stderr is None
    spectrum = _spectrum(study, space, name) if exact else _off_zero(_spectrum(study, space, name))
    density = spectrum.density()
    single = 1 / (spectrum.size * (density.width or 1.0) * sqrt(2 * pi))  # all eigenvalues may be zero
    return Curve(
        density.grid.numpy(),
        density.mean.numpy(),
        density.lower.numpy(),
        density.upper.numpy(),
        _zeros(spectrum, density, exact),
        spectrum.lambda_min,
        spectrum.lambda_max,
        0.1 * single,
    )


def _off_zero(spectrum: Spectrum) -> Spectrum:
    """Return the spectrum with its points at zero moved by what no eye can see, so that the density counts them."""
    least = 2 * ZERO * max(abs(spectrum.lambda_max), float(spectrum.nodes.abs().max()))
    return replace(spectrum, nodes=torch.where(spectrum.nodes.abs() < least, least, spectrum.nodes))


def _zeros(spectrum: Spectrum, density: Density, exact: bool) -> str:
    if exact:
        return f"{share(density.atom)} are zero"
    near = spectrum.weights * (spectrum.nodes.abs() <= density.width)
    return f"{share(float(near.sum(dim=1).mean()))} near zero"


def _spectrum(study: Study, space: Space, name: str) -> Spectrum:
    nodes, weights = (torch.from_numpy(np.array(part[f"{space}/{name}"])) for part in (study.nodes, study.weights))
    told = study.cell(name, space, "lambda_max")
    return Spectrum(
        nodes=nodes,
        weights=weights,
        size=study.sizes[space],
        lambda_min=float(nodes.min()),
        lambda_max=told.value,
        method=told.method,
        matrix=cast(Matrix, told.matrix),
        loss=cast(Loss, told.loss),
        matvecs=told.matvecs,
        seed=None,
        rows=told.n,
    )


def _draw(pair: list[tuple[Curve, Look | None]], label: str, axes: Axes) -> None:
    floor, top = pair[-1][0].least, min(HIGHEST * pair[-1][0].upper.max(), max(curve.upper.max() for curve, _ in pair))
    for shown, line in pair:
        mean, lower, upper = (np.maximum(part, floor) for part in (shown.mean, shown.lower, shown.upper))
        if line is None:
            axes.fill_between(shown.grid, floor, mean, color=KNOWN, linewidth=0)
        else:
            axes.fill_between(shown.grid, lower, upper, color=line.colour, alpha=0.25, linewidth=0)
            axes.plot(shown.grid, mean, color=line.colour, ls=line.stroke, lw=1.1)
        axes.axvline(shown.largest, color=GREY if line is None else line.colour, lw=1, ls=LARGEST.look.stroke)
    top = max(2 * top, 10 * floor)
    logarithmic(axes, "y", subs=(1.0,) if top > WIDE * floor else (1.0, 2.0, 5.0))
    axes.set_ylim(floor, top)
    ends = [end for curve, _ in pair for end in (0.0, curve.smallest, curve.largest)]
    room = ROOM * (max(ends) - min(ends)) or 1.0
    axes.set_xlim(min(ends) - room, max(ends) + room)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    axes.set_xlabel(label)
    axes.set_ylabel("density")
