"""`evaluate.suites.library`: suites by name, from files, and a few images of each for a quick look."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from flatfold import FeatureBank, Transform, save_bank
from flatfold.data.images import ArrayImages
from flatfold.data.sources import take_subset
from flatfold.evaluate.suites.library import limit_suite, load_suites, open_suite_file
from tests.toy_suite import World, pixels, row_numbers


@pytest.fixture
def world(tmp_path):
    """A suite file with two networks; the OOD images are few."""
    world = World(tmp_path)
    world.document["network"].append({"name": "wide", "factory": "nets:wide"})
    return world


def load(world, **arguments):
    world.file()
    return load_suites(str(world.path), world.folder / "out", **arguments)


def test_the_built_in_suites_are_digits_scenes_and_those_of_openood(tmp_path, monkeypatch):
    for name in ("cifar", "mine.yaml", "toml", ""):
        for load_by_name in (lambda name: load_suites(name, tmp_path), open_suite_file):
            with pytest.raises(ValueError, match="digits, texts, scenes, cifar10, cifar100, imagenet1k, imagenet200"):
                pytest.fail(f"{name!r} gave {load_by_name(name)}")
    monkeypatch.setenv("OPENOOD", "")
    with pytest.raises(FileNotFoundError, match="data="):
        load_suites("cifar10", tmp_path)
    monkeypatch.setenv("OPENOOD", "here")
    assert open_suite_file("cifar10").variables["OPENOOD"] == str(Path("here").resolve())
    assert open_suite_file("cifar10", data=tmp_path).variables["OPENOOD"] == str(tmp_path)


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
    suites += load_suites("digits", tmp_path, names=["mlp"])  # in a folder too, lest one replaces another
    for suite, name in zip(suites, ("cnn", "residual", "mlp"), strict=True):
        assert (suite.network, suite.family, suite.architecture) == (name, name, name)
        assert suite.siblings == ("cnn", "mlp", "residual")
    suites = load_suites("digits", tmp_path, seeds=[2, 5], names=["cnn", "mlp"])
    assert [suite.network for suite in suites] == ["cnn-seed2", "cnn-seed5", "mlp-seed2", "mlp-seed5"]
    assert [suite.family for suite in suites] == ["cnn", "cnn", "mlp", "mlp"]
    assert {suite.siblings[-1] for suite in suites} == {"residual-seed5"}
    assert made[3:] == [("cnn", 2, 256), ("cnn", 5, 256), ("mlp", 2, 256), ("mlp", 5, 256)]
    made.clear()  # without a name they are those of the first network
    (suite,) = load_suites("digits", tmp_path)
    assert (suite.network, suite.family, suite.siblings) == ("", "digits", ("",))
    suites = load_suites("digits", tmp_path, seeds=[2, 5], batch_size=3, limit=4)
    assert [(suite.network, suite.family) for suite in suites] == [("seed2", "digits"), ("seed5", "digits")]
    assert {suite.test.rows for suite in suites} == {4}
    assert made == [("cnn", 0, 256), ("cnn", 2, 3), ("cnn", 5, 3)]
    for asked in ({"names": ["cnn", "vit"]}, {"data": tmp_path}, {"any_counts": True}):
        with pytest.raises(ValueError, match="digits makes its own"):
            load_suites("digits", tmp_path, **asked)
    assert len(made) == 3


def test_one_limit_is_for_what_methods_are_evaluated_on_and_one_for_what_they_learn_from_and_both_are_stated(world):
    world.document["ood_val"] = {"npz": "train.npz", "x": "twin"}
    world.document["val"]["expect"] = 31
    whole, judged, few = (
        load(world, any_counts=True, limit=limit, limit_fit=fit)[0] for limit, fit in ((None, None), (9, None), (9, 8))
    )
    assert [source.rows for source in whole.sources.values()] == [12, 12, 18, 12, 7]
    assert [source.rows for source in judged.sources.values()] == [12, 12, 9, 12, 7]
    assert [source.rows for source in few.sources.values()] == [8, 8, 9, 8, 7]
    assert len(whole.deviations) == 1
    assert judged.deviations[:-1] == whole.deviations
    assert few.deviations[:-1] == judged.deviations
    assert "evaluated on at most 9 images" in judged.deviations[-1]
    assert "learned from at most 8 images" in few.deviations[-1]
    for name in ("train", "val", "test"):
        rows, of_all = row_numbers(getattr(few, name)), row_numbers(getattr(whole, name))
        assert rows == [row for row in of_all if row in rows]  # in their order, each once
        assert getattr(few, name).labels.tolist() == [row % 3 for row in rows]
    half = limit_suite(whole, 12, 12)
    assert len(half.deviations) == len(whole.deviations) + 1  # the second limit cuts nothing
    assert (half.train, half.val, half.ood[0].images) == (whole.train, whole.val, whole.ood[0].images)
    assert (half.test.rows, half.ood[0].name, half.ood[0].group) == (12, "strange", "far")
    rows = [row_numbers(load(world, any_counts=True, seeds=[seed], limit_fit=10)[0].train) for seed in (0, 0, 1, 2)]
    assert rows[0] == rows[1] == rows[2] == rows[3] != list(range(10))  # the same for every seed of a network
    save_bank(FeatureBank(torch.arange(24.0).reshape(12, 2), torch.arange(12) % 3), world.folder / "train.bank")
    world.document["train"] = {"bank": "train.bank"}
    bank = load(world, any_counts=True, limit_fit=6)[0].train
    assert bank.labels.bincount().tolist() == [2, 2, 2]
    assert (torch.cat([x for x, _ in bank])[:, 0].div(2) % 3).tolist() == bank.labels.tolist()
    del world.document["train"], world.document["ood_val"]
    (without, _) = load(world, any_counts=True, limit=3, limit_fit=3)
    assert (without.train, without.ood_val) == (None, None)


def source(labels):
    y = None if labels is None else np.array(labels)
    return ArrayImages(pixels(20 if labels is None else len(labels)), y, Transform(mode="L"))


def even_rows(source, count, seed):
    return take_subset(source, count, seed, balanced=True).chosen


def test_classes_are_taken_evenly_and_without_labels_any_images_are_taken():
    labels = [0] * 30 + [5] * 3 + [9] * 30  # class numbers may have gaps
    for seed in range(5):
        rows = even_rows(source(labels), 21, seed).tolist()
        assert Counter(np.array(labels)[rows].tolist()) == {0: 9, 5: 3, 9: 9}
        assert rows == sorted(set(rows))
        one_more = Counter(np.array(labels)[even_rows(source(labels), 22, seed)].tolist())
        assert sorted(one_more.values()) == [3, 9, 10]
    drawn = [even_rows(source(None), 8, seed).tolist() for seed in range(50)]
    assert all(rows == sorted(set(rows)) and len(rows) == 8 for rows in drawn)
    assert {row for rows in drawn for row in rows} == set(range(20))  # none is left out for good
    assert even_rows(source(None), 8, 1).tolist() == drawn[1]
