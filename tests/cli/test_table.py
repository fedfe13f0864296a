"""The table in the terminal, wide and narrow."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from flatfold.cli import table
from flatfold.evaluate.results import Results
from flatfold.evaluate.rows import MethodRun, averages, make_row


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
    monkeypatch.setattr(table, "Console", lambda: Console(file=text, color_system=None, **console))
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
