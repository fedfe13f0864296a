"""Figures of a reproduction that the reports of benchmarks and studies do not have."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..curvature.estimate import Estimate
from ..display.figure import (
    ACCENT,
    GREY,
    INK,
    LIGHT_GREY,
    PALETTE,
    Drawing,
    Key,
    LineStyle,
    Panel,
    Span,
    line_style,
    logarithmic,
)
from ..evaluate.results import ID, Results, in_family
from ..evaluate.study_results import ERRORS, SPACES, Statistic, Study
from ..report.curvature_figures import spectral_densities, trace_densities
from ..report.figures import WIDE, cost_figure, draw_scatter
from . import theory
from .ablations import FORWARD, NORMALISATIONS, Ablations, Cost, Sensitivity
from .measurements import REGIMES, SPACES_SHOWN, NetworkRun, list_regimes, statistic

PAPERS = ("tin", "svhn", "ninco", "inaturalist")  # the near and far data sets of the paper's Figure 2
LEAST = 1e-3  # milliseconds: the resolution of the clock
BAR = 0.21  # inches, height of a bar
POINTS = 400  # of a data set in the scatter plot
CHECKED, DRAWS = 24, 40_000  # settings of the theorem that are checked by Monte Carlo, and draws for each
DEVIATIONS, MEANS = (0.1, 1.0, 2.0, 5.0), np.linspace(-9, 9, 181)

DOTS = (1.0, 1.5)
FORWARD_PASS = Key("forward pass of the network", LineStyle(INK, DOTS))
CHOICE = Key("AutoFold's choice", LineStyle(INK, DOTS))
TRUE = Key("condition true", LineStyle(PALETTE[0]), filled=True)
FALSE = Key("condition false", LineStyle(PALETTE[1]), filled=True)


def cost_against_auroc(run: NetworkRun, name: str, size: tuple[float, float] = WIDE) -> Drawing:
    """Return AUROC against the time of network and method, in place of the times of the benchmark."""
    costs = {cost.method: cost for cost in run.ablations.costs}
    methods = [
        replace(
            method,
            fit_seconds=costs[method.method].setup_ms / 1000,
            microseconds_per_sample=1000 * costs[method.method].total_ms / costs[method.method].batch_size,
        )
        for method in run.results.methods
        if method.method in costs
    ]
    results: Results = replace(run.results, methods=methods or run.results.methods)
    return replace(cost_figure(results, size), name=name)


def typical_traces(study: Study) -> Drawing:
    """Return the traces over parameters of ID data, a near-OOD and a far-OOD data set, if possible the paper's."""
    drawing = trace_densities(_one_of_each_group(study))
    return replace(drawing, panels=drawing.panels[:1])


def typical_spectra(study: Study) -> Drawing:
    """Return the spectra of the same data sets, over parameters and features."""
    drawings = {space: spectral_densities(_one_of_each_group(study), space) for space in SPACES_SHOWN}
    panels = [
        replace(panel, title=f"{panel.title}, over {SPACES[space]}")
        for space, drawing in drawings.items()
        for panel in drawing.panels
    ]
    return replace(drawings["feature"], panels=panels)


def _one_of_each_group(study: Study) -> Study:
    """Return the study with one data set of each group: that of the paper if the suite has it, else the first."""
    shown = []
    for group in study.groups:
        members = [ood for ood in study.suite["ood"] if ood["group"] == group]
        shown.append(next((ood for ood in members if ood["name"] in PAPERS), members[0]))
    return replace(study, suite={**study.suite, "ood": shown})


def trace_by_regime(runs: Sequence[NetworkRun], name: str) -> Drawing:
    """Return one panel: the traces of each network by regime, with two standard errors."""
    lines = [
        {REGIMES[at]: statistic(run.study, at, "parameter", "trace") for at in list_regimes(run.study)} for run in runs
    ]
    keys = [Key(run.network, line_style(place)) for place, run in enumerate(runs)] if len(runs) > 1 else []
    panel = Panel("Trace over parameters", partial(_draw_regimes, lines), f"± {ERRORS} errors")
    return Drawing(name, [panel], keys, columns=1, size=(4.2, 2.8))


def _draw_regimes(lines: list[dict[str, Statistic]], axes: Axes) -> None:
    for place, line in enumerate(lines):
        style: LineStyle = line_style(place)
        values = [trace.value for trace in line.values()]
        bars = [ERRORS * (trace.stderr or 0.0) for trace in line.values()]
        axes.plot(list(line), values, "o", color=style.colour, ls=style.stroke, lw=1.3, ms=5)
        axes.errorbar(list(line), values, bars, fmt="none", ecolor=style.colour, lw=1.2, capsize=3)
    traces = [trace for line in lines for trace in line.values()]
    low = min(trace.value - ERRORS * (trace.stderr or 0.0) for trace in traces)
    if low > 0:
        logarithmic(axes, "y", max(trace.value for trace in traces) / low)
    axes.margins(x=0.12, y=0.1)
    axes.set_ylabel("trace of the mean Hessian")


def cost_bars(costs: Sequence[Cost], name: str) -> Drawing:
    """Return set-up and inference time of every method, with the network and alone, shortest first."""
    methods = [cost for cost in costs if cost.method != FORWARD]
    forward = next((cost.inference_ms for cost in costs if cost.method == FORWARD), None)
    if not methods:
        return Drawing(name, [])
    setup = [(cost.method, cost.setup_ms, cost.setup_ms, cost.setup_ms) for cost in methods]
    inference = [(cost.method, cost.total_ms, cost.total_low, cost.total_high) for cost in methods]
    alone = [(cost.method, cost.inference_ms, cost.inference_low, cost.inference_high) for cost in methods]
    size = f"a batch of {methods[0].batch_size}"
    panels = [
        Panel("Set-up", partial(_draw_bars, setup, None), "once"),
        Panel("Inference, network and method", partial(_draw_bars, inference, forward), size),
        Panel("The method alone", partial(_draw_bars, alone, forward), size),
    ]
    keys = [
        Key("FOLD family", LineStyle(ACCENT), filled=True),
        Key("others", LineStyle(LIGHT_GREY), filled=True),
        FORWARD_PASS,
    ]
    return Drawing(name, panels, keys, columns=3, size=(4.2, 0.75 + BAR * len(methods)))


def _draw_bars(bars: list[tuple[str, float, float, float]], line: float | None, axes: Axes) -> None:
    bars = sorted(bars, key=lambda bar: (-bar[1], bar[0]))
    times = [max(time, LEAST) for _, time, _, _ in bars]
    ends = [*times, *([line] if line else [])]
    start, end = min(ends) / 2, max(ends) * 1.3
    for place, ((method, _, low, high), time) in enumerate(zip(bars, times, strict=True)):
        axes.barh(place, time - start, left=start, height=0.72, color=ACCENT if in_family(method) else LIGHT_GREY)
        if high > low:
            axes.plot([max(low, start), max(high, start)], [place, place], color=INK, lw=1)
    if line:
        axes.axvline(line, color=INK, lw=1, ls=FORWARD_PASS.style.stroke)
    logarithmic(axes, "x", max(ends) / min(ends))
    axes.set_xlim(start, end)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.set_yticks(range(len(bars)), [method for method, *_ in bars])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("milliseconds")


def alpha_sensitivity(sensitivities: Sequence[Sensitivity], name: str = "alpha-sensitivity") -> Drawing:
    """Return averages of AUROC and FPR95 against α, a line per variant, and AutoFold's choice as a dot."""
    if not sensitivities:
        return Drawing(name, [])
    panels = [
        Panel("AUROC", partial(_draw_sensitivity, sensitivities, "auroc"), "higher is better"),
        Panel("FPR95", partial(_draw_sensitivity, sensitivities, "fpr95"), "lower is better"),
    ]
    keys = [*(Key(curve.method, line_style(place)) for place, curve in enumerate(sensitivities)), CHOICE]
    return Drawing(name, panels, keys, columns=2, size=(3.6, 2.7))


def _draw_sensitivity(sensitivities: Sequence[Sensitivity], metric: Literal["auroc", "fpr95"], axes: Axes) -> None:
    for place, curve in enumerate(sensitivities):
        colour = line_style(place).colour
        values = {"auroc": curve.auroc, "fpr95": curve.fpr95}[metric]["all"]
        chosen = 100 * {"auroc": curve.chosen_auroc, "fpr95": curve.chosen_fpr95}[metric]["all"]
        axes.axhline(chosen, color=colour, lw=0.9, ls=CHOICE.style.stroke)
        axes.plot(curve.grid, 100 * np.asarray(values), color=colour, lw=1.4)
        axes.plot(curve.chosen, chosen, "o", ms=6, color=colour, mec="white", mew=0.8, zorder=3)
    axes.set_xlabel("α")
    axes.set_ylabel(f"average {metric.upper()}, %")
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.locator_params(axis="y", nbins=5)


def norm_scatter(ablations: Ablations, datasets: list[str], name: str) -> Drawing:
    """Return FOLD's score against the norm of the features, a panel per normalisation, with Cohen's d."""
    names = (ID, *datasets)
    across = Span.of(np.concatenate([ablations.norms[dataset] for dataset in names]))
    colours = [GREY, *(line_style(place).colour for place in range(len(datasets)))]
    d = {row.normalisation: row.cohens_d for row in ablations.separations if row.dataset == "all"}
    panels = []
    for kind in NORMALISATIONS:
        points = [(ablations.norms[dataset], ablations.scores[f"{kind}/{dataset}"]) for dataset in names]
        up = Span.of(np.concatenate([scores for _, scores in points]))
        draw = partial(draw_scatter, points, colours, (across, up), at_most=POINTS, score="FOLD's score")
        note = f"α = {ablations.alphas[kind]:g}, d = {d[kind]:.3f}".replace("-", "−")
        panels.append(Panel("no normalisation" if kind == "none" else kind, draw, note))
    keys = [Key(name, LineStyle(colour), filled=True) for name, colour in zip(("ID", *datasets), colours, strict=True)]
    return Drawing(name, panels, keys, size=(3.4, 2.6))


def theorem_figure(name: str) -> Drawing:
    """Return the panels on the theorem, the same in every run: condition, missing step of the proof, Monte Carlo."""
    theorems = [theorem for _, theorem in theory.random_theorems()]
    averages = {s: [theory.average_curvature(mean, s) for mean in MEANS] for s in DEVIATIONS}
    panels = [
        Panel("Condition and order", partial(_draw_condition, theorems), f"{theory.SETTINGS} settings"),
        Panel("A step of the proof", partial(_draw_averages, averages), "φ = p (1 − p)"),
        Panel("Quadrature and draws", partial(_draw_points, _compare_draws()), "± 2 errors"),
    ]
    return Drawing(name, panels, [TRUE, FALSE], size=(3.4, 2.6))


@cache
def _compare_draws() -> list[tuple[float, Estimate, bool]]:
    """Return expected traces of OOD inputs by quadrature and by Monte Carlo, and whether the condition is true."""
    points = []
    for seed, (setting, theorem) in enumerate(theory.random_theorems()[:CHECKED]):
        weight = theory.bayes_weight(setting.mean, setting.covariance, setting.alpha)
        mixture = setting.c * setting.rotation @ setting.mean, setting.covariance, weight
        drawn = theory.monte_carlo_trace(*mixture, DRAWS, seed)
        points.append((theory.expected_trace(*mixture), drawn, theorem.holds))
    return points


def _draw_condition(theorems: list[theory.Theorem], axes: Axes) -> None:
    axes.set_xlim(0, 2)
    logarithmic(axes, "y", ratio=1)
    for key, true in ((TRUE, True), (FALSE, False)):
        shown = [theorem for theorem in theorems if theorem.holds == true]
        x, y = [theorem.ratio for theorem in shown], [theorem.ood / theorem.id for theorem in shown]
        axes.scatter(x, y, s=11, color=key.style.colour, alpha=0.75, linewidths=0, zorder=3)
    low, high = axes.get_ylim()
    for corner, span in (((0, low), (1, 1 - low)), ((1, 1), (1, high - 1))):
        axes.add_patch(Rectangle(corner, *span, color=LIGHT_GREY, alpha=0.35, linewidth=0))
        middle = (corner[1] * (corner[1] + span[1])) ** 0.5
        axes.text(corner[0] + 0.5, middle, "never", ha="center", va="center", color=INK)
    axes.axhline(1, color=GREY, lw=0.9)
    axes.axvline(1, color=GREY, lw=0.9)
    axes.set_xlabel("c |μ′S⁻¹Rμ| / μ′S⁻¹μ")
    axes.set_ylabel("E tr H of the energy,\nOOD / ID")


def _draw_averages(averages: dict[float, list[float]], axes: Axes) -> None:
    for place, (deviation, values) in enumerate(averages.items()):
        axes.plot(MEANS, values, color=PALETTE[2 + place], lw=1.4, label=f"s = {deviation:g}")
    axes.legend(loc="upper right", handlelength=1.2, borderpad=0, labelspacing=0.3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mean m of the logit difference")
    axes.set_ylabel("E φ over N(m, s²)")


def _draw_points(points: list[tuple[float, Estimate, bool]], axes: Axes) -> None:
    axes.axhline(0, color=GREY, lw=0.9)
    for quadrature, drawn, holds in points:
        colour = (TRUE if holds else FALSE).style.colour
        off, bar = 100 * (float(drawn.value) / quadrature - 1), 200 * float(drawn.stderr or 0.0) / quadrature
        axes.errorbar(quadrature, off, bar, fmt="o", ms=3, lw=1, color=colour, zorder=3)
    logarithmic(axes, "x")
    axes.set_xlabel("E tr H of the energy, OOD, by quadrature")
    axes.set_ylabel("draws less quadrature, %")
