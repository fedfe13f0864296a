"""Every number in the tables of the FOLD paper, as data.

Park et al., "Exploiting Local Flatness for Efficient Out-of-Distribution Detection", ECCV 2026. The CSV files beside
this one hold the numbers as they are printed, wrong averages included; ``contradictions.py`` finds those.
"""

import csv
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
    with (NUMBERS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
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


# What the paper measured: networks, data sets and tuning, in its own words and in those of suites.


PROTOCOL = "openood-1.5/"

OTHERS = "imagenet1k_architectures"

NETWORKS = {
    "cifar10": ("openood/resnet18_32x32",),
    "cifar100": ("openood/resnet18_32x32",),
    "imagenet200": ("openood/resnet18_224x224",),
    "imagenet1k": ("openood/resnet50",),
    OTHERS: (
        "torchvision/regnet_y_16gf",
        "torchvision/densenet121",
        "torchvision/wide_resnet50_2",
        "torchvision/resnext50_32x4d",
    ),
}

COLUMNS = dict(zip(NETWORKS[OTHERS], ("RegNet", "DenseNet", "WRN", "ResNeXt"), strict=True))

CHECKPOINTS = {"cifar10": 3, "cifar100": 3, "imagenet200": 3, "imagenet1k": 1, OTHERS: 1}

TUNED = frozenset({"odin", "react", "vim", "knn", "ash", "fold", "fold-r", "fold-a"})  # on OOD validation data

TEXTURES = ("texture", "textures")  # what OpenOOD calls them beside CIFAR, and beside ImageNet

_CODE = "the released code also chose a setting on OOD data"

REMARKS = {  # what the authors' code does and the text does not say, by row or column
    "AutoFold": _CODE,
    "AutoFold-R": _CODE,
    "AutoFold-A": _CODE,
    "DenseNet": "the released code leaves out this network's last ReLU",
}


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


def check_comparable_table(name: str) -> None:
    """Raise unless a table of the paper has numbers that a run can be put beside."""
    check_table_name(name)
    if name not in CHECKPOINTS:
        raise ValueError(f"no run has the numbers of the table {name}. Choose one of {', '.join(CHECKPOINTS)}.")


def suite_column(column: str, table: str, suite: Mapping[str, Any]) -> str | None:
    """Return where a run of ``suite`` has what a column of a table shows: a data set, or ``all``.

    Averages are there only when the suite has all data sets of the paper and no other.

    Example:
        >>> suite_column("SSB-Hard", "imagenet200", {"ood": [{"name": "ssb_hard"}]})
        'ssb_hard'
    """
    here = [ood["name"] for ood in suite["ood"]]
    if table == OTHERS:
        if COLUMNS.get(suite.get("architecture", "")) != column:
            return None
        column, table = AVERAGE, "imagenet1k"
    if column != AVERAGE:
        return _named(column, here)
    wanted = {_named(number.column, here) for number in read_table(table) if number.column != AVERAGE}
    return "all" if wanted == set(here) else None


def _named(column: str, here: Sequence[str]) -> str | None:
    """Return the data set of a suite that the paper calls ``column``."""
    plain = column.lower()
    name = plain.replace("-", "") if plain.startswith("cifar") else plain.replace("-", "_")
    return next((known for known in here if known == name or (column == "Textures" and known in TEXTURES)), None)


def labels(method: str) -> list[str]:
    """Return what a run may call a method of the paper, the one that was tuned on the same data first.

    Example:
        >>> labels("KNN"), labels("MSP")
        (['knn@ood', 'knn', 'knn@id'], ['msp', 'msp@ood', 'msp@id'])
    """
    name = method.lower()
    return sorted([name, f"{name}@ood", f"{name}@id"], key=lambda label: _tuning(label) != _tuning_in_paper(name))


def label_remark(label: str) -> str:
    """Return a sentence when a method was not tuned on the data on which the paper tuned it."""
    here, there = _tuning(label), _tuning_in_paper(label.partition("@")[0])
    return "" if here == there else f"{here} here, {there} in the paper"


def _tuning(label: str) -> str:
    at = label.partition("@")[2]
    return f"tuned on {at.upper()} data" if at else "untuned"


def _tuning_in_paper(name: str) -> str:
    return _tuning(f"{name}@ood" if name in TUNED else name)


# Where the paper contradicts itself: averages that are not the mean of what they average, and a few sentences.


SPACES = {"hessian_parameter": "parameter", "hessian_feature_milli": "feature (x1e-3)"}

REGIMES = {
    "ID": ("ID",),
    "Near-OOD": ("CIFAR-10", "CIFAR-100", "TIN", "SSB-Hard", "NINCO"),
    "Far-OOD": ("MNIST", "SVHN", "Textures", "Places365", "iNaturalist", "OpenImage-O"),
}

NOTES = (
    "Curvature is said to increase monotonically from ID over near-OOD to far-OOD, but the feature trace of CIFAR-100 "
    "goes 546.3, 1394.5, 1262.4.",
    "The loss of Theorem 1 has the wrong sign as printed, its minimiser is 2 Sigma^-1 mu, and the proof lacks a step: "
    "that a Gaussian average of a symmetric unimodal function decreases in |mean|. With it, the theorem holds.",
    "The loss behind the parameter Hessian of OOD data, which has no labels, is not stated.",
    "14 baselines are described and 13 are in the tables: MDSEns is missing.",
)


@dataclass(frozen=True)
class Contradiction:
    """An average of the paper that is not the mean of its own parts.

    Attributes:
        table, row, column, metric: Its place.
        printed: What the paper says.
        recomputed: The mean of the printed parts.
        without: The part without which the printed number would be right, if there is one.
    """

    table: str
    row: str
    column: str
    metric: str
    printed: float
    recomputed: float
    without: str = ""

    def __str__(self) -> str:
        """Say where it is and give both numbers."""
        digits = TABLES[self.table].digits
        text = (
            f"{self.table}, {self.row}, {self.column}, {self.metric}: {self.printed:.{digits}f} is printed, "
            f"the mean of its parts is {self.recomputed:.{digits}f}"
        )
        return text + (f" ({self.printed:.{digits}f} without {self.without})" if self.without else "")


def contradictions() -> list[Contradiction]:
    """Return every printed average that rounding cannot explain, found by doing the sums again.

    Parts and average are each rounded by up to half a unit of the last digit, so a whole unit between the two is
    possible without a mistake.
    """
    found = []
    for table, average, parts in _averages():
        recomputed = fmean(part.value for part in parts)
        if not _agree(table, average.value, recomputed):
            culprits = (part.column for part in parts if _without(table, average, parts, part))
            place = (table, average.row, average.column, average.metric)
            found.append(Contradiction(*place, average.value, recomputed, next(culprits, "")))
    return found


def _averages() -> Iterator[tuple[str, Number, list[Number]]]:
    """Yield each average of the paper with its table and its parts."""
    for table in TABLES:
        numbers = read_table(table)
        for average in numbers:
            if average.column == AVERAGE:
                same = [n for n in numbers if (n.row, n.metric) == (average.row, average.metric)]
                yield table, average, [n for n in same if n.column != AVERAGE]
    for table, space in SPACES.items():
        for average in read_table(table):
            place, columns = (f"{space}, {average.row}", average.metric), REGIMES[average.column]
            parts = [n for n in read_table("hessian_per_dataset") if (n.row, n.metric) == place]
            yield table, average, [n for n in parts if n.column in columns]


def _agree(table: str, printed: float, recomputed: float) -> bool:
    unit: float = 10.0 ** -TABLES[table].digits
    return abs(printed - recomputed) <= unit * (1 + 1e-6)  # the last digits of a float are not the paper's


def _without(table: str, average: Number, parts: list[Number], left_out: Number) -> bool:
    """Return whether an average is right when one of its parts is left out."""
    others = [part.value for part in parts if part is not left_out]
    return bool(others) and _agree(table, average.value, fmean(others))


# A run beside the numbers of the FOLD paper: what it reports, what was measured, and whether the two agree.


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
