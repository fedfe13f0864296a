"""Finished parts of a study on disk, so that an interrupted one goes on where it stopped."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from ... import __version__
from ...files import sweep, write_atomically
from ...progress import track
from ..banks import short_key

FORMAT, VERSION = "flatfold-curvature-part", 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """One finished part: what can be told in JSON, and arrays."""

    told: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)


class Parts:
    """The finished parts in a folder.

    A part lies under a name that holds everything it depends on, so that one of another network, of other images or
    with another setting is never taken for it. A damaged one is computed again.

    Args:
        folder: Where they are kept.
        key: What all of them depend on; the version of this package is added.

    Attributes:
        asked: How many parts were asked for.
        found: How many of them an earlier run had finished.
    """

    def __init__(self, folder: Path, key: Mapping[str, str]) -> None:
        self.folder = folder
        self.key = {"flatfold": __version__, **key}
        self.asked = self.found = 0
        sweep(folder)

    def get(self, title: tuple[str, str], key: Mapping[str, str], compute: Callable[[], Part]) -> Part:
        """Return a part from its file, or compute and keep it.

        Args:
            title: Name of the data set, and of what is computed of it.
            key: What it depends on besides.
            compute: How to come by it.
        """
        dataset, what = title
        complete = {**self.key, "dataset": dataset, "what": what, **key}
        path = self.folder / f"{dataset}-{what.replace(' ', '-')}-{short_key(json.dumps(complete))}.safetensors"
        part = _read(path, complete)
        self.asked += 1
        self.found += part is not None
        if part is None:
            for _ in track((what,), f"{dataset}: {what}"):
                part = compute()
            assert part is not None
            _write(path, complete, part)
        return part


def forget_parts(folder: Path) -> None:
    """Remove the parts that earlier studies kept in a folder, and nothing that somebody else put there."""
    for path in folder.glob("*.safetensors"):
        if _header(path) is not None:
            path.unlink()


def _write(path: Path, key: Mapping[str, str], part: Part) -> None:
    arrays = {name: np.ascontiguousarray(values) for name, values in part.arrays.items()}
    header = {"format": FORMAT, "version": VERSION, "key": key, "told": part.told, "sha256": _checksum(part)}
    write_atomically(path, save(arrays, {"part": json.dumps(header, allow_nan=False)}))


def _read(path: Path, key: Mapping[str, str]) -> Part | None:
    """Return the part in a file, None if there is none or not that one."""
    if not path.exists():
        return None
    header = _header(path)
    try:
        if header is not None and header["version"] == VERSION and header["key"] == key:
            part = Part(header["told"], load(path.read_bytes()))
            if _checksum(part) == header["sha256"]:
                return part
    except (KeyError, OSError, SafetensorError, TypeError, ValueError):
        pass  # whatever is wrong with it, the answer is the same
    log.warning("%s is damaged: that part is computed again.", path)
    return None


def _header(path: Path) -> dict[str, Any] | None:
    """Return what the header of a part says, None if the file is something else."""
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {}).get("part", "null"))
    except (OSError, SafetensorError, ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and header.get("format") == FORMAT else None


def _checksum(part: Part) -> str:
    """Return the sha256 of what a part tells and of its arrays."""
    text = json.dumps(part.told, sort_keys=True, allow_nan=False)
    arrays = {name: np.ascontiguousarray(values) for name, values in part.arrays.items()}
    return hashlib.sha256(text.encode() + save(arrays)).hexdigest()
