"""Figures as SVG text: score histograms, ROC curves, AutoFold's choice of alpha."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..evaluate.results import ID, AlphaCurve, Results

INK, GREY, KNOWN = "#1f2933", "#9aa5b1", "#c3cad3"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b8e23")  # colour-blind safe
STYLE: dict[Any, object] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "text.color": INK,
}

Scores = NDArray[np.floating]


def histograms(results: Results) -> str:
    """Return one panel per method, best first: its scores of known inputs and of each unknown data set."""
    names = _datasets(results)
    with _grid("histograms", len(results.methods), columns=3, height=2.1) as (figure, panels, finish):
        for axes, run in zip(panels, results.ranked, strict=True):
            scores = {name: results.scores[f"{run.method}/{name}"] for name in (ID, *names)}
            _histogram(axes, run.method, scores)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
    return finish()


def _histogram(axes: Axes, method: str, scores: dict[str, Scores]) -> None:
    everything = np.concatenate(list(scores.values()))
    low, high = np.quantile(everything, [0.005, 0.995])
    logarithmic = low > 0 and high / low > 100  # traces of confident samples span many decades
    bins = np.geomspace(low, high, 50) if logarithmic else np.linspace(low, high, 50)
    for colour, (name, values) in zip((KNOWN, *PALETTE), scores.items(), strict=False):
        weights = np.full(len(values), 1 / len(values))
        known = name == ID
        axes.hist(
            np.clip(values, low, high),
            bins=bins.tolist(),
            weights=weights,
            histtype="stepfilled" if known else "step",
            color=colour,
            label="known" if known else name,
            linewidth=1.2,
        )
    if logarithmic:
        axes.set_xscale("log")
    else:
        axes.locator_params(axis="x", nbins=5)  # long numbers would run into each other
    axes.set_title(method)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def roc_curves(results: Results) -> str:
    """Return one panel per unknown data set with the best methods' curves; false alarms are on a logarithmic axis."""
    names = _datasets(results)
    shown = results.ranked[: len(PALETTE)]
    with _grid("roc", len(names), columns=2, height=3.2) as (figure, panels, finish):
        for axes, name in zip(panels, names, strict=True):
            for colour, run in zip(PALETTE, shown, strict=False):
                known, unknown = results.scores[f"{run.method}/{ID}"], results.scores[f"{run.method}/{name}"]
                axes.plot(*_roc(known, unknown), color=colour, label=run.method, lw=1.2)
            axes.set_xscale("log")
            axes.set_xlim(1 / len(known), 1)
            axes.set_ylim(0, 1.02)
            axes.set_title(name)
            axes.set_xlabel("false alarms: known inputs flagged")
            axes.set_ylabel("unknown inputs found")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=6)
    return finish()


def _roc(known: Scores, unknown: Scores) -> tuple[Scores, Scores]:
    """Return false and true alarm rates at each known input's score as the threshold."""
    thresholds = np.unique(known)[::-1]
    false_alarms = 1 - np.searchsorted(np.sort(known), thresholds) / len(known)
    found = 1 - np.searchsorted(np.sort(unknown), thresholds) / len(unknown)
    return false_alarms, found


def alpha_curves(results: Results) -> str:
    """Return one panel per AutoFold: its criterion, the true AUROC it never saw, the exponent it took."""
    with _grid("alpha", len(results.alpha_curves), columns=3, height=3.0) as (figure, panels, finish):
        for axes, curve in zip(panels, results.alpha_curves, strict=True):
            _alpha_curve(axes, curve)
        panels[0].set_ylabel("AUROC")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4)
    return finish()


def _alpha_curve(axes: Axes, curve: AlphaCurve) -> None:
    grid, criterion, stderr = (np.asarray(values) for values in (curve.grid, curve.curve, curve.stderr))
    axes.fill_between(grid, criterion - 2 * stderr, criterion + 2 * stderr, color=KNOWN, alpha=0.6, linewidth=0)
    axes.plot(grid, criterion, color=INK, lw=1.6, label="criterion on ID data, ± 2 standard errors")
    for colour, (name, values) in zip(PALETTE, curve.auroc.items(), strict=False):
        if name != "all":
            axes.plot(grid, values, color=colour, lw=1, label=f"true: {name}")
    axes.plot(grid, curve.auroc["all"], color=INK, lw=1.2, ls="--", label="true: average")
    best = grid[int(np.argmax(curve.auroc["all"]))]
    axes.axvline(curve.chosen, color=INK, lw=0.9, ls=":")
    axes.set_title(f"{curve.method}: α = {curve.chosen:g} ({best:g} was best)")
    axes.set_xlabel("α")


def _datasets(results: Results) -> list[str]:
    return [ood["name"] for ood in results.suite["ood"]]


@contextmanager
def _grid(
    name: str, count: int, columns: int, height: float
) -> Iterator[tuple[Figure, Sequence[Axes], Callable[[], str]]]:
    """Yield a figure with ``count`` panels, and a function that gives its SVG text once the block is left."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):  # without a salt, ids differ from run to run
        rows = -(-count // columns)
        figure = Figure(figsize=(10, height * rows + 0.5), layout="constrained")
        panels: list[Axes] = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
        for spare in panels[count:]:
            spare.set_visible(False)
        text = io.StringIO()
        yield figure, panels[:count], lambda: _own_ids(text.getvalue(), name)
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)


def _own_ids(svg: str, name: str) -> str:
    """Return the SVG without its XML prologue and with its own ids, so that several can stand in one page."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg[svg.index("<svg") :])
