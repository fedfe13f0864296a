"""A context in which a model is in evaluation mode, and after which it is as it was before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

import torch
from torch import nn

_LOCK = threading.RLock()
_SHARED: dict[Hashable, tuple[int, Callable[[], None]]] = {}  # the number of threads that need it, and what undoes it


@contextmanager
def evaluating(model: nn.Module, device: torch.device | str | None = None) -> Iterator[torch.device]:
    """Put ``model`` into evaluation mode without gradients, on ``device``, and undo all of it at the end.

    Several threads may do so at the same time, as long as none of them moves the model: the last one undoes it.

    Yields:
        The device to move inputs to; without ``device`` it is where the model's parameters are.
    """
    home = next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))
    target = home if device is None else usable_device(device)
    with ExitStack() as undo:
        undo.enter_context(_shared(model, lambda: _begin_evaluation(model)))
        if target != home:
            devices = {str(tensor.device) for tensor in chain(model.parameters(), model.buffers())}
            if len(devices) > 1:
                raise ValueError(
                    f"device={str(target)!r} needs a model on one device, this one is on "
                    f"{', '.join(sorted(devices))}. Leave device= out to run the model where it is."
                )
            undo.callback(model.to, home)
            model.to(target)
        undo.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
            # a compiled model skips the hooks that were added after its first call
            undo.enter_context(_shared("torch.compile", _begin_eager))
        yield target


def usable_device(device: torch.device | str) -> torch.device:
    """Return ``device``, or raise if this machine does not have it."""
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, RuntimeError) as error:  # torch raises either, depending on what is missing
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}. Try 'cpu'.") from error


@contextmanager
def _shared(what: Hashable, begin: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """Let the first of several threads ``begin`` something that all of them need, and the last one undo it."""
    with _LOCK:
        users, undo = _SHARED[what] if what in _SHARED else (0, begin())
        _SHARED[what] = users + 1, undo
    try:
        yield
    finally:
        with _LOCK:
            users, undo = _SHARED.pop(what)
            if users > 1:
                _SHARED[what] = users - 1, undo
            else:
                undo()


def _begin_eager() -> Callable[[], None]:
    stance = ExitStack()
    stance.enter_context(torch.compiler.set_stance("force_eager"))
    return stance.close


def _begin_evaluation(model: nn.Module) -> Callable[[], None]:
    """Put a model into evaluation mode, unless it is, and return what undoes it."""
    waiting = [model]  # `modules()` would take three times as long, at every call
    while waiting:
        module = waiting.pop()
        if module.training:
            break
        waiting += [part for part in module._modules.values() if part is not None]
    else:
        return lambda: None
    modes = {module: module.training for module in model.modules()}
    model.eval()
    return lambda: _restore_modes(modes)


def _restore_modes(modes: dict[nn.Module, bool]) -> None:
    # Parents come first, so that a `train` that was overridden (LoRA merges weights there) is undone by its own code.
    for module, training in modes.items():
        if module.training != training:
            module.train(training)
    for module, training in modes.items():  # a module with two parents may have been switched again
        module.training = training
