"""The scripts and tables of the paper's full benchmarks: they say what the suite files say, and a shell runs them."""

import csv
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer

from flatfold.cli import app
from flatfold.evaluate.suites.schema import BUILT_IN, built_in_names
from flatfold.paper.full_scale import BACKBONES, list_needs, write_full_scale

SUITES = [*built_in_names(), BACKBONES.name]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_full_scale(tmp_path_factory.mktemp("full"))


def test_every_benchmark_has_a_script_and_a_part_of_the_tables(place):
    scripts = [f"{Path(name).stem}.sh" for name in SUITES]
    assert {path.name for path in place.iterdir()} == {*scripts, "needs.csv", "needs.md", BACKBONES.name}
    page = (place / "needs.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.M) == SUITES
    with (place / "needs.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(list_needs()) == page.count("\n| ") - len(SUITES)
    example = Path(__file__).parents[2] / "examples" / "imagenet_backbones.toml"
    assert (place / BACKBONES.name).read_text() == example.read_text()
    assert "214,660 images" in page.split("\n## ")[1]


def test_every_list_and_checkpoint_of_a_suite_file_is_named_with_its_numbers():
    for name in built_in_names():
        document = tomllib.loads((BUILT_IN / f"{name}.toml").read_text())
        mine = [need for need in list_needs() if need.suite == name]
        known = [document[split] for split in ("train", "val", "test", "ood_val") if split in document]
        expected = [(table["list"], table["images"], table.get("expect")) for table in known + document["ood"]]
        assert [(need.where, need.start, need.images) for need in mine[: len(expected)]] == expected
        assert all(f"resize {document['transform']['resize']}" in need.prepared for need in mine)
        assert str(document["network"][0]["accuracy"]) in mine[-1].note
    regnet = next(need for need in list_needs() if need.what == "network regnet")
    assert (regnet.where, regnet.prepared[:10]) == ("torchvision/regnet_y_16gf", "resize 384")


def test_a_script_runs_existing_commands_in_the_folder_of_openood_and_stops_at_an_error(place, tmp_path):
    program = tmp_path / "flatfold"
    known = typer.main.get_command(app).commands

    def run(name, code=0, **variables):
        program.write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
        program.chmod(0o755)
        given = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
        path = place / f"{Path(name).stem}.sh"
        return subprocess.run(["sh", path], capture_output=True, text=True, env=given, check=False)

    for name in SUITES:
        assert "OPENOOD" in run(name).stderr
        suite, out = str(place / name) if name.endswith(".toml") else name, f"out/paper/{Path(name).stem}"
        lines = run(name, OPENOOD="/a b").stdout.splitlines()
        assert lines == [
            f"doctor {suite} --data /a b",
            f"reproduce {suite} --data /a b --out {out} --device cuda --workers 8",
            f"paper {out} --csv {out}/comparison-with-paper.csv",
        ]
        for command, *words in map(str.split, lines):
            options = {option for parameter in known[command].params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= options
    failed = run("cifar10", code=1, OPENOOD="/nowhere")
    assert (failed.returncode, failed.stdout) == (1, "doctor cifar10 --data /nowhere\n")
