"""Measured cases on disk, so that a second run only measures what is new."""

import hashlib
import io
import json
from dataclasses import fields
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from flatfold.evaluate.suites.suite import Suite
from flatfold.io.files import write_atomically
from flatfold.network.fingerprint import weights_hash

from .families import ALPHAS
from .measure import Measured
from .rules import RULES

VERSION = 1  # of what is measured; a change of a formula changes it


def key_of(suite: Suite, replicates: int) -> str:
    """Return a few letters that stand for the network, the images, the rules and the replicates."""
    assert suite.val is not None
    data = [suite.val, suite.test, *(ood.images for ood in suite.ood)]
    parts = [VERSION, replicates, ALPHAS, list(RULES), weights_hash(suite.model), *(each.fingerprint for each in data)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def save_measured(measured: Measured, path: Path) -> None:
    """Write everything that was measured of a case."""
    content = io.BytesIO()
    np.savez_compressed(content, **{field.name: getattr(measured, field.name) for field in fields(Measured)})
    write_atomically(path, content.getvalue())


def load_measured(path: Path) -> Measured | None:
    """Return what was measured of a case, or None where there is nothing that can be read."""
    try:
        arrays = np.load(io.BytesIO(path.read_bytes()))  # numpy leaves a damaged file open
        values = {field.name: arrays[field.name] for field in fields(Measured)}
    except (FileNotFoundError, BadZipFile, KeyError, ValueError, EOFError):
        return None
    names = {name: values.pop(name).tolist() for name in ("methods", "datasets")}
    return Measured(**names, **values)
