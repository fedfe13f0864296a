"""What tells one extraction from another: the weights and the data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .at_rest import as_it_was
from .forward import plain_name
from .sources import Source


def weights_hash(model: nn.Module) -> str:
    """Return the sha256 of the names, shapes, types and bytes in a model's ``state_dict``, compiled or not.

    They are those of evaluation mode: a layer may have others while it is trained (LoRA merges its own there).

    Example:
        >>> weights_hash(nn.Linear(2, 2)) == weights_hash(nn.Linear(2, 2))
        False
    """
    digest = hashlib.sha256()
    with as_it_was(model):
        state = {plain_name(key): value for key, value in model.state_dict().items()}
        for name in sorted(state):
            for value in _tensors(state[name]):
                digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
                plain = value.dequantize() if value.is_quantized else value
                digest.update(plain.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(entry: Any) -> Iterator[Tensor]:
    """Yield the tensors of an entry; what else it holds is a module's private state, which may look otherwise later."""
    if isinstance(entry, Tensor):
        yield entry
    elif isinstance(entry, (tuple, list)):  # a quantised layer packs weight and bias into one entry
        for part in entry:
            yield from _tensors(part)


def data_key(loader: Iterable[Any], key: str | None) -> str:
    """Return a string that identifies the data of ``loader``, or say that one must be given.

    Args:
        loader: A source has a fingerprint of its own.
        key: The user's name for the data; for a source it is added to the fingerprint.
    """
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler) if isinstance(loader, DataLoader) else None
    if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
        raise ValueError(
            "out= needs a loader that gives the same order in every pass, but this one shuffles: rows of an "
            "interrupted pass could not be told apart. Use shuffle=False."
        )
    if isinstance(loader, Source):
        return loader.fingerprint if key is None else f"{loader.fingerprint} {key}"
    if not key:
        raise ValueError(
            "out= needs to know which data this is, so that a bank of other data is never mistaken for it; a "
            f"{type(loader).__name__} does not say. Pass key='...', any string that changes with the data and its "
            "preparation, or use FolderImages or NpzImages."
        )
    return key
