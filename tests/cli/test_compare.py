"""`flatfold compare`, as a user meets it: tables wide and narrow, a legend that says what was done, a CSV file."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
import rich.console
import typer
from rich.console import Console
from typer.testing import CliRunner

from flatfold.cli.compare import compare, print_changes
from flatfold.evaluate.compare import Change
from flatfold.evaluate.compare import compare as compare_runs
from flatfold.evaluate.results import Results, load_results
from flatfold.evaluate.rows import MethodRun, averages, make_row

SETS = {"digits-6-9": "near", "photos": "far"}
app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(compare)


def make_run(folder, gaps, own=0, prints="same", **suite):
    """Write the result files of methods that find unknown images by a gap; ``own`` gives the noise of the run."""
    rng, noise = np.random.default_rng(0), np.random.default_rng(own)
    images = {name: rng.normal(size=150) for name in ("id", *SETS)}
    scores = {
        f"{method}/{name}": (x + (name != "id") * gap + 0.3 * noise.normal(size=150)).astype(np.float32)
        for method, gap in gaps.items()
        for name, x in images.items()
    }
    rows = [make_row(m, "id", s, g, scores[f"{m}/id"], scores[f"{m}/{s}"]) for m in gaps for s, g in SETS.items()]
    prints = {name: f"{prints}-{name}" for name in ("test", *SETS)}
    Results(
        suite={"name": "toy", "ood": [{"name": name} for name in SETS], "fingerprints": prints, **suite},
        methods=[MethodRun(method, method, {}, "val", "id", 0.1, 2.0) for method in gaps],
        refused={},
        rows=rows,
        averages=averages(rows),
        alpha_curves=[],
        provenance={},
        scores=scores,
    ).save(folder)
    return folder


@pytest.fixture
def runs(tmp_path):
    gaps = {"msp": 1.0, "knn:k=[1, 5]": 2.0, "autofold": 2.0}
    return make_run(tmp_path / "a", gaps), make_run(tmp_path / "b", {**gaps, "msp": 1.5}, own=1)


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def words(text):
    return " ".join(text.split())


def test_two_runs_are_printed_with_every_figure(runs):
    result = invoke(*runs)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    changes = {(c.method, c.column, c.metric): c for c in compare_runs(*map(load_results, runs))}
    for method, column, _ in changes:
        name = "average" if column == "all" else column
        (line,) = [line for line in lines if line.startswith(method) and f" {name} " in line]
        for metric in ("auroc", "fpr95_ood_positive"):
            change = changes[method, column, metric]
            difference, low, high = (
                f"{100 * x:+.2f}".replace("-0.00", "+0.00") for x in (change.difference, change.low, change.high)
            )
            star = " *" if change.significant else ""
            assert f"{100 * change.a:.2f} {100 * change.b:.2f} {difference} {low}..{high}{star}" in words(line)
    (line,) = [line for line in lines if line.startswith("msp") and " average " in line]
    assert " * <0.001 " in words(line)
    assert "AUROC A B B - A 95 % interval p FPR95 A B B - A 95 % interval" in words(result.stdout)


def test_the_legend_says_how_it_was_computed(runs, tmp_path):
    text = words(invoke(*runs).stdout)
    assert "differences B - A in percentage points. FPR95 counts OOD as positive" in text
    assert "Paired: both judged the same images. AUROC by DeLong's test, FPR95 on the same redrawn images." in text
    assert "not corrected for many comparisons" in text
    other = make_run(tmp_path / "c", {"msp": 1.0}, prints="other")
    text = words(invoke(runs[0], other).stdout)
    assert "Not paired: the images differ, or it is not known that they are the same" in text
    assert "Paired: both" not in text
    assert "Only A has the methods knn:k=[1, 5], autofold." in text


def test_two_methods_of_a_run_are_compared_without_a_second_folder(runs):
    result = invoke(runs[0], "--methods", "msp, knn:k=[1, 5]")
    assert result.exit_code == 0, result.output
    assert "msp -> knn:k=[1, 5]" in result.stdout
    assert "Paired: both judged the same images" in result.stdout


def test_methods_of_two_runs_can_be_chosen(runs):
    text = invoke(*runs, "--methods", "autofold").stdout
    assert "autofold" in text
    assert "msp" not in text


@pytest.mark.parametrize("methods", [[], ["--methods", "msp"], ["--methods", "msp,autofold,knn:k=[1, 5]"]])
def test_one_run_needs_two_methods(runs, methods):
    result = invoke(runs[0], *methods)
    assert result.exit_code == 2
    assert "--methods must name two methods of the first" in words(result.output)


def test_wrong_input_is_an_error_with_a_sentence(runs, tmp_path):
    error = invoke(runs[0], "--methods", "msp,autofol").exception
    assert isinstance(error, ValueError)
    assert str(error) == f"no method of {runs[0]} is called 'autofol'. Did you mean autofold?"
    other = make_run(tmp_path / "c", {"msp": 1.0})
    with pytest.raises(ValueError, match=f"no method of {other} is called 'autofold'. It has msp."):
        raise invoke(runs[0], other, "--methods", "autofold").exception
    with pytest.raises(ValueError, match="two methods must be named, got 'msp' twice"):
        raise invoke(runs[0], "--methods", "msp,msp").exception
    assert "there is no results.json" in str(invoke(runs[0], tmp_path / "none").exception)


def test_a_folder_of_several_runs_says_which_there_are(runs, tmp_path):
    folder = runs[0].parent
    for arguments in ((folder, runs[1]), (runs[0], folder), (folder, "--methods", "msp,autofold")):
        error = invoke(*arguments).exception
        assert isinstance(error, ValueError)
        assert str(error) == f"{folder} holds several runs: a, b. Name one of them, as in {folder / 'a'}."
    make_run(tmp_path / "one" / "s0", {"msp": 1.0})
    with pytest.raises(ValueError, match=r"one holds a run inside: s0\. Name it, as in .*s0\."):
        raise invoke(tmp_path / "one", runs[1]).exception


def test_a_run_that_has_runs_inside_is_taken_itself(runs):
    make_run(runs[0] / "old", {"msp": 1.0})
    assert invoke(*runs).exit_code == 0


def test_what_was_not_as_the_suite_says_is_told_below_the_table(tmp_path):
    few, bad = "at most 30 images of each data set were taken", "[3] images could not be read."
    a = make_run(tmp_path / "a", {"msp": 1.0, "knn": 2.0}, deviations=[few, bad])
    b = make_run(tmp_path / "b", {"msp": 1.0, "knn": 2.0}, own=1, deviations=[few])
    text = invoke(a, b).stdout
    assert f"A and B: {few}." in text.splitlines()
    assert f"A: {bad}" in text.splitlines()
    text = invoke(a, "--methods", "msp,knn").stdout
    assert {f"Both: {few}.", f"Both: {bad}"} <= set(text.splitlines())
    assert f"B: {few}." in invoke(make_run(tmp_path / "c", {"msp": 1.0}), b).stdout.splitlines()


def test_the_csv_has_every_figure_unrounded(runs, tmp_path):
    result = invoke(*runs, "--csv", tmp_path / "out" / "changes.csv")
    assert "30 lines ->" in result.stdout
    with (tmp_path / "out" / "changes.csv").open() as file:
        lines = list(csv.DictReader(file))
    changes = compare_runs(*map(load_results, runs))
    assert len(lines) == len(changes) == 30 == 3 * 5 * 2
    for line, change in zip(lines, changes, strict=True):
        assert (line["method"], line["column"], line["metric"]) == (change.method, change.column, change.metric)
        for name in ("a", "b", "difference", "low", "high"):
            assert float(line[name]) == getattr(change, name)
        assert line["p_value"] == ("" if change.p_value is None else str(change.p_value))
        assert (line["paired"], line["significant"]) == (str(change.paired), str(change.significant))


def printed(monkeypatch, changes, remarks=(), **console):
    text = io.StringIO()
    monkeypatch.setattr(rich.console, "Console", lambda: Console(file=text, color_system=None, **console))
    print_changes(changes, remarks)
    return text.getvalue()


AUROC = Change("msp -> autofold", "digits-6-9", "auroc", 0.9, 0.91234, 0.01234, -0.001, 0.02, 0.0456, True)
CHANGES = [AUROC, replace(AUROC, metric="fpr95_ood_positive", a=0.4321, b=1.0, p_value=None)]


def test_a_wide_terminal_gets_both_metrics(monkeypatch):
    text = printed(monkeypatch, CHANGES, force_terminal=True, width=130)
    assert "43.21  100.00" in text
    assert "too narrow" not in text
    assert "…" not in text


def test_a_narrow_terminal_gets_auroc_uncut(monkeypatch):
    text = printed(monkeypatch, CHANGES, force_terminal=True, width=80)
    assert "90.00 91.23 +1.23 -0.10..+2.00 0.046" in words(text)
    assert "43.21" not in text
    assert "The terminal is too narrow for FPR95; --csv writes it too." in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "msp -> autofold" in text


def test_both_metrics_are_shown_exactly_when_they_fit(monkeypatch):
    """With the longest figures that are likely, no name is folded and no figure is cut, at any width."""
    longest = replace(AUROC, a=1.0, b=1.0, difference=-0.5, low=-0.9, high=-0.1, p_value=0.0)
    rate = replace(longest, metric="fpr95_ood_positive", p_value=None)
    changes = [longest, rate, replace(longest, column="x", paired=False), replace(rate, column="x", paired=False)]
    shown = {}
    for width in range(85, 140):
        text = printed(monkeypatch, changes, force_terminal=True, width=width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        assert text.count("msp -> autofold  ") == 2
        assert "  digits-6-9  " in text
        shown[width] = "FPR95 A" in text
        assert shown[width] != ("too narrow" in text)
    line = max(len(line.rstrip()) for line in text.splitlines() if line.startswith("msp"))
    assert shown == {width: width >= line for width in shown}


def test_a_pipe_gets_everything(monkeypatch):
    text = printed(monkeypatch, CHANGES, force_terminal=False, width=80)
    assert "43.21  100.00" in text
    assert "too narrow" not in text


def test_auroc_alone_is_not_called_narrow(monkeypatch):
    assert "too narrow" not in printed(monkeypatch, [AUROC], force_terminal=True, width=80)


def test_a_mixture_marks_what_is_not_paired(monkeypatch):
    text = printed(monkeypatch, [AUROC, replace(AUROC, column="photos", paired=False)], width=120)
    paired, apart = (line for line in text.splitlines() if line.startswith("msp"))
    assert paired.rstrip().endswith("0.046")
    assert apart.rstrip().endswith("0.046~")
    assert "p with ~ is not paired" in text


@pytest.mark.parametrize(("low", "mark"), [(-0.001, False), (0.001, True)])
def test_a_star_marks_an_interval_without_0(monkeypatch, low, mark):
    text = printed(monkeypatch, [replace(AUROC, low=low)], width=120)
    (line,) = (line for line in text.splitlines() if line.startswith("msp"))
    assert ("*" in line) is mark


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.00004, 0.0002, "+0.010 +0.004..+0.020 *"),
        (-0.0002, -0.00004, "+0.010 -0.020..-0.004 *"),
        (0.000004, 0.0002, "+0.0100 +0.0004..+0.0200 *"),
        (0.0000000001, 0.0002, "+0.0100 +0.0000..+0.0200 *"),
        (0.00006, 0.0002, "+0.01 +0.01..+0.02 *"),
        (-0.00004, 0.0002, "+0.01 +0.00..+0.02 0"),
    ],
)
def test_an_end_that_leaves_out_0_does_not_read_0(monkeypatch, low, high, shown):
    assert shown in words(printed(monkeypatch, [replace(AUROC, difference=0.0001, low=low, high=high)], width=120))


def test_brackets_are_words_and_rounded_nothing_has_no_minus(monkeypatch):
    change = replace(AUROC, method="knn:k=[red]", difference=-1e-9)
    text = printed(monkeypatch, [change], ["Only A has the methods [bold]."], width=120)
    assert "knn:k=[red]" in text
    assert "Only A has the methods [bold]." in text
    assert "+0.00" in text
    assert "-0.00" not in text
