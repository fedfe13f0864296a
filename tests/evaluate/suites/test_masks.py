"""Suite files with masks: the layouts of public benchmarks on made trees, and what is said of wrong files."""

import numpy as np
import pytest
from PIL import Image

from flatfold.evaluate.banks import Settings
from flatfold.evaluate.runner import run
from flatfold.evaluate.suites.doctor import examine
from flatfold.evaluate.suites.library import open_suite_file
from tests.small_scenes import STD

NETWORK = """
like = "{like}"

[transform]
mean = [0.5, 0.5, 0.5]
std = [{std}, {std}, {std}]

[[network]]
name = "fcn"
factory = "tests.small_scenes:network"
"""
CITY = ("{}_leftImg8bit.png", "{}_gtFine_labelTrainIds.png")


def write(image, mask, rng, first=0, anomaly=None):
    """Write an image, and a mask of its three regions with an ignored row; an object has the value ``anomaly``."""
    pixels = rng.integers(60, 190, (12, 16, 3), dtype=np.uint8)
    values = np.full((12, 16), 0 if anomaly == 1 else first, np.uint8)
    if anomaly != 1:
        values[:, 8:], values[6:, :4] = first + 1, first + 2
    values[0] = 255
    if anomaly is not None:
        values[4:8, 4:9], pixels[4:8, 4:9] = anomaly, (255, 0, 255)
    for path, array in ((image, pixels), (mask, values)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(path)


def city(folder, rng):
    """Make Cityscapes: many images in the folders of two cities, and other files beside the masks."""
    for split, city, count in (("train", "aachen", 6), ("val", "lindau", 253)):
        for number in range(count):
            name = f"{city}_{number:06d}_000019"
            image = folder / "leftImg8bit" / split / city / CITY[0].format(name)
            write(image, folder / "gtFine" / split / city / CITY[1].format(name), rng)
    Image.new("RGB", (16, 12)).save(folder / "gtFine" / "train" / "aachen" / "aachen_000000_000019_gtFine_color.png")


def streethazards(folder, rng):
    for part, names, count, anomaly in (
        ("train", ("training", "t1-3"), 6, None),
        ("train", ("validation", "t5"), 503, None),
        ("test", ("test", "t6"), 5, 14),
    ):
        for number in range(count):
            place = "/".join(names)
            images, masks = (folder / part / kind / place for kind in ("images", "annotations"))
            write(images / f"{number}.png", masks / f"{number}.png", rng, 1, anomaly)
    return {"STREETHAZARDS": folder}, {"streethazards": (5, 5 * 20)}


def fishyscapes(folder, rng):
    city(folder / "city", rng)
    for number in range(7):
        name = f"04_Maurener_Weg_8_000000_{number:06d}"
        image = folder / "laf" / "leftImg8bit" / "test" / "04_Maurener_Weg_8" / f"{name}_leftImg8bit.png"
        mask = folder / "fs" / f"{number:04d}_{name}_labels.png" if number < 4 else None
        write(image, mask, rng, anomaly=1)
    variables = {"CITYSCAPES": "city", "LOSTANDFOUND": "laf", "FISHYSCAPES": "fs"}
    return {key: folder / name for key, name in variables.items()}, {"lost-and-found": (4, 4 * 20)}


def segmentmeifyoucan(folder, rng):
    city(folder / "city", rng)
    for track, kind, ending in (("Anomaly", "validation", "jpg"), ("Obstacle", "validation_", "webp")):
        place = folder / f"dataset_{track}Track"
        for number in range(5):
            mask = place / "labels_masks" / f"{kind}{number}_labels_semantic.png" if number < 3 else None
            write(place / "images" / f"{kind}{number}.{ending}", mask, rng, anomaly=1)
    found = {"roadanomaly21": (3, 3 * 20), "roadobstacle21": (3, 3 * 20)}
    return {"CITYSCAPES": folder / "city", "SEGMENTMEIFYOUCAN": folder}, found


def suite_file(folder, like):
    path = folder / "mine.toml"
    path.write_text(NETWORK.format(like=like, std=1 / STD))
    return path


@pytest.mark.parametrize(
    "make",
    [
        streethazards,
        pytest.param(fishyscapes, marks=pytest.mark.slow),
        pytest.param(segmentmeifyoucan, marks=pytest.mark.slow),
    ],
    ids=lambda make: make.__name__,
)
def test_a_layout_finds_every_image_with_its_mask_and_counts_its_pixels(make, tmp_path, monkeypatch):
    variables, wanted = make(tmp_path, np.random.default_rng(0))
    for name, place in variables.items():
        monkeypatch.setenv(name, str(place))
    file = open_suite_file(str(suite_file(tmp_path, make.__name__)))
    (suite,) = file.suites()
    assert suite.train.rows == 6
    assert suite.test.rows == 3
    (_, masks) = suite.train.read(range(1))
    assert sorted(set(masks.flatten().tolist())) == [-100, 0, 1, 2]  # classes of the network
    results = run(suite, ["msp", "mds"], tmp_path / "out", Settings(replicates=20))
    assert {row.dataset: (int(row.n_ood)) for row in results.rows} == {name: ood for name, (_, ood) in wanted.items()}
    for row in results.rows:
        images = wanted[row.dataset][0]
        assert row.n_id == images * (11 * 16 - 20)  # the first row is ignored
    assert results.suite["n_test"] == 3
    *_, network = examine(open_suite_file(str(tmp_path / "mine.toml"), any_counts=True), out=tmp_path / "out")
    assert (network.what, network.state) == ("network fcn", "note"), network
    assert "positions of test images are classified correctly" in network.sentence


def test_unset_folders_and_wrong_keys_are_explained(tmp_path, monkeypatch):
    monkeypatch.delenv("STREETHAZARDS", raising=False)
    path = suite_file(tmp_path, "streethazards")
    findings = examine(open_suite_file(str(path)), accuracy=False)
    missing = [it for it in findings if it.state == "missing"]
    assert len(missing) == 4
    assert all("Hendrycks" in it.sentence for it in missing)
    path.write_text(path.read_text() + '[val]\nfolder = "v"\nmasks = "m"\nmask = "labels.png"\n')
    with pytest.raises(ValueError, match=r"one \{\}"):
        open_suite_file(str(path))


def test_an_image_without_a_mask_is_an_error(tmp_path, monkeypatch):
    variables, _ = streethazards(tmp_path, np.random.default_rng(0))
    for name, place in variables.items():
        monkeypatch.setenv(name, str(place))
    masks = tmp_path / "test" / "annotations" / "test" / "t6"
    path = suite_file(tmp_path, "streethazards")
    (masks / "0.png").unlink()
    with pytest.raises(FileNotFoundError, match="no mask"):
        open_suite_file(str(path)).suites()
