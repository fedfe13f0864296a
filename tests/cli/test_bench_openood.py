"""``flatfold bench cifar10`` on a small tree in OpenOOD's layout: lists, images, checkpoints, end to end."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.openood_tree import make_openood


def flatfold(*arguments, cwd):
    command = [sys.executable, "-m", "flatfold", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openood")
    make_openood(folder / "tree", "cifar10")
    yield folder
    shutil.rmtree(folder / "tree")  # three checkpoints of 45 MB


@pytest.fixture(scope="module")
def bench(tree):
    methods = "msp,knn:k=2,react@ood,fold,odin"
    done = flatfold(
        *("bench", "cifar10", "--data", "tree", "--any-counts", "--methods", methods, "--bootstrap", 50, "--no-report"),
        cwd=tree,
    )
    assert done.returncode == 0, done.stderr
    return tree / "out" / "cifar10", done


def test_every_checkpoint_is_judged_on_every_data_set(bench):
    folder, _ = bench
    for seed in (0, 1, 2):
        content = json.loads((folder / f"resnet18-s{seed}" / "results.json").read_text())
        sets = {(ood["name"], ood["group"]) for ood in content["suite"]["ood"]}
        near, far = {"cifar100", "tin"}, {"mnist", "svhn", "texture", "places365"}
        assert sets == {(name, "near") for name in near} | {(name, "far") for name in far}
        assert {row["dataset"] for row in content["rows"]} == near | far
        assert {row["method"] for row in content["rows"]} == {"msp", "knn:k=2", "react@ood", "fold", "odin"}
        assert content["suite"]["protocol"] == "openood-1.5/cifar10"
        assert content["suite"]["architecture"] == "openood/resnet18_32x32"
        assert content["provenance"]["seed"] == seed
        assert content["wrong"]


def test_the_three_checkpoints_are_averaged(bench):
    folder, done = bench
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    assert {row["n"] for row in rows} == {3}
    assert {row["family"] for row in rows} == {"resnet18"}
    assert "over 3 runs" in " ".join(done.stdout.split())


def test_every_count_that_is_not_openoods_stands_in_the_results(bench):
    folder, _ = bench
    deviations = json.loads((folder / "resnet18-s0" / "results.json").read_text())["suite"]["deviations"]
    for name, count in {"train": 50000, "val": 1000, "test": 9000, "tin": 7793, "mnist": 70000}.items():
        assert any(re.fullmatch(rf"{name} has \d+ images, {count} were expected", sentence) for sentence in deviations)


def test_such_numbers_are_not_set_beside_the_papers_unless_asked_for_and_then_marked(bench):
    folder, _ = bench
    done = flatfold("paper", folder, cwd=folder)
    assert done.returncode == 1
    assert "7793 were expected" in done.stderr
    done = flatfold("paper", folder, "--anyway", "--csv", "beside.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = (folder / "beside.csv").read_text().splitlines()
    assert len(lines) > 20
    assert all("not comparable: " in line for line in lines[1:])


def test_without_being_told_other_counts_are_refused(tree):
    done = flatfold("bench", "cifar10", "--data", "tree", cwd=tree)
    assert done.returncode == 1
    assert re.search(r"\[train\]: train has \d+ images, 50000 were expected\. Get the lists again", done.stderr)
    assert not (tree / "out" / "cifar10" / "results.json").exists()


def test_the_doctor_names_every_count_that_is_missing(tree):
    done = flatfold("doctor", "cifar10", "--data", "tree", "--no-accuracy", cwd=tree)
    assert done.returncode == 1
    for count in (50000, 1000, 9000, 7793, 70000, 26032, 5640, 35195):
        assert f"{count} images" in done.stdout
    assert done.stdout.count("wrong") == 10
