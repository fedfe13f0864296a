"""A trained network on a Ray cluster: real images, some of them damaged, one of two workers killed."""

import gc
import os
import signal
import time
import warnings
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image

import flatfold as ff
from flatfold.cli.model import open_model
from flatfold.models.images import FolderImages
from flatfold.scoring.batch import Task, score_images, shard
from flatfold.scoring.batch.on_ray import score_on_ray
from tests.real.conftest import TRANSFORM, images

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'flatfold[ray]'")

KNOWN, UNKNOWN, DAMAGED = 1000, 500, (3, 640, 641, 1207)
NETWORK = """
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, {examples!r})
import cifar_resnet


def resnet20():
    model = cifar_resnet.resnet20()
    model.register_forward_pre_hook(note)
    return model


def note(module, args):
    Path("at_work").mkdir(exist_ok=True)
    Path("at_work", str(os.getpid())).touch()
    while Path("hold").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(address="local", num_cpus=2, object_store_memory=100 * 2**20, **quiet)
    yield
    ray.shutdown()
    with warnings.catch_warnings():  # Ray does not wait for processes that it has ended
        warnings.filterwarnings("ignore", "subprocess [0-9]+ is still running", ResourceWarning)
        gc.collect()


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def task(data, tmp_path, monkeypatch):
    """PNG files of CIFAR-10 and SVHN, and a guard that was calibrated on other images of CIFAR-10."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shard, "PART_ROWS", 100)
    examples = Path(__file__).parents[2] / "examples"
    Path("nets.py").write_text(NETWORK.format(examples=str(examples)))
    Path("images").mkdir()
    pictures = [np.load(data / f"{name}.npz")["x"] for name in ("cifar10_test", "svhn_test_4k")]
    for row, pixels in enumerate([*pictures[0][:KNOWN], *pictures[1][:UNKNOWN]]):
        Image.fromarray(pixels).save(f"images/{row:04d}.png")
    for row in DAMAGED:
        path = Path(f"images/{row:04d}.png")
        path.write_bytes(path.read_bytes()[:300])
    make = partial(open_model, "nets:resnet20", data / "cifar10_resnet20.safetensors")
    ff.Guard.fit(make(), images(data, "cifar10_train_5k"), detector="fold", fpr=0.05).save("guard.safetensors")
    source = FolderImages("images", TRANSFORM, batch_size=50, labels=False)
    return Task(Path("guard.safetensors"), make, source)


def kill_one_of_two(killed):
    """Kill a worker while both are held at their first batch, then let the other one go."""
    end = time.monotonic() + 120
    while len(pids := [int(path.name) for path in Path("at_work").glob("*")]) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    if len(pids) == 2:
        os.kill(pids[0], signal.SIGKILL)
        killed.append(pids[0])
    Path("hold").unlink()


def test_a_table_from_two_workers_of_whom_one_was_killed_is_that_of_one_process(task, cluster, one_thread):
    local = score_images(task, "local.csv")
    assert (local.scored, local.unreadable) == (KNOWN + UNKNOWN - len(DAMAGED), len(DAMAGED))
    assert local.monitor.alarms > UNKNOWN / 10  # of which there are more than the known images alone would raise
    for path in Path("at_work").glob("*"):
        path.unlink()
    Path("hold").touch()
    killed = []
    killer = Thread(target=kill_one_of_two, args=[killed], daemon=True)
    killer.start()
    score_images(task, "ray.csv", engine=partial(score_on_ray, actors=2))
    killer.join()
    assert len(killed) == 1
    for end in ("", ".summary.json", ".unreadable.csv"):
        assert Path(f"ray.csv{end}").read_bytes() == Path(f"local.csv{end}").read_bytes()
