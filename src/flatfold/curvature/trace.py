r"""The trace of a network's curvature over its parameters, exact wherever mathematics allows.

For every loss here the Gauss-Newton matrix is :math:`J^\top (\operatorname{diag} p - p p^\top) J`, so

.. math:: \operatorname{tr} G = \sum_c p_c\, \| J^\top (e_c - p) \|^2

takes a pass back for every class but one, no label and no random number. Where the network is piecewise linear and each
parameter is used at most once, the rest of the Hessian has a zero diagonal, and this is the trace of the Hessian
itself. Only what comes after the parameters matters: over the last linear layer it is so for every network.
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

EXACT_CLASSES = 100  # up to which every class is done exactly; beyond, the likeliest, and the rest is estimated
TOP_CLASSES = 32
MATVECS = 30  # of an estimate
PROBES = 16  # for the rest of the classes
FIRST_BATCHES = 8  # which are all tested for being piecewise linear; afterwards fewer and fewer


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

    The data is read once, or once more where only a later batch shows that a trace must be estimated. Gradients stored
    in ``.grad`` are not touched.

    Args:
        model: Returns logits; batch normalisation must be in evaluation mode.
        batches: Any iterable of inputs, or of pairs of inputs and labels.
        level: ``"dataset"`` for one number, ``"sample"`` for one per input.
        matrix: ``"hessian"``, or ``"ggn"``: the Gauss-Newton matrix, which is never negative and needs no label.
        loss: ``"energy"``; ``"ce_pred"``, the cross-entropy of the predicted class; ``"ce"``, that of the label.
        method: ``"auto"`` is exact for the Gauss-Newton matrix, and for the Hessian of networks that are found to be
            piecewise linear from the chosen parameters on, by their layers and by a few inputs of the first 8 batches,
            the 16th, the 32nd and so on. So it is for the last linear layer of every network. Otherwise it is XTrace on
            each batch, or on each input, with independent vectors. ``"exact"`` raises where that is not possible.
            ``"xtrace"`` estimates in any case.
        probes: Products with the matrix for an estimate, 30 by default. Among more than 100 classes, draws for those
            beyond the 32 likeliest, 16 by default.
        params: Names of parameters, or of modules, to differentiate by; by default all that require a gradient.
        seed: Seed of the random vectors.
        device: Where to run; by default where the model is.

    Returns:
        The trace; ``stderr`` is None where it is exact.
    """
    check_choice("method", method, ("auto", "exact", "xtrace"))
    if probes is not None and probes < 2:
        raise ValueError(f"probes must be at least 2, because an error bar needs two draws, got {probes}.")
    with open_problem(model, batches, loss, params, device, level, matrix) as problem:
        return _join(_parts(problem, method, probes, torch.Generator().manual_seed(seed)), problem, seed)


class _Part(NamedTuple):
    """The traces of some inputs: ``(n,)``, each by itself, or ``()``, the mean over all ``rows`` of them."""

    values: Tensor
    stderr: Tensor | None
    method: str
    matvecs: int
    rows: int

    def sum(self) -> tuple[float, float]:
        """Return the sum over its inputs, and its variance; the errors of single inputs are independent."""
        factor = 1 if self.values.ndim else self.rows
        variance = 0.0 if self.stderr is None else float(self.stderr.square().sum())
        return float(self.values.sum()) * factor, variance * factor**2


def _parts(problem: Problem, method: Method, probes: int | None, generator: torch.Generator) -> list[_Part]:
    """Return the traces of each batch, exact where they can be and shall be."""
    parts: list[_Part] = []
    first_order = method != "xtrace"
    for number, batch in enumerate(problem.each("trace"), start=1):
        tested = number <= FIRST_BATCHES or number.bit_count() == 1  # all tests together must not cost more and more
        if problem.matrix == "hessian" and first_order and tested:
            first_order = trace_is_first_order(problem.model, problem.parameters, batch)
            if method == "exact" and not first_order:
                raise ValueError(
                    "the trace of this network's Hessian has no exact form: it is not piecewise linear after the "
                    "chosen parameters, or uses one of them twice. Use method='auto' to estimate it, or matrix='ggn'."
                )
            if parts and not first_order:  # so the parts before may be wrong, too
                return _parts(problem, "xtrace", probes, generator)
        if first_order:
            parts.append(_from_classes(problem, batch, method == "exact", probes or PROBES, generator))
            continue
        for inputs in single_inputs(batch) if problem.level == "sample" else [batch]:
            operator = batch_operator(problem, inputs)
            value, stderr = torch.tensor(xtrace(operator, probes or MATVECS, generator), dtype=torch.float64)
            parts.append(_Part(value, stderr, "xtrace", operator.products, inputs.rows))
    return parts


def _from_classes(problem: Problem, batch: Batch, exactly: bool, draws: int, generator: torch.Generator) -> _Part:
    """Return the traces of single inputs by passes back from their classes."""
    with torch.no_grad():
        logits, _ = problem.losses(batch)
    some = not exactly and logits.shape[1] > EXACT_CLASSES
    values, stderr, passes = ggn_traces(
        problem.model, problem.parameters, batch, TOP_CLASSES if some else None, draws, generator
    )
    method = "likeliest classes exactly, the rest estimated" if some else "exact"
    return _Part(values, None if stderr is None else widening(draws) * stderr, method, passes, batch.rows)


def _join(parts: list[_Part], problem: Problem, seed: int) -> Estimate:
    """Return one estimate from those of all batches, whose errors are independent."""
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
            "Look for roots and logarithms of 0 and for huge weights, or use float64."
        )
    matvecs = max(part.matvecs for part in parts)
    return problem.estimate(value, None if exact else stderr, parts[0].method, matvecs, None if exact else seed)
