"""Photographs in files, fifty of them damaged, by a pretrained network: all others are scored, whatever happens."""

import csv
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

import flatfold as ff
from flatfold.data.images import ArrayImages, FolderImages
from flatfold.scoring.guard_file import read_guard
from flatfold.scoring.shards import (
    ScoringJob,
    Shard,
    join_tables,
    parts_path,
    score_images,
    summary_path,
    unreadable_path,
)
from tests.real.conftest import TRANSFORM, example

KNOWN, UNKNOWN, DAMAGED = 2000, 500, 50


def network(data):
    """The pretrained ResNet-20."""
    model = example("cifar_resnet").resnet20()
    model.load_state_dict(load_file(data / "cifar10_resnet20.safetensors"))
    return model


def images(data, name, n):
    with np.load(data / f"{name}.npz") as file:
        return file["x"][:n]


def huge():
    """A PNG that says that it has 60,000 x 60,000 pixels, and holds none."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


def damage(path, number):
    """Make a whole image one that cannot be scored, in one of ten ways."""
    kind, whole = number % 10, path.read_bytes()
    path.unlink()
    if kind == 0:
        path.symlink_to(path.with_name(f"nowhere-{number}"))
    elif kind == 1:
        Image.fromarray(np.full((32, 32), 1000 + number, np.uint16)).save(path)
    elif kind == 2:
        Image.new("RGB", (32 + number, 32)).save(path)  # another size than the others
    else:
        random = np.random.default_rng(number).bytes(2000)
        contents = [b"", f"no image, number {number}".encode(), random, huge(), whole[:8], whole[:33]]
        path.write_bytes([*contents, whole[: len(whole) // 2]][kind - 3])


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """A folder of images and the guard of the network; names of what was damaged."""
    folder = tmp_path_factory.mktemp("photographs")
    for name, n in (("cifar10_test", KNOWN), ("svhn_test_4k", UNKNOWN)):
        (folder / "images" / name).mkdir(parents=True)
        for row, pixels in enumerate(images(data, name, n)):
            Image.fromarray(pixels).save(folder / "images" / name / f"{row:05d}.png")
    (folder / "images" / "x.png").mkdir()  # no image, and no reason to stop
    paths = sorted((folder / "images").glob("*/*.png"))
    damaged = [paths[int(place)] for place in np.linspace(0, len(paths) - 1, DAMAGED)]
    for number, path in enumerate(damaged):
        damage(path, number)
    with np.load(data / "cifar10_test.npz") as file:
        held_out = ArrayImages(file["x"][-1000:], file["y"][-1000:].astype(np.int64), TRANSFORM, 250)
    ff.Guard.fit(network(data), held_out, method="fold", fpr=0.05).save(folder / "guard.safetensors")
    return folder, damaged


@pytest.fixture(scope="module")
def task(data, folder):
    source = FolderImages(folder[0] / "images", TRANSFORM, 100, labels=False)
    return ScoringJob(read_guard(folder[0] / "guard.safetensors"), partial(network, data), source)


@pytest.fixture(scope="module")
def whole(task, folder):
    out = folder[0] / "whole.csv"
    return out, score_images(task, out)


def column(path, name):
    with path.open(newline="", encoding="utf-8") as file:
        return [line[name] for line in csv.DictReader(file)]


def test_all_sound_images_are_scored_and_all_others_are_named(whole, folder):
    out, summary = whole
    names = {str(path) for path in folder[1]}
    assert (summary.scored, summary.unreadable) == (KNOWN + UNKNOWN - DAMAGED, DAMAGED)
    assert set(column(unreadable_path(out), "path")) == names
    everything = sorted(str(path) for path in (folder[0] / "images").glob("*/*.png"))
    assert column(out, "path") == [path for path in everything if path not in names]
    reasons = column(unreadable_path(out), "reason")
    assert len({reason.partition(": ")[2][:20] for reason in reasons}) >= 5


def test_scores_are_those_of_the_guard_and_unknown_images_raise_more_alarms(whole, task):
    out, _ = whole
    guard = task.load()
    scores = dict(zip(column(out, "path"), map(float, column(out, "score")), strict=True))
    for rows in task.source.batch_ranges([range(100), range(task.source.rows - 100, task.source.rows)]):
        batch, unreadable = task.source.attempt(rows)
        names = [task.source.name(row) for row in rows if row not in unreadable]
        assert np.array_equal(np.float32([scores[name] for name in names]), guard(batch).score.numpy())
        np.testing.assert_allclose(
            [scores[name] for name in names[:3]], [guard(x[None]).score.item() for x in batch[:3]], 1e-5
        )
    alarms = np.array(column(out, "is_ood")) == "true"
    unknown = np.array(["svhn" in path for path in scores])
    assert alarms[~unknown].mean() < 0.1 < alarms[unknown].mean()


def test_shards_are_one_run(whole, task, folder):
    paths = [folder[0] / f"shard-{number}.csv" for number in (1, 2, 3)]
    for number, path in enumerate(paths, 1):
        score_images(task, path, shard=Shard(number, 3))
    out = folder[0] / "joined.csv"
    join_tables(paths, out)
    for of in (Path, unreadable_path, summary_path):
        assert of(out).read_bytes() == of(whole[0]).read_bytes()


KILLED = """
import sys
from functools import partial
from pathlib import Path
from flatfold.data.images import ArrayImages, FolderImages
from flatfold.scoring.shards import ScoringJob, score_images
from flatfold.scoring.guard_file import read_guard
from tests.real.conftest import TRANSFORM
from tests.real.test_batch import network

folder, data = Path(sys.argv[1]), Path(sys.argv[2])
source = FolderImages(folder / "images", TRANSFORM, 100, labels=False)
job = ScoringJob(read_guard(folder / "guard.safetensors"), partial(network, data), source)
score_images(job, folder / "killed.csv")
"""


def test_a_run_that_was_killed_goes_on(whole, task, folder, data):
    out, root = folder[0] / "killed.csv", Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", KILLED, str(folder[0]), str(data)], cwd=root) as run:
        while not list(parts_path(out).glob("*.safetensors")):
            assert run.poll() is None
            time.sleep(0.01)
        os.kill(run.pid, signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
    assert not out.exists()
    score_images(task, out)
    for of in (Path, unreadable_path, summary_path):
        assert of(out).read_bytes() == of(whole[0]).read_bytes()
    assert not parts_path(out).exists()
