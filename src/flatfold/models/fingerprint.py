"""Fingerprints of weights, data and files: what a stored result was computed from."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .forward import evaluating, plain_name
from .sources import Source

MOST_FILES = 20
BLOCK = 2**16
Item = TypeVar("Item")

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an entry
_HASHES: WeakKeyDictionary[nn.Module, tuple[list[Any], str]] = WeakKeyDictionary()  # with the state each belongs to


def weights_hash(model: nn.Module) -> str:
    """Return the sha256 of the names, shapes, types and bytes in a model's ``state_dict``, compiled or not.

    It is computed once for each model, and again after a change of its weights.
    """
    with evaluating(model):  # a layer may have other weights while it is trained (LoRA merges its own there)
        state = {plain_name(key): value for key, value in model.state_dict().items()}
        tensors = [(name, value) for name in sorted(state) for value in _tensors(state[name])]
        if any(value.is_quantized or value.is_complex() or value.is_inference() for _, value in tensors):
            return _sha256(tensors)  # of these not every change is seen
        now = [_identity(name, value) for name, value in tensors]
        before, sha256 = _HASHES.get(model, (None, ""))
        if now != before:
            sha256 = _sha256(tensors)
            _HASHES[model] = now, sha256
        return sha256


def _sha256(tensors: list[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, value in tensors:
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        plain = value.dequantize() if value.is_quantized else value
        digest.update(plain.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _identity(name: str, value: Tensor) -> tuple[Any, ...]:
    """Return what tells whether a tensor was replaced or changed.

    Sums over the bits of its rows are part of it because ``_version`` does not count what is written through ``.data``.
    """
    bits = value.detach().view(_INTEGERS[value.element_size()])
    sums = (bits.flatten(1) if bits.ndim > 1 else bits.reshape(1, -1)).sum(1)
    return name, value.data_ptr(), value._version, value.dtype, value.shape, sums.tolist()


def _tensors(entry: Any) -> Iterator[Tensor]:
    """Yield the tensors of an entry; a module's private state, which may be in it too, may change at any time."""
    if isinstance(entry, Tensor):
        yield entry
    elif isinstance(entry, (tuple, list)):  # a quantised layer packs weight and bias into one entry
        for part in entry:
            yield from _tensors(part)


def data_key(loader: Iterable[Any], key: str | None) -> str:
    """Return a string that identifies the data of ``loader``: the fingerprint of a source, and the user's ``key``."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler) if isinstance(loader, DataLoader) else None
    if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
        raise ValueError(
            "out= needs a loader that gives the same order in every run, but this one shuffles: rows of an interrupted "
            "run could not be identified. Use shuffle=False."
        )
    if isinstance(loader, Source):
        return loader.fingerprint if key is None else f"{loader.fingerprint} {key}"
    if not key:
        raise ValueError(
            f"out= needs an identity of the data, which a {type(loader).__name__} does not have. Pass key='...', any "
            "string that changes with the data and its preparation, or use FolderImages or NpzImages."
        )
    return key


def hash_files(digest: hashlib._Hash, root: Path, paths: Sequence[str]) -> None:
    """Feed relative paths, sizes and times of change (of missing files: none), and bytes of some files."""
    there = []
    for path, status in file_statuses(root, paths):
        entry = [path, None, None] if status is None else [path, status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode())
        there += [] if status is None else [path]
    hash_samples(digest, [root / path for path in evenly_spaced(there)])


def hash_samples(digest: hashlib._Hash, files: Sequence[Path]) -> None:
    """Feed the first and the last 64 kB of up to 20 evenly spaced files: their sizes and times may all be the same."""
    for path in evenly_spaced(files):
        with path.open("rb") as file:
            first = file.read(BLOCK)
            file.seek(max(len(first), file.seek(0, os.SEEK_END) - BLOCK))
            digest.update(hashlib.sha256(first + file.read(BLOCK)).digest())


def evenly_spaced(items: Sequence[Item]) -> list[Item]:
    """Return up to 20 of some items, the first and the last among them."""
    if len(items) <= MOST_FILES:
        return list(items)
    return [items[step * (len(items) - 1) // (MOST_FILES - 1)] for step in range(MOST_FILES)]


def file_statuses(root: Path, paths: Sequence[str]) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield each path with the status of the file there, None if there is none."""
    for path in paths:
        try:
            status = os.stat(os.path.join(root, path))  # a Path for each would take longer than the question
        except (OSError, ValueError):  # ValueError: no file can have this name
            yield path, None
        else:
            yield path, status if stat.S_ISREG(status.st_mode) else None
