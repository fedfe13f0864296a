"""The table of costs: what every method takes to set up and to score a batch, in time and in memory."""

from collections.abc import Sequence

from ...evaluate.reproduce.claims.words import number
from ...evaluate.reproduce.rows import Cost
from ..cells import head_cell, table
from ..markup import Html, scrolling, tag

MEMORY = "Resident memory that fitting and scoring took beyond what was in use, where the system tells."


def cost_table(costs: Sequence[Cost]) -> Html:
    """Return a line per method, quickest first, folded away.

    Args:
        costs: Of every method, and of ``forward``.
    """
    if not costs:
        return Html()
    heads = [
        head_cell("method", text=True),
        head_cell("set-up", "ms", "To fit it once, with the features of its data at hand."),
        head_cell(
            "inference", f"ms, batch of {costs[0].batch_size}", "The method's own share; below it its quartiles."
        ),
        head_cell("rounds", title="How often scoring was timed; the median counts."),
        head_cell("memory", "MB, peak", MEMORY),
    ]
    lines = [_line(cost) for cost in sorted(costs, key=lambda cost: cost.inference_ms)]
    shown = scrolling(table(heads, lines, class_="sortable results"), "Costs")
    return tag("details", tag("summary", "All costs, with memory"), shown)


def _line(cost: Cost) -> Html:
    spread = tag("small", f"{number(cost.inference_low)} to {number(cost.inference_high)}")
    peak = cost.peak_megabytes
    memory = "" if peak is None else "below 1" if peak < 1 else number(peak)
    return tag(
        "tr",
        tag("th", cost.method, *([tag("small", "runs the network")] if cost.sees != "features" else []), scope="row"),
        tag("td", number(cost.setup_ms) if cost.setup_ms else "", data_sort=cost.setup_ms),
        tag("td", tag("b", number(cost.inference_ms)), spread, data_sort=cost.inference_ms),
        tag("td", cost.rounds, data_sort=cost.rounds),
        tag("td", memory, data_sort="" if peak is None else peak),
    )
