"""Curvature matrices as linear operators: matrix-vector products and random vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..errors import NoDerivativeError, cause
from .estimate import Loss, Matrix
from .problem import Problem, logit_hessian_product, open_problem

ASYMMETRY = 1e-2  # relative to an entry: far beyond rounding
ROUNDING = 1e-5  # relative to the norm of the matrix: part of a network may compute in float32


def is_about_derivatives(error: RuntimeError) -> bool:
    """Return whether a torch error is about a missing derivative."""
    return "differentia" in str(error) or "derivative" in str(error)


@dataclass
class Operator:
    """A symmetric matrix defined by ``apply``, which maps ``(size, k)`` to ``(size, k)``, one vector per column.

    ``products`` counts the vectors multiplied so far.
    """

    apply: Callable[[Tensor], Tensor]
    size: int
    dtype: torch.dtype
    device: torch.device
    products: int = field(default=0, init=False)
    _last: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)
    _norm: float = field(default=0.0, init=False, repr=False)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the products with the columns of ``vectors``, ``(size, k)``, and count them."""
        vectors = vectors.to(self.dtype)
        result: Tensor = self.apply(vectors)
        self.products += vectors.shape[1]
        if not result.isfinite().all():
            raise ValueError(
                "products with the curvature matrix must be finite, but one has a NaN or infinite entry. "
                "Check the model's weights and inputs, or use float64."
            )
        self._check_symmetric(vectors, result)
        return result

    def _check_symmetric(self, vectors: Tensor, images: Tensor) -> None:
        """Raise if ``u' A v`` and ``v' A u`` differ, for the last vector and an earlier one; this needs no product.

        In torch 2.13 the Hessian of a weight normalisation is not symmetric: its second derivative is wrong.
        """
        v, v_image = vectors[:, -1].double().clone(), images[:, -1].double().clone()  # views would keep all columns
        u, u_image = self._last or (vectors[:, 0].double(), images[:, 0].double())
        self._last = v, v_image
        lengths = [float(vector.norm()) for vector in (u, v, u_image, v_image)]
        if not lengths[0] or not lengths[1]:
            return
        self._norm = max(self._norm, lengths[2] / lengths[0], lengths[3] / lengths[1])
        usual = max(lengths[0] * lengths[3], lengths[1] * lengths[2]) / sqrt(self.size)  # without a common direction
        most = lengths[0] * lengths[1] * self._norm
        one, other = float(u @ v_image), float(v @ u_image)
        if abs(one - other) > ASYMMETRY * (abs(one) + abs(other) + usual) + ROUNDING * most:
            raise ValueError(
                f"a curvature matrix must be symmetric, but u'Av = {one:.4g} and v'Au = {other:.4g} for two vectors u "
                "and v. Either torch has a wrong second derivative, as for weight_norm (remove the parametrization "
                "first), or the curvature is only rounding, as in the energy of log-probabilities (use loss='ce_pred')."
            )


def random_directions(operator: Operator, columns: int, generator: torch.Generator) -> Tensor:
    """Return random vectors, uniformly distributed on the unit sphere, ``(size, columns)``.

    They are drawn one by one on the device of the generator, so a seed gives the same vectors on every device, and
    regardless of how many are drawn at once.
    """
    drawn = torch.empty(columns, operator.size, dtype=operator.dtype, device=generator.device)
    for row in drawn:
        row.normal_(generator=generator)
    drawn /= torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
    return drawn.T.to(operator.device)


def batch_operator(problem: Problem, batch: Batch) -> Operator:
    """Return the matrix of the mean loss over one batch; its graph lives as long as the operator."""
    product, _, _ = _product(problem, batch)
    return Operator(lambda vectors: product(vectors) / batch.rows, problem.size, problem.dtype, problem.device)


def mean_operator(problem: Problem) -> Operator:
    """Return the matrix of the mean loss over all inputs; every product is a pass over the data.

    If all inputs are one batch, its graph is built once and reused.
    """
    kept: list[Callable[[Tensor], Tensor]] = []

    def apply(vectors: Tensor) -> Tensor:
        if kept:
            return kept[0](vectors) / problem.rows
        total, sums, met = torch.zeros_like(vectors), [0.0, 0.0], 0
        for batch in problem.each("product with the matrix"):
            product, loss, size = _product(problem, batch)
            total += product(vectors)
            sums = [sums[0] + loss, sums[1] + size]
            met += 1
        problem.check_same(sums[0] / problem.rows, sums[1] / problem.rows)
        kept.extend([product] if met == 1 else [])
        return total / problem.rows

    return Operator(apply, problem.size, problem.dtype, problem.device)


def multiply_once(
    model: nn.Module, inputs: Any, params: Sequence[str], matrix: Matrix = "hessian", loss: Loss = "energy"
) -> None:
    """Multiply the matrix of one batch by one random vector, to measure the cost of an eigenvalue."""
    with open_problem(model, [inputs], loss, params, matrix=matrix) as problem:
        operator = mean_operator(problem)
        operator(random_directions(operator, 1, torch.Generator().manual_seed(0)))


def curvature_along(problem: Problem, vector: Tensor) -> Tensor:
    r"""Return the curvature ``v' H_i v`` of every input along a vector, ``(rows,)`` in float64 on the CPU.

    The loss of each input is weighted, and ``v' H v`` of the weighted sum is differentiated by these weights.
    """
    parameters = list(problem.parameters.values())
    v = _unflatten(vector.to(problem.device), parameters)
    found = []
    for batch in problem.each("curvature of single inputs"):
        logits, values = problem.losses(batch)
        if problem.matrix == "ggn":
            u = torch.zeros_like(logits, requires_grad=True)
            (pushed,) = _backward(_backward([logits], parameters, [u], create_graph=True), [u], v)
            shares = (logit_hessian_product(logits.detach().softmax(dim=-1), pushed) * pushed).sum(dim=-1)
        else:
            weights = torch.ones_like(values, requires_grad=True)
            total = (weights * values).sum()
            for _ in range(2):
                slopes = _backward([total], parameters, None, create_graph=True)
                total = torch.stack([(slope * part).sum() for slope, part in zip(slopes, v, strict=True)]).sum()
            (shares,) = _backward([total], [weights], None)
        found.append(shares.detach().double().cpu())
    return torch.cat(found)


def _product(problem: Problem, batch: Batch) -> tuple[Callable[[Tensor], Tensor], float, float]:
    """Return the product with the matrix of a batch's summed loss, that loss, and the sum of its largest logits."""
    logits, values = problem.losses(batch)
    parameters = list(problem.parameters.values())
    total = values.sum()
    product = _ggn_product(logits, parameters) if problem.matrix == "ggn" else _hessian_product(total, parameters)
    size = logits.detach().abs().amax(dim=-1).sum()
    return _on_columns(product, parameters), float(total.detach()), float(size)


def _hessian_product(loss: Tensor, parameters: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    gradients = _backward([loss], parameters, None, create_graph=True)
    return lambda vectors: _backward(gradients, parameters, vectors)


def _ggn_product(logits: Tensor, parameters: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    probs = logits.detach().softmax(dim=-1)
    # J'u is linear in u, so its derivative by u, along v, is Jv: forward mode from two backward passes.
    u = torch.zeros_like(logits, requires_grad=True)
    pulled = _backward([logits], parameters, [u], create_graph=True)

    def product(vectors: Sequence[Tensor]) -> list[Tensor]:
        (pushed,) = _backward(pulled, [u], vectors)
        return _backward([logits], parameters, [logit_hessian_product(probs, pushed)])

    return product


def _backward(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor] | None, create_graph: bool = False
) -> list[Tensor]:
    """Return the gradients of a backward pass from outputs to inputs, zero for unused inputs."""
    moving = [number for number, output in enumerate(outputs) if output.requires_grad]
    if not moving:
        return [torch.zeros_like(one) for one in inputs]
    try:
        gradients = torch.autograd.grad(
            [outputs[number] for number in moving],
            inputs,
            None if cotangents is None else [cotangents[number] for number in moving],
            create_graph=create_graph,
            retain_graph=True,
            materialize_grads=True,
        )
    except RuntimeError as error:  # including its subclass NotImplementedError
        if not is_about_derivatives(error):
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        message = (
            f"a step of the network has no second derivative: {reason}. "
            "For single inputs, and for the trace, use matrix='ggn', which needs first derivatives only."
        )
        raise NoDerivativeError(message) from cause(error, message)
    return list(gradients)


def _on_columns(
    product: Callable[[Sequence[Tensor]], list[Tensor]], parameters: Sequence[Tensor]
) -> Callable[[Tensor], Tensor]:
    """Convert a product on a vector in the shapes of the parameters to one on flat columns ``(size, k)``."""
    # One column at a time: several at once, with is_grads_batched, was slower for all but tiny networks.

    def column(vector: Tensor) -> Tensor:
        return torch.cat([part.detach().flatten() for part in product(_unflatten(vector, parameters))])

    return lambda vectors: torch.stack([column(vector) for vector in vectors.T], dim=1)


def _unflatten(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat vector into tensors with the shapes of the parameters."""
    parts = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [part.reshape(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
