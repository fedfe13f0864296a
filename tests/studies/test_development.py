"""`studies.autofold.development` and `networks`: small suites from files, here from made-up ones."""

import numpy as np
import pytest
import torch

from flatfold.models.images import ArrayImages, Transform
from studies.autofold.development import PLANS, development_suites, split
from studies.autofold.networks import NETWORKS, trained


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """All files that the suites name, with few images: class k is bright in row k."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    names = {plan.known for plan in PLANS.values()} | {plan.train for plan in PLANS.values() if plan.train}
    names |= {file for plan in PLANS.values() for file in plan.far.values()}
    for name in names:
        shape = (100, 28, 28) if name in ("mnist_test.npz", "letters.npz") else (100, 32, 32, 3)
        y = np.arange(100) % 10
        x = rng.integers(0, 60, shape).astype(np.uint8)
        x[np.arange(100), 2 * y + 3] += 150
        np.savez(folder / name, x=x, y=y)
    return folder


def suites(files, out, names):
    return list(development_suites(files, files / "letters.npz", out, names, steps=3))


def test_every_suite_has_both_networks_and_its_own_unknown_images(files, tmp_path):
    made = suites(files, tmp_path, ["mnist6", "svhn10"])
    assert [suite.network for suite in made] == [*NETWORKS, *NETWORKS]
    sets = {suite.name: [ood.name for ood in suite.ood] for suite in made}
    assert sets["mnist6"] == ["other-classes", "svhn", "textures", "letters"]
    assert sets["svhn10"] == ["cifar", "textures", "mnist"]


def test_known_images_are_of_known_classes_and_splits_are_apart(files, tmp_path):
    suite = suites(files, tmp_path, ["cifar6"])[0]
    for source in (suite.val, suite.test):
        assert set(source.labels.tolist()) == set(range(6))
    assert (suite.val.rows, suite.test.rows) == (6, 54)
    assert suite.ood[0].images.rows == 40  # of the four other classes
    assert suite.model(next(iter(suite.val))[0]).shape == (6, 6)  # nor was it trained on them


def test_every_image_has_the_size_that_the_network_takes(files, tmp_path):
    suite = suites(files, tmp_path, ["mnist10"])[0]
    for source in (suite.val, *(ood.images for ood in suite.ood)):
        batch = next(iter(source))
        assert (batch if isinstance(batch, torch.Tensor) else batch[0]).shape[1:] == (1, 28, 28)


def test_split_takes_the_same_share_of_every_class_and_no_row_twice():
    labels = np.repeat([0, 1, 2, 3], [10, 20, 30, 40])
    parts = split(labels, 3, (0.5, 0.2, 0.3))
    assert [np.bincount(labels[rows]).tolist() for rows in parts] == [[5, 10, 15], [2, 4, 6], [3, 6, 9]]
    assert sorted(np.concatenate(parts)) == list(range(60))


@pytest.mark.parametrize("architecture", NETWORKS)
@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32)])
def test_networks_take_both_kinds_of_images(architecture, channels, side):
    logits = NETWORKS[architecture](channels, 7)(torch.zeros(2, channels, side, side))
    assert logits.shape == (2, 7)


def pixels(seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(40) % 2
    x = (rng.integers(0, 100, (40, 28, 28)) + 100 * y[:, None, None]).astype(np.uint8)
    return ArrayImages(x, y, Transform(mode="L", mean=(0.5,), std=(0.25,)), batch_size=40)


@pytest.mark.parametrize("architecture", NETWORKS)
def test_a_network_learns_what_it_is_shown(architecture, tmp_path):
    network = trained(architecture, pixels(), tmp_path / "net.safetensors", steps=40)
    x, y = next(iter(pixels(1)))
    assert not network.training
    assert (network(x).argmax(dim=1) == y).double().mean() > 0.9


def test_a_network_is_read_again_if_it_is_the_same_and_trained_again_if_not(tmp_path):
    path = tmp_path / "net.safetensors"

    def weights(seed=0, steps=2):
        state = trained("plain", pixels(), path, steps, seed).state_dict()
        return torch.cat([value.flatten() for value in state.values()]), path.stat().st_mtime_ns

    first, written = weights()
    again, read = weights()
    assert torch.equal(first, again)
    assert read == written
    other, rewritten = weights(seed=1)
    assert not torch.equal(first, other)
    assert rewritten > written
    back, _ = weights()
    assert torch.equal(first, back)


def test_a_damaged_network_is_trained_again(tmp_path):
    path = tmp_path / "net.safetensors"
    first = trained("plain", pixels(), path, 2).state_dict()
    path.write_bytes(b"no such thing")
    again = trained("plain", pixels(), path, 2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_training_leaves_the_random_numbers_of_others_alone(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    trained("plain", pixels(), tmp_path / "net.safetensors", 2)
    assert torch.equal(torch.rand(1), expected)
