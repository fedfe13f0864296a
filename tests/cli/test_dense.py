"""``flatfold fit --masks`` and ``flatfold score --masks``: what the library computes, as tables and pictures."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from flatfold import Guard, Transform
from flatfold.data import FolderImages
from tests.cli.running import assert_mistakes, succeed
from tests.command import flatfold
from tests.small_scenes import N, network, write_scenes

MODEL = ("--model", "tests.small_scenes:network")
PREPARED = ("--mean", "0.5,0.5,0.5", "--std", ",".join(3 * [str(1 / 6)]))
GUARD = ("--guard", "guard.safetensors", *MODEL)
FITTED = ("--method", "mds", "--fpr", 0.1, "--out", "guard.safetensors")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with images and masks, a guard that was fitted on them, and new images of which three are unusual."""
    folder = tmp_path_factory.mktemp("dense")
    transform = write_scenes(folder, N)
    write_scenes(folder / "new", 12, seed=2, unusual=(1, 4, 7))
    done = succeed("fit", "images", "--masks", "masks", *MODEL, *PREPARED, *FITTED, cwd=folder)
    assert "of the positions of an ID image raise an alarm" in done.stdout
    return folder, transform, done


@pytest.fixture
def here(files, monkeypatch):
    monkeypatch.chdir(files[0])
    return files[0]


def rows_of(path):
    with Path(path).open(newline="") as file:
        return [*csv.DictReader(file)]


def masks_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*.png"))}


def test_the_guard_is_that_of_the_library(here, files):
    loaded = Guard.load("guard.safetensors", network())
    assert loaded.transform == files[1]
    source = FolderImages("images", files[1], labels=False)
    from flatfold.data import MaskedImages

    same = Guard.fit(network(), MaskedImages(source, "masks"), method="mds", fpr=0.1)
    assert torch.equal(same.calibration.scores, loaded.calibration.scores)
    assert f"{N} of images; accuracy of the model" in files[2].stdout


def test_masks_and_a_table_hold_the_verdicts_of_the_library(here):
    done = succeed("score", "new/images", *GUARD, "--masks", "alarms", "--out", "scores.csv")
    verdict = Guard.load("guard.safetensors", network())("new/images")
    assert verdict.is_ood.any()
    rows = rows_of("scores.csv")
    assert [*rows[0]] == ["path", "share_ood", "image_score", "image_p_value", "image_is_ood"]
    for row, each in enumerate(rows):
        assert each["path"] == f"new/images/{row:04d}.png"
        with Image.open(f"alarms/{row:04d}.png") as picture:
            assert picture.mode == "L"
            mask = np.asarray(picture)
        assert np.array_equal(mask, 255 * verdict.is_ood[row].numpy())
        assert float(each["share_ood"]) == pytest.approx((mask == 255).mean())
        for name, value in verdict.columns().items():
            assert float(each[name].replace("true", "1").replace("false", "0")) == pytest.approx(float(value[row]))
    assert "12 images, " in done.stderr
    assert "runtime: torch; 1 thread" in done.stderr
    assert f"Alarms at {100 * float(verdict.is_ood.double().mean()):.3g} % of the positions" in done.stderr


def test_shards_resume_and_have_the_same_bytes(here):
    common = ("score", "new/images", *GUARD, "--batch-size", 3)
    succeed(*common, "--masks", "whole", "--out", "whole.csv")
    for number in (1, 2):
        succeed(*common, "--masks", "parts", "--shard", f"{number}/2", "--out", f"part-{number}.csv")
    succeed("join", "part-2.csv", "part-1.csv", "--out", "joined.csv")
    assert Path("joined.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert masks_of("parts") == masks_of("whole")
    assert "nothing to do" in succeed(*common, "--masks", "whole", "--out", "whole.csv").stderr
    Path("whole/0003.png").unlink()
    again = succeed(*common, "--masks", "whole", "--out", "whole.csv")
    assert "12 images" in again.stderr
    assert "nothing to do" not in again.stderr
    assert masks_of("parts") == masks_of("whole")


def test_an_interrupted_run_leaves_no_half_of_a_mask_and_resumes(here, monkeypatch):
    common = ("score", "new/images", *GUARD, "--batch-size", 3, "--masks", "again", "--out", "again.csv")
    from flatfold.scoring import mask_files

    write = mask_files.write_together

    def killed(folder, contents):
        if "again" in str(folder) and Path("again").exists():
            raise KeyboardInterrupt
        write(folder, contents)

    monkeypatch.setattr(mask_files, "write_together", killed)
    assert flatfold(*common).returncode == 130
    assert len(masks_of("again")) == 3
    assert not Path("again.csv").exists()
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert "all images were already scored" in succeed(*common).stderr
    succeed("score", "new/images", *GUARD, "--batch-size", 3, "--masks", "fresh", "--out", "fresh.csv")
    assert masks_of("again") == masks_of("fresh")
    assert Path("again.csv").read_bytes() == Path("fresh.csv").read_bytes()


def test_masks_have_the_size_of_the_image_unless_it_is_cropped(here):
    """With a crop they have the size of the logits."""
    Path("large").mkdir(exist_ok=True)
    for row in range(3):
        Image.open(f"new/images/{row:04d}.png").resize((40, 30)).save(f"large/{row}.png")
    sizes = {"--resize": ((40, 30), Transform(resize=12)), "--crop": ((16, 16), Transform(crop=16))}
    for option, (size, _) in sizes.items():
        number = 12 if option == "--resize" else 16
        images = "images" if option == "--resize" else "square"
        if option == "--crop":
            Path("square").mkdir(exist_ok=True)
            for path in Path("images").glob("*.png"):
                Image.open(path).resize((20, 20)).save(f"square/{path.name}")
        out = f"guard{option}.safetensors"
        options = (option, number, "--method", "msp", "--no-labels", "--fpr", 0.1, "--out", out)
        succeed("fit", images, *MODEL, *PREPARED, *options)
        done = succeed(
            *("score", "large", "--guard", out, *MODEL, "--allow-sizes"),
            *("--masks", f"alarms{option}", "--out", f"scores{option}.csv"),
        )
        assert "3 images" in done.stderr
        verdict = Guard.load(out, network())("large")
        for row in range(3):
            mask = np.asarray(Image.open(f"alarms{option}/{row}.png"))
            assert mask.shape[::-1] == size
            wanted = interpolate(verdict.is_ood[row][None, None].double(), size[::-1], mode="nearest")[0, 0]
            assert np.array_equal(mask, 255 * wanted.numpy())


def test_images_without_a_verdict_have_no_mask(here):
    Path("broken").mkdir(exist_ok=True)
    for row in range(3):
        Image.open(f"new/images/{row:04d}.png").save(f"broken/{row}.png")
    Path("broken/1.png").write_bytes(b"no image")
    done = flatfold("score", "broken", *GUARD, "--masks", "few", "--out", "few.csv")
    assert done.returncode == 3, done.stderr
    assert [*masks_of("few")] == ["0.png", "2.png"]
    assert [row["path"] for row in rows_of("few.csv")] == ["broken/0.png", "broken/2.png"]


def test_mistakes_are_refused_with_a_sentence(here):
    Path("double").mkdir(exist_ok=True)
    for suffix in ("png", "bmp"):
        Image.open("new/images/0000.png").save(f"double/1.{suffix}")
    score = ("score", "new/images", *GUARD, "--out", "table.csv")
    cases = [
        (("--masks", "guard.safetensors"), 2, "is a file. Choose a folder"),
        (("--masks", "new/images"), 1, "must not be among the images"),
        (("--masks", "new/images/alarms"), 1, "must not be among the images"),
    ]
    assert_mistakes(score, cases, here)
    same = [(("--masks", "alarms-2"), 1, "would have the same mask")]
    assert_mistakes(("score", "double", *GUARD, "--out", "table.csv"), same, here)
    fit = ("fit", "images", *MODEL, *PREPARED, "--method", "mds", "--fpr", 0.1, "--out", "other.safetensors")
    few = ("--masks", "new/masks")
    cases = [
        (few, 1, f"{N - 12} of {N} images have no mask"),
        (("--masks", "nothing"), 1, "must be a folder, but nothing does not exist"),
        (("--masks", "masks", "--per-class"), 1, "takes no per_class="),
        (("--masks", "masks", "--calibration", "new/images"), 2, "needs masks too"),
        (("--calibration-masks", "masks"), 2, "belongs to --calibration"),
        ((), 1, "pass --masks for a segmentation network"),
    ]
    assert_mistakes(fit, cases, here)


def test_classes_that_do_not_count_and_other_images_to_calibrate_on(here):
    options = ("--masks", "masks", "--ignore-index", 1, "--ignore-index", 2, "--method", "msp", "--fpr", 0.3)
    others = ("--calibration", "new/images", "--calibration-masks", "new/masks")
    done = succeed("fit", "images", *MODEL, *PREPARED, *options, *others, "--out", "ignored.safetensors")
    assert "calibration  12 images" in done.stdout
