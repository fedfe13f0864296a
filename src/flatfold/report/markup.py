"""HTML from values: whatever is not markup already is escaped."""

import json
from collections.abc import Iterable, Mapping
from html import escape

VOID = {"img", "input"}


class Html(str):
    """Text that is markup. Everything else that goes into a page becomes text."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        name: Of the element.
        *children: What it contains: :class:`Html` as it is, anything else as text.
        **attributes: ``class_`` is ``class`` and ``data_key`` is ``data-key``; True gives an attribute without a value,
            None and False give none.

    Example:
        >>> tag("td", "a < b", class_="best", title=None)
        '<td class="best">a &lt; b</td>'
    """
    told = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            told += f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
    return Html(f"<{name}{told}>{joined(children)}" + ("" if name in VOID else f"</{name}>"))


def joined(parts: Iterable[object]) -> Html:
    """Return parts one behind the other: markup as it is, anything else as text."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts))


def data_block(name: str, content: object) -> Html:
    """Return a script element that holds ``content`` for the page's own script, and cannot end early or run."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')


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
