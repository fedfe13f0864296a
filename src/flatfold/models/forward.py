"""A forward pass that can be watched from outside."""

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


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a linear layer during a forward pass.

    Attributes:
        name: The layer's name in the model.
        outputs: Number of outputs of the layer.
        shape: Shape of what came out.
        features: What went in, ``(n, d)``; None when the layer ran at several positions of an input.
        logits: What came out, ``(n, c)``; None likewise.
    """

    name: str
    outputs: int
    shape: tuple[int, ...]
    features: Tensor | None
    logits: Tensor | None


def plain_name(name: str) -> str:
    """Return the name of a module or a tensor as it is without ``torch.compile``, which puts a module around others.

    Example:
        >>> plain_name("_orig_mod.layer4._orig_mod.fc")
        'layer4.fc'
    """
    return ".".join(part for part in name.split(".") if part != COMPILED)


def is_linear(module: nn.Module) -> bool:
    """Tell whether a module is a linear layer or a 1x1 convolution, which is one at every pixel."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module.groups == 1 and set(module.kernel_size) == {1} and set(module.stride) == {1}
    return isinstance(module, nn.Linear)


@contextmanager
def recorded(layers: Mapping[str, nn.Module], rows: int) -> Iterator[list[Call]]:
    """Collect the calls of some linear layers by this thread, in order, while the block runs.

    Args:
        layers: The layers by name.
        rows: Number of inputs that go through the model.
    """
    calls: list[Call] = []
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(_hooked(name, layer, calls, rows))
        yield calls


@contextmanager
def _hooked(name: str, layer: nn.Module, calls: list[Call], rows: int) -> Iterator[None]:
    watching = threading.get_ident()

    def note(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if threading.get_ident() != watching:
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
    """Return ``values`` as a matrix, or None when the layer ran at several positions (tokens, pixels) of an input.

    Args:
        layer: A linear layer or a 1x1 convolution.
        values: What went into it, or came out.
        rows: Number of inputs, if known; then the last state of a recurrent network, ``(1, n, d)``, counts too.
    """
    if isinstance(layer, nn.Linear):
        if values.ndim > 2 and prod(values.shape[:-1]) == rows:
            values = values.flatten(0, -2)
        fits, positions = values.ndim >= 2, values.shape[1:-1]
    else:
        fits, positions = values.ndim == layer.weight.ndim, values.shape[2:]
    if not fits or any(size != 1 for size in positions):
        return None  # nothing is kept: the tokens of a large transformer would fill the memory
    return values.detach().flatten(1).clone()  # a copy, for the model may go on to change it in place


def logits_of(output: Any) -> Tensor:
    """Return the logits in what a model returned.

    Args:
        output: A tensor, an object with ``.logits`` (Hugging Face), a dict with ``"logits"``, or a tuple that starts
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


# A network that cannot take what it is given says so in its own words; here a sentence is made of them.


# What torch raises for a wrong shape or type; networks also assert. Kinds of RuntimeError such as
# torch.OutOfMemoryError stay what they are.
_OF_INPUTS = (RuntimeError, NotImplementedError, AssertionError)

_OF_THE_CALL = ("unexpected keyword argument", "D input (got ")  # in a TypeError or ValueError about inputs

# On the CPU even a lack of memory is a plain RuntimeError.
_OF_THE_MACHINE = ("memory", "CUDA error", "device", "DataLoader worker")

_OF_THE_TYPE = ("scalar type", "dtype", "Input type")

_CHANNELS = (1, 3, 4)


def forward(model: nn.Module, batch: Batch) -> Any:
    """Return what a model returns for a batch."""
    with input_errors(batch.first_tensor):
        return model(*batch.args, **batch.kwargs)


@contextmanager
def input_errors(inputs: Tensor) -> Iterator[None]:
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
