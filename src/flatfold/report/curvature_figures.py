"""Figures of a curvature study: traces, spectra, and the largest eigenvalues at single inputs."""

from collections.abc import Sequence
from functools import partial
from math import inf, pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..curvature.estimate import ZERO, Density, Spectrum
from ..display.figure import (
    GREY,
    INK,
    LIGHT_GREY,
    Drawing,
    Key,
    LineStyle,
    Numbers,
    Panel,
    Span,
    dataset_keys,
    draw_histograms,
    line_style,
    logarithmic,
)
from ..display.numbers import power_of_ten
from ..evaluate.results import ID
from ..evaluate.study_results import SPACES, Space, Study, typical_error
from .templates import LARGE, SMALL, share

SHORT_MATRICES = {"hessian": "Hessian", "ggn": "GGN"}
SHORT_LOSSES = {"energy": "the energy", "ce_pred": "CE(predicted)", "ce": "CE(label)"}
NORMALISATIONS = {"none": "no normalisation", "partial": "partial normalisation", "full": "full normalisation"}
LARGEST = Key("λmax", LineStyle(INK, (1.0, 1.5)))

BINS = 10, 50  # minimum and maximum number of bins of a histogram of traces
NARROW = 10  # ratio of the ends of an axis of traces up to which it is linear
HIGHEST = 100  # multiple of the highest OOD density at which narrow spectra of ID images are cut off
MARGIN = 0.03  # margin of the axis of eigenvalues, relative to its length
FEW = 12  # number of eigenvalues up to which each is drawn as a dot
DEPTH = 1e-12  # lower end of the axis, relative to the largest eigenvalue
LEAST = 6.25  # ratio of the ends of an axis that guarantees two of the ticks 1, 2, 5, 10, ...


def matrix_and_loss(study: Study, space: Space) -> str:
    """Return the matrix and loss of the curvature in a space, such as ``Hessian of the energy``."""
    statistic = study.cells[ID, space, "trace"]
    return f"{SHORT_MATRICES[statistic.matrix]} of {SHORT_LOSSES[statistic.loss]}"


def trace_densities(study: Study) -> Drawing:
    """Return one panel per space: histograms of the traces at single inputs, on a logarithmic axis.

    All data sets are scaled to the same height, because ID traces span many powers of ten. Traces of exactly zero are
    in the leftmost bar. If some are negative, the axis is linear.
    """
    panels = []
    for space, name in SPACES.items():
        traces = [study.traces[f"{space}/{dataset}"] for dataset in study.datasets]
        traces = [values[np.isfinite(values)] for values in traces]
        error, every = typical_error(study, space), np.concatenate(traces)
        zeros = int(np.sum(every == 0))
        note = "exact" if error is None else f"± {100 * error:.2g} %"
        note += f", {zeros:,} of {len(every):,} are 0" if zeros else ""
        panels.append(Panel(f"over {name}", partial(_draw_traces, traces, matrix_and_loss(study, space)), note))
    return Drawing("curvature-traces", panels, dataset_keys(study.datasets[1:]))


def trace_axis(values: Numbers) -> Span:
    """Return the axis for traces: logarithmic unless some are negative or all lie within a factor of ten."""
    if np.any(values < 0) or not np.any(values > 0):
        return Span.of(values, inf)
    return Span.of(values[values > 0], NARROW)


def bin_count(traces: Sequence[Numbers]) -> int:
    """Return the number of bins: twice the square root of the size of the smallest data set, from 10 to 50."""
    least, most = BINS
    return min(max(round(2 * sqrt(min(map(len, traces)))), least), most)


def _draw_traces(traces: Sequence[Numbers], what: str, axes: Axes) -> None:
    span = trace_axis(np.concatenate(traces))
    edges = span.edges(bin_count(traces))
    counts = [np.histogram(span.clip(values), edges)[0] for values in traces]
    draw_histograms(axes, edges, [count / max(count.max(), 1) for count in counts])
    span.apply(axes, "x")
    axes.set_xlabel(f"trace at one input, {what}")


class Curve(NamedTuple):
    """A spectrum to draw: its density, its ends, and a note on its zeros.

    The note is the share of eigenvalues that are zero or, in an estimate, closer to zero than the width of the kernel.
    ``least`` is a tenth of the height of a single eigenvalue: lower values are tails of the kernel.
    """

    density: Density
    zeros: str
    smallest: float
    largest: float
    least: float


def spectral_densities(study: Study, space: Space) -> Drawing:
    """Return the spectrum of the mean curvature matrix: a panel for the ID images and one per OOD data set."""
    reference, *curves = (spectral_curve(study, space, name) for name in study.datasets)
    label = f"eigenvalue, {matrix_and_loss(study, space)}"
    panels = [Panel("ID", partial(_draw_spectrum, [(reference, None)], label), reference.zeros)]
    for number, (name, curve) in enumerate(zip(study.datasets[1:], curves, strict=True)):
        pair = [(reference, None), (curve, line_style(number))]
        panels.append(Panel(name, partial(_draw_spectrum, pair, label), curve.zeros))
    keys = [*dataset_keys(study.datasets[1:]), LARGEST]
    return Drawing(f"curvature-spectrum-{space}", panels, keys, size=(3.4, 2.4))


def spectral_curve(study: Study, space: Space, name: str) -> Curve:
    """Return the density of one spectrum of a study.

    An exact spectrum is drawn without its zeros. In an estimate a node is zero only by chance, so all nodes are drawn.
    """
    statistic = study.cells[name, space, "lambda_max"]
    nodes, weights = (torch.from_numpy(np.array(part[f"{space}/{name}"])) for part in (study.nodes, study.weights))
    smallest = float(nodes.min())
    exact = statistic.stderr is None
    if not exact:  # move nodes away from zero, otherwise the density would omit them
        least = 2 * ZERO * max(abs(statistic.value), float(nodes.abs().max()))
        nodes = torch.where(nodes.abs() < least, least, nodes)
    kind = statistic.method, statistic.matrix, statistic.loss, statistic.matvecs
    spectrum = Spectrum(
        nodes, weights, study.sizes[space], smallest, statistic.value, *kind, seed=None, rows=statistic.n
    )
    density = spectrum.density()
    near = float((weights * (nodes.abs() <= density.width)).sum(dim=1).mean())
    zeros = f"{share(density.atom)} are zero" if exact else f"{share(near)} near zero"
    least = 0.1 / (spectrum.size * (density.width or 1.0) * sqrt(2 * pi))  # width is 0 if all eigenvalues are 0
    return Curve(density, zeros, smallest, statistic.value, least)


def tick_label(value: float, _position: int | None = None) -> str:
    """Format the label of a tick without trailing zeros.

    Example:
        >>> tick_label(0.05), tick_label(2.5e-06), tick_label(0.0), tick_label(-40.0), tick_label(1e7)
        ('0.05', '2.5·10⁻⁶', '0', '−40', '10⁷')
    """
    size, sign = abs(value), "−" if value < 0 else ""
    if value == 0 or SMALL <= size < LARGE:
        return f"{sign}{size:.6g}"
    rounded, _, exponent = f"{size:.5e}".partition("e")
    return sign + f"{float(rounded):g}·" * (float(rounded) != 1) + power_of_ten(int(exponent))


def _draw_spectrum(pair: list[tuple[Curve, LineStyle | None]], label: str, axes: Axes) -> None:
    heights = [float(curve.density.upper.max()) for curve, _ in pair]
    floor, top = pair[-1][0].least, min(HIGHEST * heights[-1], max(heights))
    for curve, line in pair:
        density = curve.density
        mean, lower, upper = (part.clamp(min=floor) for part in (density.mean, density.lower, density.upper))
        if line is None:
            axes.fill_between(density.grid, floor, mean, color=LIGHT_GREY, linewidth=0)
        else:
            axes.fill_between(density.grid, lower, upper, color=line.colour, alpha=0.25, linewidth=0)
            axes.plot(density.grid, mean, color=line.colour, ls=line.stroke, lw=1.1)
        axes.axvline(curve.largest, color=GREY if line is None else line.colour, lw=1, ls=LARGEST.style.stroke)
    top = max(2 * top, 10 * floor)
    logarithmic(axes, "y", top / floor)
    axes.set_ylim(floor, top)
    ends = [end for curve, _ in pair for end in (0.0, curve.smallest, curve.largest)]
    margin = MARGIN * (max(ends) - min(ends)) or 1.0
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(FuncFormatter(tick_label))
    axes.set_xlabel(label)
    axes.set_ylabel("density")


def top_eigenvalues(study: Study) -> Drawing:
    """Return one panel per normalisation: the median over inputs of each eigenvalue, with a band of quartiles.

    The Hessian has at most c - 1 non-zero eigenvalues for c classes, and no more than features; the others are zero.
    """
    rank = min(study.suite["n_classes"] - 1, study.suite["n_features"])
    label = f"eigenvalue,\n{matrix_and_loss(study, 'feature')}"
    panels = []
    for kind, alpha in study.alphas.items():
        bands = {name: quartiles(study.eigenvalues[f"{kind}/{name}"][:, :rank]) for name in study.datasets}
        panels.append(Panel(NORMALISATIONS[kind], partial(_draw_eigenvalues, bands, label), f"α = {alpha:g}"))
    return Drawing("curvature-eigenvalues", panels, dataset_keys(study.datasets[1:]), size=(3.4, 2.6))


def quartiles(values: Numbers) -> Numbers:
    """Return the lower quartile, median and upper quartile of each column of ``(n, k)``, as ``(3, k)``."""
    finite = np.where(np.isfinite(values), values, 0.0)
    return np.asarray(np.quantile(finite, [0.25, 0.5, 0.75], axis=0))


def _draw_eigenvalues(bands: dict[str, Numbers], label: str, axes: Axes) -> None:
    every = np.concatenate([band.ravel() for band in bands.values()])
    top = float(every.max(initial=0.0)) or 1.0
    floor = max(float(every[every > 0].min(initial=top)), DEPTH * top)
    count = len(bands[ID][0])
    index = np.arange(1, count + 1)
    for number, (name, band) in enumerate(bands.items()):
        low, middle, high = np.where(band > 0, band, np.nan)
        line = LineStyle(GREY) if name == ID else line_style(number - 1)
        shade, strength = (LIGHT_GREY, 0.6) if name == ID else (line.colour, 0.15)
        axes.fill_between(index, np.fmax(low, floor), high, color=shade, alpha=strength, linewidth=0)
        marker = "o" if count <= FEW else ""
        axes.plot(index, middle, color=line.colour, ls=line.stroke, lw=1.3, marker=marker, ms=3)
    logarithmic(axes, "y", top / floor)
    room = max(1.5, (LEAST * floor / top) ** 0.5)
    axes.set_ylim(floor / room, room * top)
    axes.set_ylabel(label)
    axes.set_xlabel("rank of the eigenvalue, largest first")
    margin = max(0.04 * count, 0.25)
    axes.set_xlim(1 - margin, count + margin)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
