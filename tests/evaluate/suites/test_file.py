"""`evaluate.suites.file`: what a suite file says is what is judged, and every mistake in it has a sentence."""

import copy
import io
import os
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from flatfold import FeatureBank, save_bank
from flatfold.evaluate.suites.file import read_suites
from flatfold.evaluate.suites.library import load_suites
from flatfold.evaluate.suites.text import BUILT_IN, parsed
from flatfold.models.images import ArrayImages, NpzImages, Transform
from flatfold.models.picked import PickedImages
from tests.toy_suite import NETS, World, pixels, row_numbers


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
    world.document["ood_val"] = {"npz": "train.npz", "x": "twin", "first": 5}
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
    shutil.copytree(world.folder / "images", world.folder / "others")
    world.document["val"] = {"folder": "images", "per_class": 1}
    world.document["test"] = {"folder": "images", "rest_of": "val"}
    world.document["ood"][0] = {"name": "strange", "group": "near", "folder": "others"}
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
        {"name": "known", "group": "near", "npz": "train.npz", "x": "twin"},
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


# Lists, tables and banks


def write_list(world, name, numbers, label=None):
    """A list of images ``images/<number>.png`` whose colour is their number; labels go round unless one is given."""
    for number in numbers:
        world.image(f"images/{number}.png", value=number)
    lines = [f"{number}.png {number % 3 if label is None else label}" for number in numbers]
    (world.folder / name).write_text("\n".join(lines) + "\n")
    return {"list": name, "images": "images"}


def test_lists_are_read_with_labels_for_splits_and_without_for_unknown_images(world):
    world.document["val"] = write_list(world, "val.txt", [4, 2, 0]) | {"first": 2}
    world.document["test"] = write_list(world, "test.txt", [9, 7, 8])
    world.document["ood"][0] = {"name": "strange", "group": "near"} | write_list(world, "ood.txt", [6, 5], label=-1)
    suite = world.suite()
    assert (row_numbers(suite.val), suite.val.labels.tolist()) == ([4, 2], [1, 2])
    assert (row_numbers(suite.test), suite.test.labels.tolist()) == ([9, 7, 8], [0, 1, 2])
    assert (row_numbers(suite.ood[0].images), suite.ood[0].images.labels) == ([6, 5], None)


def test_a_list_can_be_divided_like_any_source(world):
    both = write_list(world, "both.txt", range(12))
    world.document["val"] = both | {"per_class": 1}
    world.document["test"] = both | {"rest_of": "val"}
    suite = world.suite()
    assert sorted(row_numbers(suite.val) + row_numbers(suite.test)) == list(range(12))
    world.document["test"]["images"] = "."  # the same paths, but other images
    assert world.refusal().startswith("[test]: rest_of = 'val' needs the images of [val]: name the same source.")


def test_the_same_list_in_another_folder_names_other_images(world):
    world.document["val"] = write_list(world, "both.txt", range(3))
    for number in range(3):
        world.image(f"others/{number}.png", value=100 + number)
    world.document["test"] = {"list": "both.txt", "images": "others"}
    assert row_numbers(world.suite().test) == [100, 101, 102]
    world.document["test"]["images"] = "others/../images"
    assert world.refusal().startswith("[test]: 3 of its images are in [val] too")


def write_table(path, numbers, **columns):
    """A parquet file of images whose colour is their number."""
    pyarrow = pytest.importorskip("pyarrow", reason="tables need the extra flatfold[parquet]")
    from pyarrow.parquet import write_table as write

    encoded = []
    for number in numbers:
        buffer = io.BytesIO()
        Image.new("L", (4, 4), number).save(buffer, "png")
        encoded.append(buffer.getvalue())
    names = columns.get("names", ("image", "label"))
    write(pyarrow.table({names[0]: encoded, names[1]: [number % 3 for number in numbers]}), path)


def test_tables_are_read_with_labels_for_splits_and_without_for_unknown_images(world):
    write_table(world.folder / "val.parquet", [4, 2, 0])
    write_table(world.folder / "test.parquet", [9, 7], names=("picture", "kind"))
    world.document["val"] = {"table": "val.parquet"}
    world.document["test"] = {"table": "test.parquet", "x": "picture", "y": "kind"}
    write_table(world.folder / "ood.parquet", [5, 2, 0])
    world.document["ood"][0] = {"name": "strange", "group": "far", "table": "ood.parquet", "skip": 1}
    suite = world.suite()
    assert (row_numbers(suite.val), suite.val.labels.tolist()) == ([4, 2, 0], [1, 2, 0])
    assert (row_numbers(suite.test), suite.test.labels.tolist()) == ([9, 7], [0, 1])
    assert (row_numbers(suite.ood[0].images), suite.ood[0].images.labels) == ([2, 0], None)
    del world.document["test"]["y"]
    assert re.match(r"\[test\]: table: .*test\.parquet must have one column 'label'", world.refusal())


def banks_only(world):
    """Turn the document into one of saved features, six wide, that a linear layer is judged on."""
    features = torch.arange(60.0).reshape(10, 6)
    for name, part in {"train": slice(0, 4), "val": slice(4, 7), "test": slice(7, 10)}.items():
        save_bank(FeatureBank(features[part], torch.arange(10)[part] % 3), world.folder / f"{name}.bank")
    save_bank(FeatureBank(-features), world.folder / "strange.bank")
    save_file({"weight": torch.eye(3, 6), "bias": torch.ones(3)}, world.folder / "head.safetensors")
    del world.document["transform"]
    world.document |= {name: {"bank": f"{name}.bank"} for name in ("train", "val", "test")}
    world.document["ood"] = [{"name": "strange", "group": "far", "bank": "strange.bank"}]
    world.document["network"] = [{"name": "saved", "linear": "head.safetensors"}]
    return features


def test_a_suite_of_banks_needs_no_images_and_no_network_but_its_last_layer(world):
    features = banks_only(world)
    suite = world.suite(batch_size=2)
    for source, part in ((suite.train, slice(0, 4)), (suite.val, slice(4, 7)), (suite.test, slice(7, 10))):
        assert torch.equal(torch.cat([x for x, _ in source]), features[part])
        assert source.labels.tolist() == (torch.arange(10)[part] % 3).tolist()
    assert suite.ood[0].images.labels is None
    assert torch.equal(torch.cat(list(suite.ood[0].images)), -features)
    assert torch.equal(suite.model(features[:1]), torch.tensor([[1.0, 2.0, 3.0]]))
    assert (suite.architecture, suite.model.training) == ("", False)


def test_a_bank_can_be_divided_like_any_source(world):
    features = banks_only(world)
    save_bank(FeatureBank(features, torch.arange(10) % 3), world.folder / "pool.bank")
    world.document["val"] = {"bank": "pool.bank", "per_class": 1}
    world.document["test"] = {"bank": "pool.bank", "rest_of": "val"}
    suite = world.suite()
    parts = [torch.cat([x for x, _ in source]) for source in (suite.val, suite.test)]
    assert (suite.val.rows, suite.test.rows, suite.val.labels.tolist().count(0)) == (3, 7, 1)
    assert torch.equal(torch.cat(parts).sort(dim=0).values, features)
    assert parts[1][:, 0].div(6).remainder(3).tolist() == suite.test.labels.tolist()


def test_banks_and_heads_that_are_not_there_are_named(world):
    banks_only(world)
    world.document["network"][0]["linear"] = "none.safetensors"
    assert re.match(r"\[\[network\]\] saved: linear: there is no file .*none\.saf", world.refusal(FileNotFoundError))
    world.document["network"][0]["linear"] = "head.safetensors"
    world.document["val"] = {"bank": "none.bank"}
    assert re.match(r"\[val\]: bank: there is no bank at .*none\.bank", world.refusal(FileNotFoundError))
    world.document["val"] = {"bank": "strange.bank"}
    assert re.match(r"\[val\]: bank: labels are wanted, but the bank in .*strange\.bank has none", world.refusal())


# Training images may be missing


def test_a_suite_needs_no_training_images(world):
    del world.document["train"]
    suite = world.suite()
    assert suite.train is None
    assert (suite.val.rows, suite.test.rows) == (12, 18)


OPTIONAL = {
    "no npz": {"npz": "none.npz"},
    "no folder": {"folder": "none"},
    "no list": {"list": "none.txt", "images": "."},
    "no folder of a list": {"list": "gone.txt", "images": "none"},
    "no image of a list": {"list": "gone.txt", "images": "."},
    "no table": {"table": "none.parquet"},
    "no bank": {"bank": "none"},
}


@pytest.mark.parametrize("source", OPTIONAL.values(), ids=OPTIONAL)
def test_training_images_that_are_optional_may_be_missing_which_the_log_says(world, source, caplog):
    (world.folder / "gone.txt").write_text("gone/0.png 0\ngone/1.png 1\n")
    world.document["train"] = source | {"optional": True}
    world.document["network"].append({"name": "wide", "factory": "nets:wide"})
    assert [suite.train for suite in world.read()] == [None, None]
    (record,) = caplog.records  # once, although two networks share the images
    assert re.search(r"training images.*, so methods that learn from them are left out", record.getMessage())


def test_training_images_that_are_optional_are_taken_if_they_are_there(world):
    world.document["train"]["optional"] = True
    assert world.suite().train.rows == 12
    world.document["train"] = write_list(world, "train.txt", range(4)) | {"optional": True}
    (world.folder / "images" / "0.png").unlink()  # one gap does not make them missing
    assert world.suite().train.rows == 4


def test_training_images_that_are_optional_are_not_taken_if_they_are_wrong(world):
    world.document["train"] |= {"optional": True, "expect": 13}
    assert world.refusal().startswith("[train]: train has 12 images, 13 were expected")


# Counts


def test_counts_that_are_as_expected_are_no_deviation(world):
    world.document["train"]["expect"] = 12
    world.document["ood"][0] |= {"expect": 7, "outdated": 8, "first": 2}  # the whole of the source counts
    assert world.suite().deviations == ()


def test_other_counts_pass_if_they_are_allowed_to_and_are_told_once(world):
    world.document["train"]["expect"] = 13
    world.document["ood"][0] |= {"expect": 8, "outdated": 7}
    world.document["network"].append({"name": "wide", "factory": "nets:wide"})
    file = world.file(any_counts=True)
    expected = (
        "train has 12 images, 13 were expected",
        "strange has 7 images, 8 were expected; so many are in an older version of it, and the two must not be mixed",
    )
    for _ in range(2):
        assert [suite.deviations for suite in file.suites()] == [expected, expected]


# Networks of several seeds, with transforms of their own


def test_a_network_is_taken_once_for_each_of_its_seeds_with_the_weights_of_that_seed(world):
    states = {seed: state() for seed in (0, 3)}
    for seed, weights in states.items():
        (world.folder / f"s{seed}").mkdir()
        torch.save(weights, world.folder / f"s{seed}" / "best.ckpt")
    world.document["network"][0] |= {"weights": "s{seed}/best.ckpt", "seeds": [3, 0], "accuracy": 95.5}
    suites = world.read()
    assert [(suite.network, suite.family, suite.seed) for suite in suites] == [
        ("tiny-s3", "tiny", 3),
        ("tiny-s0", "tiny", 0),
    ]
    for suite in suites:
        assert torch.equal(suite.model[2].weight, states[suite.seed]["2.weight"])
        assert (suite.accuracy, suite.architecture) == (95.5, "nets:tiny")
    assert suites[0].val is suites[1].val  # images are drawn with the seed of the file, not with that of a network


def test_some_seeds_of_a_network_can_be_asked_for(world):
    world.document["network"][0]["seeds"] = [0, 1, 2]
    assert [suite.network for suite in world.read(seeds=[2, 0])] == ["tiny-s2", "tiny-s0"]
    assert [suite.network for suite in world.read(seeds=[1])] == ["tiny-s1"]
    assert world.refusal(seeds=[0, 7, 5]) == "[[network]] tiny: it has no seed 5, only 0, 1, 2."


def test_one_seed_leaves_the_name_of_a_network_alone_and_several_are_put_behind_it(world):
    assert [(suite.network, suite.seed) for suite in world.read(seeds=[4])] == [("tiny", 4)]
    several = world.read(seeds=[4, 1])
    assert [(suite.network, suite.family, suite.seed) for suite in several] == [
        ("tiny-seed4", "tiny", 4),
        ("tiny-seed1", "tiny", 1),
    ]
    for suite in several:
        alone = world.suite(seed=suite.seed)
        assert row_numbers(suite.val) == row_numbers(alone.val)
        assert torch.equal(suite.model[2].weight, alone.model[2].weight)
    assert row_numbers(several[0].val) != row_numbers(several[1].val)


def test_a_seed_that_is_given_goes_into_the_weights_of_a_network_without_a_list_of_seeds(world):
    torch.save(state(), world.folder / "w4.pt")
    world.document["network"][0]["weights"] = "w{seed}.pt"
    assert world.suite(seed=4).seed == 4
    assert re.search(r"weights: there is no file .*w5\.pt", world.refusal(FileNotFoundError, seeds=[5]))


def test_two_networks_never_have_one_name(world):
    world.document["network"][0]["seeds"] = [0, 1]
    world.document["network"].append({"name": "tiny-s1", "factory": "nets:tiny"})
    assert world.refusal() == "two networks would be called tiny-s1. Rename one, and give every seed once."
    del world.document["network"][1]
    assert world.refusal(seeds=[0, 0]).startswith("two networks would be called tiny-s0.")


def test_a_network_may_change_single_entries_of_the_transform_for_itself(world):
    world.document["transform"] |= {"mean": [0.5], "resize": 8}
    world.document["ood"][0]["mean"] = [0.1]
    world.document["network"] += [
        {"name": "large", "factory": "torch.nn:Identity", "transform": {"resize": 16, "mean": [0.2]}},
        {"name": "same", "factory": "nets:tiny", "transform": {"mean": [0.2], "resize": 16}},
    ]
    tiny, large, same = world.read()
    assert tiny.train.transform == Transform(mode="L", mean=(0.5,), resize=8)
    assert large.train.transform == large.test.transform == Transform(mode="L", mean=(0.2,), resize=16)
    assert large.ood[0].images.transform == Transform(mode="L", mean=(0.1,), resize=16)  # a data set has the last word
    assert large.val.picked.tolist() == tiny.val.picked.tolist()
    assert same.train is large.train


def test_networks_are_chosen_by_name_or_by_family(world):
    world.document["network"][0]["seeds"] = [0, 1]
    world.document["network"].append({"name": "wide", "factory": "nets:wide"})
    file = world.file()

    def chosen(*names):
        return [suite.network for suite in file.suites(list(names))]

    assert chosen("wide") == ["wide"]
    assert chosen("tiny") == ["tiny-s0", "tiny-s1"]
    assert chosen("wide", "tiny-s1") == ["tiny-s1", "wide"]  # in the order of the file
    with pytest.raises(ValueError, match=r"toy\.toml: no network is called 'huge'\. There are tiny-s0, tiny-s1, w"):
        chosen("wide", "huge")


def test_what_is_not_chosen_is_not_loaded(world):
    world.document["network"].append({"name": "broken", "factory": "nets:wrong"})
    assert [suite.network for suite in world.file().suites(["tiny"])] == ["tiny"]


# Like another suite


def like(world, **sections):
    world.document = {"like": "cifar10"} | sections
    return world.file(variables={"OPENOOD": str(world.folder)}).document


def test_sections_that_a_file_does_not_have_are_those_of_the_suite_that_it_is_like(world):
    own = [{"name": "mine", "factory": "nets:tiny"}]
    document, original = like(world, network=own), parsed(BUILT_IN / "cifar10.toml")
    assert document["network"] == own
    assert {key: document[key] for key in original if key != "network"} == {
        key: original[key] for key in original if key != "network"
    }


def test_a_protocol_is_kept_with_other_networks_and_lost_with_other_images(world):
    assert like(world, seed=3)["protocol"] == "openood-1.5/cifar10"
    assert like(world, network=[{"name": "mine", "factory": "nets:tiny"}])["protocol"] == "openood-1.5/cifar10"
    for name, section in {
        "transform": {"resize": 32},
        "train": {"npz": "train.npz"},
        "val": {"npz": "pool.npz"},
        "test": {"npz": "pool.npz"},
        "ood_val": {"npz": "pool.npz"},
        "ood": [{"name": "strange", "group": "far", "npz": "other.npz"}],
    }.items():
        assert "protocol" not in like(world, **{name: section})
    assert like(world, test={"npz": "pool.npz"})["val"]["expect"] == 1000


def test_sections_of_its_own_are_checked_too(world):
    world.document = {"like": "cifar10", "val": {"npz": "pool.npz", "perclass": 3}}
    assert world.refusal().startswith("[val]: there is no key 'perclass' here. Did you mean per_class?")


def test_the_protocol_of_a_suite_is_in_its_results(world):
    assert world.suite().protocol == ""
    file = world.file()
    file.document["protocol"] = "openood-1.5/toy"  # only built-in suites can say so
    assert file.suites()[0].protocol == "openood-1.5/toy"


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
    (suite,) = load_suites(str(world.path), world.folder / "out", seeds=[7], batch_size=9)
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
    "like no other": (changed("network", zzz=1), r".* no key 'zzz' here\. There are name, factory, model, "),
    "labels of unknown images": (changed("ood", y="y"), r"\[\[ood\]\] strange: there is no key 'y' here"),
    "a draw of unknown images": (changed("ood", per_class=2), r"\[\[ood\]\] strange: there is no key 'per_class' here"),
    # keys that are missing
    "no network": (changed("", network=None), r"network is missing: it says which network is judged"),
    "no val": (changed("", val=None), r"val is missing: methods that are fitted on held-out data need it\. "),
    "no test": (changed("", test=None), r"test is missing: .* known ones .* must be a section in single brackets\."),
    "no ood": (changed("", ood=None), r"ood is missing: .* must be sections in double brackets\."),
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
    "two sources": (changed("train", folder="."), r"\[train\]: images come from one of .*, got npz and folder\."),
    "no source": (changed("train", npz=None), r"\[train\]: .* one of npz, folder, list, table, bank, got none\."),
    "names of arrays in a folder": (
        changed("train", npz=None, folder=".", y="y"),
        r"\[train\]: x and y name arrays in a npz or columns of a table, but this is a folder\. Remove them\.",
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
    "a list without its folder": (
        changed("train", npz=None, list="a.txt"),
        r"\[train\]: images = is the folder in which the paths of a list start: give it with list, and only then\.",
    ),
    "a folder without its list": (changed("train", images="."), r"\[train\]: images = is the folder in which"),
    "names of columns in a list": (
        changed("train", npz=None, list="a.txt", images=".", x="x"),
        r"\[train\]: x and y name .*, but this is a list\.",
    ),
    "no list": (
        changed("train", npz=None, list="nets.py", images="."),
        r"\[train\]: list: .*nets\.py:2: a line must be",
    ),
    "no table": (
        changed("train", npz=None, table="nets.py"),
        r"\[train\]: table: .*nets\.py cannot be read as a table",
    ),
    "no bank": (changed("train", npz=None, bank="."), r"\[train\]: bank: "),
    "a prepared bank": (
        changed("train", npz=None, bank=".", resize=4),
        r"\[train\]: resize prepares images, but a bank holds their features\. Remove it\.",
    ),
    "count": (
        changed("train", expect=13),
        r"\[train\]: train has 12 images, 13 were expected\. Look whether all of them are there, or pass --any-counts",
    ),
    "count of unknown images": (
        changed("ood", expect=6),
        r"\[\[ood\]\] strange: strange has 7 images, 6 were expected",
    ),
    "outdated list": (
        changed("ood", expect=6, outdated=7),
        r".*: strange has 7 images, 6 were expected; so many are in an older version of it, and the two must not",
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
        r"\[test\]: rest_of = 'val' needs the images of \[val\]: name the same source\.",
    ),
    "rest of what is not there": (
        lambda document: document.pop("train") and document["val"].update(rest_of="train"),
        r"\[val\]: rest_of = 'train' needs a section \[train\], but there is none\.",
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
    "made by nothing": (
        changed("network", factory=None),
        r"\[\[network\]\] tiny: a network is made by one of factory, model, linear, got none\.",
    ),
    "made in two ways": (changed("network", linear="x"), r".*: a network is made by one of .*, got factory and linear"),
    "pretrained": (
        changed("network", pretrained="DEFAULT"),
        r"\[\[network\]\] tiny: pretrained = belongs to model = only\. Remove it, or name a file of weights\.",
    ),
    "weights of a linear layer": (
        changed("network", factory=None, linear="x", weights="y"),
        r"\[\[network\]\] tiny: linear = names a file of weights already\. Remove weights =\.",
    ),
    "no library": (changed("network", factory=None, model="zoo/x"), r".* tiny: model: a network is named library/name"),
    "no weights of a named one": (
        changed("network", factory=None, model="openood/resnet50"),
        r"\[\[network\]\] tiny: model: openood/resnet50 needs weights=",
    ),
    "not library/name": (changed("network", model="resnet50"), r'.*: model must be written "library/name", got'),
    "accuracy": (changed("network", accuracy=0), r".* tiny: accuracy must be a number of per cent, got 0\."),
    "accuracy above all": (changed("network", accuracy=101), r".* accuracy must be a number of per cent, got 101"),
    "no seeds": (
        changed("network", seeds=[]),
        r".*: seeds must be a list of different whole numbers, none below 0, got",
    ),
    "two seeds of one kind": (changed("network", seeds=[1, 1]), r".*: seeds must be a list of different whole numbers"),
    "one seed": (changed("network", seeds=1), r".*: seeds must be a list of different whole numbers"),
    "negative seed of a network": (changed("network", seeds=[-1]), r".*: seeds must be a list of different whole"),
    "unknown in the transform of a network": (
        changed("network", transform={"man": [0.1]}),
        r"\[\[network\]\] tiny: there is no key 'man' here\. Did you mean mean\?",
    ),
    "channels of a network": (
        changed("network", transform={"mean": [1, 2, 3]}),
        r"\[transform\], as a network changes it: mean must have one number per channel of L, 1",
    ),
    "a flag": (changed("train", optional=1), r"\[train\]: optional must be true or false, got 1"),
    "only training images are optional": (changed("val", optional=True), r"\[val\]: there is no key 'optional' here"),
    "like": (
        changed("", like="cifar11"),
        r"like = 'cifar11': there is no such suite\. There are cifar10, cifar100, imagenet1k, imagenet200\.",
    ),
    "like a number": (changed("", like=3), r"like must be a text in quotes, got 3"),
    "a protocol of one's own": (changed("", protocol="openood-1.5/cifar10"), r"there is no key 'protocol' here"),
    "no module": (
        changed("network", factory="nots:tiny"),
        r"\[\[network\]\] tiny: factory: nots could not be imported: ModuleNotFoundError: .* or be a file in .*\.",
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
    assert world.refusal().startswith("[train]: [val]: images come from one of npz, folder, ")


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
    "several": (
        lambda state: state.update(dict.fromkeys("abcd", torch.ones(1))) or state.pop("2.weight"),
        r"it lacks '2\.weight'; the network has no 'a', 'b', 'c' and 1 more\.$",
    ),
    "no tensor": (
        lambda state: state.update({"2.bias": [0.0] * 3}),
        r"w\.pt must hold named tensors, but '2\.bias' is a list\. Save model\.state_dict\(\)\.$",
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
    with pytest.raises(ValueError, match=r"\[train\]: skip = 12 leaves no image"):
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


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("section", ["ood", "ood_val"])
def test_known_images_are_not_taken_for_unknown_ones(section, split, world):
    there = {"npz": world.document[split]["npz"]}
    world.document |= {"ood": [{"name": "strange", "group": "far", **there}]} if section == "ood" else {section: there}
    assert re.search(r"of its images are in \[\w+\] too: they are known, not unknown\.", world.refusal())


def test_two_lists_that_name_the_same_images_overlap(world):
    world.document["val"] = write_list(world, "val.txt", [4, 2, 0])
    world.document["test"] = write_list(world, "test.txt", [9, 2, 8, 0])
    assert world.refusal().startswith("[test]: 2 of its images are in [val] too: methods would be judged on what")


def test_seeds_that_would_give_one_result_several_times_are_refused(world):
    torch.save(state(), world.folder / "w.pt")
    world.document["network"][0] |= {"weights": "w.pt", "seeds": [0, 1]}
    assert "seeds needs {seed} in the path of its weights" in world.refusal()
    del world.document["network"][0]["seeds"]
    assert [suite.network for suite in world.read(seeds=[0, 1])] == ["tiny-seed0", "tiny-seed1"]  # val is drawn
    world.document["val"] = {"npz": "other.npz", "x": "twin"}
    world.document["test"] = {"npz": "pool.npz"}
    with pytest.raises(ValueError, match="neither its weights nor its images depend on a seed"):
        world.read(seeds=[0, 1])


def test_a_network_may_not_have_the_name_of_a_folder_of_results(world):
    world.document["network"][0]["name"] = "banks"
    assert world.refusal() == "[[network]] banks: a network cannot be called so: results have a folder banks already."


def test_siblings_and_classes_are_told(world):
    world.document["network"].append({"name": "wide", "factory": "nets:wide"})
    assert {suite.siblings for suite in world.read()} == {("tiny", "wide")}
    assert world.read()[0].classes == ()
