"""Figures of a benchmark run."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import log10
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import Stroke
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, NullLocator

from ..detectors import METHODS
from ..display.figure import (
    ACCENT,
    GREY,
    INK,
    LIGHT_GREY,
    THRESHOLD,
    Drawing,
    Key,
    LineStyle,
    Numbers,
    Panel,
    Span,
    dataset_keys,
    draw_scores,
    draw_threshold,
    line_style,
    logarithmic,
)
from ..evaluate.results import ID, AlphaCurve, MethodRun, Results, in_family

SHOWN = 8  # methods with a ROC curve
CURVE_POINTS = 300  # points of a ROC curve
POINTS = 600  # points per data set in a scatter plot
MANY = 200  # number of points above which they are rasterised instead of vector elements

FALSE_ALARMS = 0.05  # share of the ID inputs above the threshold of the first figure
BAND, NARROW_BAND = (8.4, 2.2), (3.9, 2.5)  # inches of that figure; the second is for narrow screens

# The figure of AUROC against cost
WIDE, TALL = (8.4, 4.8), (3.9, 6.2)  # inches; the second is for narrow screens
TICKS = (10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 93, 95, 97, 98, 99, 99.5, 99.8, 99.9)
LEAST = 0.05  # percent below 100 at which the axis of AUROC ends
FASTEST = 0.1  # smallest measurable time in microseconds
FONT = 7.5  # points
HALO = [Stroke(linewidth=2.5, foreground="white")]
RINGS, STEPS = 40, 16  # candidate positions of a label: rings around its marker, and directions

CRITERION = Key("criterion on ID data, ± 2 standard errors", LineStyle(INK))
TRUTH = Key("true: average", LineStyle(INK, (3.0, 1.5)))
CHOICE = Key("chosen", LineStyle(INK, (1.0, 1.5)))
FRONT = Key("no other is both better and faster", LineStyle(LIGHT_GREY, (1.0, 1.5)))


def all_figures(results: Results) -> dict[str, Drawing]:
    """Return all figures by name; a name with ``-tall`` is the same figure for narrow screens."""
    drawings = (
        threshold_figure(results),
        threshold_figure(results, NARROW_BAND),
        histograms(results),
        roc_curves(results),
        *norm_figures(results),
        alpha_curves(results),
        cost_figure(results),
        cost_figure(results, TALL),
    )
    return {drawing.name: drawing for drawing in drawings}


def guard_method(results: Results) -> MethodRun:
    """Return the best method that scores features, which a guard can use, or the best of all if there is none."""
    return next(
        (run for run in results.ranked if run.name not in METHODS or METHODS[run.name].sees == "features"),
        results.ranked[0],
    )


def alarm_threshold(id_scores: Numbers) -> float:
    """Return the score that at most 5 % of the ID inputs exceed."""
    return float(np.sort(id_scores)[::-1][int(FALSE_ALARMS * len(id_scores))])


def threshold_figure(results: Results, size: tuple[float, float] = BAND) -> Drawing:
    """Return one panel: the scores of the best method that a guard can use, and the threshold at 5 % false alarms."""
    run = guard_method(results)
    scores = [results.scores[f"{run.method}/{name}"] for name in (ID, *_datasets(results))]
    keys = [*dataset_keys(_datasets(results)), Key("threshold: 5 % of the ID images are above it", THRESHOLD)]
    panel = Panel(f"Scores of {run.method}", partial(draw_threshold, scores, alarm_threshold(scores[0]), run.method))
    return Drawing("threshold" if size == BAND else "threshold-tall", [panel], keys, columns=1, size=size)


def histograms(results: Results) -> Drawing:
    """Return one panel per method, best first: its scores of the ID and of each OOD data set."""
    panels = []
    for run in results.ranked:
        scores = [results.scores[f"{run.method}/{name}"] for name in (ID, *_datasets(results))]
        note = f"AUROC {100 * results.cells[run.method, 'all'].auroc:.2f}"
        panels.append(Panel(run.method, partial(draw_scores, scores), note))
    return Drawing("histograms", panels, dataset_keys(_datasets(results)), size=(3.4, 1.9))


def _datasets(results: Results) -> list[str]:
    return [ood["name"] for ood in results.suite["ood"]]


def alpha_curves(results: Results) -> Drawing:
    """Return one panel per AutoFold: its criterion, the true AUROC, which it does not use, and the chosen exponent."""
    names = _datasets(results)
    keys = [CRITERION, TRUTH, CHOICE, *(Key(f"true: {name}", line_style(number)) for number, name in enumerate(names))]
    panels = [
        Panel(f"{curve.method}: α = {curve.chosen:g}", partial(_draw_alphas, curve, names), regret(curve))
        for curve in results.alpha_curves
    ]
    return Drawing("alpha", panels, keys, size=(3.4, 2.8))


def regret(curve: AlphaCurve) -> str:
    """Describe the best exponent and the AUROC lost by the chosen one, in percentage points."""
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
    """Return one panel per OOD data set with the ROC curves of the best methods; false alarms on a log axis."""
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
    """Return the ascending rates of false and true alarms, with every ID score as a threshold."""
    thresholds = np.unique(id_scores)[::-1]
    false_alarms = 1 - np.searchsorted(np.sort(id_scores), thresholds) / len(id_scores)
    detections = 1 - np.searchsorted(np.sort(ood_scores), thresholds) / len(ood_scores)
    return false_alarms, detections


def _thin_out(false_alarms: Numbers, detections: Numbers) -> tuple[Numbers, Numbers]:
    """Return at most 300 points of a curve, evenly spaced on a logarithmic axis, including both ends."""
    last = len(false_alarms) - 1
    if last < CURVE_POINTS:
        return false_alarms, detections
    steps = np.searchsorted(false_alarms, np.geomspace(false_alarms[0], false_alarms[-1], CURVE_POINTS))
    rows = np.unique(np.concatenate([[0], np.minimum(steps[1:-1], last), [last]]))
    return false_alarms[rows], detections[rows]


def norm_figures(results: Results) -> list[Drawing]:
    """Plot score against feature norm for the best of the FOLD family and the best method; empty if both are one."""
    best, family = results.ranked[0], next((run for run in results.ranked if in_family(run.name)), None)
    if family == best:
        leaders = [("norms-fold", best, "the best of all and of the FOLD family"), ("norms-best", None, "")]
    else:
        leaders = [("norms-fold", family, "the best of the FOLD family"), ("norms-best", best, "the best of all")]
    return [_norm_figure(results, name, run, why) for name, run, why in leaders]


def _norm_figure(results: Results, figure: str, run: MethodRun | None, why: str) -> Drawing:
    """Return one panel per OOD data set, all with the same score axis."""
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
    return Drawing(figure, panels, dataset_keys(_datasets(results)), size=(3.4, 2.6), heading=f"{run.method}, {why}")


def draw_scatter(
    points: Sequence[tuple[Numbers, Numbers]],
    colours: Sequence[str],
    spans: tuple[Span, Span],
    axes: Axes,
    at_most: int = POINTS,
    score: str = "score",
) -> None:
    """Draw score against feature norm, at most ``at_most`` points per data set, with outliers clipped to the edge."""
    many = sum(len(norms) for norms, _ in points) > MANY
    for (norms, scores), colour in zip(points, colours, strict=True):
        rows = np.linspace(0, len(norms) - 1, min(len(norms), at_most)).round().astype(int)
        x, y = (span.clip(values[rows]) for span, values in zip(spans, (norms, scores), strict=True))
        axes.scatter(x, y, s=5, color=colour, alpha=0.5, linewidths=0, rasterized=many)
    for span, which in zip(spans, "xy", strict=True):
        span.apply(axes, which)
    axes.set_xlabel("norm of the features")
    axes.set_ylabel(score)


class CostPoint(NamedTuple):
    """A method: its cost, its average AUROC in percent with its interval, and the radius of its marker."""

    method: str
    cost: float
    auroc: float
    low: float
    high: float
    radius: float
    in_family: bool


def cost_figure(results: Results, size: tuple[float, float] = WIDE) -> Drawing:
    """Return one panel: average AUROC against microseconds per sample for every method."""
    points = []
    for run in results.ranked:
        mean = results.cells[run.method, "all"]
        low, high = (mean.certainty.intervals if mean.certainty else {}).get("auroc", (mean.auroc, mean.auroc))
        cost = max(run.microseconds_per_sample, FASTEST)
        radius = 2 + max(0.0, log10(max(run.fit_seconds, 1e-9)) + 3)  # one point larger per factor of ten
        points.append(CostPoint(run.method, cost, 100 * mean.auroc, 100 * low, 100 * high, radius, in_family(run.name)))
    keys = [Key("FOLD family", LineStyle(ACCENT), filled=True), Key("others", LineStyle(GREY), filled=True), FRONT]
    panel = Panel("AUROC and cost", partial(_draw_costs, points))
    return Drawing("costs" if size == WIDE else "costs-tall", [panel], keys, columns=1, size=size)


def pareto_front(points: Sequence[CostPoint]) -> list[tuple[float, float]]:
    """Return the corners of the Pareto front of cost and AUROC, fastest first.

    The front is a step function: horizontal up to the cost of the next point, then vertical.
    """
    corners: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.auroc)):
        if not corners:
            corners = [(point.cost, point.auroc)]
        elif point.auroc > corners[-1][1]:
            corners += [(point.cost, corners[-1][1]), (point.cost, point.auroc)]
    return corners


def place_labels(points: Numbers, radii: Numbers, sizes: Numbers, bounds: Numbers, obstacles: Numbers) -> Numbers:
    """Return the centre of each label ``(n, 2)``: the nearest free position or, without any, the least covered one.

    ``points`` and ``radii`` describe the markers, ``sizes`` the labels. ``bounds`` is the space for labels and
    ``obstacles`` are boxes to avoid, both as lower left and upper right corner, ``(4,)`` and ``(m, 4)``.
    """
    angles = 2 * np.pi * np.arange(STEPS) / STEPS
    angles = angles[np.argsort(np.abs(np.sin(angles)).round(6), kind="stable")]  # right and left first
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    taken = np.concatenate([np.hstack([points - radii[:, None], points + radii[:, None]]), obstacles])
    middles = []
    for point, radius, size in zip(points, radii, sizes, strict=True):
        away = radius + 1 + 0.5 * size[1] * np.arange(RINGS)[:, None, None]
        places = (point + directions * (away + size / 2)).reshape(-1, 2)
        low, high = places - size / 2, places + size / 2
        sides = np.minimum(high[:, None], taken[:, 2:]) - np.maximum(low[:, None], taken[:, :2])
        covered = np.prod(np.maximum(sides, 0), axis=2).sum(axis=1)
        outside = np.any((low < bounds[:2]) | (high > bounds[2:]), axis=1)
        best = int(np.argmin(covered + np.prod(size) * len(taken) * outside))  # argmin: the nearest of equal ones
        taken = np.vstack([taken, np.hstack([low[best], high[best]])])
        middles.append(places[best])
    return np.stack(middles)


def _draw_costs(points: list[CostPoint], axes: Axes) -> None:
    front = FRONT.style
    axes.plot(*zip(*pareto_front(points), strict=True), color=front.colour, lw=1.2, ls=front.stroke, zorder=1)
    for point in points:
        colour = ACCENT if point.in_family else GREY
        axes.plot([point.cost] * 2, [point.low, point.high], color=colour, lw=1)
        axes.plot(point.cost, point.auroc, "o", ms=2 * point.radius, color=colour, mec="white", mew=0.5, zorder=3)
    costs = [point.cost for point in points]
    logarithmic(axes, "x", max(costs) / min(costs))
    axes.margins(x=0.12)
    axes.set_xlabel("microseconds per sample")
    axes.set_ylabel("average AUROC, %")
    # Good methods are close to 100, so the axis is logarithmic in the distance from it.
    axes.set_yscale("function", functions=(_height, _auroc))
    low, high = _height(min(point.low for point in points)), _height(max(point.high for point in points))
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(_auroc(low - margin), _auroc(high + margin))
    axes.set_yticks([tick for tick in TICKS if axes.get_ylim()[0] <= tick <= axes.get_ylim()[1]])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _write_names(points, axes)


def _height(auroc: Any) -> Any:
    return -np.log(np.maximum(100 - np.asarray(auroc, dtype=np.float64), LEAST))


def _auroc(height: Any) -> Any:
    return 100 - np.exp(-np.asarray(height, dtype=np.float64))


def _write_names(points: list[CostPoint], axes: Axes) -> None:
    """Write each method's name near its marker, with a connecting line if it is far away."""
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # fixes the layout, which positions depend on
    pixels = axes.figure.dpi / 72
    middles = axes.transData.transform([(point.cost, point.auroc) for point in points])
    widths = [float(TextPath((0, 0), point.method, size=FONT).get_extents().width) for point in points]
    sizes = pixels * np.array([(width + 2, 1.25 * FONT) for width in widths])
    lines = [((point.cost, point.low), (point.cost, point.high)) for point in points] + [
        *pairwise(pareto_front(points))
    ]
    ends = axes.transData.transform(np.reshape(lines, (-1, 2))).reshape(-1, 2, 2)
    boxes = np.hstack([ends.min(axis=1) - 1, ends.max(axis=1) + 1])
    radii = pixels * np.array([point.radius for point in points])
    places = place_labels(middles, radii, sizes, np.array(axes.bbox.extents), boxes)
    for point, offset in zip(points, (places - middles) / pixels, strict=True):
        shared: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": FONT}
        line = {"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkA": 0, "shrinkB": point.radius}
        colour = ACCENT if point.in_family else INK
        halo: dict[str, Any] = {"arrowprops": line, "path_effects": HALO, "zorder": 2.5}
        for kind in (halo, {"color": colour, "zorder": 3}):
            text = axes.annotate(point.method, (point.cost, point.auroc), tuple(offset), **shared, **kind)
            text.set_in_layout(False)  # otherwise the axes would shrink to make room for it
