"""Cells of a sortable table that can show one metric after the other."""

import json
from collections.abc import Mapping, Sequence

from ..evaluate.rows import METRICS
from .markup import Html, joined, tag

METRIC_NAMES = {
    "auroc": "AUROC",
    "fpr95_ood_positive": "FPR95, OOD positive",
    "fpr95_id_positive": "FPR95, ID positive",
    "aupr_out": "AUPR-out",
    "aupr_in": "AUPR-in",
}
LOWER_IS_BETTER = ("fpr95_ood_positive", "fpr95_id_positive")


def percent(value: float) -> str:
    """Return a share as a number of percent.

    Example:
        >>> percent(0.93456)
        '93.46'
    """
    return f"{100 * value:.2f}"


def between(interval: tuple[float, float] | None) -> str:
    """Return an interval of shares in percent, or nothing."""
    return "" if interval is None else f"{percent(interval[0])}–{percent(interval[1])}"


def metric_cell(
    values: Mapping[str, float], soft: Mapping[str, str], best: bool = False, title: str | None = None
) -> Html:
    """Return a cell that shows AUROC and FPR95, and keeps every metric for the page's script.

    Args:
        values: Shares by metric.
        soft: What is shown in small letters below each of them, by metric.
        best: Whether the AUROC is marked.
        title: What a pointer over the cell reads.
    """
    kept = [[round(values[m], 7), percent(values[m]), soft.get(m, "")] for m in METRICS]
    plain = joined([tag("b", kept[0][1]), " ", tag("span", kept[1][1])])
    return tag(
        "td",
        plain,
        class_="best" if best else None,
        title=title,
        data_metrics=json.dumps(kept, separators=(",", ":"), ensure_ascii=False),
    )


def head_cell(
    name: str, below: str = "", title: str | None = None, sort: str | None = None, text: bool = False
) -> Html:
    """Return the head of a column, with a word below its name in small letters.

    Args:
        name: Of the column.
        below: Said below it.
        title: What a pointer over it reads.
        sort: ``descending`` or ``ascending`` if the table is sorted by it.
        text: Whether the column holds words, which stand on the left.
    """
    small = tag("small", below) if below else ""
    return tag("th", name, small, scope="col", title=title, aria_sort=sort, class_="text" if text else None)


def table(heads: Sequence[Html], lines: Sequence[Html], **attributes: object) -> Html:
    """Return a table that the page's script makes sortable."""
    body = tag("tbody", *lines)
    return tag("table", tag("thead", tag("tr", *heads)), body, **{"class_": "sortable", **attributes})


def metric_switch(name: str) -> Html:
    """Return the buttons that choose a metric, the first of them pressed."""
    choices = [
        tag(
            "label",
            tag(
                "input", type="radio", name=name, value=number, checked=number == 0, data_low=metric in LOWER_IS_BETTER
            ),
            tag("span", METRIC_NAMES[metric]),
        )
        for number, metric in enumerate(METRICS)
    ]
    return tag("fieldset", tag("legend", "Metric"), *choices, class_="choices metric")
