"""`flatfold score` on images, as a user meets it: tables, runs that go on, shards, and sentences."""

import csv
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table

import flatfold as ff
from flatfold.cli.model import open_model
from flatfold.cli.run_summary import Stopwatch
from flatfold.cli.score_images import Images, Network, engine_of
from flatfold.models.images import ArrayImages
from flatfold.scoring.batch.local import score_here
from tests.cli.small_photos import (
    GUARD,
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
from tests.uncovered import environment

TRANSFORM = ff.Transform(mode="L", mean=(0.4,), std=(0.3,))
OUT = ("--out", "scores.csv")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder: a network and its weights, two guards (one knows its transform), and photos."""
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path)
    images = ArrayImages(*pixels(200), TRANSFORM)
    model = network()
    ff.Guard.fit(model, images, "fold", 0.1).save("guard.safetensors")
    ff.Guard.fit(model, list(images), "fold", 0.1).save("blind.safetensors")
    write_folder(tmp_path / "photos", photos())
    return tmp_path


def network():
    return open_model("nets:tiny", Path("tiny.pt"))


def photos(n=50):
    """Half of them of known classes."""
    return np.concatenate([pixels(n // 2, seed=1)[0], pixels(n - n // 2, seed=2, known=False)[0]])


def verdicts(x, fpr=None, batch_size=64):
    """What the guard itself says about images, in batches of that size."""
    guard = ff.Guard.load("guard.safetensors", network())
    guard = guard if fpr is None else guard.at(fpr)
    tensors = torch.stack([TRANSFORM(image) for image in x])
    parts = [guard(batch) for batch in tensors.split(batch_size)]
    columns = {
        "predicted": [part.logits.argmax(1) for part in parts],
        **{name: [getattr(part, name) for part in parts] for name in ("score", "p_value", "is_ood")},
    }
    return {name: torch.cat(values).numpy() for name, values in columns.items()}


def assert_rows(rows, said, paths):
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    assert list(rows[0]) == ["path", "predicted", "score", "p_value", "is_ood"]
    for name, values in said.items():
        texts = [row[name] for row in rows]
        got = np.array(texts) == "true" if name == "is_ood" else np.array(texts).astype(values.dtype)
        assert np.array_equal(got, values), name


def scored(*arguments):
    done = run("score", *arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def names(n=50):
    return [Path("photos", f"{row:04d}.png") for row in range(n)]


@pytest.mark.parametrize("fpr", [None, 0.3])
def test_the_table_is_what_the_guard_says(here, fpr):
    done = scored("photos", *GUARD, *OUT, *([] if fpr is None else ["--fpr", fpr]))
    said = verdicts(photos(), fpr)
    assert_rows(read_rows(here / "scores.csv"), said, names())
    alarms = int(said["is_ood"].sum())
    assert 0 < alarms < 50
    lines = done.stderr.splitlines()
    assert lines[0] == "50 images, all scored -> scores.csv"
    allowed = 10 if fpr is None else 30
    assert lines[1].startswith(f"50 inputs, {alarms} alarms: {2 * alarms} %, where {allowed} % were allowed (p ")
    assert lines[2].startswith("Scores differ from calibration by ")
    assert lines[3].endswith(" images per second")
    assert len(lines) == 4
    assert done.stdout == ""
    assert {path.name for path in here.glob("scores*")} == {"scores.csv", "scores.csv.summary.json"}


def test_one_image_is_one_image(here):
    write_folder(here / "one", photos()[:1])
    assert scored("one", *GUARD, *OUT).stderr.startswith("1 image, all scored -> scores.csv\n1 input, ")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_other_tables_hold_the_same(here, suffix):
    scored("photos", *GUARD, "--out", f"deep/scores.{suffix}")
    path = here / "deep" / f"scores.{suffix}"
    if suffix == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = read_table(path).to_pylist()
    said = verdicts(photos())
    assert [row["path"] for row in rows] == [str(path) for path in names()]
    for name, values in said.items():
        assert np.array_equal(np.array([row[name] for row in rows]).astype(values.dtype), values), name


def test_every_kind_of_place_gives_the_same_scores(here):
    x, paths = photos(), names()
    (here / "list.txt").write_text("".join(f"{path}\n" for path in paths))
    (here / "lists").mkdir()
    (here / "lists" / "numbered.lst").write_text("".join(f"{path.name} -1\n" for path in paths))
    (here / "absolute.list").write_text("".join(f"{path.absolute()}\n" for path in paths))
    np.savez("photos.npz", x=x)
    np.savez("named.npz", pictures=x, x=np.zeros(3))
    write_parquet(here / "photos.parquet", paths)
    write_parquet(here / "named.parquet", paths, image="pictures")
    (here / "tables").mkdir()
    write_parquet(here / "tables" / "0.parquet", paths[:20])
    write_parquet(here / "tables" / "1.parquet", paths[20:])
    column = ("--image-column", "pictures")
    places = {
        "photos": ((), paths),
        "list.txt": ((), paths),
        "lists/numbered.lst": (("--root", "photos"), paths),
        "absolute.list": ((), [path.absolute() for path in paths]),
        "photos.npz": ((), [f"photos.npz:{row}" for row in range(50)]),
        "named.npz": (column, [f"named.npz:{row}" for row in range(50)]),
        "photos.parquet": ((), [f"photos.parquet:{row}" for row in range(50)]),
        "named.parquet": (column, [f"named.parquet:{row}" for row in range(50)]),
        "tables": ((), [f"tables:{row}" for row in range(50)]),
    }
    said = verdicts(x)
    for place, (options, called) in places.items():
        out = f"{Path(place).name}.csv"
        scored(place, *options, *GUARD, "--out", out)
        assert_rows(read_rows(here / out), said, called)


def test_batches_and_processes_that_read_ahead_are_as_asked_for(here):
    scored("photos", *GUARD, *OUT, "--batch-size", 7, "--workers", 2)
    assert_rows(read_rows(here / "scores.csv"), verdicts(photos(), batch_size=7), names())
    assert json.loads((here / "scores.csv.summary.json").read_text())["job"]["batch_size"] == 7


def test_a_guard_without_a_transform_takes_it_from_options(here):
    blind = ("--guard", "blind.safetensors", *MODEL)
    scored("photos", *blind, *OUT, *PREPARED)
    assert_rows(read_rows(here / "scores.csv"), verdicts(photos()), names())
    done = run("score", "photos", *blind, "--out", "other.csv")
    assert "blind.safetensors does not say how images are prepared. Say it with --resize" in str(done.exception)
    done = run("score", "photos", *GUARD, "--out", "other.csv", "--crop", 3)
    assert "Leave out --crop." in str(done.exception)
    assert not list(here.glob("other*"))


def test_a_second_run_has_nothing_to_do_unless_it_restarts(here):
    scored("photos", *GUARD, *OUT)
    before = (here / "scores.csv").stat().st_mtime_ns
    done = scored("photos", *GUARD, *OUT)
    assert done.stderr.splitlines()[3] == "nothing to do: all of it was there already"
    assert (here / "scores.csv").stat().st_mtime_ns == before
    done = scored("photos", *GUARD, *OUT, "--restart")
    assert done.stderr.splitlines()[3].endswith(" images per second")
    assert (here / "scores.csv").stat().st_mtime_ns > before


def test_shards_and_a_join_are_one_run(here):
    scored("photos", *GUARD, *OUT, "--batch-size", 8)
    for number in (1, 2, 3):
        done = scored("photos", *GUARD, "--out", f"part-{number}.csv", "--batch-size", 8, "--shard", f"{number}/3")
        assert done.stderr.startswith(f"shard {number}/3: {(16, 16, 18)[number - 1]} images, all scored -> part-")
    assert run("join", "part-3.csv", "part-1.csv", "part-2.csv", "--out", "joined.csv").exit_code == 0
    assert (here / "joined.csv").read_bytes() == (here / "scores.csv").read_bytes()


def test_a_shard_without_images_says_so(here):
    done = scored("photos", *GUARD, *OUT, "--shard", "1/3")
    assert done.stderr == "shard 1/3: 0 images, nothing to score -> scores.csv\n"


def test_images_that_cannot_be_scored_are_named_and_the_others_scored(here):
    for row in (3, 20, 30, 40):
        (here / "photos" / f"{row:04d}.png").write_bytes(b"no image")
    done = run("score", "photos", *GUARD, *OUT)
    assert done.exit_code == 3
    lines = done.stderr.splitlines()
    assert lines[0] == "50 images, 46 scored -> scores.csv"
    assert lines[4] == "4 images could not be scored -> scores.csv.unreadable.csv"
    assert lines[5].startswith("  photos/0003.png could not be read as an image: ")
    assert [line[:17] for line in lines[5:8]] == ["  photos/0003.png", "  photos/0020.png", "  photos/0030.png"]
    assert lines[8:] == ["  and 1 more"]
    listed = read_rows(here / "scores.csv.unreadable.csv")
    assert [row["path"] for row in listed] == [f"photos/{row:04d}.png" for row in (3, 20, 30, 40)]
    good = [path for path in names() if str(path) not in {row["path"] for row in listed}]
    assert [row["path"] for row in read_rows(here / "scores.csv")] == [str(path) for path in good]
    assert run("score", "photos", *GUARD, *OUT).exit_code == 3


def test_an_image_whose_reason_does_not_name_it_is_named(here):
    (here / "nets.py").write_text((here / "nets.py").read_text() + HOLES)
    done = run("score", "photos", "--guard", "guard.safetensors", "--model", "nets:holes", "--weights", "tiny.pt", *OUT)
    assert done.exit_code == 3, done.exception
    lines = done.stderr.splitlines()
    assert lines[4] == "1 image could not be scored -> scores.csv.unreadable.csv"
    assert lines[5].startswith("  photos/0002.png: the model gave features that are not finite. ")
    assert len(lines) == 6


HOLES = """
import torch

class Holes(nn.Sequential):
    def forward(self, x):
        if len(x) > 2:
            x = x.clone()
            x[2] = float("nan")
        return super().forward(x)

def holes():
    return Holes(*LAYERS())
"""

NEEDED = "images are scored with --guard and --model, and the table goes to --out, but "
USAGE = [
    ([], "there is nothing to score. Name the images, or give --features, a file of them."),
    (["photos", "--features", "f.npy"], "either images or features are scored, got photos and --features f.npy."),
    (["photos"], f"{NEEDED}--guard and --model and --out are missing. `flatfold fit` makes a guard."),
    (["photos", *MODEL, *OUT], f"{NEEDED}--guard is missing."),
    (["photos", "--guard", "g", *OUT], f"{NEEDED}--model is missing."),
    (["photos", *GUARD], f"{NEEDED}--out is missing."),
    (
        ["photos", *GUARD, *OUT, "--head", "h"],
        "--head can be said of --features, but images are scored with --guard, a file that `flatfold fit` writes.",
    ),
    (
        ["photos", *GUARD, *OUT, "--method", "fold", "--per-class"],
        "--method and --per-class can be said of --features,",
    ),
    (["photos", *GUARD, *OUT, "--fit", "f"], "--fit can be said of --features,"),
    (["photos", *GUARD, *OUT, "--calibration", "f"], "--calibration can be said of --features,"),
    (
        ["--features", "f.npy", "--shard", "1/2"],
        "--shard is for images: features are scored fast enough by one process. Leave it out.",
    ),
    (
        ["--features", "f.npy", "--guard", "g", "--model", "nets:tiny", "--crop", "3"],
        "--model and --crop can be said of images, but --features need no model. Leave that out, or name images",
    ),
    *(
        (["--features", "f.npy", "--guard", "g", *words], f"{words[0]} can be said of images,")
        for words in (
            ["--weights", "w"],
            ["--pretrained", "w"],
            ["--device", "cpu"],
            ["--batch-size", "64"],
            ["--workers", "0"],
            ["--engine", "local"],
            ["--actors", "1"],
            ["--gpus", "0"],
            ["--resume"],
            ["--restart"],
            ["--root", "r"],
            ["--image-column", "i"],
            ["--resize", "3"],
            ["--mean", "0"],
            ["--std", "1"],
            ["--mode", "L"],
            ["--interpolation", "bicubic"],
        )
    ),
    (
        ["photos", *GUARD, *OUT, "--engine", "ray", "--workers", "2"],
        "--workers is for --engine local: on Ray every worker reads its own images. Give --actors instead.",
    ),
    (
        ["photos", *GUARD, *OUT, "--actors", "2", "--gpus", "1"],
        "--actors and --gpus can be said of Ray only. Add --engine ray, or leave that out.",
    ),
    (["photos", *GUARD, *OUT, "--gpus", "0"], "--gpus can be said of Ray only."),
    (["photos", *GUARD, *OUT, "--fpr", "2"], "Invalid value for --fpr: fpr must lie between 0 and 1, got 2.0."),
    (["photos", *GUARD, "--out", "s.txt"], "for --out: a table of rows is a file *.csv, *.jsonl, *.parquet, got 's.t"),
    (["photos", *GUARD, *OUT, "--shard", "0/3"], "Invalid value for --shard: shards are counted from 1, as in 1/3,"),
    (["photos", *GUARD, *OUT, "--shard", "half"], "Invalid value for --shard: a shard is written i/n, the i-th of n,"),
]


@pytest.mark.parametrize(("arguments", "sentence"), USAGE, ids=[" ".join(arguments) for arguments, _ in USAGE])
def test_options_that_do_not_go_together_are_wrong_usage(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    done = run("score", *arguments)
    assert done.exit_code == 2
    assert sentence in words(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_wrong_input_gets_a_sentence(here):
    (here / "empty").mkdir()
    cases = [
        (["none", *GUARD], "there are no images at none: it does not exist. Check the path."),
        (["empty", *GUARD], "empty"),
        (["photos", "--guard", "none", *MODEL], "there is no guard at none. Check the path."),
        (["photos", "--guard", "tiny.pt", *MODEL], "tiny.pt"),
        (["photos", "--guard", "guard.safetensors", "--model", "nets:tiny"], "other weights: "),
        (["photos", "--guard", "guard.safetensors", "--model", "tiny"], "--model is written package.module:function"),
        (["photos", *GUARD, "--device", "moon"], "device 'moon' cannot be used here"),
        (["photos", *GUARD, "--fpr", "0.001"], "a false-alarm rate of 0.001 takes 999 calibration samples"),
        (["photos", *GUARD, "--root", "photos"], "root is where the paths of a list start, but photos is no list."),
    ]
    for number, (arguments, sentence) in enumerate(cases):
        done = run("score", *arguments, "--out", f"{number}.csv")
        assert isinstance(done.exception, (ValueError, OSError)), (arguments, done.exception)
        assert sentence in words(str(done.exception))
        assert not (here / f"{number}.csv").exists()


def test_the_table_does_not_take_the_place_of_the_images(here):
    write_parquet(here / "photos.parquet", names())
    (here / "tables").mkdir()
    write_parquet(here / "tables" / "0.parquet", names())
    lost = "that is what is read, and would be lost. Choose another."
    cases = [
        ("photos.parquet", "photos.parquet", lost),
        ("tables", "tables/0.parquet", "all tables in tables are read as images. Choose another."),
        ("tables", "tables/new.parquet", "all tables in tables are read as images. Choose another."),
        ("photos", "photos/0001.png/scores.csv", "/photos/0001.png is a file and no folder. Choose another."),
    ]
    for place, out, sentence in cases:
        done = run("score", place, *GUARD, "--out", out)
        assert done.exit_code == 2, out
        assert f"Invalid value for --out: {out} is where the" in words(done.stderr)
        assert sentence in words(done.stderr)
    assert read_table(here / "photos.parquet").column_names == ["image"]
    assert [path.name for path in (here / "tables").iterdir()] == ["0.parquet"]
    scored("tables", *GUARD, "--out", "tables/scores.csv")
    scored("photos", *GUARD, "--out", "photos/scores.csv")


def test_an_array_that_is_missing_is_asked_for_by_its_option(here):
    np.savez("other.npz", pictures=photos())
    done = run("score", "other.npz", *GUARD, *OUT)
    assert str(done.exception) == ("other.npz has no array 'x'; it has 'pictures'. Pass --image-column for the images.")


def sent(value):
    """What arrives in another process."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def test_a_model_is_opened_where_it_is_needed(here):
    """What Ray sends to another process: small, and the model is made there."""
    maker = sent(Network("nets:tiny", Path("tiny.pt"), None, "cpu").maker())
    assert torch.equal(maker()[3].weight, network()[3].weight)
    assert not maker().training
    source = Images(Path("photos"), None, None, 8, {}).source(Path("guard.safetensors"))
    assert sent(source).fingerprint == source.fingerprint


def test_engines_get_their_own_settings(monkeypatch):
    here = engine_of("local", 3, None, 0.0)
    assert (here.func, here.keywords) == (score_here, {"workers": 3})
    from flatfold.scoring.batch import on_ray

    there = engine_of("ray", 0, 4, 0.5)
    assert (there.func, there.keywords) == (on_ray.score_on_ray, {"actors": 4, "gpus": 0.5})


def test_ray_is_asked_when_it_is_wanted(here, monkeypatch):
    from flatfold.scoring.batch import on_ray

    asked = []

    def elsewhere(task, parts, actors=None, gpus=0.0):
        asked.append((actors, gpus, task.device))
        return score_here(sent(task), parts)

    monkeypatch.setattr(on_ray, "score_on_ray", elsewhere)
    scored("photos", *GUARD, *OUT, "--engine", "ray", "--actors", 2)
    assert asked == [(2, 0.0, "cpu")]
    assert_rows(read_rows(here / "scores.csv"), verdicts(photos()), names())


def test_a_stopwatch_counts_what_was_left(monkeypatch):
    times = iter([10.0, 14.0, 14.0])
    monkeypatch.setattr("flatfold.cli.run_summary.perf_counter", lambda: next(times))
    watch = Stopwatch(lambda task, parts: iter([(0, "a")]))
    assert watch.sentence(7000) == "nothing to do: all of it was there already"
    assert list(watch(None, {4: range(4096, 5120), 5: range(5120, 6000)})) == [(0, "a")]
    assert watch.sentence(6000) == "4,096 were there already, 1,904 were left: 4.0 s, 476 images per second"
    assert watch.sentence(1904) == "4.0 s, 476 images per second"


def test_an_interrupt_says_how_to_go_on(here, monkeypatch):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("flatfold.scoring.batch.score_images", interrupted)
    done = run("score", "photos", *GUARD, *OUT)
    assert (done.exit_code, done.stderr) == (130, "flatfold: interrupted; the same command goes on where it stopped\n")
    done = run("score", "photos", *GUARD, *OUT, "--restart")
    assert done.stderr == "flatfold: interrupted; the same command without --restart goes on where it stopped\n"


KILLED = "DataLoader worker (pid 7) is killed by signal: Killed"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(RuntimeError(f"{KILLED}. \nFrames of C++"), KILLED), (MemoryError(), "there was no memory left")],
)
def test_a_machine_that_cannot_is_a_sentence_and_no_traceback(here, monkeypatch, error, sentence):
    def killed(*arguments, **settings):
        raise error

    monkeypatch.setattr("flatfold.scoring.batch.score_images", killed)
    done = run("score", "photos", *GUARD, *OUT)
    assert isinstance(done.exception, OSError)
    assert str(done.exception) == f"{sentence}. The same command goes on where it stopped."


def test_the_help_teaches():
    text = words(run("score", "--help").stdout)
    assert text.count("Example: flatfold score photos") == 2
    assert text.count("Example: flatfold score --features") == 2
    assert "Exit codes: 0 all is scored; 3 done, but some images could not be scored; 1 the input was wrong;" in text


def start(*arguments):
    """Start the program itself."""
    return subprocess.Popen(
        [sys.executable, "-m", "flatfold", "score", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(OMP_NUM_THREADS="1"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )


@pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_was_stopped_goes_on_with_the_same_command(here, how, workers):
    """Three parts of up to 1,024 images; it is stopped after the first."""
    np.savez("many.npz", x=photos(2500))
    slow = ("--guard", "guard.safetensors", "--model", "nets:slow", "--weights", "tiny.pt")
    command = ("many.npz", *slow, *OUT, "--workers", str(workers))
    process = start(*command)
    journal = here / "scores.csv.journal"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(how)
    out, errors = process.communicate()
    assert (process.returncode, out) == (130 if how == signal.SIGINT else -how, ""), errors
    if how == signal.SIGINT:
        assert errors == "flatfold: interrupted; the same command goes on where it stopped\n"
    assert not (here / "scores.csv").exists()
    process = start(*command)
    out, errors = process.communicate()
    assert (process.returncode, out) == (0, ""), errors
    assert errors.startswith("2,500 images, all scored -> scores.csv\n")
    assert any(f"{there} were there already, " in errors for there in ("1,024", "2,048")), errors
    assert not journal.exists()
    scored("many.npz", *GUARD, "--out", "whole.csv")
    assert (here / "scores.csv").read_bytes() == (here / "whole.csv").read_bytes()


def test_the_program_ends_with_its_code(here):
    def ended(*arguments):
        process = start(*arguments)
        out, errors = process.communicate()
        assert out == ""
        return process.returncode, errors

    assert ended("photos", *GUARD, *OUT)[0] == 0
    (here / "photos" / "0007.png").write_bytes(b"")
    assert ended("photos", *GUARD, *OUT)[0] == 3
    code, errors = ended("none", *GUARD, "--out", "none.csv")
    assert (code, errors) == (1, "flatfold: there are no images at none: it does not exist. Check the path.\n")
    assert ended("photos")[0] == 2
    with (here / "scores.csv").open(newline="") as file:
        assert sum(1 for _ in csv.reader(file)) == 50
