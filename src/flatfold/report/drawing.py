"""A figure of several panels: for the page as one SVG each, for a paper as one file."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..files import write_atomically
from .inline import for_a_page
from .style import RC, Look

NOTHING_TOLD = {"Date": None, "Creator": None, "Format": None, "Type": None}  # no dates: same results, same bytes
LINE = 32  # letters above a panel
DPI = 144  # of what is rasterised inside a figure


@dataclass(frozen=True)
class Panel:
    """One picture of a figure.

    Attributes:
        title: Above it.
        draw: Puts it into axes.
        note: Said softly behind the title on the page.
    """

    title: str
    draw: Callable[[Axes], None]
    note: str = ""


@dataclass(frozen=True)
class Key:
    """An entry of the legend: a line, or an area where ``filled``."""

    label: str
    look: Look
    filled: bool = False


@dataclass(frozen=True)
class Drawing:
    """A figure.

    Attributes:
        name: Of its files, and of everything inside its SVGs.
        panels: In reading order; none where the results have nothing for it.
        keys: The legend of all panels.
        columns: How many panels stand side by side in a file, at most.
        size: Of a panel, in inches.
    """

    name: str
    panels: Sequence[Panel]
    keys: Sequence[Key] = ()
    columns: int = 3
    size: tuple[float, float] = (3.4, 2.2)

    def inline(self) -> list[str]:
        """Return one SVG element per panel, without title, with ids that no other element of a page has."""
        return [self._inline(number, panel) for number, panel in enumerate(self.panels)]

    def svg(self) -> str:
        """Return the whole figure, with titles and legend, as an SVG file."""
        return self._saved("svg")["svg"].decode()

    def save(self, folder: Path) -> None:
        """Write ``NAME.svg`` and ``NAME.pdf``; without panels, remove those of an earlier run."""
        paths = {kind: folder / f"{self.name}.{kind}" for kind in ("svg", "pdf")}
        if self.panels:
            for kind, content in self._saved(*paths).items():
                write_atomically(paths[kind], content)
        else:
            for path in paths.values():
                path.unlink(missing_ok=True)

    def _inline(self, number: int, panel: Panel) -> str:
        name = f"{self.name}-{number}"
        with matplotlib.rc_context({**RC, "svg.hashsalt": name}):  # without a salt, ids differ from run to run
            figure = Figure(figsize=self.size, layout="constrained")
            panel.draw(figure.subplots())
            return for_a_page(_bytes(figure, "svg").decode(), name, f"{self.name}: {panel.title}")

    def _saved(self, *kinds: str) -> dict[str, bytes]:
        with matplotlib.rc_context({**RC, "svg.hashsalt": self.name}):
            across = 2 if len(self.panels) == 4 else min(self.columns, len(self.panels))
            rows = -(-len(self.panels) // across)
            width, height = self.size
            apart = ConstrainedLayoutEngine(wspace=0.06)  # titles reach from side to side
            figure = Figure(figsize=(width * across, (height + 0.25) * rows + 0.4), layout=apart)
            places: list[Axes] = figure.subplots(rows, across, squeeze=False).flatten().tolist()
            self._add_legend(figure)
            for spare in places[len(self.panels) :]:
                spare.set_visible(False)
            for axes, panel in zip(places, self.panels, strict=False):
                _set_title(axes, panel)
                panel.draw(axes)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # it is laid out now; a second time would only cost
            return {kind: _bytes(figure, kind) for kind in kinds}

    def _add_legend(self, figure: Figure) -> None:
        if not self.keys:
            return
        handles = [
            Patch(color=key.look.colour)
            if key.filled
            else Line2D([], [], color=key.look.colour, ls=key.look.stroke, lw=1.4)
            for key in self.keys
        ]
        numbers = [str(number) for number in range(len(handles))]  # a label that begins with _ would be left out
        across = max(1, int(figure.get_figwidth() * 11 / (4 + max(len(key.label) for key in self.keys))))
        legend = figure.legend(handles, numbers, loc="outside upper left", ncols=min(across, len(handles)))
        for text, key in zip(legend.get_texts(), self.keys, strict=True):
            text.set_text(key.label)


def _set_title(axes: Axes, panel: Panel) -> None:
    """Write title and note on one line where both fit, else the note below."""
    if len(panel.title) + len(panel.note) > LINE:
        axes.set_title(f"{panel.title}\n{panel.note}".rstrip())
    else:
        axes.set_title(panel.title)
        axes.set_title(panel.note, loc="right", fontweight="normal")


def _bytes(figure: Figure, kind: str) -> bytes:
    content = io.BytesIO()
    told = NOTHING_TOLD if kind == "svg" else {"CreationDate": None}
    figure.savefig(content, format=kind, metadata=told, transparent=True, dpi=DPI)
    return content.getvalue()
