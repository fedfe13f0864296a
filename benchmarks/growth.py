"""How time and memory grow with the classes of a head, with the images of a run, and with the rows of a bank.

Each measurement is a process of its own; for the rows of a bank, all methods run in one process, one after the other.
Time is that of one row or image. Memory is the peak of the process; for heads and banks it is the peak beyond the data
that was given: anonymous memory, without the pages of mapped files, which the system can drop.
"""

import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.data.banks import BankWriter
from flatfold.data.images import open_images
from flatfold.scoring.guard_file import read_guard
from flatfold.scoring.shards import ScoringJob, score_images

from .ratio import report, seconds

CLASSES, WIDTH, QUERIES = (10, 1000, 20_000), 512, 1000
SAMPLES = {"fold": 4000, "autofold": 2000, "fourfold": 2000, "mds": 4000, "knn": 4000}
EVERY_CLASS = ("mds", "knn")  # whose cost depends on the classes that occur, or on the samples
EXPONENTS = 10  # of AutoFold's grid, whose cost is proportional to them
MOST_MEGABYTES, MOST_GROWTH = 2000, 1.5

IMAGES, DISTINCT, SIDE = (1000, 10_000, 100_000), 200, 8
MOST_TIMES = 1.10

ROWS, WIDE, PART = (40_000, 200_000, 1_281_167), 2048, 16_384
TRAINED = [
    *("nci", "dice", "fdbd", "she", "optfs", "openmax", "pnml", "mds", "mds:alpha=1", "rmds", "neco", "vim"),
    *("nnguide", "knn", "knn:share=0.1", "knn:storage=float16", "relation"),
]
MOST_MEGABYTES_OF_ROWS = 6000


def run() -> list[bool]:
    """Measure both kinds of growth."""
    return [*classes(), *images()]


# --- classes


def classes() -> list[bool]:
    """Fit and score five methods with heads of 10, 1,000 and 20,000 classes."""
    head = ("method", "classes", "samples", "fit, ms each", "score, ms each", "memory, MB")
    print("      {:<10}{:>8}{:>9}{:>14}{:>16}{:>12}".format(*head))
    passed = []
    for method in SAMPLES:
        times = []
        for c in CLASSES:
            samples, fit, score, peak = _run_alone("classes", method, c)
            print(f"      {method:<10}{c:>8,}{samples:>9,.0f}{1e3 * fit:>14.3g}{1e3 * score:>16.3g}{peak:>12.0f}")
            times.append(fit + score)
        passed.append(report(f"memory of {method} at {CLASSES[2]:,} classes", peak, "MB", MOST_MEGABYTES, False))
        what = f"time of {method} per row, fit and score, at {CLASSES[2]:,} classes against {CLASSES[1]:,}"
        passed.append(report(what, times[2] / times[1], "times", MOST_GROWTH * CLASSES[2] / CLASSES[1], False))
    return passed


def _measure_classes(method: str, n_classes: str) -> None:
    """Fit and score one method, and print samples, seconds per sample, seconds per row and megabytes."""
    torch.set_num_threads(1)
    c, samples = int(n_classes), SAMPLES[method]
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(c, WIDTH, generator=g) / WIDTH**0.5
    if method in EVERY_CLASS:
        samples = max(samples, 2 * c)
        labels = torch.arange(samples) % c
    else:
        labels = torch.randint(min(c, samples // 4), (samples,), generator=g)
    own = torch.cat([labels, labels[:QUERIES]])
    made = (30 * weight[own] + 0.6 * torch.randn(len(own), WIDTH, generator=g)).relu_()
    features, queries = made[:samples], made[samples:]
    labels[::20] = labels.roll(7)[::20]  # some mistakes, so that there is a likeliest temperature
    bank, head = ff.FeatureBank(features, labels), ff.Head(weight, torch.zeros(c))
    grid = [(1 + i) / EXPONENTS for i in range(EXPONENTS)]
    detector = ff.create(method, **({"grid": grid} if method == "autofold" else {}))
    with warnings.catch_warnings(), torch.inference_mode(), _private_peak() as peak:
        warnings.simplefilter("ignore")  # AutoFold's curve may be flat
        fit = seconds(lambda: detector.fit(bank, head))
        detector(queries[:10])  # warm-up
        score = seconds(lambda: detector(queries))
    print(samples, fit / samples, score / QUERIES, peak())


@contextmanager
def _private_peak() -> Iterator[Callable[[], float]]:
    """Watch the anonymous memory of this process; yield the function that returns by how many megabytes it grew."""
    before = _status("RssAnon")
    peak, done = before, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, _status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: (peak - before) / 1024
    finally:
        done.set()
        watcher.join()


# --- images


def network() -> nn.Module:
    """Return a classifier so small that the memory is that of everything else."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def images() -> list[bool]:
    """Score 1,000 to 100,000 images of a folder and of a table: ten times as many must not take more memory."""
    passed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        guard = ff.Guard.fit(network(), [torch.randn(400, 3, SIDE, SIDE)], method="fold")
        guard.save(folder / "guard.safetensors")
        encoded = _encoded_images()
        print(f"      {'images of a':<12}{'images':>8}{'time, ms each':>15}{'memory, MB':>12}")
        for kind, write, out in (("folder", _write_folder, ".csv"), ("table", _write_table, ".parquet")):
            peaks = []
            for n in IMAGES:
                place = write(encoded, folder / f"{kind}-{n}", n)
                time, peak = _run_alone("images", folder / "guard.safetensors", place, folder / f"{place.stem}{out}")
                print(f"      {kind:<12}{n:>8,}{1e3 * time:>15.3g}{peak:>12.0f}")
                peaks.append(peak)
            what = f"memory to score {IMAGES[2]:,} images of a {kind} against {IMAGES[1]:,}"
            passed.append(report(what, peaks[2] / peaks[1], "times", MOST_TIMES, at_least=False))
    return passed


def _encoded_images() -> list[bytes]:
    """Return some encoded images of noise."""
    rng, encoded = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "image.png"
        for _ in range(DISTINCT):
            Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(path)
            encoded.append(path.read_bytes())
    return encoded


def _write_folder(images: list[bytes], path: Path, n: int) -> Path:
    """Write images under n names; many names are links to one file, of which a file system takes only so many."""
    for row in range(n):
        file = path / f"photos-{row // 1000:03d}" / f"taken-on-a-sunny-day-{row:06d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        first = (
            path / f"photos-{row // 10_000 * 10:03d}" / f"taken-on-a-sunny-day-{row - row % 10_000 + row % 200:06d}.png"
        )
        file.write_bytes(images[row % DISTINCT]) if file == first else os.link(first, file)
    return path


def _write_table(images: list[bytes], path: Path, n: int) -> Path:
    import pyarrow
    from pyarrow.parquet import write_table

    path = path.with_suffix(".parquet")
    column = [{"bytes": images[row % DISTINCT], "path": None} for row in range(n)]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    write_table(pyarrow.table({"image": pyarrow.array(column, kind)}), path, row_group_size=1000)
    return path


def _measure_images(guard: str, place: str, out: str) -> None:
    """Score all images of a place and print seconds per image and the peak of this process's memory, in megabytes."""
    source = open_images(place, ff.Transform(), labels=False)
    job, summaries = ScoringJob(read_guard(Path(guard)), network, source), []
    time = seconds(lambda: summaries.append(score_images(job, out)))
    assert summaries[0].scored == source.rows
    print(time / source.rows, _peak_kilobytes() / 1024)


# --- rows of a bank


def rows() -> list[bool]:
    """Fit every method that learns from training data to 40,000 rows up to those of ImageNet-1K, and score some.

    This takes more than an hour, and 21 GB in the folder for temporary files.
    """
    passed, measured = [], {}
    print(f"      {'method':<22}{'rows':>11}{'fit, s':>10}{'score, ms each':>16}{'memory, MB':>12}")
    for n in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            _make_bank(Path(folder), n)
            for method, numbers in zip(TRAINED, _lines_alone("rows", folder, threads=None), strict=True):
                fit, score, peak = measured[method, n] = numbers
                print(f"      {method:<22}{n:>11,}{fit:>10.3g}{score:>16.3g}{peak:>12.0f}", flush=True)
    most, least = ROWS[-1], ROWS[1]
    for method in TRAINED:
        peak = measured[method, most][2]
        passed.append(report(f"memory of {method} at {most:,} rows", peak, "MB", MOST_MEGABYTES_OF_ROWS, False))
        times = measured[method, most][0] / max(measured[method, least][0], 0.1)
        what = f"time to fit {method} to {most:,} rows against {least:,}"
        passed.append(report(what, times, "times", MOST_GROWTH * most / least, False))
    return passed


def _make_bank(folder: Path, n: int) -> None:
    """Write a bank of random features with class structure, and the head, a part at a time."""
    g = torch.Generator().manual_seed(0)
    means, basis = 0.6 * torch.randn(1000, WIDE, generator=g), 0.15 * torch.randn(64, WIDE, generator=g)
    torch.save(means / WIDE**0.5, folder / "weight.pt")
    with closing(BankWriter(folder / "bank", {"data": "random"}, width=WIDE, labels=True, shard_rows=PART)) as writer:
        for start in range(0, n, PART):
            labels = torch.randint(1000, (min(PART, n - start),), generator=g)
            h = torch.randn(len(labels), WIDE, generator=g) + torch.randn(len(labels), 64, generator=g) @ basis
            writer.add(range(start, start + len(labels)), (h + means[labels]).relu_(), labels, {})
        writer.end(n)
        writer.finish()


def _measure_rows(folder: str) -> None:
    """Print seconds of the fit, milliseconds per scored row and megabytes of every method."""
    bank = ff.load_bank(Path(folder) / "bank", verify=False)
    head, queries = ff.Head(torch.load(Path(folder) / "weight.pt")), bank.features[:200].clone()
    for method in TRAINED:
        detector = ff.create(method)
        with warnings.catch_warnings(), torch.inference_mode(), _private_peak() as peak:
            warnings.simplefilter("ignore")
            fit = seconds(lambda detector=detector: detector.fit(bank, head))
            score = seconds(lambda detector=detector: detector(queries))
        print(fit, 1e3 * score / len(queries), peak(), flush=True)


# --- processes


def _run_alone(*arguments: object) -> list[float]:
    """Return all numbers that a measurement in a process of its own prints."""
    return [number for line in _lines_alone(*arguments) for number in line]


def _lines_alone(*arguments: object, threads: int | None = 1) -> Iterator[list[float]]:
    """Yield the numbers of each line that a measurement in a process of its own prints, as it prints them.

    None means torch's number of threads.
    """
    environment = dict(os.environ) if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.growth", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield [float(number) for number in line.split()]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _status(field: str) -> float:
    """Return a field of this process's status in kilobytes, on Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field))


def _peak_kilobytes() -> float:
    # Linux counts the parent's memory in ru_maxrss, which a process has for a moment before it becomes another program.
    if Path("/proc/self/status").exists():
        return _status("VmHWM")
    from resource import RUSAGE_SELF, getrusage

    return getrusage(RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)


if __name__ == "__main__":
    {"classes": _measure_classes, "images": _measure_images, "rows": _measure_rows}[sys.argv[1]](*sys.argv[2:])
