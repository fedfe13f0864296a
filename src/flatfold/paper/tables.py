"""The numbers in the tables of the FOLD paper, and their errors.

Park et al., "Exploiting Local Flatness for Efficient Out-of-Distribution Detection", ECCV 2026. The CSV files in
``numbers`` hold the numbers as printed, wrong averages included; :func:`contradictions` finds those.
"""

import csv
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

NUMBERS = Path(__file__).parent / "numbers"
AVERAGE = "Average"
RATES = {"auroc": "auroc", "fpr95": "fpr95_ood_positive"}  # names in the tables and in a run; OOD is positive
METRICS = {"auroc": "AUROC", "fpr95": "FPR95", "lambda_max": "largest eigenvalue", "trace": "trace"}
FOLD_FAMILY = ("fold", "fold-r", "fold-a", "autofold", "autofold-r", "autofold-a")  # the paper's own methods
REGIME_TABLES = {"hessian_parameter": "parameter", "hessian_feature_milli": "feature (x1e-3)"}
OTHERS = "imagenet1k_architectures"
MAIN = "main"
BENCHMARKS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet200": "ImageNet-200",
    "imagenet1k": "ImageNet-1K",
}


class Layout(NamedTuple):
    """The structure of a table: number, subject, the columns of the file that name a row and a column, and digits."""

    number: int  # in the paper
    about: str
    row: Sequence[str]
    column: str
    digits: int = 2

    @property
    def unit(self) -> float:
        """The unit of the last digit."""
        return float(10.0**-self.digits)


class Number(NamedTuple):
    """A printed number: its place in a table, and the standard deviation if one is printed."""

    row: str
    column: str
    metric: str
    value: float
    std: float | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """The row, column and metric."""
        return self[:3]


_FACTS = tomllib.loads((NUMBERS / "tables.toml").read_text(encoding="utf-8"))
TABLES: dict[str, Layout] = {name: Layout(**layout) for name, layout in _FACTS["tables"].items()}
NETWORKS: dict[str, list[str]] = _FACTS["networks"]
CHECKPOINTS: dict[str, int] = _FACTS["checkpoints"]
COLUMNS: dict[str, str] = _FACTS["columns"]
REMARKS: dict[str, str] = _FACTS["remarks"]
NOTES: list[str] = _FACTS["notes"]
TUNED = frozenset[str](_FACTS["tuned"])


def find_table(name: str) -> str:
    """Return the name of a table of the paper, given that name or its number in the paper.

    Example:
        >>> find_table("2"), find_table("main")
        ('main', 'main')
    """
    names = {str(layout.number): each for each, layout in TABLES.items()} | {each: each for each in TABLES}
    if name not in names:
        known = ", ".join(f"{layout.number} ({each})" for each, layout in TABLES.items())
        raise ValueError(f"the paper has no table {name!r}. It has {known}.")
    return names[name]


@cache
def read_table(name: str) -> tuple[Number, ...]:
    """Return every number of a table of the paper, row by row."""
    layout, numbers = TABLES[name], list[Number]()
    with (NUMBERS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            place = ", ".join(line[key] for key in layout.row), line[layout.column]
            if "metric" in line:  # a line for each metric; a deviation of 0 stands for a single network
                numbers.append(Number(*place, line["metric"], float(line["mean"]), float(line["std"]) or None))
            else:
                numbers += [Number(*place, metric, float(line[metric])) for metric in RATES if metric in line]
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
        unit = TABLES[table].unit * (1 + 1e-6)  # allows for the rounding of floats
        recomputed = fmean(part.value for part in parts)
        if abs(average.value - recomputed) > unit:
            without = {p.column: [q.value for q in parts if q is not p] for p in parts if len(parts) > 1}
            fits = (column for column, rest in without.items() if abs(average.value - fmean(rest)) <= unit)
            wrong.append(Contradiction(table, *average.place, average.value, recomputed, next(fits, "")))
    return wrong


def wrong_averages(table: str) -> dict[tuple[str, str, str], Contradiction]:
    """Return the contradictions of a table by row, column and metric."""
    return {(wrong.row, wrong.column, wrong.metric): wrong for wrong in contradictions() if wrong.table == table}


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


def run_labels(method: str) -> list[str]:
    """Return the possible labels of a method of the paper in a run, the one tuned as in the paper first."""
    name = method.lower()
    return sorted([name, f"{name}@ood", f"{name}@id"], key=lambda label: format_tuning(label) != paper_tuning(name))


def format_tuning(label: str) -> str:
    """Return how a method of a run was tuned, in words."""
    at = label.partition("@")[2]
    return f"tuned on {at.upper()} data" if at else "untuned"


def paper_tuning(name: str) -> str:
    """Return how the paper tuned a method, in words."""
    return format_tuning(f"{name}@ood" if name in TUNED else name)
