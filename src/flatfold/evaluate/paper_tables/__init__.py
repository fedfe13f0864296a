"""Every number in the tables of the FOLD paper, as data.

Park et al., "Exploiting Local Flatness for Efficient Out-of-Distribution Detection", ECCV 2026. The CSV files beside
this one hold the numbers as they are printed, wrong averages included; ``contradictions.py`` finds those.
"""

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
AVERAGE = "Average"
RATES = ("auroc", "fpr95")


class Layout(NamedTuple):
    """How a table is to be read.

    Attributes:
        about: What it shows, in a sentence.
        row: The columns of its file whose values together name a row.
        column: The column of its file that names a column.
        digits: How many are printed behind the point.
    """

    about: str
    row: tuple[str, ...]
    column: str
    digits: int = 2


class Number(NamedTuple):
    """A printed number: its place in a table, and the standard deviation where one is printed."""

    row: str
    column: str
    metric: str
    value: float
    std: float | None = None


TABLES = {
    "main": Layout("Averages over the unknown data sets of the four benchmarks.", ("method",), "dataset"),
    "cifar10": Layout("CIFAR-10, ResNet-18, mean of three networks.", ("method",), "dataset"),
    "cifar100": Layout("CIFAR-100, ResNet-18, mean of three networks.", ("method",), "dataset"),
    "imagenet200": Layout("ImageNet-200, ResNet-18, mean of three networks.", ("method",), "dataset"),
    "imagenet1k": Layout("ImageNet-1K, ResNet-50, one network.", ("method",), "dataset"),
    "imagenet1k_architectures": Layout("ImageNet-1K, averages for four other networks.", ("method",), "dataset"),
    "partial_normalisation": Layout("No, partial and full normalisation.", ("id_dataset", "alpha"), "method"),
    "logit_vs_feature_hessian": Layout("The trace of either Hessian as a score.", ("hessian",), "id_dataset"),
    "hessian_parameter": Layout("Curvature over the parameters, by regime.", ("id_dataset",), "regime", 1),
    "hessian_feature_milli": Layout("Curvature over features x 1000, by regime.", ("id_dataset",), "regime", 1),
    "hessian_per_dataset": Layout("Curvature by data set; features x 1000.", ("space", "id_dataset"), "dataset", 1),
}


@cache
def read_table(name: str) -> tuple[Number, ...]:
    """Return every number of a table of the paper, row by row.

    Example:
        >>> read_table("cifar10")[0]
        Number(row='OpenMax', column='CIFAR-100', metric='auroc', value=86.91, std=None)
    """
    check_table_name(name)
    with (HERE / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(number for line in csv.DictReader(file) for number in _numbers(line, TABLES[name]))


def check_table_name(name: str) -> None:
    """Raise unless the paper has a table of this name."""
    if name not in TABLES:
        raise ValueError(f"the paper has no table called {name!r}. It has {', '.join(TABLES)}.")


def _numbers(line: dict[str, str], layout: Layout) -> Iterator[Number]:
    """Yield the numbers of a line: some files have a column for each metric, others a line.

    A deviation of 0 stands for none: ImageNet-1K has one network.
    """
    row, column = ", ".join(line[key] for key in layout.row), line[layout.column]
    if "metric" in line:
        yield Number(row, column, line["metric"], float(line["mean"]), float(line["std"]) or None)
    else:
        yield from (Number(row, column, metric, float(line[metric])) for metric in RATES if metric in line)
