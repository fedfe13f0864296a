"""Jinja2 templates of all HTML pages: one environment, with filters for numbers and macros for tables and figures.

``render("name.html", **values)`` returns a page or a part of one as markup. Templates are in ``report/templates``; a
package with its own templates passes their folder, which is searched first: ``render("x.html", HERE, **values)``.
Values are escaped unless they are :class:`markupsafe.Markup`, and an undefined name is an error.

A page extends ``base.html``, which provides the head, the inline style and script, the title, the facts and the menu.
It needs the values ``title`` and ``facts`` (pairs of number and description), and fills the blocks ``brand``, ``lead``,
``main`` and, where needed, ``page_title``, ``style`` and ``footer``. ``macros.html`` holds, each with a comment on its
arguments: ``section`` (also an entry of the menu), ``docs_link``, ``facts``, ``warning_box``, ``bullets``,
``definition_list``, ``names``; ``table``, ``head``, ``column_heads``, ``method_head``, ``sources``, ``metric_cell``,
``result_cell``, ``controls`` (the switches of a results table); ``panels`` and ``wide_or_tall`` (figures).

Filters: ``percent`` (0.93456 -> 93.46), ``share`` (0.93456 -> 93.5 %), ``interval`` (of shares, in percent), ``signed``
(percentage points with sign), ``quantity`` (any size, significant digits), ``factor`` (ratio of two positive values),
``thousands`` (1,234).
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from math import isfinite
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..display.look import MARK, icon, page_style
from ..display.numbers import power_of_ten
from ..evaluate.results import METRICS

HERE = Path(__file__).parent / "templates"

SMALL, LARGE = 1e-3, 1e6  # numbers outside this range are written with a power of ten


def render(template: str, folder: Path = HERE, **values: object) -> Markup:
    """Render a template with values; ``folder`` is searched before the templates of this package."""
    return Markup(_environment(folder).get_template(template).render(values))


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.policies["json.dumps_kwargs"] = {
        "separators": (",", ":"),
        "ensure_ascii": False,
        "allow_nan": False,
        "sort_keys": False,
    }
    environment.globals |= {
        "docs": documentation(),
        "page_style": Markup(page_style()),
        "mark": Markup(MARK),
        "icon": icon(),
    }
    for function in (percent, share, interval, signed, quantity, factor, thousands, metric_values, intervals):
        environment.filters[function.__name__] = function
    return environment


def documentation() -> str:
    """Return the URL of the documentation from the package's metadata, or an empty string without one."""
    try:
        addresses = metadata("flatfold").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    pairs = (address.partition(", ") for address in addresses)
    return next((link.rstrip("/") for label, _, link in pairs if label.lower() == "documentation"), "")


def suite_title(suite: Mapping[str, str]) -> str:
    """Return the name of a suite and, if it has one, of its network."""
    return f"{suite['name']}, {suite['network']}" if suite["network"] else str(suite["name"])


def percent(value: float) -> str:
    """Format a share in percent."""
    return f"{100 * value:.2f}"


def share(part: float) -> str:
    """Format a share in percent, never rounded up to 100 % or down to 0 %.

    Example:
        >>> share(0.9871), share(0.99996), share(1.0), share(0.0), share(0.0001)
        ('98.7 %', 'over 99.9 %', '100 %', '0 %', 'under 0.1 %')
    """
    if part <= 0 or part >= 1:
        return "100 %" if part > 0 else "0 %"
    if part > 0.9995:
        return "over 99.9 %"
    return f"{100 * part:.1f} %" if part >= 0.0005 else "under 0.1 %"


def interval(ends: tuple[float, float] | None) -> str:
    """Format an interval of shares in percent; None gives an empty string."""
    return "" if ends is None else f"{percent(ends[0])}–{percent(ends[1])}"


def signed(difference: float) -> str:
    """Format a difference of shares in percentage points with its sign.

    Example:
        >>> signed(0.0123), signed(-0.5)
        ('+1.23', '−50.00')
    """
    return f"{100 * difference:+.2f}".replace("-", "−")


def thousands(value: int) -> str:
    """Format an integer with commas."""
    return f"{value:,}"


def quantity(value: float, digits: int = 4) -> str:
    """Format a number with significant digits, with a power of ten if it is very small or large.

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
    return f"{sign}{rounded}·{power_of_ten(int(exponent))}"


def factor(value: float, reference: float) -> str:
    r"""Format the ratio of two values; an empty string unless both are positive.

    Example:
        >>> factor(6.0, 4.0), factor(3.0, 4.0), factor(1.0, 0.0)
        ('×\xa01.50', '×\xa00.750', '')
    """
    return f"×\u00a0{quantity(value / reference, 3)}" if value > 0 and reference > 0 else ""


def metric_values(values: object, below: Mapping[str, str]) -> list[tuple[float, str, str]]:
    """Return the value, text and subtitle of every metric, as read by the page's script."""
    numbers = values if isinstance(values, Mapping) else vars(values)
    return [(round(numbers[metric], 7), percent(numbers[metric]), below.get(metric, "")) for metric in METRICS]


def intervals(ends: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """Format intervals by metric."""
    return {metric: interval(both) for metric, both in ends.items()}
