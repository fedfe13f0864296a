"""`evaluate.suite_file`: what a suite file says is what is judged, and every mistake in it has a sentence."""

import copy
import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from flatfold.evaluate.suite_file import read_suites
from flatfold.evaluate.suites import load_suites
from flatfold.models.images import ArrayImages, NpzImages, Transform
from flatfold.models.picked import PickedImages

NETS = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Size:
    classes: "int" = 3

def tiny():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, Size().classes))

def wide():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 5))

def wrong():
    return "a network"

def needy(depth):
    return None
"""


def toml(document):
    """Write tables of plain values: JSON's texts, numbers and lists are TOML's too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in document.items() if not nested(value)]
    for key, value in document.items():
        for table in nested(value):
            title = f"[[{key}]]" if isinstance(value, list) else f"[{key}]"
            lines += [title, *(f"{name} = {json.dumps(entry)}" for name, entry in table.items())]
    return "\n".join(lines)


def nested(value):
    """The tables of a section, none for a plain value."""
    tables = value if isinstance(value, list) else [value]
    return tables if all(isinstance(table, dict) for table in tables) else []


class World:
    """A folder with images, a file of networks and a suite file that is sound until a test changes it."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "toy.toml"
        (folder / "nets.py").write_text(NETS)
        for name, n in (("train", 12), ("pool", 30), ("other", 7)):
            np.savez(folder / f"{name}.npz", x=pixels(n), y=np.arange(n) % 3, twin=pixels(n, seed=1))
        self.document = {
            "transform": {"mode": "L"},
            "network": [{"name": "tiny", "factory": "nets:tiny"}],
            "train": {"npz": "train.npz"},
            "val": {"npz": "pool.npz", "per_class": 4},
            "test": {"npz": "pool.npz", "rest_of": "val"},
            "ood": [{"name": "strange", "group": "far", "npz": "other.npz"}],
        }

    def read(self, **arguments):
        self.path.write_text(toml(self.document))
        return read_suites(self.path, **arguments)

    def suite(self, **arguments):
        (suite,) = self.read(**arguments)
        return suite

    def refusal(self, kind=ValueError):
        """The message with which the file is refused, without its own name in front."""
        with pytest.raises(kind) as caught:
            self.read()
        assert type(caught.value) is kind
        start, _, message = str(caught.value).partition(": ")
        assert start == str(self.path)
        return message


def pixels(n, seed=0):
    """Images of 4x4 grey pixels; the first pixel is the number of the row."""
    x = np.random.default_rng([seed, n]).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    x[:, 0, 0] = np.arange(n)
    return x


def row_numbers(source):
    batches = [batch if isinstance(batch, torch.Tensor) else batch[0] for batch in source]
    return (torch.cat(batches)[:, 0, 0, 0] * 255).round().int().tolist()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# What a sound file gives


def test_a_suite_is_what_its_file_says(world):
    world.document |= {"name": "toy-1", "about": "Toys.", "seed": 5}
    world.document["ood"][0]["about"] = "Strange toys."
    suite = world.suite()
    assert (suite.name, suite.about, suite.seed) == ("toy-1", "Toys.", 5)
    assert (suite.network, suite.head, suite.ood_val) == ("tiny", None, None)
    assert (suite.train.rows, suite.val.rows, suite.test.rows) == (12, 12, 18)
    assert [(ood.name, ood.group, ood.about, ood.images.rows) for ood in suite.ood] == [
        ("strange", "far", "Strange toys.", 7)
    ]


def test_what_is_not_said_has_a_default(world):
    suite = world.suite()
    assert (suite.name, suite.about, suite.seed, suite.train.batch_size) == ("toy", "", 0, 256)
    assert suite.ood[0].about == ""
    del world.document["transform"]
    assert world.suite().train.transform == Transform()


def test_images_and_labels_are_those_of_the_files(world):
    suite = world.suite(batch_size=5)
    assert row_numbers(suite.train) == list(range(12))
    for split in (suite.train, suite.val, suite.test):
        assert split.batch_size == 5
        assert split.labels.tolist() == [row % 3 for row in row_numbers(split)]
        assert torch.cat([y for _, y in split]).tolist() == split.labels.tolist()
    assert row_numbers(suite.ood[0].images) == list(range(7))


def test_arrays_of_other_names_are_found(world):
    np.savez(world.folder / "named.npz", pictures=pixels(6), classes=np.arange(6))
    world.document["train"] = {"npz": "named.npz", "x": "pictures", "y": "classes"}
    assert world.suite().train.labels.tolist() == list(range(6))


def test_unknown_images_have_no_labels_even_if_their_file_has(world):
    world.document["ood_val"] = {"npz": "train.npz", "first": 5}
    suite = world.suite()
    assert suite.ood[0].images.labels is None
    assert (suite.ood_val.rows, suite.ood_val.labels) == (5, None)
    assert [ood.name for ood in suite.ood] == ["strange"]  # the images for choosing are not judged


def test_folders_are_read_with_labels_for_splits_and_without_for_unknown_images(world):
    for label in ("ant", "bee"):
        for i in range(3):
            path = world.folder / "images" / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels(3)[i]).save(path)
    world.document["val"] = {"folder": "images", "per_class": 1}
    world.document["test"] = {"folder": "images", "rest_of": "val"}
    world.document["ood"][0] = {"name": "strange", "group": "near", "folder": "images"}
    suite = world.suite()
    assert (suite.val.labels.tolist(), suite.test.labels.tolist()) == ([0, 1], [0, 0, 1, 1])
    assert (suite.ood[0].images.rows, suite.ood[0].images.labels, suite.ood[0].group) == (6, None, "near")


def test_a_data_set_may_change_single_entries_of_the_transform(world):
    world.document["transform"] = {"mode": "L", "mean": [0.5], "std": [0.25], "resize": 8, "crop": 6}
    world.document["ood"][0] |= {"resize": 10, "mean": [0.1]}
    suite = world.suite()
    assert suite.train.transform == Transform(mode="L", mean=(0.5,), std=(0.25,), resize=8, crop=6)
    assert suite.ood[0].images.transform == Transform(mode="L", mean=(0.1,), std=(0.25,), resize=10, crop=6)
    assert next(iter(suite.ood[0].images)).shape == (7, 1, 6, 6)


# Draws


def test_a_draw_takes_as_many_of_each_class_and_the_rest_is_what_it_left(world):
    suite = world.suite()
    val, test = row_numbers(suite.val), row_numbers(suite.test)
    assert suite.val.labels.bincount().tolist() == [4, 4, 4]
    assert val == sorted(val)
    assert sorted(val + test) == list(range(30))
    assert test == sorted(test)


def test_a_draw_follows_the_seed_of_the_call_and_else_that_of_the_file(world):
    def drawn(**arguments):
        return row_numbers(world.suite(**arguments).val)

    by_default = drawn()
    assert drawn() == by_default
    assert drawn(seed=0) == by_default
    assert drawn(seed=1) != by_default
    world.document["seed"] = 1
    assert drawn(seed=0) == by_default
    assert drawn() == drawn(seed=1) != by_default
    assert world.suite(seed=0).seed == 0


def test_splits_can_be_drawn_one_from_the_rest_of_another_in_any_order(world):
    world.document |= {
        "train": {"npz": "pool.npz", "rest_of": "test"},
        "val": {"npz": "pool.npz", "per_class": 5},
        "test": {"npz": "pool.npz", "rest_of": "val", "per_class": 2},
    }
    suite = world.suite()
    rows = [row_numbers(split) for split in (suite.train, suite.val, suite.test)]
    assert sorted(rows[0] + rows[1] + rows[2]) == list(range(30))
    assert [len(part) for part in rows] == [9, 15, 6]
    assert suite.test.labels.bincount().tolist() == [2, 2, 2]


def test_the_first_rows_are_taken_last(world):
    whole = world.suite()
    world.document["val"]["first"] = 3
    world.document["test"]["first"] = 5
    world.document["ood"][0]["first"] = 2
    world.document["train"]["first"] = 12
    suite = world.suite()
    assert row_numbers(suite.val) == row_numbers(whole.val)[:3]
    assert row_numbers(suite.test) == row_numbers(whole.test)[:5]  # what val drew first is still not in it
    assert row_numbers(suite.ood[0].images) == [0, 1]
    assert suite.train.rows == 12


def test_a_file_that_two_splits_share_is_read_once(world, monkeypatch):
    read = []
    whole = NpzImages.__init__

    def counted(self, path, *arguments):
        read.append(path.name)
        whole(self, path, *arguments)

    monkeypatch.setattr(NpzImages, "__init__", counted)
    world.document["test"]["npz"] = f"../{world.folder.name}/pool.npz"  # the same file, written in another way
    suite = world.suite()
    assert sorted(read) == ["other.npz", "pool.npz", "train.npz"]
    assert suite.val.source is suite.test.source


def test_a_file_may_serve_in_several_ways(world):
    world.document["ood"] += [
        {"name": "twin", "group": "far", "npz": "other.npz", "x": "twin"},
        {"name": "known", "group": "near", "npz": "train.npz"},
        {"name": "larger", "group": "far", "npz": "other.npz", "resize": 8},
    ]
    suite = world.suite()
    strange, twin, known, larger = (ood.images for ood in suite.ood)
    assert (strange.transform.resize, larger.transform.resize) == (None, 8)
    assert np.array_equal(strange.x, larger.x)
    assert np.array_equal(twin.x, pixels(7, seed=1))
    assert known.labels is None
    assert suite.train.labels is not None


# Networks


def test_each_network_is_a_suite_on_the_same_images(world):
    world.document["network"].append({"name": "wide", "factory": "nets:wide", "head": "2"})
    tiny, wide = world.read()
    assert (tiny.network, wide.network) == ("tiny", "wide")
    assert (tiny.head, wide.head) == (None, "2")
    assert (tiny.model[2].out_features, wide.model[2].out_features) == (3, 5)
    for name in ("train", "val", "test", "ood"):
        assert getattr(tiny, name) is getattr(wide, name)


def test_a_network_is_in_evaluation_mode(world):
    assert not any(module.training for module in world.suite().model.modules())


def state():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 3)).state_dict()


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_weights_are_loaded(world, name):
    weights = state()
    (save_file if name.endswith("safetensors") else torch.save)(weights, world.folder / name)
    world.document["network"][0]["weights"] = name
    assert torch.equal(world.suite().model[2].weight, weights["2.weight"])


def test_a_network_without_weights_follows_the_seed_and_leaves_the_random_numbers_alone(world):
    before = torch.random.get_rng_state()
    first, again, other = (world.suite(seed=seed).model[2].weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_namesakes_beside_two_suite_files_are_two_modules(tmp_path):
    worlds = []
    for name, classes in (("a", 3), ("b", 4)):
        (tmp_path / name).mkdir()
        worlds.append(World(tmp_path / name))
        (tmp_path / name / "nets.py").write_text(NETS.replace("= 3", f"= {classes}"))
    path, modules = list(sys.path), set(sys.modules)
    assert [world.suite().model[2].out_features for world in worlds] == [3, 4]
    assert sys.path == path
    assert "nets" not in sys.modules
    new = set(sys.modules) - modules
    assert len(new) == 2
    assert all(name.startswith("flatfold_suite_") for name in new)


def test_a_factory_may_lie_in_a_sub_folder_or_in_an_installed_package(world):
    (world.folder / "zoo").mkdir()
    (world.folder / "zoo" / "pets.py").write_text(NETS)
    world.document["network"][0]["factory"] = "zoo.pets:wide"
    assert world.suite().model[2].out_features == 5
    world.document["network"][0]["factory"] = "torch.nn:Identity"
    assert isinstance(world.suite().model, nn.Identity)


# Paths


@pytest.mark.parametrize(
    "written", ["$TOY_DATA/train.npz", "${TOY_DATA}/train.npz", "$TOY_DATA/../$TOY_NAME/train.npz"]
)
def test_environment_variables_stand_for_parts_of_a_path(world, monkeypatch, written):
    elsewhere = world.folder / "elsewhere"
    elsewhere.mkdir()
    np.savez(elsewhere / "train.npz", x=pixels(4), y=np.arange(4))
    monkeypatch.setenv("TOY_DATA", str(elsewhere))
    monkeypatch.setenv("TOY_NAME", "elsewhere")
    world.document["train"]["npz"] = written
    assert world.suite().train.rows == 4


def test_weights_and_folders_know_environment_variables_too(world, monkeypatch):
    monkeypatch.setenv("TOY_DATA", str(world.folder))
    torch.save(state(), world.folder / "w.pt")
    Image.fromarray(pixels(1)[0]).save(world.folder / "x.png")
    world.document["network"][0]["weights"] = "$TOY_DATA/w.pt"
    world.document["ood"][0] = {"name": "strange", "group": "far", "folder": "$TOY_DATA"}
    assert world.suite().ood[0].images.rows == 1


def test_paths_start_from_the_suite_file_wherever_the_command_runs(world, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert world.suite().train.rows == 12


def test_a_path_that_ends_in_toml_is_a_suite_file(world):
    world.read()
    (suite,) = load_suites(str(world.path), world.folder / "out", seed=7, batch_size=9)
    assert (suite.name, suite.seed, suite.train.batch_size) == ("toy", 7, 9)
    assert not (world.folder / "out").exists()


# Refusals. Each case changes the sound document and names the sentence it must cause.


def changed(section, **entries):
    """A change of some entries; None removes one. ``section`` is "" for the top of the file."""

    def change(document):
        table = document[section] if section else document
        table = table[0] if isinstance(table, list) else table
        for key, value in entries.items():
            if value is None:
                del table[key]
            else:
                table[key] = value

    return change


REFUSALS = {
    # keys that are not there
    "unknown at the top": (changed("", sed=1), r"there is no key 'sed' here\. Did you mean seed\?"),
    "unknown section": (changed("", tset={}), r"there is no key 'tset' here\. Did you mean test\?"),
    "unknown in a split": (changed("val", perclass=3), r"\[val\]: .*'perclass' here\. Did you mean per_class\?"),
    "unknown in transform": (changed("transform", man=[0.1]), r"\[transform\]: .*'man' here\. Did you mean mean\?"),
    "unknown in network": (changed("network", weigths="w"), r"\[\[network\]\] tiny: .* Did you mean weights\?"),
    "unknown in ood": (changed("ood", grup="far"), r"\[\[ood\]\] strange: .* Did you mean group\?"),
    "like no other": (changed("network", zzz=1), r".* no key 'zzz' here\. There are name, factory, weights, head\."),
    "labels of unknown images": (changed("ood", y="y"), r"\[\[ood\]\] strange: there is no key 'y' here"),
    "a draw of unknown images": (changed("ood", per_class=2), r"\[\[ood\]\] strange: there is no key 'per_class' here"),
    # keys that are missing
    "no network": (changed("", network=None), r"network is missing: it says which network is judged"),
    "no train": (changed("", train=None), r"train is missing: methods that are fitted on training data need it\. "),
    "no val": (changed("", val=None), r"val is missing: methods that are fitted on held-out data need it\. "),
    "no test": (changed("", test=None), r"test is missing: .* known ones .* must be a section in single brackets\."),
    "no ood": (changed("", ood=None), r"ood is missing: .* must be sections in double brackets\."),
    "no factory": (changed("network", factory=None), r"\[\[network\]\] tiny: factory is missing: it makes the network"),
    "no name of a network": (changed("network", name=None), r"\[\[network\]\] without a name: name is missing"),
    "no name of a data set": (changed("ood", name=None), r"\[\[ood\]\] without a name: name is missing"),
    "no group": (changed("ood", group=None), r"\[\[ood\]\] strange: group is missing: .* one of near, far\."),
    # values of another type
    "name": (changed("", name="../x"), r"name must be a name of letters, digits and -_\.\+, got '\.\./x'"),
    "hidden name": (changed("network", name=".x"), r"\[\[network\]\] \.x: name must be a name of letters"),
    "about": (changed("", about=3), r"about must be a text in quotes, got 3\."),
    "empty text": (changed("train", npz=""), r"\[train\]: npz must be a text in quotes, got ''"),
    "negative seed": (changed("", seed=-1), r"seed must be a whole number, at least 0, got -1"),
    "seed": (changed("", seed=True), r"seed must be a whole number, at least 0, got True"),
    "per_class": (changed("val", per_class=0), r"\[val\]: per_class must be a whole number, at least 1, got 0"),
    "first": (changed("test", first=2.0), r"\[test\]: first must be a whole number, at least 1, got 2\.0"),
    "rest_of": (changed("test", rest_of="ood"), r"\[test\]: rest_of must be one of train, val, test, got 'ood'"),
    "group": (changed("ood", group="middle"), r"\[\[ood\]\] strange: group must be one of near, far, got 'middle'"),
    "mode": (changed("transform", mode="CMYK"), r"\[transform\]: mode must be one of RGB, L, got 'CMYK'"),
    "mean": (changed("transform", mean=["a"]), r"\[transform\]: mean must be a list of numbers, got \['a'\]"),
    "factory": (
        changed("network", factory="nets.tiny"),
        r'.*: factory must be written "package\.module:function", got',
    ),
    "a section in single brackets": (changed("", network={"name": "a"}), r"network must be sections in double"),
    "no sections": (changed("", network=[]), r"network must be sections in double brackets, got \[\]"),
    "a list of something else": (changed("", network=[1]), r"network must be sections in double brackets, got \[1\]"),
    "a split in double brackets": (
        changed("", val=[{"npz": "pool.npz"}]),
        r"val must be a section in single brackets, got",
    ),
    # the transform
    "channels": (changed("transform", mean=[1, 2, 3]), r"\[transform\]: mean must have one number per channel of L, 1"),
    "own channels": (changed("train", std=[1, 2]), r"\[train\]: std must have one number per channel of L, 1, got 2"),
    # sources
    "two sources": (changed("train", folder="."), r"\[train\]: images come from either .*, got npz and folder"),
    "no source": (changed("train", npz=None), r"\[train\]: images come from either npz or folder, got neither"),
    "names of arrays in a folder": (
        changed("train", npz=None, folder=".", y="y"),
        r"\[train\]: x and y name arrays in a npz, but this is a folder",
    ),
    "no array of images": (changed("ood", x="z"), r"\[\[ood\]\] strange: npz: .*other\.npz has no array 'z'; it has"),
    "no labels": (changed("val", y="z"), r"\[val\]: npz: .*pool\.npz has no array 'z'; it has 'x', 'y', 'twin'\. Pass"),
    "no npz": (changed("train", npz="nets.py"), r"\[train\]: npz: .*nets\.py must be a \.npz file of plain arrays"),
    "unset variable": (
        changed("train", npz="${TOY_UNSET}/x.npz"),
        r"\[train\]: npz: \$\{TOY_UNSET\}/x\.npz needs the environment variable TOY_UNSET, which is not set\.",
    ),
    "unset variable of weights": (
        changed("network", weights="$TOY_UNSET/w.pt"),
        r"\[\[network\]\] tiny: weights: .* variable TOY_UNSET, which is not set",
    ),
    # draws
    "large draw": (
        changed("val", per_class=11),
        r"\[val\]: per_class = 11 needs as many images of every class, but class 0 has 10\.",
    ),
    "large draw of a rest": (
        changed("test", per_class=7),
        r"\[test\]: per_class = 7 needs as many images of every class, but class 0 has 6\.",
    ),
    "nothing left": (changed("val", per_class=10), r"\[test\]: rest_of = 'val' is empty: \[val\] draws all rows"),
    "another source": (
        changed("test", npz="train.npz"),
        r"\[test\]: rest_of = 'val' needs the images of \[val\]: name the same npz and x, or folder\.",
    ),
    "another array": (changed("test", x="twin"), r"\[test\]: rest_of = 'val' needs the images of \[val\]"),
    "no draw": (
        changed("val", per_class=None),
        r"\[test\]: rest_of = 'val' needs per_class in \[val\], which takes all",
    ),
    "rest of itself": (
        changed("test", rest_of="test", per_class=1),
        r"\[test\]: rest_of = 'test' goes round in a circ",
    ),
    "large first": (changed("train", first=13), r"\[train\]: first = 13 needs as many images, but there are 12\."),
    "large first of a draw": (
        changed("val", first=13),
        r"\[val\]: first = 13 needs as many images, but there are 12\.",
    ),
    # networks
    "no module": (
        changed("network", factory="nots:tiny"),
        r"\[\[network\]\] tiny: factory: nots could not be imported: ModuleNotFoundError: .* beside the suite file\.",
    ),
    "no function": (
        changed("network", factory="nets:tinny"),
        r".*: factory: nets has no function 'tinny'\. Did you mean t",
    ),
    "no module returned": (
        changed("network", factory="nets:wrong"),
        r".*: factory: wrong\(\) must return a torch\.nn\.Module, not s",
    ),
    "arguments": (
        changed("network", factory="nets:needy"),
        r".*: factory: needy\(\) failed: TypeError: .* without arguments\.",
    ),
    # names
    "reserved name": (changed("ood", name="ood_val"), r"an unknown data set cannot be called 'ood_val'"),
}


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_a_mistake_is_told_with_its_place(world, change, message):
    change(world.document)
    assert re.match(message, world.refusal())


@pytest.mark.parametrize("circle", [("val", "test"), ("train", "val", "test"), ("train", "test", "val")], ids=str)
def test_splits_that_wait_for_each_other_are_refused(world, circle):
    for name, other in zip(circle, circle[1:] + circle[:1], strict=True):
        world.document[name] = {"npz": "pool.npz", "rest_of": other, "per_class": 1}
    assert f"rest_of = {circle[0]!r} goes round in a circle" in world.refusal()


def test_a_mistake_in_the_split_that_another_waits_for_is_told_with_its_own_place(world):
    world.document["train"] = {"npz": "pool.npz", "rest_of": "val"}
    world.document["val"]["folder"] = "."
    assert world.refusal().startswith("[train]: [val]: images come from either npz or folder")


@pytest.mark.parametrize("section", ["network", "ood"])
def test_two_of_one_name_are_refused(world, section):
    world.document[section].append(copy.deepcopy(world.document[section][0]))
    expected = {"network": "[[network]] tiny: two networks have this name", "ood": "an unknown data set cannot be call"}
    assert world.refusal().startswith(expected[section])


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_needs_labels(world, split):
    np.savez(world.folder / "bare.npz", x=pixels(4))
    world.document[split] = {"npz": "bare.npz"}
    assert re.match(rf"\[{split}\]: npz: .*bare\.npz has no array 'y'; it has 'x'", world.refusal())
    (world.folder / "flat").mkdir()
    Image.fromarray(pixels(1)[0]).save(world.folder / "flat" / "x.png")
    world.document[split] = {"folder": "flat"}
    assert world.refusal().startswith(f"[{split}]: its images need labels, but the folder has none. Give each class")


def test_labels_that_are_no_class_indices_are_refused(world):
    np.savez(world.folder / "train.npz", x=pixels(4), y=np.zeros(4))
    assert world.refusal().startswith("[train]: npz: labels must be integer class indices, got float64")


def test_files_that_are_not_there_are_named(world):
    changed("train", npz="none.npz")(world.document)
    assert re.match(r"\[train\]: npz: there is no file .*none\.npz", world.refusal(FileNotFoundError))
    changed("train", npz=None, folder="none")(world.document)
    assert re.match(r"\[train\]: folder: .*none does not exist", world.refusal(NotADirectoryError))
    changed("network", weights="none.pt")(world.document)
    assert re.match(r"\[\[network\]\] tiny: weights: there is no file .*none\.pt", world.refusal(FileNotFoundError))


def test_a_suite_file_that_is_not_there_is_named(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(FileNotFoundError, match=rf"^{re.escape(str(path))}: there is no such suite file"):
            read_suites(path)


@pytest.mark.parametrize("content", [b"name = toy", b"[train", b'name = "\xff"', b"\x00"], ids=str)
def test_a_file_that_is_not_toml_is_refused(world, content):
    world.path.write_bytes(content)
    with pytest.raises(ValueError, match=r"toy\.toml: a suite is written in TOML, but this is not: "):
        read_suites(world.path)


def test_a_module_that_fails_says_how_and_leaves_nothing_behind(world):
    (world.folder / "nets.py").write_text("import json\n1 / 0")
    modules = set(sys.modules)
    assert "nets could not be imported: ZeroDivisionError: division by zero" in world.refusal()
    assert set(sys.modules) == modules


MISFITS = {
    "missing": (lambda state: state.pop("2.bias"), r"does not fit the network: it lacks '2\.bias'\.$"),
    "unexpected": (
        lambda state: state.update(more=torch.ones(1)),
        r"does not fit the network: the network has no 'more'\.$",
    ),
    "shape": (lambda state: state.update({"2.bias": torch.ones(4)}), r"network: another shape has '2\.bias'\.$"),
    "nested": (
        lambda state: state.update(state_dict={**state}, **dict.fromkeys("abcd", 1)) or state.pop("2.weight"),
        r"it lacks '2\.weight'; the network has no 'state_dict', 'a', 'b' and 2 more\.$",
    ),
    "no tensor": (
        lambda state: state.update({"2.bias": [0.0] * 3}),
        r"does not fit the network: another shape has '2\.bias'\.$",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), MISFITS.values(), ids=MISFITS)
def test_weights_that_do_not_fit_are_told_by_name(world, spoil, message):
    weights = dict(state())
    spoil(weights)
    torch.save(weights, world.folder / "w.pt")
    world.document["network"][0]["weights"] = "w.pt"
    refusal = world.refusal()
    assert refusal.startswith("[[network]] tiny: weights: ")
    assert re.search(message, refusal)


class Spy:
    """Leaves a folder behind when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_weights_that_cannot_be_read_are_refused_and_never_run(world, name):
    world.document["network"][0]["weights"] = name
    for content in (b"", b"no weights"):
        (world.folder / name).write_bytes(content)
        refusal = world.refusal()
        assert re.search(rf"weights: .*{name} must hold a state dict .* cannot be read .* Save model\.", refusal)
    torch.save({"2.bias": Spy(world.folder / "trace")}, world.folder / name)
    assert "cannot be read as one (" in world.refusal()
    assert not (world.folder / "trace").exists()


def test_weights_that_are_no_state_dict_are_refused(world):
    torch.save(torch.ones(3), world.folder / "w.pt")
    world.document["network"][0]["weights"] = "w.pt"
    assert re.search(r"w\.pt must hold a state dict, not Tensor\. Save model\.state_dict\(\)", world.refusal())


# Picked images


def source(n=10, seed=0, labels=True, transform=None, batch_size=4):
    y = np.arange(n) % 3 if labels else None
    return ArrayImages(pixels(n, seed), y, transform or Transform(mode="L"), batch_size=batch_size)


def test_picked_images_are_the_rows_of_their_source_in_the_order_asked_for():
    base = source()
    picked = PickedImages(base, np.array([7, 2, 9, 4, 0]))
    assert (picked.rows, len(picked), picked.batch_size, picked.transform) == (5, 2, 4, base.transform)
    assert row_numbers(picked) == [7, 2, 9, 4, 0]
    assert picked.labels.tolist() == [1, 2, 0, 1, 0]
    assert torch.cat([y for _, y in picked]).tolist() == picked.labels.tolist()
    assert picked.picture(1)[0] == "image 2"


def test_picked_images_have_no_labels_if_their_source_has_none():
    picked = PickedImages(source(labels=False), np.array([1, 3], np.int32))
    assert picked.labels is None
    assert row_numbers(picked) == [1, 3]


def test_the_fingerprint_of_picked_images_changes_with_the_rows_and_with_the_source():
    rows = np.array([1, 2])
    fingerprint = PickedImages(source(), rows).fingerprint
    assert fingerprint == PickedImages(source(batch_size=1), rows.astype(np.uint8)).fingerprint
    others = [
        source(),
        PickedImages(source(), np.array([1, 5])),  # with the same labels
        PickedImages(source(), np.array([2, 1])),
        PickedImages(source(), np.array([1, 2, 1])),
        PickedImages(source(seed=1), rows),
        PickedImages(source(labels=False), rows),
        PickedImages(source(transform=Transform()), rows),
    ]
    assert len({fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)


def test_fingerprints_of_a_suite_follow_the_seed_and_the_images(world):
    def fingerprints(suite):
        return [split.fingerprint for split in (suite.train, suite.val, suite.test)]

    first, again, other = (fingerprints(world.suite(seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert [a == b for a, b in zip(first, other, strict=True)] == [True, False, False]
    assert len(set(first)) == 3
    assert first[0] == NpzImages(world.folder / "train.npz", Transform(mode="L")).fingerprint
    np.savez(world.folder / "pool.npz", x=pixels(30, seed=1), y=np.arange(30) % 3)
    changed_images = fingerprints(world.suite())
    assert [a == b for a, b in zip(first, changed_images, strict=True)] == [True, False, False]


@pytest.mark.parametrize("rows", [np.array([], int), np.array([[1]]), np.array([0.0]), np.ones(10, bool)], ids=str)
def test_picked_rows_must_be_whole_numbers(rows):
    with pytest.raises(
        ValueError, match=r"picked rows must be whole numbers of shape \(n,\) with n > 0, got .*flatnon"
    ):
        PickedImages(source(), rows)


@pytest.mark.parametrize("row", [-1, 10])
def test_picked_rows_must_be_rows_of_the_source(row):
    with pytest.raises(
        ValueError, match=rf"picked rows must lie between 0 and 9, got {min(row, 3)} to {max(row, 3)}\."
    ):
        PickedImages(source(), np.array([row, 3]))


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("test", {"npz": "train.npz"}, r"\[test\]: 12 of its images are in \[train\] too"),
        (
            "test",
            {"npz": "pool.npz"},
            r"\[test\]: 12 of its images are in \[val\] too: methods would be judged",
        ),
        ("test", {"npz": "pool.npz", "first": 1, "skip": 0}, r"of its images are in \[val\] too"),
    ],
)
def test_methods_are_not_judged_on_what_they_learn_from(section, change, message, world):
    world.document[section] = change
    if change.get("first"):
        world.document["val"] = {"npz": "pool.npz", "first": 10}
    with pytest.raises(ValueError, match=message):
        world.read()


def test_unknown_images_to_tune_on_are_others_than_those_judged(world):
    world.document["ood_val"] = {"npz": "other.npz", "first": 3}
    with pytest.raises(ValueError, match=r"\[ood_val\]: 3 of its images are in \[ood\] too.*first and skip"):
        world.read()
    world.document["ood"][0]["skip"] = 3
    suite = world.suite()
    assert row_numbers(suite.ood_val) == [0, 1, 2]
    assert row_numbers(suite.ood[0].images) == [3, 4, 5, 6]


def test_the_same_array_may_teach_twice_and_another_array_of_the_file_is_something_else(world):
    world.document["train"] = world.document["val"] = {"npz": "train.npz"}
    world.document["test"] = {"npz": "train.npz", "x": "twin"}
    assert world.suite().val.rows == 12


def test_skipping_everything_is_refused(world):
    world.document["train"]["skip"] = 12
    with pytest.raises(ValueError, match=r"\[train\]: first = 1 needs as many images, but there are 0"):
        world.read()


def test_folders_of_known_images_have_the_same_classes(world):
    for split, names in {"a": ("cat", "dog", "eel"), "b": ("cat", "eel", "fox")}.items():
        for name in names:
            (world.folder / split / name).mkdir(parents=True)
            Image.fromarray(pixels(1)[0]).save(world.folder / split / name / "0.png")
    world.document["train"] = {"folder": "a"}
    world.document["val"] = {"folder": "b"}
    with pytest.raises(ValueError, match=r"\[val\]: its class folders are not those of \[train\]: dog, fox is in one"):
        world.read()
