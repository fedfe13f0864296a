r"""Curvature of the energy over any layer of a network: how sharply it bends around what the layer gives out.

With the Jacobian J from the output of a layer to the logits, and class probabilities p, this is

.. math:: G = J^\top (\operatorname{diag} p - p p^\top)\, J

the Gauss-Newton matrix; where everything behind the layer is piecewise linear, it is the Hessian. In front of a linear
head it is that of :func:`~flatfold.curvature.features.feature_trace`. It takes one pass back per class, as far as the
layer, and no label: the cross-entropy of any label has the same matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.check import check_count
from ..core.precision import as_double
from ..models.batches import Batch, split_batch
from ..models.forward import as_it_was, logits_of
from ..models.misfit import answer
from .exact import OrderedClasses
from .setup import check_batch_norm


def layer_trace(model: nn.Module, layer: str, x: Any) -> Tensor:
    r"""Return the trace of the curvature over the output of a layer, for each input.

    .. math:: \operatorname{tr} G = \sum_{i<c} \frac{p_i\, r_i}{p_i + r_i}\, \|J^\top (e_i - m_i)\|^2

    with the letters of :mod:`flatfold.curvature.exact`. The model is run in evaluation mode and left as it was.

    Args:
        model: Returns logits.
        layer: Name of a module that runs once in a pass, as in ``model.named_modules()``.
        x: A batch of n inputs, as a data loader gives it.

    Returns:
        ``(n,)``, never negative, in the dtype of the logits.

    Example:
        >>> model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
        >>> model[1].weight.data, model[1].bias.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.zeros(2)
        >>> layer_trace(model, "0", torch.tensor([[0.0, 7.0]]))
        tensor([1.])
    """
    with as_it_was(model) as device, torch.enable_grad():
        seen = _seen(model, layer, split_batch(x).to(device))
        classes = OrderedClasses(seen.logits)
        total = torch.zeros_like(classes.weights[:, 0])
        for i, gradient in enumerate(_pulled_back(seen, classes)):
            total += as_double(gradient.square().sum(dim=1)) * classes.weights[:, i]
    return total.to(seen.logits)


def layer_eigenvalues(model: nn.Module, layer: str, x: Any, k: int | None = None) -> Tensor:
    """Return the largest eigenvalues of the curvature over the output of a layer, for each input.

    A layer with d numbers for each input has d of them. Only ``min(c - 1, d)`` can differ from zero, so at most
    ``min(c, d)`` are returned. The gradients of all c logits are held in memory: give a large layer few inputs.

    Args:
        model: Returns c logits.
        layer: Name of a module that runs once in a pass, as in ``model.named_modules()``.
        x: A batch of n inputs, as a data loader gives it.
        k: How many, all ``min(c, d)`` by default.

    Returns:
        ``(n, min(k, c, d))``, largest first, never negative, in the dtype of the logits.

    Example:
        >>> model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
        >>> model[1].weight.data, model[1].bias.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.zeros(2)
        >>> layer_eigenvalues(model, "0", torch.tensor([[0.0, 7.0]]))
        tensor([[1., 0.]])
    """
    if k is not None:
        check_count("k", k)
    with as_it_was(model) as device, torch.enable_grad():
        seen = _seen(model, layer, split_batch(x).to(device))
        classes = OrderedClasses(seen.logits)
        gradients = torch.stack(list(_pulled_back(seen, classes)), dim=1)
        values = classes.eigenvalues(as_double(gradients @ gradients.transpose(1, 2)))
    return values[:, : gradients.shape[2]][:, :k].to(seen.logits)


class _Seen(NamedTuple):
    """Logits of a pass, and the output of a layer that they were computed from, which starts the graph."""

    logits: Tensor
    output: Tensor


def _seen(model: nn.Module, layer: str, batch: Batch) -> _Seen:
    check_batch_norm(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    if layer not in modules:
        raise ValueError(
            f"layer must be the name of a module, got {layer!r}. "
            f"The model has {', '.join(name for name, _ in model.named_children())} and what is inside them."
        )
    outputs: list[Tensor] = []

    def hook(_: nn.Module, __: Any, output: Any) -> Tensor:
        outputs.append(_checked(output, layer, batch.rows).detach().requires_grad_())
        return outputs[-1].clone()  # what follows may change it in place

    handle = modules[layer].register_forward_hook(hook)
    try:
        logits = logits_of(answer(model, batch))
    finally:
        handle.remove()
    if len(outputs) != 1:
        times = f"{len(outputs)} times" if outputs else "not at all"
        raise ValueError(f"layer must name a module that runs once in a pass, but {layer} runs {times}. Name another.")
    if logits.ndim != 2 or len(logits) != batch.rows or logits.shape[1] < 2:
        raise ValueError(
            f"the model must return one row of at least two logits per input, ({batch.rows}, c), "
            f"got {tuple(logits.shape)}."
        )
    return _Seen(logits, outputs[0])


def _checked(output: Any, layer: str, rows: int) -> Tensor:
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
        raise TypeError(f"the output of {layer} must be a tensor of floating-point numbers, got {kind}. Name another.")
    if output.ndim == 0 or len(output) != rows:
        raise ValueError(
            f"the output of {layer} must have one entry per input, ({rows}, ...), got {tuple(output.shape)}. "
            "Name a layer where inputs come first."
        )
    return output


def _pulled_back(seen: _Seen, classes: OrderedClasses) -> Iterator[Tensor]:
    """Yield ``J'(e_i - m_i)`` for one class after the other, ``(n, d)`` each."""
    for i in range(classes.terms):
        cotangent = classes.direction(i).to(seen.logits)
        if seen.logits.requires_grad:
            (gradient,) = torch.autograd.grad(
                seen.logits, seen.output, cotangent, retain_graph=True, materialize_grads=True
            )
            yield gradient.flatten(1)
        else:  # nothing that could be learnt, and nothing of this layer, reaches the logits
            yield torch.zeros_like(seen.output).flatten(1)
