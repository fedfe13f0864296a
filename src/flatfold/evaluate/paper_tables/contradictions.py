"""Where the paper contradicts itself: averages that are not the mean of what they average, and a few sentences."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from . import AVERAGE, TABLES, Number, read_table

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
