"""Largest eigenvalue and spectrum of a network's curvature over its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import nn

from ..errors import NoDerivativeError
from .estimate import Estimate, Level, Loss, Matrix, Spectrum
from .exact import ggn_eigenvalues
from .lanczos import Largest, lanczos_quadrature, largest
from .operators import Operator, batch_operator, curvature_along, mean_operator
from .problem import open_problem, single_inputs

LANCZOS = "Lanczos"


def param_lambda_max(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    level: Level = "dataset",
    matrix: Matrix = "hessian",
    loss: Loss = "energy",
    rtol: float = 1e-5,
    max_matvecs: int = 40,
    params: Sequence[str] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Estimate:
    """Return the largest eigenvalue of the curvature of the mean loss, or of the loss of each single input.

    It is the algebraically largest: a Hessian may have negative ones. Lanczos' method with full reorthogonalisation
    needs about ten products, and bounds its error. For single inputs the Gauss-Newton matrix has a rank below the
    number of classes, and is solved exactly.

    Args:
        model: Returns logits; batch normalisation must be in evaluation mode.
        batches: Any iterable of inputs, or of pairs of inputs and labels. For a data set it is read once per product,
            and must yield the same inputs each time.
        level: ``"dataset"`` for one number, ``"sample"`` for one per input.
        matrix: ``"hessian"`` or ``"ggn"``.
        loss: As in :func:`~flatfold.curvature.param_trace`.
        rtol: Relative tolerance.
        max_matvecs: Largest number of products with the matrix.
        params: As in :func:`~flatfold.curvature.param_trace`.
        seed: Seed of the start vector.
        device: Device to run on; by default that of the model.

    Returns:
        The eigenvalue; an exact eigenvalue is within ``stderr``, the norm of the residual. ``method`` states if the
        limit of products was reached. For a data set, ``shares`` are the inputs' curvatures along the eigenvector.
    """
    if not rtol > 0 or max_matvecs < 1:
        raise ValueError(f"rtol must be above 0 and max_matvecs at least 1, got {rtol} and {max_matvecs}.")

    def top(operator: Operator) -> Largest:
        return largest(operator, rtol, max_matvecs, torch.Generator().manual_seed(seed))

    with open_problem(model, batches, loss, params, device, level, matrix) as problem:
        if level == "dataset":
            found = top(mean_operator(problem))
            method = LANCZOS if found.converged else f"{LANCZOS}, stopped after {found.products} products"
            estimate = problem.estimate(found.value, found.bound, method, found.products, seed)
            try:
                return replace(estimate, shares=curvature_along(problem, found.vector))
            except NoDerivativeError:  # this needs one derivative more than the products
                return estimate
        each = problem.each("largest eigenvalues")
        if matrix == "ggn":
            firsts = []
            for batch in each:
                eigenvalues = ggn_eigenvalues(problem.model, problem.parameters, batch)
                firsts.append(eigenvalues[:, 0].double())
            return problem.estimate(torch.cat(firsts).cpu(), None, "exact", eigenvalues.shape[1], None)
        tops = [top(batch_operator(problem, one)) for batch in each for one in single_inputs(batch)]
        values = torch.tensor([one.value for one in tops], dtype=torch.float64)
        bounds = torch.tensor([one.bound for one in tops], dtype=torch.float64)
        matvecs, stopped = max(one.products for one in tops), sum(not one.converged for one in tops)
        method = f"{LANCZOS}, stopped after {matvecs} products for {stopped} inputs" if stopped else LANCZOS
        return problem.estimate(values, bounds, method, matvecs, seed)


class _Settings(TypedDict, total=False):
    matrix: Matrix
    loss: Loss
    steps: int
    probes: int
    params: Sequence[str] | None
    seed: int
    device: torch.device | str | None


@overload
def param_spectrum(
    model: nn.Module, batches: Iterable[Any], *, level: Literal["dataset"] = ..., **settings: Unpack[_Settings]
) -> Spectrum: ...


@overload
def param_spectrum(
    model: nn.Module, batches: Iterable[Any], *, level: Literal["sample"], **settings: Unpack[_Settings]
) -> list[Spectrum]: ...


def param_spectrum(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    level: Level = "dataset",
    matrix: Matrix = "hessian",
    loss: Loss = "energy",
    steps: int = 16,
    probes: int = 4,
    params: Sequence[str] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Spectrum | list[Spectrum]:
    """Return the distribution of all eigenvalues, by stochastic Lanczos quadrature.

    Each probe yields one distribution; their spread is the band of the density. More probes help more than more steps.

    Args:
        model: As in :func:`param_lambda_max`.
        batches: As in :func:`param_lambda_max`.
        level: ``"dataset"`` for one spectrum, ``"sample"`` for a list with one per input.
        matrix: ``"hessian"`` or ``"ggn"``.
        loss: As in :func:`~flatfold.curvature.param_trace`.
        steps: Products per probe.
        probes: Number of random start vectors; all advance together.
        params: As in :func:`~flatfold.curvature.param_trace`.
        seed: Seed of the probes.
        device: Device to run on; by default that of the model.
    """
    if steps < 1 or probes < 1:
        raise ValueError(f"steps and probes must be at least 1, got {steps} and {probes}.")

    def spectrum(operator: Operator, rows: int | None = None) -> Spectrum:
        generator = torch.Generator().manual_seed(seed)
        nodes, weights = lanczos_quadrature(operator, steps, probes, generator)
        used = nodes[weights > 0]
        ends, method = (float(used.min()), float(used.max())), "stochastic Lanczos quadrature"
        return Spectrum(
            nodes, weights, operator.size, *ends, method, matrix, loss, operator.products, seed, rows or problem.rows
        )

    with open_problem(model, batches, loss, params, device, level, matrix) as problem:
        if level == "dataset":
            return spectrum(mean_operator(problem))
        return [
            spectrum(batch_operator(problem, one), rows=1)
            for batch in problem.each("spectra")
            for one in single_inputs(batch)
        ]
