"""Training of the digits network: seeded, kept, and done again when anything about it changes."""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import flatfold as ff
from flatfold.evaluate.suites import train
from flatfold.models.images import ArrayImages


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    labels = np.arange(128) % 2
    x = rng.integers(0, 40, (128, 28, 28)) + 150 * labels[:, None, None]
    return ArrayImages(x.astype(np.uint8), labels, ff.Transform(mode="L"), batch_size=64)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(train, "EPOCHS", 2)


def weights(network):
    return torch.cat([value.flatten() for value in network.state_dict().values()])


def test_the_same_seed_gives_the_same_network_and_leaves_the_generator_alone(images, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = train.trained_network(images, images, tmp_path / "a", seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    second = train.trained_network(images, images, tmp_path / "b", seed=1)
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(train.trained_network(images, images, tmp_path / "c", seed=2)))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_is_neither_seen_nor_changed(threads, images, tmp_path):
    one = train.trained_network(images, images, tmp_path / "a", seed=1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        other = train.trained_network(images, images, tmp_path / "b", seed=1)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(weights(one), weights(other))


def test_it_learns_and_comes_back_in_evaluation_mode(images, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "EPOCHS", 10)
    network = train.trained_network(images, images, tmp_path / "a", seed=1)
    assert not network.training
    assert train.accuracy(network, torch.cat([x for x, _ in images]), images.labels) == 1.0


def test_it_is_trained_once(images, tmp_path, monkeypatch):
    first = train.trained_network(images, images, tmp_path / "a", seed=1)
    monkeypatch.setattr(train, "_train", None)
    again = train.trained_network(images, images, tmp_path / "a", seed=1)
    assert torch.equal(weights(first), weights(again))


def test_images_are_moved_by_a_few_pixels_while_it_trains():
    x = torch.zeros(1, 1, 28, 28)
    x[0, 0, 14, 14] = 1
    places = {tuple(train._shifted(x).nonzero()[0, 2:].tolist()) for _ in range(300)}
    assert places == {(row, column) for row in range(12, 17) for column in range(12, 17)}


@pytest.mark.parametrize("change", ["seed", "recipe", "data", "damage", "other tensors", "network"])
def test_it_is_trained_again_when_something_changed(change, images, tmp_path, monkeypatch):
    path, seed, network = tmp_path / "a", 1, "cnn"
    train.trained_network(images, images, path, seed=seed)
    calls = []
    monkeypatch.setattr(train, "_train", lambda *args: calls.append(args))
    if change == "seed":
        seed = 2
    elif change == "recipe":
        monkeypatch.setattr(train, "EPOCHS", 3)
    elif change == "data":
        images = ArrayImages(255 - images.x, images.labels.numpy(), images.transform, batch_size=64)
    elif change == "network":
        network = "mlp"
    elif change == "damage":
        path.write_bytes(path.read_bytes()[:1000])
    else:
        with safe_open(path, framework="pt") as file:
            save_file({"head.weight": torch.zeros(3, 3)}, path, file.metadata())
    train.trained_network(images, images, path, seed=seed, network=network)
    assert len(calls) == 1


@pytest.mark.parametrize(("network", "width"), [("cnn", 128), ("mlp", 128), ("residual", 64)])
def test_every_network_learns_and_has_features_behind_a_relu(network, width, images, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "EPOCHS", 8)
    model = train.trained_network(images, images, tmp_path / "a", seed=1, network=network)
    x = torch.cat([x for x, _ in images])
    assert train.accuracy(model, x, images.labels) == 1.0
    bank, head = ff.extract(model, [x])
    assert (bank.width, head.n_classes) == (width, 2)
    assert (bank.features >= 0).all()
    assert not model.training


def test_networks_are_trained_for_as_many_epochs_as_they_need(images, tmp_path, monkeypatch):
    epochs = []
    monkeypatch.setattr(train, "_train", lambda model, x, y, count: epochs.append(count))
    for network in ("cnn", "mlp", "residual"):
        train.trained_network(images, images, tmp_path / network, seed=1, network=network)
    assert epochs == [2, 6, 2]


def test_the_first_network_is_found_where_it_was_trained_before_there_were_others(images, tmp_path, monkeypatch):
    recipe = {"data": images.fingerprint, "seed": 1, "epochs": 2, "batch": 64, "lr": 2e-3, "shift": 2}
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    train.trained_network(images, images, tmp_path / "a", seed=1)
    with safe_open(tmp_path / "a", framework="pt") as file:
        assert file.metadata() == {"recipe": key}
