"""`flatfold fit`, as a user meets it: images of any kind to a guard's file, and a sentence for what cannot be."""

import logging
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

import flatfold as ff
from flatfold.cli.checks import check_writable
from flatfold.cli.fitting import needs_labels
from flatfold.cli.model import open_model
from flatfold.cli.notes import noted
from flatfold.detectors import METHODS
from flatfold.models.images import ArrayImages
from flatfold.scoring.artefact import load_judge
from tests.cli.small_photos import (
    MODEL,
    PREPARED,
    pixels,
    read_rows,
    run,
    words,
    write_folder,
    write_network,
    write_parquet,
)

TRANSFORM = ff.Transform(mode="L", mean=(0.4,), std=(0.3,))
OUT = ("--out", "guard.safetensors")
pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder: a network, its weights, and images of its classes in folders."""
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path)
    write_folder(tmp_path / "val", *pixels(120))
    return tmp_path


def network():
    return open_model("nets:tiny", Path("tiny.pt"))


def in_class_order(x, y):
    """Images as their class folders give them."""
    order = np.argsort(y, kind="stable")
    return x[order], y[order]


def expected(method="autofold", fpr=0.05, batch_size=64, **settings):
    """The guard that the library makes of the same images."""
    return ff.Guard.fit(
        network(), ArrayImages(*in_class_order(*pixels(120)), TRANSFORM, batch_size), method, fpr, **settings
    )


def assert_same(path, guard):
    """The file holds a guard, of the same scores and thresholds, that says the same to the last digit."""
    loaded = ff.Guard.load(path, network())
    assert loaded.transform == guard.transform == TRANSFORM
    assert torch.equal(loaded.calibration.scores, guard.calibration.scores)
    assert torch.equal(loaded.calibration.threshold, guard.calibration.threshold)
    x = torch.stack([TRANSFORM(image) for image in pixels(30, seed=9, known=False)[0]])
    assert torch.equal(loaded(x).score, guard(x).score)
    assert loaded.fpr == guard.fpr


def test_the_file_is_that_of_the_library_and_the_lines_say_what_it_is(here):
    done = run("fit", "val", *MODEL, *PREPARED, *OUT)
    assert done.exit_code == 0, done.output
    guard = expected()
    assert_same("guard.safetensors", guard)
    threshold = float(guard.calibration.threshold)
    assert done.stdout.splitlines() == [
        "images       120 of val; the model is right about 100.0 % of them",
        f"method       autofold, alpha = {float(guard.detector.alpha_):g}",
        "calibration  60 images, half of them",
        "rate         of known images at most 5 % raise an alarm",
        f"threshold    a score above {threshold:.4g}",
        "guard        -> guard.safetensors, 0.0 MB",
    ]


def test_options_reach_the_guard(here):
    done = run("fit", "val", *MODEL, *PREPARED, *OUT, "--method", "knn:k=3", "--fpr", 0.2, "--per-class", "--seed", 4)
    assert done.exit_code == 0, done.output
    assert_same("guard.safetensors", expected(ff.create("knn", k=3), 0.2, per_class=True, seed=4))
    low, high = (float(edge) for edge in load_judge(here / "guard.safetensors")[0].calibration.threshold.aminmax())
    assert low < high
    assert f"threshold    a score above {low:.4g} to {high:.4g}, by predicted class\n" in done.stdout
    assert "method       knn:k=3\n" in done.stdout
    assert "rate         of known images at most 20 % raise an alarm\n" in done.stdout


def test_other_images_calibrate_if_they_are_given(here):
    x, y = pixels(60, seed=3)
    write_folder(here / "more", x, y)
    done = run("fit", "val", *MODEL, *PREPARED, *OUT, "--calibration", "more")
    assert done.exit_code == 0, done.output
    assert_same("guard.safetensors", expected(calibration=ArrayImages(in_class_order(x, y)[0], None, TRANSFORM)))
    assert "images       120 of val; " in done.stdout
    assert "calibration  60 images, more\n" in done.stdout


def test_what_a_joint_choice_learnt_is_printed_too(here):
    done = run("fit", "val", *MODEL, *PREPARED, *OUT, "--method", "autofold-r")
    assert done.exit_code == 0, done.output
    judge, _, _ = load_judge(here / "guard.safetensors")
    learnt = dict(judge.detector.named_buffers())
    alpha = next(value for name, value in learnt.items() if name.endswith("alpha_"))
    line = next(line for line in done.stdout.splitlines() if line.startswith("method"))
    assert f"alpha = {float(alpha):g}" in line
    assert line.startswith("method       autofold-r, ")


def test_every_kind_of_place_gives_the_same_guard(here):
    x, y = in_class_order(*pixels(120))
    paths = sorted((here / "val").rglob("*.png"))
    (here / "list.txt").write_text("".join(f"{path} {label}\n" for path, label in zip(paths, y, strict=True)))
    (here / "lists").mkdir()
    inner = "".join(f"{path.relative_to(here / 'val')} {label}\n" for path, label in zip(paths, y, strict=True))
    (here / "lists" / "val.lst").write_text(inner)
    np.savez("val.npz", x=x, y=y)
    np.savez("named.npz", pictures=x, classes=y)
    write_parquet(here / "val.parquet", paths, y)
    write_parquet(here / "named.parquet", paths, y, "pictures", "classes")
    names = ("--image-column", "pictures", "--label-column", "classes")
    places = [
        ("val",),
        ("list.txt",),
        ("lists/val.lst", "--root", "val"),
        ("val.npz",),
        ("val.parquet",),
        ("named.npz", *names),
        ("named.parquet", *names),
    ]
    guard = expected()
    for place in places:
        done = run("fit", *place, *MODEL, *PREPARED, "--out", "one.safetensors")
        assert done.exit_code == 0, (place, done.output, done.exception)
        assert f"images       120 of {place[0]}; the model is right about 100.0 %" in done.stdout
        assert_same("one.safetensors", guard)


def test_a_root_is_for_lists_and_the_images_to_calibrate_on_may_be_no_list(here):
    paths = sorted((here / "val").rglob("*.png"))
    lines = "".join(f"{path.relative_to(here / 'val')} {path.parent.name[-1]}\n" for path in paths)
    (here / "list.txt").write_text(lines)
    write_folder(here / "more", pixels(60, seed=3)[0])
    done = run("fit", "list.txt", "--root", "val", *MODEL, *PREPARED, *OUT, "--calibration", "more")
    assert done.exit_code == 0, done.output
    done = run("fit", "val", "--root", "val", *MODEL, *PREPARED, *OUT)
    assert "root is where the paths of a list start, but val is no list. Leave it out." in str(done.exception)


def test_images_without_labels_do_for_methods_that_need_none(here):
    write_folder(here / "flat", pixels(120)[0])
    (here / "flat.txt").write_text("".join(f"flat/{row:04d}.png\n" for row in range(120)))
    for place in (["flat"], ["flat.txt", "--no-labels"], ["val", "--no-labels"]):
        done = run("fit", *place, *MODEL, *PREPARED, *OUT, "--method", "fold")
        assert done.exit_code == 0, (place, done.output, done.exception)
        assert done.stdout.startswith(f"images       120 of {place[0]}; no labels\n")


@pytest.mark.parametrize("place", [["flat"], ["val", "--no-labels"]])
def test_a_method_that_needs_labels_says_so_before_the_images_are_read(here, monkeypatch, place):
    write_folder(here / "flat", pixels(40)[0])
    monkeypatch.setattr("flatfold.models.folders.read_image", None)
    done = run("fit", *place, *MODEL, *PREPARED, *OUT)
    assert isinstance(done.exception, ValueError)
    assert str(done.exception).startswith(f"autofold learns from labels, but none are read from {place[0]}. Sort the")
    assert not (here / "guard.safetensors").exists()


@pytest.mark.parametrize("name", sorted(name for name, entry in METHODS.items() if entry.sees == "features"))
def test_which_methods_need_labels_is_found_out_right(make_world, name):
    """By fitting each of them for good, with data enough, without labels."""
    small = {"knn": {"k": 5}, "vim": {"dim": 6}, "nnguide": {"k": 5}}.get(name, {})
    world = make_world()
    try:
        ff.create(name, **small).fit(ff.FeatureBank(world.bank.features), world.head)
        needed = False
    except ValueError:
        needed = True
    assert needs_labels(ff.create(name, **small)) == needed


def test_a_method_that_has_another_need_is_left_to_the_data():
    assert not needs_labels(ff.create("knn", k=1000))


def test_a_detector_that_was_tried_is_not_fitted_by_that():
    detector = ff.create("fold")
    assert not needs_labels(detector)
    with pytest.raises(ff.NotFittedError):
        detector(torch.ones(2, 8))


def test_a_model_that_only_guesses_is_noted(here):
    done = run("fit", "val", "--model", "nets:tiny", *PREPARED, *OUT, "--method", "fold")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("note: the model is right about ")
    assert "Are its weights loaded" in done.stderr
    assert "note" not in done.stdout


def test_broken_images_are_left_out_up_to_a_share(here):
    (here / "val" / "class0" / "0000.png").write_bytes(b"no image")
    done = run("fit", "val", *MODEL, *PREPARED, *OUT)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("note: 1 of 120 images could not be read and are left out. (1) val/class0/0000.png")
    assert done.stdout.startswith("images       119 of val; ")
    done = run("fit", "val", *MODEL, *PREPARED, "--out", "no.safetensors", "--max-unreadable", 0.005)
    assert isinstance(done.exception, ff.UnreadableImage)
    assert not (here / "no.safetensors").exists()


@pytest.mark.parametrize("seed", [0, 4])
def test_a_limit_takes_images_of_all_classes(here, seed):
    done = run("fit", "val", *MODEL, *PREPARED, *OUT, "--limit", 60, "--method", "mds", "--seed", seed)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("images       60 of val; the model is right about 100.0 %")
    drawn = np.arange(60) * 2 + np.random.default_rng(seed).integers(0, 2, 60)
    x, y = (values[drawn] for values in in_class_order(*pixels(120)))
    assert_same("guard.safetensors", ff.Guard.fit(network(), ArrayImages(x, y, TRANSFORM), "mds", seed=seed))


def test_a_limit_takes_images_of_all_classes_where_these_take_turns(here):
    x, y = pixels(360)  # classes 0, 1, 2, 0, 1, 2, ...: every third image is of one
    np.savez("turns.npz", x=x, y=y)
    options = (*MODEL, *PREPARED, "--limit", 120, "--method", "fold", "--per-class", "--fpr", 0.2)
    done = run("fit", "turns.npz", *options, *OUT)
    assert done.exit_code == 0, (done.output, done.exception)
    assert load_judge(here / "guard.safetensors")[0].calibration.counts.min() > 10


def test_processes_may_read_ahead(here):
    done = run("fit", "val", *MODEL, *PREPARED, *OUT, "--workers", 2, "--batch-size", 16)
    assert done.exit_code == 0, done.output
    assert_same("guard.safetensors", expected(batch_size=16))


def test_a_head_is_named_where_it_cannot_be_found(here):
    assert run("fit", "val", *MODEL, *PREPARED, *OUT, "--head", "3").exit_code == 0
    done = run("fit", "val", *MODEL, *PREPARED, *OUT, "--head", "5")
    assert "5" in str(done.exception)
    assert done.exit_code == 1


USAGE = [
    (["--fpr", "1.5"], "Invalid value for --fpr: fpr must lie between 0 and 1, got 1.5."),
    (["--method", "fild"], "Invalid value for --method: no method is called 'fild'. Did you mean fold"),
    (["--method", "knn@id"], "knn@id asks for tuning, which is for benchmarks. Leave out the @,"),
    (["--method", "odin"], "odin runs the network on images, but here features are scored. `flatfold methods` lists"),
    (
        ["--calibration", "x/../val"],
        "autofold has seen what is in the images to fit on, so --calibration must be other",
    ),
    (["--out", "nets.py/guard.safetensors"], "for --out: nets.py/guard.safetensors is where the guard goes, but /"),
    (["--out", "nets.py/guard.safetensors"], "/nets.py is a file and no folder. Choose another."),
    (["--out", "val"], "Invalid value for --out: val is where the guard goes, but that is a folder. Choose another."),
]


@pytest.mark.parametrize(("arguments", "sentence"), USAGE)
def test_options_that_do_not_go_together_are_wrong_usage(here, arguments, sentence):
    (here / "x").mkdir()
    before = sorted(here.iterdir())
    done = run("fit", "val", *MODEL, *PREPARED, *OUT, *arguments)
    assert done.exit_code == 2
    assert sentence in words(done.stderr)
    assert sorted(here.iterdir()) == before


def test_a_folder_that_must_not_be_written_to_is_refused_first(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(typer.BadParameter, match=r"goes, but nothing can be written in .*\. Choose another\."):
        check_writable(tmp_path / "deep" / "down" / "guard.safetensors", "the guard")
    check_writable(tmp_path.parent / "guard.safetensors", "the guard")


@pytest.mark.skipif(os.name == "nt", reason="pipes and links are those of POSIX")
def test_nothing_but_a_file_is_replaced_and_none_that_is_read(here):
    """An atomic write puts a file in the place of whatever is there, /dev/null too."""
    os.mkfifo("pipe")
    os.link("tiny.pt", "link.pt")
    np.savez("more.npz", x=pixels(60)[0])
    cases = {
        "pipe": "pipe is where the guard goes, but that is a device or a pipe. Choose another.",
        "tiny.pt": "tiny.pt is where the result goes, but that is what is read, and would be lost. Choose another.",
        "link.pt": "link.pt is where the result goes, but that is what is read",
        "more.npz": "more.npz is where the result goes, but that is what is read",
    }
    for out, sentence in cases.items():
        before = Path(out).stat()
        done = run("fit", "val", *MODEL, *PREPARED, "--calibration", "more.npz", "--out", out)
        assert done.exit_code == 2, out
        assert f"Invalid value for --out: {sentence}" in words(done.stderr)
        assert Path(out).stat() == before
    np.savez("val.npz", **dict(zip("xy", pixels(120), strict=True)))
    assert run("fit", "val.npz", *MODEL, *PREPARED, "--out", "val.npz").exit_code == 2
    assert run("fit", "val.npz", *MODEL, *PREPARED, "--out", "val/guard.safetensors").exit_code == 0


def test_folders_are_made_for_the_file(here):
    done = run("fit", "val", *MODEL, *PREPARED, "--out", "deep/down/guard.safetensors")
    assert done.exit_code == 0, done.output
    assert_same("deep/down/guard.safetensors", expected())


def test_wrong_input_gets_a_sentence_and_leaves_no_file(here):
    few = write_folder(here / "few", *pixels(12))
    cases = [
        (["val", *MODEL], "nothing says how images are prepared. Say it with --resize"),
        (["none", *MODEL, *PREPARED], "there are no images at none: it does not exist. Check the path."),
        (["val", "--model", "tiny", *PREPARED], "--model is written package.module:function or library/name"),
        (
            ["few", *MODEL, *PREPARED],
            "a false-alarm rate of 0.05 takes 19 calibration samples, half of the data has 6.",
        ),
        (["val", *MODEL, *PREPARED, "--device", "moon"], "device 'moon' cannot be used here"),
        (["val", *MODEL, "--mode", "RGB"], "the network cannot take inputs of shape (3, 4, 4)"),
        (
            ["val", *MODEL, *PREPARED, "--method", "knn:k=3", "--calibration", "copy.txt"],
            "the detector has seen what is in the loader, so calibration= must be other data",
        ),
    ]
    (here / "copy.txt").write_text("".join(f"{path}\n" for path in sorted((here / "val").rglob("*.png"))))
    assert few
    for arguments, sentence in cases:
        done = run("fit", *arguments, *OUT)
        assert isinstance(done.exception, (ValueError, OSError)), arguments
        assert sentence in words(str(done.exception))
        assert not (here / "guard.safetensors").exists()


@pytest.mark.parametrize("calibration", [None, "few"])
def test_too_few_images_are_told_before_any_is_read(here, monkeypatch, calibration):
    write_folder(here / "few", *pixels(18))
    monkeypatch.setattr("flatfold.models.images.read_image", None)
    place = ["few"] if calibration is None else ["val", "--calibration", "few"]
    done = run("fit", *place, *MODEL, *PREPARED, *OUT)
    has = "half of the data has 9" if calibration is None else "the calibration data has 18"
    assert f"a false-alarm rate of 0.05 takes 19 calibration samples, {has}." in str(done.exception)


def test_sentences_of_the_library_speak_of_options(here):
    x, _ = pixels(120)
    np.savez("bare.npz", x=x)
    paths = write_folder(here / "flat", x)
    write_parquet(here / "bare.parquet", paths)
    write_folder(here / "mixed", x[:9], np.arange(9) % 3)
    write_folder(here / "mixed", x[:1])
    columns = "Pass --image-column for the images and --label-column (or --no-labels) for the labels."
    cases = {
        "bare.npz": f"bare.npz has no array 'y'; it has 'x'. {columns}",
        "bare.parquet": columns,
        "mixed": "Move it, or pass --no-labels to read all images without labels.",
    }
    for place, sentence in cases.items():
        assert sentence in str(run("fit", place, *MODEL, *PREPARED, *OUT).exception)
        assert not (here / "guard.safetensors").exists()


def test_an_interrupted_run_writes_nothing_and_says_so(here, monkeypatch):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("flatfold.models.extract.one_pass", interrupted)
    done = run("fit", "val", *MODEL, *PREPARED, *OUT)
    assert (done.exit_code, done.stderr) == (130, "flatfold: stopped: nothing was written to guard.safetensors\n")
    assert not (here / "guard.safetensors").exists()


def test_a_guard_that_was_fitted_scores_images(here):
    assert run("fit", "val", *MODEL, *PREPARED, *OUT).exit_code == 0
    write_folder(here / "photos", pixels(10, seed=2)[0])
    done = run("score", "photos", "--guard", "guard.safetensors", *MODEL, "--out", "scores.csv")
    assert done.exit_code == 0, done.output
    assert len(read_rows(here / "scores.csv")) == 10


def remark():
    log = logging.getLogger("flatfold.models.extract")
    log.warning("%d images", 3)
    log.info("nothing of note")
    for _ in range(2):
        warnings.warn("the curve is flat", stacklevel=1)
    warnings.warn("for programmers", DeprecationWarning, stacklevel=1)
    raise ValueError("stop")


def test_notes_are_said_once_and_errors_keep_them(capsys):
    with pytest.raises(ValueError, match="stop"), noted():
        remark()
    assert capsys.readouterr().err == "note: 3 images\nnote: the curve is flat\n"
    assert logging.getLogger("flatfold").propagate
    assert not logging.getLogger("flatfold").handlers


def test_the_help_teaches():
    text = words(run("fit", "--help").stdout)
    assert text.count("Example: flatfold fit val") == 2
    assert "Exit codes: 0 done; 1 the input was wrong; 2 the usage was; 130 interrupted." in text
    assert "none of those it was trained on" in text
