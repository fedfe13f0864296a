r"""Curvature of the energy over any layer of a network: how sharply it bends around what the layer gives out.

With the Jacobian J from the output of a layer to the logits, and class probabilities p, this is

.. math:: G = J^\top (\operatorname{diag} p - p p^\top)\, J

the Gauss-Newton matrix; where everything behind the layer is piecewise linear, it is the Hessian. In front of a linear
head it is that of :func:`~flatfold.curvature.features.feature_trace`. It takes one pass back per class, as far as the
layer, and no label: the cross-entropy of any label has the same matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.validation import check_count, check_finite
from ..models.batches import Batch, split_batch
from .exact import OrderedClasses
from .per_sample import row_products
from .problem import check_batch_norm, logits_per_input, recordable, recording


class Seen(NamedTuple):
    """Logits of a pass, and the output of a layer that they were computed from, which starts the graph."""

    logits: Tensor
    output: Tensor


def seen_output(model: nn.Module, layer: str, batch: Batch) -> Seen:
    """Return the logits of a batch with the output of a layer.

    Args:
        model: In evaluation mode, on the device of the batch; gradients must be enabled.
        layer: Name of a module that runs once in a pass.
        batch: Inputs.
    """
    check_batch_norm(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    if layer not in modules:
        raise ValueError(
            f"layer must be the name of a module, got {layer!r}. "
            f"The model has {', '.join(name for name, _ in model.named_children())} and what is inside them."
        )
    outputs: list[Tensor] = []

    def start(output: Any) -> Tensor:
        outputs.append(_checked(output, layer, batch.rows).detach().requires_grad_())
        return outputs[-1].clone()  # what follows may change it in place

    logits = _logits_with(modules[layer], start, model, batch)
    if len(outputs) != 1:
        times = f"{len(outputs)} times" if outputs else "not at all"
        raise ValueError(f"layer must name a module that runs once in a pass, but {layer} runs {times}. Name another.")
    check_finite(logits.detach().clamp_min(torch.finfo(logits.dtype).min), "logits")  # -inf: a class that is left out
    seen = Seen(logits, outputs[0])
    if not _is_followed(seen, layer):
        changed = _logits_with(modules[layer], lambda output: 2 * output + 1, model, batch)
        if not torch.allclose(changed, logits, rtol=1e-3, atol=1e-6):
            raise ValueError(
                f"the logits change with the output of {layer}, but no gradient leads back to it. "
                "Take .detach() and torch.no_grad() out of the forward pass."
            )
    return seen


def _logits_with(module: nn.Module, changed: Callable[[Any], Any], model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of a pass in which the output of a module is changed."""
    handle = module.register_forward_hook(lambda _, __, output: changed(output))
    try:
        return logits_per_input(model, batch)
    finally:
        handle.remove()


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


def _is_followed(seen: Seen, layer: str) -> bool:
    """Tell whether a graph leads from the logits back to the output; raise if it leads to that of other inputs."""
    if not seen.logits.requires_grad:
        return False
    first = torch.zeros_like(seen.logits)
    first[:1] = torch.randn(seen.logits.shape[1], generator=torch.Generator().manual_seed(0))
    (found,) = torch.autograd.grad(seen.logits, seen.output, first, retain_graph=True, allow_unused=True)
    if found is not None and found[1:].any():  # tokens may come first, and be as many as inputs
        raise ValueError(
            f"entry i of the output of {layer} must belong to input i, but the logits of the first input depend on "
            "others as well. Name a layer where inputs come first, of a model that does not mix the inputs of a batch."
        )
    return found is not None


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
    with recording(model) as device:
        seen = seen_output(model, layer, recordable(split_batch(x).to(device)))
        classes = OrderedClasses(seen.logits)
        total = torch.zeros_like(classes.weights[:, 0])
        for i, gradient in enumerate(_pulled_back(seen, classes)):
            total += row_products(gradient, pairs=False) * classes.weights[:, i]
    return _finite(total.to(seen.logits), layer)


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
    with recording(model) as device:
        seen = seen_output(model, layer, recordable(split_batch(x).to(device)))
        classes = OrderedClasses(seen.logits)
        gradients = torch.stack(list(_pulled_back(seen, classes)), dim=1)
        values = classes.eigenvalues(row_products(gradients, pairs=True))
    return _finite(values[:, : gradients.shape[2]][:, :k].to(seen.logits), layer)


def _finite(values: Tensor, layer: str) -> Tensor:
    check_finite(values.reshape(len(values), -1), f"the curvature over {layer}")
    return values


def _pulled_back(seen: Seen, classes: OrderedClasses) -> Iterator[Tensor]:
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
