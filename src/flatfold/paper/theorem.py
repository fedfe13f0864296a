"""Figure: the theorem on the expected trace, on random settings."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from ..report.figure import GREY, INK, KNOWN, PALETTE, Drawing, Key, Look, Panel, logarithmic
from .theory import (
    Theorem,
    average_curvature,
    bayes_weight,
    compare,
    expected_trace,
    holds,
    monte_carlo_trace,
)

SETTINGS, CHECKED, DRAWS = 200, 24, 40_000  # points of the first panel and of the third; draws for each of the latter

DEVIATIONS = (0.1, 1.0, 2.0, 5.0)

MEANS = np.linspace(-9, 9, 181)

RATIOS, LENGTHS, DISTANCES = (0.02, 1.98), (0.5, 2.5), (0.7, 1.4)  # ranges of the settings

TRUE, FALSE = (
    Key("condition true", Look(PALETTE[0]), filled=True),
    Key("condition false", Look(PALETTE[1]), filled=True),
)


@dataclass(frozen=True)
class Setting:
    """A random setting: mu, S, R, the stretch c and the length alpha of the classifier."""

    mean: Tensor
    covariance: Tensor
    rotation: Tensor
    c: float
    alpha: float


@dataclass(frozen=True)
class Check:
    """The expected trace of unknown inputs by quadrature and by drawing, with the standard error of the latter."""

    quadrature: float
    drawn: float
    stderr: float
    holds: bool


def theorem_figure() -> Drawing:
    """Return the same three panels in every run: condition and traces, the missing step, a check by drawing."""
    settings = random_settings(SETTINGS)
    results = [compare(s.mean, s.covariance, s.rotation, s.c, s.alpha) for s in settings]
    checks = [check(setting, seed) for seed, setting in enumerate(settings[:CHECKED])]
    averages = {s: [average_curvature(mean, s) for mean in MEANS] for s in DEVIATIONS}
    panels = [
        Panel("Condition and order", partial(_draw_condition, results), f"{SETTINGS} settings"),
        Panel("A step of the proof", partial(_draw_averages, averages), "φ = p (1 − p)"),
        Panel("Quadrature and draws", partial(_draw_checks, checks), "± 2 errors"),
    ]
    return Drawing("theorem", panels, [TRUE, FALSE], size=(3.4, 2.6))


def random_settings(count: int, seed: int = 0) -> list[Setting]:
    """Return settings of 2 to 8 dimensions whose ratio of the condition's sides spreads evenly around 1.

    Args:
        count: How many.
        seed: Of what is random, which is everything.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_setting(generator) for _ in range(count)]


def check(setting: Setting, seed: int) -> Check:
    """Return the expected trace of a setting's unknown inputs, computed twice.

    Args:
        setting: Which.
        seed: Of the draws.
    """
    elsewhere = setting.c * setting.rotation @ setting.mean
    weight = bayes_weight(setting.mean, setting.covariance, setting.alpha)
    drawn = monte_carlo_trace(elsewhere, setting.covariance, weight, DRAWS, seed)
    true = holds(setting.mean, setting.covariance, setting.rotation, setting.c)
    expected = expected_trace(elsewhere, setting.covariance, weight)
    return Check(expected, float(drawn.value), float(drawn.stderr or 0.0), true)


def _setting(generator: torch.Generator) -> Setting:
    d = int(torch.randint(2, 9, (), generator=generator))
    root, turn = torch.randn(2, d, d, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT / d + 0.1 * torch.eye(d)
    mean = torch.randn(d, generator=generator, dtype=torch.float64)
    ratio, alpha, distance = (_between(*ends, generator) for ends in (RATIOS, LENGTHS, DISTANCES))
    mean = mean * distance / float(mean @ torch.linalg.solve(covariance, mean)) ** 0.5
    rotation = torch.linalg.qr(turn).Q
    return Setting(mean, covariance, rotation, ratio / compare(mean, covariance, rotation, 1.0).ratio, alpha)


def _between(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _draw_condition(results: list[Theorem], axes: Axes) -> None:
    axes.set_xlim(0, 2)
    logarithmic(axes, "y", subs=(1.0, 2.0, 5.0))
    for key, true in ((TRUE, True), (FALSE, False)):
        chosen = [result for result in results if result.holds == true]
        x, y = [result.ratio for result in chosen], [result.ood / result.id for result in chosen]
        axes.scatter(x, y, s=11, color=key.look.colour, alpha=0.75, linewidths=0, zorder=3)
    low, high = axes.get_ylim()
    for corner, span in (((0, low), (1, 1 - low)), ((1, 1), (1, high - 1))):
        axes.add_patch(Rectangle(corner, *span, color=KNOWN, alpha=0.35, linewidth=0))
        middle = (corner[1] * (corner[1] + span[1])) ** 0.5
        axes.text(corner[0] + 0.5, middle, "never", ha="center", va="center", color=INK)
    axes.axhline(1, color=GREY, lw=0.9)
    axes.axvline(1, color=GREY, lw=0.9)
    axes.set_xlabel("c |μ′S⁻¹Rμ| / μ′S⁻¹μ")
    axes.set_ylabel("E tr H of the energy,\nunknown / known")


def _draw_averages(averages: dict[float, list[float]], axes: Axes) -> None:
    for number, (deviation, values) in enumerate(averages.items()):
        axes.plot(MEANS, values, color=PALETTE[2 + number], lw=1.4, label=f"s = {deviation:g}")
    axes.legend(loc="upper right", handlelength=1.2, borderpad=0, labelspacing=0.3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mean m of the logit difference")
    axes.set_ylabel("E φ over N(m, s²)")


def _draw_checks(checks: list[Check], axes: Axes) -> None:
    axes.axhline(0, color=GREY, lw=0.9)
    for point in checks:
        colour = (TRUE if point.holds else FALSE).look.colour
        off, bar = 100 * (point.drawn / point.quadrature - 1), 200 * point.stderr / point.quadrature
        axes.errorbar(point.quadrature, off, bar, fmt="o", ms=3, lw=1, color=colour, zorder=3)
    logarithmic(axes, "x")
    axes.set_xlabel("E tr H of the energy, unknown, by quadrature")
    axes.set_ylabel("draws less quadrature, %")
