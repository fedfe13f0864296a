"""Table 5: FOLD and its variants against all other methods, on average over several networks."""

from collections.abc import Sequence
from statistics import fmean

from ...results import Results
from ...summary import family_of
from ..family import in_family
from ..verdict import Check, Material
from .detection import BEST_OF, FPR95, TOLD, lead
from .exhibit import Exhibit, Found
from .words import above_zero, gained, percent


def table_5() -> Exhibit:
    """Return the averages over several networks."""
    return Exhibit(
        "Table 5",
        "Averages of AUROC and FPR95 for several networks",
        "Over several architectures FOLD and its variants have, by a modest margin, the best mean AUROC and FPR95.",
        _networks,
        f"{BEST_OF} The interval of a mean over networks is the mean of theirs, which is long enough whatever images "
        "they share. Networks that differ by their seed alone are one architecture.",
    )


def _networks(materials: Sequence[Material]) -> Found:
    runs = [material.results for material in materials]
    architectures = len({family_of(run) for run in runs})
    if architectures == 1:
        return Found("This run has one architecture, so that nothing can be said about several", [])
    shared = [m.method for m in runs[0].methods if all((m.method, "all") in run.cells for run in runs)]
    checks, told = list[Check](), list[str]()
    for metric, words in TOLD.items():
        ours, other = (_best_mean(runs, metric, family, shared) for family in (True, False))
        if ours is None or other is None:
            return Found("No method of the FOLD family, or no other, is in the runs of all networks", [])
        leads = [lead(run, metric, ours, other) for run in runs]
        a, b = (percent(_mean(runs, metric, method)) for method in (ours, other))
        value, low, high = (fmean(getattr(each, end) for each in leads) for end in ("value", "low", "high"))
        told.append(f"mean {words.removeprefix('average ')} of {ours} {a}, of {other} {b}")
        text = (
            f"{words} over {len(runs)} networks: {ours} {a}, {other} {b}, better by {gained(value, low, high)} points"
        )
        checks.append(Check("all", text, above_zero(low, high)))
    return Found(f"Over {len(runs)} networks {' and '.join(told)}", checks)


def _best_mean(runs: Sequence[Results], metric: str, ours: bool, shared: Sequence[str]) -> str | None:
    """Return the method with the best mean over networks."""
    sign = 1 if metric == FPR95 else -1
    names = [run.method for run in runs[0].methods if run.method in shared and in_family(run.name) == ours]
    return min(names, key=lambda method: sign * _mean(runs, metric, method), default=None)


def _mean(runs: Sequence[Results], metric: str, method: str) -> float:
    return fmean(getattr(run.cells[method, "all"], metric) for run in runs)
