"""Images that cannot be read: left out, counted and named up to a share, and beyond it the end of the pass."""

import json
import logging

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.core.errors import UnreadableImage
from flatfold.models.gaps import check_share
from flatfold.models.images import FolderImages, read_image
from flatfold.models.lists import ListImages
from flatfold.models.manifest import read_manifest
from flatfold.models.rows import first_inputs, labelled_batches, score_rows

PLAIN = ff.Transform()


class Net(nn.Sequential):
    """A small network that counts the images it sees."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
        self.seen = 0
        self.register_forward_pre_hook(lambda module, args: setattr(self, "seen", self.seen + len(args[0])))


def make_folder(root, n=20, broken=()):
    """Write one image per row in two class folders; those in ``broken`` are cut short."""
    rng = np.random.default_rng(0)
    for row in range(n):
        path = root / ("a" if row < n // 2 else "b") / f"{row:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)).save(path)
        if row in broken:
            path.write_bytes(path.read_bytes()[:40])
    return root


def features(root, **settings):
    return ff.extract(Net(), FolderImages(root, PLAIN, batch_size=4), **settings)[0]


@pytest.fixture
def whole(tmp_path):
    return features(make_folder(tmp_path / "whole"))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize("broken", [(3,), (0, 1, 2, 3), (4, 5, 6, 7, 9), (19,), (0, 10)])
def test_what_cannot_be_read_has_no_row_and_the_others_keep_their_features_and_labels(
    broken, on_disk, workers, whole, tmp_path
):
    root = make_folder(tmp_path / "images", broken=broken)
    bank = features(root, unreadable=0.25, workers=workers, shard_rows=6, out=tmp_path / "bank" if on_disk else None)
    kept = [row for row in range(20) if row not in broken]
    torch.testing.assert_close(bank.features, whole.features[kept])
    assert bank.labels.tolist() == whole.labels[kept].tolist()


def test_the_manifest_names_every_one_of_them(tmp_path):
    root = make_folder(tmp_path / "images", broken=(3, 12))
    features(root, unreadable=0.25, out=tmp_path / "bank", shard_rows=6)
    reasons = read_manifest(tmp_path / "bank").unreadable
    assert list(reasons) == [3, 12]
    assert "012.png could not be read as an image" in reasons[12]
    assert len(ff.load_bank(tmp_path / "bank")) == 18


def test_a_finished_bank_with_gaps_is_not_computed_again(tmp_path):
    root = make_folder(tmp_path / "images", broken=(3, 12))
    first = features(root, unreadable=0.25, out=tmp_path / "bank")
    model = Net()
    again, _ = ff.extract(model, FolderImages(root, PLAIN, batch_size=4), unreadable=0.25, out=tmp_path / "bank")
    assert torch.equal(first.features, again.features)
    assert model.seen == 2  # to find the head


def test_a_broken_image_ends_the_pass_unless_some_are_allowed(tmp_path):
    root = make_folder(tmp_path / "images", broken=(7,))
    with pytest.raises(UnreadableImage, match=r"007\.png could not be read as an image"):
        features(root)
    with pytest.raises(UnreadableImage, match=r"007\.png could not be read as an image"):
        features(root, workers=2)


def test_more_than_the_share_end_the_pass_with_their_number_and_some_names(tmp_path):
    root = make_folder(tmp_path / "images", broken=(1, 7, 8))
    message = r"3 of 20 images could not be read, more than the 10 % .* \(1\) .*001\.png .* \(2\) .*007\.png"
    with pytest.raises(UnreadableImage, match=message):
        features(root, unreadable=0.1)


def test_a_bank_that_was_made_with_more_patience_is_not_accepted_with_less(tmp_path):
    root = make_folder(tmp_path / "images", broken=(1, 7, 8))
    features(root, unreadable=0.2, out=tmp_path / "bank")
    with pytest.raises(UnreadableImage, match="3 of 20 images"):
        features(root, unreadable=0.1, out=tmp_path / "bank")


def test_exactly_the_share_is_allowed():
    check_share({0: "a", 1: "b"}, 20, 0.1)
    with pytest.raises(UnreadableImage):
        check_share({0: "a", 1: "b", 2: "c"}, 20, 0.1)


def test_a_folder_without_one_good_image_is_told(tmp_path):
    root = make_folder(tmp_path / "images", n=4, broken=range(4))
    with pytest.raises(UnreadableImage, match=r"not a single image could be read\. The first: .*000\.png"):
        features(root, unreadable=1.0)


def test_it_is_logged_how_many_are_left_out(tmp_path, caplog):
    root = make_folder(tmp_path / "images", broken=(7,))
    with caplog.at_level(logging.WARNING):
        features(root, unreadable=0.1)
    assert "1 of 20 images could not be read and are left out" in caplog.text


def test_three_of_them_are_named_in_the_log_each_once(tmp_path, caplog):
    root = make_folder(tmp_path / "images", broken=(2, 7, 9, 11))
    (root / "a" / "002.png").write_bytes(b"no image")
    names = [f"a/{row:03d}.png" for row in (0, 2, 2, 7, 9)] + ["b/none.png", "b/011.png"]
    (tmp_path / "list.txt").write_text("".join(f"{name} 0\n" for name in names))
    source = ListImages(tmp_path / "list.txt", root, PLAIN)
    with caplog.at_level(logging.WARNING):
        ff.extract(Net(), source, unreadable=1.0)
    assert "6 of 7 images could not be read and are left out. (1) " in caplog.text
    for name, count in [("002.png", 1), ("007.png", 1), ("009.png", 1), ("none.png", 0), ("011.png", 0)]:
        assert caplog.text.count(name) == count


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"hello", "it has the form of no known kind of image"), (None, "No such file or directory")],
    ids=["no image", "no file"],
)
def test_a_reason_does_not_repeat_the_name_of_the_file(content, reason, tmp_path):
    path = tmp_path / "x.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableImage) as caught:
        read_image(path)
    assert str(caught.value) == (
        f"{path} could not be read as an image: {reason}. Open it in a viewer; replace or remove the file."
    )


def test_scores_of_images_leave_the_same_ones_out(tmp_path):
    root = make_folder(tmp_path / "images", broken=(0, 1, 2, 3, 9))
    source = FolderImages(root, PLAIN, batch_size=4)
    scores = score_rows(lambda x: x.sum((1, 2, 3)), Net(), source, tmp_path / "scores", {})
    whole = FolderImages(make_folder(tmp_path / "whole"), PLAIN, batch_size=20)
    expected = whole.read(range(20))[0].sum((1, 2, 3))[[row for row in range(20) if row not in (0, 1, 2, 3, 9)]]
    torch.testing.assert_close(scores, expected)


def test_methods_that_learn_from_images_get_the_good_ones(tmp_path):
    root = make_folder(tmp_path / "images", broken=(0, 1, 2, 3, 9))
    source = FolderImages(root, PLAIN, batch_size=4)
    batches = list(labelled_batches(source, "cpu", "fitting"))
    assert torch.cat([y for _, y in batches]).tolist() == [0] * 5 + [1] * 10
    assert len(first_inputs(source)) == 4


@pytest.mark.parametrize("workers", [-1, 1.5, True])
def test_a_number_of_processes_that_is_none_is_refused(workers, tmp_path):
    root = make_folder(tmp_path / "images", n=2)
    with pytest.raises(ValueError, match="workers must be 0 or the number of processes"):
        features(root, workers=workers)


def test_workers_are_for_sources():
    with pytest.raises(ValueError, match="workers=2 needs a source such as FolderImages, not list"):
        ff.extract(Net(), [torch.zeros(1, 3, 2, 2)], workers=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_that_all_images_would_meet_keeps_its_sentence_in_a_worker(workers, tmp_path):
    root = make_folder(tmp_path / "images")
    source = FolderImages(root, ff.Transform(crop=50), batch_size=4)
    with pytest.raises(ValueError, match=r"^[^\n]*000\.png: a crop of 50 needs an image at least that large[^\n]*$"):
        ff.extract(Net(), source, workers=workers, unreadable=0.5)


@pytest.mark.parametrize(
    ("unreadable", "message"),
    [([], "wrong kind"), ({"0": 5}, "wrong kind"), ({"x": "y"}, "invalid literal"), ({"77": "y"}, "does not fit")],
)
def test_a_manifest_with_other_reasons_is_refused(unreadable, message, tmp_path):
    root = make_folder(tmp_path / "images", broken=(3,))
    features(root, unreadable=0.25, out=tmp_path / "bank")
    path = tmp_path / "bank" / "manifest.json"
    content = json.loads(path.read_text())
    content["shards"][0]["unreadable"] = unreadable
    path.write_text(json.dumps(content))
    with pytest.raises(ff.DamagedBank, match=message):
        ff.load_bank(tmp_path / "bank")
