"""Tables in LaTeX: every figure, the best of a column in bold, names that cannot become commands."""

import re
from dataclasses import replace

import pytest

from flatfold.detectors import printed_name
from flatfold.evaluate.summary import summary_latex
from flatfold.paper.tables import MAIN, read_table
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
    assert body(table)["MSP"] == body(table)["EBO"] == [r"\textbf{90.00}", r"\textbf{45.00}"] * 2
    assert body(table)["KNN"] == ["80.00", "50.00", *[r"\textbf{90.00}", r"\textbf{45.00}"]]
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
    assert cells["MSP"] == [rf"\textbf{{{mean}}}\,{{\scriptsize$\pm${std}}}" for mean, std in
                            [("80.00", "10.00"), ("40.00", "5.00")] * 3]  # fmt: skip
    assert "EBO" not in cells


def test_methods_and_data_sets_are_called_as_papers_print_them():
    labels = {"react": "ReAct", "autofold-r": "AutoFold-R", "knn:k=10@ood": "KNN (k=10, tuned on OOD)", "mine": "mine"}
    labels |= {
        "fold:alpha=0.5:score_norm=weight": r"FOLD (alpha=0.5, score\_norm=weight)",
        "gen@id": "GEN (tuned on ID)",
    }
    sets = {"cifar100": "near", "pens": "near", "svhn": "far", "noise": "far"}
    run = make_run(0.9, methods=tuple(labels), sets=sets)
    methods = [replace(method, name=re.split("[:@]", method.method)[0]) for method in run.methods]
    named = [{"name": name, "printed": {"cifar100": "CIFAR-100"}.get(name, "")} for name in sets]
    run = replace(run, methods=methods, suite={**run.suite, "ood": named})
    head = next(line for line in run.to_latex().splitlines() if "multicolumn" in line)
    assert re.findall(r"\{c\}\{(.*?)\}", head) == [
        "CIFAR-100",
        "pens",
        "svhn",
        "noise",
        "Near-OOD",
        "Far-OOD",
        "Average",
    ]
    for table in (run.to_latex(), summary_latex([run, run])):
        assert list(body(table))[2:] == list(labels.values())
    rows = {number.row for number in read_table(MAIN)} - {"VIM"}  # ViM in the paper that introduced it
    assert rows == {printed_name(row.lower()) for row in rows}


def test_metrics_and_columns_are_chosen_and_the_first_metric_sorts():
    run = make_run(0.9, methods=("msp", "ebo", "knn"), sets={"pens": "near", "ink": "near", "noise": "far"})
    values = {"msp": (0.9, 0.5), "ebo": (0.8, 0.1), "knn": (0.7, 0.3)}
    averages = [replace(a, auroc=values[a.method][0], fpr95_ood_positive=values[a.method][1]) for a in run.averages]
    run = replace(run, averages=averages)
    for make in (run.to_latex, lambda *args, **chosen: summary_latex([run, run], *args, **chosen)):
        table = make(["fpr95"], columns=["average", "near", "pens"])
        head = r"Method & Average FPR95 $\downarrow$ & Near-OOD FPR95 $\downarrow$ & pens FPR95 $\downarrow$ \\"
        assert head in table.splitlines()
        assert list(body(table))[1:] == ["EBO", "KNN", "MSP"]
        assert list(body(make(["aupr-in", "fpr95_id_positive"])))[2:] == ["MSP", "EBO", "KNN"]
        assert r"AUPR-in $\uparrow$ & FPR95 (ID positive) $\downarrow$" in make(["aupr-in", "fpr95-id"])
        for wrong in ({"columns": ["pencils"]}, {"columns": []}, {"metrics": ["fpr"]}):
            with pytest.raises(ValueError, match="must be some of"):
                make(**wrong)
