"""`data.masks`: PNG files of class indices beside images, and guards that are fitted on them."""

from contextlib import chdir

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from flatfold import Guard, Loading, Transform, UnreadableImageError, as_batches
from flatfold.data import FolderImages, ListImages, MaskedImages
from flatfold.data.sources import read_batches, take_subset
from tests.refusals import refused
from tests.scoring.test_dense import network
from tests.small_scenes import write_scenes

PLAIN = Transform(mode="L")


def write(folder, name, values, mode=None):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(values))
    (image if mode is None else image.convert(mode)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Images whose grey values are ten times the classes of their masks, in several kinds of files."""
    classes = np.random.default_rng(0).integers(0, 4, (4, 6, 9), dtype=np.uint8)
    names = ("a/1", "a/2", "b/1", "b/2")
    for name, values in zip(names, classes, strict=True):
        write(tmp_path, f"images/{name}.png", 10 * values)
    write(tmp_path, "masks/a/1.png", classes[0])
    write(tmp_path, "masks/a/2.png", classes[1].astype(np.uint16))
    palette = Image.new("P", (9, 6))
    palette.putdata(classes[2].ravel().tolist())
    palette.putpalette([90, 0, 0, 0, 90, 0, 0, 0, 90, 90, 90, 90])
    (tmp_path / "masks/b").mkdir()
    palette.save(tmp_path / "masks/b/1.png", bits=2)
    write(tmp_path, "masks/b/2.png", classes[3])
    return tmp_path


def test_masks_of_all_kinds_have_the_class_of_every_pixel(folder):
    batches = as_batches(folder / "images", 3, transform=PLAIN, masks=folder / "masks")
    assert isinstance(batches, MaskedImages)
    for x, y in batches:
        assert y.dtype == torch.int64
        assert_close(255 * x[:, 0], 10.0 * y)
    assert "4 inputs, masks" in repr(batches)
    few = take_subset(batches, 2)
    for _, batch, _ in read_batches(few):
        assert_close(255 * batch.args[0][:, 0], 10.0 * batch.labels)
    assert len({each.fingerprint for each in (batches, few, batches.source)}) == 3
    write(folder, "masks/b/2.png", np.zeros((6, 9), np.uint8))
    assert as_batches(folder / "images", transform=PLAIN, masks=folder / "masks").fingerprint != batches.fingerprint


def test_masks_are_resized_and_cropped_like_their_images(tmp_path):
    classes = np.zeros((40, 64), np.uint8)
    classes[8:24, 16:48] = 7
    write(tmp_path, "images/1.png", 30 * classes)
    write(tmp_path, "masks/1.png", classes)
    for settings in ({"resize": 20}, {"resize": 20, "crop": 14}, {"resize": 12, "squash": True}, {"crop": 33}):
        loading = Loading(Transform(mode="L", **settings), masks=str(tmp_path / "masks"))
        ((x, y),) = loading.batches(tmp_path / "images")
        assert y.shape == x[:, 0].shape
        assert set(y.unique().tolist()) == {0, 7}
        inside = (255 * x[:, 0] - 210).abs() < 1  # bilinear values are between only at the edge
        outside = x[:, 0] < 1 / 255
        assert (inside | outside).double().mean() > 0.7
        assert (y[inside] == 7).all()
        assert (y[outside] == 0).all()


def test_lists_and_paths_have_masks(folder):
    (folder / "list.txt").write_text("b/1.png 0\na/2.png 1\n")
    listed = MaskedImages(ListImages(folder / "list.txt", folder / "images", PLAIN), folder / "masks")
    ((x, y),) = listed
    assert_close(255 * x[:, 0], 10.0 * y)
    paths = [folder / "images/b/1.png", folder / "images/b/2.png"]
    ((again, _),) = as_batches(paths, transform=PLAIN, masks=folder / "masks/b")
    assert_close(again[:1], x[:1])
    ((one, mask),) = as_batches(str(paths[0]), transform=PLAIN, masks=folder / "masks/b")
    assert_close(255 * one[:, 0], 10.0 * mask)
    assert isinstance(
        next(iter(as_batches(folder / "images", transform=PLAIN, labels=False, masks="none"))), torch.Tensor
    )


def test_bad_masks_are_refused_with_a_sentence(folder):
    images, masks = folder / "images", folder / "masks"

    def read(data=images, place=masks, transform=PLAIN):
        return list(as_batches(data, 4, transform=transform, masks=place))

    for words, values, error in (
        ("size of its image, 9 x 6, got 8 x 6", np.zeros((6, 8), np.uint8), UnreadableImageError),
        ("class indices.*is RGB", np.zeros((6, 9, 3), np.uint8), UnreadableImageError),
        ("class indices.*is RGBA", np.zeros((6, 9, 4), np.uint8), UnreadableImageError),
    ):
        write(folder, "masks/b/2.png", values)
        with refused(words, words, error):
            read()
    Image.new("L", (9, 6)).save(masks / "b/2.png", "JPEG")
    with refused("JPEG", "is no PNG file", UnreadableImageError):
        read()
    (masks / "b/2.png").unlink()
    with refused(
        "missing", r"an image has no mask: there is no .*masks/b/2.png for .*images/b/2.png", FileNotFoundError
    ):
        read()
    (masks / "a/1.png").unlink()
    with refused("missing", "2 of 4 images have no mask", FileNotFoundError):
        read()
    for words, error, arguments in (
        ("does not exist", NotADirectoryError, {"place": folder / "nothing"}),
        ("a folder of their own", ValueError, {"place": images}),
        ("reduced size", ValueError, {"transform": Transform(resize=4, draft=True)}),
        ("holds no image", ValueError, {"data": make(folder / "empty")}),
        ("images in files.*ArrayImages", TypeError, {"data": np.zeros((3, 6, 9), np.uint8)}),
        ("images in files.*ArrayRows", TypeError, {"data": torch.zeros(3, 1, 6, 9)}),
        ("same mask, 1.png", ValueError, {"data": [images / "a/1.png", images / "b/1.png"]}),
    ):
        with refused(words, words, error):
            read(**arguments)
    (folder / "list.txt").write_text(f"{images}/a/2.png\n")
    with refused("absolute", "must be relative"):
        read(folder / "list.txt")
    with refused("masks in memory", "must be the folder of the masks", TypeError):
        Loading(masks=torch.zeros(3, 6, 9))


def make(folder):
    folder.mkdir()
    return folder


def test_a_guard_is_fitted_on_images_and_masks_in_files(tmp_path):
    transform = write_scenes(tmp_path, 44)
    with chdir(tmp_path):
        guard = Guard.fit(network(), "images", method="mds", fpr=0.1, loading=Loading(transform, masks="masks"))
        data = [(x, y) for x, y in as_batches("images", transform=transform, masks="masks")]
        same = Guard.fit(network(), data, method="mds", fpr=0.1)
        assert guard.fit_result.accuracy == same.fit_result.accuracy > 0.5
        assert torch.equal(guard.calibration.scores, same.calibration.scores)
        assert guard.transform == transform
        assert guard("images").is_ood.shape == (44, 12, 16)  # new images need no masks
        images = FolderImages("images", transform, 8)
        source = MaskedImages(images, "masks")
        by_source = Guard.fit(network(), take_subset(source, 40), method="mds", fpr=0.1)
        assert (by_source.fit_result.samples, by_source.transform) == (40, transform)
        write_scenes(tmp_path / "more", 25, seed=2)
        others = as_batches("more/images", transform=transform, masks="more/masks")
        loading = Loading(transform, masks="masks")
        separate = Guard.fit(network(), "images", method="mds", fpr=0.1, calibration=others, loading=loading)
        assert (separate.fit_result.samples, separate.calibration.samples) == (44, 25)


def test_unreadable_masks_are_left_out_up_to_a_share(tmp_path, caplog):
    transform = write_scenes(tmp_path, 44)
    write(tmp_path, "masks/0043.png", np.zeros((12, 16, 3), np.uint8))
    loading = Loading(transform, masks=tmp_path / "masks", max_unreadable=0.1)
    guard = Guard.fit(network(), tmp_path / "images", method="mds", fpr=0.1, loading=loading)
    assert guard.fit_result.samples == 43
    assert "1 of 44 images could not be read" in caplog.text
    with refused("none may be left out", "is RGB", UnreadableImageError):
        Guard.fit(network(), tmp_path / "images", fpr=0.1, loading=Loading(transform, masks=tmp_path / "masks"))


def test_labels_out_of_range_and_of_one_class_are_refused(tmp_path):
    transform = write_scenes(tmp_path, 44)
    loading = Loading(transform, masks=tmp_path / "masks")
    for value, words in (
        (9, "from 0 to 3 or ignored.*got 9"),
        (255, "all of them are 255"),
        (2, "several classes.*class 2"),
    ):
        for row in range(44):
            write(tmp_path, f"masks/{row:04d}.png", np.full((12, 16), value, np.uint8))
        with refused(words, words):
            Guard.fit(network(), tmp_path / "images", method="mds", fpr=0.1, loading=loading)
