"""Figures with several panels: one inline SVG per panel for a page, one SVG and PDF file for a paper."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import inf, log10
from pathlib import Path
from typing import Any, NamedTuple, Self

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from ..io.files import write_atomically
from .look import LIGHT, variables
from .numbers import power_of_ten

Numbers = NDArray[np.floating]

INK, GREY, LIGHT_GREY, ACCENT, PAPER = (LIGHT[name] for name in ("ink", "grey", "light-grey", "accent", "paper"))
LINES = tuple(name for name in LIGHT if name.startswith("line-"))
PALETTE = tuple(LIGHT[name] for name in LINES)
PAGE_COLOURS = {LIGHT[name]: name for name in ("ink", "edge", "line", "grey", "light-grey", "accent", "paper", *LINES)}
PAGE_COLOURS["#000000"] = "ink"  # matplotlib's default
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}  # no dates: same results, same bytes
TITLE_LENGTH = 32  # characters that fit above a panel
DPI = 144  # resolution of rasterised elements
MARGIN = 0.03  # margin beyond the ends of an axis, relative to its length
DECADES = 100  # ratio of the ends above which an axis is logarithmic
BINS = 50  # bins of a histogram
FAR = 0.9  # share of the OOD scores left of the last bar of a figure with a threshold
LEAST, MOST = 0.05, 2.0  # distance of that bar from the threshold, relative to that of the threshold from ID scores
RC: dict[Any, object] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # journals reject the default type 3 fonts
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "text.color": INK,
}


class LineStyle(NamedTuple):
    """Style of a line: its colour and its dashes, as lengths of dash and gap; empty for a solid line."""

    colour: str
    dashes: tuple[float, ...] = ()

    @property
    def stroke(self) -> Any:
        """The dashes as matplotlib's ``linestyle``."""
        return (0, self.dashes) if self.dashes else "-"

    @property
    def page_colour(self) -> str:
        """The colour for an inline style of a page."""
        return page_colour(self.colour)


THRESHOLD = LineStyle(INK, (3.0, 1.5))


def line_style(number: int) -> LineStyle:
    """Return the style of the ``number``-th line, unique for every number: colours vary first, then dashes.

    Example:
        >>> line_style(0), line_style(8)
        (LineStyle(colour='#0072b2', dashes=()), LineStyle(colour='#0072b2', dashes=(4.0, 1.5)))
    """
    shorts, colour = divmod(number, len(PALETTE))
    return LineStyle(PALETTE[colour], (4.0, 1.5, *(1.0, 1.5) * (shorts - 1)) if shorts else ())


def page_colour(colour: str) -> str:
    """Return a colour of a figure for an inline style, as a variable that a dark page redefines.

    Example:
        >>> page_colour("#0072b2"), page_colour("#123456")
        ('var(--line-0, #0072b2)', '#123456')
    """
    return f"var(--{PAGE_COLOURS[colour]}, {colour})" if colour in PAGE_COLOURS else colour


def decade_label(value: float, _position: int | None = None) -> str:
    """Format the label of a tick at a power of ten.

    Example:
        >>> decade_label(0.01), decade_label(1e-7)
        ('0.01', '10⁻⁷')
    """
    exponent = round(log10(value)) if value > 0 else 0
    return f"{value:g}" if -3 <= exponent <= 3 else power_of_ten(exponent)


def logarithmic(axes: Axes, which: str, ratio: float = inf) -> None:
    """Make the axis ``x`` or ``y`` logarithmic; label 1, 2, 5, 10, ... unless the ``ratio`` of its ends is large."""
    wide = ratio > DECADES
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=6))
    axis.set_major_formatter(FuncFormatter(decade_label if wide else lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class Panel:
    """One panel of a figure; on a page, the note follows the title in grey."""

    title: str
    draw: Callable[[Axes], None]
    note: str = ""


class Key(NamedTuple):
    """An entry of the legend: a line, or an area if ``filled``."""

    label: str
    style: LineStyle
    filled: bool = False


@dataclass(frozen=True)
class Drawing:
    """A figure: the name of its files, its panels (empty without data) and their common legend.

    A file has at most ``columns`` columns; ``size`` is that of a panel, in inches; a page may show the ``heading``.
    """

    name: str
    panels: Sequence[Panel]
    keys: Sequence[Key] = ()
    columns: int = 3
    size: tuple[float, float] = (3.4, 2.2)
    heading: str = ""

    def inline(self) -> list[str]:
        """Return one SVG element per panel, without its title, with ids that are unique on a page."""
        elements = []
        for number, panel in enumerate(self.panels):
            name = f"{self.name}-{number}"
            with matplotlib.rc_context({**RC, "svg.hashsalt": name}):  # without a salt, ids differ from run to run
                figure = Figure(figsize=self.size, layout="constrained")
                panel.draw(figure.subplots())
                svg = _file(figure, "svg").decode()
            elements.append(_inline_svg(svg, name, f"{self.name}: {panel.title}"))
        return elements

    def svg(self) -> str:
        """Return the whole figure, with titles and legend, as an SVG file."""
        return self._saved("svg")["svg"].decode()

    def save(self, folder: Path | str) -> None:
        """Write ``NAME.svg`` and ``NAME.pdf``; without panels, remove the files of an earlier run."""
        contents = self._saved("svg", "pdf") if self.panels else {}
        for kind in ("svg", "pdf"):
            path = Path(folder, f"{self.name}.{kind}")
            if kind in contents:
                write_atomically(path, contents[kind])
            else:
                path.unlink(missing_ok=True)

    def _saved(self, *kinds: str) -> dict[str, bytes]:
        with matplotlib.rc_context({**RC, "svg.hashsalt": self.name}):
            figure = self.figure()
            return {kind: _file(figure, kind) for kind in kinds}

    def figure(self) -> Figure:
        """Return the whole figure, with titles and legend."""
        with matplotlib.rc_context(RC):
            across = 2 if len(self.panels) == 4 else min(self.columns, len(self.panels))
            rows = -(-len(self.panels) // across)
            width, height = self.size
            apart = ConstrainedLayoutEngine(wspace=0.06)
            figure = Figure(figsize=(width * across, (height + 0.25) * rows + 0.4), layout=apart)
            places: list[Axes] = figure.subplots(rows, across, squeeze=False).flatten().tolist()
            self._add_legend(figure)
            for spare in places[len(self.panels) :]:
                spare.set_visible(False)
            for axes, panel in zip(places, self.panels, strict=False):
                _set_title(axes, panel)
                panel.draw(axes)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # a second layout would change nothing
            return figure

    def _add_legend(self, figure: Figure) -> None:
        if not self.keys:
            return
        handles = [
            Patch(color=style.colour) if filled else Line2D([], [], color=style.colour, ls=style.stroke, lw=1.4)
            for _, style, filled in self.keys
        ]
        numbers = [str(number) for number in range(len(handles))]  # matplotlib omits labels that begin with _
        across = max(1, int(figure.get_figwidth() * 11 / (4 + max(len(key.label) for key in self.keys))))
        legend = figure.legend(handles, numbers, loc="outside upper left", ncols=min(across, len(handles)))
        for text, key in zip(legend.get_texts(), self.keys, strict=True):
            text.set_text(key.label)


def dataset_keys(names: Sequence[str]) -> list[Key]:
    """Return the legend of the ID data and of each OOD data set, with the same styles in every figure."""
    return [
        Key("ID", LineStyle(LIGHT_GREY), filled=True),
        *(Key(name, line_style(number)) for number, name in enumerate(names)),
    ]


def draw_histograms(axes: Axes, edges: Sequence[float], heights: Sequence[Numbers]) -> None:
    """Draw the histogram of the ID data, filled, and that of each OOD data set as a line."""
    for number, values in enumerate(heights):
        line = line_style(number - 1) if number else LineStyle(LIGHT_GREY)
        axes.hist(
            edges[:-1],
            bins=list(edges),
            weights=values,
            histtype="step" if number else "stepfilled",
            color=line.colour,
            linestyle=line.stroke,
            linewidth=1.2,
        )
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def draw_scores(scores: Sequence[Numbers], axes: Axes) -> None:
    """Draw the histograms of the scores of the ID data and of other data sets, with outliers in the outer bars."""
    span = Span.of(np.concatenate(scores))
    edges = span.edges(BINS)
    draw_histograms(axes, edges, [np.histogram(span.clip(values), edges)[0] / len(values) for values in scores])
    span.apply(axes, "x")


def draw_threshold(scores: Sequence[Numbers], threshold: float, method: str, axes: Axes) -> None:
    """Draw the scores of a method with the threshold above which they raise an alarm; the ID data comes first."""
    below = threshold - float(np.min(scores[0]))
    far = max(threshold + LEAST * below, float(np.quantile(np.concatenate(scores[1:] or scores), FAR)))
    if not Span.of(np.minimum(np.concatenate(scores), far)).logarithmic:
        far = min(far, threshold + MOST * below)
    clipped = [np.minimum(values, far) for values in scores]
    draw_scores(clipped, axes)
    edges = Span.of(np.concatenate(clipped)).edges(BINS)
    tallest = max(float(np.histogram(values, edges)[0][:-1].max() / len(values)) for values in scores)
    axes.set_ylim(0, 1.25 * tallest or None)  # the last bar may be higher and is cut off
    axes.axvline(threshold, color=THRESHOLD.colour, lw=1.2, ls=THRESHOLD.stroke)
    text: dict[str, Any] = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "va": "top"}
    axes.annotate("alarm →", (threshold, 1.0), (5, 0), **text)
    axes.annotate("← no alarm", (threshold, 1.0), (-5, 0), ha="right", **text)
    axes.set_xlabel(f"score of {method}; the last bar includes all higher scores")


class Span(NamedTuple):
    """The ends of an axis, without outliers, and whether it is logarithmic."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Numbers, ratio: float = DECADES) -> Self:
        """Return the span of all but 1 % of the finite values, half of which are excluded at either end.

        It is logarithmic if all values are positive and the ratio of its ends exceeds ``ratio``.
        """
        finite = values[np.isfinite(values)].astype(np.float64)
        if finite.size == 0:
            return cls(0.0, 1.0, False)
        low, high = (float(end) for end in np.quantile(finite, [0.005, 0.995], method="inverted_cdf"))
        if not high > low:  # constant scores need some width as well
            room = 0.01 * abs(low) or 0.5
            low, high = low - room, high + room
        return cls(low, high, low > 0 and high / low > ratio)

    def clip(self, values: Numbers) -> Numbers:
        """Clip values to the ends."""
        return np.clip(values.astype(np.float64), self.low, self.high)

    def edges(self, count: int) -> list[float]:
        """Return the edges of ``count`` bins, evenly spaced on this axis."""
        space = np.geomspace if self.logarithmic else np.linspace
        return [float(edge) for edge in space(self.low, self.high, count + 1)]

    def apply(self, axes: Axes, which: str) -> None:
        """Set the axis ``x`` or ``y`` of ``axes``, with a small margin."""
        if self.logarithmic:
            logarithmic(axes, which, self.high / self.low)
            room = (self.high / self.low) ** MARGIN
            ends = self.low / room, self.high * room
        else:
            ends = self.low - MARGIN * (self.high - self.low), self.high + MARGIN * (self.high - self.low)
            axes.locator_params(axis="x" if which == "x" else "y", nbins=5)  # long numbers would overlap
        (axes.set_xlim if which == "x" else axes.set_ylim)(*ends)


def adaptive(svg: str) -> str:
    """Return an SVG file with colours that follow the light or dark mode of the page that shows it as an image.

    It has a background: where page and reader disagree on the mode, it is a box that can still be read.
    """
    rules = "svg { background: var(--paper) } text { fill: var(--ink); font-family: var(--font) !important }"
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", _with_page_colours(svg), flags=re.DOTALL)
    return re.sub(r"<svg\b[^>]*>", lambda head: f"{head[0]}\n<style>{variables()}\n{rules}</style>", svg, count=1)


def _set_title(axes: Axes, panel: Panel) -> None:
    """Write title and note on one line if both fit, else the note below."""
    if len(panel.title) + len(panel.note) > TITLE_LENGTH:
        axes.set_title(f"{panel.title}\n{panel.note}".rstrip())
    else:
        axes.set_title(panel.title)
        axes.set_title(panel.note, loc="right", fontweight="normal")


def _file(figure: Figure, kind: str) -> bytes:
    content = io.BytesIO()
    metadata = NO_METADATA if kind == "svg" else {"CreationDate": None}
    figure.savefig(content, format=kind, metadata=metadata, transparent=True, dpi=DPI)
    return content.getvalue()


def _inline_svg(svg: str, name: str, label: str) -> str:
    """Convert an SVG file to an element of a page: without size and style rules, with ids that start with ``name``."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = _with_page_colours(svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    head = f'<svg {box[0]} role="img" aria-label="{escape(label)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return re.sub(r"\n\s*", "\n", head + svg[svg.index(">") + 1 :])


def _with_page_colours(svg: str) -> str:
    return re.sub(r"(?<=(?:fill|roke): )#[0-9a-f]{6}", lambda match: page_colour(match[0]), svg)
