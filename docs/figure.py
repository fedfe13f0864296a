"""Draw the figure of README and start page, from the results whose table README shows.

Run ``make demo``, then ``python docs/figure.py out/digits``. On a telephone, the figure is as wide as the screen and
its text still has 11 pixels.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

from flatfold.display.figure import THRESHOLD, Drawing, Key, adaptive, dataset_keys
from flatfold.evaluate.results import load_results
from flatfold.report.figures import NARROW_BAND, threshold_figure

SHOWN = {"fourfold": "FourFold", "ebo": "energy"}
WIDTH = 500  # pixels, where there is room

results = load_results(Path(sys.argv[1]))
panels = []
for method, title in SHOWN.items():
    run = next(run for run in results.methods if run.method == method)
    (panel,) = threshold_figure(replace(results, methods=[run]), NARROW_BAND).panels
    panels.append(replace(panel, title=title, note=f"AUROC {100 * results.cells[method, 'all'].auroc:.2f}"))
keys = [*dataset_keys([ood["name"] for ood in results.suite["ood"]]), Key("threshold", THRESHOLD)]
svg = adaptive(Drawing("scores", panels, keys, columns=1, size=(NARROW_BAND[0], 1.6)).svg())
width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
size = f'width="{WIDTH}" height="{WIDTH * height / width:.0f}"'
svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', size, svg, count=1)
Path(__file__).with_name("scores.svg").write_text(svg, encoding="utf8")
