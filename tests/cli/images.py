"""Small grey images of three classes, networks that know them, and a suite."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as arrow
import torch
from PIL import Image
from pyarrow.parquet import write_table

import flatfold as ff
from flatfold.cli.options import ModelOptions
from tests.toy_suite import World

NETS = """
import time
from pathlib import Path
from torch import nn

class Slow(nn.Flatten):
    def forward(self, x):
        time.sleep(0.03)
        while Path("hold").exists():
            Path("held").touch()
            time.sleep(0.01)
        return super().forward(x)

def tiny(first=nn.Flatten):
    return nn.Sequential(first(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))

def slow():
    return tiny(Slow)
"""
MODEL = ("--model", "nets:tiny", "--weights", "tiny.pt")
PREPARED = ("--mode", "L", "--mean", "0.4", "--std", "0.3")
TRANSFORM = ff.Transform(mode="L", mean=(0.4,), std=(0.3,))
GUARD = ("--guard", "guard.safetensors", *MODEL)


def network():
    """Return the network in the current folder."""
    return ModelOptions("nets:tiny", Path("tiny.pt")).open()


def pixels(n, seed=0, known=True):
    """Return dim noise, in-distribution images with a bright spot at the place of their class, and the classes."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 100, (n, 4, 4), dtype=np.uint8), np.arange(n) % 3
    if known:
        x[np.arange(n), 0, y] = 255
    return x, y


def photos(n=50):
    """Return in-distribution images, then as many out-of-distribution ones."""
    return np.concatenate([pixels(n // 2, seed=1)[0], pixels(n - n // 2, seed=2, known=False)[0]])


def write_network(folder):
    """Write the module ``nets``, and weights by which its networks know the classes."""
    (folder / "nets.py").write_text(NETS)
    torch.manual_seed(5)
    first, last = 0.1 * torch.randn(8, 16), 0.1 * torch.randn(3, 8)
    first[:3, :3] += torch.eye(3)
    last[:, :3] += 4 * torch.eye(3)
    values = {"1.weight": first, "1.bias": torch.zeros(8), "3.weight": last, "3.bias": torch.zeros(3)}
    torch.save(values, folder / "tiny.pt")


def write_folder(folder, x, y=None):
    """Write images as PNG, in class folders if there are classes; return their paths in the order of the images."""
    paths = []
    for row, image in enumerate(x):
        path = folder / f"{row:04d}.png" if y is None else folder / f"class{y[row]}" / f"{row:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        paths.append(path)
    return paths


def write_parquet(file, paths, y=None, image="image", label="label"):
    """Write a table with the bytes of image files."""
    Path(file).parent.mkdir(exist_ok=True)
    columns = {image: [path.read_bytes() for path in paths]}
    write_table(arrow.table(columns if y is None else columns | {label: y}), file)


def read_rows(path):
    """Return the rows of a CSV file or of JSON lines as dicts; those of CSV are text, but for true and false."""
    if Path(path).suffix == ".jsonl":
        return [json.loads(line) for line in Path(path).read_text().splitlines()]
    flags = {"true": True, "false": False}
    with Path(path).open(newline="", encoding="utf-8") as file:
        return [{name: flags.get(text, text) for name, text in row.items()} for row in csv.DictReader(file)]


def write_suite(folder):
    """Write ``toy.toml`` with two networks, near and far OOD data, and OOD data to tune on; return its world."""
    world = World(folder)
    deep = "nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))"
    (folder / "nets.py").write_text(f"{(folder / 'nets.py').read_text()}\n\ndef deep():\n    return {deep}\n")
    np.savez(folder / "dark.npz", x=np.random.default_rng(0).integers(0, 32, (9, 4, 4), dtype=np.uint8))
    world.document["about"] = "Grey images in [0, 1]."
    world.document["transform"] |= {"mean": [0.0], "std": [0.25]}
    world.document["network"].append({"name": "deep", "factory": "nets:deep"})
    world.document["ood"].append({"name": "dark", "group": "near", "npz": "dark.npz", "skip": 4})
    world.document["ood_val"] = {"npz": "dark.npz", "first": 4}
    world.file()
    return world
