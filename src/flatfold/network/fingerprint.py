"""Fingerprints of weights, data and files: what a stored result was computed from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .calls import evaluating, plain_name

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
