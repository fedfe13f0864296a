"""A figure as a part of the page: its panels stand side by side and wrap on a narrow screen."""

from .drawing import Drawing, Key
from .markup import Html, joined, tag


def side_by_side(drawing: Drawing, openly: int | None = None, class_: str = "panels") -> Html:
    """Return the legend and the panels of a figure.

    Args:
        drawing: The figure.
        openly: How many panels are shown at once; the others come at a click. None shows all.
        class_: Of the box around the panels.
    """
    figures = []
    for panel, svg in zip(drawing.panels, drawing.inline(), strict=True):
        note = tag("span", panel.note) if panel.note else ""
        figures.append(tag("figure", tag("figcaption", panel.title, note), Html(svg)))
    shown = figures if openly is None else figures[:openly]
    rest = figures[len(shown) :]
    parts = [_legend(drawing), tag("div", *shown, class_=class_)]
    if rest:
        parts.append(tag("details", tag("summary", f"{len(rest)} more"), tag("div", *rest, class_=class_)))
    return joined(parts)


def _legend(drawing: Drawing) -> Html:
    return tag("ul", *(tag("li", _swatch(key), key.label) for key in drawing.keys), class_="keys")


def _swatch(key: Key) -> Html:
    colour, dashes = key.look
    if key.filled:
        mark = tag("rect", width=26, height=11, rx=2, fill=colour)
    else:
        pattern = " ".join(f"{1.6 * dash:g}" for dash in dashes) or None  # as wide as a line of the figures
        mark = tag("path", d="M0 6H26", stroke=colour, stroke_width=2, stroke_dasharray=pattern)
    return tag("svg", mark, viewBox="0 0 26 11", aria_hidden="true")
