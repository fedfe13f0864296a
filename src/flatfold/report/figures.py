"""All figures of a run."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ..evaluate.results import ID, AlphaCurve, MethodRun, Results, in_family
from .cost_figure import TALL, cost_figure
from .figure import GREY, INK, KNOWN, Drawing, Key, Look, Numbers, Panel, Span, logarithmic, look
from .html import Html, joined, tag

# Figure: how the scores of each method separate known from unknown inputs.


BINS = 50


def histograms(results: Results) -> Drawing:
    """Return one panel per method, best first: its scores of known inputs and of each unknown data set."""
    panels = []
    for run in results.ranked:
        scores = {name: results.scores[f"{run.method}/{name}"] for name in (ID, *datasets(results))}
        note = f"AUROC {100 * results.cells[run.method, 'all'].auroc:.2f}"
        panels.append(Panel(run.method, partial(_draw_histogram, scores), note))
    return Drawing("histograms", panels, keys(results), size=(3.4, 1.9))


def datasets(results: Results) -> list[str]:
    """Return the names of the unknown data sets."""
    return [ood["name"] for ood in results.suite["ood"]]


def keys(results: Results) -> list[Key]:
    """Return the legend of known inputs and of each unknown data set; its look is the same in every figure."""
    known = Key("known", Look(KNOWN), filled=True)
    return [known, *(Key(name, look(number)) for number, name in enumerate(datasets(results)))]


def _draw_histogram(scores: dict[str, Numbers], axes: Axes) -> None:
    span = Span.of(np.concatenate(list(scores.values())))
    edges = span.edges(BINS)
    for number, (name, values) in enumerate(scores.items()):
        known = name == ID
        line = Look(KNOWN) if known else look(number - 1)
        axes.hist(
            span.clip(values),
            bins=edges,
            weights=np.full(len(values), 1 / len(values)),
            histtype="stepfilled" if known else "step",
            color=line.colour,
            linestyle=line.stroke,
            linewidth=1.2,
        )
    span.apply(axes, "x")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


# Figure: which exponent AutoFold chose, and what it gave away.


CRITERION = Key("criterion on ID data, ± 2 standard errors", Look(INK))

TRUTH = Key("true: average", Look(INK, (3.0, 1.5)))

CHOICE = Key("chosen", Look(INK, (1.0, 1.5)))


def alpha_curves(results: Results) -> Drawing:
    """Return one panel per AutoFold: its criterion, the true AUROC it never saw, the exponent it took."""
    names = datasets(results)
    keys = [CRITERION, TRUTH, CHOICE, *(Key(f"true: {name}", look(number)) for number, name in enumerate(names))]
    panels = [
        Panel(f"{curve.method}: α = {curve.chosen:g}", partial(_draw_alphas, curve, names), regret(curve))
        for curve in results.alpha_curves
    ]
    return Drawing("alpha", panels, keys, size=(3.4, 2.8))


def regret(curve: AlphaCurve) -> str:
    """Return which exponent was best, and how much AUROC the chosen one gave away, in percentage points.

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
    axes.fill_between(grid, low, high, color=KNOWN, alpha=0.6, linewidth=0)
    axes.plot(grid, 100 * criterion, color=INK, lw=1.6)
    for number, name in enumerate(names):
        line = look(number)
        axes.plot(grid, 100 * np.asarray(curve.auroc[name]), color=line.colour, ls=line.stroke, lw=1)
    axes.plot(grid, 100 * np.asarray(curve.auroc["all"]), color=INK, lw=1.2, ls=TRUTH.look.stroke)
    axes.axvline(curve.chosen, color=INK, lw=0.9, ls=CHOICE.look.stroke)
    axes.set_xlabel("α")
    axes.set_ylabel("AUROC, %")


# Figure: what each threshold finds, and what it flags by mistake.


SHOWN = 8  # methods: more lines could not be told apart

CURVE_POINTS = 300  # of a curve: more could not be seen


def roc_curves(results: Results) -> Drawing:
    """Return one panel per unknown data set with the best methods' curves; false alarms are on a logarithmic axis."""
    shown = [run.method for run in results.ranked[:SHOWN]]
    panels = []
    for name in datasets(results):
        pairs = [(results.scores[f"{method}/{ID}"], results.scores[f"{method}/{name}"]) for method in shown]
        panels.append(Panel(name, partial(_draw_curves, pairs)))
    keys = [Key(method, look(number)) for number, method in enumerate(shown)]
    return Drawing("roc", panels, keys, size=(3.4, 3.0))


def _draw_curves(pairs: list[tuple[Numbers, Numbers]], axes: Axes) -> None:
    for number, (known, unknown) in enumerate(pairs):
        false_alarms, found = thinned(*roc(known, unknown))
        line = look(number)
        axes.plot(100 * false_alarms, 100 * found, color=line.colour, ls=line.stroke, lw=1.3)
    logarithmic(axes, "x")
    axes.set_xlim(100 * min(1 / len(known), 0.5), 100)
    axes.set_ylim(0, 102)
    axes.set_xlabel("known inputs flagged, %")
    axes.set_ylabel("unknown inputs found, %")


def roc(known: Numbers, unknown: Numbers) -> tuple[Numbers, Numbers]:
    """Return false and true alarm rates, ascending, at each known input's score as the threshold.

    Args:
        known: Scores of known inputs, ``(n,)``.
        unknown: Scores of unknown inputs, ``(m,)``.

    Example:
        >>> roc(np.array([1.0, 2.0]), np.array([1.5, 3.0]))
        (array([0.5, 1. ]), array([0.5, 1. ]))
    """
    thresholds = np.unique(known)[::-1]
    false_alarms = 1 - np.searchsorted(np.sort(known), thresholds) / len(known)
    found = 1 - np.searchsorted(np.sort(unknown), thresholds) / len(unknown)
    return false_alarms, found


def thinned(false_alarms: Numbers, found: Numbers) -> tuple[Numbers, Numbers]:
    """Return at most 300 points of a curve, evenly spaced on a logarithmic axis, both ends among them.

    Example:
        >>> rates = np.linspace(0.001, 1, 1000)
        >>> few, found = thinned(rates, rates)
        >>> len(few) <= 300, bool((few == found).all()), round(float(few[0]), 3), float(few[-1])
        (True, True, 0.001, 1.0)
    """
    if len(false_alarms) <= CURVE_POINTS:
        return false_alarms, found
    steps = np.searchsorted(false_alarms, np.geomspace(false_alarms[0], false_alarms[-1], CURVE_POINTS))
    kept = np.unique(np.concatenate([[0], np.minimum(steps[1:-1], len(false_alarms) - 1), [len(false_alarms) - 1]]))
    return false_alarms[kept], found[kept]


# Figure: does a score see more than the length of a feature vector?


POINTS = 600  # of a data set

MANY = 200  # points, above which they are pixels inside the figure and not thousands of elements


def norm_figures(results: Results) -> list[Drawing]:
    """Return two figures, of the best method of the FOLD family and of the best of all; one is empty if they agree."""
    return [_figure(results, name, run) for name, (run, _) in _leaders(results).items()]


def headings(results: Results) -> dict[str, str]:
    """Return what stands above each of the figures, by its name."""
    return {name: f"{run.method}, {why}" if run else "" for name, (run, why) in _leaders(results).items()}


def _leaders(results: Results) -> dict[str, tuple[MethodRun | None, str]]:
    family, best = next((run for run in results.ranked if in_family(run.name)), None), results.ranked[0]
    if family == best:
        return {"norms-fold": (best, "the best of all and of the FOLD family"), "norms-best": (None, "")}
    return {"norms-fold": (family, "the best of the FOLD family"), "norms-best": (best, "the best of all")}


def _figure(results: Results, figure: str, run: MethodRun | None) -> Drawing:
    """Return one panel per unknown data set: score, on the same axis in all of them, against norm."""
    names = [name for name in datasets(results) if name in results.norms]
    if run is None or ID not in results.norms or not names:
        return Drawing(figure, [])
    scores = {name: results.scores[f"{run.method}/{name}"] for name in (ID, *names)}
    height = Span.of(np.concatenate(list(scores.values())))
    panels = []
    for name in names:
        known, unknown = ((results.norms[which], scores[which]) for which in (ID, name))
        spans = [Span.of(np.concatenate([known[0], unknown[0]])), height]
        colour = look(datasets(results).index(name)).colour
        panels.append(Panel(name, partial(_draw_norms, known, unknown, spans, colour)))
    return Drawing(figure, panels, keys(results), size=(3.4, 2.6))


def evenly(count: int, at_most: int = POINTS) -> list[int]:
    """Return at most ``at_most`` row numbers below ``count``, in even steps from the first to the last.

    Example:
        >>> evenly(10, 4), evenly(2, 4)
        ([0, 3, 6, 9], [0, 1])
    """
    return [int(row) for row in np.linspace(0, count - 1, min(count, at_most)).round()]


def _draw_norms(
    known: tuple[Numbers, Numbers], unknown: tuple[Numbers, Numbers], spans: list[Span], colour: str, axes: Axes
) -> None:
    many = len(known[0]) + len(unknown[0]) > MANY
    for (norms, scores), ink in ((known, GREY), (unknown, colour)):
        rows = evenly(len(norms))
        x, y = (span.clip(values[rows]) for span, values in zip(spans, (norms, scores), strict=True))
        axes.scatter(x, y, s=5, color=ink, alpha=0.5, linewidths=0, rasterized=many)
    for span, which in zip(spans, "xy", strict=True):
        span.apply(axes, which)
    axes.set_xlabel("norm of the features")
    axes.set_ylabel("score")


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


# A figure as a part of the page: its panels stand side by side and wrap on a narrow screen.


def side_by_side(drawing: Drawing, openly: int | None = None, class_: str = "panels") -> Html:
    """Return the legend and the panels of a figure.

    Args:
        drawing: The figure.
        openly: How many panels are shown at once; the others come at a click. None shows all.
        class_: Of the box around the panels.
    """
    figures = []
    for panel, svg in zip(drawing.panels, drawing.inline(), strict=True):
        note = tag("span", panel.note) if panel.note else ""
        figures.append(tag("figure", tag("figcaption", panel.title, note), Html(svg)))
    shown = figures if openly is None else figures[:openly]
    rest = figures[len(shown) :]
    parts = [_legend(drawing), tag("div", *shown, class_=class_)]
    if rest:
        parts.append(tag("details", tag("summary", f"{len(rest)} more"), tag("div", *rest, class_=class_)))
    return joined(parts)


def _legend(drawing: Drawing) -> Html:
    return tag("ul", *(tag("li", _swatch(key), key.label) for key in drawing.keys), class_="keys")


def _swatch(key: Key) -> Html:
    colour, dashes = key.look
    if key.filled:
        mark = tag("rect", width=26, height=11, rx=2, fill=colour)
    else:
        pattern = " ".join(f"{1.6 * dash:g}" for dash in dashes) or None  # as wide as a line of the figures
        mark = tag("path", d="M0 6H26", stroke=colour, stroke_width=2, stroke_dasharray=pattern)
    return tag("svg", mark, viewBox="0 0 26 11", aria_hidden="true")
