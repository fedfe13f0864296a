r"""Products of the Hessian, and of the Gauss-Newton matrix, with vectors of parameters.

.. math:: H = \underbrace{\sum_n J_n^\top (\operatorname{diag} p_n - p_n p_n^\top) J_n}_{\text{Gauss-Newton}}
          + \sum_{n,c} \frac{\partial L_n}{\partial z_{nc}} \nabla^2_\theta z_{nc}

Both come from passes back through a graph that is built once per batch and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..models.batches import Batch
from .estimate import Matrix
from .losses import logit_hessian_product
from .operator import Operator
from .second_derivatives import told_if_missing
from .task import Task


def batch_operator(task: Task, batch: Batch, matrix: Matrix) -> Operator:
    """Return the matrix of the mean loss over one batch; its graph lives as long as the operator."""
    product, _, _ = _product(task, batch, matrix)
    return Operator(lambda vectors: product(vectors) / batch.rows, task.size, task.dtype, task.device)


def mean_operator(task: Task, matrix: Matrix) -> Operator:
    """Return the matrix of the mean loss over all inputs; every product is a pass over the data.

    Where all inputs are one batch, its graph is built once and kept.
    """
    kept: list[Callable[[Tensor], Tensor]] = []

    def apply(vectors: Tensor) -> Tensor:
        if kept:
            return kept[0](vectors) / task.rows
        total, sums, met = torch.zeros_like(vectors), [0.0, 0.0], 0
        for batch in task.each("product with the matrix"):
            product, loss, size = _product(task, batch, matrix)
            total += product(vectors)
            sums = [sums[0] + loss, sums[1] + size]
            met += 1
        task.check_same(sums[0] / task.rows, sums[1] / task.rows)
        kept.extend([product] if met == 1 else [])
        return total / task.rows

    return Operator(apply, task.size, task.dtype, task.device)


def _product(task: Task, batch: Batch, matrix: Matrix) -> tuple[Callable[[Tensor], Tensor], float, float]:
    """Return the product with the matrix of a batch's summed loss, that loss, and the sum of its largest logits."""
    logits, values, _ = task.losses(batch)
    parameters = list(task.parameters.values())
    total = values.sum()
    product = _ggn_product(logits, parameters) if matrix == "ggn" else _hessian_product(total, parameters)
    size = logits.detach().abs().amax(dim=-1).sum()
    return _on_columns(product, parameters), float(total.detach()), float(size)


def _hessian_product(loss: Tensor, parameters: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    gradients = _back([loss], parameters, None, create_graph=True)
    return lambda vectors: _back(gradients, parameters, vectors)


def _ggn_product(logits: Tensor, parameters: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    probs = logits.detach().softmax(dim=-1)
    # J'u is linear in u, so its derivative by u, along v, is Jv: forward mode from two passes back.
    u = torch.zeros_like(logits, requires_grad=True)
    pulled = _back([logits], parameters, [u], create_graph=True)

    def product(vectors: Sequence[Tensor]) -> list[Tensor]:
        (pushed,) = _back(pulled, [u], vectors)
        return _back([logits], parameters, [logit_hessian_product(probs, pushed)])

    return product


def _back(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor] | None, create_graph: bool = False
) -> list[Tensor]:
    """Return one pass back from some outputs to some inputs; it is zero for those that take no part."""
    moving = [number for number, output in enumerate(outputs) if output.requires_grad]
    if not moving:
        return [torch.zeros_like(one) for one in inputs]
    with told_if_missing():
        found = torch.autograd.grad(
            [outputs[number] for number in moving],
            inputs,
            None if cotangents is None else [cotangents[number] for number in moving],
            create_graph=create_graph,
            retain_graph=True,
            materialize_grads=True,
        )
    return list(found)


def _on_columns(
    product: Callable[[Sequence[Tensor]], list[Tensor]], parameters: Sequence[Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return a product on flat columns ``(size, k)`` from one on a vector in the shapes of the parameters.

    They go one after the other: several at once, by ``is_grads_batched``, took longer in all networks of some size.
    """
    sizes = [parameter.numel() for parameter in parameters]

    def column(vector: Tensor) -> Tensor:
        parts = torch.split(vector, sizes)
        shaped = [part.reshape(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
        return torch.cat([part.detach().flatten() for part in product(shaped)])

    return lambda vectors: torch.stack([column(vector) for vector in vectors.T], dim=1)
