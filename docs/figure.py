"""Draw the figure of the README from the results of `make demo`; run as `python docs/figure.py`."""

from dataclasses import replace
from pathlib import Path

from flatfold.evaluate.results import load_results
from flatfold.report.figures import histograms

SHOWN = ("msp", "ebo", "autofold")

results = load_results(Path("out/digits"))
chosen = [run for name in SHOWN for run in results.methods if run.method == name]
svg = histograms(replace(results, methods=chosen)).svg()
svg = svg.replace("<svg ", '<svg style="background: #fff" ', 1)  # readable on a dark page too
Path(__file__).with_name("scores.svg").write_text(svg, encoding="utf8")
