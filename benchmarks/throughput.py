"""`flatfold score` against the loop that a user would write, and against the bare forward pass of the same runtime.

Every side is a process of its own that prints how long its work took, imports aside; sides run in turn. The network of
ResNet-50's size is untrained: only its cost matters. ``FLATFOLD_SHARE=2`` scores every second of its images.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flatfold.data.batch import split_batch
from flatfold.io.cores import free_threads
from flatfold.network.calls import evaluating
from flatfold.network.heads import find_head
from flatfold.network.model_loading import make_model
from flatfold.network.runtime import FastestRuntime

from .ratio import report

ROOT = Path(__file__).parents[1]
BATCH, DISTINCT, IN_MEMORY = 64, 400, 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Job(NamedTuple):
    """A network and the images it scores."""

    title: str
    model: str
    folder: Path  # in which its function is looked for
    images: int
    size: tuple[int, int]
    suffix: str
    resize: tuple[str, ...]
    rounds: int


JOBS = {
    "resnet20": Job(
        "10,000 PNGs of 32 px, ResNet-20", "cifar_resnet:resnet20", ROOT / "examples", 10_000, (32, 32), ".png", (), 2
    ),
    "resnet50": Job(
        "5,000 JPEGs of 500 x 375, ResNet-50-sized",
        "benchmarks.networks:resnet50",
        ROOT,
        5000,
        (500, 375),
        ".jpg",
        ("256", "224"),
        1,
    ),
}


class Side(NamedTuple):
    """What a process says about its work."""

    seconds: float
    runtime: str


def run() -> list[bool]:
    """Measure all sides on this machine as it is, and beside two busy processes."""
    passed = []
    share = int(os.environ.get("FLATFOLD_SHARE", "1"))
    for name, job in JOBS.items():
        with TemporaryDirectory() as place:
            folder = Path(place)
            _write_images(folder / "images", job, job.images)
            fit = ["--limit", "400"] if name == "resnet20" else ["--limit", "120", "--fpr", "0.1"]
            _flatfold(
                job,
                "fit",
                folder / "images",
                "--no-labels",
                *_transform(job),
                *fit,
                "--out",
                folder / "guard.safetensors",
            )
            for load in (0, 2):
                n = job.images // (share * (5 if load else 1) if name == "resnet50" else 1)
                with _busy(load):
                    passed += _compare(name, job, folder, n, load)
    return passed


def _compare(name: str, job: Job, folder: Path, n: int, load: int) -> list[bool]:
    beside = f", beside {load} busy processes" if load else ""
    images = folder / "list.txt"
    images.write_text("".join(f"images/{row:05d}{job.suffix}\n" for row in range(n)))
    rounds = []
    for _ in range(job.rounds):
        (folder / "scores.csv").unlink(missing_ok=True)
        score = _score(job, folder, images)
        kind = score.runtime.partition(" ")[0].rstrip(",")
        sides = {"flatfold score": score, "the user's loop": _side("loop", name, folder, n)}
        sides["bare pass"] = _side("bare", name, folder, n, kind)
        rounds.append(sides)
    for side in rounds[0]:
        each = [sides[side] for sides in rounds]
        speed = n / median(result.seconds for result in each)
        print(f"      {side}: {speed:.1f} images per second; {each[-1].runtime}")

    def ratio(side: str) -> float:
        return median(sides[side].seconds / sides["flatfold score"].seconds for sides in rounds)

    title = job.title if n == job.images else f"{job.title} ({n:,} of them)"
    return [
        report(f"{title}{beside}: faster than the user's loop", ratio("the user's loop"), "times", 1.3),
        report(f"{title}{beside}: time against the bare pass", 1 / ratio("bare pass"), "times", 1.15, at_least=False),
    ]


def _score(job: Job, folder: Path, images: Path) -> Side:
    out = folder / "scores.csv"
    text = _flatfold(job, "score", images, "--guard", folder / "guard.safetensors", "--out", out)
    seconds = next(line.split(" s, ")[0] for line in text.splitlines() if "images per second" in line)
    return Side(float(seconds), json.loads(Path(f"{out}.summary.json").read_text())["runtime"])


def _flatfold(job: Job, command: str, *arguments: object) -> str:
    words = [sys.executable, "-m", "flatfold", command, *map(str, arguments), "--model", job.model]
    done = subprocess.run(words, cwd=job.folder, capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stderr


def _side(*arguments: object) -> Side:
    words = [sys.executable, "-m", "benchmarks.throughput", *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, env=_environment())
    return Side(*json.loads(done.stdout.splitlines()[-1]))


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def _transform(job: Job) -> list[str]:
    options = ["--mean", ",".join(map(str, MEAN)), "--std", ",".join(map(str, STD))]
    return options + (["--resize", job.resize[0], "--crop", job.resize[1]] if job.resize else [])


def _write_images(folder: Path, job: Job, n: int) -> None:
    """Write smooth images that compress about as photographs do; most names are links to one of a few hundred files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for row in range(n):
        file = folder / f"{row:05d}{job.suffix}"
        if row >= DISTINCT:
            os.link(folder / f"{row % DISTINCT:05d}{job.suffix}", file)
            continue
        width, height = job.size
        coarse = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize(job.size, Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = pixels + rng.integers(-12, 13, pixels.shape, dtype=np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, quality=90)


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    """Keep other processes busy meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


class Photos(Dataset[Tensor]):
    """What a user writes to read images."""

    def __init__(self, paths: list[Path], resize: tuple[str, ...]) -> None:
        self.paths, self.resize = paths, tuple(map(int, resize))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        image = Image.open(self.paths[index]).convert("RGB")
        if self.resize:
            side, crop = self.resize
            scale = side / min(image.size)
            image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
            left, top = (image.width - crop) // 2, (image.height - crop) // 2
            image = image.crop((left, top, left + crop, top + crop))
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def _loop(job: Job, folder: Path, n: int) -> Side:
    model = make_model(job.model, job.folder, seed=0).eval()
    start, sure = perf_counter(), []
    paths = [folder / "images" / f"{row:05d}{job.suffix}" for row in range(n)]
    with torch.no_grad():
        for x in DataLoader(Photos(paths, job.resize), batch_size=BATCH, num_workers=2):
            sure.append(model(x).softmax(dim=1).amax(dim=1))
    torch.cat(sure)
    return Side(perf_counter() - start, f"torch, {torch.get_num_threads()} threads, 2 workers")


def _bare(job: Job, folder: Path, n: int, runtime: str) -> Side:
    """Run tensors that are in memory, with as many threads as there are free cores."""
    model = make_model(job.model, job.folder, seed=0).eval()
    torch.set_num_threads(threads := free_threads())
    size = (int(job.resize[1]),) * 2 if job.resize else job.size
    batches = torch.randn(IN_MEMORY, 3, *size).split(BATCH)
    found = find_head(model, batches[0][:2])
    way = FastestRuntime(runtime, model, found, cache=Path(f"{folder / 'guard.safetensors'}.graph"))  # type: ignore[arg-type]
    with evaluating(model):
        way(split_batch(batches[0]))
        start = perf_counter()
        for x in islice(cycle(batches), -(-n // BATCH)):
            way(split_batch(x))
        return Side((perf_counter() - start) * n / (-(-n // BATCH) * BATCH), f"{runtime}, {threads} threads")


def _main(side: str, name: str, folder: str, n: str, runtime: str = "") -> None:
    job = JOBS[name]
    result = _loop(job, Path(folder), int(n)) if side == "loop" else _bare(job, Path(folder), int(n), runtime)
    print(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
