"""``flatfold bench mine.toml``: a suite of one's own, as a user would write it."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import typer

from flatfold.cli.bench import resumable

FACTORY = """
import torch
from torch import nn

def small(width=8):
    torch.manual_seed(width)
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(4 * width, 3),
    )

def large():
    return small(16)
"""
SUITE = """
about = "Colours."
[transform]
mean = [0.5, 0.5, 0.5]
std = [0.25, 0.25, 0.25]
[[network]]
name = "small"
factory = "nets:small"
[[network]]
name = "large"
factory = "nets:large"
[train]
npz = "known.npz"
per_class = 40
[val]
npz = "known.npz"
rest_of = "train"
per_class = 20
[test]
npz = "known.npz"
rest_of = "val"
[ood_val]
npz = "unknown.npz"
first = 30
[[ood]]
name = "noise"
group = "near"
npz = "unknown.npz"
skip = 30
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The folder and the output of a run with two networks."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 80)
    x = rng.integers(0, 120, (240, 8, 8, 3))
    x[np.arange(240), :, :, y] += 120
    np.savez(folder / "known.npz", x=x.astype(np.uint8), y=y)
    np.savez(folder / "unknown.npz", x=rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8))
    (folder / "nets.py").write_text(FACTORY)
    (folder / "mine.toml").write_text(SUITE)
    methods = "msp,knn:k=5,odin,mdsens,ash@ood,fold@id,odin@ood,knn:k=500"
    command = [sys.executable, "-m", "flatfold", "bench", "mine.toml", "--methods", methods]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_each_network_gets_a_table_a_folder_and_a_page(bench):
    folder, done = bench
    assert "mine, small: Colours. ID accuracy" in done.stdout
    assert "mine, large: Colours. ID accuracy" in done.stdout
    for network in ("small", "large"):
        place = folder / "out" / "mine" / network
        assert {"results.json", "results.csv", "scores.safetensors", "report.html"} <= {p.name for p in place.iterdir()}
        assert f"flatfold: mine, {network}" in (place / "report.html").read_text()


def test_every_line_says_what_it_was_tuned_on(bench):
    lines = bench[1].stdout.splitlines()
    tuned = {"msp": "", "knn:k=5": "", "odin": "", "mdsens": "", "ash@ood": "OOD", "fold@id": "ID", "odin@ood": "OOD"}
    for label, word in tuned.items():
        found = [line for line in lines if re.match(rf"│ {re.escape(label)} +│", line)]
        assert len(found) == 2
        assert all(line.rstrip("│ ").endswith(word) for line in found)


def test_what_cannot_be_run_is_said_and_the_rest_is_there(bench):
    folder, done = bench
    assert "knn:k=500 was left out: k must be a whole number from 1 to 120" in done.stdout
    content = json.loads((folder / "out" / "mine" / "small" / "results.json").read_text())
    assert list(content["refused"]) == ["knn:k=500"]
    assert {row["method"] for row in content["rows"]} == {run["method"] for run in content["methods"]}
    odin = next(run for run in content["methods"] if run["method"] == "odin")
    assert odin["hyper"]["std"] == [0.25, 0.25, 0.25]


def test_a_second_run_reads_what_is_there(bench):
    folder, _ = bench
    before = json.loads((folder / "out" / "mine" / "small" / "results.json").read_text())["rows"]
    assert flatfold(folder, "bench", "mine.toml", "--methods", "odin").returncode == 0
    after = json.loads((folder / "out" / "mine" / "small" / "results.json").read_text())["rows"]
    for row in before + after:
        del row["certainty"]  # it is about all methods of a run
    assert after == [row for row in before if row["method"] == "odin"]


def test_a_mistake_in_the_file_is_told_with_its_place(bench):
    folder, _ = bench
    (folder / "wrong.toml").write_text(SUITE.replace("per_class = 20", "per_clas = 20"))
    command = [sys.executable, "-m", "flatfold", "bench", "wrong.toml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 1
    assert done.stderr == "flatfold: wrong.toml: [val]: there is no key 'per_clas' here. Did you mean per_class?\n"


def flatfold(folder, *arguments):
    """Run a command; a benchmark draws nothing, which would take longer than all the rest."""
    quick = ["--no-report"] if arguments[0] == "bench" else []
    command = [sys.executable, "-m", "flatfold", *map(str, arguments), *quick]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def words(text):
    """The text with the line breaks of a table title taken out."""
    return " ".join(text.split())


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_several_networks_get_a_page_and_a_table_of_their_own(bench):
    folder, done = bench
    assert {"summary.csv", "summary.json", "report.html"} <= {p.name for p in (folder / "out" / "mine").iterdir()}
    page = (folder / "out" / "mine" / "report.html").read_text()
    assert 'href="small/report.html"' in page
    assert 'href="large/report.html"' in page
    assert "all runs ->" in done.stdout
    assert "pruned" not in done.stderr  # what fontTools has to say of the figures


def test_all_pages_of_several_networks_can_be_drawn_again(bench):
    folder, _ = bench
    pages = [folder / "out" / "mine" / place / "report.html" for place in ("", "small", "large")]
    for page in pages:
        page.unlink()
    done = flatfold(folder, "report", "out/mine")
    assert done.returncode == 0, done.stderr
    assert all(page.exists() for page in pages)


def test_seeds_are_run_one_after_the_other_and_averaged(bench):
    folder, _ = bench
    done = flatfold(
        folder, "bench", "mine.toml", "--networks", "small", "--seed", "1,2", "--methods", "msp,ebo", "--out", "seeds"
    )
    assert done.returncode == 0, done.stderr
    assert "small: mean ± spread (population standard deviation, as OpenOOD) over 2 runs." in words(done.stdout)
    runs = [results_of(folder / "seeds" / f"small-seed{seed}") for seed in (1, 2)]
    assert [run["suite"]["family"] for run in runs] == ["small", "small"]
    assert runs[0]["suite"]["fingerprints"]["test"] != runs[1]["suite"]["fingerprints"]["test"]
    values = [next(m["auroc"] for m in run["averages"] if (m["method"], m["over"]) == ("msp", "all")) for run in runs]
    summary = json.loads((folder / "seeds" / "summary.json").read_text())["rows"]
    row = next(row for row in summary if (row["method"], row["column"]) == ("msp", "all"))
    assert row["means"]["auroc"] == pytest.approx(np.mean(values))
    assert row["stds"]["auroc"] == pytest.approx(np.std(values))


def test_a_limit_takes_some_images_of_each_and_says_so(bench):
    folder, _ = bench
    done = flatfold(
        folder, "bench", "mine.toml", "--networks", "small", "--limit", 30, "--methods", "msp,knn:k=5", "--out", "few"
    )
    assert done.returncode == 0, done.stderr
    suite = results_of(folder / "few" / "small")["suite"]
    assert (suite["n_train"], suite["n_val"], suite["n_test"], suite["ood"][0]["n"]) == (30, 30, 30, 30)
    assert suite["deviations"] == ["at most 30 images of each data set were taken"]


def test_processes_that_read_ahead_change_nothing(bench):
    folder, _ = bench
    arguments = ("bench", "mine.toml", "--networks", "small", "--methods", "msp,odin", "--batch-size", 16)
    for workers in (0, 2):
        done = flatfold(folder, *arguments, "--workers", workers, "--out", f"workers{workers}")
        assert done.returncode == 0, done.stderr
    assert results_of(folder / "workers0" / "small")["rows"] == results_of(folder / "workers2" / "small")["rows"]


def test_a_restart_computes_all_features_again(bench):
    folder, _ = bench
    arguments = ("bench", "mine.toml", "--networks", "small", "--methods", "msp", "--out", "again")
    times = []
    for way in ("--resume", "--resume", "--restart"):
        assert flatfold(folder, *arguments, way).returncode == 0
        times.append(next((folder / "again" / "small" / "banks").glob("test-*/*.safetensors")).stat().st_mtime_ns)
    assert times[0] == times[1] < times[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--seed", "one"),
            "--seed takes whole numbers from 0 to 2^32 - 1 with commas between them, such as 0,1,2, got 'one'.",
        ),
        (("--networks", "tall"), "mine.toml: no network is called 'tall'. There are small, large."),
    ],
)
def test_what_an_option_cannot_be_is_told(arguments, message, bench):
    done = flatfold(bench[0], "bench", "mine.toml", *arguments)
    assert done.returncode == 1
    assert done.stderr == f"flatfold: {message}\n"


def test_two_runs_and_two_methods_can_be_compared(bench):
    folder, _ = bench
    assert flatfold(folder, "bench", "mine.toml", "--methods", "msp,odin", "--out", "pair").returncode == 0
    done = flatfold(folder, "compare", "pair/small", "pair/large", "--methods", "msp")
    assert done.returncode == 0, done.stderr
    assert "msp" in done.stdout
    done = flatfold(folder, "compare", "pair/small", "--methods", "msp,odin")
    assert done.returncode == 0, done.stderr
    assert "msp -> odin" in done.stdout


def test_what_is_not_the_papers_is_not_set_beside_it(bench):
    folder, _ = bench
    done = flatfold(folder, "paper", "out/mine/small")
    assert done.returncode == 1
    assert "does not follow one of the paper's benchmarks" in done.stderr


def test_one_network_of_several_keeps_its_folder_and_the_summary_has_all(bench):
    folder, _ = bench
    arguments = ("bench", "mine.toml", "--methods", "msp", "--out", "both")
    assert flatfold(folder, *arguments).returncode == 0
    banks = sorted((folder / "both" / "large" / "banks").iterdir())
    done = flatfold(folder, *arguments, "--networks", "large")
    assert done.returncode == 0, done.stderr
    assert not (folder / "both" / "results.json").exists()
    assert sorted((folder / "both" / "large" / "banks").iterdir()) == banks
    assert json.loads((folder / "both" / "summary.json").read_text())["runs"] == ["small", "large"]


def test_results_of_one_run_and_of_several_do_not_get_into_one_folder(bench):
    folder, _ = bench
    (folder / "alone.toml").write_text(SUITE.replace('[[network]]\nname = "large"\nfactory = "nets:large"\n', ""))
    done = flatfold(folder, "bench", "alone.toml", "--methods", "msp", "--seed", "1,2", "--out", "runs")
    assert done.returncode == 0, done.stderr
    done = flatfold(folder, "bench", "alone.toml", "--methods", "msp", "--out", "runs")
    assert (done.returncode, "runs holds the results of several runs" in done.stderr) == (1, True)
    assert flatfold(folder, "bench", "alone.toml", "--methods", "msp", "--out", "single").returncode == 0
    done = flatfold(folder, "bench", "alone.toml", "--methods", "msp", "--seed", "1,2", "--out", "single")
    assert (done.returncode, "single holds the results of a single run" in done.stderr) == (1, True)
    done = flatfold(folder, "bench", "alone.toml", "--methods", "msp", "--out", "alone.toml")
    assert (done.returncode, "--out must be a folder, but alone.toml is a file" in done.stderr) == (1, True)


def test_what_makes_numbers_incomparable_is_said_in_the_terminal(bench):
    folder, _ = bench
    done = flatfold(
        folder, "bench", "mine.toml", "--networks", "small", "--limit", 30, "--methods", "msp", "--out", "few"
    )
    assert "Before you compare: at most 30 images of each data set were taken." in done.stdout


def test_an_interruption_says_how_to_go_on(tmp_path, capsys):
    with pytest.raises(typer.Exit) as caught, resumable(tmp_path):
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130
    assert f"The same command goes on with what is already in {tmp_path}" in capsys.readouterr().err


def test_a_terminal_that_knows_few_letters_gets_its_table_too(bench):
    folder, _ = bench
    command = [sys.executable, "-m", "flatfold", "bench", "mine.toml", "--methods", "msp", "--no-report"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, "--out", "letters"], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    assert (folder / "letters" / "summary.csv").exists()
    assert not list((folder / "letters").rglob("report.html"))
