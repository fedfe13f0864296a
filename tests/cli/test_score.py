"""``flatfold score``, ``flatfold score-features`` and ``flatfold join``: tables hold what the library computes."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table
from safetensors.torch import save_file
from torch import nn

import flatfold as ff
from flatfold.detectors import METHODS
from flatfold.passes.local import run_local
from flatfold.scoring.calibrated import Verdict
from tests.cli.images import GUARD, MODEL, PREPARED, TRANSFORM, network, photos, read_rows, write_parquet
from tests.cli.running import assert_mistakes, listing, succeed
from tests.command import flatfold, uncovered_environment

OUT = ("--out", "scores.csv")
NAMES = [Path("photos", f"{row:04d}.png") for row in range(50)]
SMALL = {"knn": {"k": 5}, "vim": {"dim": 6}, "nnguide": {"k": 5}}  # for a bank of 360 rows with 24 features
FOLD = ("--method", "fold")  # which needs the head only
CALIBRATED = ("--calibration", "held_out.safetensors")
pytestmark = [
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
    pytest.mark.filterwarnings("ignore:every sample of this bank is classified correctly"),
]
SLOW = pytest.mark.slow
RAW = ("score-features", "f.npy", "--head", "head.safetensors", *FOLD)
only_once = pytest.mark.parametrize("world", [torch.float32], indirect=True, ids=str)


def start(*arguments):
    """Start the command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "flatfold", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=uncovered_environment(OMP_NUM_THREADS="1"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )


def save(path, features, labels=None):
    save_file({"features": features} | ({} if labels is None else {"labels": labels}), path)


@pytest.fixture
def files(tmp_path, monkeypatch, world):
    """The current folder: a head, OOD features to score, and two sets of ID features."""
    monkeypatch.chdir(tmp_path)
    known = world.bank
    save_file({"weight": world.head.weight, "bias": world.head.bias}, "head.safetensors")
    save("f.safetensors", world.unknown, torch.arange(100) - 1)
    save("known.safetensors", known.features, known.labels)
    save("held_out.safetensors", held_out(world))
    return tmp_path


def held_out(world):
    scale = torch.linspace(0.3, 1, len(world.bank))[:, None].to(world.bank.features)
    return (world.bank.features * scale).contiguous()


def score(*arguments, head=("--head", "head.safetensors")):
    return flatfold("score-features", "f.safetensors", *head, *arguments)


def columns_of(done, world):
    """Return the columns that were printed; numbers with every digit."""
    assert done.returncode == 0, done.stderr
    Path("stdout.csv").write_text(done.stdout)
    rows, dtype = read_rows("stdout.csv"), world.unknown.numpy().dtype
    kinds = {"score": dtype, "p_value": dtype, "is_ood": bool}
    return {name: np.array([row[name] for row in rows]).astype(kinds.get(name, int)) for name in rows[0]}


def test_every_method_scores_as_it_does_in_the_library(files, world):
    for name, entry in METHODS.items():
        if entry.sees != "features":
            continue
        hyper = SMALL.get(name, {})
        method = name + "".join(f":{key}={value}" for key, value in hyper.items())
        options = () if name == "fourfold" else ("--method", method)  # fourfold is the default
        options += () if entry.fits_on == "nothing" else ("--fit", "known.safetensors")
        got = columns_of(score(*options), world)
        assert list(got) == ["row", "predicted", "score", "label"], name
        assert np.array_equal(got["label"], np.arange(100) - 1), name
        detector = ff.create(name, **hyper).fit(world.bank, world.head)
        assert np.array_equal(got["score"], detector(world.unknown).numpy()), name
        assert np.array_equal(got["predicted"], world.head(world.unknown).argmax(1).numpy()), name
        assert np.array_equal(got["row"], np.arange(100)), name


@pytest.mark.parametrize(("fpr", "per_class"), [(None, False), (0.2, True)])
def test_decisions_are_those_of_a_guard_on_the_same_features(files, world, per_class, fpr):
    """The model of the guard is the head itself, so that its features are its inputs."""
    model = nn.Linear(24, 6).to(world.head.weight.dtype)
    model.load_state_dict({"weight": world.head.weight, "bias": world.head.bias})
    rate = 0.05 if fpr is None else fpr
    known = [(world.bank.features, world.bank.labels)]
    guard = ff.Guard.fit(model, known, method="autofold", fpr=rate, calibration=[held_out(world)], per_class=per_class)
    verdict = Verdict(
        guard(world.unknown).logits, *guard.calibrated(world.unknown)
    )  # a model's logits may round otherwise
    options = ["--method", "autofold", "--fit", "known.safetensors", *CALIBRATED]
    options += ["--per-class"] * per_class + ([] if fpr is None else ["--fpr", fpr])
    done = score(*options)
    check(columns_of(done, world), verdict)
    alarms = int(verdict.is_ood.sum())
    assert alarms > 0
    assert f"100 rows, {alarms} alarms" in done.stderr
    guard.save("guard.safetensors")
    half = Verdict(verdict.logits, *guard.at(0.5).calibrated(world.unknown))
    for other, options in ((verdict, ()), (half, ("--fpr", 0.5))):
        check(columns_of(score("--guard", "guard.safetensors", *options, head=()), world), other)


def check(got, verdict):
    assert list(got) == ["row", "predicted", "score", "p_value", "is_ood", "label"]
    for name in ("score", "p_value", "is_ood"):
        np.testing.assert_array_equal(got[name], getattr(verdict, name).numpy(), name)
    assert np.array_equal(got["predicted"], verdict.logits.argmax(1).numpy())


@only_once
def test_notes_go_to_stderr(files, world):
    plain = score("--method", "mls")
    assert plain.stderr.startswith("100 rows; ")
    for fit in ("known.safetensors", "none.safetensors"):
        done = score("--method", "mls", "--fit", fit)
        assert done.stdout == plain.stdout
        assert done.stderr.startswith("note: mls")
    same = ("--fit", "held_out.safetensors", *CALIBRATED)
    assert score("--method", "mls", *same).returncode == 0, "mls has seen none of it"


def test_a_file_holds_the_same_rows_with_every_digit(files, world):
    fitted = ("--fit", "known.safetensors", *CALIBRATED)
    plain = columns_of(score(*fitted), world)
    done = score(*fitted, "--out", "deep/down/scores.parquet")
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads(score(*fitted, "--out", "again.csv", "--json").stdout)["rows"] == len(plain["score"])
    assert score("--json").returncode == 2, "the table goes to stdout"
    found = read_table("deep/down/scores.parquet")
    assert found.column_names == list(plain)
    for name, values in plain.items():
        got = found.column(name).to_numpy()
        assert (got.dtype, got.tolist()) == (values.dtype, values.tolist()), name


@only_once
def test_mistakes_of_features(files, world):
    nan = world.unknown.clone()
    nan[77, 3] = torch.nan
    save("nan.safetensors", nan)
    save("wide.safetensors", torch.zeros(30, 25, dtype=nan.dtype))
    save("few.safetensors", world.unknown[:5].clone())
    save("bare.safetensors", world.bank.features)
    save("double.safetensors", world.unknown.double())
    ff.Guard.fit(nn.Linear(24, 6), [world.bank.features], method="ebo").save("guard.safetensors")
    cases = [
        (["nan.safetensors", *FOLD], 1, "row 77"),
        (["wide.safetensors", *FOLD], 1, "d=25"),
        (["none.npy", *FOLD], 1, "none.npy"),
        (["f.safetensors", "--head", "f.safetensors", *FOLD], 1, "'weight'"),
        (["f.safetensors"], 2, "fourfold learns from ID data. Pass ID features, with labels if needed, as --fit, or"),
        (["f.safetensors", "--method", "mds", "--fit", "bare.safetensors"], 1, "bare.safetensors: "),
        (["f.safetensors", *FOLD, "--calibration", "few.safetensors"], 1, "few.safetensors: "),
        (["f.safetensors", *FOLD, "--calibration", "wide.safetensors"], 1, "d=25"),
    ]
    # the later of two options counts
    assert_mistakes(("score-features", "--head", "head.safetensors", "--out", "scores.csv"), cases, files)
    rounded = (["double.safetensors", "--guard", "guard.safetensors"], 1, "float64")
    assert_mistakes(("score-features",), [rounded], files)


@only_once
def test_the_old_spelling_calls_the_new_command(files, world):
    new = score("--method", "mls")
    for words in (("--features", "f.safetensors"), ("--features=f.safetensors",)):
        old = flatfold("score", "--method", "mls", *words, "--head", "head.safetensors")
        assert (old.returncode, old.stdout) == (0, new.stdout)
        assert old.stderr.startswith("note: `flatfold score --features FILE` is deprecated")


@only_once
@pytest.mark.parametrize("copies", [1, pytest.param(5000, marks=SLOW)])
def test_a_pipe_that_is_closed_ends_it_quietly(files, world, copies):
    """A short table is still in memory when the pipe turns out to be closed, and must not be tried again at the end."""
    np.save("f.npy", world.unknown.repeat(copies, 1).numpy())
    process = start(*RAW)
    if copies > 1:
        assert process.stdout.readline() == "row,predicted,score\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def is_being_written(folder):
    try:
        return any(path.stat().st_size for path in folder.glob(".flatfold-tmp-*/*"))
    except FileNotFoundError:  # a temporary folder was removed in the meantime
        return False


@only_once
@pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX")
@pytest.mark.parametrize(("how", "old"), [(signal.SIGINT, "old"), pytest.param(signal.SIGKILL, None, marks=SLOW)])
def test_a_run_that_is_stopped_leaves_nothing_half_written(files, world, how, old):
    np.save("f.npy", world.unknown.repeat(5000, 1).numpy())
    out = files / "out" / "scores.csv"
    out.parent.mkdir()
    if old:
        out.write_text(old)
    process = start(*RAW, "--out", str(out))
    while not is_being_written(out.parent):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(how)
    _, errors = process.communicate()
    assert process.returncode == (130 if how == signal.SIGINT else -how), errors
    assert (out.read_text() if out.exists() else None) == old
    if how == signal.SIGINT:
        assert [path.name for path in out.parent.iterdir()] == ([] if old is None else ["scores.csv"])


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


def assert_rows(path, said, paths=NAMES):
    """Compare a table of any format with what the guard says, to the last digit."""
    rows = read_rows(path)
    assert [row["path"] for row in rows] == [str(path) for path in paths], path
    assert list(rows[0]) == ["path", "predicted", "score", "p_value", "is_ood"], path
    for name, values in said.items():
        assert np.array_equal(np.array([row[name] for row in rows]).astype(values.dtype), values), (path, name)


@pytest.mark.parametrize("fpr", [None, 0.3])
def test_the_table_is_what_the_guard_says(here, fpr):
    options = ("score", "photos", *GUARD, *OUT, *([] if fpr is None else ["--fpr", fpr]))
    done = succeed(*options)
    said = verdicts(photos(), fpr)
    assert_rows(here / "scores.csv", said)
    alarms = int(said["is_ood"].sum())
    assert 0 < alarms < 50
    assert done.stderr.startswith("50 images, all scored -> scores.csv\n")
    assert f"{alarms} alarms: {2 * alarms} %, {10 if fpr is None else 30} % allowed" in done.stderr
    assert done.stdout == ""
    assert {path.name for path in here.glob("scores*")} == {"scores.csv", "scores.csv.summary.json"}
    before = listing(here)
    assert "nothing to do" in succeed(*options).stderr
    assert listing(here) == before
    assert "nothing to do" not in succeed(*options, "--restart").stderr
    assert listing(here)[str(here / "scores.csv")] > before[str(here / "scores.csv")]


def test_options_of_places_batches_and_preparation(here):
    write_parquet(here / "tables" / "0.parquet", NAMES[:20])
    write_parquet(here / "tables" / "1.parquet", NAMES[20:])
    np.savez("named.npz", pictures=photos())
    (here / "lists").mkdir()
    (here / "lists" / "a.lst").write_text("".join(f"{path.name} -1\n" for path in NAMES))
    for arguments, names in (
        (["lists/a.lst", "--root", "photos", *GUARD], NAMES),
        (["named.npz", "--image-column", "pictures", *GUARD], [f"named.npz:{row}" for row in range(50)]),
        (["tables", *GUARD], [f"tables:{row}" for row in range(50)]),
        (["photos", "--guard", "blind.safetensors", *MODEL, *PREPARED], NAMES),
        (["photos", *GUARD, "--batch-size", 7, "--workers", 2], NAMES),
    ):
        succeed("score", *arguments, "--out", "deep/scores.jsonl", "--restart")
        assert_rows("deep/scores.jsonl", verdicts(photos(), batch_size=7 if "--batch-size" in arguments else 64), names)


def test_images_that_cannot_be_scored_are_listed_and_the_others_scored(here):
    bad = [f"photos/{row:04d}.png" for row in (3, 20, 30, 40)]
    for name in bad:
        Path(name).write_bytes(b"no image")
    for _ in range(2):  # a second run says so too
        done = flatfold("score", "photos", *GUARD, *OUT)
        assert done.returncode == 3
        assert done.stderr.startswith("50 images, 46 scored -> scores.csv\n")
        assert all(name in done.stderr for name in bad[:3])
        assert bad[3] not in done.stderr, "three are shown"
    done = flatfold("score", "photos", *GUARD, *OUT, "--json")
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["scored"], summary["unreadable"]) == (3, 46, 4)
    assert [row["path"] for row in read_rows("scores.csv.unreadable.csv")] == bad
    assert [row["path"] for row in read_rows("scores.csv")] == [str(path) for path in NAMES if str(path) not in bad]


def test_names_control_neither_a_terminal_nor_a_spreadsheet(here):
    name = "=cmd\x1b[2J.png"
    Path("list.txt").write_text(f"{name}\nphotos/0001.png\n")
    Path(name).write_bytes(b"no image")
    done = flatfold("score", "list.txt", *GUARD, *OUT)
    assert done.returncode == 3
    assert "\x1b" not in done.stderr
    assert r"=cmd\x1b[2J.png could not be read" in done.stderr
    assert [row["path"] for row in read_rows("scores.csv.unreadable.csv")] == [f"'{name}"]
    done = flatfold("score", f"none{name}", *GUARD, *OUT)
    assert (done.returncode, "\x1b" in done.stderr) == (1, False)


def test_mistakes_of_images(here):
    write_parquet(here / "tables" / "0.parquet", NAMES)
    write_parquet(here / "photos.parquet", NAMES)
    np.savez("other.npz", pictures=photos())
    guard = ("--guard", "guard.safetensors")
    cases = [
        (["none", *GUARD, *OUT], 1, "none"),
        (["other.npz", *GUARD, *OUT], 1, "--image-column"),
        (["photos", "--guard", "blind.safetensors", *MODEL, *OUT], 1, "--resize"),
        (["photos", *GUARD, *OUT, "--crop", 3], 1, "--crop"),
        (["photos", *guard, "--model", "nets:tiny", *OUT], 1, "other weights"),
        (["photos", *GUARD, *OUT, "--fpr", "0.001"], 1, "999"),
        (["photos.parquet", *GUARD, "--out", "photos.parquet"], 2, "for --out: photos.parquet"),
        (["tables", *GUARD, "--out", "tables/new.parquet"], 2, "for --out: tables/new.parquet"),
        (["photos", *GUARD, "--out", "photos/0001.png/scores.csv"], 2, "for --out"),
    ]
    assert_mistakes(("score",), cases, here)
    succeed("score", "tables", *GUARD, "--out", "tables/scores.csv")
    succeed("score", "photos", *GUARD, "--out", "photos/scores.csv")


def test_ray_gets_its_options_and_a_task_that_can_be_sent(here, monkeypatch):
    asked = []

    def elsewhere(task, parts, actors=None, gpus=0.0):
        asked.append((actors, gpus, task.execution.device))
        return run_local(pickle.loads(pickle.dumps(task)), parts)  # noqa: S301

    monkeypatch.setattr("flatfold.passes.ray.run_on_ray", elsewhere)
    succeed("score", "photos", *GUARD, *OUT, "--engine", "ray", "--actors", 2, "--gpus", 0.5)
    assert [call[:2] for call in asked] == [(2, 0.5)]
    assert_rows(here / "scores.csv", verdicts(photos()))


def test_a_run_that_fails_ends_in_a_sentence(here, monkeypatch):
    killed = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. \nFrames")
    for error, code, keyword in (
        (KeyboardInterrupt(), 130, "without --restart"),
        (killed, 1, "Killed. Run the same"),
        (MemoryError(), 1, "memory"),
    ):
        monkeypatch.setattr("flatfold.scoring.shards.score_images", Mock(side_effect=error))
        assert_mistakes(("score", "photos", *GUARD, *OUT), [(["--restart"], code, keyword)], here)


@pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX")
@pytest.mark.parametrize(("how", "workers"), [(signal.SIGKILL, 0), pytest.param(signal.SIGINT, 2, marks=SLOW)])
def test_a_run_that_was_stopped_goes_on_with_the_same_command(here, how, workers):
    """Forty parts of 64 images; it is stopped after the first."""
    np.savez("many.npz", x=photos(2500))
    slow = ("--guard", "guard.safetensors", "--model", "nets:slow", "--weights", "tiny.pt")
    command = ("many.npz", *slow, *OUT, "--workers", str(workers))
    process = start("score", *command)
    parts = here / "scores.csv.parts"
    while not list(parts.glob("*.safetensors")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(how)
    out, errors = process.communicate()
    assert (process.returncode, out) == (130 if how == signal.SIGINT else -how, ""), errors
    assert not (here / "scores.csv").exists()
    errors = succeed("score", *command).stderr
    assert errors.startswith("2,500 images, all scored -> scores.csv\n")
    assert re.search(r"^[\d,]+ scored before, [\d,]+ now", errors, re.MULTILINE), errors
    assert not parts.exists()
    succeed("score", "many.npz", *GUARD, "--out", "whole.csv")
    assert (here / "scores.csv").read_bytes() == (here / "whole.csv").read_bytes()


def shards():
    """Score all shards; return what `part-*.csv` is in a shell."""
    for number in (1, 2, 3):
        shard = ("--batch-size", 8, "--shard", f"{number}/3", "--out", f"part-{number}.csv")
        assert flatfold("score", "photos", *GUARD, *shard).returncode in (0, 3)
    return sorted(path.name for path in Path().glob("part-*.csv"))


def test_joined_shards_are_the_table_and_the_list_of_one_run(here):
    for row in (3, 38):
        NAMES[row].write_bytes(b"no image")
    whole = flatfold("score", "photos", *GUARD, "--batch-size", 8, *OUT)
    tables = shards()
    assert "part-1.csv.unreadable.csv" in tables, "as a shell would give them"
    done = flatfold("join", *reversed(tables), "--out", "deep/joined.csv")
    assert (done.returncode, whole.returncode) == (3, 3)
    assert done.stderr.splitlines()[:3] == whole.stderr.replace("scores.csv", "deep/joined.csv").splitlines()[:3]
    for suffix in ("", ".unreadable.csv"):
        assert Path(f"deep/joined.csv{suffix}").read_bytes() == Path(f"scores.csv{suffix}").read_bytes()
    assert "0 images" in succeed("score", "photos", *GUARD, "--out", "a.csv", "--shard", "1/3").stderr, "one batch"


def test_mistakes_of_join(here):
    shards()
    shutil.copy("part-1.csv", "lonely.csv")
    two, out = ("part-1.csv", "part-2.csv"), ("--out", "joined.csv")
    cases = [
        ([*two, *out], 1, "missing: 3"),
        (["part-1.csv", *two, *out], 1, "1/3"),
        ([*two, "none.csv", *out], 1, "none.csv"),
        ([*two, "lonely.csv", *out], 1, "lonely.csv.summary.json"),
        (["part-1.csv.unreadable.csv", "part-2.csv", *out], 1, "part-1.csv.unreadable.csv"),
        (out, 2, "Missing argument"),
    ]
    assert_mistakes(("join",), cases, here)


# Wrong usage: (keyword of the message, arguments)

OF_FEATURES = {
    "--guard or --head": ["", "--head h --guard g"],
    "need --head": [f"--guard g {option}" for option in ("--method fold", "--fit x", "--calibration x", "--per-class")],
    "--fit": ["--head h --method knn", "--head h --method autofold"],
    "--calibration": [
        "--head h --fpr .1",
        "--head h --per-class",
        "--head h --method knn --fit a/../x --calibration x",
    ],
    "value for '--fpr'": ["--head h --calibration c --fpr 1.5", "--guard g --fpr -1"],
    "for --out": [f"--head h --out {out}" for out in ("x.txt", ".", "folder.csv")],
    "for --method": [f"--head h --method {name}" for name in ("fild", "fold:beta=1", "fold:.5", "knn@id", "odin")],
    "--model": ["--guard g --model nets:tiny"],
}
WHOLE = " ".join((*GUARD, *OUT))
OF_IMAGES = {
    "'--guard'": ["--model nets:tiny --out scores.csv"],
    "'--model'": ["--guard g --out scores.csv"],
    "'--out'": ["--guard g --model nets:tiny"],
    "--method": [f"{WHOLE} --method fold --per-class"],
    "--actors and --gpus": [f"{WHOLE} --actors 2", f"{WHOLE} --gpus 1"],
    "--workers": [f"{WHOLE} --engine ray --workers 2"],
    "for --shard": [f"{WHOLE} --shard 0/3", f"{WHOLE} --shard half"],
    "for --out": ["--guard g --model nets:tiny --out s.txt"],
    "for '--fpr'": [f"{WHOLE} --fpr {rate}" for rate in ("0", "1", "2", "nan", "x")],
}


def test_wrong_usage(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for command, table in ((("score-features", "f.npy"), OF_FEATURES), (("score", "photos"), OF_IMAGES)):
        cases = [(text.split(), 2, keyword) for keyword, texts in table.items() for text in texts]
        assert_mistakes(command, cases, tmp_path)
