"""The built-in suites of OpenOOD v1.5: every number against a table written by hand, every suite on a small tree."""

import re
import shutil
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from flatfold.evaluate.suites.file import SuiteFile
from flatfold.evaluate.suites.library import open_suite_file
from flatfold.evaluate.suites.text import BUILT_IN, built_in_names
from tests.openood_tree import BENCHMARKS, FEW, KNOWN, UNKNOWN, list_path, make_openood

NAMES = sorted(BENCHMARKS)


def document(name):
    return tomllib.loads((BUILT_IN / f"{name}.toml").read_text())


def test_every_benchmark_has_a_file():
    assert built_in_names() == NAMES


# What the files say


@pytest.mark.parametrize("name", NAMES)
def test_known_images_are_those_of_openood(name):
    benchmark, said = BENCHMARKS[name], document(name)
    for split, listed in benchmark.known.items():
        expected = {
            "list": f"$OPENOOD/data/benchmark_imglist/{benchmark.lists}/{listed.list}.txt",
            "images": f"$OPENOOD/data/{listed.root}",
        }
        expected |= {} if listed.count is None else {"expect": listed.count}
        expected |= {"optional": True} if (name, split) == ("imagenet1k", "train") else {}
        assert said[split] == expected


@pytest.mark.parametrize("name", NAMES)
def test_unknown_images_are_those_of_openood_in_its_order(name):
    benchmark, said = BENCHMARKS[name], document(name)["ood"]
    assert [table["name"] for table in said] == [*benchmark.near, *benchmark.far]
    for table in said:
        listed = benchmark.unknown[table["name"]]
        assert table["group"] == ("near" if table["name"] in benchmark.near else "far")
        assert table["list"] == f"$OPENOOD/data/benchmark_imglist/{benchmark.lists}/{listed.list}.txt"
        assert table["images"] == f"$OPENOOD/data/{listed.root}"
        assert table["expect"] == listed.count
        assert table["about"].endswith(".")
    outdated = {(name, table["name"]): table["outdated"] for table in said if "outdated" in table}
    assert outdated == ({("cifar10", "tin"): 8793} if name == "cifar10" else {})


@pytest.mark.parametrize("name", NAMES)
def test_networks_and_their_preparation_are_those_of_openood(name):
    benchmark, said = BENCHMARKS[name], document(name)
    assert said["transform"] == {
        "resize": benchmark.resize,
        "crop": benchmark.crop,
        "mean": list(benchmark.mean),
        "std": list(benchmark.std),
    }
    (network,) = said["network"]
    assert network["model"] == f"openood/{benchmark.network}"
    assert network["accuracy"] == benchmark.accuracy
    seeds = network.get("seeds", [0])
    assert "seeds" in network or name == "imagenet1k"
    places = [network["weights"].replace("{seed}", str(seed)) for seed in seeds]
    assert places == [f"$OPENOOD/{checkpoint}" for checkpoint in benchmark.checkpoints]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_nothing_else(name):
    said = document(name)
    assert (said["name"], said["protocol"]) == (name, f"openood-1.5/{name}")
    sections = {"name", "about", "protocol", "transform", "network", "train", "val", "test", "ood_val", "ood"}
    assert said.keys() == sections


# The files on a small tree


@pytest.fixture(scope="module", params=NAMES)
def small(request, tmp_path_factory):
    """The name of a benchmark and a small tree for it, removed at once: its checkpoints are large."""
    root = make_openood(tmp_path_factory.mktemp("openood"), request.param)
    yield request.param, root
    shutil.rmtree(root)


def test_a_small_tree_is_loaded_if_any_counts_will_do(small):
    name, root = small
    benchmark = BENCHMARKS[name]
    suites = open_suite_file(name, data=root, any_counts=True, batch_size=16).suites()
    assert [suite.network for suite in suites] == (
        ["resnet50"] if name == "imagenet1k" else ["resnet18-s0", "resnet18-s1", "resnet18-s2"]
    )
    for suite, checkpoint in zip(suites, benchmark.checkpoints, strict=True):
        assert (suite.name, suite.protocol, suite.accuracy) == (name, f"openood-1.5/{name}", benchmark.accuracy)
        assert suite.architecture == f"openood/{benchmark.network}"
        weights = torch.load(root / checkpoint, weights_only=True)
        assert torch.equal(suite.model.fc.weight, weights["fc.weight"])
    first, last = suites[0], suites[-1]
    assert {key: source.rows for key, source in first.sources.items()} == {
        key: FEW.get(key, UNKNOWN) for key in benchmark.every
    }
    assert all(first.sources[key] is last.sources[key] for key in first.sources)
    with torch.no_grad():
        assert first.model(next(iter(first.ood[-1].images))[:2]).shape == (2, benchmark.classes)


def test_known_images_have_labels_and_unknown_ones_have_none(small):
    name, root = small
    suite = open_suite_file(name, data=root, any_counts=True).suites()[0]
    for split in (suite.train, suite.val, suite.test):
        assert split.labels.tolist() == [row % KNOWN for row in range(split.rows)]
    assert suite.ood_val.labels is None
    assert all(ood.images.labels is None for ood in suite.ood)
    assert [ood.group for ood in suite.ood] == ["near"] * 2 + ["far"] * (len(suite.ood) - 2)


def test_every_image_is_prepared_as_in_openood(small):
    name, root = small
    benchmark = BENCHMARKS[name]
    suite = open_suite_file(name, data=root, any_counts=True).suites()[0]
    for key, source in suite.sources.items():
        listed = benchmark.every[key]
        batch = source.read(range(2))
        image = (batch[0] if isinstance(batch, tuple) else batch)[1]
        path = root / "data" / listed.root / listed.path.format(1)
        assert_close(image.double(), prepared(path, benchmark), rtol=0, atol=1e-5)


def prepared(path, benchmark):
    """Slow and obvious: RGB, the shorter side to its length, the middle, values from 0 to 1, normalised."""
    image = Image.open(path).convert("RGB")
    scale = benchmark.resize / min(image.size)
    image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = (round((side - benchmark.crop) / 2) for side in image.size)
    pixels = np.array(image, np.float64)[top : top + benchmark.crop, left : left + benchmark.crop] / 255
    return torch.from_numpy((pixels - benchmark.mean) / benchmark.std).permute(2, 0, 1)


def test_every_count_that_is_not_as_it_should_be_is_told(small):
    name, root = small
    expected = [
        f"{key} has {FEW.get(key, UNKNOWN)} images, {listed.count} were expected"
        for key, listed in BENCHMARKS[name].every.items()
        if listed.count is not None
    ]
    for suite in open_suite_file(name, data=root, any_counts=True).suites():
        assert sorted(suite.deviations) == sorted(expected)


def test_a_small_tree_is_refused_with_the_first_count_if_nothing_is_said(small):
    name, root = small
    split = "val" if name == "imagenet200" else "train"  # whose training images nobody has counted
    wanted = BENCHMARKS[name].known[split].count
    message = rf"{name}\.toml: \[{split}\]: {split} has {FEW[split]} images, {wanted} were expected\. Get the lists"
    with pytest.raises(ValueError, match=message):
        open_suite_file(name, data=root).suites()


# The files on lists of full length


@pytest.fixture(scope="module", params=NAMES)
def full(request, tmp_path_factory):
    root = make_openood(tmp_path_factory.mktemp("openood"), request.param, full_lists=True)
    yield request.param, root
    shutil.rmtree(root)


def test_lists_of_the_right_length_are_taken_without_a_word(full):
    name, root = full
    suite = open_suite_file(name, data=root).suites()[0]
    assert (suite.deviations, suite.protocol) == ((), f"openood-1.5/{name}")
    assert (suite.train is None) == (name == "imagenet1k")  # whose training images not everybody has
    counted = {key: listed.count for key, listed in BENCHMARKS[name].every.items() if listed.count}
    assert {key: source.rows for key, source in suite.sources.items() if key in counted} == (
        counted if name != "imagenet1k" else {key: count for key, count in counted.items() if key != "train"}
    )


@pytest.mark.parametrize("full", ["cifar10"], indirect=True)
def test_a_list_of_an_older_version_is_refused_as_such(full):
    name, root = full
    benchmark = BENCHMARKS[name]
    path = list_path(root, benchmark, benchmark.near["tin"])
    before = path.read_text()
    path.write_text("".join((before + before).splitlines(keepends=True)[:8793]))
    message = (
        "[[ood]] tin: tin has 8793 images, 7793 were expected; so many are in an older version of it, and the "
        "two must not be mixed. Get the lists again, or pass --any-counts to judge these."
    )
    try:
        with pytest.raises(ValueError, match=re.escape(message)):
            open_suite_file(name, data=root).suites()
    finally:
        path.write_text(before)


def test_a_network_of_ones_own_is_expected_to_be_as_good_as_the_one_that_it_replaces(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        'like = "cifar10"\n[[network]]\nname = "mine"\nmodel = "openood/resnet18_32x32"\nweights = "w.ckpt"\n'
        '[[network]]\nname = "other"\nfactory = "nets:other"\n[[network]]\nname = "strict"\n'
        'model = "openood/resnet18_32x32"\nweights = "w.ckpt"\naccuracy = 96\n'
    )
    tables = [network.table for network in SuiteFile(path).networks]
    assert [table.get("accuracy") for table in tables] == [95.06, None, 96]


@pytest.mark.parametrize(
    ("model", "own", "told"),
    [
        ("openood/resnet18_32x32", "transform = { mean = [0, 0, 0] }", "the network mine has its own mean"),
        ("openood/resnet18_32x32", "transform = { resize = 40 }", "the network mine has its own resize"),
        ("openood/resnet18_32x32", 'head = "layer4"', "the network mine has its own head"),
        ("torchvision/densenet121", "transform = { resize = 232, crop = 224 }", None),
        ("torchvision/densenet121", "transform = { std = [1, 1, 1] }", "the network mine has its own std"),
        ("openood/resnet18_32x32", "", None),
    ],
)
def test_what_a_network_does_in_its_own_way_is_a_deviation_from_the_protocol(model, own, told, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(f'like = "cifar10"\n[[network]]\nname = "mine"\nmodel = "{model}"\nweights = "w"\n{own}\n')
    suite_file = SuiteFile(path)
    assert suite_file._own_ways(suite_file.networks[0]) == ([] if told is None else [told])
