"""A forward pass that can be watched from outside and leaves the model as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UnsupportedHead


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


@contextmanager
def as_it_was(model: nn.Module, device: torch.device | str | None = None) -> Iterator[torch.device]:
    """Put ``model`` into evaluation mode without gradients, on ``device``, and undo all of it at the end.

    Yields:
        The device to move inputs to; without ``device`` it is where the model's parameters are.
    """
    homes = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    home = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    target = home if device is None else usable_device(device)
    if target != home and len(homes) > 1:
        raise ValueError(
            f"device={str(target)!r} needs a model that lies on one device, this one lies on "
            f"{', '.join(sorted(map(str, homes)))}. Leave device= out to run the model where it is."
        )
    with ExitStack() as undo:
        undo.callback(_restore_modes, {module: module.training for module in model.modules()})
        model.eval()
        if target != home:
            undo.callback(model.to, home)
            model.to(target)
        undo.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
            # a compiled model skips the hooks that were added after its first call
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        yield target


def usable_device(device: torch.device | str) -> torch.device:
    """Return ``device`` after trying it, or say that this machine has none of that name."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, RuntimeError) as error:  # torch raises either, depending on what is missing
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}. Try 'cpu'.") from error


def _restore_modes(was: dict[nn.Module, bool]) -> None:
    # Parents come first, so that a `train` that was overridden (LoRA merges weights there) is undone by its own code.
    for module, training in was.items():
        if module.training != training:
            module.train(training)
    for module, training in was.items():  # a module with two parents may have been switched again
        module.training = training


def is_linear(module: nn.Module) -> bool:
    """Tell whether a module is a linear layer or a 1x1 convolution, which is one at every pixel."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module.groups == 1 and set(module.kernel_size) == {1} and set(module.stride) == {1}
    return isinstance(module, nn.Linear)


@contextmanager
def recorded(layers: Mapping[str, nn.Module]) -> Iterator[list[Call]]:
    """Collect the calls of some linear layers, in order, while the block runs."""
    calls: list[Call] = []
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(_hooked(name, layer, calls))
        yield calls


@contextmanager
def _hooked(name: str, layer: nn.Module, calls: list[Call]) -> Iterator[None]:
    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        features = args[0] if args else kwargs.get("input")
        if isinstance(features, Tensor) and isinstance(output, Tensor):
            outputs = module.weight.shape[0]  # type: ignore[index]
            rows = (_one_row_each(module, features), _one_row_each(module, output))
            calls.append(Call(name, int(outputs), tuple(output.shape), *rows))

    handle = layer.register_forward_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _one_row_each(layer: nn.Module, values: Tensor) -> Tensor | None:
    """Return ``values`` as a matrix, or None when the layer ran at several positions (tokens, pixels) of an input."""
    if isinstance(layer, nn.Linear):
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
