"""Numbers that span many powers of ten, as words."""

from math import isfinite

from ..style import RAISED

SMALL, LARGE = 1e-3, 1e6  # outside, a power of ten is told


def quantity(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, with a power of ten where it is very small or large.

    Example:
        >>> quantity(53740.14), quantity(1.5), quantity(0.000123456), quantity(0.0), quantity(-61.8)
        ('53,740', '1.500', '1.235·10⁻⁴', '0', '−61.80')
    """
    if value == 0 or not isfinite(value):
        return f"{value:g}" if value else "0"
    size, sign = abs(value), "−" if value < 0 else ""
    rounded, _, exponent = f"{size:.{digits - 1}e}".partition("e")
    if SMALL <= size < LARGE:
        return f"{sign}{size:,.{max(digits - 1 - int(exponent), 0)}f}"
    return f"{sign}{rounded}·{_power(exponent)}"


def factor(value: float, known: float) -> str:
    r"""Return how many times the known figure another one is, nothing unless both are positive.

    Example:
        >>> factor(6.0, 4.0), factor(3.0, 4.0), factor(1.0, 0.0)
        ('×\xa01.50', '×\xa00.750', '')
    """
    return f"×\u00a0{quantity(value / known, 3)}" if value > 0 and known > 0 else ""


def tick(value: float, _position: int | None = None) -> str:
    """Return the text of a tick: no more digits than it has.

    Example:
        >>> tick(0.05), tick(2.5e-06), tick(0.0), tick(-40.0), tick(1e7)
        ('0.05', '2.5·10⁻⁶', '0', '−40', '10⁷')
    """
    size, sign = abs(value), "−" if value < 0 else ""
    if value == 0 or SMALL <= size < LARGE:
        return f"{sign}{size:.6g}"
    rounded, _, exponent = f"{size:.5e}".partition("e")
    return sign + f"{float(rounded):g}·" * (float(rounded) != 1) + _power(exponent)


def _power(exponent: str) -> str:
    return f"10{str(int(exponent)).translate(RAISED)}"
