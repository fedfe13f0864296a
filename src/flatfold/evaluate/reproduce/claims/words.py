"""Numbers and comparisons as words, for sentences about a run."""

from collections.abc import Iterable, Sequence
from math import isfinite

from ...study.rows import Name, Space

SPACES: dict[Space, str] = {"parameter": "parameters", "feature": "features", "logit": "logits"}
NAMES: dict[Name, str] = {"lambda_max": "λmax", "trace": "trace"}
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SMALL, LARGE = 1e-3, 1e6  # outside, a power of ten is told


def number(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point.

    Example:
        >>> number(13.477), number(26834.2), number(0.0), number(0.00001234), number(-2.5e9)
        ('13.5', '26,834', '0', '1.23·10⁻⁵', '−2.50·10⁹')
    """
    size, sign = abs(value), "−" if value < 0 else ""
    if size == 0 or not isfinite(size):
        return f"{sign}{size:g}"
    digits, _, exponent = f"{size:.2e}".partition("e")
    if not SMALL <= size < LARGE:
        return f"{sign}{digits}·10{str(int(exponent)).translate(RAISED)}"
    return f"{sign}{size:,.{max(2 - int(exponent), 0)}f}"


def percent(share: float) -> str:
    """Return a share in percent.

    Example:
        >>> percent(0.98765)
        '98.77 %'
    """
    return f"{100 * share:.2f} %"


def gained(value: float, low: float, high: float) -> str:
    """Return a difference of shares in percentage points, with its interval.

    Example:
        >>> gained(0.0123, -0.001, 0.02)
        '+1.23 (−0.10 to +2.00)'
    """
    told, start, end = (f"{100 * part:+.2f}".replace("-", "−") for part in (value, low, high))
    return f"{told} ({start} to {end})"


def above_zero(low: float, high: float) -> bool | None:
    """Return whether an interval lies above 0; None where it holds 0.

    Example:
        >>> above_zero(0.1, 0.2), above_zero(-0.2, -0.1), above_zero(-0.1, 0.1), above_zero(0.0, 0.0)
        (True, False, None, None)
    """
    return True if low > 0 else False if high < 0 else None


def at_most(low: float, high: float, bound: float) -> bool | None:
    """Return whether a range reaches no further than a bound; None where it holds it.

    Example:
        >>> at_most(1.0, 2.0, 2.0), at_most(2.5, 3.0, 2.0), at_most(1.0, 3.0, 2.0)
        (True, False, None)
    """
    return True if high <= bound else False if low > bound else None


def all_above(orders: Iterable[int]) -> bool | None:
    """Return whether all of several comparisons (1 above, -1 below, 0 not told) came out above; False if one is below.

    Example:
        >>> all_above([1, 1]), all_above([1, 0]), all_above([1, 0, -1])
        (True, None, False)
    """
    found = list(orders)
    return False if -1 in found else None if 0 in found else True


def listed(words: Sequence[str]) -> str:
    """Return words with commas between them, and an "and" before the last.

    Example:
        >>> listed(["a", "b", "c"]), listed(["a"])
        ('a, b and c', 'a')
    """
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])
