"""``flatfold fit``: the file is the guard that the library fits on the same images."""

import errno
import json
import os
import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import flatfold as ff
from flatfold.cli.options import TransformOptions
from flatfold.data.images import ArrayImages
from flatfold.scoring.calibrated import CalibratedDetector
from tests.cli.images import MODEL, PREPARED, TRANSFORM, network, pixels, write_folder, write_network, write_parquet
from tests.cli.running import assert_mistakes, succeed, words
from tests.command import flatfold

OUT = ("--out", "new.safetensors")
FIT = ("fit", "val", *MODEL, *PREPARED, *OUT)
pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


@pytest.fixture
def val(tmp_path, monkeypatch):
    """The current folder: a network, its weights, and images of its classes in folders."""
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path)
    write_folder(tmp_path / "val", *pixels(120))
    return tmp_path


def in_class_order(x, y):
    """Return images as their class folders give them."""
    order = np.argsort(y, kind="stable")
    return x[order], y[order]


def assert_file(method="fourfold", fpr=0.05, images=None, batch_size=64, **settings):
    """The file holds the guard that the library makes of the same images, to the last digit; return that guard."""
    images = in_class_order(*pixels(120)) if images is None else images
    guard = ff.Guard.fit(network(), ArrayImages(*images, TRANSFORM, batch_size), method=method, fpr=fpr, **settings)
    loaded = ff.Guard.load("new.safetensors", network())
    assert loaded.transform == guard.transform == TRANSFORM
    assert loaded.fpr == guard.fpr
    assert torch.equal(loaded.calibration.scores, guard.calibration.scores)
    assert torch.equal(loaded.calibration.threshold, guard.calibration.threshold)
    x = torch.stack([TRANSFORM(image) for image in pixels(30, seed=9, known=False)[0]])
    assert torch.equal(loaded(x).score, guard(x).score)
    return guard


def test_the_default_is_fourfold_at_5_percent_as_in_the_library(val):
    done = succeed(*FIT)
    assert f"{float(assert_file().calibration.threshold):.4g}" in done.stdout
    assert ff.Guard.fit(network(), ArrayImages(*pixels(120), TRANSFORM)).detector.made_by[0] == "fourfold"
    done = succeed(*FIT, "--method", "autofold")
    guard = assert_file("autofold")
    alpha, threshold = float(guard.detector.alpha_), float(guard.calibration.threshold)
    for part in ("120 of val; accuracy of the model 100.0 %", f"alpha = {alpha:g}", "60 images", f"{threshold:.4g}"):
        assert part in done.stdout


def test_options_reach_the_guard(val):
    done = succeed(*FIT, "--method", "knn:k=3", "--fpr", 0.2, "--per-class", "--seed", 4)
    guard = assert_file(ff.create("knn", k=3), 0.2, per_class=True, seed=4)
    low, high = (float(edge) for edge in guard.calibration.threshold.aminmax())
    assert low < high
    for part in (f"{low:.4g} to {high:.4g}", "knn:k=3\n", "20 %"):
        assert part in done.stdout
    succeed(*FIT, "--workers", 2, "--batch-size", 16, "--head", "3")
    assert_file(batch_size=16)
    done = succeed(*FIT, "--method", "autofold-r")
    learnt = dict(CalibratedDetector.load(val / "new.safetensors").detector.named_buffers())
    alpha = next(value for name, value in learnt.items() if name.endswith("alpha_"))
    assert f"alpha = {float(alpha):g}" in done.stdout


def test_every_kind_of_place_gives_the_same_guard(val):
    x, y = in_class_order(*pixels(120))
    paths = sorted(Path("val").rglob("*.png"))
    Path("list.txt").write_text("".join(f"{path} {label}\n" for path, label in zip(paths, y, strict=True)))
    Path("val/inner.lst").write_text("".join(f"{path} {label}\n" for path, label in zip(paths, y, strict=True)))
    np.savez("named.npz", pictures=x, classes=y)
    np.savez("val.npz", x=x, y=y)
    write_parquet("val.parquet", paths, y)
    write_parquet("named.parquet", paths, y, "pictures", "classes")
    named = ("--image-column", "pictures", "--label-column", "classes")
    places = [["list.txt"], ["val/inner.lst", "--root", "."], ["val.npz"], ["val.parquet"]]
    for place in (*places, ["named.npz", *named], ["named.parquet", *named]):
        succeed("fit", *place, *FIT[2:])
        assert_file()
        Path("new.safetensors").unlink()
    more, labels = pixels(60, seed=3)
    write_folder(val / "more", more, labels)  # the images to calibrate on may be no list
    done = succeed("fit", *places[1], *FIT[2:], "--calibration", "more")
    assert_file(calibration=ArrayImages(in_class_order(more, labels)[0], None, TRANSFORM))
    assert "60 images, more\n" in done.stdout
    write_folder(val / "flat", x)
    for place in (["flat"], ["val", "--no-labels"]):
        assert "no labels" in succeed("fit", *place, *FIT[2:], "--method", "fold").stdout
        assert "note: this data has no labels" in succeed("fit", *place, *FIT[2:]).stderr


def test_remarks_are_notes_on_stderr(val):
    done = succeed("fit", "val", "--model", "nets:tiny", *PREPARED, *OUT, "--method", "fold")
    assert done.stderr.startswith("note: the model is right about "), "its weights are not loaded"
    (val / "val" / "class0" / "0000.png").write_bytes(b"no image")
    done = succeed(*FIT)
    assert done.stderr.startswith("note: 1 of 120 images")
    assert "119 of val" in done.stdout
    assert succeed(*FIT, "--quiet")[1:] == ("", "")
    done = succeed(*FIT, "--verbose", "--json")
    assert re.search(r"^\[[\d.]+ s\] flatfold\.network\.heads: the logits are the output of", done.stderr, re.MULTILINE)
    summary = json.loads(done.stdout)
    assert (summary["guard"], summary["images"], summary["method"]) == ("new.safetensors", 119, "fourfold")


@pytest.mark.parametrize("seed", [0, 4])
def test_a_limit_draws_from_all_images_and_classes(val, seed):
    assert "60 of val" in succeed(*FIT, "--limit", 60, "--method", "mds", "--seed", seed).stdout
    drawn = np.arange(60) * 2 + np.random.default_rng(seed).integers(0, 2, 60)
    assert_file("mds", images=[values[drawn] for values in in_class_order(*pixels(120))], seed=seed)
    x, y = pixels(360)  # classes 0, 1, 2, 0, 1, 2, ...: every third image is of one
    np.savez("turns.npz", x=x, y=y)
    succeed("fit", "turns.npz", *FIT[2:], "--limit", 120, "--method", "fold", "--per-class", "--fpr", 0.2)
    assert CalibratedDetector.load(val / "new.safetensors").calibration.counts.min() > 10


def test_mistakes(val, monkeypatch):
    x, _ = pixels(120)
    write_folder(val / "few", *pixels(18))
    write_folder(val / "flat", x)
    write_folder(val / "mixed", x[:9], np.arange(9) % 3)
    write_folder(val / "mixed", x[:1])
    (val / "x").mkdir()
    (val / "val" / "class0" / "0000.png").write_bytes(b"no image")
    (val / "copy.txt").write_text("".join(f"{path}\n" for path in sorted((val / "val").rglob("*.png"))))
    np.savez("bare.npz", x=x)
    np.savez("more.npz", x=x[:60])
    write_parquet(val / "bare.parquet", sorted((val / "flat").iterdir()))
    os.link("tiny.pt", "link.pt")
    cases = [
        ([*FIT[1:], "--fpr", "1.5"], 2, "--fpr"),
        *(([*FIT[1:], "--method", method], 2, "--method") for method in ("fild", "knn@id", "odin")),
        ([*FIT[1:], "--calibration", "x/../val"], 2, "--calibration"),
        *(
            ([*FIT[1:], "--calibration", "more.npz", "--out", out], 2, f"for --out: {out}")
            for out in ("nets.py/guard.safetensors", "val", "tiny.pt", "link.pt", "more.npz")
        ),
        (["bare.npz", *FIT[2:], "--out", "bare.npz"], 2, "for --out: bare.npz"),
        (["val", *MODEL, *OUT], 1, "--resize"),
        (["none", *FIT[2:]], 1, "none"),
        ([*FIT[1:], "--root", "val"], 1, "root"),
        ([*FIT[1:], "--head", "5"], 1, "5"),
        ([*FIT[1:], "--max-unreadable", 0.005], 1, "0000.png"),
        (["val", *MODEL, *OUT, "--mode", "RGB"], 1, "(3, 4, 4)"),
        ([*FIT[1:], "--method", "knn:k=3", "--calibration", "copy.txt"], 1, "calibration"),
        (["bare.npz", *FIT[2:]], 1, "--no-labels"),
        (["bare.parquet", *FIT[2:]], 1, "--label-column"),
        (["mixed", *FIT[2:]], 1, "--no-labels"),
    ]
    assert_mistakes(("fit",), cases, val)
    monkeypatch.setattr("flatfold.data.images.read_image", None)  # these are found before any image is read
    monkeypatch.setattr("flatfold.data.decoding.read_image", None)
    cases = [
        (["few", *FIT[2:]], 1, "19 calibration"),
        ([*FIT[1:], "--calibration", "few"], 1, "19 calibration"),
        (["flat", *FIT[2:], "--method", "autofold"], 1, "labels"),
        ([*FIT[1:], "--no-labels", "--method", "autofold"], 1, "labels"),
    ]
    assert_mistakes(("fit",), cases, val)
    if os.name != "nt":
        os.mkfifo("pipe")  # an atomic write puts a file in the place of whatever is there, /dev/null too
        assert flatfold(*FIT, "--out", "pipe").returncode == 2
        assert not Path("pipe").is_file()
    monkeypatch.setattr(os, "mkdir", Mock(side_effect=OSError(errno.EROFS, "read-only")))
    for command in (FIT, ("export", "guard.safetensors", *MODEL, "--images", "val")):
        refused = flatfold(*command, "--out", "deep/down/guard.onnx")
        assert refused.returncode == 2, refused
        assert "Read-only file system" in words(refused.stderr)


def test_an_interrupted_run_writes_nothing(val, interrupt):
    interrupt("flatfold.scoring.guard.Guard.fit")
    assert_mistakes(FIT, [([], 130, "no file is incomplete")], val)


STORED = ff.Transform(resize=8, crop=6, mean=(0.1, 0.2, 0.3), std=(1, 2, 3), interpolation="bicubic")
EVERYTHING = {"resize": 9, "crop": 7, "mean": ".5, .4,.3", "std": ".1,.2,1", "mode": "RGB", "interpolation": "bicubic"}


def test_the_transform_is_that_of_the_guard_or_of_the_options():
    complete = ff.Transform(9, 7, (0.5, 0.4, 0.3), (0.1, 0.2, 1.0), "RGB", "bicubic")
    guard = Path("g.safetensors")
    for path in (guard, None):
        assert TransformOptions(**EVERYTHING).transform(path) == complete
        assert TransformOptions(mode="L", mean="0.5").transform(path) == ff.Transform(mode="L", mean=(0.5,))
    assert TransformOptions().transform(guard, STORED) == STORED
    refused = [({name: value}, (guard, STORED), f"--{name}") for name, value in EVERYTHING.items()]
    refused += [({}, (guard,), "--resize"), ({}, (), "--resize"), ({"mode": "CMYK"}, (), "CMYK")]
    refused += [({name: text}, (), f"--{name}") for name in ("mean", "std") for text in ("a,b", "", "1;2", "1,,2")]
    for options, arguments, keyword in [*refused, ({"mean": "0.5"}, (), "mean")]:
        assert_refused(TransformOptions(**options), arguments, keyword)


def assert_refused(options, arguments, keyword):
    with pytest.raises(ValueError, match=keyword):
        options.transform(*arguments)
