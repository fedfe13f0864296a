"""Figures of a benchmark run."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ..evaluate.results import ID, AlphaCurve, MethodRun, Results, in_family
from .cost_figure import TALL, cost_figure
from .figure import (
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

BINS = 50  # of a histogram
SHOWN = 8  # methods with a ROC curve
CURVE_POINTS = 300  # of a ROC curve
POINTS = 600  # of a data set in a scatter plot
MANY = 200  # points, above which they are pixels inside the figure instead of vector elements

CRITERION = Key("criterion on ID data, ± 2 standard errors", LineStyle(INK))
TRUTH = Key("true: average", LineStyle(INK, (3.0, 1.5)))
CHOICE = Key("chosen", LineStyle(INK, (1.0, 1.5)))


def all_figures(results: Results) -> dict[str, Drawing]:
    """Return every figure by its name; ``costs-tall`` is ``costs`` again, for narrow screens."""
    drawings = (
        histograms(results),
        roc_curves(results),
        *norm_figures(results),
        alpha_curves(results),
        cost_figure(results),
        cost_figure(results, TALL),
    )
    return {drawing.name: drawing for drawing in drawings}


def histograms(results: Results) -> Drawing:
    """Return one panel per method, best first: its scores of the ID and of each OOD data set."""
    panels = []
    for run in results.ranked:
        scores = [results.scores[f"{run.method}/{name}"] for name in (ID, *_datasets(results))]
        note = f"AUROC {100 * results.cells[run.method, 'all'].auroc:.2f}"
        panels.append(Panel(run.method, partial(_draw_scores, scores), note))
    return Drawing("histograms", panels, dataset_keys(_datasets(results)), size=(3.4, 1.9))


def _datasets(results: Results) -> list[str]:
    return [ood["name"] for ood in results.suite["ood"]]


def _draw_scores(scores: list[Numbers], axes: Axes) -> None:
    span = Span.of(np.concatenate(scores))
    edges = span.edges(BINS)
    draw_histograms(axes, edges, [np.histogram(span.clip(values), edges)[0] / len(values) for values in scores])
    span.apply(axes, "x")


def alpha_curves(results: Results) -> Drawing:
    """Return one panel per AutoFold: its criterion, the true AUROC that it never sees, and its choice."""
    names = _datasets(results)
    keys = [CRITERION, TRUTH, CHOICE, *(Key(f"true: {name}", line_style(number)) for number, name in enumerate(names))]
    panels = [
        Panel(f"{curve.method}: α = {curve.chosen:g}", partial(_draw_alphas, curve, names), regret(curve))
        for curve in results.alpha_curves
    ]
    return Drawing("alpha", panels, keys, size=(3.4, 2.8))


def regret(curve: AlphaCurve) -> str:
    """Return the best exponent, and how much AUROC the chosen one loses to it, in percentage points.

    Example:
        >>> regret(AlphaCurve("autofold", [0.1, 0.2], [0.5, 0.6], [0.0, 0.0], 0.2, {"all": [0.95, 0.93]}))
        'best 0.1, regret 2.00'
    """
    truth = curve.auroc["all"]
    best = int(np.argmax(truth))
    chosen = int(np.argmin(np.abs(np.asarray(curve.grid) - curve.chosen)))
    return f"best {curve.grid[best]:g}, regret {100 * (truth[best] - truth[chosen]):.2f}"


def _draw_alphas(curve: AlphaCurve, names: list[str], axes: Axes) -> None:
    grid, criterion, stderr = (np.asarray(values) for values in (curve.grid, curve.curve, curve.stderr))
    low, high = 100 * (criterion - 2 * stderr), 100 * (criterion + 2 * stderr)
    axes.fill_between(grid, low, high, color=LIGHT_GREY, alpha=0.6, linewidth=0)
    axes.plot(grid, 100 * criterion, color=INK, lw=1.6)
    for number, name in enumerate(names):
        line = line_style(number)
        axes.plot(grid, 100 * np.asarray(curve.auroc[name]), color=line.colour, ls=line.stroke, lw=1)
    axes.plot(grid, 100 * np.asarray(curve.auroc["all"]), color=INK, lw=1.2, ls=TRUTH.style.stroke)
    axes.axvline(curve.chosen, color=INK, lw=0.9, ls=CHOICE.style.stroke)
    axes.set_xlabel("α")
    axes.set_ylabel("AUROC, %")


def roc_curves(results: Results) -> Drawing:
    """Return one panel per OOD data set with the curves of the best methods; false alarms are on a log axis."""
    shown = [run.method for run in results.ranked[:SHOWN]]
    panels = []
    for name in _datasets(results):
        pairs = [(results.scores[f"{method}/{ID}"], results.scores[f"{method}/{name}"]) for method in shown]
        panels.append(Panel(name, partial(_draw_roc, pairs)))
    keys = [Key(method, line_style(number)) for number, method in enumerate(shown)]
    return Drawing("roc", panels, keys, size=(3.4, 3.0))


def _draw_roc(pairs: list[tuple[Numbers, Numbers]], axes: Axes) -> None:
    for number, (id_scores, ood_scores) in enumerate(pairs):
        false_alarms, detections = _thin_out(*roc(id_scores, ood_scores))
        line = line_style(number)
        axes.plot(100 * false_alarms, 100 * detections, color=line.colour, ls=line.stroke, lw=1.3)
    logarithmic(axes, "x")
    axes.set_xlim(100 * min(1 / len(id_scores), 0.5), 100)
    axes.set_ylim(0, 102)
    axes.set_xlabel("ID inputs flagged, %")
    axes.set_ylabel("OOD inputs detected, %")


def roc(id_scores: Numbers, ood_scores: Numbers) -> tuple[Numbers, Numbers]:
    """Return the rates of false and of true alarms, ascending, with every ID score as the threshold.

    Example:
        >>> roc(np.array([1.0, 2.0]), np.array([1.5, 3.0]))
        (array([0.5, 1. ]), array([0.5, 1. ]))
    """
    thresholds = np.unique(id_scores)[::-1]
    false_alarms = 1 - np.searchsorted(np.sort(id_scores), thresholds) / len(id_scores)
    detections = 1 - np.searchsorted(np.sort(ood_scores), thresholds) / len(ood_scores)
    return false_alarms, detections


def _thin_out(false_alarms: Numbers, detections: Numbers) -> tuple[Numbers, Numbers]:
    """Return at most 300 points of a curve, evenly spaced on a logarithmic axis, with both ends."""
    last = len(false_alarms) - 1
    if last < CURVE_POINTS:
        return false_alarms, detections
    steps = np.searchsorted(false_alarms, np.geomspace(false_alarms[0], false_alarms[-1], CURVE_POINTS))
    rows = np.unique(np.concatenate([[0], np.minimum(steps[1:-1], last), [last]]))
    return false_alarms[rows], detections[rows]


def norm_figures(results: Results) -> list[Drawing]:
    """Return score against feature norm of the best of the FOLD family and of the best method; empty if repeated."""
    return [_norm_figure(results, name, run) for name, (run, _) in _leaders(results).items()]


def norm_headings(results: Results) -> dict[str, str]:
    """Return the heading of each of these figures, by its name."""
    return {name: f"{run.method}, {why}" if run else "" for name, (run, why) in _leaders(results).items()}


def _leaders(results: Results) -> dict[str, tuple[MethodRun | None, str]]:
    family, best = next((run for run in results.ranked if in_family(run.name)), None), results.ranked[0]
    if family == best:
        return {"norms-fold": (best, "the best of all and of the FOLD family"), "norms-best": (None, "")}
    return {"norms-fold": (family, "the best of the FOLD family"), "norms-best": (best, "the best of all")}


def _norm_figure(results: Results, figure: str, run: MethodRun | None) -> Drawing:
    """Return one panel per OOD data set, all with the same axis of scores."""
    names = [name for name in _datasets(results) if name in results.norms]
    if run is None or ID not in results.norms or not names:
        return Drawing(figure, [])
    scores = {name: results.scores[f"{run.method}/{name}"] for name in (ID, *names)}
    height = Span.of(np.concatenate(list(scores.values())))
    panels = []
    for name in names:
        points = [(results.norms[which], scores[which]) for which in (ID, name)]
        width = Span.of(np.concatenate([norms for norms, _ in points]))
        colours = [GREY, line_style(_datasets(results).index(name)).colour]
        panels.append(Panel(name, partial(draw_scatter, points, colours, (width, height))))
    return Drawing(figure, panels, dataset_keys(_datasets(results)), size=(3.4, 2.6))


def draw_scatter(
    points: Sequence[tuple[Numbers, Numbers]],
    colours: Sequence[str],
    spans: tuple[Span, Span],
    axes: Axes,
    at_most: int = POINTS,
    score: str = "score",
) -> None:
    """Draw score against feature norm, at most so many points of a data set, those far out on the edge."""
    many = sum(len(norms) for norms, _ in points) > MANY
    for (norms, scores), colour in zip(points, colours, strict=True):
        rows = evenly(len(norms), at_most)
        x, y = (span.clip(values[rows]) for span, values in zip(spans, (norms, scores), strict=True))
        axes.scatter(x, y, s=5, color=colour, alpha=0.5, linewidths=0, rasterized=many)
    for span, which in zip(spans, "xy", strict=True):
        span.apply(axes, which)
    axes.set_xlabel("norm of the features")
    axes.set_ylabel(score)


def evenly(count: int, at_most: int) -> list[int]:
    """Return at most ``at_most`` row numbers below ``count``, in even steps from the first to the last.

    Example:
        >>> evenly(10, 4), evenly(2, 4)
        ([0, 3, 6, 9], [0, 1])
    """
    return [int(row) for row in np.linspace(0, count - 1, min(count, at_most)).round()]
