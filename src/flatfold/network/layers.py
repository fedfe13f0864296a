"""A model as a differentiable function of its input, to its logits or to some of its layers, and scores by it.

Detectors that need the input get such a function and never a model. Layers are found by watching a batch go through,
as the head is; a pass ends as soon as the last of them was met.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..core.bank import Head, as_two_classes
from ..data.batch import split_batch
from .calls import first_argument, input_errors, logits_of, spatial_axes, watch_calls
from .heads import FoundHead, find_head

Side = Literal["input", "output"]
Wanted = Literal["stem", "stages"] | Sequence[str]
Kept = TypeVar("Kept")

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Place(NamedTuple):
    """Where an activation is met: the input or the output of a module, in one of its calls."""

    name: str
    side: Side
    call: int = 0


class _AllMet(Exception):  # noqa: N818 - not an error: it ends a pass
    """Every layer that was asked for has been met."""


def logits_function(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the model, in evaluation mode, as a function to its logits ``(n, c)``."""

    def logits(x: Tensor) -> Tensor:
        _check_mode(model)
        with input_errors(x):
            returned = logits_of(model(x))
        return as_two_classes(returned if returned.ndim > 1 else returned[:, None], dim=1)

    return logits


def _check_mode(model: nn.Module) -> None:
    if any(module.training for module in model.modules()):
        raise ValueError("the model is in training mode, where scores are random. Call model.eval() first.")


def layers_of(model: nn.Module, batch: Any, wanted: Wanted) -> Callable[[Tensor], list[Tensor]]:
    """Return the model as a function to some of its layers.

    Args:
        model: In evaluation mode.
        batch: Something it accepts, to find the layers with.
        wanted: ``"stem"``: the input of the second convolution, after whatever follows the first. ``"stages"``: the
            stem, the last activation at each resolution but the smallest, and the features. In a model without
            convolutions, the input of the second linear layer, and those of all others. Or names of modules, whose
            outputs are taken.
    """
    x = _only_input(model, batch)
    places = _places(model, x, wanted)
    if wanted == "stages":
        places = list(dict.fromkeys([*places, *_head_inputs(find_head(model, x))]))
    # Copies: the model may go on to change an activation in place.
    return lambda x: _activations(model, places, x, Tensor.clone)


def layers_and_head(
    model: nn.Module, batch: Any, wanted: Wanted = (), head: str | None = None
) -> Callable[[Tensor], tuple[list[Tensor], Head]]:
    """Return the model as a function to some of its layers, the features last, and to its head.

    The logits are ``head(layers[-1])``, and have a gradient in each of the layers.

    Args:
        model: In evaluation mode.
        batch: Something it accepts, to find the layers with; on the model's device.
        wanted: ``"stem"``, ``"stages"`` or names of modules, as in :func:`layers_of`; by default the features alone.
        head: Name of the layer that gives the logits, if it cannot be found.
    """
    x = _only_input(model, batch)
    found = find_head(model, x, head)
    if not found.relation.from_inputs:
        raise ValueError(
            f"methods that run the network need features that are known before its logits, but {found.relation}. Use a "
            "method on features."
        )
    inputs = _head_inputs(found)
    named = [place for place in (_places(model, x, wanted) if wanted else []) if place not in inputs]
    last_layer = found.head.to(x.device)

    def layers(x: Tensor) -> tuple[list[Tensor], Head]:
        values = _activations(model, [*named, *inputs], x, lambda value: (value, value._version))
        pairs = list(zip(named, values, strict=False))
        changed = [place.name for place, (value, version) in pairs if value._version != version]
        if changed:
            raise ValueError(
                f"the model changes the output of {', '.join(changed)} in place, so its gradient is lost. Name the "
                "layer that makes this change, such as the activation function that follows."
            )
        ends = zip(found.modules, values[len(named) :], strict=True)
        last = [value.movedim(1, -1) if spatial_axes(layer) else value for layer, (value, _) in ends]
        features = found.relation.join(last)
        return [*(value for _, (value, _) in pairs), features.to(last_layer.weight.dtype)], last_layer

    return layers


def _head_inputs(found: FoundHead) -> list[Place]:
    return [Place(name, "input") for name in found.relation.layers]


def _only_input(model: nn.Module, batch: Any) -> Tensor:
    _check_mode(model)
    inputs = split_batch(batch).args
    if len(inputs) != 1:
        raise ValueError("layers are found in models that take one input, model(x). Wrap this one so that it does.")
    x: Tensor = inputs[0]
    return x


def _places(model: nn.Module, x: Tensor, wanted: Wanted) -> list[Place]:
    if wanted not in ("stem", "stages"):
        return _named(model, wanted)
    inputs = _layer_inputs(model, x)[1:]
    # The last of each resolution, in order; a linear layer has no resolution, and each of them counts.
    stem, last = inputs[0][0], {shape[2:] or place: place for place, shape in inputs}
    return list(dict.fromkeys([stem, *list(last.values())[:-1]])) if wanted == "stages" else [stem]


def _activations(model: nn.Module, places: Sequence[Place], x: Tensor, keep: Callable[[Tensor], Kept]) -> list[Kept]:
    """Return what ``keep`` makes of the activation at each place in a pass, which ends with the last of them."""
    _check_mode(model)
    values: dict[Place, Kept] = {}

    def note(place: Place, value: Tensor) -> None:
        if place in places:
            values[place] = keep(value)
        if len(values) == len(places):
            raise _AllMet

    with _watch_places(model, {(place.name, place.side) for place in places}, note), suppress(_AllMet), input_errors(x):
        model(x)
    unused = [place.name for place in places if place not in values]
    if unused:
        raise ValueError(f"the model runs without {', '.join(unused)}. Name layers that take part in a pass.")
    return [values[place] for place in places]


def _named(model: nn.Module, names: Sequence[str]) -> list[Place]:
    modules = dict(model.named_modules(remove_duplicate=False))
    unknown = [name for name in names if name not in modules]
    if unknown or not names or isinstance(names, str):
        raise ValueError(
            f"layers must be 'stem', 'stages' or names of modules, got {names!r}. "
            f"The model has {', '.join(name for name, _ in model.named_children())} and what is inside them."
        )
    return [Place(name, "output") for name in names]


def _layer_inputs(model: nn.Module, x: Tensor) -> list[tuple[Place, torch.Size]]:
    """Return place and shape of the input of every convolution, or of every linear layer if there are none."""
    convolutions = _inputs_of(model, x, _CONVOLUTIONS)
    linear = [] if convolutions else [each for each in _inputs_of(model, x, (nn.Linear,)) if len(each[1]) == 2]
    if len(inputs := convolutions or linear) < 2:
        raise ValueError(
            "the stem is the input of a model's second convolution, or second linear layer if it has no convolutions, "
            f"but this one called {len(convolutions)} and {len(linear)} with a vector for each input. Name the layers "
            "to use: layers=['module.name', ...]."
        )
    return inputs


def _inputs_of(model: nn.Module, x: Tensor, kinds: tuple[type[nn.Module], ...]) -> list[tuple[Place, torch.Size]]:
    """Return place and shape of the input of every module of some kinds, in the order of the calls."""
    inputs: list[tuple[Place, torch.Size]] = []
    names = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    hooks = _watch_places(model, [(name, "input") for name in names], lambda place, v: inputs.append((place, v.shape)))
    with hooks, torch.no_grad(), input_errors(x):
        model(x)
    return inputs


@contextmanager
def _watch_places(
    model: nn.Module, sides: Collection[tuple[str, Side]], note: Callable[[Place, Tensor], None]
) -> Iterator[None]:
    """Pass the activation at a side of some modules to ``note`` in each of their calls, while the block runs."""

    def watched(side: Side) -> Iterator[tuple[nn.Module, Callable[..., None]]]:
        names = [name for name, wanted in sides if wanted == side]
        return ((model.get_submodule(name), partial(look, name, side, count())) for name in names)

    def look(
        name: str, side: Side, calls: Iterator[int], _: nn.Module, args: Any, kwargs: Any, output: Any = None
    ) -> None:
        value = output if side == "output" else first_argument(args, kwargs)
        value = value[0] if isinstance(value, (tuple, list)) and value else value
        if not isinstance(value, Tensor):
            raise ValueError(f"the {side} of {name} is not a tensor but {type(value).__name__}. Name another layer.")
        note(Place(name, side, next(calls)), value)

    with watch_calls(watched("input"), before=True), watch_calls(watched("output")):
        yield
