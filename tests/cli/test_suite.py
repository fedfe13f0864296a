"""``flatfold suite init``: from a few folders to a suite file that `doctor` and `bench` take."""

import tomllib

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from flatfold.cli.doctor import doctor
from flatfold.cli.suite import suite_app

NETS = """
import torch
from torch import nn

def make():
    layer = nn.Linear(3, 2)
    layer.load_state_dict({"weight": torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]), "bias": torch.zeros(2)})
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer)
"""
app = typer.Typer(rich_markup_mode=None)
app.add_typer(suite_app)
app.command()(doctor)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, with red and blue images, which are known, and others."""
    monkeypatch.chdir(tmp_path)
    colours = {"red": (255, 0, 0), "blue": (0, 0, 255)}
    for i in range(40):
        for label, (name, colour) in enumerate(reversed(colours.items())):
            save(tmp_path / "test" / f"{1 - label}-{name}" / f"{i}.png", colour)
        save(tmp_path / "green" / f"{i}.png", (0, 255, 0))
        save(tmp_path / "grey" / f"{i}.jpg", (99, 99, 99))
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


def save(path, colour):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 8), colour).save(path)


def test_a_suite_of_a_few_folders_passes_the_doctor(here):
    done = run("suite", "init", "mine.toml", "--test", "test", "--near", "green=green", "--model", "nets:make")
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        "suite -> mine.toml\n"
        "note: nothing is normalised, the network sees values from 0 to 1: if it is used to others, write mean and std "
        "into [transform] of mine.toml\n"
        "next: flatfold doctor mine.toml, then flatfold bench mine.toml\n"
    )
    done = run("doctor", "mine.toml")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-2:] == [
        "network make: 100.00 % of 64 test images are right; the suite does not say how many should be (accuracy = "
        "...). No mean and std are set: is the network used to values from 0 to 1?",
        "everything is there, 1 note",
    ]


def test_a_suite_that_says_what_is_known_of_its_network_leaves_nothing_to_note(here):
    options = "--test test --near green=green --model nets:make --mean 0,0,0 --std 0.5,.5,1 --accuracy 99.5"
    done = run("suite", "init", "mine.toml", *options.split())
    assert done.stdout == "suite -> mine.toml\nnext: flatfold doctor mine.toml, then flatfold bench mine.toml\n"
    assert tomllib.loads((here / "mine.toml").read_text())["transform"] == {"mean": [0, 0, 0], "std": [0.5, 0.5, 1]}
    done = run("doctor", "mine.toml")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == "everything is there"


def test_every_option_goes_into_the_file(here):
    for name in ("train", "val", "more"):
        save(here / name / "a" / "0.png", (1, 2, 3))
        save(here / name / "b" / "0.png", (1, 2, 3))
    (here / "w.pt").write_bytes(b"weights")
    options = "--train train --val val --test test --ood-val more --near green=green --near again=more --far grey=grey"
    options += (
        " --model timm/resnet18 --weights w.pt --resize 9 --crop 8 --mean 0.5,-1,2e-3 --std 1,2,3 --accuracy 76.1"
    )
    done = run("suite", "init", "mine.toml", *options.split())
    assert done.exit_code == 0, done.output
    assert tomllib.loads((here / "mine.toml").read_text()) == {
        "name": "mine",
        "seed": 0,
        "transform": {"resize": 9, "crop": 8, "mean": [0.5, -1, 0.002], "std": [1, 2, 3]},
        "network": [{"name": "resnet18", "model": "timm/resnet18", "weights": "w.pt", "accuracy": 76.1}],
        "train": {"folder": "train"},
        "val": {"folder": "val"},
        "test": {"folder": "test"},
        "ood_val": {"folder": "more"},
        "ood": [
            {"name": "green", "group": "near", "folder": "green"},
            {"name": "again", "group": "near", "folder": "more"},
            {"name": "grey", "group": "far", "folder": "grey"},
        ],
    }


def test_lists_say_where_their_images_are(here):
    (here / "lists").mkdir()
    (here / "lists" / "test.txt").write_text("0-red/0.png 0\n1-blue/0.png 1\n" * 3)
    done = run("suite", "init", "mine.toml", "--val", "lists/test.txt", "--images", "test")
    assert done.exit_code == 0, done.output
    section = tomllib.loads((here / "mine.toml").read_text())["val"]
    assert section == {"list": "lists/test.txt", "images": "test"}


def test_what_must_be_filled_in_is_said(here):
    done = run("suite", "init", "mine.toml", "--val", "test")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1] == "fill in first: network, test, ood"


def test_a_file_is_not_replaced_unless_forced(here):
    (here / "mine.toml").write_text("precious")
    done = run("suite", "init", "mine.toml")
    assert isinstance(done.exception, FileExistsError)
    assert (here / "mine.toml").read_text() == "precious"
    assert run("suite", "init", "mine.toml", "--force").exit_code == 0
    assert (here / "mine.toml").read_text() != "precious"


@pytest.mark.parametrize("option", ["--near", "--far"])
@pytest.mark.parametrize("value", ["green", "=green", "green="])
def test_an_unknown_data_set_has_a_name_and_a_place(here, option, value):
    done = run("suite", "init", "mine.toml", option, value)
    assert done.exit_code == 2
    assert f"Invalid value for {option}: it must be written NAME=DIR, got {value!r}." in done.output


def test_a_place_may_have_an_equals_sign_in_it(here):
    (here / "green").rename(here / "a=b")
    assert run("suite", "init", "mine.toml", "--far", "green=a=b").exit_code == 0
    assert tomllib.loads((here / "mine.toml").read_text())["ood"][0]["folder"] == "a=b"


@pytest.mark.parametrize("option", ["--mean", "--std"])
@pytest.mark.parametrize("value", ["", "a", "0.5,", "0.5 0.5 0.5"])
def test_mean_and_std_are_numbers(here, option, value):
    done = run("suite", "init", "mine.toml", option, value)
    assert done.exit_code == 2
    told = " ".join(done.output.split())
    assert (
        f"Invalid value for {option}: it must be one number or three with commas between them, got {value!r}." in told
    )
    assert not (here / "mine.toml").exists()


def test_a_class_too_small_to_draw_from_is_told(here):
    for number in range(4, 40):
        (here / "test" / "0-red" / f"{number}.png").unlink()
    done = run("suite", "init", "mine.toml", "--test", "test")
    assert "\nnote: a class of test has 4 images only, so val draws 2 of each: methods" in done.stdout
