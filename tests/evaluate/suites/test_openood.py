"""The built-in suites of OpenOOD v1.5: every number against a table written by hand, every suite on a small tree."""

import shutil

import numpy as np
import pytest
import torch
from msgspec import to_builtins
from PIL import Image
from torch.testing import assert_close

from flatfold.evaluate.suites.library import open_suite_file
from flatfold.evaluate.suites.toml_file import SuiteFile
from flatfold.paper.comparison import find_data_set
from tests.openood_tree import BENCHMARKS, FEW, KNOWN, UNKNOWN, list_path, make_openood

QUICK_AND_SLOW = [
    name if name == "cifar10" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(BENCHMARKS)
]


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_a_suite_says_what_openood_says(name):
    benchmark, said = BENCHMARKS[name], to_builtins(open_suite_file(name).document)
    sections = {"name", "about", "protocol", "transform", "network", "train", "val", "test", "ood_val", "ood"}
    assert said.keys() == sections
    assert (said["name"], said["protocol"]) == (name, f"openood-1.5/{name}")
    assert [table["name"] for table in said["ood"]] == [*benchmark.near, *benchmark.far]
    tables = {split: said[split] for split in benchmark.known} | {table["name"]: table for table in said["ood"]}
    for split, listed in benchmark.every.items():
        expected = {
            "list": f"$OPENOOD/data/benchmark_imglist/{benchmark.lists}/{listed.list}.txt",
            "images": f"$OPENOOD/data/{listed.root}",
        }
        if listed.count is not None:
            expected["expect"] = listed.count
        if (name, split) == ("imagenet1k", "train"):
            expected["optional"] = True
        if (name, split) == ("cifar10", "tin"):
            expected["outdated"] = 8793
        if split in benchmark.unknown:
            expected |= {"name": split, "group": "near" if split in benchmark.near else "far"}
            assert find_data_set(tables[split].pop("printed"), [split]) == split  # as the paper prints it
        assert {key: value for key, value in tables[split].items() if key != "about"} == expected
    size = {"resize": benchmark.resize, "crop": benchmark.crop}
    assert said["transform"] == size | {"mean": list(benchmark.mean), "std": list(benchmark.std)}
    (network,) = said["network"]
    assert (network["model"], network["accuracy"]) == (f"openood/{benchmark.network}", benchmark.accuracy)
    places = [network["weights"].replace("{seed}", str(seed)) for seed in network.get("seeds", [0])]
    assert places == [f"$OPENOOD/{checkpoint}" for checkpoint in benchmark.checkpoints]


def prepared(path, benchmark):
    """Slow and obvious: RGB, the shorter side to its length, the middle, values from 0 to 1, normalised."""
    image = Image.open(path).convert("RGB")
    scale = benchmark.resize / min(image.size)
    image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = (round((side - benchmark.crop) / 2) for side in image.size)
    pixels = np.array(image, np.float64)[top : top + benchmark.crop, left : left + benchmark.crop] / 255
    return torch.from_numpy((pixels - benchmark.mean) / benchmark.std).permute(2, 0, 1)


@pytest.mark.parametrize("name", QUICK_AND_SLOW)
def test_a_small_tree_is_loaded_as_openood_does_if_any_counts_will_do(name, tmp_path):
    root, benchmark = make_openood(tmp_path, name), BENCHMARKS[name]
    suites = open_suite_file(name, data=root, any_counts=True, batch_size=16).suites()
    names = ["resnet50"] if name == "imagenet1k" else ["resnet18-s0", "resnet18-s1", "resnet18-s2"]
    assert [suite.network for suite in suites] == names
    short = sorted(
        f"{key} has {FEW.get(key, UNKNOWN)} images, {listed.count} were expected"
        for key, listed in benchmark.every.items()
        if listed.count is not None
    )
    for suite, checkpoint in zip(suites, benchmark.checkpoints, strict=True):
        assert (suite.name, suite.protocol, suite.accuracy) == (name, f"openood-1.5/{name}", benchmark.accuracy)
        assert suite.architecture == f"openood/{benchmark.network}"
        assert torch.equal(suite.model.fc.weight, torch.load(root / checkpoint, weights_only=True)["fc.weight"])
        assert sorted(suite.deviations) == short
    first, last = suites[0], suites[-1]
    assert {key: source.rows for key, source in first.sources.items()} == {
        key: FEW.get(key, UNKNOWN) for key in benchmark.every
    }
    assert all(first.sources[key] is last.sources[key] for key in first.sources)
    for key, source in first.sources.items():
        labels = [row % KNOWN for row in range(source.rows)] if key in ("train", "val", "test") else None
        assert (source.labels if labels is None else source.labels.tolist()) == labels, key
        batch = source.read(range(2))
        image = (batch if labels is None else batch[0])[1]
        listed = benchmark.every[key]
        expected = prepared(root / "data" / listed.root / listed.path.format(1), benchmark)
        assert_close(image.double(), expected, rtol=0, atol=1e-5, msg=key)
    assert [ood.group for ood in first.ood] == ["near"] * 2 + ["far"] * (len(first.ood) - 2)
    with torch.no_grad():
        assert first.model(next(iter(first.ood[-1].images))[:2]).shape == (2, benchmark.classes)
    counted = "val" if name == "imagenet200" else "train"  # whose training images nobody has counted
    with pytest.raises(ValueError, match=rf"\[{counted}\].*{benchmark.known[counted].count}"):
        open_suite_file(name, data=root).suites()
    shutil.rmtree(root)  # its checkpoints are large


@pytest.mark.parametrize("name", QUICK_AND_SLOW)
def test_lists_of_the_right_length_are_no_deviation_and_those_of_an_older_version_are_refused(name, tmp_path):
    root, benchmark = make_openood(tmp_path, name, full_lists=True), BENCHMARKS[name]
    suite = open_suite_file(name, data=root).suites()[0]
    assert (suite.deviations, suite.protocol) == ((), f"openood-1.5/{name}")
    assert (suite.train is None) == (name == "imagenet1k")  # whose training images not everybody has
    counts = {key: listed.count for key, listed in benchmark.every.items() if listed.count and key in suite.sources}
    assert {key: suite.sources[key].rows for key in counts} == counts
    if name == "cifar10":
        path = list_path(root, benchmark, benchmark.near["tin"])
        path.write_text("".join((path.read_text() * 2).splitlines(keepends=True)[:8793]))
        with pytest.raises(ValueError, match="older version"):
            open_suite_file(name, data=root).suites()
    shutil.rmtree(root)


def test_a_network_of_ones_own_is_expected_to_be_as_good_and_its_changed_keys_are_deviations(tmp_path):
    path = tmp_path / "own.toml"
    cifar = "openood/resnet18_32x32"
    for model, own, expected, keyword in (
        (cifar, "", 95.06, None), (cifar, "accuracy = 96", 96, None),
        (cifar, "transform = { mean = [0, 0, 0] }", 95.06, "mean"),
        (cifar, "transform = { resize = 40 }", 95.06, "resize"), (cifar, 'head = "layer4"', 95.06, "head"),
        ("torchvision/densenet121", "transform = { resize = 232, crop = 224 }", None, None),
        ("torchvision/densenet121", "transform = { std = [1, 1, 1] }", None, "std"),
    ):  # fmt: skip
        path.write_text(f'like = "cifar10"\n[[network]]\nname = "mine"\nmodel = "{model}"\nweights = "w"\n{own}\n')
        file = SuiteFile(path)
        assert file.networks[0].table.accuracy == expected, (model, own)
        deviations = file._changed_keys(file.networks[0])
        assert len(deviations) == (keyword is not None), (model, own)
        assert all(sentence.endswith(keyword) for sentence in deviations), deviations
