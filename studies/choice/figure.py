"""The figure of the study: regret of a few methods on every network."""

import io
from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.figure import Figure

LARGEST = 30.0  # percentage points: what lies beyond is drawn at the edge
COLOURS = ("#00704f", "#7b8794", "#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#d55e00", "#999933")
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
    axes.axvline(0, color="#7b8794", linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(-3.5, LARGEST + 1)
    axes.set_xlabel(
        f"AUROC of the best single method minus that of this one, in percentage points (cut at {LARGEST:g})"
    )
    axes.grid(axis="x", color="#e4e7eb", zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "flatfold", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue().replace("<svg ", '<svg style="background: #fff" ', 1)
