"""Curvature, normalisation and logits over the networks of a family, and beside the paper's Tables 1, 3, 4, 6 and 7.

Tables 2, 5 and 8 to 11 need a benchmark alone: those are compared in ``tables``.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from ..core.intervals import interval
from ..evaluate.results import ID
from ..evaluate.study_results import ERRORS, SPACES, Name, Space
from ..evaluate.summary import family_of, mean_interval
from .claims import BOTH, SHOWN, NetworkRun, list_regimes, statistic, trace_aurocs
from .tables import (
    AVERAGE,
    BENCHMARKS,
    BETWEEN,
    CHECKPOINTS,
    ROUNDING,
    TABLES,
    Line,
    Number,
    contradictions,
    find_data_set,
    read_table,
    table_of,
)

REGIMES = {"ID": ID, "Near-OOD": "near", "Far-OOD": "far"}  # as the paper calls them
NORMALISATIONS = {"alpha = 0": "none", "0 < alpha < 1": "partial", "alpha = 1": "full"}
PER_DATA_SET = {"parameter": "parameter", "feature (x1e-3)": "feature"}  # spaces of Table 7
MILLI = 1000.0  # the paper's curvature over features is in thousandths
HIDDEN = "the paper states neither the loss nor the number of images"


class Measured(NamedTuple):
    """A figure of one network, with half of its 95 % interval, and its name in a line."""

    value: float
    half: float | None
    label: str
    column: str


class SeedRow(NamedTuple):
    """A line of a table over the networks of a family: mean and deviation of both statistics in some spaces."""

    family: str
    n: int
    data: str
    cells: list[tuple[float, float]]


def group_networks(runs: Sequence[NetworkRun]) -> dict[str, list[NetworkRun]]:
    """Return the networks by family: those of a family differ by their seed."""
    groups: dict[str, list[NetworkRun]] = {}
    for run in runs:
        groups.setdefault(family_of(run.results), []).append(run)
    return groups


def average_seeds(runs: Sequence[NetworkRun], spaces: Sequence[Space], by_data_set: bool) -> list[SeedRow]:
    """Return means over the networks of each family of several, with the deviation (divided by n), as in the paper."""
    rows = []
    for family, group in group_networks(runs).items():
        first = group[0].study
        places = first.datasets if by_data_set else list_regimes(first)
        if len(group) < 2 or any(run.study.datasets != first.datasets for run in group):
            continue
        for at in places:
            values = [
                [statistic(run.study, at, space, name).value for run in group] for space in spaces for name in BOTH
            ]
            rows.append(SeedRow(family, len(group), at, [(fmean(each), pstdev(each)) for each in values]))
    return rows


def compare_curvature(runs: Sequence[NetworkRun], number: str) -> list[Line]:
    """Return the numbers of a table of the paper, "Table 1", 3, 4, 6 or 7, with those of comparable networks."""
    table, find = COMPARED[number]
    wrong = {(c.row, c.column, c.metric): c for c in contradictions() if c.table == table}
    lines = []
    for family, group in group_networks(runs).items():
        own = table_of(group[0].results.suite)
        if own not in BENCHMARKS:
            continue
        for printed in read_table(table):
            found = [find(run, printed, BENCHMARKS[own]) for run in group]
            measured = [each for each in found if each is not None]
            if len(measured) == len(group):
                error = wrong.get((printed.row, printed.column, printed.metric))
                remark = [f"† the mean of its parts is {error.recomputed:.{TABLES[table].digits}f}"] if error else []
                lines.append(_line(table, family, own, printed, measured, remark))
    return lines


def _line(
    table: str, family: str, own: str, printed: Number, measured: Sequence[Measured], remarks: Sequence[str]
) -> Line:
    values, halves = [each.value for each in measured], [each.half for each in measured]
    known = [half for half in halves if half is not None]
    low, high = mean_interval(values, known) if len(known) == len(values) else (None, None)
    room = ROUNDING if TABLES[table].digits == 2 else 0.05
    texts = [*remarks]
    if printed.std is not None:
        texts.append(f"± {printed.std:.1f} in the paper, ± {pstdev(values):.1f} here")
    if len(values) != CHECKPOINTS[own]:
        texts.append(f"networks: {len(values)} here, {CHECKPOINTS[own]} in the paper")
    texts += [HIDDEN] * table.startswith("hessian") + ["without an interval"] * (low is None)
    return Line(
        method=measured[0].label,
        dataset=measured[0].column,
        metric=printed.metric,
        reported=printed.value,
        measured=fmean(values),
        difference=fmean(values) - printed.value,
        low=low,
        high=high,
        inside=low is not None and high is not None and low - room <= printed.value <= high + room,
        remark=BETWEEN.join(texts),
        table=table,
        family=family,
    )


def _find_curvature(run: NetworkRun, at: str, space: Space, metric: str) -> Measured:
    name: Name = "trace" if metric == "trace" else "lambda_max"
    found, scale = statistic(run.study, at, space, name), MILLI if space == "feature" else 1.0
    half = None if found.stderr is None else ERRORS * scale * found.stderr
    label = f"over {SPACES[space]}" + (" x 1000" if space == "feature" else "")
    return Measured(scale * found.value, half, label, "ID" if at == ID else at)


def _find_regime(space: Space) -> Callable[[NetworkRun, Number, str], Measured | None]:
    def find(run: NetworkRun, printed: Number, benchmark: str) -> Measured | None:
        at = REGIMES[printed.column]
        if printed.row != benchmark or at not in list_regimes(run.study):
            return None
        return _find_curvature(run, at, space, printed.metric)

    return find


def _find_in_data_set(run: NetworkRun, printed: Number, benchmark: str) -> Measured | None:
    space, row = printed.row.split(", ")
    at = ID if printed.column == "ID" else find_data_set(printed.column, run.study.datasets)
    if row != benchmark or at is None:
        return None
    return _find_curvature(run, at, "parameter" if PER_DATA_SET[space] == "parameter" else "feature", printed.metric)


def _find_effect(run: NetworkRun, printed: Number, benchmark: str) -> Measured | None:
    row, _, kind = printed.row.partition(", ")
    effect = run.ablations.effect(printed.column.lower(), NORMALISATIONS[kind])
    if row != benchmark or effect is None or printed.column == AVERAGE:
        return None
    value = effect.auroc if printed.metric == "auroc" else effect.fpr95
    return Measured(100 * value, None, effect.method, f"{effect.normalisation}, α {effect.alpha:g}")


def _find_trace(run: NetworkRun, printed: Number, benchmark: str) -> Measured | None:
    if printed.column != benchmark:
        return None
    found = trace_aurocs(run)["logit" if printed.row == "Logit" else "feature"]
    low, high = interval(found.auroc, found.stderr, found.pairs, found.pairs)
    return Measured(100 * found.auroc, 50 * (high - low), f"trace over {printed.row.lower()}s", "all")


COMPARED: dict[str, tuple[str, Callable[[NetworkRun, Number, str], Measured | None]]] = {
    "Table 1": ("hessian_parameter", _find_regime("parameter")),
    "Table 3": ("partial_normalisation", _find_effect),
    "Table 4": ("logit_vs_feature_hessian", _find_trace),
    "Table 6": ("hessian_feature_milli", _find_regime("feature")),
    "Table 7": ("hessian_per_dataset", _find_in_data_set),
}
SEEDS: dict[str, tuple[Sequence[Space], bool]] = {  # spaces of the Hessian tables, and whether they are by data set
    "Table 1": (("parameter",), False),
    "Table 6": (("feature",), False),
    "Table 7": (SHOWN, True),
}


def list_seed_means(runs: Sequence[NetworkRun]) -> Iterator[tuple[str, list[SeedRow]]]:
    """Yield the Hessian tables with their means over seeds, if there are any."""
    for number, (spaces, by_data_set) in SEEDS.items():
        rows = average_seeds(runs, spaces, by_data_set)
        if rows:
            yield number, rows
