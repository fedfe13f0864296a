"""The numbers in the tables of the FOLD paper, their errors, and their comparison with a run.

Park et al., "Exploiting Local Flatness for Efficient Out-of-Distribution Detection", ECCV 2026. The CSV files in
``numbers`` hold the numbers as they are printed, wrong averages included; :func:`contradictions` finds those.
"""

import csv
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ..evaluate.results import Results
from ..evaluate.summary import SummaryRow, families, summarise

NUMBERS = Path(__file__).parent / "numbers"
AVERAGE = "Average"
METRICS = {"auroc": "auroc", "fpr95": "fpr95_ood_positive"}  # in the paper OOD is positive
FOLD_FAMILY = ("fold", "fold-r", "fold-a", "autofold", "autofold-r", "autofold-a")  # the paper's own methods
REGIME_TABLES = {"hessian_parameter": "parameter", "hessian_feature_milli": "feature (x1e-3)"}
ROUNDING = 0.005  # of the printed numbers
BETWEEN = " | "  # separates two remarks
NOT_COMPARABLE = "not comparable: "  # start of such a remark
PROTOCOL = "openood-1.5/"
OTHERS = "imagenet1k_architectures"
MAIN = "main"
BENCHMARKS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet200": "ImageNet-200",
    "imagenet1k": "ImageNet-1K",
}


class Layout(NamedTuple):
    """The structure of a table: its subject, the columns of the file that name a row and a column, and its digits."""

    about: str
    row: Sequence[str]
    column: str
    digits: int = 2


class Number(NamedTuple):
    """A printed number: its place in a table, and the standard deviation if one is printed."""

    row: str
    column: str
    metric: str
    value: float
    std: float | None = None


_FACTS = tomllib.loads((NUMBERS / "tables.toml").read_text(encoding="utf-8"))
TABLES = {name: Layout(**layout) for name, layout in _FACTS["tables"].items()}
NETWORKS: dict[str, list[str]] = _FACTS["networks"]
CHECKPOINTS: dict[str, int] = _FACTS["checkpoints"]
COLUMNS: dict[str, str] = _FACTS["columns"]
REMARKS: dict[str, str] = _FACTS["remarks"]
NOTES: list[str] = _FACTS["notes"]
TUNED = frozenset[str](_FACTS["tuned"])


@cache
def read_table(name: str) -> tuple[Number, ...]:
    """Return every number of a table of the paper, row by row."""
    if name not in TABLES:
        raise ValueError(f"the paper has no table called {name!r}. It has {', '.join(TABLES)}.")
    layout, numbers = TABLES[name], list[Number]()
    with (NUMBERS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            place = ", ".join(line[key] for key in layout.row), line[layout.column]
            if "metric" in line:  # a line for each metric; a deviation of 0 stands for a single network
                numbers.append(Number(*place, line["metric"], float(line["mean"]), float(line["std"]) or None))
            else:
                numbers += [Number(*place, metric, float(line[metric])) for metric in METRICS if metric in line]
    return tuple(numbers)


@dataclass(frozen=True)
class Contradiction:
    """An average of the paper that is not the mean of its own parts."""

    table: str
    row: str
    column: str
    metric: str
    printed: float
    recomputed: float  # the mean of the printed parts
    without: str = ""  # the part without which the printed number would be right, if there is one

    def __str__(self) -> str:
        """Return its place and both numbers."""
        printed, recomputed = (f"{value:.{TABLES[self.table].digits}f}" for value in (self.printed, self.recomputed))
        text = f"{self.table}, {self.row}, {self.column}, {self.metric}: {printed} is printed, "
        text += f"the mean of its parts is {recomputed}"
        return text + (f" ({printed} without {self.without})" if self.without else "")


def contradictions() -> list[Contradiction]:
    """Return every printed average that rounding cannot explain.

    Parts and average are each rounded by up to half a unit of the last digit, so they may differ by a whole unit.
    """
    wrong = []
    for table, average, parts in _averages():
        unit = 10.0 ** -TABLES[table].digits * (1 + 1e-6)  # room for the last digits of a float
        recomputed = fmean(part.value for part in parts)
        if abs(average.value - recomputed) > unit:
            without = {p.column: [q.value for q in parts if q is not p] for p in parts if len(parts) > 1}
            fits = (column for column, rest in without.items() if abs(average.value - fmean(rest)) <= unit)
            place = (table, average.row, average.column, average.metric)
            wrong.append(Contradiction(*place, average.value, recomputed, next(fits, "")))
    return wrong


def _averages() -> Iterator[tuple[str, Number, list[Number]]]:
    """Yield each average of the paper with its table and its parts."""
    for table in TABLES:
        numbers = read_table(table)
        for average in numbers:
            if average.column == AVERAGE:
                same = [n for n in numbers if (n.row, n.metric) == (average.row, average.metric)]
                yield table, average, [n for n in same if n.column != AVERAGE]
    for table, space in REGIME_TABLES.items():
        for average in read_table(table):
            place, columns = (f"{space}, {average.row}", average.metric), _FACTS["regimes"][average.column]
            parts = [n for n in read_table("hessian_per_dataset") if (n.row, n.metric) == place]
            yield table, average, [n for n in parts if n.column in columns]


@dataclass(frozen=True)
class Line:
    """A number of the paper and the measured one, both in per cent."""

    method: str  # as in the run: "knn@ood", say
    dataset: str  # as in the run; "all" for the average
    metric: str  # "auroc" or "fpr95" (OOD is positive)
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


def compare_with_paper(runs: Sequence[Results], table: str | None = None, anyway: bool = False) -> list[Line]:
    """Return the numbers of the paper with those of runs, family by family, in the order of the paper's table.

    Methods that the paper tuned on OOD validation data are compared with ``NAME@ood``, the others with ``NAME``; a run
    that has only another one is compared too, with a remark. An average is compared only when it is over the paper's
    data sets. Another number of networks than the paper's is a remark. The default for ``table`` is the one to which
    the suite's protocol and network belong. What is not comparable raises, or with ``anyway`` gets a remark that begins
    with the reasons.
    """
    if table is not None:
        read_table(table)  # which raises if there is none
        if table not in CHECKPOINTS:
            raise ValueError(f"no run has the numbers of the table {table}. Choose one of {', '.join(CHECKPOINTS)}.")
    groups = families(runs)
    _check_weights(groups)
    tables = {family: table or table_of(group[0].suite) for family, group in groups.items()}
    reasons = {family: incomparable([run.suite for run in group], tables[family]) for family, group in groups.items()}
    names = f"--table and one of {', '.join(CHECKPOINTS)}"
    sentences = [f"{family}: {'; '.join(why)}" for family, why in reasons.items() if why]
    if sentences and not anyway:
        raise ValueError(
            f"these numbers are not comparable with the paper's. {'. '.join(sentences)}. "
            f"--anyway{f' with {names}' if None in tables.values() else ''} compares them, marked as not comparable."
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
            "the run and the paper have no method on a data set in common. `flatfold paper --table NAME` shows a table."
        )
    return lines


def average_benchmarks(lines: Sequence[Line]) -> list[Line]:
    """Return means over benchmarks beside the last column of the paper's Table 2, from the lines of each benchmark.

    A method counts that every benchmark has an average of. All four benchmarks are compared with the printed average,
    fewer with the mean of the paper's numbers for them, with a remark. An interval is the mean of the intervals, which
    is wide enough for any overlap of the images.
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
    whole = len(parts) == len(BENCHMARKS)
    reported = number.value if whole else fmean(part.reported for part in parts)
    measured, ends = fmean(part.measured for part in parts), [(part.low, part.high) for part in parts]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    low, high = (fmean(side) for side in zip(*known, strict=True)) if len(known) == len(parts) else (None, None)
    remarks = [(part.table, text) for part in parts for text in part.remark.split(BETWEEN) if text]
    why = [
        f"{table}: {text.removeprefix(NOT_COMPARABLE)}" for table, text in remarks if text.startswith(NOT_COMPARABLE)
    ]
    caveats = {text: [table for table, other in remarks if other == text] for _, text in remarks}
    texts = [f"{NOT_COMPARABLE}{'; '.join(why)}"] if why else []
    texts += [] if whole else [f"mean over {len(parts)} of {len(BENCHMARKS)} benchmarks: {', '.join(tables)}"]
    for text, where in caveats.items():
        if not text.startswith(NOT_COMPARABLE):
            texts.append(text if where == tables else f"{', '.join(where)}: {text}")
    return Line(
        method=labels[0] if len(labels) == 1 else number.row.lower(),
        dataset="all",
        metric=number.metric,
        reported=reported,
        measured=measured,
        difference=measured - reported,
        low=low,
        high=high,
        inside=low is not None and high is not None and low - ROUNDING <= reported <= high + ROUNDING,
        remark=BETWEEN.join(texts),
        table=MAIN,
        family=f"mean over {len(parts)} benchmarks",
    )


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


def run_labels(method: str) -> list[str]:
    """Return the possible labels of a method of the paper in a run, the one tuned as in the paper first."""
    name = method.lower()
    return sorted([name, f"{name}@ood", f"{name}@id"], key=lambda label: _tuning(label) != _paper_tuning(name))


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
    cells = {(row.method, row.column): row for row in rows}
    wrong = {(c.row, c.column, c.metric): c for c in contradictions() if c.table == table}
    for number in read_table(table):
        column = _find_column(number.column, table, suite) or ""
        cell = next((cells[label, column] for label in run_labels(number.row) if (label, column) in cells), None)
        if cell is None:
            continue
        metric = METRICS[number.metric]
        measured = 100 * cell.means[metric]
        low, high = (100 * end for end in cell.intervals[metric]) if metric in cell.intervals else (None, None)
        remarks = (why, *_remarks(table, number, cell, wrong.get((number.row, number.column, number.metric))))
        yield Line(
            method=cell.method,
            dataset=cell.column,
            metric=number.metric,
            reported=number.value,
            measured=measured,
            difference=measured - number.value,
            low=low,
            high=high,
            inside=low is not None and high is not None and low - ROUNDING <= number.value <= high + ROUNDING,
            remark=BETWEEN.join(filter(None, remarks)),
            table=table,
            family=cell.family,
        )


def _remarks(table: str, number: Number, cell: SummaryRow, wrong: Contradiction | None) -> Iterator[str]:
    here, there = _tuning(cell.method), _paper_tuning(cell.method.partition("@")[0])
    if here != there:
        yield f"{here} here, {there} in the paper"
    if cell.n != CHECKPOINTS[table]:
        yield f"networks: {cell.n} here, {CHECKPOINTS[table]} in the paper"
    if wrong is not None:
        yield f"† {wrong.printed:.2f} is printed, the mean of its parts is {wrong.recomputed:.2f}"
    yield REMARKS.get(number.row, "")
    yield REMARKS.get(number.column, "")
    if METRICS[number.metric] not in cell.intervals:
        yield "without an interval"


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


def _tuning(label: str) -> str:
    at = label.partition("@")[2]
    return f"tuned on {at.upper()} data" if at else "untuned"


def _paper_tuning(name: str) -> str:
    return _tuning(f"{name}@ood" if name in TUNED else name)
