"""Content of an exhibit, and how that of several networks comes together."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...evaluate.reproduce.verdict import Material
from ..drawing import Drawing
from ..markup import Html, joined, tag
from ..panels import side_by_side


class Shown(NamedTuple):
    """The content of an exhibit.

    Attributes:
        html: For the page.
        drawings: For files.
        lines: Of a CSV file; none where a figure has all there is to tell.
    """

    html: Html
    drawings: Sequence[Drawing] = ()
    lines: Sequence[dict[str, Any]] = ()


Show = Callable[[Sequence[Material], str], Shown]


def named(stem: str, network: str) -> str:
    """Return the name of a drawing.

    Example:
        >>> named("figure-4", "cnn"), named("figure-4", "")
        ('figure-4-cnn', 'figure-4')
    """
    return f"{stem}-{network}" if network else stem


def per_network(materials: Sequence[Material], show: Callable[[Material], Html]) -> Html:
    """Return something of each network, below the name of each where there are several."""
    return joined(
        joined([*([tag("h3", material.network)] if len(materials) > 1 else []), show(material)])
        for material in materials
    )


def drawn(draw: Callable[[Material, str], Drawing]) -> Show:
    """Return a figure with one drawing for each network."""

    def show(materials: Sequence[Material], stem: str) -> Shown:
        drawings = {each.network: draw(each, named(stem, each.network)) for each in materials}
        return Shown(per_network(materials, lambda each: side_by_side(drawings[each.network])), [*drawings.values()])

    return show
