r"""Curvature of the energy over any layer of a network: how sharply it bends around what the layer gives out.

With the Jacobian J from the output of a layer to the logits, and class probabilities p, this is

.. math:: G = J^\top (\operatorname{diag} p - p p^\top)\, J

the Gauss-Newton matrix; where everything behind the layer is piecewise linear, it is the Hessian. In front of a linear
head it is that of :func:`~flatfold.curvature.features.feature_trace`. It takes one pass back per class, as far as the
layer, and no label: the cross-entropy of any label has the same matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..core.check import check_count, check_finite
from ..models.batches import split_batch
from .exact import OrderedClasses
from .layer_output import Seen, seen_output
from .setup import recording
from .squares import row_products
from .task import recordable


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
