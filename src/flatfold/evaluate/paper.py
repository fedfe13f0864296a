"""A run beside the numbers of the FOLD paper: what it reports, what was measured, and whether the two agree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .paper_tables import TABLES, Number, read_table
from .paper_tables.benchmarks import (
    CHECKPOINTS,
    REMARKS,
    check_comparable_table,
    incomparable,
    label_remark,
    labels,
    suite_column,
    table_of,
)
from .paper_tables.contradictions import NOTES, Contradiction, contradictions
from .results import Results
from .summary import SummaryRow, families, summarise

__all__ = [
    "BETWEEN",
    "NOTES",
    "TABLES",
    "Contradiction",
    "Line",
    "Number",
    "beside_paper",
    "contradictions",
    "read_table",
]

METRICS = {"auroc": "auroc", "fpr95": "fpr95_ood_positive"}  # the paper counts OOD as positive
ROUNDING = 0.005  # of what the paper prints
BETWEEN = " | "  # two remarks
NOT_COMPARABLE = "not comparable: "  # with it such a remark begins
WEIGHTS = "weights, sha256"  # of the provenance


@dataclass(frozen=True)
class Line:
    """A number of the paper beside the one that was measured, both in per cent.

    Attributes:
        method: As the run calls it, ``knn@ood`` say.
        dataset: As the run calls it, or ``all`` for the average.
        metric: ``auroc`` or ``fpr95`` (OOD is positive).
        reported: By the paper.
        measured: Mean over the networks of the family.
        difference: Measured minus reported.
        low, high: 95 % interval of ``measured``; None where the run has none.
        inside: Whether the reported number lies in it, give or take its rounding.
        remark: What a reader must know before comparing the two; several are joined by ``BETWEEN``.
        table: Of the paper.
        family: Of the networks that were measured.
    """

    method: str
    dataset: str
    metric: str
    reported: float
    measured: float
    difference: float
    low: float | None
    high: float | None
    inside: bool
    remark: str
    table: str
    family: str

    @property
    def comparable(self) -> bool:
        """Whether the run is one of the paper's, as far as can be told."""
        return not self.remark.startswith(NOT_COMPARABLE)


def beside_paper(runs: Sequence[Results], table: str | None = None, anyway: bool = False) -> list[Line]:
    """Return the numbers of the paper beside those of runs, family by family, in the order of the paper's table.

    Methods that the paper tuned on OOD validation data are compared with ``NAME@ood``, the others with ``NAME``; a run
    that has only another one is compared too, with a remark. An average is compared only when it is over the paper's
    data sets. Another number of networks than the paper's is a remark.

    Args:
        runs: Those of :func:`~flatfold.evaluate.summary.load_runs`, say.
        table: Name of a table of the paper. By default the one to which the suite's protocol and network belong.
        anyway: Compare what is not comparable; the remark of each such line then begins with the reasons.

    Raises:
        ValueError: Runs are not comparable with the paper and ``anyway`` is not set, two runs of a family have the same
            weights, or there is nothing to compare.
    """
    if table is not None:
        check_comparable_table(table)
    groups = families(runs)
    _check_weights(groups)
    tables = {family: table or table_of(group[0].suite) for family, group in groups.items()}
    reasons = {family: incomparable([run.suite for run in group], tables[family]) for family, group in groups.items()}
    _check_comparable(reasons, None in tables.values(), anyway)
    rows, lines = summarise(runs), list[Line]()
    for family, group in groups.items():
        name = tables[family]
        if name is None:
            raise ValueError(
                f"{family} belongs to no table of the paper. Name one with --table: {', '.join(CHECKPOINTS)}."
            )
        why = f"{NOT_COMPARABLE}{'; '.join(reasons[family])}" if reasons[family] else ""
        lines += _lines(name, [row for row in rows if row.family == family], group[0].suite, why)
    if not lines:
        raise ValueError(
            "the run and the paper have no method on a data set in common. `flatfold paper --table NAME` shows what is "
            "in the paper."
        )
    return lines


def _check_weights(groups: Mapping[str, Sequence[Results]]) -> None:
    """Raise if a network was judged twice: a mean over it and itself is none over two networks."""
    for family, group in groups.items():
        seen: dict[str, str] = {}
        for run in group:
            name, weights = str(run.suite.get("network") or run.suite["name"]), str(run.provenance.get(WEIGHTS) or "")
            if weights and weights in seen:
                raise ValueError(
                    f"the runs of {family} must be of different networks, but {seen[weights]} and {name} have the same "
                    f"weights (sha256 {weights[:12]}). Leave one of them out."
                )
            seen[weights] = name


def _check_comparable(reasons: Mapping[str, Sequence[str]], homeless: bool, anyway: bool) -> None:
    told = [f"{family}: {'; '.join(why)}" for family, why in reasons.items() if why]
    if told and not anyway:
        also = f" with --table and one of {', '.join(CHECKPOINTS)}" if homeless else ""
        raise ValueError(
            f"these numbers are not comparable with the paper's. {'. '.join(told)}. "
            f"--anyway{also} shows them side by side, each marked as not comparable."
        )


def _lines(table: str, rows: Sequence[SummaryRow], suite: Mapping[str, Any], why: str) -> Iterator[Line]:
    """Yield a line for every number of a table that a family has too."""
    cells = {(row.method, row.column): row for row in rows}
    wrong = {(c.row, c.column, c.metric): c for c in contradictions() if c.table == table}
    for number in read_table(table):
        column = suite_column(number.column, table, suite) or ""
        cell = next((cells[label, column] for label in labels(number.row) if (label, column) in cells), None)
        if cell is not None:
            remarks = (why, *_remarks(table, number, cell, wrong.get((number.row, number.column, number.metric))))
            yield _line(table, number, cell, BETWEEN.join(filter(None, remarks)))


def _remarks(table: str, number: Number, cell: SummaryRow, wrong: Contradiction | None) -> Iterator[str]:
    yield label_remark(cell.method)
    if cell.n != CHECKPOINTS[table]:
        yield f"networks: {cell.n} here, {CHECKPOINTS[table]} in the paper"
    if wrong is not None:
        yield f"† {wrong.printed:.2f} is printed, the mean of its parts is {wrong.recomputed:.2f}"
    yield REMARKS.get(number.row, "")
    yield REMARKS.get(number.column, "")
    if METRICS[number.metric] not in cell.intervals:
        yield "without an interval"


def _line(table: str, number: Number, cell: SummaryRow, remark: str) -> Line:
    metric = METRICS[number.metric]
    measured = 100 * cell.means[metric]
    low, high = (100 * end for end in cell.intervals[metric]) if metric in cell.intervals else (None, None)
    return Line(
        method=cell.method,
        dataset=cell.column,
        metric=number.metric,
        reported=number.value,
        measured=measured,
        difference=measured - number.value,
        low=low,
        high=high,
        inside=low is not None and high is not None and low - ROUNDING <= number.value <= high + ROUNDING,
        remark=remark,
        table=table,
        family=cell.family,
    )
