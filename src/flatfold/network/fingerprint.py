"""Fingerprints of weights, which identify the model of a stored result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .calls import evaluating, plain_name

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per entry
_HASHES: WeakKeyDictionary[nn.Module, tuple[list[Any], str]] = WeakKeyDictionary()  # with the state hashed


def weights_hash(model: nn.Module) -> str:
    """Return the sha256 of the names, shapes, types and bytes in a model's ``state_dict``, compiled or not.

    It is cached per model, and computed again when the weights change.
    """
    with evaluating(model):  # a layer may have other weights in training mode (LoRA merges its own)
        state = {plain_name(key): value for key, value in model.state_dict().items()}
        tensors = [(name, value) for name in sorted(state) for value in _tensors(state[name])]
        if any(value.is_quantized or value.is_complex() or value.is_inference() for _, value in tensors):
            return _sha256(tensors)  # not every change of these can be detected
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
    """Return an identity of a tensor that changes when it is replaced or modified.

    It includes sums over the bits of the rows because ``_version`` does not count writes through ``.data``.
    """
    bits = value.detach().view(_INTEGERS[value.element_size()])
    sums = (bits.flatten(1) if bits.ndim > 1 else bits.reshape(1, -1)).sum(1)
    return name, value.data_ptr(), value._version, value.dtype, value.shape, sums.tolist()


def _tensors(entry: Any) -> Iterator[Tensor]:
    """Yield the tensors of an entry; other private state of a module, which may change at any time, is ignored."""
    if isinstance(entry, Tensor):
        yield entry
    elif isinstance(entry, (tuple, list)):  # a quantised layer packs weight and bias into one entry
        for part in entry:
            yield from _tensors(part)
