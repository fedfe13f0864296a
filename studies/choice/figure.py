"""The figures of the study: regret of a few methods on every network, and by samples per class."""

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from flatfold.display.figure import LIGHT_GREY, adaptive
from flatfold.display.look import LIGHT

LARGEST = 30.0  # percentage points: what lies beyond is drawn at the edge
COLOURS = tuple(LIGHT[name] for name in ("accent", "edge", "line-0", "line-4", "line-3", "line-5", "line-1", "line-7"))
MARKERS = ("o", "x", "s", "^", "v", "D", "P", "<")


def draw(regrets: Mapping[str, Mapping[str, float]]) -> str:
    """Return an SVG with a row per network and a point per method; further left is better."""
    figure = Figure(figsize=(8, 0.4 * len(regrets) + 1.4), layout="constrained")
    axes = figure.subplots()
    names = list(regrets)
    methods = list(next(iter(regrets.values())))
    for method, colour, marker in zip(methods, COLOURS, MARKERS, strict=False):
        values = [min(regrets[name][method], LARGEST) for name in names]
        size, order = (70, 3) if marker == "o" else (32, 2)
        axes.scatter(values, range(len(names)), s=size, color=colour, marker=marker, label=method, zorder=order)
    axes.axvline(0, color=LIGHT["edge"], linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(-3.5, LARGEST + 1)
    axes.set_xlabel(
        f"AUROC of the best single method minus that of this one, in percentage points (cut at {LARGEST:g})"
    )
    axes.grid(axis="x", color=LIGHT["line"], zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return as_svg(figure)


def draw_samples(regrets: Mapping[str, Mapping[float, tuple[float, float]]], named: Sequence[str]) -> str:
    """Return an SVG with the regret of FourFold by samples per class: as it is, and with full trust in every sign.

    The networks in ``named`` have a colour and a place in the legend, all others are grey.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("FourFold", "the same weights for any number of samples")
    for panel, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        for name, values in regrets.items():
            colour = COLOURS[2 + list(named).index(name)] if name in named else LIGHT_GREY
            line = [values[m][panel] for m in sorted(values)]
            axes.plot(sorted(values), line, color=colour, marker=".", label=name if name in named else None, zorder=2)
        axes.axhline(0, color=LIGHT["edge"], linewidth=0.8, zorder=1)
        axes.set_xscale("log")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("validation samples per class")
        axes.grid(color=LIGHT["line"], zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("regret, percentage points of AUROC")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    return as_svg(figure)


def as_svg(figure: Figure) -> str:
    """Return a figure as SVG in light and dark; the same figure gives the same text."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "flatfold", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return adaptive(file.getvalue())
