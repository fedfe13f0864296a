"""A benchmark that is killed in the middle and run again: the same numbers, nothing computed twice but one shard."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest

SHARD, BATCH, FEW = 4096, 250, 2
PLANNED, CHOICE = FEW + 16, 24  # images that are timed for the estimate, and at most on which a runtime is chosen
SUITE = """
[transform]
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[[network]]
name = "resnet20"
factory = "counting:resnet20"
weights = "$FLATFOLD_DATA/cifar10_resnet20.safetensors"
[val]
npz = "$FLATFOLD_DATA/cifar10_test.npz"
per_class = 50
[test]
npz = "$FLATFOLD_DATA/cifar10_test.npz"
rest_of = "val"
[[ood]]
name = "textures"
group = "far"
npz = "$FLATFOLD_DATA/textures_dtd10_32.npz"
[[ood]]
name = "svhn"
group = "far"
npz = "$FLATFOLD_DATA/svhn_test_4k.npz"
first = 1000
"""
NETWORK = """
import os
import sys
sys.path.insert(0, {examples!r})
import cifar_resnet

def resnet20():
    model = cifar_resnet.resnet20()
    def count(module, args):
        with open(os.environ["COUNT"], "a") as file:
            file.write(f"{{len(args[0])}}\\n")
    model.register_forward_pre_hook(count)
    return model
"""
COSTS = {"fit_seconds", "microseconds_per_sample", "peak_megabytes"}
SETS = ("val", "test", "textures", "svhn")
IMAGES = 500 + 9500 + 1200 + 1000


@pytest.fixture
def bench(data, tmp_path):
    """Start the benchmark in a folder; the images that its network sees are counted in a file."""
    (tmp_path / "suite.toml").write_text(SUITE)
    examples = os.path.join(os.path.dirname(__file__), "..", "..", "examples")
    (tmp_path / "counting.py").write_text(NETWORK.format(examples=os.path.abspath(examples)))

    def start(name, count):
        arguments = ["bench", str(tmp_path / "suite.toml"), "--out", str(tmp_path / name), "--batch-size", str(BATCH)]
        arguments += ["--methods", "msp,fold,autofold", "--bootstrap", "200", "--no-report"]
        environment = {**os.environ, "FLATFOLD_DATA": str(data), "COUNT": str(tmp_path / count)}
        return subprocess.Popen(
            [sys.executable, "-m", "flatfold", *arguments], env=environment, stdout=subprocess.DEVNULL
        )

    return start


def seen(path):
    return sum(map(int, path.read_text().split()))


def table(folder):
    with (folder / "results.csv").open() as file:
        return [{name: value for name, value in line.items() if name not in COSTS} for line in csv.DictReader(file)]


def test_a_killed_benchmark_goes_on_where_it_stopped(bench, tmp_path):
    assert bench("whole", "whole.count").wait() == 0
    assert 0 <= seen(tmp_path / "whole.count") - IMAGES - FEW * len(SETS) - PLANNED <= CHOICE

    run = bench("killed", "first.count")
    shards = tmp_path / "killed" / "banks"
    while not list(shards.glob("test-*/00001.safetensors")):  # the second of three
        assert run.poll() is None
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "results.json").exists()

    assert bench("killed", "second.count").wait() == 0
    assert table(tmp_path / "killed") == table(tmp_path / "whole")
    for name in ("scores.safetensors", "averages.csv", "thumbnails.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    both = seen(tmp_path / "first.count") + seen(tmp_path / "second.count")
    assert both - IMAGES <= SHARD + BATCH + 2 * (FEW * len(SETS) + PLANNED + CHOICE)
