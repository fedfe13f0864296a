"""A network, its guard and a folder of images, all small enough to be scored again and again."""

import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.data.images import FolderImages
from flatfold.scoring.guard_file import read_guard
from flatfold.scoring.shards import ScoringJob

TRANSFORM = ff.Transform(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
SIDE = 6


def make_network(seed=0, dtype=torch.float32):
    """A convolutional network with three classes, each of which noise may be taken for."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    with torch.no_grad():
        model[4].bias -= model(torch.randn(200, 3, SIDE, SIDE)).mean(dim=0)
    return model.to(dtype)


def write_images(root, n, seed=0, names="{:04d}.png"):
    """Write images of noise of many brightnesses."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for row in range(n):
        pixels = rng.integers(0, rng.integers(2, 257), (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / names.format(row))
    return root


def write_guard(path, model=None, **settings):
    """Fit a guard on noise, and save it."""
    model = make_network() if model is None else model
    x = torch.randn(400, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    settings = {"method": "fold", "fpr": 0.2, **settings}
    ff.Guard.fit(model, [x.to(next(model.parameters()))], **settings).save(path)
    return path


def make_task(folder, images=50, batch_size=4, model=make_network, transform=TRANSFORM, **settings):
    """Write whatever is not there yet in a folder, and return the task."""
    root, guard = Path(folder) / "images", Path(folder) / "guard.safetensors"
    if not root.exists():
        write_images(root, images)
    if not guard.exists():
        write_guard(guard, model())
    return ScoringJob(read_guard(guard), model, FolderImages(root, transform, batch_size, labels=False), **settings)


def read_csv(path):
    """Return the rows of a table as dicts of text."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def broken(kind, path):
    """Put an image that cannot be scored at a path."""
    if kind == "nothing":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("no image")
    elif kind == "cut off":
        path.write_bytes(path.read_bytes()[:60])
    elif kind == "16 bit":
        Image.fromarray(np.full((SIDE, SIDE), 300, np.uint16)).save(path)
    elif kind == "another size":
        Image.fromarray(np.zeros((SIDE + 1, SIDE, 3), np.uint8)).save(path)
    else:
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(path)  # too small for a crop
