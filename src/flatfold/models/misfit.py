"""A network that cannot take what it is given says so in its own words; here a sentence is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .batches import Batch

# What torch raises for a wrong shape or type; networks also assert. Kinds of RuntimeError such as
# torch.OutOfMemoryError stay what they are.
_OF_INPUTS = (RuntimeError, NotImplementedError, AssertionError)
_OF_THE_CALL = ("unexpected keyword argument", "D input (got ")  # in a TypeError or ValueError about inputs
# On the CPU even a lack of memory is a plain RuntimeError.
_OF_THE_MACHINE = ("memory", "CUDA error", "device", "DataLoader worker")
_OF_THE_TYPE = ("scalar type", "dtype", "Input type")
_CHANNELS = (1, 3, 4)


def answer(model: nn.Module, batch: Batch) -> Any:
    """Return what a model returns for a batch."""
    with explained(batch.first_tensor):
        return model(*batch.args, **batch.kwargs)


@contextmanager
def explained(inputs: Tensor) -> Iterator[None]:
    """Turn the error of a network that cannot take ``inputs``, ``(n, ...)``, into a ``ValueError`` with their shape."""
    try:
        yield
    except (*_OF_INPUTS, TypeError, ValueError) as error:
        if not _is_about_inputs(error):
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"the network cannot take inputs of shape {tuple(inputs.shape[1:])}: {reason}. {_advice(inputs, reason)}"
        ) from error


def _is_about_inputs(error: Exception) -> bool:
    if isinstance(error, (TypeError, ValueError)):  # most are sentences already, of this library or of the model
        return any(words in str(error) for words in _OF_THE_CALL)
    return type(error) in _OF_INPUTS and not any(word in str(error) for word in _OF_THE_MACHINE)


def _advice(inputs: Tensor, reason: str) -> str:
    if "unexpected keyword argument" in reason:
        return "Entries of a dict go to the model by name; wrap a model that takes the dict itself."
    if inputs.ndim > 2 and any(words in reason for words in _OF_THE_TYPE):
        return f"They are {inputs.dtype}: prepare them as in training, and in the type of the model's weights."
    if inputs.ndim == 3:
        return "Is this a single image? A batch of one is x[None]."
    if inputs.ndim == 4 and inputs.shape[-1] in _CHANNELS and inputs.shape[1] not in _CHANNELS:
        return "Put the channels first: x.permute(0, 3, 1, 2)."
    if inputs.ndim == 4:
        return "Give the transform a resize and a crop, or the right mode."
    return "Check their width and type; features belong to the head of the network that they were taken from."
