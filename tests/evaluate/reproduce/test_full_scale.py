"""`evaluate.reproduce.full_scale`: scripts that a shell understands, and nothing but what the suite files say."""

import csv
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer

from flatfold.cli import app
from flatfold.evaluate.reproduce.full_scale import BACKBONES, needs, script, write_full_scale
from flatfold.evaluate.suites.text import BUILT_IN, built_in_names

SUITES = [*built_in_names(), BACKBONES.name]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENOOD", raising=False)  # nothing of it needs to be there
        return write_full_scale(tmp_path_factory.mktemp("full"))


def test_the_backbones_are_those_of_the_example():
    example = Path(__file__).parents[3] / "examples" / "imagenet_backbones.toml"
    assert BACKBONES.read_text() == example.read_text()


def test_every_benchmark_has_a_script_and_a_part_of_the_tables(place):
    stems = [Path(name).stem for name in SUITES]
    assert sorted(path.name for path in place.iterdir()) == sorted(
        [*(f"{stem}.sh" for stem in stems), "needs.csv", "needs.md", BACKBONES.name]
    )
    page = (place / "needs.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.M) == SUITES
    with (place / "needs.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(needs()) == page.count("\n| ") - len(SUITES)
    assert (place / BACKBONES.name).read_text() == BACKBONES.read_text()


@pytest.mark.parametrize("name", built_in_names())
def test_every_list_and_checkpoint_of_a_suite_file_is_named_with_its_numbers(name):
    document = tomllib.loads((BUILT_IN / f"{name}.toml").read_text())
    mine = [need for need in needs() if need.suite == name]
    tables = [document[split] for split in ("train", "val", "test", "ood_val") if split in document] + document["ood"]
    lists, checkpoints = mine[: len(tables)], mine[len(tables) :]
    assert [(n.where, n.start, n.images) for n in lists] == [(t["list"], t["images"], t.get("expect")) for t in tables]
    assert all(f"resize {document['transform']['resize']}" in need.prepared for need in mine)
    (network,) = document["network"]
    weights = [network["weights"].replace("{seed}", str(seed)) for seed in network.get("seeds", [0])]
    assert [need.where for need in checkpoints] == weights
    assert all(need.what.startswith("network ") for need in checkpoints)
    assert f"{network['accuracy']} % of the test images" in mine[-1].note
    assert ("may be missing" in mine[0].note) == document["train"].get("optional", False)


def test_networks_that_are_downloaded_say_so_with_their_own_preparation():
    regnet, *others = [need for need in needs() if need.suite == BACKBONES.name and need.images is None]
    assert (regnet.where, regnet.note) == ("torchvision/regnet_y_16gf", "downloaded: IMAGENET1K_SWAG_E2E_V1")
    assert regnet.prepared.startswith("resize 384, crop 384, mean")
    assert [need.what for need in others] == ["network densenet", "network wrn", "network resnext"]
    images = [(n.what, n.images, n.where) for n in needs() if n.suite == BACKBONES.name and n.images is not None]
    assert images == [(n.what, n.images, n.where) for n in needs() if n.suite == "imagenet1k" and n.images is not None]


@pytest.mark.parametrize("name", SUITES)
def test_a_script_is_sound_and_its_commands_exist_with_their_options(name, place):
    path = place / f"{Path(name).stem}.sh"
    assert path.read_text() == script(name)
    subprocess.run(["sh", "-n", path], check=True)
    commands = [shlex.split(line) for line in path.read_text().splitlines() if line.startswith("flatfold ")]
    assert [command[1] for command in commands] == ["doctor", "reproduce", "paper"]
    known = typer.main.get_command(app).commands
    for _, command, *words in commands:
        options = {option for parameter in known[command].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("name", SUITES)
def test_a_script_asks_for_the_folder_of_openood_and_runs_its_commands_there(name, place, tmp_path):
    program = tmp_path / "flatfold"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    path = place / f"{Path(name).stem}.sh"

    def run(**variables):
        given = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
        return subprocess.run(["sh", path], capture_output=True, text=True, env=given, check=False)

    assert "OPENOOD: is not set: name the folder" in run().stderr
    doctor, reproduce, paper = run(OPENOOD="/a b").stdout.splitlines()
    suite = str(place / name) if name.endswith(".toml") else name
    out = f"out/paper/{Path(name).stem}"
    assert doctor == f"doctor {suite} --data /a b"
    assert reproduce == f"reproduce {suite} --data /a b --out {out} --device cuda --workers 8"
    assert paper == f"paper {out} --csv {out}/beside-paper.csv"


def test_a_script_stops_where_something_is_missing(place, tmp_path):
    program = tmp_path / "flatfold"
    program.write_text('#!/bin/sh\necho "$1"\nexit 1\n')
    program.chmod(0o755)
    given = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OPENOOD": "/nowhere"}
    done = subprocess.run(["sh", place / "cifar10.sh"], capture_output=True, text=True, env=given, check=False)
    assert (done.returncode, done.stdout) == (1, "doctor\n")


def test_the_sum_of_images_says_which_list_is_not_in_it(place):
    parts = (place / "needs.md").read_text().split("\n## ")
    sums = {part.splitlines()[0]: part.strip().splitlines()[-1] for part in parts[1:]}
    assert sums["cifar10"] == "214,660 images in all."
    assert sums["imagenet200"] == "97,671 images in all, without those of train, which the suite does not count."
    for name, told in sums.items():
        known = sum(need.images or 0 for need in needs() if need.suite == name)
        assert told.startswith(f"{known:,} images")


def test_the_page_says_how_large_features_are(place):
    assert "10.5 GB for a network with 2,048 features" in (place / "needs.md").read_text()
    assert round(1_281_167 * 2048 * 4 / 1e9, 1) == 10.5
