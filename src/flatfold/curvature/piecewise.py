r"""Whether the trace of the Hessian takes no more than first derivatives.

The Hessian of a loss is the Gauss-Newton matrix plus :math:`\sum_c \frac{\partial L}{\partial z_c} \nabla^2 z_c`. Where
a network is piecewise linear in its activations and uses each parameter once, every logit is piecewise affine in each
single parameter: those second derivatives have a zero diagonal, and both traces are equal, whatever the loss and the
label. That is so for convolutions, ReLU, pooling and batch normalisation with fixed statistics. It is not for tanh,
GELU, attention or layer normalisation, nor for weights that are used twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..models.batches import Batch
from ..models.forward import logits_of
from ..models.misfit import answer
from .graph import Parameters, uses
from .second_derivatives import is_about_derivatives

INPUTS = 4  # on which second derivatives are looked at
ROUNDING = 100  # times the precision of the numbers: what is larger is no rounding error

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


def trace_is_first_order(model: nn.Module, parameters: Parameters, batch: Batch) -> bool:
    """Tell whether the Hessian and the Gauss-Newton matrix of every loss here have the same trace.

    Layers of torch must be known to be piecewise linear, and each parameter must belong to one of them that runs once.
    What a forward pass does between its layers, and layers from elsewhere without parameters, are judged on a few
    inputs: the logits must not bend when the outputs of all layers are moved together. This takes one second
    derivative. It also says no to a product of two branches, where the traces are equal but nothing shows it.

    Args:
        model: In evaluation mode, on the device of the batch; gradients must be enabled.
        parameters: Those to differentiate by, named as in the model.
        batch: Inputs, of which the first few are used.
    """
    layers = _layers(model, parameters)
    if layers is None:
        return False
    step = next(iter(parameters.values())).new_zeros((), requires_grad=True)
    called: Counter[nn.Module] = Counter()
    with ExitStack() as hooks:  # a checkpoint runs its layers again on the way back, with them
        for number, layer in enumerate(layers):
            # Ahead of the hooks of others, which may bend what they are given.
            hook = layer.register_forward_hook(_moved_by(step, number, called), prepend=True)
            hooks.callback(hook.remove)
        logits = logits_of(answer(model, batch.part(0, INPUTS)))
        counts, _ = uses(logits, parameters)
        owners = {id(value): layer for layer in layers for value in layer.parameters(recurse=False)}
        usual = all(counts[name] <= called[owners[id(value)]] <= 1 for name, value in parameters.items())
        return usual and _is_affine_in(step, logits)


def _layers(model: nn.Module, parameters: Parameters) -> list[nn.Module] | None:
    """Return the layers that have the parameters, None if one of them, or any other of torch, is not known."""
    chosen = {id(parameter) for parameter in parameters.values()}
    found = []
    for module in model.modules():
        own = [name for name, value in module.named_parameters(recurse=False) if id(value) in chosen]
        from_torch = type(module).__module__.startswith("torch.")
        if own and not ({"weight", "bias"}.issuperset(own) and _is_known(module)):
            return None
        if from_torch and not any(module.children()) and not _is_known(module):
            return None
        found += [module] if own else []
    return found


def _is_known(module: nn.Module) -> bool:
    usual = "forward" not in vars(module)  # one that somebody has replaced may do anything
    return usual and type(module) in PIECEWISE_LINEAR | {nn.Sequential, nn.ModuleList, nn.ModuleDict}


def _moved_by(step: Tensor, number: int, called: Counter[nn.Module]) -> Callable[..., Any]:
    """Return a hook that moves the output of a layer by ``step``, in a random direction as long as the output."""

    def hook(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        called[module] += 1
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(number)).to(output)
        size = output.detach().square().mean().sqrt()
        return output + step * direction * torch.where(size > 0, size, torch.ones_like(size))

    return hook


def _is_affine_in(step: Tensor, logits: Tensor) -> bool:
    """Tell whether a random sum of logits has no second derivative by a step, beyond rounding."""
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
    return bool(bend.abs() <= limit)  # not so for NaN
