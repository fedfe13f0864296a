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
from .bending import is_known, others_fixed, unknown_behind
from .graph import Parameters, uses
from .second_derivatives import is_about_derivatives

INPUTS = 4  # of a batch, on which second derivatives are looked at
ROUNDING = 100  # times the precision of the numbers: what is larger is no rounding error


def trace_is_first_order(model: nn.Module, parameters: Parameters, batch: Batch) -> bool:
    """Tell whether the Hessian and the Gauss-Newton matrix of every loss here have the same trace.

    Each parameter must belong to a layer of torch that is known to be affine in it, and that runs once. Behind these
    layers all others of torch must be known to be piecewise linear; what runs before them may be anything, for the
    parameters do not move it. What a forward pass does between its layers, and layers from elsewhere without
    parameters, are judged on a few inputs: the logits must not bend when the outputs of all layers are moved together.
    This takes one second derivative. It also says no to a product of two branches, where the traces are equal but
    nothing shows it.

    Args:
        model: In evaluation mode, on the device of the batch; gradients must be enabled.
        parameters: Those to differentiate by, named as in the model.
        batch: Inputs, of which a few are used, from the first to the last.
    """
    owners = _owners(model, parameters)
    if owners is None:
        return False
    layers = list(dict.fromkeys(owners.values()))
    step = next(iter(parameters.values())).new_zeros((), requires_grad=True)
    moved: list[tuple[nn.Module, Any]] = []
    with others_fixed(model, parameters), ExitStack() as hooks:
        for number, layer in enumerate(layers):
            # Ahead of the hooks of others, which may bend what they are given.
            hook = layer.register_forward_hook(_moved_by(step, number, moved), prepend=True)
            hooks.callback(hook.remove)
        bending = hooks.enter_context(unknown_behind(model))
        logits = logits_of(answer(model, _some_of(batch)))
        counts, steps = uses(logits, parameters)
        called = Counter(layer for layer, made in moved if made in steps)
        usual = all(counts[name] <= called[layer] <= 1 for name, layer in owners.items())
        # A checkpoint runs its layers again on the way back, with the hooks.
        return usual and not bending and _is_affine_in(step, logits)


def _owners(model: nn.Module, parameters: Parameters) -> dict[str, nn.Module] | None:
    """Return the layer that each parameter belongs to, None if one of them is not known."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: dict[str, nn.Module] = {}
    for module in model.modules():
        own = {names[id(value)]: name for name, value in module.named_parameters(recurse=False) if id(value) in names}
        if own and not ({"weight", "bias"}.issuperset(own.values()) and is_known(module)):
            return None
        found |= dict.fromkeys(own, module)
    return found


def _some_of(batch: Batch) -> Batch:
    """Return a few inputs, from the first to the last: the order of a data set may be that of its classes."""
    rows = torch.linspace(0, batch.rows - 1, min(batch.rows, INPUTS)).round().long().tolist()

    def some(value: Any) -> Any:
        return value[rows] if batch.one_per_input(value) else value

    kwargs = {name: some(value) for name, value in batch.kwargs.items()}
    return Batch(tuple(map(some, batch.args)), kwargs, None, len(rows))


def _moved_by(step: Tensor, number: int, moved: list[tuple[nn.Module, Any]]) -> Callable[..., Any]:
    """Return a hook that moves the output of a layer by ``step``, in a random direction as long as the output."""

    def hook(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(number)).to(output)
        size = output.detach().square().mean().sqrt()
        there = output + step * direction * torch.where(size > 0, size, torch.ones_like(size))
        moved.append((module, there.grad_fn))
        return there

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
