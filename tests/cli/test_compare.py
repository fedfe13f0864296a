"""``flatfold compare``: tables wide and narrow, how they were computed, a CSV file."""

import csv
import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from flatfold.cli.compare import print_changes
from flatfold.evaluate.compare import Change, compare_methods, tabulate
from flatfold.evaluate.compare import compare as compare_runs
from flatfold.evaluate.results import MethodRun, Results, load_results
from tests.cli.running import assert_mistakes, succeed, words
from tests.evaluate.runs import make_suite

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
    suite = make_suite(SETS, 150, fingerprints=prints, **suite)
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


def make_seeds(folder, gaps=GAPS, numbers=(0, 1, 2), family="net"):
    for number in numbers:
        make_run(folder / f"s{number}", gaps, own=number, family=family, network=f"s{number}")


def test_two_methods_are_compared_over_seeds(tmp_path):
    """The mean difference, the paired t interval over seeds widened by that of the images, and p to match."""
    make_seeds(tmp_path / "runs")
    done = succeed("compare", "runs", "--methods", "msp,autofold", "--csv", "seeds.csv", cwd=tmp_path)
    assert "net: mean of 3 runs, s0, s1, s2." in done.stdout
    assert "sqrt(1.96² v + t² s² / n)" in done.stdout
    lines = json.loads(succeed("compare", "runs", "--methods", "msp,autofold", "--json", cwd=tmp_path).stdout)[
        "changes"
    ]
    with (tmp_path / "seeds.csv").open() as file:
        assert [float(line["low"]) for line in csv.DictReader(file)] == [line["low"] for line in lines]
    assert {(line["family"], line["runs"], line["paired"]) for line in lines} == {("net", 3, True)}
    each = [compare_methods(load_results(tmp_path / "runs" / f"s{n}"), "msp", "autofold") for n in range(3)]
    for line, *changes in zip(lines, *each, strict=True):
        test = stats.ttest_rel([it.b for it in changes], [it.a for it in changes])
        seeds = test.confidence_interval()
        images = np.mean([(it.high - it.low) ** 2 for it in changes]) / 4
        half = np.hypot((seeds.high - seeds.low) / 2, np.sqrt(images))
        assert line["difference"] == pytest.approx((seeds.high + seeds.low) / 2)
        assert (line["low"], line["high"]) == pytest.approx((line["difference"] - half, line["difference"] + half))
        assert line["p_value"] is None or line["p_value"] >= test.pvalue


def test_folders_of_several_seeds_are_compared_seed_by_seed(tmp_path):
    make_seeds(tmp_path / "a")
    make_seeds(tmp_path / "b", {**GAPS, "msp": 2.0})
    make_seeds(tmp_path / "few", numbers=(0, 1))
    lines = json.loads(succeed("compare", "a", "b", "--json", "--methods", "msp", cwd=tmp_path).stdout)["changes"]
    each = [compare_runs(*(load_results(tmp_path / side / f"s{n}") for side in "ab"), ["msp"]) for n in range(3)]
    assert [line["difference"] for line in lines] == pytest.approx(
        np.mean([[it.difference for it in run] for run in each], 0)
    )
    assert_mistakes(("compare",), [(["a", "few"], 1, "s0, s1, s2")], tmp_path)
    make_seeds(tmp_path / "two" / "x", {"msp": 1.0, "ebo": 1.0}, numbers=(0,), family="x")
    text = succeed("compare", "two/x", "--methods", "msp,ebo", cwd=tmp_path).stdout
    assert "mean of" not in text


def test_metrics_and_columns_are_chosen(runs):
    lines = json.loads(
        succeed(
            "compare", "a", "b", "--json", "--metric", "aupr-out,fpr95-id", "--sets", "average,near", cwd=runs
        ).stdout
    )["changes"]
    assert {(line["metric"], line["column"]) for line in lines} == set(
        product(("aupr_out", "fpr95_id_positive"), ("all", "near"))
    )
    a, b = (load_results(runs / name) for name in "ab")
    for line in lines:
        for run, side in ((a, "a"), (b, "b")):
            assert line[side] == pytest.approx(getattr(run.cells[line["method"], line["column"]], line["metric"]))
        assert line["low"] <= line["difference"] <= line["high"]
    text = succeed("compare", "a", "b", "--metric", "fpr95", "--sets", "photos", cwd=runs).stdout
    assert "FPR95 A" in text
    assert not {"AUROC", "digits-6-9", "average", " p "} & set(text.splitlines()[0].split("  "))


def test_mistakes(runs):
    make_seeds(runs / "seeds")
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
        (["a", "c", "--metric", "speed"], 2, "--metric"),
        (["a", "b", "--sets", "digits"], 2, "--sets"),
        (["seeds", "a"], 1, "s0, s1, s2"),
        (["seeds", "--methods", "msp,mps"], 1, "Did you mean msp"),
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
