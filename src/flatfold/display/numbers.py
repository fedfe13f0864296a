"""Numbers as text."""

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LARGEST_Z = 100.0  # larger numbers of standard deviations are not distinguished


def count(number: int, noun: str) -> str:
    """Format a number with its noun.

    Example:
        >>> count(1, "row"), count(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rate(share: float) -> str:
    """Format a share that somebody has chosen, such as a false-alarm rate, in percent.

    Example:
        >>> rate(0.05), rate(0.07), rate(0.001)
        ('5 %', '7 %', '0.1 %')
    """
    return f"{100 * share:g} %"


def size(count: int) -> str:
    """Format the size of a file.

    Example:
        >>> size(8_400), size(1_260_000)
        ('8.4 kB', '1.26 MB')
    """
    return f"{count / 1e3:.3g} kB" if count < 999_500 else f"{count / 1e6:.4g} MB"


def power_of_ten(exponent: int) -> str:
    """Format a power of ten with a superscript exponent."""
    return f"10{str(exponent).translate(SUPERSCRIPTS)}"


def z_score(z: float) -> str:
    """Format a number of standard deviations, which says no more than "far" when it is very large.

    Example:
        >>> z_score(6.14), z_score(3159.0)
        ('z = 6.1', 'z > 100')
    """
    return f"z > {LARGEST_Z:g}" if z > LARGEST_Z else f"z = {z:.1f}"
