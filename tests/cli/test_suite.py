"""``flatfold suite init`` writes a suite file, and ``flatfold doctor`` says what is missing or wrong in one."""

import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cli.running import assert_mistakes, succeed
from tests.command import flatfold
from tests.toy_suite import World

NETS = """
import torch
from torch import nn

def make():
    layer = nn.Linear(3, 2, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]])
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer)
"""
INIT = ("suite", "init", "mine.toml")
SOUND = ("--test", "test", "--near", "green=green", "--model", "nets:make")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The current folder: red and blue images, which are in-distribution, and others."""
    monkeypatch.chdir(tmp_path)
    colours = {"test/0-red": (255, 0, 0), "test/1-blue": (0, 0, 255), "green": (0, 255, 0), "a=b": (9, 9, 9)}
    for name, colour in colours.items():
        (tmp_path / name).mkdir(parents=True)
        for i in range(40):
            Image.new("RGB", (10, 8), colour).save(tmp_path / name / f"{i}.png")
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


def written():
    return tomllib.loads(Path("mine.toml").read_text())


def test_a_suite_of_a_few_folders_passes_the_doctor(folders):
    done = succeed(*INIT, *SOUND)
    assert "note: " in done.stdout, "there is no mean and std"
    done = succeed("doctor", "mine.toml")
    assert "100.00 % of 64 test images" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("1 note")
    done = succeed(*INIT, *SOUND, "--mean", "0,0,0", "--std", "0.5,.5,1", "--accuracy", "99.5", "--force")
    assert "note: " not in done.stdout
    assert written()["transform"] == {"mean": [0, 0, 0], "std": [0.5, 0.5, 1]}
    assert "note" not in succeed("doctor", "mine.toml").stdout.splitlines()[-1]


def test_every_option_goes_into_the_file(folders):
    (folders / "w.pt").write_bytes(b"weights")
    (folders / "list.txt").write_text("0-red/0.png 0\n1-blue/0.png 1\n" * 3)
    options = "--train test --val list.txt --images test --test test --ood-val green"
    options += " --near green=green --near again=green --far grey=a=b"
    model = "--model timm/resnet18 --weights w.pt --resize 9 --crop 8 --mean 0.5,-1,2e-3 --std 1,2,3 --accuracy 76.1"
    succeed(*INIT, *options.split(), *model.split())
    assert written() == {
        "name": "mine",
        "seed": 0,
        "transform": {"resize": 9, "crop": 8, "mean": [0.5, -1, 0.002], "std": [1, 2, 3]},
        "network": [{"name": "resnet18", "model": "timm/resnet18", "weights": "w.pt", "accuracy": 76.1}],
        **{name: {"folder": "test"} for name in ("train", "test")},
        "val": {"list": "list.txt", "images": "test"},
        "ood_val": {"folder": "green"},
        "ood": [
            {"name": "green", "group": "near", "folder": "green"},
            {"name": "again", "group": "near", "folder": "green"},
            {"name": "grey", "group": "far", "folder": "a=b"},
        ],
    }


def test_mistakes_of_init(folders):
    cases = [([option, value], 2, option) for option in ("--near", "--far") for value in ("green", "=green", "green=")]
    cases += [([option, value], 2, option) for option in ("--mean", "--std") for value in ("", "a", "0.5,", ".5 .5")]
    assert_mistakes(INIT, cases, folders)
    assert "network, test, ood" in succeed(*INIT, "--val", "test").stdout
    assert_mistakes(INIT, [([], 1, "mine.toml")], folders)


@pytest.fixture
def world(tmp_path):
    """A sound suite whose network is right on 120 test images."""
    world = World(tmp_path)
    x, y = np.zeros((120, 4, 4), np.uint8), np.arange(120) % 3
    x[np.arange(120), 0, y] = 255
    np.savez(tmp_path / "test.npz", x=x, y=y)
    torch.save({"2.weight": torch.eye(3, 16), "2.bias": torch.zeros(3)}, tmp_path / "w.pt")
    world.document["test"] = {"npz": "test.npz"}
    world.document["network"][0] |= {"weights": "w.pt", "accuracy": 99}
    world.file()
    return world


def assert_doctor(world, options, code, lines, last):
    """Run the doctor; each line of its table is found by its start and matches a pattern; ``last`` ends it all."""
    world.file()
    done = flatfold("doctor", world.path, *options)
    assert done.returncode == code, done
    for name, pattern in lines.items():
        (line,) = [line for line in done.stdout.splitlines() if re.match(rf"│ {re.escape(name)} +│", line)]
        assert re.search(pattern, line), (pattern, line)
    assert done.stdout.splitlines()[-1] == last
    return done.stdout


def test_a_sound_suite_has_a_line_for_every_part(world):
    images = {"train": "12 images", "val": "12 of 30 images", "test": "120 images", "far strange": "7 images"}
    lines = {name: rf"│ ok +│ +│ +{found} │" for name, found in images.items()}
    network = {"network tiny": r"│ ok +│ +99\.00 % │ +100\.00 % │ .*w\.pt"}
    shown = assert_doctor(world, [], 0, lines | network, "no problems found")
    assert re.search(r"costs: A benchmark of all methods needs about .* of memory .* less than a minute", shown), shown


def test_missing_or_wrong_parts_are_counted_and_optional_ones_are_notes(world):
    world.document["train"] = {"npz": "[red]none.npz"}
    world.document["ood"][0]["expect"] = 8
    lines = {"train": r"│ missing +│.*\[red\]none", "far strange": r"│ wrong +│ +8 images │ +7 images │"}
    assert_doctor(world, [], 1, lines, "2 of 5 need attention")
    world.document["train"]["optional"] = True
    del world.document["ood"][0]["expect"], world.document["network"][0]["accuracy"]
    lines = {"train": r"│ note +│", "network tiny": r"│ note +│ +│ +100\.00 % │"}
    assert_doctor(world, [], 0, lines, "no problems found, 2 notes")


def test_accuracy_can_be_left_out_or_taken_from_few_images(world):
    world.document["network"][0]["accuracy"] = 50
    assert "of 12 test images" in assert_doctor(world, ["--limit", 12], 1, {}, "1 of 5 need attention")
    assert_doctor(world, ["--no-accuracy"], 0, {"network tiny": r"│ ok +│ +50\.00 % │ +│"}, "no problems found")


def test_every_image_is_read_if_that_is_wanted(world):
    for number in range(200):
        world.image(f"odd/{number:03}.png")
    (world.folder / "odd" / "123.png").write_bytes(b"no image")
    world.document["ood"][0] = {"name": "strange", "group": "far", "folder": "odd"}
    for options in ([], ["--no-read"]):
        assert_doctor(world, options, 0, {}, "no problems found")
    assert "123.png" in assert_doctor(world, ["--read"], 0, {}, "no problems found, 1 note")
    for number in (7, 8):
        (world.folder / "odd" / f"{number:03}.png").write_bytes(b"no image")
    assert "007.png, 008.png, 123.png" in assert_doctor(world, ["--read"], 1, {}, "1 of 5 need attention")


def test_the_folder_of_openood_is_an_option_or_a_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENOOD", raising=False)
    done = flatfold("doctor", "imagenet1k")
    assert done.returncode == 1
    assert done.stdout.count("OPENOOD is not set") == 2, "one cause, of needed and of optional parts"
    assert done.stdout.splitlines()[-1].startswith("9 of 10")
    done = flatfold("doctor", "cifar10", "--data", tmp_path, "--seed", 1)
    assert done.returncode == 1
    assert "OPENOOD" not in done.stdout
    assert str(tmp_path / "results" / "cifar10_resnet18_32x32_base_e100_lr0.1_default") in done.stdout
    assert [f"network resnet18-s{seed} " in done.stdout for seed in range(3)] == [False, True, False]


def test_mistakes_of_doctor(tmp_path, monkeypatch):
    (tmp_path / "toy.toml").write_text("x")
    assert_mistakes(("doctor",), [(["cifar11"], 1, "cifar11"), (["toy.toml"], 1, "toy.toml")], tmp_path)
    succeed("doctor", "digits")
    succeed("doctor", "texts")
    monkeypatch.setattr(sys.modules["flatfold.cli.suite"], "DEMO", {"digits": ("", ("mlxtend", "no_such_package"))})
    done = flatfold("doctor", "digits")
    assert (done.returncode, "no_such_package" in done.stdout) == (1, True)
