"""A forward pass that can be watched from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

from ..core.errors import UnsupportedHead

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
