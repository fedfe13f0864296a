"""Figure: what every method costs, to set up and to score a batch."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from ...evaluate.reproduce.family import in_family
from ...evaluate.reproduce.rows import Cost
from ..drawing import Drawing, Key, Panel
from ..style import ACCENT, INK, KNOWN, Look, logarithmic

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
        Panel("Set-up", partial(_draw, setup, None), "once"),
        Panel("Inference", partial(_draw, inference, forward), f"a batch of {methods[0].batch_size}"),
    ]
    keys = [Key("FOLD family", Look(ACCENT), filled=True), Key("others", Look(KNOWN), filled=True), PASS]
    return Drawing(name, panels, keys, columns=2, size=(4.2, 0.75 + HEIGHT * len(methods)))


def _draw(bars: list[tuple[str, float, float, float]], line: float | None, axes: Axes) -> None:
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
