"""Batches of a data loader, and forward passes of a model in evaluation mode, whose linear layers can be recorded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.validation import UnsupportedHead, check_labels

LABEL_KEYS = ("labels", "label", "y", "target", "targets")
INPUT_KEYS = ("x", "image", "images", "input", "inputs")
_PREPARED = "Images, arrays and paths become one tensor first: torch.stack([transform(image) for image in images])."
_KNOWN = "Use a tensor, a pair (x, y), or a dict such as {'pixel_values': x, 'labels': y}."
COMPILED = "_orig_mod"  # where torch.compile keeps its module

# What torch raises for a wrong shape or type; networks also assert. Kinds of RuntimeError such as
# torch.OutOfMemoryError stay what they are.
_INPUT_ERRORS = (RuntimeError, NotImplementedError, AssertionError)
_CALL_ERRORS = ("unexpected keyword argument", "D input (got ")  # in a TypeError or ValueError about inputs
_MACHINE_ERRORS = ("memory", "CUDA error", "device", "DataLoader worker")  # on the CPU, plain RuntimeErrors too
_TYPE_ERRORS = ("scalar type", "dtype", "Input type")
_CHANNELS = (1, 3, 4)

_LOCK = threading.RLock()
_SHARED: dict[Hashable, tuple[int, Callable[[], None]]] = {}  # the number of threads that need it, and what undoes it


class Batch(NamedTuple):
    """One batch of ``rows`` inputs: call the model as ``model(*args, **kwargs)``; labels are ``(n,)`` int64 or None."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: Tensor | None
    rows: int

    @property
    def first_tensor(self) -> Tensor:
        """The first of the inputs."""
        return next(value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor))

    def to(self, device: torch.device | str) -> Batch:
        """Return this batch with its inputs on ``device``; labels stay where they are."""
        return self.with_each(lambda value: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value)

    def one_per_input(self, value: Any) -> bool:
        """Return whether an argument is a tensor with an entry for each input."""
        return isinstance(value, Tensor) and value.ndim > 0 and len(value) == self.rows

    def part(self, start: int, stop: int) -> Batch:
        """Return inputs ``start`` to ``stop``; an argument that does not come once per input goes with any of them."""
        part = self.with_each(lambda value: value[start:stop] if self.one_per_input(value) else value)
        labels = None if self.labels is None else self.labels[start:stop]
        return part._replace(labels=labels, rows=len(range(self.rows)[start:stop]))

    def with_each(self, change: Callable[[Any], Any]) -> Batch:
        """Return this batch with ``change`` applied to each argument."""
        kwargs = {name: change(value) for name, value in self.kwargs.items()}
        return self._replace(args=tuple(map(change, self.args)), kwargs=kwargs)


def split_batch(batch: Any) -> Batch:
    """Split a batch into inputs and labels.

    Args:
        batch: A tensor; ``(x,)`` or ``(x, y)``, where x may be a dict of keyword arguments; or a dict. In a dict the
            entry under ``labels``, ``label``, ``y``, ``target`` or ``targets`` holds the labels. A single other entry
            under ``x``, ``image``, ``images``, ``input`` or ``inputs`` is passed by position, anything else by name.

    Example:
        >>> split_batch({"image": torch.zeros(2, 3), "label": torch.tensor([4, 5])})
        Batch(args=(tensor([[0., 0., 0.], [0., 0., 0.]]),), kwargs={}, labels=tensor([4, 5]), rows=2)
    """
    inputs, labels = batch, None
    if isinstance(batch, Mapping):
        names = [name for name in LABEL_KEYS if name in batch]
        if len(names) > 1:
            raise ValueError(f"a batch must have one entry of labels, got {' and '.join(map(repr, names))}. Drop one.")
        inputs = {name: value for name, value in batch.items() if name not in names}
        labels = batch[names[0]] if names else None
    elif isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise ValueError(f"a batch must be (x,) or (x, y), got {len(batch)} entries. {_KNOWN} {_PREPARED}")
        inputs, labels = batch if len(batch) == 2 else (batch[0], None)
    args: tuple[Any, ...] = (inputs,)
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        by_position = len(inputs) == 1 and inputs.keys() <= set(INPUT_KEYS)
        args = tuple(inputs.values()) if by_position else ()
        kwargs = {} if by_position else {str(name): value for name, value in inputs.items()}
    elif not isinstance(inputs, Tensor):
        raise TypeError(f"a batch must hold a tensor, got {type(inputs).__name__}. {_KNOWN} {_PREPARED}")
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if not tensors:
        raise TypeError(f"a batch must hold a tensor for the model, got {sorted(kwargs) or 'none'}. {_KNOWN}")
    if tensors[0].ndim == 0:
        raise ValueError("a batch must have a first dimension that counts its inputs, got a tensor without dimensions.")
    rows = len(tensors[0])
    return Batch(args, kwargs, None if labels is None else _class_indices(labels, rows), rows)


def _class_indices(labels: Any, rows: int) -> Tensor:
    if isinstance(labels, (list, tuple, np.ndarray)):
        labels = torch.as_tensor(labels)
    kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or kind == torch.bool:
        raise TypeError(
            f"labels must be integer class indices, one per input, got {kind}. "
            "Convert 0.0 and 1.0 with .long(), one-hot rows with .argmax(1); leave out targets that are no classes; "
            "join a list of inputs with torch.stack."
        )
    indices: Tensor = labels.detach().cpu().long()
    check_labels(indices, rows)
    return indices


class Call(NamedTuple):
    """A call of a linear layer: its features ``(n, d)`` and logits ``(n, c)``, None if it ran at several positions."""

    name: str
    outputs: int
    shape: tuple[int, ...]
    features: Tensor | None
    logits: Tensor | None


def plain_name(name: str) -> str:
    """Return the name of a module or tensor without what ``torch.compile`` adds: ``_orig_mod.fc`` becomes ``fc``."""
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
    thread = threading.get_ident()

    def note(name: str, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        if threading.get_ident() != thread:
            return  # while another thread removes its hook, torch may even leave out the keyword arguments
        kwargs, output = rest
        features = args[0] if args else kwargs.get("input")
        if isinstance(features, Tensor) and isinstance(output, Tensor):
            outputs = module.weight.shape[0]  # type: ignore[index]
            flat = (one_row_each(module, features, rows), one_row_each(module, output, rows))
            calls.append(Call(name, int(outputs), tuple(output.shape), *flat))

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_hook(partial(note, name), with_kwargs=True).remove)
        yield calls


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
    """Return the logits in the output of a model, which may be in an object (Hugging Face), a dict or a tuple."""
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


@contextmanager
def evaluating(model: nn.Module, device: torch.device | str | None = None) -> Iterator[torch.device]:
    """Put ``model`` into evaluation mode without gradients, on ``device``, and undo all of it at the end.

    Yields the device to move inputs to, by default where the model's parameters are. Several threads may do so at the
    same time, as long as none of them moves the model: the last one undoes it.
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
    waiting: list[nn.Module | None] = [model]  # `modules()` would take five times as long, at every call
    for module in waiting:  # which grows meanwhile
        if module is None:
            continue
        if module.training:
            break
        if module._modules:
            waiting.extend(module._modules.values())
    else:
        return lambda: None
    modes = {module: module.training for module in model.modules()}
    model.eval()

    def restore() -> None:
        # Parents come first, so that an overridden `train` (LoRA merges weights there) is undone by its own code.
        for module, training in modes.items():
            if module.training != training:
                module.train(training)
        for module, training in modes.items():  # a module with two parents may have been switched again
            module.training = training

    return restore
