"""What the study found, as rows of a table."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from flatfold.core.bootstrap import percentile_interval

from .measure import Measured
from .resampled import Vector
from .rules import RULES

REFERENCE = "paired"  # what a rule is compared with
ORACLE = "oracle"
DIGITS = 4  # of percentage points


@dataclass(frozen=True)
class Found:
    """A case and everything that was measured of it."""

    suite: str
    network: str
    role: str
    measured: Measured

    @property
    def name(self) -> str:
        """Suite and network."""
        return f"{self.suite} {self.network}".rstrip()

    def values(self, method: str, redrawn: bool = True, dataset: int = -1) -> Vector:
        """Return the AUROC of a method in every replicate, in per cent, ``(b,)``; by default the mean over all sets."""
        values = self.measured.redrawn if redrawn else self.measured.auroc
        return 100 * values[self.measured.methods.index(method), :, dataset]

    def regret(self, method: str, dataset: int = -1) -> Vector:
        """Return how far a method is behind FOLD at the best exponent, in percentage points, ``(b,)``."""
        return self.values(ORACLE, dataset=dataset) - self.values(method, dataset=dataset)

    def gain(self, method: str) -> Vector:
        """Return what a method is ahead of ``paired`` in every replicate, in percentage points, ``(b,)``."""
        return self.values(method) - self.values(REFERENCE)


@dataclass(frozen=True)
class Row:
    """One method on one set of unknown images; AUROC, regret and gain in percentage points, with 95 % intervals.

    Attributes:
        alpha, alpha_low, alpha_high: The exponent; where validation images are redrawn it lies in between.
        auroc, auroc_low, auroc_high: Test and unknown images redrawn.
        regret, regret_low, regret_high: The paper's score at the best exponent, minus this; all images redrawn, the
            best exponent kept.
        gain, gain_low, gain_high: This minus ``paired``; all images redrawn.
    """

    suite: str
    network: str
    role: str
    ood: str
    rule: str
    group: str
    alpha: float
    alpha_low: float
    alpha_high: float
    auroc: float
    auroc_low: float
    auroc_high: float
    regret: float
    regret_low: float
    regret_high: float
    gain: float
    gain_low: float
    gain_high: float


def with_interval(replicates: Vector) -> tuple[float, float, float]:
    """Return the value of replicate 0 and the interval of all others.

    Example:
        >>> with_interval(np.array([1.0, 0.0, 2.0]))
        (1.0, 0.05, 1.95)
    """
    low, high = percentile_interval(float(replicates[0]), replicates[1:])
    return round(float(replicates[0]), DIGITS), round(low, DIGITS), round(high, DIGITS)


def rows_of(found: Found) -> Iterator[Row]:
    """Yield a row for every method and set of unknown images, the mean over the sets included."""
    measured = found.measured
    for number, dataset in enumerate(measured.datasets):
        paired = found.values(REFERENCE, dataset=number)
        for index, method in enumerate(measured.methods):
            group = RULES[method].group if method in RULES else "sees unknown" if ORACLE in method else "reference"
            redrawn = found.values(method, dataset=number)
            yield Row(
                *(found.suite, found.network, found.role, dataset, method, group),
                *_alphas(measured.alphas[index, :, number]),
                *with_interval(found.values(method, redrawn=False, dataset=number)),
                *with_interval(found.regret(method, number)),
                *with_interval(redrawn - paired),
            )


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as a CSV file; an exponent that does not exist is empty."""
    content = io.StringIO()
    writer = csv.DictWriter(content, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value != value else value for key, value in asdict(row).items()} for row in rows)
    return content.getvalue()


def _alphas(alphas: Vector) -> tuple[float, float, float]:
    if np.isnan(alphas).any():
        return (float("nan"),) * 3
    return with_interval(alphas)
