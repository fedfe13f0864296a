"""Small grey images of three classes, a network that knows them, and the commands in this process."""

import csv

import numpy as np
import pyarrow as arrow
import torch
import typer
from PIL import Image
from pyarrow.parquet import write_table
from typer.testing import CliRunner

from flatfold.cli.fit import fit
from flatfold.cli.join import join
from flatfold.cli.score import score

NETS = """
import time
from torch import nn

LAYERS = lambda: (nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.03)
        return super().forward(x)

def tiny():
    return nn.Sequential(*LAYERS())

def slow():
    return Slow(*LAYERS())
"""
MODEL = ("--model", "nets:tiny", "--weights", "tiny.pt")
PREPARED = ("--mode", "L", "--mean", "0.4", "--std", "0.3")
GUARD = ("--guard", "guard.safetensors", *MODEL)

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (fit, score, join):
    app.command()(command)


def run(*arguments):
    """Give a command, and return what it printed and how it ended."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def words(text):
    """Return a text without its line breaks."""
    return " ".join(text.split())


def pixels(n, seed=0, known=True):
    """Dim noise, in which known images have a bright spot where their class has its own; and the classes."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 100, (n, 4, 4), dtype=np.uint8), np.arange(n) % 3
    if known:
        x[np.arange(n), 0, y] = 255
    return x, y


def write_network(folder):
    """Write the module ``nets``, and weights by which its network knows the classes."""
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
    columns = {image: [path.read_bytes() for path in paths]}
    write_table(arrow.table(columns if y is None else columns | {label: y}), file)


def read_rows(path):
    """Return the rows of a CSV file as dicts of text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
