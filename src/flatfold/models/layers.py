"""A model as a differentiable function of its input: to its logits, or to some of its layers.

Detectors that need the input get such a function and never a model. Layers are found by watching a batch go through,
as the head is; a pass ends as soon as the last of them has been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .batches import split_batch
from .forward import logits_of
from .heads import find_head

Wanted = Literal["stem", "stages"] | Sequence[str]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Place(NamedTuple):
    """Where an activation is met: what goes into a module, or what comes out of it."""

    name: str
    side: Literal["input", "output"]


class _Seen(Exception):  # noqa: N818 - no error: a pass has shown all that was wanted
    """Every layer that was asked for has been met."""


def logits_function(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the model, in evaluation mode, as a function to its logits ``(n, c)``."""

    def logits(x: Tensor) -> Tensor:
        _check_mode(model)
        return logits_of(model(x))

    return logits


def _check_mode(model: nn.Module) -> None:
    if model.training:
        raise ValueError("the model is in training mode, where scores are random. Call model.eval() first.")


def layers_of(model: nn.Module, batch: Any, wanted: Wanted) -> Callable[[Tensor], list[Tensor]]:
    """Return the model as a function to some of its layers.

    Args:
        model: In evaluation mode.
        batch: Something it accepts, to find the layers with.
        wanted: ``"stem"``: what goes into the second convolution, behind whatever follows the first. ``"stages"``: the
            stem, the last activation at each resolution but the smallest, and the features. Or names of modules, whose
            outputs are taken.
    """
    x = split_batch(batch).args[0]
    places = _stages(model, x) if wanted == "stages" else _stem(model, x) if wanted == "stem" else _named(model, wanted)

    def layers(x: Tensor) -> list[Tensor]:
        _check_mode(model)
        with _watched(model, places) as seen, suppress(_Seen):
            model(x)
        return [seen[place] for place in places]

    return layers


def _named(model: nn.Module, names: Sequence[str]) -> list[Place]:
    modules = dict(model.named_modules(remove_duplicate=False))
    unknown = [name for name in names if name not in modules]
    if unknown or not names or isinstance(names, str):
        raise ValueError(
            f"layers must be 'stem', 'stages' or names of modules, got {names!r}. "
            f"The model has {', '.join(name for name, _ in model.named_children())} and what is inside them."
        )
    return [Place(name, "output") for name in names]


def _stem(model: nn.Module, x: Tensor) -> list[Place]:
    return [Place(_convolution_inputs(model, x)[1][0], "input")]


def _stages(model: nn.Module, x: Tensor) -> list[Place]:
    inputs = _convolution_inputs(model, x)
    last = {shape[2:]: name for name, shape in inputs[1:]}  # of each resolution, in order
    names = [inputs[1][0], *list(last.values())[:-1]]
    head = find_head(model, x).name
    return [Place(name, "input") for name in dict.fromkeys([*names, head])]


def _convolution_inputs(model: nn.Module, x: Tensor) -> list[tuple[str, torch.Size]]:
    """Return name and shape of what goes into every convolution, in the order of the calls."""
    names = [name for name, module in model.named_modules() if isinstance(module, _CONVOLUTIONS)]
    met: list[tuple[str, torch.Size]] = []
    with ExitStack() as hooks, torch.no_grad():
        for name in names:
            hook = _hook(model, Place(name, "input"), lambda value, name=name: met.append((name, value.shape)))  # type: ignore[misc]
            hooks.enter_context(hook)
        model(x)
    if len(met) < 2:
        raise ValueError(
            f"the stem is what goes into a model's second convolution, but this one called {len(met)}. "
            "Name the layers to use: layers=['module.name', ...]."
        )
    return met


@contextmanager
def _watched(model: nn.Module, places: Sequence[Place]) -> Iterator[dict[Place, Tensor]]:
    """Collect what is met at some places while the block runs, and stop the pass when all of it is there."""
    seen: dict[Place, Tensor] = {}

    def note(place: Place, value: Tensor) -> None:
        seen[place] = value
        if len(seen) == len(places):
            raise _Seen

    with ExitStack() as hooks:
        for place in places:
            hooks.enter_context(_hook(model, place, lambda value, place=place: note(place, value)))  # type: ignore[misc]
        yield seen


@contextmanager
def _hook(model: nn.Module, place: Place, tell: Callable[[Tensor], None]) -> Iterator[None]:
    """Tell the activation at one place, each time it is met, while the block runs."""
    module = model.get_submodule(place.name)

    def hook(_: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
        tell(args[0] if place.side == "input" else output)

    before = place.side == "input"
    handle = module.register_forward_pre_hook(hook) if before else module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
