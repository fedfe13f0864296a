r"""Test whether the trace of the Hessian needs first derivatives only.

The Hessian of a loss is the Gauss-Newton matrix plus :math:`\sum_c \frac{\partial L}{\partial z_c} \nabla^2 z_c`. If
a network is piecewise linear in its activations and uses each parameter once, every logit is piecewise affine in each
single parameter: those second derivatives have a zero diagonal, and both traces are equal for any loss and label. This
holds for convolutions, ReLU, pooling and batch normalisation with fixed statistics. It does not hold for tanh, GELU,
attention or layer normalisation, nor for weights that are used twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..network.calls import forward, logits_of, watch_calls
from .operators import is_about_derivatives
from .per_sample import Parameters, count_uses

_DIMENSIONS = ("1d", "2d", "3d")
_IN_DIMENSIONS = (
    *("Conv", "ConvTranspose", "BatchNorm", "Dropout", "MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool"),
    *("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad"),
)

_WITHOUT = (
    *("Linear", "Embedding", "Identity", "Flatten", "Unflatten", "Dropout", "Upsample", "UpsamplingNearest2d"),
    *("UpsamplingBilinear2d", "PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "ReLU", "LeakyReLU", "PReLU"),
    *("RReLU", "ReLU6", "Hardtanh", "Threshold", "Hardshrink", "Softshrink"),
)

PIECEWISE_LINEAR: frozenset[type[nn.Module]] = frozenset(
    getattr(nn, name) for name in (*(kind + size for kind in _IN_DIMENSIONS for size in _DIMENSIONS), *_WITHOUT)
)

"""Layers that are piecewise linear in their input in evaluation mode, and affine in each of their parameters."""


def is_known(module: nn.Module) -> bool:
    """Return whether a module is one of these layers, or a container, with the forward method of its class."""
    usual = "forward" not in vars(module)  # a replaced forward method may compute anything
    return usual and type(module) in PIECEWISE_LINEAR | {nn.Sequential, nn.ModuleList, nn.ModuleDict}


def record_nonlinear(model: nn.Module, hooks: ExitStack) -> list[nn.Module]:
    """Return a list to which hooks add the unknown layers of torch whose inputs require a gradient."""
    layers: list[nn.Module] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        layers.extend([module] if any(map(_may_depend, (*args, *kwargs.values()))) else [])

    unknown = [module for module in model.modules() if _is_from_torch(module) and not is_known(module)]
    hooks.enter_context(watch_calls(((module, note) for module in unknown), before=True))
    return layers


def _is_from_torch(module: nn.Module) -> bool:
    """Return whether a module is a layer of torch; modules from elsewhere in torch wrap others (torch.compile)."""
    place = type(module).__module__
    return place.startswith("torch.nn.") or (place.startswith("torch.") and not any(module.children()))


def _may_depend(value: Any) -> bool:
    """Return whether an argument depends on the parameters, or may contain a value that does."""
    return value.requires_grad if isinstance(value, Tensor) else isinstance(value, (tuple, list, dict))


INPUTS = 4  # inputs of a batch at which second derivatives are computed
ROUNDING = 100  # units of machine precision above which a value is not a rounding error


def trace_is_first_order(model: nn.Module, parameters: Parameters, batch: Batch) -> bool:
    """Return whether the Hessian and the Gauss-Newton matrix of every loss have the same trace.

    Each parameter must belong to a torch layer that is known to be affine in it and runs once. All later torch layers
    must be known to be piecewise linear; earlier layers may be arbitrary. Operations between layers, and third-party
    layers without parameters, are tested on a few inputs: the logits must be affine when the outputs of all layers are
    moved together. This needs one second derivative. The result is also False for a product of two branches, although
    the traces are equal.
    """
    owners = _owners(model, parameters)
    if owners is None:
        return False
    chosen = {id(parameter) for parameter in parameters.values()}
    step = next(iter(parameters.values())).new_zeros((), requires_grad=True)
    moved: list[tuple[nn.Module, Any]] = []
    with ExitStack() as hooks:
        for value in model.parameters():  # a tensor must require a gradient only if it depends on the parameters
            if value.requires_grad and id(value) not in chosen:
                hooks.callback(value.requires_grad_, True)
                value.requires_grad_(False)
        for number, layer in enumerate(dict.fromkeys(owners.values())):
            # Before other hooks, which may be nonlinear. Not by `watch_calls`: checkpointing on a GPU calls the layer
            # again in the backward pass, in another thread, where its output must be the same.
            hook = layer.register_forward_hook(_shift_hook(step, number, moved), prepend=True)
            hooks.callback(hook.remove)
        nonlinear = record_nonlinear(model, hooks)
        logits = logits_of(forward(model, _select_inputs(batch)))
        counts, steps = count_uses(logits, parameters)
        called = Counter(layer for layer, made in moved if made in steps)
        usual = all(counts[name] <= called[layer] <= 1 for name, layer in owners.items())
        # Checkpointing runs its layers again in the backward pass, with the hooks.
        return usual and not nonlinear and _is_affine_in(step, logits)


def _owners(model: nn.Module, parameters: Parameters) -> dict[str, nn.Module] | None:
    """Return the layer that each parameter belongs to, or None if one of them is unknown."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    owners: dict[str, nn.Module] = {}
    for module in model.modules():
        own = {names[id(value)]: name for name, value in module.named_parameters(recurse=False) if id(value) in names}
        if own and not ({"weight", "bias"}.issuperset(own.values()) and is_known(module)):
            return None
        owners |= dict.fromkeys(own, module)
    return owners


def _select_inputs(batch: Batch) -> Batch:
    """Return a few inputs, spread over the batch: a data set may be sorted by class."""
    rows = torch.linspace(0, batch.rows - 1, min(batch.rows, INPUTS)).round().long().tolist()
    some = batch.with_each(lambda value: value[rows] if batch.one_per_input(value) else value)
    return some._replace(labels=None, rows=len(rows))


def _shift_hook(step: Tensor, number: int, moved: list[tuple[nn.Module, Any]]) -> Callable[..., Any]:
    """Return a hook that moves the output of a layer by ``step`` times a random direction of the output's scale."""

    def hook(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(number)).to(output)
        size = output.detach().square().mean().sqrt()
        there = output + step * direction * torch.where(size > 0, size, torch.ones_like(size))
        moved.append((module, there.grad_fn))
        return there

    return hook


def _is_affine_in(step: Tensor, logits: Tensor) -> bool:
    """Return whether a random combination of logits has a zero second derivative in ``step``, up to rounding."""
    if not logits.requires_grad:
        return True
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
    try:
        (slope,) = torch.autograd.grad((logits * weights).sum(), step, create_graph=True, materialize_grads=True)
        if not slope.requires_grad:
            return True
        (bend,) = torch.autograd.grad(slope, step, materialize_grads=True)
    except RuntimeError as error:
        if is_about_derivatives(error):
            return False
        raise
    limit = ROUNDING * torch.finfo(logits.dtype).eps * (slope.detach().abs() + (logits.detach() * weights).norm())
    return bool(bend.abs() <= limit)  # False for NaN
