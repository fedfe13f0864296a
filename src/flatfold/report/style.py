"""Colours, lines and ticks that all figures share."""

from math import isclose, log10
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK, GREY, KNOWN, ACCENT = "#1f2933", "#9aa5b1", "#c3cad3", "#00704f"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b8e23")  # colour-blind safe
RC: dict[Any, object] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # journals refuse the type 3 fonts that are the default
    "text.parse_math": False,  # a name with two dollar signs is no formula
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
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Look(NamedTuple):
    """How a line is drawn: its colour and its dashes, as lengths of ink and gap; none for a solid line."""

    colour: str
    dashes: tuple[float, ...] = ()

    @property
    def stroke(self) -> Any:
        """The dashes as matplotlib wants them."""
        return (0, self.dashes) if self.dashes else "-"


def look(number: int) -> Look:
    """Return the look of the ``number``-th line: no two numbers share one, however many there are.

    After the colours come dashes: none, one long, one long and one short, one long and two short, ...

    Example:
        >>> look(0), look(8)
        (Look(colour='#0072b2', dashes=()), Look(colour='#0072b2', dashes=(4.0, 1.5)))
    """
    shorts, colour = divmod(number, len(PALETTE))
    return Look(PALETTE[colour], (4.0, 1.5, *(1.0, 1.5) * (shorts - 1)) if shorts else ())


def power_of_ten(value: float, _position: int | None = None) -> str:
    """Return the text of a tick at a power of ten, nothing for one between them.

    Example:
        >>> power_of_ten(0.01), power_of_ten(1e-7), power_of_ten(300.0)
        ('0.01', '10⁻⁷', '')
    """
    exponent = round(log10(value)) if value > 0 else 0
    if not isclose(value, 10.0**exponent, rel_tol=1e-6):
        return ""
    return f"{value:g}" if -3 <= exponent <= 3 else f"10{str(exponent).translate(RAISED)}"


def logarithmic(axes: Axes, which: str, subs: tuple[float, ...] = (1.0,)) -> None:
    """Make the axis ``x`` or ``y`` logarithmic; with ``subs`` of 1, 2 and 5 such ticks are labelled too."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=subs, numticks=6))
    axis.set_major_formatter(FuncFormatter(power_of_ten if len(subs) == 1 else lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
