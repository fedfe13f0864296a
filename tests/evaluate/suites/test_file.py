"""`evaluate.suites.file`: what a suite file says is what is judged, and every mistake in it is refused."""

import copy
import shutil

import numpy as np
import pytest
import torch
from msgspec import to_builtins
from safetensors.torch import save_file
from torch import nn

from flatfold import FeatureBank, Transform, save_bank
from flatfold.data.images import ArrayImages
from flatfold.data.sources import ImageSubset
from flatfold.evaluate.suites.library import load_suites, open_suite_file
from flatfold.evaluate.suites.toml_file import SuiteFile
from tests.toy_suite import World, pixels, row_numbers


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def state():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 3)).state_dict()


def test_a_suite_is_what_its_file_says_wherever_the_command_runs(world, tmp_path_factory, monkeypatch):
    suite = world.suite()
    assert (suite.name, suite.about, suite.seed, suite.train.batch_size, suite.ood[0].about) == ("toy", "", 0, 256, "")
    assert (suite.network, suite.head, suite.ood_val, suite.protocol) == ("tiny", None, None, "")
    assert not any(module.training for module in suite.model.modules())
    world.document |= {"name": "toy-1", "about": "Toys.", "seed": 5}
    world.document["ood"][0] |= {"about": "Strange toys.", "skip": 3}
    world.document["ood_val"] = {"npz": "other.npz", "first": 3}
    del world.document["transform"]
    suite = world.suite()
    assert (suite.name, suite.about, suite.seed) == ("toy-1", "Toys.", 5)
    assert (suite.train.rows, suite.val.rows, suite.test.rows) == (12, 12, 18)
    (ood,) = suite.ood  # the images for tuning are not judged
    assert (ood.name, ood.group, ood.about, ood.images.rows) == ("strange", "far", "Strange toys.", 4)
    assert (row_numbers(ood.images), row_numbers(suite.ood_val)) == ([3, 4, 5, 6], [0, 1, 2])
    assert ood.images.labels is suite.ood_val.labels is None  # even if their file has some
    assert suite.train.transform == Transform()
    np.savez(world.folder / "named.npz", pictures=pixels(6), classes=np.arange(6))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    suite = world.suite(batch_size=5)
    for split in (suite.train, suite.val, suite.test):
        assert split.batch_size == 5
        assert torch.cat([y for _, y in split]).tolist() == split.labels.tolist() == [r % 3 for r in row_numbers(split)]
    assert row_numbers(suite.train) == list(range(12))
    world.document["train"] = {"npz": "named.npz", "x": "pictures", "y": "classes"}
    assert world.suite().train.labels.tolist() == list(range(6))


def test_a_path_that_ends_in_toml_is_a_suite_file(world):
    world.file()
    (suite,) = load_suites(str(world.path), world.folder / "out", seeds=[7], batch_size=9)
    assert (suite.name, suite.seed, suite.train.batch_size) == ("toy", 7, 9)
    for content in (b"name = toy", b"[train", b'name = "\xff"', b"\x00"):
        world.path.write_bytes(content)
        with pytest.raises(ValueError, match="TOML"):
            SuiteFile(world.path)
    with pytest.raises(FileNotFoundError, match="none"):
        SuiteFile(world.folder / "none.toml")


def test_environment_variables_stand_for_parts_of_any_path(world, monkeypatch):
    elsewhere = world.folder / "elsewhere"
    world.image("elsewhere/x.png")
    np.savez(elsewhere / "train.npz", x=pixels(4), y=np.arange(4))
    torch.save(state(), elsewhere / "w.pt")
    monkeypatch.setenv("TOY_DATA", str(elsewhere))
    world.document["network"][0]["weights"] = "$TOY_DATA/w.pt"
    world.document["ood"][0] = {"name": "strange", "group": "far", "folder": "$TOY_DATA"}
    for written in ("$TOY_DATA/train.npz", "${TOY_DATA}/train.npz", "$TOY_DATA/../elsewhere/train.npz"):
        world.document["train"]["npz"] = written
        suite = world.suite()
        assert (suite.train.rows, suite.ood[0].images.rows) == (4, 1), written


def test_a_draw_takes_as_many_of_each_class_and_the_rest_is_what_it_left(world):
    whole = world.suite()
    val, test = row_numbers(whole.val), row_numbers(whole.test)
    assert whole.val.labels.bincount().tolist() == [4, 4, 4]
    assert (val, test) == (sorted(val), sorted(test))
    assert sorted(val + test) == list(range(30))
    for section, first in ((world.document["val"], 3), (world.document["test"], 5), (world.document["train"], 12)):
        section["first"] = first
    world.document["ood"][0]["first"] = 2
    suite = world.suite()
    assert row_numbers(suite.val) == val[:3]
    assert row_numbers(suite.test) == test[:5]  # the images that val drew first are still not in it
    assert row_numbers(suite.ood[0].images) == [0, 1]
    assert suite.train.rows == 12
    world.document |= {
        "train": {"npz": "pool.npz", "rest_of": "test"}, "val": {"npz": "pool.npz", "per_class": 5},
        "test": {"npz": "pool.npz", "rest_of": "val", "per_class": 2},
    }  # fmt: skip
    suite = world.suite()  # one is drawn from the rest of another, in any order
    rows = [row_numbers(split) for split in (suite.train, suite.val, suite.test)]
    assert sorted(rows[0] + rows[1] + rows[2]) == list(range(30))
    assert [len(part) for part in rows] == [9, 15, 6]
    assert suite.test.labels.bincount().tolist() == [2, 2, 2]


def test_a_draw_follows_the_seed_of_the_call_and_else_that_of_the_file(world):
    drawn = {}
    for of_file in (0, 1):
        world.document["seed"] = of_file
        for seed in (None, 0, 1):
            suite = world.suite(seed=seed)
            assert suite.seed == (of_file if seed is None else seed)
            drawn.setdefault(suite.seed, []).append(row_numbers(suite.val))
    assert [len(set(map(tuple, rows))) for rows in drawn.values()] == [1, 1]
    assert drawn[0][0] != drawn[1][0]


def test_a_file_may_serve_in_several_ways_and_is_read_once(world):
    world.document["test"]["npz"] = f"../{world.folder.name}/pool.npz"  # the same file, written in another way
    world.document["ood"] += [
        {"name": "twin", "group": "far", "npz": "other.npz", "x": "twin"},
        {"name": "larger", "group": "far", "npz": "other.npz", "resize": 8},
    ]
    suite = world.suite()
    assert suite.val.source is suite.test.source
    strange, twin, larger = (ood.images for ood in suite.ood)
    assert (strange.transform.resize, larger.transform.resize) == (None, 8)
    assert np.array_equal(strange.x, larger.x)
    assert np.array_equal(twin.x, pixels(7, seed=1))
    world.document["train"] = world.document["val"] = {"npz": "train.npz"}  # an array may be learnt from twice
    world.document["test"] = {"npz": "train.npz", "x": "twin"}
    assert world.suite().val.rows == 12


def test_folders_are_read_with_labels_for_splits_and_without_for_ood_images(world):
    for label in ("ant", "bee"):
        for i in range(3):
            world.image(f"images/{label}/{i}.png", value=i)
    shutil.copytree(world.folder / "images", world.folder / "others")
    world.document["val"] = {"folder": "images", "per_class": 1}
    world.document["test"] = {"folder": "images", "rest_of": "val"}
    world.document["ood"][0] = {"name": "strange", "group": "near", "folder": "others"}
    suite = world.suite()
    assert (suite.val.labels.tolist(), suite.test.labels.tolist()) == ([0, 1], [0, 0, 1, 1])
    assert (suite.ood[0].images.rows, suite.ood[0].images.labels, suite.ood[0].group) == (6, None, "near")
    assert suite.classes == ("ant", "bee")
    (world.folder / "others" / "bee").rename(world.folder / "others" / "fox")
    world.document["train"] = {"folder": "others"}
    world.document["ood"][0] = {"name": "strange", "group": "near", "npz": "other.npz"}
    world.refuses("fox", case="splits with other classes")


def write_list(world, name, numbers, label=None):
    """A list of images ``images/<number>.png`` whose colour is their number; labels go round unless one is given."""
    for number in numbers:
        world.image(f"images/{number}.png", value=number)
    lines = [f"{number}.png {number % 3 if label is None else label}" for number in numbers]
    (world.folder / name).write_text("\n".join(lines) + "\n")
    return {"list": name, "images": "images"}


def test_lists_and_tables_are_read_with_labels_for_splits_and_without_for_ood_images(world):
    pyarrow = pytest.importorskip("pyarrow", reason="tables need the extra flatfold[parquet]")
    from pyarrow.parquet import write_table

    world.document["val"] = write_list(world, "val.txt", [4, 2, 0]) | {"first": 2}
    world.document["ood"][0] = {"name": "strange", "group": "near"} | write_list(world, "ood.txt", [6, 5], label=-1)
    content = [(world.folder / "images" / f"{number}.png").read_bytes() for number in (4, 2, 0)]
    for file, names in (("train", ("image", "label")), ("test", ("picture", "kind"))):
        columns = dict(zip(names, (content, [1, 2, 0]), strict=True))
        write_table(pyarrow.table(columns), world.folder / f"{file}.parquet")
    world.document["train"] = {"table": "train.parquet"}
    world.document["test"] = {"table": "test.parquet", "x": "picture", "y": "kind", "skip": 1}
    suite = world.suite()
    for source, rows, labels in (
        (suite.train, [4, 2, 0], [1, 2, 0]), (suite.val, [4, 2], [1, 2]), (suite.test, [2, 0], [2, 0]),
    ):  # fmt: skip
        assert (row_numbers(source), source.labels.tolist()) == (rows, labels)
    assert (row_numbers(suite.ood[0].images), suite.ood[0].images.labels) == ([6, 5], None)


def test_a_list_can_be_divided_and_images_are_told_apart_by_their_path(world):
    both = write_list(world, "both.txt", range(12))
    world.document["val"] = both | {"per_class": 1}
    world.document["test"] = both | {"rest_of": "val"}
    suite = world.suite()
    assert sorted(row_numbers(suite.val) + row_numbers(suite.test)) == list(range(12))
    world.document["test"]["images"] = "."
    world.refuses("same source")
    world.document["val"], world.document["test"] = both, {"list": "both.txt", "images": "images/../images"}
    world.refuses("12 of its images are in [val]")
    world.document["test"] = write_list(world, "test.txt", [19, 2, 18, 0])
    world.refuses("2 of its images are in [val]")


def test_a_suite_of_banks_needs_no_images_and_no_network_but_its_last_layer(world):
    features, labels = torch.arange(60.0).reshape(10, 6), torch.arange(10) % 3
    parts = {"train": slice(0, 4), "val": slice(4, 7), "test": slice(7, 10)}
    for name, part in parts.items():
        save_bank(FeatureBank(features[part], labels[part]), world.folder / f"{name}.bank")
    save_bank(FeatureBank(-features), world.folder / "strange.bank")
    save_file({"weight": torch.eye(3, 6), "bias": torch.ones(3)}, world.folder / "head.safetensors")
    world.document = {name: {"bank": f"{name}.bank"} for name in parts} | {
        "ood": [{"name": "strange", "group": "far", "bank": "strange.bank"}],
        "network": [{"name": "saved", "linear": "head.safetensors"}],
    }
    suite = world.suite(batch_size=2)
    for source, part in zip((suite.train, suite.val, suite.test), parts.values(), strict=True):
        assert torch.equal(torch.cat([x for x, _ in source]), features[part])
        assert source.labels.tolist() == labels[part].tolist()
    assert suite.ood[0].images.labels is None
    assert torch.equal(torch.cat(list(suite.ood[0].images)), -features)
    assert torch.equal(suite.model(features[:1]), torch.tensor([[1.0, 2.0, 3.0]]))
    assert (suite.architecture, suite.model.training) == ("", False)
    world.document["val"] = {"bank": "strange.bank"}
    world.refuses("[val]: bank: labels")
    world.document["network"][0]["linear"] = "none.safetensors"
    world.refuses("none.safetensors", FileNotFoundError)


def test_optional_training_images_may_be_missing_which_is_logged_once_but_not_wrong(world, caplog):
    (world.folder / "gone.txt").write_text("gone/0.png 0\ngone/1.png 1\n")
    world.document["network"].append({"name": "wide", "factory": "nets:wide"})
    lists = [{"list": "none.txt", "images": "."}, *({"list": "gone.txt", "images": place} for place in ("none", "."))]
    for source in ({"npz": "none.npz"}, {"folder": "none"}, {"table": "none.parquet"}, {"bank": "none"}, *lists):
        caplog.clear()
        world.document["train"] = source | {"optional": True}
        assert [suite.train for suite in world.read()] == [None, None], source
        assert len(caplog.records) == 1, source  # although two networks share the images
        assert "training images" in caplog.records[0].getMessage()
    del world.document["train"], world.document["network"][1]
    assert world.suite().train is None
    world.document["train"] = write_list(world, "train.txt", range(4)) | {"optional": True}
    (world.folder / "images" / "0.png").unlink()  # one missing image does not make the split missing
    assert world.suite().train.rows == 4
    world.document["train"]["expect"] = 13
    world.refuses("13")


def test_unexpected_counts_are_deviations_if_they_are_allowed(world):
    world.document["train"]["expect"] = 12
    world.document["ood"][0] |= {"expect": 7, "outdated": 8, "first": 2}  # the whole of the source counts
    assert world.suite().deviations == ()
    world.document["train"]["expect"] = 13
    world.document["ood"][0] |= {"expect": 8, "outdated": 7}
    file = world.file(any_counts=True)
    for _ in range(2):  # once each, however often the suites are asked for
        train, strange = file.suites()[0].deviations
        assert train.startswith("train has 12 images, 13")
        assert "older version" in strange


def test_weights_are_loaded_and_without_them_a_network_follows_the_seed(world):
    before = torch.random.get_rng_state()
    first, again, other = (world.suite(seed=seed).model[2].weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    weights = state()
    torch.save(weights, world.folder / "w.pt")
    save_file(weights, world.folder / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        world.document["network"][0]["weights"] = name
        assert torch.equal(world.suite().model[2].weight, weights["2.weight"]), name
    torch.save(weights | {"2.bias": torch.ones(4)}, world.folder / "w.pt")
    world.document["network"][0]["weights"] = "w.pt"
    world.refuses("2.bias")


def test_a_network_is_taken_once_for_each_of_its_seeds_with_the_weights_of_that_seed(world):
    states = {seed: state() for seed in (0, 3)}
    for seed, weights in states.items():
        (world.folder / f"s{seed}").mkdir()
        torch.save(weights, world.folder / f"s{seed}" / "best.ckpt")
    world.document["network"][0] |= {"weights": "s{seed}/best.ckpt", "seeds": [3, 0], "accuracy": 95.5}
    suites = world.read()
    assert [(suite.network, suite.seed) for suite in suites] == [("tiny-s3", 3), ("tiny-s0", 0)]
    for suite in suites:
        assert torch.equal(suite.model[2].weight, states[suite.seed]["2.weight"])
        assert (suite.family, suite.accuracy, suite.architecture) == ("tiny", 95.5, "nets:tiny")
    assert suites[0].val is suites[1].val  # images are drawn with the seed of the file, not with that of a network
    assert [suite.network for suite in world.read(seeds=[0, 3])] == ["tiny-s0", "tiny-s3"]
    world.refuses("no seed 5", seeds=[0, 7, 5])


def test_one_seed_leaves_the_name_of_a_network_alone_and_several_are_put_behind_it(world):
    assert [(suite.network, suite.seed) for suite in world.read(seeds=[4])] == [("tiny", 4)]
    several = world.read(seeds=[4, 1])
    assert [(suite.network, suite.seed) for suite in several] == [("tiny-seed4", 4), ("tiny-seed1", 1)]
    for suite in several:
        assert suite.family == "tiny"
        alone = world.suite(seed=suite.seed)
        assert row_numbers(suite.val) == row_numbers(alone.val)
        assert torch.equal(suite.model[2].weight, alone.model[2].weight)
    assert row_numbers(several[0].val) != row_numbers(several[1].val)
    torch.save(state(), world.folder / "w4.pt")
    world.document["network"][0]["weights"] = "w{seed}.pt"
    assert world.suite(seed=4).seed == 4
    world.refuses("w5.pt", FileNotFoundError, seeds=[5])


def test_seeds_that_would_give_one_name_or_one_result_twice_are_refused(world):
    network = world.document["network"][0]
    network["seeds"] = [0, 1]
    world.refuses("tiny-s0", seeds=[0, 0])
    world.document["network"].append({"name": "tiny-s1", "factory": "nets:tiny"})
    world.refuses("tiny-s1")
    del world.document["network"][1]
    torch.save(state(), world.folder / "w.pt")
    network["weights"] = "w.pt"
    world.refuses("{seed}")
    del network["seeds"]
    assert [suite.network for suite in world.read(seeds=[0, 1])] == ["tiny-seed0", "tiny-seed1"]  # val is drawn
    world.document |= {"val": {"npz": "other.npz", "x": "twin"}, "test": {"npz": "pool.npz"}}
    world.refuses("depend on a seed", seeds=[0, 1])


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
    assert large.val.chosen.tolist() == tiny.val.chosen.tolist()
    assert same.train is large.train
    assert large.deviations == ()  # there is no protocol to depart from
    assert next(iter(large.ood[0].images)).shape == (7, 1, 16, 16)


def test_networks_are_chosen_by_name_or_by_family_and_only_they_are_loaded(world):
    world.document["network"][0]["seeds"] = [0, 1]
    world.document["network"] += [
        {"name": "wide", "factory": "nets:wide"},
        {"name": "broken", "factory": "nets:wrong"},
    ]
    file = world.file()
    tiny, _, wide = file.suites(["tiny", "wide"])
    assert tiny.siblings == wide.siblings == ("tiny-s0", "tiny-s1", "wide", "broken")
    assert tiny.model[2].out_features == 3
    assert all(getattr(tiny, name) is getattr(wide, name) for name in ("train", "val", "test", "ood"))
    for names, chosen in (("wide", "wide"), ("tiny", "tiny-s0 tiny-s1"), ("wide tiny-s1", "tiny-s1 wide")):
        assert " ".join(suite.network for suite in file.suites(names.split())) == chosen  # in the order of the file
    with pytest.raises(ValueError, match="'huge'"):
        file.suites(["wide", "huge"])


def test_a_file_takes_the_sections_that_it_lacks_from_the_suite_that_it_is_like(world):
    def like(**sections):
        world.document = {"like": "cifar10"} | sections
        return to_builtins(world.file(variables={"OPENOOD": str(world.folder)}).document)

    own, original = [{"name": "mine", "factory": "nets:tiny"}], to_builtins(open_suite_file("cifar10").document)
    document = like(network=own)
    assert {key: document[key] for key in original} == original | {"network": own}  # the protocol is kept
    assert like(seed=3)["protocol"] == "openood-1.5/cifar10"
    for name, section in {
        "transform": {"resize": 32}, "train": {"npz": "train.npz"}, "val": {"npz": "pool.npz"},
        "test": {"npz": "pool.npz"}, "ood_val": {"npz": "pool.npz"},
        "ood": [{"name": "strange", "group": "far", "npz": "other.npz"}],
    }.items():  # fmt: skip
        assert "protocol" not in like(**{name: section}), name
    assert like(test={"npz": "pool.npz"})["val"]["expect"] == 1000
    world.document = {"like": "cifar10", "val": {"npz": "pool.npz", "perclass": 3}}
    world.refuses("per_class")


# Refusals


SENTENCES = {  # the keyword, and what is changed in each section ("" is the top of the file)
    "there is no key '{}'": [
        ("", {"sed": 1, "tset": {}, "protocol": "openood-1.5/cifar10"}), ("val", {"perclass": 3, "optional": True}),
        ("transform", {"man": [0.1]}), ("network", {"weigths": "w"}),
        ("ood", {"grup": "far", "y": "y", "per_class": 2}),
    ],
    "{} is missing": [
        ("", {"network": None, "val": None, "test": None, "ood": None}), ("network", {"name": None}),
        ("ood", {"name": None, "group": None}),
    ],
    "{} must": [
        ("", {"name": "../x", "about": 3, "seed": -1, "like": 3, "network": [], "val": [{"npz": "pool.npz"}]}),
        ("", {"seed": True, "network": {"name": "a"}}), ("", {"network": [1]}),
        ("train", {"npz": "", "optional": 1, "std": [1, 2]}), ("val", {"per_class": 0}),
        ("test", {"first": 2.0, "rest_of": "ood"}), ("ood", {"group": "middle"}),
        ("transform", {"mode": "CMYK", "mean": ["a"]}), ("transform", {"mean": [1, 2, 3]}),
        ("network", {"name": ".x", "factory": "nets.tiny", "model": "resnet50", "accuracy": 0, "seeds": []}),
        ("network", {"accuracy": 101}), ("network", {"seeds": 1}), ("network", {"seeds": [-1]}),
    ],
}  # fmt: skip
CIRCLE = (("train", "test"), ("val", "train"), ("test", "val"))
REFUSALS = [
    *(
        (section, {key: value}, sentence.format(key))
        for sentence, changes in SENTENCES.items()
        for section, entries in changes
        for key, value in entries.items()
    ),
    ("", {"sed": 1}, "Did you mean seed"),
    ("network", {"transform": {"man": [0.1]}}, "[[network]] tiny: there is no key 'man'"),
    ("", {"network": [{"name": name, "accuracy": int(name != "b")} for name in "ab"]}, "[[network]] b: accuracy"),
    ("", {"like": "cifar11"}, "imagenet1k"),
    ("train", {"folder": "."}, "npz and folder"), ("train", {"npz": None}, "got none"),
    ("train", {"npz": None, "folder": ".", "y": "y"}, "x and y"), ("train", {"npz": None, "list": "a.txt"}, "images ="),
    ("train", {"images": "."}, "images ="),
    ("train", {"npz": "nets.py"}, "nets.py"), ("train", {"npz": None, "list": "nets.py", "images": "."}, "nets.py:2"),
    ("train", {"npz": None, "table": "nets.py"}, "table: "), ("train", {"npz": None, "bank": "."}, "bank: "),
    ("train", {"npz": None, "bank": ".", "resize": 4}, "resize"), ("train", {"y": "fractions"}, "integer"),
    ("train", {"npz": None, "folder": "flat"}, "sub-folder"), ("val", {"y": "z"}, "'z'"), ("ood", {"x": "z"}, "'z'"),
    ("ood", {"expect": 6}, "any_counts="), ("ood", {"expect": 6, "outdated": 7}, "older version"),
    ("ood", {"name": "ood_val"}, "'ood_val'"),
    *((section, {"name": "a" * 65}, "at most 64 letters") for section in ("", "network", "ood")),
    ("val", {"per_class": 11}, "class 0 has 10"), ("test", {"per_class": 7}, "class 0 has 6"),
    ("val", {"per_class": 10}, "empty"), ("test", {"npz": "train.npz"}, "same source"),
    ("test", {"x": "twin"}, "same source"),
    ("", {"train": None, "val": {"npz": "pool.npz", "rest_of": "train"}}, "needs a section [train]"),
    ("val", {"per_class": None}, "needs per_class"), ("test", {"rest_of": "test", "per_class": 1}, "circle"),
    ("", {name: {"npz": "pool.npz", "rest_of": other, "per_class": 1} for name, other in CIRCLE}, "circle"),
    ("val", {"folder": "."}, "[val]: images"), ("val", {"first": 13}, "first = 13"),
    ("train", {"skip": 12}, "skip = 12"),
    ("test", {"npz": "train.npz", "rest_of": None}, "12 of its images are in [train]"),
    ("test", {"rest_of": None}, "12 of its images are in [val]"),
    ("", {"ood_val": {"npz": "other.npz", "first": 3}}, "3 of its images are in [ood]"),
    *(("ood", {"npz": f"{name}.npz"}, "of its images are in") for name in ("train", "pool")),
    *(("", {"ood_val": {"npz": f"{name}.npz"}}, "of its images are in") for name in ("train", "pool")),
    ("network", {"factory": None}, "got none"), ("network", {"linear": "x"}, "factory and linear"),
    ("network", {"pretrained": "DEFAULT"}, "pretrained"),
    ("network", {"factory": None, "linear": "x", "weights": "y"}, "Remove weights"),
    ("network", {"factory": None, "model": "zoo/x"}, "library/name"),
    ("network", {"factory": None, "model": "openood/resnet50"}, "weights="),
    ("network", {"transform": {"mean": [1, 2, 3]}}, "as a network changes it"),
    ("network", {"seeds": [1, 1]}, "two networks"),
    ("network", {"name": "banks"}, "folder banks"), ("network", {"factory": "nots:tiny"}, "ModuleNotFoundError"),
    ("network", {"factory": "nets:tinny"}, "Did you mean tiny"), ("network", {"factory": "nets:wrong"}, "wrong()"),
    ("network", {"factory": "nets:needy"}, "needy()"),
    ("", {"network": [{"name": "tiny", "factory": "nets:tiny"}] * 2}, "two networks"),
    ("", {"ood": [{"name": "strange", "group": "far", "npz": "other.npz"}] * 2}, "'strange'"),
    ("train", {"npz": "none.npz"}, "none.npz", FileNotFoundError),
    ("train", {"npz": "${TOY_UNSET}/x.npz"}, "TOY_UNSET", FileNotFoundError),
    ("train", {"npz": None, "folder": "none"}, "none", NotADirectoryError),
    ("network", {"weights": "none.pt"}, "none.pt", FileNotFoundError),
]  # fmt: skip


def test_a_mistake_is_refused_with_its_place(world):
    np.savez(world.folder / "train.npz", x=pixels(12), y=np.arange(12) % 3, fractions=np.zeros(12))
    world.image("flat/x.png")
    valid = world.document
    for section, entries, keyword, *kind in REFUSALS:
        world.document = copy.deepcopy(valid)
        table = world.document[section] if section else world.document
        table = table[0] if isinstance(table, list) else table
        table.update(entries)
        for name in [name for name, value in entries.items() if value is None]:
            del table[name]
        world.refuses(keyword, *kind, case=f"{section} {entries}")


def source(seed=0, labels=True, transform=None, batch_size=4):
    y = np.arange(10) % 3 if labels else None
    return ArrayImages(pixels(10, seed), y, transform or Transform(mode="L"), batch_size=batch_size)


def test_picked_images_are_rows_of_their_source_with_a_fingerprint_of_their_own():
    base = source()
    picked = ImageSubset(base, np.array([7, 2, 9, 4, 0]))
    assert (picked.rows, len(picked), picked.batch_size, picked.transform) == (5, 2, 4, base.transform)
    assert row_numbers(picked) == [7, 2, 9, 4, 0]
    assert torch.cat([y for _, y in picked]).tolist() == picked.labels.tolist() == [1, 2, 0, 1, 0]
    assert picked.picture(1)[0] == "image 2"
    rows = np.array([1, 2])
    fingerprint = ImageSubset(base, rows).fingerprint
    assert fingerprint == ImageSubset(source(batch_size=1), rows.astype(np.uint8)).fingerprint
    others = [base, *(ImageSubset(base, np.array(other)) for other in ([1, 5], [2, 1], [1, 2, 1]))]
    sources = (source(seed=1), source(labels=False), source(transform=Transform()))
    others += [ImageSubset(other, rows) for other in sources]
    assert len({fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)
