"""``flatfold bench mine.toml``: a suite of one's own, as a user would write it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

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
    command = [sys.executable, "-m", "flatfold", "bench", "mine.toml", "--methods", "odin"]
    subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    after = json.loads((folder / "out" / "mine" / "small" / "results.json").read_text())["rows"]
    assert after == [row for row in before if row["method"] == "odin"]


def test_a_mistake_in_the_file_is_told_with_its_place(bench):
    folder, _ = bench
    (folder / "wrong.toml").write_text(SUITE.replace("per_class = 20", "per_clas = 20"))
    command = [sys.executable, "-m", "flatfold", "bench", "wrong.toml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 1
    assert done.stderr == "flatfold: wrong.toml: [val]: there is no key 'per_clas' here. Did you mean per_class?\n"
