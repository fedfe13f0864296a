"""The table of normalisations: what each gives to seven methods."""

from ...evaluate.reproduce.files import Ablations
from ...evaluate.reproduce.rows import NORMALISATIONS, Effect
from ..cells import head_cell, percent, table
from ..markup import Html, joined, scrolling, tag

SEVEN = ("msp", "ebo", "react", "ash", "fold", "fold-r", "fold-a")  # which the paper's table has
HEADS = {"none": "none", "partial": "partial", "full": "full"}


def effects_table(ablations: Ablations) -> Html:
    """Return a line per method, a column per normalisation: averages of AUROC and FPR95, and the gain in AUROC.

    A gain is marked where its paired interval lies above 0, and said to be a loss where it lies below.
    """
    methods = list(dict.fromkeys(effect.method for effect in ablations.effects))
    lines = []
    for method in methods:
        cells = [_cell(ablations.effect(method, kind)) for kind in NORMALISATIONS]
        lines.append(tag("tr", tag("th", method, scope="row"), *cells))
    heads = [head_cell("method", text=True)]
    heads += [head_cell(HEADS[kind], f"α = {ablations.alphas[kind]:g}") for kind in NORMALISATIONS]
    told = {method: reason for method, reason in ablations.refused.items() if method in SEVEN}
    refused = [tag("p", f"{method} was left out: {reason}") for method, reason in told.items()]
    shown = scrolling(table(heads, lines, class_="sortable results"), "Normalisation in front of methods")
    return joined([shown, *refused])


def _cell(effect: Effect | None) -> Html:
    if effect is None:
        return tag("td", data_sort="")
    parts: list[object] = [tag("b", percent(effect.auroc)), " ", tag("span", percent(effect.fpr95))]
    mark = None
    if effect.normalisation != "none":
        low, gain, high = (signed(part) for part in (effect.gain_low, effect.gain, effect.gain_high))
        parts.append(tag("small", f"{gain} ({low} to {high})"))
        mark = "best" if effect.gain_low > 0 else "below" if effect.gain_high < 0 else None
        parts += [tag("small", "a loss", class_="verdict")] if mark == "below" else []
    return tag("td", *parts, class_=mark, data_sort=round(effect.auroc, 7))


def signed(share: float) -> str:
    """Return a difference of shares in percentage points with its sign.

    Example:
        >>> signed(0.0123), signed(-0.5)
        ('+1.23', '−50.00')
    """
    return f"{100 * share:+.2f}".replace("-", "−")
