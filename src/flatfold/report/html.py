"""HTML by functions, for the reproduction page until it is rendered by templates."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from markupsafe import Markup

from ..evaluate.results import METRICS, Results
from ..evaluate.study_results import Study
from .figure import Drawing
from .page import columns_of
from .templates import HERE as TEMPLATES
from .templates import _environment, percent

VOID = {"img", "input"}


Html = Markup


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element; ``class_`` is ``class`` and ``data_key`` is ``data-key``."""
    told = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            told += f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
    return Html(f"<{name}{told}>{joined(children)}" + ("" if name in VOID else f"</{name}>"))


def joined(parts: Iterable[object]) -> Html:
    """Return parts one behind the other: markup as it is, anything else as text."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts))


def definition_list(entries: Mapping[str, object]) -> Html:
    """Return names and values; a mapping inside is a list inside, and what is empty is left out."""
    pairs = []
    for key, value in entries.items():
        if isinstance(value, Mapping):
            inner = definition_list({str(name): part for name, part in value.items()})
            pairs += [tag("dt", key), tag("dd", inner)] if value else []
        elif value not in (None, "", []):
            told = ", ".join(map(str, value)) if isinstance(value, list) else value
            pairs += [tag("dt", key), tag("dd", told)]
    return tag("dl", *pairs)


def scrolling(table: Html, label: str) -> Html:
    """Return a table in a box that scrolls by itself, also by keyboard, so that the page never moves sideways."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


HERE = Path(__file__).parent


def filled(template: str, **parts: object) -> str:
    """Return a template of this folder with style, script and these parts in place; what is not markup is escaped."""
    told = {name: joined([part]) for name, part in parts.items()}
    return Template(_read(template)).substitute(
        told, css=_read("templates/page.css"), script=_read("templates/page.js")
    )


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf8")


# Cells of a sortable table that can show one metric after the other.


OPEN_NOTES = 6  # notes of methods that are shown without a click


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


def warning_box(told: Sequence[object], notes: Sequence[str]) -> Html:
    """Return a box with sentences, and notes that are behind a click when they are many; nothing without any."""
    if not told and not notes:
        return Html()
    inside: list[Html] = []
    if len(notes) > OPEN_NOTES:
        summary = tag("summary", f"{len(notes)} notes on methods")
        inside = [tag("details", summary, bullets(notes))]
        notes = []
    listed = [bullets([*told, *notes])] if told or notes else []
    return tag("aside", tag("h2", "Before you compare"), *listed, *inside, class_="warning")


def bullets(sentences: Sequence[object]) -> Html:
    """Return a list with a bullet per sentence."""
    return tag("ul", *(tag("li", sentence) for sentence in sentences))


def side_by_side(drawing: Drawing, openly: int | None = None, class_: str = "panels") -> Html:
    """Return the legend and the panels of a figure."""
    macros: Any = _environment(TEMPLATES).get_template("macros.html").module
    return Html(macros.panels(drawing, openly, class_))


def column_heads(results: Results, columns: Sequence[str]) -> list[Html]:
    """Return the heads of data sets and averages, by the last of which the table is sorted."""
    return [
        head_cell(*column, sort="descending" if name == columns[-1] else None)
        for name, column in zip(columns, columns_of(results, columns), strict=True)
    ]


def compare(study: Study) -> Study:
    """Return the study."""
    return study
