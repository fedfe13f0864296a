"""A small folder with images, networks and a suite file, for every test that needs one."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from flatfold.evaluate.suites.toml_file import SuiteFile

NETS = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Size:
    classes: "int" = 3

def tiny():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, Size().classes))

def wide():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 5))

def wrong():
    return "a network"

def needy(depth):
    return None
"""


def toml(document):
    """Write tables of plain values: JSON's strings, numbers and lists are TOML's too."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in document.items() if not nested(value)]
    for key, value in document.items():
        for table in nested(value):
            title = f"[[{key}]]" if isinstance(value, list) else f"[{key}]"
            lines += [title, *(f"{name} = {plain(entry)}" for name, entry in table.items())]
    return "\n".join(lines)


def plain(value):
    """Write one value; a table goes on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {json.dumps(entry)}" for name, entry in value.items()) + "}"
    return json.dumps(value)


def nested(value):
    tables = value if isinstance(value, list) else [value]
    return tables if all(isinstance(table, dict) for table in tables) else []


class World:
    """A folder with images, a file of networks and a suite file that is valid until a test changes it."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "toy.toml"
        (folder / "nets.py").write_text(NETS)
        for name, n in (("train", 12), ("pool", 30), ("other", 7)):
            np.savez(folder / f"{name}.npz", x=pixels(n), y=np.arange(n) % 3, twin=pixels(n, seed=1))
        self.document = {
            "transform": {"mode": "L"},
            "network": [{"name": "tiny", "factory": "nets:tiny"}],
            "train": {"npz": "train.npz"},
            "val": {"npz": "pool.npz", "per_class": 4},
            "test": {"npz": "pool.npz", "rest_of": "val"},
            "ood": [{"name": "strange", "group": "far", "npz": "other.npz"}],
        }

    def file(self, seed=None, **arguments):
        self.path.write_text(toml(self.document))
        return SuiteFile(self.path, **({} if seed is None else {"seeds": [seed]}), **arguments)

    def read(self, **arguments):
        return self.file(**arguments).suites()

    def image(self, name, size=(4, 4), value=0):
        """Write one grey image."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", size, value).save(path)

    def suite(self, **arguments):
        (suite,) = self.read(**arguments)
        return suite

    def refuses(self, keyword, kind=ValueError, case="", **arguments):
        """Check that the file is refused with a message that starts with its path and has the keyword."""
        with pytest.raises(kind) as caught:
            pytest.fail(f"not refused: {case or keyword}: {self.read(**arguments)}")
        assert type(caught.value) is kind, case
        assert str(caught.value).startswith(f"{self.path}: "), case
        message = str(caught.value).removeprefix(f"{self.path}: ")
        assert keyword in message, f"{case}: {keyword!r} not in {message!r}"


def pixels(n, seed=0):
    """Images of 4x4 grey pixels; the first pixel is the number of the row."""
    x = np.random.default_rng([seed, n]).integers(0, 256, (n, 4, 4), dtype=np.uint8)
    x[:, 0, 0] = np.arange(n)
    return x


def row_numbers(source):
    batches = [batch if isinstance(batch, torch.Tensor) else batch[0] for batch in source]
    return (torch.cat(batches)[:, 0, 0, 0] * 255).round().int().tolist()
