"""``flatfold compare``: tables wide and narrow, how they were computed, a CSV file."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from flatfold.cli.compare import print_changes
from flatfold.evaluate.compare import Change, tabulate
from flatfold.evaluate.compare import compare as compare_runs
from flatfold.evaluate.results import MethodRun, Results, load_results
from tests.cli.running import assert_mistakes, succeed, words

SETS = {"digits-6-9": "near", "photos": "far"}
GAPS = {"msp": 1.0, "knn:k=[1, 5]": 2.0, "autofold": 2.0}


def make_run(folder, gaps, own=0, prints="same", **suite):
    """Write the result files of methods that find OOD images by a gap; ``own`` gives the noise of the run."""
    rng, noise = np.random.default_rng(0), np.random.default_rng(own)
    images = {name: rng.normal(size=150) for name in ("id", *SETS)}
    scores = {
        f"{method}/{name}": (x + (name != "id") * gap + 0.3 * noise.normal(size=150)).astype(np.float32)
        for method, gap in gaps.items()
        for name, x in images.items()
    }
    figures = tabulate(scores, dict.fromkeys(gaps, "id"), SETS, replicates=0)
    prints = {name: f"{prints}-{name}" for name in ("test", *SETS)}
    suite = {"name": "toy", "ood": [{"name": name} for name in SETS], "fingerprints": prints, **suite}
    methods = [MethodRun(method, method, {}, "val", "id", 0.1, 2.0) for method in gaps]
    Results(suite, methods, {}, *figures, [], {}, scores).save(folder)


@pytest.fixture
def runs(tmp_path):
    """A folder with the runs a, b and c; c judged other images."""
    make_run(tmp_path / "a", GAPS, deviations=["30 images each", "[3] images are broken."])
    make_run(tmp_path / "b", {**GAPS, "msp": 1.5}, own=1, deviations=["30 images each"])
    make_run(tmp_path / "c", {"msp": 1.0}, prints="other")
    return tmp_path


def test_table_and_csv_have_every_figure(runs):
    done = succeed("compare", "a", "b", "--csv", "out/changes.csv", cwd=runs)
    changes = compare_runs(load_results(runs / "a"), load_results(runs / "b"))
    with (runs / "out" / "changes.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(changes) == 30 == 3 * 5 * 2
    printed = {
        (method, column): words(line)
        for line in done.stdout.splitlines()
        for method in GAPS
        for column in ("digits-6-9", "photos", "average")
        if line.startswith(method) and f" {column} " in line
    }
    for line, change in zip(lines, changes, strict=True):
        assert (line["method"], line["column"], line["metric"]) == (change.method, change.column, change.metric)
        for name in ("a", "b", "difference", "low", "high"):
            assert float(line[name]) == getattr(change, name)
        assert line["p_value"] == ("" if change.p_value is None else str(change.p_value))
        assert (line["paired"], line["significant"]) == (str(change.paired), str(change.significant))
        steps = (f"{100 * x:+z.2f}" for x in (change.difference, change.low, change.high))
        figures = "{:.2f} {:.2f} {} {}..{}".format(100 * change.a, 100 * change.b, *steps)
        figures += " *" if change.significant else ""
        if change.column not in ("near", "far"):  # each repeats a data set
            assert figures in printed[change.method, "average" if change.column == "all" else change.column]
    assert " * <0.001 " in printed["msp", "average"]


def test_remarks_below_the_table(runs):
    text = succeed("compare", "a", "b", cwd=runs).stdout
    assert "Paired: " in text
    assert {"A and B: 30 images each.", "A: [3] images are broken."} <= set(text.splitlines())
    text = succeed("compare", "a", "c", cwd=runs).stdout
    assert "Not paired: " in text
    assert "Only A has the methods knn:k=[1, 5], autofold." in text


def test_methods_are_chosen_from_two_runs_or_compared_within_one(runs):
    text = succeed("compare", "a", "b", "--methods", "autofold", cwd=runs).stdout
    assert "autofold" in text
    assert "msp" not in text
    make_run(runs / "a" / "old", {"msp": 1.0})  # a run that has runs inside is taken itself
    text = succeed("compare", "a", "--methods", "msp, knn:k=[1, 5]", cwd=runs).stdout
    assert "msp -> knn:k=[1, 5]" in text
    assert "Both: 30 images each." in text.splitlines()


def test_mistakes(runs):
    make_run(runs / "one" / "s0", {"msp": 1.0})
    cases = [
        (["a"], 2, "--methods"),
        (["a", "--methods", "msp"], 2, "two methods"),
        (["a", "--methods", "msp,autofold,knn:k=[1, 5]"], 2, "two methods"),
        (["a", "--methods", "msp,autofol"], 1, "Did you mean autofold"),
        (["a", "--methods", "msp,msp"], 1, "twice"),
        (["a", "c", "--methods", "autofold"], 1, "no method of c"),
        (["a", "none"], 1, "results.json"),
        ([".", "a"], 1, "a, b, c"),
        (["a", "."], 1, "a, b, c"),
        ([".", "--methods", "msp,autofold"], 1, "a, b, c"),
        (["one", "a"], 1, "one/s0"),
    ]
    assert_mistakes(("compare",), cases, runs)


AUROC = Change("msp -> autofold", "digits-6-9", "auroc", 0.9, 0.91234, 0.01234, -0.001, 0.02, 0.0456, True)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_both_metrics_exactly_when_they_fit(printed):
    """With the longest figures that are likely, no name is folded and no figure is cut, at any width."""
    longest = replace(AUROC, a=1.0, b=1.0, difference=-0.5, low=-0.9, high=-0.1, p_value=0.0)
    rate = replace(longest, metric="fpr95_ood_positive", p_value=None)
    texts = {width: printed(print_changes, [longest, rate], width=width) for width in range(85, 140, 3)}
    line = max(len(line.rstrip()) for line in texts[139].splitlines() if line.startswith("msp"))
    for width, text in texts.items():
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert "msp -> autofold  " in text
        assert ("FPR95 A" in text, "too narrow" in text) == (width >= line, width < line)
    assert "too narrow" not in printed(print_changes, [AUROC], width=80), "there is no FPR95"


def test_marks_of_significant_and_unpaired_figures(printed):
    """An interval without 0 has a star, and its end does not read 0."""
    mixed = printed(print_changes, [AUROC, replace(AUROC, column="photos", paired=False)])
    assert [line.split()[-1] for line in mixed.splitlines() if line.startswith("msp")] == ["0.046", "0.046~"]
    for low, high, figures in [
        (-0.001, 0.0002, "+0.01 -0.10..+0.02 0"),
        (-0.00004, 0.0002, "+0.01 +0.00..+0.02 0"),
        (0.00006, 0.0002, "+0.01 +0.01..+0.02 *"),
        (0.00004, 0.0002, "+0.010 +0.004..+0.020 *"),
        (-0.0002, -0.00004, "+0.010 -0.020..-0.004 *"),
        (0.000004, 0.0002, "+0.0100 +0.0004..+0.0200 *"),
        (0.0000000001, 0.0002, "+0.0100 +0.0000..+0.0200 *"),
    ]:
        change = replace(AUROC, difference=0.0001, low=low, high=high)
        assert figures in words(printed(print_changes, [change])), (low, high)
    text = printed(print_changes, [replace(AUROC, method="knn:k=[red]", difference=-1e-9)], ["Only A has [bold]."])
    assert all(part in text for part in ("knn:k=[red]", "Only A has [bold].", "+0.00"))
    assert "-0.00" not in text
