"""Scoring on Ray workers against the same scoring in plain processes: what Ray costs once, and for every image."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import time
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

import flatfold as ff
from flatfold.data.images import ArrayImages, FolderImages
from flatfold.network.model_loading import load_weights, make_model
from flatfold.passes.local import run_local
from flatfold.passes.passes import Parts
from flatfold.passes.ray import run_on_ray
from flatfold.scoring.guard_file import read_guard
from flatfold.scoring.shards import Executor, ScoringJob

from .networks import resnet50
from .ratio import report

EXAMPLES = Path(__file__).parents[1] / "examples"
TRANSFORM = ff.Transform(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
NETWORKS, IMAGES, BATCH, PART, ROUNDS = ("resnet20", "resnet56"), 4096, 64, 128, 3
LARGE = 128
MANY = 10**9


class Pace(NamedTuple):
    """How a run went: seconds before anything came, and images per second from then on."""

    start: float
    rate: float


def run() -> list[bool]:
    """Score PNG files of CIFAR-10 with both networks, by one and by two workers, and by as many processes."""
    if "FLATFOLD_DATA" not in os.environ:
        print("skip  Ray against plain processes: FLATFOLD_DATA is not set, so there are no real images")
        return []
    if find_spec("ray") is None:
        print("skip  Ray against plain processes: Ray is not installed")
        return []
    with tempfile.TemporaryDirectory() as folder, _own_cluster_one_thread():
        images = _write_images(Path(folder) / "images")
        passed = [ok for name in NETWORKS for ok in _compare(name, _task(name, images, Path(folder)))]
        _print_large(Path(folder))
        return passed


def _compare(name: str, task: ScoringJob) -> list[bool]:
    """Run all four ways in turn, a few times, and print what came out."""
    ways: dict[str, Callable[[], Pace]] = {
        "one process": partial(_alone, run_local, task, 1),
        "Ray, 1 worker": partial(_alone, partial(run_on_ray, actors=1), task, 1),
        "two processes": partial(_in_two_processes, task),
        "Ray, 2 workers": partial(_alone, partial(run_on_ray, actors=2), task, 2),
    }
    rounds = [{way: measure() for way, measure in ways.items()} for _ in range(ROUNDS)]
    _print(name, rounds)
    for plain, ray in (("one process", "Ray, 1 worker"), ("two processes", "Ray, 2 workers")):
        print(
            f"      {name}, time per image in parts of {PART}, {ray} against {plain}: {_ratio(rounds, plain, ray):.3g}"
        )
    what = f"{name}, time per image with both cores at work, Ray against plain processes"
    return [report(what, _ratio(rounds, "two processes", "Ray, 2 workers"), "times", 1.1, at_least=False)]


def _print(name: str, rounds: list[dict[str, Pace]]) -> None:
    print(
        f"      {name}, {IMAGES:,} PNG files of 32 x 32 pixels, one thread in each process, median of {ROUNDS} rounds"
    )
    typical = {
        way: Pace(*(median(each) for each in zip(*(paces[way] for paces in rounds), strict=True))) for way in rounds[0]
    }
    for way, pace in typical.items():
        whole = IMAGES / (pace.start + IMAGES / pace.rate)
        print(f"      {way:15} {pace.rate:7.0f} images/s behind a start of {pace.start:5.1f} s; with it {whole:7.0f}")
    pace = typical["Ray, 2 workers"]
    hours = MANY / pace.rate / 3600
    print(
        f"      a projection, not a measurement: a billion such images would take two such workers {hours:,.0f} hours"
    )


def _print_large(folder: Path) -> None:
    """Print the throughput of one core with a network and with photographs of the usual size."""
    (folder / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (LARGE, 24, 32, 3), np.uint8)
    for row, each in enumerate(pixels):
        Image.fromarray(each).resize((500, 375), Image.Resampling.BICUBIC).save(folder / "photos" / f"{row:03d}.jpg")
    transform = ff.Transform(resize=256, crop=224)
    guard = folder / "resnet50.safetensors"
    torch.manual_seed(0)
    ff.Guard.fit(
        _resnet50(), torch.rand(40, 3, 224, 224).split(8), method="fold", loading=ff.Loading(transform=transform)
    ).save(guard)
    task = ScoringJob(read_guard(guard), _resnet50, FolderImages(folder / "photos", transform, 16, labels=False))
    guard, begin = task.load(), time()
    task.part(guard, range(LARGE))
    rate = LARGE / (time() - begin)
    print(
        f"      a network of ResNet-50's size, {LARGE} JPEG files of 500 x 375 pixels: {rate:.1f} images/s on one core"
    )
    print(f"      a projection, not a measurement: a billion would take {MANY / rate / 3600:,.0f} hours of such a core")


def _resnet50() -> torch.nn.Module:
    torch.manual_seed(0)
    return resnet50().eval()


def _ratio(rounds: list[dict[str, Pace]], plain: str, ray: str) -> float:
    return median(paces[plain].rate / paces[ray].rate for paces in rounds)


def _parts() -> Parts:
    return {number: range(start, start + PART) for number, start in enumerate(range(0, IMAGES, PART))}


def _alone(executor: Executor, task: ScoringJob, workers: int) -> Pace:
    begin = time()
    return _pace(begin, _ends(executor, task, _parts()), workers)


def _in_two_processes(task: ScoringJob) -> Pace:
    """Let two processes score half of the parts each, at the same time."""
    parts = list(_parts().items())
    halves = [(run_local, task, dict(parts[first::2])) for first in (0, 1)]
    begin = time()
    with multiprocessing.get_context("spawn").Pool(2, torch.set_num_threads, (1,)) as pool:
        ends = pool.starmap(_ends, halves, chunksize=1)
    return _pace(begin, sorted(ends[0] + ends[1]), 2)


def _ends(executor: Executor, task: ScoringJob, parts: Parts) -> list[float]:
    """Return when each part was done, by the clock that all processes share."""
    return [time() for _ in executor(task, parts)]


def _pace(begin: float, ends: list[float], workers: int) -> Pace:
    """Count from where every worker may have finished a part, so that loading is not a part of the rate."""
    first = ends[workers - 1]
    rate = (len(ends) - workers) * PART / (ends[-1] - first)
    return Pace(first - begin - workers * PART / rate, rate)


def _task(name: str, images: Path, folder: Path) -> ScoringJob:
    data = Path(os.environ["FLATFOLD_DATA"]).resolve()
    model = partial(_network, name, data / f"cifar10_{name}.safetensors")
    with np.load(data / "cifar10_train_5k.npz") as file:
        known = ArrayImages(file["x"], file["y"].astype(np.int64), TRANSFORM, BATCH)
    guard = folder / f"{name}.safetensors"
    ff.Guard.fit(model(), known, method="fold", fpr=0.05).save(guard)
    return ScoringJob(read_guard(guard), model, FolderImages(images, TRANSFORM, BATCH, labels=False))


def _network(name: str, weights: Path) -> torch.nn.Module:
    model = make_model(f"cifar_resnet:{name}", EXAMPLES, seed=0)
    load_weights(model, weights)
    return model.eval()


def _write_images(folder: Path) -> Path:
    folder.mkdir()
    with np.load(Path(os.environ["FLATFOLD_DATA"]) / "cifar10_test.npz") as file:
        for row, pixels in enumerate(file["x"][:IMAGES]):
            Image.fromarray(pixels).save(folder / f"{row:04d}.png")
    return folder


@contextmanager
def _own_cluster_one_thread() -> Iterator[None]:
    """Measure a cluster that is started for it, on this machine, and one thread in each process."""
    threads, before = torch.get_num_threads(), dict(os.environ)
    torch.set_num_threads(1)
    os.environ |= {"RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}  # or scoring would use all free cores
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(before)
