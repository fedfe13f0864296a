"""The table in the terminal, wide and narrow."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from flatfold.cli import table
from flatfold.evaluate.results import Results
from flatfold.evaluate.rows import Certainty, MethodRun, averages, make_row
from flatfold.evaluate.summary import SummaryRow


@pytest.fixture
def results():
    rng = np.random.default_rng(0)
    known = rng.normal(size=100)
    sets = {"digits-6-9": "near", "photos": "far", "letters": "far", "noise": "far"}
    rows = [
        make_row(method, "ood" if method == "msp@ood" else "id", name, group, known, rng.normal(gap, 1, size=100))
        for method, gap in (("msp@ood", 1), ("autofold-r", 3))
        for name, group in sets.items()
    ]
    learnt = {"msp@ood": {}, "autofold-r": {"alpha_": 0.38}}
    return Results(
        suite={
            "name": "toy",
            "network": "",
            "about": "A toy.",
            "accuracy": 0.99,
            "n_test": 100,
            "ood": [{"name": n} for n in sets],
        },
        methods=[
            MethodRun(name, name, {}, "val", "ood" if "@ood" in name else "id", 0.1, 1.0, numbers)
            for name, numbers in learnt.items()
        ],
        refused={"ash": "it needs [positive] features."},
        rows=rows,
        averages=averages(rows),
        alpha_curves=[],
        provenance={},
        scores={},
    )


def printed(results, monkeypatch, **console):
    text = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda: Console(file=text, color_system=None, **console))
    table.print_results(results)
    return text.getvalue()


def test_a_wide_terminal_gets_every_data_set_best_method_first(results, monkeypatch):
    text = printed(results, monkeypatch, force_terminal=True, width=160)
    assert all(name in text for name in ("digits-6-9", "photos", "letters", "noise", "near", "far", "average"))
    assert text.index("autofold-r") < text.index("msp")
    assert "0.38*" in text
    assert "too narrow" not in text


def test_a_narrow_terminal_gets_the_averages_uncut(results, monkeypatch):
    text = printed(results, monkeypatch, force_terminal=True, width=80)
    for mean in results.averages:
        assert f"{100 * mean.auroc:.2f} / {100 * mean.fpr95_ood_positive:.2f}" in text
    assert "autofold-r" in text
    assert "…" not in text
    assert "photos" not in text
    assert "too narrow for every data set" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_pipe_gets_everything(results, monkeypatch):
    text = printed(results, monkeypatch, force_terminal=False, width=80)
    assert "photos" in text
    assert "…" not in text


def test_a_method_tuned_on_unknown_data_is_never_shown_without_saying_so(results, monkeypatch):
    for width in (80, 200):
        text = printed(results, monkeypatch, force_terminal=True, width=width)
        (line,) = [line for line in text.splitlines() if "msp" in line]
        assert "msp@ood" in line
        assert re.search(r"│ OOD +│$", line)
        assert "tuned: on which data hyper-parameters were chosen" in text


def test_what_was_left_out_is_said_as_it_stands(results, monkeypatch):
    text = printed(results, monkeypatch, force_terminal=False, width=200)
    assert "ash was left out: it needs [positive] features." in text


def test_the_network_is_named_when_there_are_several(results, monkeypatch):
    results.suite["network"] = "resnet20"
    assert "toy, resnet20: A toy." in printed(results, monkeypatch, force_terminal=False, width=200)


def test_brackets_in_a_suites_words_are_words(results, monkeypatch):
    results.suite["about"] = "Photos [/data/photos] v2."
    assert "Photos [/data/photos] v2." in printed(results, monkeypatch, force_terminal=False, width=200)


def test_the_best_and_what_cannot_be_told_from_it_are_green_in_a_terminal(results, monkeypatch):
    def told(cell, best):
        return replace(cell, certainty=Certainty({}, 0.0, 0.0, 0.0, 1.0, best))

    rows = [told(row, row.method == "autofold-r") for row in results.rows]
    means = [told(mean, mean.method == "autofold-r") for mean in results.averages]
    text = io.StringIO()
    console = {"file": text, "color_system": "standard", "force_terminal": True, "width": 160}
    monkeypatch.setattr("rich.console.Console", lambda: Console(**console))
    table.print_results(replace(results, rows=rows, averages=means))
    lines = {name: line for line in text.getvalue().splitlines() for name in ("autofold-r", "msp@ood") if name in line}
    assert lines["autofold-r"].count("\x1b[1;32m") == 7
    assert "\x1b[1;32m" not in lines["msp@ood"]
    assert "Green: the best AUROC of a column" in text.getvalue()


def test_the_means_over_networks_are_printed_best_first(monkeypatch, capsys):
    def row(method, column, mean, n=3):
        figures = {"auroc": mean, "fpr95_ood_positive": 0.2}
        return SummaryRow("resnet", method, column, n, figures, {"auroc": 0.012, "fpr95_ood_positive": 0.03}, {})

    table.print_summary([row(m, c, v) for m, v in (("msp", 0.8), ("fold", 0.9)) for c in ("a", "far", "all")])
    text = capsys.readouterr().out
    assert "90.00 ± 1.20 / 20.00 ± 3.00" in text
    assert text.index("fold") < text.index("msp")
    assert "over 3 runs" in " ".join(text.split())
    table.print_summary([row("msp", "all", 0.8, n=1)])
    assert capsys.readouterr().out == ""
