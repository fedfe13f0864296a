"""Peak memory of a run that scores images: ten times as many of them must not take more."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.models.images import open_images
from flatfold.scoring.batch import ScoringJob, score_images
from flatfold.scoring.guard_file import read_guard

from .ratio import report

FEW, MANY, DISTINCT, SIDE = 10_000, 100_000, 200, 8
MOST = 1.10


def network() -> nn.Module:
    """Return a classifier so small that the memory is that of everything else."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def run() -> list[bool]:
    """Score few and many images of a folder and of a table, each in a process of its own, and compare their peaks."""
    passed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        guard = ff.Guard.fit(network(), [torch.randn(400, 3, SIDE, SIDE)], detector="fold")
        guard.save(folder / "guard.safetensors")
        images = _images()
        for kind, write, out in (("folder", _write_folder, ".csv"), ("table", _write_table, ".parquet")):
            places = [write(images, folder / f"{kind}-{n}", n) for n in (FEW, MANY)]
            few, many = (_peak(folder / "guard.safetensors", place, folder / f"{place.stem}{out}") for place in places)
            print(f"      images of a {kind}: {FEW:,} took {few:.0f} MB at most, {MANY:,} took {many:.0f} MB")
            what = f"memory to score {MANY:,} images of a {kind} against {FEW:,}"
            passed.append(report(what, many / few, "times", MOST, at_least=False))
    return passed


def _images() -> list[bytes]:
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


def _peak(*paths: Path) -> float:
    """Return the megabytes that a process takes at most which scores the images of a place."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.memory", *map(str, paths)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def _score(guard: str, place: str, out: str) -> None:
    """Score all images of a place and print the peak of this process's memory, in megabytes."""
    source = open_images(place, ff.Transform(), labels=False)
    summary = score_images(ScoringJob(read_guard(Path(guard)), network, source), out)
    assert summary.scored == source.rows
    print(_peak_kilobytes() / 1024)


def _peak_kilobytes() -> float:
    # Linux counts the parent's memory in ru_maxrss, which a process has for a moment before it becomes another program.
    status = Path("/proc/self/status")
    if status.exists():
        return next(float(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    from resource import RUSAGE_SELF, getrusage

    return getrusage(RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)


if __name__ == "__main__":
    _score(*sys.argv[1:])
