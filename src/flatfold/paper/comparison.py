"""Runs beside the numbers of the paper: benchmarks, and curvature, normalisation and logits of a reproduction."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from ..evaluate.results import ID, Results
from ..evaluate.study_results import ERRORS, SPACES, Name, Space
from ..evaluate.summary import SummaryRow, families, family_of, mean_interval, summarise
from .measurements import SPACES_SHOWN, STATISTICS, Interval, NetworkRun, list_regimes, statistic, trace_aurocs
from .tables import (
    AVERAGE,
    BENCHMARKS,
    CHECKPOINTS,
    COLUMNS,
    FOLD_FAMILY,
    MAIN,
    METRICS,
    NETWORKS,
    OTHERS,
    RATES,
    REMARKS,
    TABLES,
    Contradiction,
    Number,
    find_table,
    format_tuning,
    paper_tuning,
    read_table,
    run_labels,
    wrong_averages,
)

PAPER_REGIMES = {"ID": ID, "Near-OOD": "near", "Far-OOD": "far"}
PAPER_NORMALISATIONS = {"alpha = 0": "none", "0 < alpha < 1": "partial", "alpha = 1": "full"}
PAPER_SPACES: dict[str, Space] = {"parameter": "parameter", "feature (x1e-3)": "feature"}
MILLI = 1000.0  # the paper's curvature over features is in thousandths
HIDDEN = "the paper states neither the loss nor the number of images"
BETWEEN = " | "  # separates two remarks
NOT_COMPARABLE = "not comparable: "  # start of such a remark
NO_INTERVAL = "without an interval"
PROTOCOL = "openood-1.5/"

Place = tuple[str, str, str]  # method, data set and family of networks
Ends = tuple[float, float]  # of an interval


class Measured(NamedTuple):
    """A number of one network, with half the width of its 95 % interval, and its place in a line."""

    value: float
    half: float | None
    method: str
    dataset: str


@dataclass(frozen=True)
class Line:
    """A number of the paper and the measured one; rates are in percent."""

    method: str  # as in the run, such as "knn@ood"
    dataset: str  # as in the run; "all" for the average
    metric: str  # "auroc" or "fpr95" (OOD is positive), "lambda_max" or "trace"
    reported: float
    measured: float  # mean over the networks of the family
    difference: float  # measured minus reported
    low: float | None  # 95 % interval of the measured number; None if the run has none
    high: float | None
    inside: bool  # whether the reported number lies in it, up to its rounding
    remark: str  # caveats of the comparison, joined by BETWEEN
    table: str  # of the paper
    family: str  # of the networks that were measured

    @property
    def comparable(self) -> bool:
        """Whether the run is one of the paper's."""
        return not self.remark.startswith(NOT_COMPARABLE)

    @classmethod
    def of(
        cls, number: Number, table: str, place: Place, measured: float, ends: Ends | None, remarks: Iterable[str]
    ) -> "Line":
        """Return the comparison of a number of the paper with a measured one and the ends of its interval."""
        (method, dataset, family), (low, high) = place, ends or (None, None)
        half = TABLES[table].unit / 2  # a printed number is rounded by up to this
        inside = ends is not None and ends[0] - half <= number.value <= ends[1] + half
        remark, difference = BETWEEN.join(filter(None, remarks)), measured - number.value
        numbers = number.value, measured, difference
        return cls(method, dataset, number.metric, *numbers, low, high, inside, remark, table, family)


def compare_with_paper(runs: Sequence[Results], table: str | None = None, anyway: bool = False) -> list[Line]:
    """Return the numbers of the paper with those of runs, family by family, in the order of the paper's table.

    Methods that the paper tuned on OOD validation data are compared with ``NAME@ood``, the others with ``NAME``; a
    method that was tuned otherwise gets a remark, and so does another number of networks than in the paper. Averages
    are compared only over the paper's data sets. ``table`` is a name or a number in the paper, by default that of the
    suite's protocol and network.
    Runs that are not comparable are an error, or with ``anyway`` get a remark that begins with the reasons.
    """
    if table is not None:
        table = find_table(table)
        if table not in CHECKPOINTS:
            raise ValueError(f"no run has the numbers of the table {table}. Choose one of {', '.join(CHECKPOINTS)}.")
    groups = families(runs)
    _check_weights(groups)
    tables = {family: table or table_of(group[0].suite) for family, group in groups.items()}
    reasons = {family: incomparable([run.suite for run in group], tables[family]) for family, group in groups.items()}
    names = f"table= and one of {', '.join(CHECKPOINTS)}"
    sentences = [f"{family}: {'; '.join(why)}" for family, why in reasons.items() if why]
    if sentences and not anyway:
        raise ValueError(
            f"these numbers are not comparable with the paper's. {'. '.join(sentences)}. "
            f"anyway=True{f' with {names}' if None in tables.values() else ''} compares them, marked as not comparable."
        )
    rows, lines = summarise(runs), list[Line]()
    for family, group in groups.items():
        name = tables[family]
        if name is None:
            raise ValueError(f"{family} belongs to no table of the paper. Use {names}.")
        why = f"{NOT_COMPARABLE}{'; '.join(reasons[family])}" if reasons[family] else ""
        lines += _compare_family(name, [row for row in rows if row.family == family], group[0].suite, why)
    if not lines:
        raise ValueError(
            "the run and the paper have no method on a data set in common. Compare runs of the paper's data sets."
        )
    return lines


def _check_weights(groups: Mapping[str, Sequence[Results]]) -> None:
    """Raise if a family has the same network twice."""
    for family, group in groups.items():
        names: dict[str, str] = {}
        for run in group:
            name = str(run.suite.get("network") or run.suite["name"])
            weights = str(run.provenance.get("weights, sha256") or "")
            if weights and weights in names:
                raise ValueError(
                    f"the runs of {family} must be of different networks, but {names[weights]} and {name} have the "
                    f"same weights (sha256 {weights[:12]}). Leave one of them out."
                )
            names[weights] = name


def _compare_family(table: str, rows: Sequence[SummaryRow], suite: Mapping[str, Any], why: str) -> Iterator[Line]:
    """Yield a line for every number of a table that a family has too."""
    cells, wrong = {(row.method, row.column): row for row in rows}, wrong_averages(table)
    for number in read_table(table):
        column = _find_column(number.column, table, suite) or ""
        cell = next((cells[label, column] for label in run_labels(number.row) if (label, column) in cells), None)
        if cell is None:
            continue
        metric = RATES[number.metric]
        low, high = (100 * end for end in cell.intervals.get(metric, (0.0, 0.0)))
        ends = (low, high) if metric in cell.intervals else None
        remarks = (why, *_list_remarks(table, number, cell, wrong.get(number.place)))
        place = cell.method, cell.column, cell.family
        yield Line.of(number, table, place, 100 * cell.means[metric], ends, remarks)


def _list_remarks(table: str, number: Number, cell: SummaryRow, wrong: Contradiction | None) -> Iterator[str]:
    here, there = format_tuning(cell.method), paper_tuning(cell.method.partition("@")[0])
    if here != there:
        yield f"{here} here, {there} in the paper"
    if cell.n != CHECKPOINTS[table]:
        yield f"networks: {cell.n} here, {CHECKPOINTS[table]} in the paper"
    if wrong is not None:
        yield f"† {wrong.printed:.2f} is printed, the mean of its parts is {wrong.recomputed:.2f}"
    yield REMARKS.get(number.row, "")
    yield REMARKS.get(number.column, "")
    if RATES[number.metric] not in cell.intervals:
        yield NO_INTERVAL


def average_benchmarks(lines: Sequence[Line]) -> list[Line]:
    """Return means over benchmarks beside the last column of the paper's Table 2, from the lines of each benchmark.

    They cover the methods of which every benchmark has an average. All four benchmarks are compared with the printed
    average; fewer are compared with the mean of the paper's numbers for them, with a remark. An interval is the mean
    of the intervals, which allows for any overlap of the images.
    """
    averages = [line for line in lines if line.table in BENCHMARKS and line.dataset == "all"]
    tables = [table for table in BENCHMARKS if any(line.table == table for line in averages)]
    for table in tables:
        found = list(dict.fromkeys(line.family for line in averages if line.table == table))
        if len(found) > 1:
            wanted = "a mean over benchmarks takes one network, or one family, of each"
            raise ValueError(f"{wanted}, but {table} has {' and '.join(found)}. Name fewer folders.")
    if len(tables) < 2:
        raise ValueError(
            f"a mean over benchmarks needs at least 2 of {', '.join(BENCHMARKS)}, on all their data sets, got "
            f"{tables[0] if tables else 'none'}. Name a folder of each."
        )
    cells = {(line.method.partition("@")[0], line.metric, line.table): line for line in averages}
    means = []
    for number in read_table(MAIN):
        parts = [cells.get((number.row.lower(), number.metric, table)) for table in tables]
        if number.column == AVERAGE and all(parts):
            means.append(_average(number, [part for part in parts if part is not None]))
    return means


def _average(number: Number, parts: Sequence[Line]) -> Line:
    """Return the mean of the lines of a method, one per benchmark; ``number`` is the printed mean over all four."""
    tables, labels = [part.table for part in parts], list(dict.fromkeys(part.method for part in parts))
    remarks = [(part.table, text) for part in parts for text in part.remark.split(BETWEEN) if text]
    why = [
        f"{table}: {text.removeprefix(NOT_COMPARABLE)}" for table, text in remarks if text.startswith(NOT_COMPARABLE)
    ]
    caveats = {text: [table for table, other in remarks if other == text] for _, text in remarks}
    texts = [f"{NOT_COMPARABLE}{'; '.join(why)}"] if why else []
    if len(parts) < len(BENCHMARKS):
        number = number._replace(value=fmean(part.reported for part in parts))
        texts.append(f"mean over {len(parts)} of {len(BENCHMARKS)} benchmarks: {', '.join(tables)}")
    for text, where in caveats.items():
        if not text.startswith(NOT_COMPARABLE):
            texts.append(text if where == tables else f"{', '.join(where)}: {text}")
    known = [(part.low, part.high) for part in parts if part.low is not None and part.high is not None]
    ends = (fmean(low for low, _ in known), fmean(high for _, high in known)) if len(known) == len(parts) else None
    method = labels[0] if len(labels) == 1 else number.row.lower()
    place = method, "all", f"mean over {len(parts)} benchmarks"
    return Line.of(number, MAIN, place, fmean(part.measured for part in parts), ends, texts)


def headline() -> str:
    """Return the lead of the best variant of FOLD over the best other method, by the paper's own numbers."""
    leads = []
    for metric, sign in (("auroc", 1), ("fpr95", -1)):
        column = [number for number in read_table(MAIN) if (number.column, number.metric) == (AVERAGE, metric)]
        best = {
            ours: max((n for n in column if (n.row.lower() in FOLD_FAMILY) == ours), key=lambda n: sign * n.value)
            for ours in (True, False)
        }
        lead = sign * (best[True].value - best[False].value)
        names = " and ".join(f"{number.row} {number.value:.2f}" for number in best.values())
        leads.append(f"{METRICS[metric]} of {names}, better by {lead:.2f} points")
    return "; ".join(leads)


def table_of(suite: Mapping[str, Any]) -> str | None:
    """Return the table to which a suite belongs by its protocol and architecture, or None."""
    protocol = str(suite.get("protocol") or "")
    name = protocol.removeprefix(PROTOCOL)
    if not protocol.startswith(PROTOCOL) or name not in CHECKPOINTS or name == OTHERS:
        return None
    return OTHERS if name == "imagenet1k" and suite.get("architecture") in COLUMNS else name


def incomparable(suites: Iterable[Mapping[str, Any]], table: str | None) -> list[str]:
    """Return every reason why runs of these suites cannot be compared with a table, each once."""
    reasons = []
    for suite in suites:
        own = table_of(suite)
        if own is None:
            reasons.append(f"the suite {suite['name']} does not follow one of the paper's benchmarks")
        elif own != table:
            reasons.append(f"the suite {suite['name']} belongs to the table {own}, not to {table}")
        architecture = suite.get("architecture") or "not known"
        if table is not None and architecture not in NETWORKS[table]:
            reasons.append(f"the architecture is {architecture}, the paper's is {' or '.join(NETWORKS[table])}")
        reasons += [str(deviation).rstrip(".") for deviation in suite.get("deviations") or ()]
    return list(dict.fromkeys(reasons))


def _find_column(column: str, table: str, suite: Mapping[str, Any]) -> str | None:
    """Return the data set of a run, or ``all``, that a column of a table shows.

    An average is comparable only if the suite has all data sets of the paper and no other.
    """
    here = [ood["name"] for ood in suite["ood"]]
    if table == OTHERS:
        if COLUMNS.get(suite.get("architecture", "")) != column:
            return None
        column, table = AVERAGE, "imagenet1k"
    if column != AVERAGE:
        return find_data_set(column, here)
    wanted = {find_data_set(number.column, here) for number in read_table(table) if number.column != AVERAGE}
    return "all" if wanted == set(here) else None


def find_data_set(column: str, here: Sequence[str]) -> str | None:
    """Return the data set of a suite that the paper calls ``column``; OpenOOD has both "texture" and "textures"."""
    plain = column.lower()
    name = plain.replace("-", "") if plain.startswith("cifar") else plain.replace("-", "_")
    names = ("texture", "textures") if column == "Textures" else (name,)
    return next((dataset for dataset in here if dataset in names), None)


def compare_curvature(runs: Sequence[NetworkRun], exhibit: str) -> list[Line]:
    """Return the numbers of the paper's Table 1, 3, 4, 6 or 7 with those of comparable networks."""
    table, find = COMPARED[exhibit]
    wrong, digits = wrong_averages(table), TABLES[table].digits
    lines = []
    for family, group in _group_networks(runs).items():
        own = table_of(group[0].results.suite)
        if own not in BENCHMARKS:
            continue
        for number in read_table(table):
            found = [find(run, number, BENCHMARKS[own]) for run in group]
            measured = [each for each in found if each is not None]
            if len(measured) < len(group):
                continue
            values, remarks = [each.value for each in measured], list[str]()
            halves = [each.half for each in measured if each.half is not None]
            ends = mean_interval(values, halves) if len(halves) == len(values) else None
            if error := wrong.get(number.place):
                remarks.append(f"† the mean of its parts is {error.recomputed:.{digits}f}")
            if number.std is not None:
                remarks.append(f"± {number.std:.1f} in the paper, ± {pstdev(values):.1f} here")
            if len(values) != CHECKPOINTS[own]:
                remarks.append(f"networks: {len(values)} here, {CHECKPOINTS[own]} in the paper")
            remarks += [HIDDEN] * table.startswith("hessian") + [NO_INTERVAL] * (ends is None)
            place = measured[0].method, measured[0].dataset, family
            lines.append(Line.of(number, table, place, fmean(values), ends, remarks))
    return lines


def _find_regime(run: NetworkRun, number: Number, benchmark: str, space: Space) -> Measured | None:
    at = PAPER_REGIMES[number.column]
    found = number.row == benchmark and at in list_regimes(run.study)
    return _find_curvature(run, at, space, number.metric) if found else None


def _find_in_data_set(run: NetworkRun, number: Number, benchmark: str) -> Measured | None:
    space, row = number.row.split(", ")
    at = ID if number.column == "ID" else find_data_set(number.column, run.study.datasets)
    found = row == benchmark and at is not None
    return _find_curvature(run, str(at), PAPER_SPACES[space], number.metric) if found else None


def _find_curvature(run: NetworkRun, at: str, space: Space, metric: str) -> Measured:
    name: Name = "trace" if metric == "trace" else "lambda_max"
    found, scale = statistic(run.study, at, space, name), MILLI if space == "feature" else 1.0
    half = None if found.stderr is None else ERRORS * scale * found.stderr
    label = f"over {SPACES[space]}" + (" x 1000" if space == "feature" else "")
    return Measured(scale * found.value, half, label, "ID" if at == ID else at)


def _find_effect(run: NetworkRun, number: Number, benchmark: str) -> Measured | None:
    row, _, kind = number.row.partition(", ")
    effect = run.ablations.effect(number.column.lower(), PAPER_NORMALISATIONS[kind])
    if row != benchmark or effect is None or number.column == AVERAGE:
        return None
    value = effect.auroc if number.metric == "auroc" else effect.fpr95
    return Measured(100 * value, None, effect.method, f"{effect.normalisation}, α {effect.alpha:g}")


def _find_trace(run: NetworkRun, number: Number, benchmark: str) -> Measured | None:
    if number.column != benchmark:
        return None
    auroc = Interval.of_auroc(trace_aurocs(run)[number.row.lower()])
    return Measured(100 * auroc.value, 50 * (auroc.high - auroc.low), f"trace over {number.row.lower()}s", "all")


COMPARED: dict[str, tuple[str, Callable[[NetworkRun, Number, str], Measured | None]]] = {
    "Table 1": ("hessian_parameter", partial(_find_regime, space="parameter")),
    "Table 3": ("partial_normalisation", _find_effect),
    "Table 4": ("logit_vs_feature_hessian", _find_trace),
    "Table 6": ("hessian_feature_milli", partial(_find_regime, space="feature")),
    "Table 7": ("hessian_per_dataset", _find_in_data_set),
}


class SeedRow(NamedTuple):
    """A line of a table over the networks of a family: mean and deviation of both statistics in some spaces."""

    family: str
    n: int
    data: str
    cells: list[tuple[float, float]]


SEED_TABLES: dict[str, tuple[Sequence[Space], bool]] = {  # spaces of the Hessian tables, and whether by data set
    "Table 1": (("parameter",), False),
    "Table 6": (("feature",), False),
    "Table 7": (SPACES_SHOWN, True),
}


def average_seeds(runs: Sequence[NetworkRun], spaces: Sequence[Space], by_data_set: bool) -> list[SeedRow]:
    """Return means over the networks of each family of several, with the deviation (divided by n), as in the paper."""
    rows = []
    for family, group in _group_networks(runs).items():
        first = group[0].study
        if len(group) < 2 or any(run.study.datasets != first.datasets for run in group):
            continue
        for at in first.datasets if by_data_set else list_regimes(first):
            values = [
                [statistic(run.study, at, space, name).value for run in group]
                for space in spaces
                for name in STATISTICS
            ]
            rows.append(SeedRow(family, len(group), at, [(fmean(each), pstdev(each)) for each in values]))
    return rows


def _group_networks(runs: Sequence[NetworkRun]) -> dict[str, list[NetworkRun]]:
    """Return the networks by family: those of a family differ by their seed."""
    groups: dict[str, list[NetworkRun]] = {}
    for run in runs:
        groups.setdefault(family_of(run.results), []).append(run)
    return groups


def explain_missing_numbers(runs: Sequence[NetworkRun]) -> str:
    """Return why the paper's numbers are not compared with those of this run, or nothing."""
    reasons = list[str]()
    for group in families([run.results for run in runs]).values():
        reasons += incomparable([run.suite for run in group], table_of(group[0].suite))
    if not reasons:
        return ""
    why = "; ".join(dict.fromkeys(reasons))
    return f"The paper's own numbers are not compared with these, because {why}. Its claims are tested all the same."


def find_paper_numbers(runs: Sequence[NetworkRun]) -> dict[str, list[Line]]:
    """Return every number of the paper that a reproduction has too, by exhibit; none if they cannot be compared."""
    if explain_missing_numbers(runs):
        return {}
    try:
        lines = compare_with_paper([run.results for run in runs])
    except ValueError:  # nothing in common, or one network twice
        return {}
    own = [line for line in lines if line.table != OTHERS]
    found = {
        "Table 2": [line for line in own if line.dataset == "all"],
        "Table 5": [line for line in lines if line.table == OTHERS],
        "Tables 8 to 11": [line for line in own if line.dataset != "all"],
    }
    found |= {exhibit: compare_curvature(runs, exhibit) for exhibit in COMPARED}
    return {exhibit: chosen for exhibit, chosen in found.items() if chosen}
