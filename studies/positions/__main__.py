"""Measure, and write ``positions.csv`` and ``positions.svg`` for the documentation."""

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes

from flatfold.display.figure import INK, THRESHOLD, Drawing, Key, LineStyle, Panel, adaptive, line_style
from flatfold.evaluate.results import as_csv
from flatfold.io.files import write_atomically
from studies.positions import Measured, measure_all, scene_scores

GUARD, POOLED = line_style(0), line_style(1)


def draw(rows: list[Measured], axes: Axes) -> None:
    """Draw both shares of each setting, relative to the rate asked for, with two standard errors."""
    for place, row in enumerate(rows):
        for shift, style, share, error in (
            (-0.12, GUARD, row.guard, row.guard_error),
            (0.12, POOLED, row.pooled, row.pooled_error),
        ):
            value, bar = share / row.fpr, 2 * error / row.fpr
            axes.errorbar([place + shift], [value], yerr=[bar], fmt="o", color=style.colour, ms=5, capsize=3)
    axes.axhline(1, color=INK, lw=1, ls=THRESHOLD.stroke)
    axes.set_xticks(range(len(rows)), [f"{row.images} images\n{100 * row.fpr:g} %" for row in rows])
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.set_ylim(0, None)
    axes.set_ylabel("false alarms / rate asked for")


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=Path, default=Path("out/scenes"), help="folder of `flatfold bench scenes`")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    options = parser.parse_args()
    found = measure_all(scene_scores(options.scenes))
    write_atomically(options.out / "positions.csv", as_csv(map(asdict, found)))
    titles = {"scenes": "Scenes", "synthetic": "Maps with strongly dependent pixels"}
    panels = [Panel(title, partial(draw, [row for row in found if row.maps == maps])) for maps, title in titles.items()]
    keys = [Key("a guard's threshold", GUARD), Key("a threshold on pooled pixels", POOLED)]
    keys.append(Key("the rate asked for", LineStyle(INK, THRESHOLD.dashes)))
    drawing = Drawing("positions", panels, keys, columns=2, size=(3.9, 2.7))
    write_atomically(options.out / "positions.svg", adaptive(drawing.svg()))


if __name__ == "__main__":
    main()
