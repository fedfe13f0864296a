"""``flatfold suite init``: the file that it writes is a suite, and what cannot be in one is refused."""

import tomllib

import numpy as np
import pytest
import torch
from PIL import Image

from flatfold import Transform
from flatfold.evaluate.suites.toml_file import SuiteFile
from tests.command import flatfold

NETS = """
from torch import nn

def make():
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 2))
"""
NETWORK = ("--model", "nets:make", "--weights", "w.pt")


def folder(root, names):
    """Write an image for each name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 8)).save(path)


@pytest.fixture
def here(tmp_path):
    """A folder with images of two classes, OOD ones, a network and its weights."""
    for split, n in (("train", 5), ("val", 2), ("test", 24)):
        folder(tmp_path / "photos" / split, [f"{name}/{i}.png" for name in ("ant", "bee") for i in range(n)])
    folder(tmp_path / "photos" / "birds", ["a.png", "sub/b.png", "c.png"])
    folder(tmp_path / "photos" / "more", ["a.png", "b.png"])
    (tmp_path / "nets.py").write_text(NETS)
    torch.save({"2.weight": torch.eye(2, 12), "2.bias": torch.zeros(2)}, tmp_path / "w.pt")
    return tmp_path


def init(here, *options, file="mine.toml"):
    """Write the file anew and return its tables."""
    done = flatfold("suite", "init", file, "--force", *options, cwd=here)
    assert done.returncode == 0, done.stderr
    return tomllib.loads((here / file).read_text())


def test_a_file_with_every_part_is_a_suite_that_can_be_judged(here):
    images = ["--train", "photos/train", "--val", "photos/val", "--test", "photos/test", "--ood-val", "photos/more"]
    prepared = ["--resize", 6, "--crop", 5, "--mean", "0.5,0.4,0.3", "--std", "0.2,0.3,1e-5", "--accuracy", 88.25]
    init(here, *images, "--near", "birds=photos/birds", "--far", "more=photos/birds/sub", *NETWORK, *prepared)
    (suite,) = SuiteFile(here / "mine.toml").suites()
    assert (suite.name, suite.network, suite.seed, suite.architecture) == ("mine", "make", 0, "nets:make")
    rows = {"train": 10, "val": 4, "test": 48, "ood_val": 2, "birds": 3, "more": 1}
    assert {name: source.rows for name, source in suite.sources.items()} == rows
    assert [(ood.name, ood.group) for ood in suite.ood] == [("birds", "near"), ("more", "far")]
    assert suite.test.transform == Transform(resize=6, crop=5, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 1e-5))
    assert suite.accuracy == 88.25
    assert torch.equal(suite.model[2].weight, torch.eye(2, 12))
    assert suite.model(next(iter(suite.test))[0]).shape == (48, 2)


def test_without_val_some_test_images_are_drawn_for_it_and_the_rest_is_judged(here):
    document = init(here, "--test", "photos/test", "--near", "birds=photos/birds", *NETWORK)
    assert document["val"] == {"folder": "photos/test", "per_class": 5}  # a fifth of 24 would be 4
    assert document["test"] == {"folder": "photos/test", "rest_of": "val"}
    assert init(here, "--val", "photos/val", file="new/mine.toml")["val"] == {"folder": "../photos/val"}
    (suite,) = SuiteFile(here / "mine.toml").suites()
    assert (suite.val.rows, suite.test.rows) == (10, 38)
    for n, per_class in ((2, 1), (9, 4), (10, 5), (29, 5), (30, 6), (499, 99), (500, 100), (5000, 100)):
        labels = np.repeat([0, 1], [n, n + 7])  # the smallest class decides
        np.savez(here / "test.npz", x=np.zeros((len(labels), 1, 1), np.uint8), y=labels)
        assert init(here, "--test", "test.npz")["val"]["per_class"] == per_class, n


def test_a_file_without_parts_is_valid_toml_that_names_what_to_fill_in(here):
    done = flatfold("suite", "init", "mine.toml", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "network, val, test, ood" in done.stdout
    text = (here / "mine.toml").read_text()
    assert tomllib.loads(text) == {"name": "mine", "seed": 0, "transform": {}}
    for section in ("[[network]]", "[train]", "[val]", "[test]", "[ood_val]", "[[ood]]"):
        assert f"\n# {section}\n" in text, section


def test_what_cannot_be_in_a_suite_is_refused_and_nothing_is_written(here):
    (here / "empty").mkdir()
    (here / "lost.txt").write_text("elsewhere/0.png 0\nelsewhere/1.png 1\n")
    folder(here / "one", ["ant/0.png", "ant/1.png", "bee/0.png"])
    folder(here / "$HOME", ["x/0.png", "y/0.png"])
    for options, keyword in (
        ("--val none", "none"), ("--ood-val empty", "ood_val"), ("--test photos/more", "labels"),
        ("--test one", "one image"), ("--val $HOME", "$"), ("--val lost.txt", "--images"), ("--train nets.py", ".npz"),
        ("--model a:b --weights none", "none"), ("--weights w.pt", "model"), ("--model resnet50", "resnet50"),
        ("--model a:b --accuracy 100.5", "100.5"), ("--mean 0.5,0.5", "mean"), ("--std 1,0,1", "std"),
        ("--near near=photos/more", "'near'"), ("--far .x=photos/more", "'.x'"),
        ("--near x=photos/more --far x=photos/birds", "'x'"),
    ):  # fmt: skip
        done = flatfold("suite", "init", "mine.toml", *options.split(), cwd=here)
        assert done.returncode != 0, options
        assert keyword in done.stderr, f"{options}: {done.stderr}"
        assert not (here / "mine.toml").exists(), options
    (here / "mine.toml").write_text("precious")
    for file in ("mine.yaml", "mine.toml"):
        assert flatfold("suite", "init", file, cwd=here).returncode != 0, file
    assert (here / "mine.toml").read_text() == "precious"
