"""Figure: how much the loss bends at single inputs, known and unknown."""

from dataclasses import replace
from functools import partial
from math import isfinite, pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..curvature.estimate import ZERO, Density, Spectrum
from ..evaluate.results import ID
from ..evaluate.study_results import Name, Space, Statistic, Study, typical_error
from .figure import GREY, INK, KNOWN, RAISED, Drawing, Key, Look, Numbers, Panel, Span, logarithmic, look

# Curvature of unknown images beside that of the known ones.


SPACES: dict[Space, str] = {"parameter": "parameters", "feature": "features", "logit": "logits"}

NAMES: dict[Name, str] = {"lambda_max": "λmax", "trace": "trace"}


Column = tuple[Space, Name]

Line = dict[Column, Statistic]


class Comparison(NamedTuple):
    """The figures of a study.

    Attributes:
        known: Of the known images, by space and statistic; parameters come first.
        unknown: Of each unknown data set, in the order of the suite.
        means: Over the near and over the far data sets, where there is more than one of them.
    """

    known: Line
    unknown: dict[str, Line]
    means: dict[str, Line]


def compare(study: Study) -> Comparison:
    """Return the statistics of a study by data set, and their means."""
    columns: list[Column] = [(space, name) for space in SPACES for name in NAMES if (space, name) in study.columns]
    cells = {(told.dataset, told.space, told.name): told for told in study.statistics}
    known, *unknown = ({column: cells[name, *column] for column in columns} for name in study.datasets)
    groups = [ood["group"] for ood in study.suite["ood"]]
    means = study.means
    return Comparison(
        known,
        dict(zip(study.datasets[1:], unknown, strict=True)),
        {group: {c: means[group, *c] for c in columns} for group in study.groups if groups.count(group) > 1},
    )


# Of what a figure shows the curvature, in few words: a figure that leaves the page must still say it.


SHORT_MATRICES = {"hessian": "Hessian", "ggn": "GGN"}

SHORT_LOSSES = {"energy": "the energy", "ce_pred": "CE(predicted)", "ce": "CE(label)"}


def matrix_and_loss(study: Study, space: Space) -> str:
    """Return which matrix of which loss it is in a space, such as ``Hessian of the energy``."""
    told = study.cell(ID, space, "trace")
    return f"{SHORT_MATRICES[told.matrix]} of {SHORT_LOSSES[told.loss]}"


BINS = 10, 50  # at least and at most

WIDE, NARROW = 100, 10  # ratio of the ends above which powers of ten are ticks enough; below, no axis is logarithmic


def trace_densities(study: Study) -> Drawing:
    """Return one panel per space: the traces of known inputs and of each unknown data set, on a logarithmic axis.

    Each data set is as high as the others: known inputs spread over many powers of ten, and their share of any bar is
    so small that nothing would be seen of them. Traces of exactly zero are in the leftmost bar. Where some are
    negative, the axis is linear.
    """
    panels = []
    for space, words in SPACES.items():
        traces = {name: _finite(study.traces[f"{space}/{name}"]) for name in study.datasets}
        panels.append(
            Panel(
                f"over {words}",
                partial(_draw_traces, traces, matrix_and_loss(study, space)),
                _note(study, space, traces),
            )
        )
    return Drawing("curvature-traces", panels, legend(study))


def legend(study: Study) -> list[Key]:
    """Return the legend of known inputs and of each unknown data set, with the looks of all other figures."""
    known = Key("known", Look(KNOWN), filled=True)
    return [known, *(Key(name, look(number)) for number, name in enumerate(study.datasets[1:]))]


def trace_axis(values: Numbers) -> Span:
    """Return the axis for traces: logarithmic unless some are negative or all lie within a factor of ten."""
    if np.any(values < 0) or not np.any(values > 0):
        return replace(Span.of(values), logarithmic=False)
    span = Span.of(values[values > 0])
    return replace(span, logarithmic=span.low > 0 and span.high / span.low > NARROW)


def _finite(values: Numbers) -> Numbers:
    return values[np.isfinite(values)]


def _note(study: Study, space: Space, traces: dict[str, Numbers]) -> str:
    """Return the typical error of a trace, and how many traces are zero."""
    error = typical_error(study, space)
    told = "exact" if error is None else f"± {100 * error:.2g} %"
    every = np.concatenate(list(traces.values()))
    zeros = int(np.sum(every == 0))
    return f"{told}, {zeros:,} of {len(every):,} are 0" if zeros else told


def bin_count(traces: dict[str, Numbers]) -> int:
    """Return how many bars there are: twice the root of the size of the smallest data set, from 10 to 50.

    Example:
        >>> bin_count({"id": np.zeros(500), "few": np.zeros(100)})
        20
    """
    least, most = BINS
    smallest = min(len(values) for values in traces.values())
    return min(max(round(2 * sqrt(smallest)), least), most)


def _draw_traces(traces: dict[str, Numbers], what: str, axes: Axes) -> None:
    span = trace_axis(np.concatenate(list(traces.values())))
    edges = span.edges(bin_count(traces))
    for number, (name, values) in enumerate(traces.items()):
        known = name == ID
        line = Look(KNOWN) if known else look(number - 1)
        counts, _ = np.histogram(span.clip(values), edges)
        axes.hist(
            edges[:-1],
            bins=edges,
            weights=counts / max(counts.max(), 1),
            histtype="stepfilled" if known else "step",
            color=line.colour,
            linestyle=line.stroke,
            linewidth=1.2,
        )
    span.apply(axes, "x")
    if span.logarithmic and span.high / span.low <= WIDE:
        logarithmic(axes, "x", subs=(1.0, 2.0, 5.0))
    axes.set_xlabel(f"trace at one input, {what}")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


# Numbers that span many powers of ten, as words.


SMALL, LARGE = 1e-3, 1e6  # outside, a power of ten is told


def quantity(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, with a power of ten where it is very small or large.

    Example:
        >>> quantity(53740.14), quantity(1.5), quantity(0.000123456), quantity(0.0), quantity(-61.8)
        ('53,740', '1.500', '1.235·10⁻⁴', '0', '−61.80')
    """
    if value == 0 or not isfinite(value):
        return f"{value:g}" if value else "0"
    size, sign = abs(value), "−" if value < 0 else ""
    rounded, _, exponent = f"{size:.{digits - 1}e}".partition("e")
    if SMALL <= size < LARGE:
        return f"{sign}{size:,.{max(digits - 1 - int(exponent), 0)}f}"
    return f"{sign}{rounded}·{_power(exponent)}"


def factor(value: float, known: float) -> str:
    r"""Return how many times the known figure another one is, nothing unless both are positive.

    Example:
        >>> factor(6.0, 4.0), factor(3.0, 4.0), factor(1.0, 0.0)
        ('×\xa01.50', '×\xa00.750', '')
    """
    return f"×\u00a0{quantity(value / known, 3)}" if value > 0 and known > 0 else ""


def tick(value: float, _position: int | None = None) -> str:
    """Return the text of a tick: no more digits than it has.

    Example:
        >>> tick(0.05), tick(2.5e-06), tick(0.0), tick(-40.0), tick(1e7)
        ('0.05', '2.5·10⁻⁶', '0', '−40', '10⁷')
    """
    size, sign = abs(value), "−" if value < 0 else ""
    if value == 0 or SMALL <= size < LARGE:
        return f"{sign}{size:.6g}"
    rounded, _, exponent = f"{size:.5e}".partition("e")
    return sign + f"{float(rounded):g}·" * (float(rounded) != 1) + _power(exponent)


def _power(exponent: str) -> str:
    return f"10{str(int(exponent)).translate(RAISED)}"


# Figure: the spectrum of the mean curvature matrix, of known images and of each unknown data set.


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
    panels = [Panel("known", partial(_draw_spectrum, [(known, None)], label), known.zeros)]
    for number, (name, found) in enumerate(zip(study.datasets[1:], unknown, strict=True)):
        panels.append(Panel(name, partial(_draw_spectrum, [(known, None), (found, look(number))], label), found.zeros))
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
        matrix=told.matrix,
        loss=told.loss,
        matvecs=told.matvecs,
        seed=None,
        rows=told.n,
    )


def _draw_spectrum(pair: list[tuple[Curve, Look | None]], label: str, axes: Axes) -> None:
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


# Figure: the largest eigenvalues of the feature Hessian at single inputs, by how features are normalised.


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
        panels.append(Panel(TITLES[kind], partial(_draw_eigenvalues, bands, label), f"α = {alpha:g}"))
    return Drawing("curvature-eigenvalues", panels, legend(study), size=(3.4, 2.6))


def quartiles(values: Numbers) -> Numbers:
    """Return the lower quartile, median and upper quartile of each column of ``(n, k)``, as ``(3, k)``.

    Example:
        >>> quartiles(np.array([[1.0], [2.0], [3.0]])).T
        array([[1.5, 2. , 2.5]])
    """
    finite = np.where(np.isfinite(values), values, 0.0)
    return np.asarray(np.quantile(finite, [0.25, 0.5, 0.75], axis=0))


def _draw_eigenvalues(bands: dict[str, Numbers], label: str, axes: Axes) -> None:
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
