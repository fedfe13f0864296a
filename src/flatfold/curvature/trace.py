r"""Trace of a network's curvature over its parameters, exact where possible.

For every loss here the Gauss-Newton matrix is :math:`J^\top (\operatorname{diag} p - p p^\top) J`, so

.. math:: \operatorname{tr} G = \sum_c p_c\, \| J^\top (e_c - p) \|^2

needs a backward pass for every class but one, no label and no random number. If the network is piecewise linear and
each parameter is used at most once, the rest of the Hessian has a zero diagonal, and this is the trace of the Hessian
itself. Only layers after the parameters matter: over the last linear layer it holds for every network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..core.validation import check_choice
from ..data.batch import Batch
from .estimate import Estimate, Level, Loss, Matrix
from .exact import ggn_traces
from .operators import batch_operator
from .piecewise_linear import trace_is_first_order
from .problem import Problem, open_problem, single_inputs
from .xtrace import widening, xtrace

Method = Literal["auto", "exact", "xtrace"]

EXACT_CLASSES = 100  # up to this number every class is exact; beyond, the likeliest are, and the rest is estimated
TOP_CLASSES = 32
MATVECS = 30  # products per estimate
PROBES = 16  # for the rest of the classes
FIRST_BATCHES = 8  # batches that are all tested for piecewise linearity; later ones increasingly rarely


def param_trace(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    level: Level = "dataset",
    matrix: Matrix = "hessian",
    loss: Loss = "energy",
    method: Method = "auto",
    probes: int | None = None,
    params: Sequence[str] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Estimate:
    r"""Return the trace of the curvature of the mean loss over a data set, or of the loss of each single input.

    The data is read once, or twice if only a later batch shows that the trace must be estimated. Gradients stored in
    ``.grad`` are not modified.

    Args:
        model: Returns logits; batch normalisation must be in evaluation mode.
        batches: Any iterable of inputs, or of pairs of inputs and labels.
        level: ``"dataset"`` for one number, ``"sample"`` for one per input.
        matrix: ``"hessian"``, or ``"ggn"``: the Gauss-Newton matrix, which is never negative and needs no label.
        loss: ``"energy"``; ``"ce_pred"``, the cross-entropy of the predicted class; ``"ce"``, that of the label.
        method: ``"auto"`` is exact for the Gauss-Newton matrix, and for the Hessian of networks that are found to be
            piecewise linear after the chosen parameters, by their layers and by a few inputs of the first 8 batches,
            the 16th, the 32nd and so on. The last linear layer of every network qualifies. Otherwise it uses XTrace on
            each batch, or on each input, with independent vectors. ``"exact"`` raises if that is not possible.
            ``"xtrace"`` always estimates.
        probes: Products with the matrix for an estimate, 30 by default. With more than 100 classes, draws for the
            classes beyond the 32 likeliest, 16 by default.
        params: Names of parameters, or of modules, to differentiate by; by default all that require a gradient.
        seed: Seed of the random vectors.
        device: Device to run on; by default that of the model.

    Returns:
        The trace; ``stderr`` is None if it is exact.
    """
    check_choice("method", method, ("auto", "exact", "xtrace"))
    if probes is not None and probes < 2:
        raise ValueError(f"probes must be at least 2, because a standard error needs two draws, got {probes}.")
    with open_problem(model, batches, loss, params, device, level, matrix) as problem:
        return _join(_parts(problem, method, probes, torch.Generator().manual_seed(seed)), problem, seed)


class _Part(NamedTuple):
    """Traces of a batch: ``(n,)`` for single inputs, or ``()`` for the mean over all its ``rows``."""

    values: Tensor
    stderr: Tensor | None
    method: str
    matvecs: int
    rows: int

    def sum(self) -> tuple[float, float]:
        """Return the sum over the inputs, and its variance; the errors of single inputs are independent."""
        factor = 1 if self.values.ndim else self.rows
        variance = 0.0 if self.stderr is None else float(self.stderr.square().sum())
        return float(self.values.sum()) * factor, variance * factor**2


def _parts(problem: Problem, method: Method, probes: int | None, generator: torch.Generator) -> list[_Part]:
    """Return the traces of each batch, exact if ``method`` and the network allow it."""
    parts: list[_Part] = []
    first_order = method != "xtrace"
    for number, batch in enumerate(problem.each("trace"), start=1):
        tested = number <= FIRST_BATCHES or number.bit_count() == 1  # keeps the total cost of the tests small
        if problem.matrix == "hessian" and first_order and tested:
            first_order = trace_is_first_order(problem.model, problem.parameters, batch)
            if method == "exact" and not first_order:
                raise ValueError(
                    "the trace of this network's Hessian has no exact form: it is not piecewise linear after the "
                    "chosen parameters, or uses one of them twice. Use method='auto' to estimate it, or matrix='ggn'."
                )
            if parts and not first_order:  # the earlier parts may be wrong, too
                return _parts(problem, "xtrace", probes, generator)
        if first_order:
            parts.append(_trace_by_classes(problem, batch, method == "exact", probes or PROBES, generator))
            continue
        for inputs in single_inputs(batch) if problem.level == "sample" else [batch]:
            operator = batch_operator(problem, inputs)
            value, stderr = torch.tensor(xtrace(operator, probes or MATVECS, generator), dtype=torch.float64)
            parts.append(_Part(value, stderr, "xtrace", operator.products, inputs.rows))
    return parts


def _trace_by_classes(problem: Problem, batch: Batch, exactly: bool, draws: int, generator: torch.Generator) -> _Part:
    """Return the traces of single inputs, computed by backward passes from their classes."""
    with torch.no_grad():
        logits, _ = problem.losses(batch)
    some = not exactly and logits.shape[1] > EXACT_CLASSES
    values, stderr, passes = ggn_traces(
        problem.model, problem.parameters, batch, TOP_CLASSES if some else None, draws, generator
    )
    method = "likeliest classes exactly, the rest estimated" if some else "exact"
    return _Part(values, None if stderr is None else widening(draws) * stderr, method, passes, batch.rows)


def _join(parts: list[_Part], problem: Problem, seed: int) -> Estimate:
    """Combine the traces of all batches, whose errors are independent, into one estimate."""
    exact = all(part.stderr is None for part in parts)
    value: float | Tensor
    stderr: float | Tensor | None
    if problem.level == "sample":
        value = torch.cat([part.values.reshape(-1) for part in parts]).cpu()
        errors = [torch.zeros_like(part.values) if part.stderr is None else part.stderr for part in parts]
        stderr = torch.cat([error.reshape(-1) for error in errors]).cpu()
    else:
        totals, variances = zip(*(part.sum() for part in parts), strict=True)
        value, stderr = sum(totals) / problem.rows, sqrt(sum(variances)) / problem.rows
    if not (torch.as_tensor(value).isfinite() & torch.as_tensor(stderr).isfinite()).all():
        raise ValueError(
            "the trace must be finite, but derivatives of the network, or their squares, are NaN or infinite. "
            "Check for square roots and logarithms of 0 and for huge weights, or use float64."
        )
    matvecs = max(part.matvecs for part in parts)
    return problem.estimate(value, None if exact else stderr, parts[0].method, matvecs, None if exact else seed)
