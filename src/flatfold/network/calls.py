"""Forward passes of a model in evaluation mode, whose linear layers can be recorded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..errors import UnsupportedHeadError, cause

COMPILED = "_orig_mod"  # where torch.compile keeps its module

# What torch raises for a wrong shape or type; networks also assert. Kinds of RuntimeError such as
# torch.OutOfMemoryError stay what they are.
_INPUT_ERRORS = (RuntimeError, NotImplementedError, AssertionError)
_NO_PADDING = "no padding token"  # in an error of the decoders of transformers
_CALL_ERRORS = (
    "unexpected keyword argument",
    "D input (got ",
    _NO_PADDING,
)  # in a TypeError or ValueError about inputs
_MACHINE_ERRORS = ("memory", "CUDA error", "device", "DataLoader worker")  # on the CPU, plain RuntimeErrors too
_TYPE_ERRORS = ("scalar type", "dtype", "Input type")
_CHANNELS = (1, 3, 4)
WEIGHTS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # dtypes of weights that are used as they are

_LOCK = threading.RLock()
_SHARED: dict[Hashable, tuple[int, Callable[[], None]]] = {}  # the number of threads that need it, and what undoes it


class Call(NamedTuple):
    """A call of a linear layer.

    ``features`` and ``logits`` are what a relation keeps of its input and output (:func:`one_row_each`, for example),
    None if they have another form.
    """

    name: str
    outputs: int
    shape: tuple[int, ...]
    features: Tensor | None
    logits: Tensor | None


Keep = Callable[[Tensor, int, int], Tensor | None]
"""Returns what is kept of the input or output of a layer, given its spatial axes and the number of inputs."""


def plain_name(name: str) -> str:
    """Return the name of a module or tensor without what ``torch.compile`` adds: ``_orig_mod.fc`` becomes ``fc``."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def linear_layer(module: nn.Module) -> nn.Module | None:
    """Return the linear layer, or 1x1 convolution, which is one at every pixel, that a module is; None if it is none.

    An adapter of PEFT, such as LoRA, is the one in its ``base_layer``. Quantised layers are none: their weights are no
    matrix of floating-point numbers.
    """
    layer = _without_adapters(module)
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        linear = layer.groups == 1 and set(layer.kernel_size) == {1} and set(layer.stride) == {1}
    else:
        linear = isinstance(layer, nn.Linear)
    return layer if linear and not is_quantised(layer) else None


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers of a model by name, in its order; an adapter takes the place of its parts."""
    layers: dict[str, nn.Module] = {}
    parts: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module not in parts and linear_layer(module) is not None:
            layers[plain_name(name)] = module
            parts.update(module.modules())
    return layers


def is_quantised(layer: nn.Module) -> bool:
    """Return whether a layer with ``out_features`` has weights that are packed or not floating-point numbers."""
    if not hasattr(layer, "out_features"):
        return False
    kinds: list[type] = []
    tensors: list[Tensor | None] = [layer._parameters.get("weight")]
    if not isinstance(layer, nn.Linear):
        kinds, tensors = [type(layer)], [*layer._parameters.values(), *layer._buffers.values()]
    given = [values for values in tensors if values is not None]
    kinds += map(type, given)
    named = any("quant" in f"{kind.__module__}.{kind.__qualname__}".lower() for kind in kinds)
    return named or any(values.dtype not in WEIGHTS for values in given)


def _without_adapters(module: nn.Module) -> nn.Module:
    # Not every module with a `base_layer` is an adapter; those of PEFT also have a method of this name.
    while hasattr(type(module), "get_base_layer") and isinstance(inner := module._modules.get("base_layer"), nn.Module):
        module = inner
    return module


def spatial_axes(layer: nn.Module) -> int:
    """Return the number of spatial axes behind the channels of a layer: 2 for ``Conv2d``, 0 for ``Linear``."""
    layer = _without_adapters(layer)
    return 1 if isinstance(layer, nn.Conv1d) else 2 if isinstance(layer, nn.Conv2d) else 0


def check_model(model: object) -> None:
    """Raise unless ``model`` is a network with weights."""
    if isinstance(model, nn.Module):
        if any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers())):
            raise ValueError(
                "the model must have weights, but some are on the device 'meta', which holds no values. Build it on "
                "'cpu' and load its weights first: network.load_state_dict(...)."
            )
        return
    given = f"the model must be a torch.nn.Module, not {type(model).__name__}."
    network = getattr(model, "model", None)
    if not isinstance(network, nn.Module):
        raise TypeError(
            f"{given} Give it before the data; build the network and load its weights first: "
            "network.load_state_dict(...)."
        )
    # a pipeline of transformers
    tools = {"collate": "tokenizer", "transform": "image_processor"}
    own = [f"{name}=pipe.{tool}" for name, tool in tools.items() if getattr(model, tool, None) is not None]
    prepared = f" with loading=Loading({', '.join(own)})" if own else ""
    raise TypeError(f"{given} Pass the network in it, pipe.model,{prepared or ' and prepared inputs'}.")


def weights_dtype(model: nn.Module) -> torch.dtype | None:
    """Return the floating-point type of a model's first weights, None if it has none."""
    return next((tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()), None)


@contextmanager
def watch_calls(
    modules: Iterable[tuple[nn.Module, Callable[..., Any]]], *, before: bool = False, prepend: bool = False
) -> Iterator[None]:
    """Pass the calls that this thread makes of some modules to functions, while the block runs.

    Each module comes with a function ``note(module, args, kwargs, output)``, which may return another output. With
    ``before`` it is called before the module runs, without the output; with ``prepend`` before other hooks.
    """
    thread = threading.get_ident()

    def hook(note: Callable[..., Any], module: nn.Module, *call: Any) -> Any:
        # Other threads have hooks of their own; while they remove them, torch may even leave out keyword arguments.
        return note(module, *call) if threading.get_ident() == thread else None

    with ExitStack() as hooks:
        for module, note in modules:
            register: Callable[..., Any] = module.register_forward_pre_hook if before else module.register_forward_hook
            hooks.callback(register(partial(hook, note), with_kwargs=True, prepend=prepend).remove)
        yield


def first_argument(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the first argument of a call, None if it has none."""
    values = (*args, *kwargs.values())
    return values[0] if values else None  # not next(), whose default torch.compile may not know


def one_row_each(values: Tensor, axes: int, rows: int) -> Tensor | None:
    """Return the input or output of a linear layer as a matrix, None if it ran at several positions.

    Of a recurrent network the last state, ``(1, n, d)``, counts too.
    """
    if axes:
        fits, positions = values.ndim == axes + 2, values.shape[2:]
    else:
        if values.ndim > 2 and prod(values.shape[:-1]) == rows:
            values = values.flatten(0, -2)
        fits, positions = values.ndim >= 2, values.shape[1:-1]
    if not fits or any(size != 1 for size in positions):
        return None  # nothing is kept: the tokens of a large transformer would fill the memory
    return values.detach().flatten(1).clone()  # a copy, because the model may change it in place


def at_positions(values: Tensor, axes: int, rows: int) -> Tensor | None:
    """Return the input or output of a linear layer as ``(n, positions, channels)``, None if inputs are not first."""
    if values.ndim != axes + 2 if axes else values.ndim < 2:
        return None
    if values.shape[0] != rows:
        return None
    values = values.movedim(1, -1) if axes else values
    return values.detach().reshape(rows, -1, values.shape[-1]).clone()


@contextmanager
def record_calls(layers: Mapping[str, nn.Module], rows: int, keep: Keep = one_row_each) -> Iterator[list[Call]]:
    """Collect the calls of linear layers by this thread, in order, while ``rows`` inputs go through the model."""
    calls: list[Call] = []

    def note(
        name: str, axes: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        features = first_argument(args, kwargs)
        if isinstance(features, Tensor) and isinstance(output, Tensor):
            calls.append(call_of(name, axes, features, output, rows, keep))

    with watch_calls((layer, partial(note, name, spatial_axes(layer))) for name, layer in layers.items()):
        yield calls


def call_of(name: str, axes: int, features: Tensor, output: Tensor, rows: int, keep: Keep) -> Call:
    """Return the record of a call of a layer with ``axes`` spatial axes."""
    shape = tuple(output.shape)
    outputs = shape[-1 - axes] if len(shape) > axes else 0
    return Call(name, outputs, shape, keep(features, axes, rows), keep(output, axes, rows))


def logits_of(output: Any) -> Tensor:
    """Return the logits in the output of a model, which may be in an object (Hugging Face), a dict or a tuple."""
    return outputs_of(output)[0]


def outputs_of(output: Any) -> list[Tensor]:
    """Return what may be the logits in the output of a model: several tensors only if it is a tuple of them."""
    logits = getattr(output, "logits", output)
    others: Sequence[Any] = ()
    if isinstance(logits, Mapping):
        logits = logits.get("logits", logits.get("out"))  # the name in segmentation networks of torchvision
    elif isinstance(logits, (tuple, list)) and logits:
        logits, *others = logits
    if isinstance(logits, Tensor):
        return [logits, *(other for other in others if isinstance(other, Tensor))]
    raise UnsupportedHeadError(
        "the model must return logits: a tensor, an object with .logits, a dict with 'logits' or 'out', or a tuple "
        f"that starts with a tensor. It returned {type(output).__name__}. Wrap it in a module that returns its logits."
    )


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
        shape = tuple(inputs.shape[1:])
        message = f"the network cannot take inputs of shape {shape}: {reason}. {_advice(inputs, reason)}"
        raise ValueError(message) from cause(error, message)


def _advice(inputs: Tensor, reason: str) -> str:
    if _NO_PADDING in reason:
        return "Name the token that pads texts: model.config.pad_token_id = tokenizer.pad_token_id."
    if "unexpected keyword argument" in reason:
        return "Entries of a dict go to the model by name; wrap a model that takes the dict itself."
    if (inputs.ndim > 2 or inputs.is_floating_point()) and any(words in reason for words in _TYPE_ERRORS):
        return f"They are {inputs.dtype}: prepare them as in training, and in the type of the model's weights."
    if inputs.layout is not torch.strided:
        return "They are sparse: pass x.to_dense()."
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
        if "torch._dynamo" in sys.modules:
            # a compiled model skips the hooks that were added after its first call
            undo.enter_context(_shared("torch.compile", _begin_eager))
        yield target


def usable_device(device: torch.device | str) -> torch.device:
    """Return ``device``, or raise if this machine does not have it, or if it holds no values."""
    try:
        usable = torch.empty(0, device=device).device
        if usable.type == "meta":
            raise RuntimeError("a model would lose its weights there")
        return usable
    except (AssertionError, RuntimeError) as error:  # torch raises either, depending on what is missing
        reason = str(error).partition("\n")[0]
        message = f"device {str(device)!r} cannot be used here: {reason}. Try 'cpu'."
        raise ValueError(message) from cause(error, message)


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
