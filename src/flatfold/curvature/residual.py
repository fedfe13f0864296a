r"""What the Hessian of a single input has beyond the Gauss-Newton matrix, where the network is not piecewise linear.

.. math:: H - G = \sum_c \frac{\partial L}{\partial z_c} \nabla^2_\theta z_c, \qquad
          v^\top (H - G)\, v = \sum_c \frac{\partial L}{\partial z_c} \frac{d^2}{ds^2} z_c(\theta + s v) \Big|_{s=0}

On average over random signs v this is the trace (Hutchinson). A forward pass that carries both derivatives with it has
the second derivatives of all inputs of a batch at once. Not every network has such a pass, and torch 2.13 has a wrong
one for layer normalisation, so it is always checked on one input; if need be, each input goes two passes back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from ..core.precision import as_double
from ..models.batches import Batch
from ..models.forward import logits_of
from ..models.misfit import answer
from .gradients import Parameters, rows_of

Direction = dict[str, Tensor]


def residual_traces(
    model: nn.Module,
    parameters: Parameters,
    batch: Batch,
    residual: Tensor,
    probes: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, int]:
    """Estimate the trace of the Hessian minus that of the Gauss-Newton matrix for each input.

    The random directions are those of the whole batch, so the errors of its inputs are not independent.

    Args:
        model: In evaluation mode, on the device of the batch; gradients must be enabled.
        parameters: Those to differentiate by, named as in the model.
        batch: n inputs.
        residual: Gradient of the loss of each input over its logits, ``(n, c)``.
        probes: Number of random directions, 2 or more.
        generator: Of these directions.

    Returns:
        Estimates ``(n,)`` and their standard errors ``(n,)``, both in float64, and the number of directions.
    """
    if probes < 2:
        raise ValueError(f"probes must be at least 2, for an error bar needs two draws, got {probes}.")
    seeds = torch.randint(2**62, (probes,), generator=generator, device=generator.device).tolist()
    draws = _at_once(model, parameters, batch, residual, seeds)
    if draws is None:
        rows = range(batch.rows)
        each = [_of_one(model, parameters, rows_of(batch, n, n + 1), residual[n : n + 1], seeds) for n in rows]
        draws = torch.stack(each, dim=1)
    return draws.mean(dim=0), draws.std(dim=0) / probes**0.5, probes


def _signs(parameters: Parameters, seed: int) -> Direction:
    """Return a direction of +1 and -1, drawn anew from its seed wherever it is needed: many would fill the memory."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 2, value.shape, generator=generator).to(value) * 2 - 1
        for name, value in parameters.items()
    }


def _at_once(
    model: nn.Module, parameters: Parameters, batch: Batch, residual: Tensor, seeds: Sequence[int]
) -> Tensor | None:
    """Return ``v' (H - G) v`` of each input along each direction, ``(probes, n)``; None if the network refuses."""
    draws = []
    for number, seed in enumerate(seeds):
        try:
            terms = as_double(residual) * as_double(_bend(model, parameters, batch, _signs(parameters, seed)))
        except (RuntimeError, NotImplementedError):  # a step of the network that has no forward mode
            return None
        draws.append(terms.sum(dim=1))
        if number == 0:
            known = _of_one(model, parameters, rows_of(batch, 0, 1), residual[:1], [seed])
            limit = 10 * torch.finfo(residual.dtype).eps ** 0.5 * terms[0].abs().sum()
            if not (draws[0][0] - known[0]).abs() <= limit:
                return None
    return torch.stack(draws)


def _bend(model: nn.Module, parameters: Parameters, batch: Batch, direction: Direction) -> Tensor:
    """Return the second derivative of the logits along a direction, ``(n, c)``."""
    values = {name: parameter.detach() for name, parameter in parameters.items()}

    def logits(values: Direction) -> Tensor:
        return logits_of(functional_call(model, values, batch.args, batch.kwargs))

    def slope(values: Direction) -> Tensor:
        found: Tensor = jvp(logits, (values,), (direction,))[1]
        return found

    bend: Tensor = jvp(slope, (values,), (direction,))[1]
    return bend


def _of_one(model: nn.Module, parameters: Parameters, batch: Batch, residual: Tensor, seeds: Sequence[int]) -> Tensor:
    """Return ``v' (H - G) v`` of a single input along each direction, ``(probes,)``, from passes back."""
    logits = logits_of(answer(model, batch))
    values = list(parameters.values())
    first = torch.autograd.grad(logits, values, residual.to(logits), create_graph=True, materialize_grads=True)
    draws = []
    for seed in seeds:
        direction = list(_signs(parameters, seed).values())
        slope = _dot(first, direction)
        if not slope.requires_grad:  # the logits are linear in these parameters
            return as_double(residual.new_zeros(len(seeds)))
        second = torch.autograd.grad(slope, values, retain_graph=True, materialize_grads=True)
        draws.append(as_double(_dot(second, direction)))
    return torch.stack(draws)


def _dot(ones: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    return torch.stack([(one * other).sum() for one, other in zip(ones, others, strict=True)]).sum()
