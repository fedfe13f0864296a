"""Commands that are killed, interrupted, or find the disk full at any step.

Nothing is half written, and the same command run again writes the same bytes as one that was left alone.
"""

import errno
import os
import shutil
import signal

import numpy as np
import pytest

import flatfold as ff
from flatfold.data.images import ArrayImages
from flatfold.io.files import LOCK
from tests.cli.images import (
    GUARD,
    MODEL,
    PREPARED,
    TRANSFORM,
    network,
    photos,
    pixels,
    write_folder,
    write_network,
    write_suite,
)
from tests.hostile.forked import Fault, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX"),
]
TORCH = ("--runtime", "torch")
SCORE = ("score", "many.npz", *GUARD, *TORCH, "--batch-size", 16)
BENCH = ("toy.toml", "--networks", "tiny", "--no-report", "--out", "out")
COMMANDS = {
    "score": (*SCORE, "--out", "out/scores.csv"),
    "score to parquet": (*SCORE, "--out", "out/scores.parquet"),
    "join": ("join", "a.csv", "b.csv", "--out", "out/all.csv"),
    "score-features": ("score-features", "f.npy", "--guard", "guard.safetensors", "--out", "out/scores.csv"),
    "fit": ("fit", "val", *MODEL, *PREPARED, *TORCH, "--out", "out/new.safetensors"),
    "bench": ("bench", *BENCH, "--methods", "msp,autofold", "--bootstrap", 0),
}
TIMED = {"results.csv", "results.json", "summary.csv", "summary.json", "curvature.json"}  # these also hold seconds


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with all inputs of the commands."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        suite = write_suite(folder)
        suite.document["network"] = suite.document["network"][:1]
        suite.file()
        nets = (folder / "nets.py").read_text()
        write_network(folder)
        (folder / "toy.toml").write_text((folder / "toy.toml").read_text().replace("nets:tiny", "suite_nets:tiny"))
        (folder / "suite_nets.py").write_text(nets)
        images = ArrayImages(*pixels(100), TRANSFORM)
        ff.Guard.fit(network(), images, method="fold", fpr=0.1).save("guard.safetensors")
        np.savez("many.npz", x=photos(48))
        np.save("f.npy", np.random.default_rng(0).random((5000, 8), np.float32))
        write_folder(folder / "val", *pixels(60))
        for number, name in ((1, "a"), (2, "b")):
            assert run(*SCORE, "--shard", f"{number}/2", "--out", f"{name}.csv", cwd=folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    """Return what a command writes if it is left alone, and the number of its steps; each is run once."""
    known = {}

    def whole(name):
        if name not in known:
            place = shutil.copytree(world, tmp_path_factory.mktemp("whole") / "here")
            done = run(*COMMANDS[name], cwd=place)
            assert done.returncode == 0, done
            known[name] = written(place), done.steps
        return known[name]

    return whole


def written(folder):
    """Return all that is in the output folder: the content of every file, or False where it depends on the clock.

    The lock of a killed run may stay: it is held by nobody.
    """
    paths = sorted(path for path in (folder / "out").rglob("*") if path.name != LOCK)
    return {str(path.relative_to(folder)): content(path) for path in paths}


def content(path):
    return path.read_bytes() if path.is_file() and path.name not in TIMED else path.is_dir()


def spread(steps, count):
    """Return up to so many numbers of steps, the first and the last among them."""
    return sorted({1 + round(i * (steps - 1) / (count - 1)) for i in range(count)})


def trial(world, tmp_path, name, fault, whole):
    """Stop a command at a step and run it again; return what the first one said."""
    wanted, _ = whole(name)
    place = tmp_path / "here"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(world, place)
    stopped = run(*COMMANDS[name], cwd=place, fault=fault)
    case = f"{name}, {fault}: {stopped}"
    assert "Traceback" not in stopped.stderr, case
    for path, text in written(place).items():
        if path in wanted and text is not True and path.count("/") == 1:
            assert text == wanted[path], f"{case}: {path} is not whole"
    left = [path for path in written(place) if ".flatfold" in path]
    assert stopped.returncode == -signal.SIGKILL or not left, f"{case}: {left}"
    again = run(*COMMANDS[name], cwd=place)
    assert again.returncode == 0, f"{case}\nagain: {again}"
    assert written(place) == wanted, f"{case}\nagain: {again}"
    return stopped


KILLED = {"score": 12, "join": 6, "score-features": 5, "fit": 9, "bench": 11}
FULL = {**KILLED, "score": 8, "bench": 3}


@pytest.mark.parametrize("name", KILLED)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_command_that_is_stopped_at_any_step_goes_on(world, tmp_path, whole, name, how):
    for step in spread(whole(name)[1], KILLED[name]):
        stopped = trial(world, tmp_path, name, Fault(step, signal=how), whole)
        assert stopped.returncode == (130 if how == signal.SIGINT else -how), (step, stopped)
        assert how == signal.SIGKILL or "interrupted" in stopped.stderr.splitlines()[-1], (step, stopped)


@pytest.mark.parametrize("name", FULL)
def test_a_disk_that_is_full_from_any_step_on_is_one_line(world, tmp_path, whole, name):
    for step in spread(whole(name)[1], FULL[name]):
        stopped = trial(world, tmp_path, name, Fault(step, error=errno.ENOSPC), whole)
        assert stopped.returncode in (0, 1, 2), (step, stopped)  # the last steps remove what is not needed
        assert not stopped.returncode or "space" in stopped.stderr.splitlines()[-1], (step, stopped)
