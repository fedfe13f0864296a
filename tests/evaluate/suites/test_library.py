"""`evaluate.suites.library`: suites by name, from files, and a few images of each for a quick look."""

import re
from collections import Counter

import numpy as np
import pytest
import torch

from flatfold.evaluate.suites.file import SuiteFile
from flatfold.evaluate.suites.library import even_rows, limited, load_suites, open_suite_file, suite_names
from flatfold.models.images import ArrayImages, Transform
from tests.toy_suite import World, pixels, row_numbers


@pytest.fixture
def world(tmp_path):
    """A suite file with two networks; the unknown images are few."""
    world = World(tmp_path)
    world.document["network"].append({"name": "wide", "factory": "nets:wide"})
    world.file()
    return world


def load(world, **arguments):
    return load_suites(str(world.path), world.folder / "out", **arguments)


# By name


def test_the_built_in_suites_are_the_demonstration_and_those_of_openood():
    assert suite_names() == ["digits", "cifar10", "cifar100", "imagenet1k", "imagenet200"]


@pytest.mark.parametrize("name", ["cifar", "mine.yaml", "toml", ""])
def test_a_suite_that_does_not_exist_is_refused_with_those_that_do(name, tmp_path):
    built_in = "digits, cifar10, cifar100, imagenet1k, imagenet200"
    message = f"^no suite is called {re.escape(repr(name))}\\. Built in: {built_in}\\. .* which ends in \\.toml\\.$"
    with pytest.raises(ValueError, match=message):
        load_suites(name, tmp_path)
    with pytest.raises(ValueError, match=message):
        open_suite_file(name)


def test_a_suite_file_that_does_not_exist_is_named():
    with pytest.raises(FileNotFoundError, match=r"^none\.toml: there is no such suite file"):
        open_suite_file("none.toml")


def test_a_built_in_suite_and_a_file_are_opened_alike(world):
    assert isinstance(open_suite_file("cifar10"), SuiteFile)
    assert open_suite_file("cifar10").document["name"] == "cifar10"
    file = open_suite_file(str(world.path), seeds=[3, 4], batch_size=5, any_counts=True)
    assert (file.path, file.batch_size, file.any_counts) == (world.path, 5, True)
    assert [network.seed for network in file.networks] == [3, 4, 3, 4]


def test_nothing_is_looked_for_before_it_is_asked_for(monkeypatch):
    monkeypatch.delenv("OPENOOD", raising=False)
    assert [network.name for network in open_suite_file("cifar10", seeds=[1]).networks] == ["resnet18-s1"]


@pytest.mark.parametrize("value", [None, ""])
def test_a_built_in_suite_says_that_it_needs_to_know_where_openood_lies(value, monkeypatch):
    monkeypatch.delenv("OPENOOD", raising=False)
    if value is not None:
        monkeypatch.setenv("OPENOOD", value)
    message = r"cifar10\.toml: \[\[network\]\] resnet18: weights: \$OPENOOD/results/.* needs the environment variable "
    with pytest.raises(ValueError, match=message + r"OPENOOD, which is not set\. Set it to a folder or give --data\.$"):
        open_suite_file("cifar10").suites()


def test_the_folder_of_openood_is_the_one_given_or_else_the_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENOOD", str(tmp_path / "variable"))
    assert open_suite_file("cifar10").variables["OPENOOD"] == str(tmp_path / "variable")
    assert open_suite_file("cifar10", data=tmp_path / "given").variables["OPENOOD"] == str(tmp_path / "given")


def test_the_folder_of_openood_starts_where_the_command_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENOOD", "here")
    assert open_suite_file("cifar10").variables["OPENOOD"] == str(tmp_path / "here")
    assert open_suite_file("cifar10", data=tmp_path.relative_to(tmp_path)).variables["OPENOOD"] == str(tmp_path)


# Networks and seeds


def test_every_network_is_a_suite_unless_some_are_named(world):
    assert [suite.network for suite in load(world)] == ["tiny", "wide"]
    assert [suite.network for suite in load(world, names=["wide"])] == ["wide"]
    with pytest.raises(ValueError, match=r"no network is called 'huge'\. There are tiny, wide\."):
        load(world, names=["huge"])


def test_every_network_is_a_suite_for_each_seed(world):
    assert [suite.network for suite in load(world, seeds=[7])] == ["tiny", "wide"]
    suites = load(world, seeds=[7, 8])
    assert [suite.network for suite in suites] == ["tiny-seed7", "tiny-seed8", "wide-seed7", "wide-seed8"]
    assert [suite.network for suite in load(world, seeds=[7, 8], names=["wide"])] == ["wide-seed7", "wide-seed8"]


def test_counts_are_checked_unless_any_will_do(world):
    world.document["val"]["expect"] = 31
    world.file()
    with pytest.raises(ValueError, match=r"\[val\]: val has 30 images, 31 were expected"):
        load(world)
    assert load(world, any_counts=True)[0].deviations == ("val has 30 images, 31 were expected",)


def test_the_built_in_digits_are_told_apart_by_their_seed_if_there_are_several(monkeypatch, tmp_path):
    made = []

    def digits(out, seed, batch_size):
        made.append((out, seed, batch_size))
        return World(tmp_path).suite(seed=seed)

    monkeypatch.setattr("flatfold.evaluate.suites.library.digits", digits)
    assert [(suite.network, suite.family) for suite in load_suites("digits", tmp_path)] == [("", "digits")]
    suites = load_suites("digits", tmp_path, seeds=[2, 5], batch_size=3, limit=4)
    assert [(suite.network, suite.family) for suite in suites] == [("seed2", "digits"), ("seed5", "digits")]
    assert made == [(tmp_path, 0, 256), (tmp_path, 2, 3), (tmp_path, 5, 3)]
    assert {suite.test.rows for suite in suites} == {4}


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The networks and seeds that the built-in suite was made with, in place of making it."""
    made = []

    def digits(out, seed, batch_size, network="cnn"):
        made.append((network, seed, batch_size))
        return World(tmp_path).suite(seed=seed)

    monkeypatch.setattr("flatfold.evaluate.suites.library.digits", digits)
    return made


def test_networks_of_the_digits_that_are_named_have_folders_of_their_own(made, tmp_path):
    suites = load_suites("digits", tmp_path, names=["residual", "cnn"], batch_size=3)
    assert made == [("cnn", 0, 3), ("residual", 0, 3)]
    for suite, name in zip(suites, ("cnn", "residual"), strict=True):
        assert (suite.network, suite.family, suite.architecture) == (name, name, name)
        assert suite.siblings == ("cnn", "mlp", "residual")
    (alone,) = load_suites("digits", tmp_path, names=["mlp"])
    assert (alone.network, alone.siblings) == ("mlp", ("cnn", "mlp", "residual"))  # a folder, lest one replaces another


def test_networks_of_the_digits_are_told_apart_by_their_seed_too(made, tmp_path):
    suites = load_suites("digits", tmp_path, seeds=[2, 5], names=["cnn", "mlp"])
    assert [suite.network for suite in suites] == ["cnn-seed2", "cnn-seed5", "mlp-seed2", "mlp-seed5"]
    assert [suite.family for suite in suites] == ["cnn", "cnn", "mlp", "mlp"]
    assert {suite.siblings[-1] for suite in suites} == {"residual-seed5"}
    assert made == [("cnn", 2, 256), ("cnn", 5, 256), ("mlp", 2, 256), ("mlp", 5, 256)]


def test_the_digits_without_a_name_are_those_of_the_first_network_as_ever(made, tmp_path):
    (suite,) = load_suites("digits", tmp_path)
    assert (suite.network, suite.family, suite.siblings) == ("", "digits", ("",))
    assert made == [("cnn", 0, 256)]


def test_networks_that_the_digits_do_not_have_are_refused_with_those_that_they_have(made, tmp_path):
    message = r"digits makes its own network and images, and has no network 'vit'\. There are cnn, mlp, residual\.$"
    with pytest.raises(ValueError, match=message):
        load_suites("digits", tmp_path, names=["cnn", "vit"])
    assert made == []
    for asked in ({"data": tmp_path}, {"any_counts": True}):
        with pytest.raises(ValueError, match=r"so there are no folders or counts to choose\.$"):
            load_suites("digits", tmp_path, **asked)


# A quick look


def test_a_limited_suite_has_at_most_so_many_images_of_each_data_set_and_says_so(world):
    world.document["ood_val"] = {"npz": "train.npz", "x": "twin"}
    world.file()
    whole, few = load(world)[0], load(world, limit=9)[0]
    assert [source.rows for source in whole.sources.values()] == [12, 12, 18, 12, 7]
    assert [source.rows for source in few.sources.values()] == [9, 9, 9, 9, 7]
    assert few.deviations == ("at most 9 images of each data set were taken",)
    assert row_numbers(few.ood[0].images) == list(range(7))  # there were no more


def test_a_data_set_that_is_small_enough_is_left_as_it_is(world):
    (whole, _) = load(world)
    few = limited(whole, 12)
    assert few.train is whole.train
    assert few.val is whole.val
    assert few.test.rows == 12
    assert few.ood[0].images is whole.ood[0].images
    assert (few.ood[0].name, few.ood[0].group) == (whole.ood[0].name, whole.ood[0].group)


def test_a_limited_suite_keeps_its_deviations_and_what_it_does_not_have(world):
    world.document["val"]["expect"] = 31
    del world.document["train"]
    world.file()
    (few, _) = load(world, any_counts=True, limit=3)
    assert (few.train, few.ood_val) == (None, None)
    assert few.deviations == (
        "val has 30 images, 31 were expected",
        "at most 3 images of each data set were taken",
    )


def test_a_limited_suite_has_the_images_of_the_whole_one_with_their_labels(world):
    (whole, _), (few, _) = load(world), load(world, limit=10)
    for name in ("train", "val", "test"):
        rows, of_all = row_numbers(getattr(few, name)), row_numbers(getattr(whole, name))
        assert rows == [row for row in of_all if row in rows]  # in their order, each once
        assert getattr(few, name).labels.tolist() == [row % 3 for row in rows]


def test_a_limited_suite_has_the_same_images_for_every_seed_of_a_network(world):
    def rows(seed):
        return row_numbers(load(world, seeds=[seed], limit=10)[0].train)

    assert rows(0) == rows(0) == rows(1) == rows(2)
    assert rows(0) != list(range(10))


def test_a_limited_suite_of_banks_has_rows_of_the_banks(world):
    from flatfold import FeatureBank, save_bank

    features = torch.arange(24.0).reshape(12, 2)
    save_bank(FeatureBank(features, torch.arange(12) % 3), world.folder / "train.bank")
    world.document["train"] = {"bank": "train.bank"}
    world.file()
    few = load(world, limit=6)[0].train
    assert few.labels.bincount().tolist() == [2, 2, 2]
    rows = torch.cat([x for x, _ in few])[:, 0].div(2).long()
    assert (rows % 3).tolist() == few.labels.tolist()


def source(labels):
    y = None if labels is None else np.array(labels)
    return ArrayImages(pixels(20 if labels is None else len(labels)), y, Transform(mode="L"))


@pytest.mark.parametrize("seed", range(5))
def test_classes_are_taken_evenly_and_large_ones_fill_up_what_small_ones_lack(seed):
    labels = [0] * 30 + [5] * 3 + [9] * 30  # class numbers may have gaps
    rows = even_rows(source(labels), 21, seed)
    assert Counter(np.array(labels)[rows].tolist()) == {0: 9, 5: 3, 9: 9}
    assert (rows.tolist(), len(set(rows.tolist()))) == (sorted(rows.tolist()), 21)
    one_more = Counter(np.array(labels)[even_rows(source(labels), 22, seed)].tolist())
    assert sorted(one_more.values()) == [3, 9, 10]


def test_without_labels_any_images_are_taken():
    drawn = [even_rows(source(None), 8, seed).tolist() for seed in range(50)]
    assert all(rows == sorted(set(rows)) and len(rows) == 8 for rows in drawn)
    assert {row for rows in drawn for row in rows} == set(range(20))  # none is left out for good
    assert even_rows(source(None), 8, 1).tolist() == drawn[1]
