"""A forward pass whose linear layers are recorded, and whose shape errors become a ValueError about the input."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

from ..core.validation import UnsupportedHead
from .batches import Batch

COMPILED = "_orig_mod"  # where torch.compile keeps its module

# What torch raises for a wrong shape or type; networks also assert. Kinds of RuntimeError such as
# torch.OutOfMemoryError stay what they are.
_INPUT_ERRORS = (RuntimeError, NotImplementedError, AssertionError)
_CALL_ERRORS = ("unexpected keyword argument", "D input (got ")  # in a TypeError or ValueError about inputs
_MACHINE_ERRORS = ("memory", "CUDA error", "device", "DataLoader worker")  # on the CPU, plain RuntimeErrors too
_TYPE_ERRORS = ("scalar type", "dtype", "Input type")
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a linear layer during a forward pass.

    ``features`` ``(n, d)`` went in and ``logits`` ``(n, c)`` came out; both are None when the layer ran at several
    positions of an input. ``shape`` is that of the output.
    """

    name: str
    outputs: int
    shape: tuple[int, ...]
    features: Tensor | None
    logits: Tensor | None


def plain_name(name: str) -> str:
    """Return the name of a module or a tensor without the parts that ``torch.compile`` adds.

    Example:
        >>> plain_name("_orig_mod.layer4._orig_mod.fc")
        'layer4.fc'
    """
    return ".".join(part for part in name.split(".") if part != COMPILED)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer or a 1x1 convolution, which is one at every pixel."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module.groups == 1 and set(module.kernel_size) == {1} and set(module.stride) == {1}
    return isinstance(module, nn.Linear)


@contextmanager
def record_calls(layers: Mapping[str, nn.Module], rows: int) -> Iterator[list[Call]]:
    """Collect the calls of linear layers by this thread, in order, while ``rows`` inputs go through the model."""
    calls: list[Call] = []
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(_hook(name, layer, calls, rows))
        yield calls


@contextmanager
def _hook(name: str, layer: nn.Module, calls: list[Call], rows: int) -> Iterator[None]:
    thread = threading.get_ident()

    def note(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if threading.get_ident() != thread:
            return  # while another thread removes its hook, torch may even leave out the keyword arguments
        kwargs, output = rest
        features = args[0] if args else kwargs.get("input")
        if isinstance(features, Tensor) and isinstance(output, Tensor):
            outputs = module.weight.shape[0]  # type: ignore[index]
            flat = (one_row_each(module, features, rows), one_row_each(module, output, rows))
            calls.append(Call(name, int(outputs), tuple(output.shape), *flat))

    handle = layer.register_forward_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def one_row_each(layer: nn.Module, values: Tensor, rows: int | None = None) -> Tensor | None:
    """Return what went into or came out of a linear layer as a matrix, None when it ran at several positions.

    When the number of inputs ``rows`` is given, the last state of a recurrent network, ``(1, n, d)``, counts too.
    """
    if isinstance(layer, nn.Linear):
        if values.ndim > 2 and prod(values.shape[:-1]) == rows:
            values = values.flatten(0, -2)
        fits, positions = values.ndim >= 2, values.shape[1:-1]
    else:
        fits, positions = values.ndim == layer.weight.ndim, values.shape[2:]
    if not fits or any(size != 1 for size in positions):
        return None  # nothing is kept: the tokens of a large transformer would fill the memory
    return values.detach().flatten(1).clone()  # a copy, because the model may change it in place


def logits_of(output: Any) -> Tensor:
    """Return the logits in the output of a model.

    It may be a tensor, an object with ``.logits`` (Hugging Face), a dict with ``"logits"``, or a tuple that starts
    with a tensor.
    """
    logits = getattr(output, "logits", output)
    if isinstance(logits, Mapping):
        logits = logits.get("logits")
    elif isinstance(logits, (tuple, list)) and logits:
        logits = logits[0]
    if not isinstance(logits, Tensor):
        raise UnsupportedHead(
            "the model must return logits: a tensor, an object with .logits, a dict with 'logits', or a tuple that "
            f"starts with a tensor. It returned {type(output).__name__}. Wrap it in a module that returns its logits."
        )
    return logits


def forward(model: nn.Module, batch: Batch) -> Any:
    """Return the output of a model for a batch."""
    with input_errors(batch.first_tensor):
        return model(*batch.args, **batch.kwargs)


@contextmanager
def input_errors(inputs: Tensor) -> Iterator[None]:
    """Turn the error of a network that cannot take ``inputs``, ``(n, ...)``, into a ``ValueError`` with their shape."""
    try:
        yield
    except (*_INPUT_ERRORS, TypeError, ValueError) as error:
        text = str(error)
        if isinstance(error, (TypeError, ValueError)):  # most come from this library or from the model itself
            about_inputs = any(words in text for words in _CALL_ERRORS)
        else:
            about_inputs = type(error) in _INPUT_ERRORS and not any(word in text for word in _MACHINE_ERRORS)
        if not about_inputs:
            raise
        reason = text.strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"the network cannot take inputs of shape {tuple(inputs.shape[1:])}: {reason}. {_advice(inputs, reason)}"
        ) from error


def _advice(inputs: Tensor, reason: str) -> str:
    if "unexpected keyword argument" in reason:
        return "Entries of a dict go to the model by name; wrap a model that takes the dict itself."
    if inputs.ndim > 2 and any(words in reason for words in _TYPE_ERRORS):
        return f"They are {inputs.dtype}: prepare them as in training, and in the type of the model's weights."
    if inputs.ndim == 3:
        return "Is this a single image? A batch of one is x[None]."
    if inputs.ndim == 4 and inputs.shape[-1] in _CHANNELS and inputs.shape[1] not in _CHANNELS:
        return "Put the channels first: x.permute(0, 3, 1, 2)."
    if inputs.ndim == 4:
        return "Give the transform a resize and a crop, or the right mode."
    return "Check their width and type; features belong to the head of the network that they were taken from."
