"""Figure 1: curvature grows with the shift of the data, and FOLD gives much for little."""

from statistics import fmean

from ...results import Results
from ..family import in_family
from ..rows import Cost
from ..verdict import Check, Material
from .costs import ends
from .curvature import path, steps
from .exhibit import Exhibit, Found, for_each
from .words import at_most, number, percent


def figure_1() -> Exhibit:
    """Return the trace by regime, and AUROC against cost."""
    return Exhibit(
        "Figure 1",
        "Sharpness under distribution shift, and AUROC against cost",
        "(a) The trace of the Hessian over parameters grows from known over near to far data; (b) FOLD and AutoFold "
        "combine high AUROC with low cost.",
        for_each(_look),
        "(b) is read as: every variant lies above the mean over all methods of the run in AUROC, by its 95 % interval, "
        "and below it in inference time, by its quartiles.",
    )


def _look(material: Material) -> Found:
    results, costs = material.results, {cost.method: cost for cost in material.ablations.costs}
    timed = [run for run in results.methods if run.method in costs]
    ours = [run.method for run in timed if in_family(run.name)]
    checks, told = steps(material, "parameter", "trace"), path(material.study, "parameter", "trace")
    if not ours:
        return Found(f"{told}, and no variant of FOLD was timed", checks)
    level = fmean(results.cells[run.method, "all"].auroc for run in timed)
    pace = fmean(costs[run.method].inference_ms for run in timed)
    found = [_corner(material.network, results, costs[method], level, pace) for method in ours]
    good = sum(check.holds is True for check in found)
    has = "has" if good == 1 else "have"
    return Found(f"{told}, and {good} of {len(ours)} variants of FOLD {has} high AUROC at low cost", checks + found)


def _corner(network: str, results: Results, cost: Cost, level: float, pace: float) -> Check:
    """Return whether a variant is better and cheaper than the mean of all methods."""
    cell = results.cells[cost.method, "all"]
    low, high = (cell.certainty.intervals if cell.certainty else {}).get("auroc", (0.0, 1.0))
    sides = at_most(-high, -low, -level), at_most(*ends(cost), pace)
    holds = False if False in sides else None if None in sides else True
    text = f"AUROC {percent(cell.auroc)} (mean {percent(level)}), {number(cost.inference_ms)} ms (mean {number(pace)})"
    return Check(network, f"{cost.method}: {text}", holds)
