"""Figure: what every method costs, to set up and to score a batch."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from matplotlib.axes import Axes

from ..evaluate.results import ID, in_family
from ..evaluate.study_results import ERRORS, Statistic
from ..report.figure import ACCENT, GREY, INK, KNOWN, Drawing, Key, Look, Numbers, Panel, Span, logarithmic, look
from ..report.figures import MANY, evenly
from .ablations import NORMALISATIONS, Ablations, Cost, Sensitivity
from .claims import Material
from .claims_curvature import REGIMES, figure, regimes
from .claims_detection import effect_size

FORWARD = "forward"

LEAST = 1e-3  # milliseconds: below, a clock says nothing

HEIGHT = 0.21  # inches of a bar

WIDE = 300  # ratio of the ends above which powers of ten are ticks enough

PASS = Key("forward pass of the network", Look(INK, (1.0, 1.5)))


def cost_bars(costs: Sequence[Cost], name: str) -> Drawing:
    """Return two panels on logarithmic axes: set-up and inference time of every method, shortest first.

    Args:
        costs: Of every method, and of ``forward``, which is a line among the inference times.
        name: Of the drawing.
    """
    methods = [cost for cost in costs if cost.method != FORWARD]
    forward = next((cost.inference_ms for cost in costs if cost.method == FORWARD), None)
    if not methods:
        return Drawing(name, [])
    setup = [(cost.method, cost.setup_ms, cost.setup_ms, cost.setup_ms) for cost in methods]
    inference = [(cost.method, cost.inference_ms, cost.inference_low, cost.inference_high) for cost in methods]
    panels = [
        Panel("Set-up", partial(_draw_bars, setup, None), "once"),
        Panel("Inference", partial(_draw_bars, inference, forward), f"a batch of {methods[0].batch_size}"),
    ]
    keys = [Key("FOLD family", Look(ACCENT), filled=True), Key("others", Look(KNOWN), filled=True), PASS]
    return Drawing(name, panels, keys, columns=2, size=(4.2, 0.75 + HEIGHT * len(methods)))


def _draw_bars(bars: list[tuple[str, float, float, float]], line: float | None, axes: Axes) -> None:
    bars = sorted(bars, key=lambda bar: (-bar[1], bar[0]))
    times = [max(time, LEAST) for _, time, _, _ in bars]
    ends = [*times, *([line] if line else [])]
    start, end = min(ends) / 2, max(ends) * 1.3
    for place, ((method, _, low, high), time) in enumerate(zip(bars, times, strict=True)):
        axes.barh(place, time - start, left=start, height=0.72, color=ACCENT if in_family(method) else KNOWN)
        if high > low:
            axes.plot([max(low, start), max(high, start)], [place, place], color=INK, lw=1)
    if line:
        axes.axvline(line, color=INK, lw=1, ls=PASS.look.stroke)
    logarithmic(axes, "x", subs=(1.0,) if end > WIDE * start else (1.0, 2.0, 5.0))
    axes.set_xlim(start, end)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.set_yticks(range(len(bars)), [method for method, *_ in bars])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("milliseconds")


# Figure: AUROC and FPR95 along the exponents, and what AutoFold chose.


DOTS = (1.0, 1.5)

CHOICE = Key("AutoFold's choice", Look(INK, DOTS))

Metric = Literal["auroc", "fpr95"]

LABELS: dict[Metric, str] = {"auroc": "average AUROC, %", "fpr95": "average FPR95, %"}


def alpha_sensitivity(sensitivities: Sequence[Sensitivity], name: str) -> Drawing:
    """Return two panels: averages of AUROC and FPR95 against α, a line per variant.

    AutoFold's choice is a dot, and a dotted line across at what it gives.

    Args:
        sensitivities: Of the variants.
        name: Of the drawing.
    """
    if not sensitivities:
        return Drawing(name, [])
    panels = [
        Panel("AUROC", partial(_draw_sensitivity, sensitivities, "auroc"), "higher is better"),
        Panel("FPR95", partial(_draw_sensitivity, sensitivities, "fpr95"), "lower is better"),
    ]
    keys = [*(Key(each.method, look(number)) for number, each in enumerate(sensitivities)), CHOICE]
    return Drawing(name, panels, keys, columns=2, size=(3.6, 2.7))


def _draw_sensitivity(sensitivities: Sequence[Sensitivity], metric: Metric, axes: Axes) -> None:
    for number, each in enumerate(sensitivities):
        colour = look(number).colour
        curves: Mapping[Metric, Mapping[str, list[float]]] = {"auroc": each.auroc, "fpr95": each.fpr95}
        chosen = {"auroc": each.chosen_auroc, "fpr95": each.chosen_fpr95}[metric]["all"]
        axes.axhline(100 * chosen, color=colour, lw=0.9, ls=CHOICE.look.stroke)
        axes.plot(each.grid, 100 * np.asarray(curves[metric]["all"]), color=colour, lw=1.4)
        axes.plot(each.chosen, 100 * chosen, "o", ms=6, color=colour, mec="white", mew=0.8, zorder=3)
    axes.set_xlabel("α")
    axes.set_ylabel(LABELS[metric])
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.locator_params(axis="y", nbins=5)


# Figure: norm of the features against FOLD's score, under three normalisations.


TITLES = {"none": "no normalisation", "partial": "partial", "full": "full"}

POINTS = 400  # of a data set


def norm_scatter(ablations: Ablations, datasets: list[str], name: str) -> Drawing:
    """Return one panel per normalisation: score against norm, known and unknown, with Cohen's d of all of them.

    Args:
        ablations: With scores and norms.
        datasets: The unknown data sets.
        name: Of the drawing.
    """
    norms = {each: ablations.norms[each] for each in (ID, *datasets)}
    across = Span.of(np.concatenate(list(norms.values())))
    panels = []
    for kind in NORMALISATIONS:
        scores = {each: ablations.scores[f"{kind}/{each}"] for each in (ID, *datasets)}
        known, unknown = scores[ID], np.concatenate([scores[each] for each in datasets])
        d = effect_size(known.astype(np.float64), unknown.astype(np.float64)).d
        note = f"α = {ablations.alphas[kind]:g}, d = {d:.3f}".replace("-", "−")
        panels.append(Panel(TITLES[kind], partial(_draw_scatter, norms, scores, across), note))
    keys = [Key("known", Look(GREY), filled=True)]
    keys += [Key(each, Look(look(number).colour), filled=True) for number, each in enumerate(datasets)]
    return Drawing(name, panels, keys, size=(3.4, 2.6))


def _draw_scatter(norms: dict[str, Numbers], scores: dict[str, Numbers], across: Span, axes: Axes) -> None:
    up = Span.of(np.concatenate(list(scores.values())))
    many = sum(map(len, norms.values())) > MANY
    for number, name in enumerate(norms):
        rows = evenly(len(norms[name]), POINTS)
        x, y = across.clip(norms[name][rows]), up.clip(scores[name][rows])
        colour = GREY if name == ID else look(number - 1).colour
        axes.scatter(x, y, s=5, color=colour, alpha=0.5, linewidths=0, rasterized=many)
    across.apply(axes, "x")
    up.apply(axes, "y")
    axes.set_xlabel("norm of the features")
    axes.set_ylabel("FOLD's score")


# Figure: the trace of the Hessian over parameters, from known over near to far data.


WIDE_SHIFT = 100  # ratio of the ends above which powers of ten are ticks enough


def trace_by_regime(materials: Sequence[Material], name: str) -> Drawing:
    """Return one panel: a line per network through the traces of its regimes, with two standard errors.

    Args:
        materials: Of every network.
        name: Of the drawing.
    """
    lines = [
        {REGIMES[at]: figure(each.study, at, "parameter", "trace") for at in regimes(each.study)} for each in materials
    ]
    named = [Key(each.network, look(number)) for number, each in enumerate(materials)] if len(materials) > 1 else []
    panel = Panel("Trace over parameters", partial(_draw_shift, lines), f"± {ERRORS} errors")
    return Drawing(name, [panel], named, columns=1, size=(4.2, 2.8))


def _draw_shift(lines: list[dict[str, Statistic]], axes: Axes) -> None:
    for number, line in enumerate(lines):
        style: Look = look(number)
        values = [told.value for told in line.values()]
        bars = [ERRORS * (told.stderr or 0.0) for told in line.values()]
        axes.plot(list(line), values, "o", color=style.colour, ls=style.stroke, lw=1.3, ms=5)
        axes.errorbar(list(line), values, bars, fmt="none", ecolor=style.colour, lw=1.2, capsize=3)
    lowest = [told.value - ERRORS * (told.stderr or 0.0) for line in lines for told in line.values()]
    highest = [told.value for line in lines for told in line.values()]
    if min(lowest) > 0:
        logarithmic(axes, "y", subs=(1.0,) if max(highest) > WIDE_SHIFT * min(lowest) else (1.0, 2.0, 5.0))
    axes.margins(x=0.12, y=0.1)
    axes.set_ylabel("trace of the mean Hessian")
