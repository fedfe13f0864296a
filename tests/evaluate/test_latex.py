"""Tables in LaTeX: every figure, the best of a column in bold, names that cannot become commands."""

import re
from dataclasses import replace

import pytest

from flatfold.evaluate.summary import summary_latex
from tests.evaluate.runs import make_run

HOSTILE = r"a_b & 5 % \x"


def body(text):
    """Return the cells of each line between the rules, by method."""
    lines = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r"\\")]
    return {line[0]: line[1:] for line in lines}


def test_the_best_of_a_column_is_bold_and_equals_too_and_notes_become_comments():
    run = make_run(0.9, methods=("msp", "ebo", "knn"), sets={"pens": "near"}, deviations=["few\nimages"])
    worse = [replace(row, auroc=0.8, fpr95_ood_positive=0.5) if row.method == "knn" else row for row in run.rows]
    table = replace(run, rows=worse).to_latex()
    assert body(table)["msp"] == body(table)["ebo"] == [r"\textbf{90.00}", r"\textbf{45.00}"] * 2
    assert body(table)["knn"] == ["80.00", "50.00", *[r"\textbf{90.00}", r"\textbf{45.00}"]]
    assert "% toy: few images\n" in table
    assert r"\begin{tabular}{lrrrr}" in table
    assert re.search(
        r"\\toprule.*\\cmidrule\(lr\)\{2-3\} \\cmidrule\(lr\)\{4-5\}.*\\midrule.*\\bottomrule", table, re.S
    )


def test_names_are_escaped_and_intervals_captions_and_single_metrics_are_optional():
    run = make_run(0.9, methods=(HOSTILE,), sets={HOSTILE: "far"}, ends={"auroc": (0.85, 0.95)})
    table = run.to_latex(["auroc"], intervals=True, caption="Toy.", label="tab:toy")
    escaped = r"a\_b \& 5 \% \textbackslash{}x"
    assert table.count(escaped) == 2
    assert HOSTILE not in table
    assert table.count(r"\textbf{90.00}\,{\scriptsize[85.00, 95.00]}") == 2
    assert re.search(r"\\begin\{table\}.*\\caption\{Toy\.\}.*\\label\{tab:toy\}.*\\end\{table\}", table, re.S)
    assert "scriptsize" not in run.to_latex()
    for metrics in ([], ["speed"]):
        with pytest.raises(ValueError, match="auroc"):
            run.to_latex(metrics)


def test_several_runs_have_means_and_deviations():
    runs = [make_run(value, methods=("msp", "ebo")) for value in (0.7, 0.9)]
    runs[1] = replace(runs[1], methods=runs[1].methods[:1])  # nothing is said of a method that one run lacks
    cells = body(summary_latex([replace(run, rows=[r for r in run.rows if r.method == "msp"]) for run in runs]))
    assert cells["msp"] == [rf"\textbf{{{mean}}}\,{{\scriptsize$\pm${std}}}" for mean, std in
                            [("80.00", "10.00"), ("40.00", "5.00")] * 3]  # fmt: skip
    assert "ebo" not in cells
