"""Draw the figure of the README, from the results of the residual network of the built-in suite.

Run as ``flatfold bench digits --networks residual --methods msp,ebo,fourfold --out out/figure`` and then
``python docs/figure.py out/figure/residual``.
"""

import sys
from dataclasses import replace
from pathlib import Path

from flatfold.evaluate.results import load_results
from flatfold.report.figures import histograms

SHOWN = ("msp", "ebo", "fourfold")

results = load_results(Path(sys.argv[1]))
chosen = [run for name in SHOWN for run in results.methods if run.method == name]
svg = histograms(replace(results, methods=chosen)).svg()
svg = svg.replace("<svg ", '<svg style="background: #fff" ', 1)  # readable on a dark page too
Path(__file__).with_name("scores.svg").write_text(svg, encoding="utf8")
