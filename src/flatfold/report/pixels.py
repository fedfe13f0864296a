"""The page of a benchmark over pixels: figures from histograms, and images with the scores of their pixels."""

from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..core.histograms import COARSE
from ..display.figure import Drawing, Key, Numbers, Panel, dataset_keys, draw_histograms, line_style, logarithmic
from ..evaluate.results import ID, Overlay, Results
from .figures import SHOWN, TALL, cost_figure
from .gallery import data_uri

BARS = 64  # of a histogram, from the bins of the results


def pixel_figures(results: Results) -> dict[str, Drawing]:
    """Return all figures by name; a name with ``-tall`` is the same figure for narrow screens."""
    drawings = pixel_curves(results), pixel_ranks(results), cost_figure(results), cost_figure(results, TALL)
    return {drawing.name: drawing for drawing in drawings}


def pixel_curves(results: Results) -> Drawing:
    """Return one panel per OOD data set with the ROC curves of the best methods; false alarms on a log axis."""
    shown = [run.method for run in results.ranked[:SHOWN]]
    panels = []
    for ood in results.suite["ood"]:
        pairs = [results.pixels[f"{method}/{ood['name']}"] for method in shown]
        panels.append(Panel(ood["name"], partial(_draw_curves, pairs)))
    keys = [Key(method, line_style(number)) for number, method in enumerate(shown)]
    return Drawing("roc", panels, keys, size=(3.4, 3.0))


def _draw_curves(pairs: list[Any], axes: Axes) -> None:
    for number, counts in enumerate(pairs):
        false_alarms, detections = (np.cumsum(side[::-1]) / side.sum() for side in counts)
        line, seen = line_style(number), false_alarms > 0
        axes.plot(100 * false_alarms[seen], 100 * detections[seen], color=line.colour, ls=line.stroke, lw=1.3)
    logarithmic(axes, "x")
    axes.set_xlim(0.1, 100)
    axes.set_ylim(0, 102)
    axes.set_xlabel("ID pixels flagged, %")
    axes.set_ylabel("OOD pixels detected, %")


def pixel_ranks(results: Results) -> Drawing:
    """Return one panel per method, best first: the ranks of the scores of ID pixels and of the OOD pixels of a set."""
    names = [ood["name"] for ood in results.suite["ood"]]
    panels = []
    for run in results.ranked:
        sides = [results.pixels[f"{run.method}/{ID}"][0]] + [
            results.pixels[f"{run.method}/{name}"][1] for name in names
        ]
        heights = [side.reshape(BARS, -1).sum(axis=1) / side.sum() for side in sides]
        note = f"AUROC {100 * results.cells[run.method, 'all'].auroc:.2f}"
        panels.append(Panel(run.method, partial(_draw_ranks, heights), note))
    return Drawing("histograms", panels, dataset_keys(names), size=(3.4, 1.9))


def _draw_ranks(heights: list[Numbers], axes: Axes) -> None:
    draw_histograms(axes, list(100 * np.arange(BARS + 1) / BARS), heights)
    tallest = sorted(float(values.max()) for values in heights)[-2 if len(heights) > 1 else -1]
    axes.set_ylim(0, 1.1 * tallest or None)  # a single tall bar is cut off
    axes.set_xlabel("rank of the score, %")


def overlay_shelves(results: Results) -> list[dict[str, Any]]:
    """Return the images of every data set for the page, by method, each embedded once."""
    shelves = []
    for ood in results.suite["ood"]:
        methods: dict[str, list[dict[str, str]]] = {}
        for overlay in results.overlays:
            if overlay.dataset == ood["name"]:
                methods.setdefault(overlay.method, []).append(_card(results, overlay))
        if methods:
            shelves.append({"name": ood["name"], "about": ood["about"], "methods": methods})
    return shelves


def _card(results: Results, overlay: Overlay) -> dict[str, str]:
    key = f"{overlay.dataset}/{overlay.row}"
    return {
        "name": overlay.name.replace("\\", "/").rsplit("/", 1)[-1],
        "image": data_uri(results.thumbnails[key]),
        "scores": data_uri(results.thumbnails[f"{overlay.method}/{key}"]),
        "auroc": f"AUROC {100 * overlay.auroc:.1f}",
        "place": "best" if overlay.best else "worst",
    }


assert COARSE % BARS == 0
