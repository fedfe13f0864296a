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
_OF_THE_MACHINE = ("memory", "CUDA error", "device")  # on the CPU even a lack of memory is a plain RuntimeError


def answer(model: nn.Module, batch: Batch) -> Any:
    """Return what a model returns for a batch."""
    with explained(batch.first_tensor):
        return model(*batch.args, **batch.kwargs)


@contextmanager
def explained(inputs: Tensor) -> Iterator[None]:
    """Turn the error of a network that cannot take ``inputs``, ``(n, ...)``, into a ``ValueError`` with their shape."""
    try:
        yield
    except _OF_INPUTS as error:
        if type(error) not in _OF_INPUTS or any(word in str(error) for word in _OF_THE_MACHINE):
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"the network cannot take inputs of shape {tuple(inputs.shape[1:])}: {reason}. {_advice(inputs)}"
        ) from error


def _advice(inputs: Tensor) -> str:
    if inputs.ndim == 4:
        return "Give the transform a resize and a crop, or the right mode."
    return "Check their width and type; features belong to the head of the network that they were taken from."
