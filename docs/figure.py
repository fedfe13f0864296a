"""Draw the figure of README and start page, from the results whose table README shows.

Run ``make demo``, then ``python docs/figure.py out/digits``. On a telephone, the figure is as wide as the screen and
its text still has 11 pixels.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

from flatfold.evaluate.results import load_results
from flatfold.report.figure import adaptive
from flatfold.report.figures import histograms

SHOWN = ("msp", "ebo", "fourfold")
PANEL = (3.9, 1.1)  # inches
WIDTH = 500  # pixels, where there is room

results = load_results(Path(sys.argv[1]))
chosen = [run for name in SHOWN for run in results.methods if run.method == name]
drawing = replace(histograms(replace(results, methods=chosen)), columns=1, size=PANEL)
svg = adaptive(drawing.svg())
width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
size = f'width="{WIDTH}" height="{WIDTH * height / width:.0f}"'
svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', size, svg, count=1)
Path(__file__).with_name("scores.svg").write_text(svg, encoding="utf8")
