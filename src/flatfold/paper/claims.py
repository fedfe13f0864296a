"""Checks of the paper's claims: their type, the measurements they use, and the format of numbers in their texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ..evaluate.results import Results
from ..evaluate.study_results import Study
from ..report.templates import percent as format_percent
from ..report.templates import quantity, signed
from .ablations import Ablations

HOLDS = {1: True, 0: None, -1: False}  # by the order of two statistics: above, not significantly different, below


class NetworkRun(NamedTuple):
    """All measurements of one network; ``network`` is its name in tables, empty if it is the only one."""

    network: str
    results: Results
    study: Study
    ablations: Ablations


@dataclass(frozen=True)
class Check:
    """One condition that must hold if a claim is true."""

    network: str  # that was measured; "all" for a mean over networks, "any" for the theorem
    what: str  # the condition in a few words, with the numbers
    holds: bool | None  # None if the intervals leave it open


class Finding(NamedTuple):
    """The result of a run for one exhibit: a clause without a full stop, and the checks."""

    shows: str
    checks: list[Check]


number = partial(quantity, digits=3)


def percent(share: float) -> str:
    """Return a share in percent with its unit."""
    return f"{format_percent(share)} %"


def points(value: float, low: float, high: float) -> str:
    """Return a difference of shares in percentage points, with its interval.

    Example:
        >>> points(0.0123, -0.001, 0.02)
        '+1.23 (−0.10 to +2.00)'
    """
    return f"{signed(value)} ({signed(low)} to {signed(high)})"


def join_words(words: Sequence[str]) -> str:
    """Return words with commas between them, and an "and" before the last."""
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])


def count_held(checks: Sequence[Check]) -> int:
    """Return the number of checks that hold."""
    return sum(check.holds is True for check in checks)


def above_zero(low: float, high: float) -> bool | None:
    """Return whether an interval lies above 0; None if it contains 0.

    Example:
        >>> above_zero(0.1, 0.2), above_zero(-0.2, -0.1), above_zero(-0.1, 0.1), above_zero(0.0, 0.0)
        (True, False, None, None)
    """
    return True if low > 0 else False if high < 0 else None


def at_most(low: float, high: float, bound: float) -> bool | None:
    """Return whether an interval lies at or below a bound; None if it contains the bound.

    Example:
        >>> at_most(1.0, 2.0, 2.0), at_most(2.5, 3.0, 2.0), at_most(1.0, 3.0, 2.0)
        (True, False, None)
    """
    return True if high <= bound else False if low > bound else None


def all_hold(conditions: Iterable[bool | None]) -> bool | None:
    """Return False if one condition is false, else None if one is open, else True."""
    outcomes = set(conditions)
    return False if False in outcomes else None if None in outcomes else True
