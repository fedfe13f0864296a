r"""The trace of a network's curvature over its parameters, exact wherever mathematics allows.

For every loss here the Gauss-Newton matrix is :math:`J^\top (\operatorname{diag} p - p p^\top) J`, so

.. math:: \operatorname{tr} G = \sum_c p_c\, \| J^\top (e_c - p) \|^2

takes a pass back for every class but one, no label and no random number. Where the network is piecewise linear and each
parameter lies on a path at most once, the rest of the Hessian has a zero diagonal, and this is the trace of the Hessian
itself. Only what lies behind the parameters matters: over the last linear layer it is so for every network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..models.batches import Batch
from .estimate import Estimate, Level, Loss, Matrix, check_choice
from .exact import ggn_traces
from .operators import batch_operator
from .piecewise_linear import trace_is_first_order
from .problem import Task, prepared, single_inputs
from .xtrace import hutch_pp, hutchinson, widening, xtrace

ESTIMATORS = {"xtrace": xtrace, "hutch++": hutch_pp, "hutchinson": hutchinson}

Method = Literal["auto", "exact", "xtrace", "hutch++", "hutchinson"]

EXACT_CLASSES = 100  # up to so many every class is done exactly; beyond, the likeliest, and the rest is estimated
TOP_CLASSES = 32
MATVECS = 30  # of an estimate
PROBES = 16  # for the rest of the classes
FIRST_BATCHES = 8  # in all of which some inputs are looked at, and then in ever fewer


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
            each batch, or on each input, with vectors of its own. ``"exact"`` refuses where that is not possible.
            ``"xtrace"``, ``"hutch++"`` and ``"hutchinson"`` estimate in any case.
        probes: Products with the matrix for an estimate, 30 by default. Among more than 100 classes, draws for those
            beyond the 32 likeliest, 16 by default.
        params: Names of parameters, or of modules, to differentiate by; by default all that require a gradient.
        seed: Of whatever is random.
        device: Where to run; by default where the model is.

    Returns:
        The trace; ``stderr`` is None where it is exact.
    """
    check_choice("level", level, ("dataset", "sample"))
    check_choice("matrix", matrix, ("hessian", "ggn"))
    check_choice("method", method, ("auto", "exact", *ESTIMATORS))
    if probes is not None and probes < 2:
        raise ValueError(f"probes must be at least 2, for an error bar needs two draws, got {probes}.")
    generator = torch.Generator().manual_seed(seed)
    with prepared(model, batches, loss, params, device) as task:
        if method in ESTIMATORS:
            parts = list(_estimated(task, level, matrix, method, probes or MATVECS, generator))
        else:
            parts = _best(task, level, matrix, method == "exact", probes, generator)
        return _joined(parts, task, level, matrix, seed)


class _Part(NamedTuple):
    """The traces of some inputs: ``(n,)``, each by itself, or ``()``, the mean over all ``rows`` of them."""

    values: Tensor
    stderr: Tensor | None
    method: str
    matvecs: int
    rows: int

    @property
    def total(self) -> float:
        """The sum over its inputs."""
        return float(self.values.sum()) * self._inputs_per_value

    @property
    def variance(self) -> float:
        """Of that sum; the errors of single inputs are independent."""
        return 0.0 if self.stderr is None else float(self.stderr.square().sum()) * self._inputs_per_value**2

    @property
    def _inputs_per_value(self) -> int:
        return 1 if self.values.ndim else self.rows


def _best(
    task: Task, level: Level, matrix: Matrix, exactly: bool, probes: int | None, generator: torch.Generator
) -> list[_Part]:
    """Return the traces of each batch, exact where they can be."""
    parts: list[_Part] = []
    first_order = True
    for number, batch in enumerate(task.each("trace"), start=1):
        if matrix == "hessian" and first_order and _is_looked_at(number):
            first_order = trace_is_first_order(task.model, task.parameters, batch)
            if exactly and not first_order:
                raise ValueError(
                    "the trace of this network's Hessian has no exact form: it is not piecewise linear behind "
                    "the chosen parameters, or uses one of them twice. method='auto' estimates it; matrix='ggn' is "
                    "exact for every network."
                )
            if parts and not first_order:  # nor is there reason to trust what came before: from the beginning
                return list(_estimated(task, level, matrix, "xtrace", probes or MATVECS, generator))
        if first_order:
            parts.append(_from_classes(task, batch, exactly, probes or PROBES, generator))
        else:
            parts.extend(_by("xtrace", task, batch, level, matrix, probes or MATVECS, generator))
    return parts


def _is_looked_at(number: int) -> bool:
    """Tell whether a batch is one of the first, or of the 16th, 32nd and so on: looking must not cost more and more."""
    return number <= FIRST_BATCHES or number.bit_count() == 1


def _from_classes(task: Task, batch: Batch, exactly: bool, draws: int, generator: torch.Generator) -> _Part:
    """Return the traces of single inputs by passes back from their classes."""
    with torch.no_grad():
        logits, _, _ = task.losses(batch)
    some = not exactly and logits.shape[1] > EXACT_CLASSES
    values, stderr, passes = ggn_traces(
        task.model, task.parameters, batch, TOP_CLASSES if some else None, draws, generator
    )
    method = "likeliest classes exactly, the rest estimated" if some else "exact"
    return _Part(values, None if stderr is None else widening(draws) * stderr, method, passes, batch.rows)


def _estimated(
    task: Task, level: Level, matrix: Matrix, method: str, probes: int, generator: torch.Generator
) -> Iterator[_Part]:
    for batch in task.each("trace"):
        yield from _by(method, task, batch, level, matrix, probes, generator)


def _by(
    method: str, task: Task, batch: Batch, level: Level, matrix: Matrix, probes: int, generator: torch.Generator
) -> Iterator[_Part]:
    """Yield the estimate for a batch, or one for each of its inputs, with vectors of its own."""
    for inputs in single_inputs(batch) if level == "sample" else [batch]:
        operator = batch_operator(task, inputs, matrix)
        value, stderr = ESTIMATORS[method](operator, probes, generator)
        told = [torch.tensor(number, dtype=torch.float64) for number in (value, stderr)]
        yield _Part(told[0], told[1], method, operator.products, inputs.rows)


def _joined(parts: list[_Part], task: Task, level: Level, matrix: Matrix, seed: int) -> Estimate:
    """Return one estimate from those of all batches, whose errors are independent."""
    exact = all(part.stderr is None for part in parts)
    value: float | Tensor
    stderr: float | Tensor | None
    if level == "sample":
        value = torch.cat([part.values.reshape(-1) for part in parts]).cpu()
        stderr = torch.cat([_errors(part) for part in parts]).cpu()
    else:
        value = sum(part.total for part in parts) / task.rows
        stderr = sqrt(sum(part.variance for part in parts)) / task.rows
    if not (torch.as_tensor(value).isfinite() & torch.as_tensor(stderr).isfinite()).all():
        raise ValueError(
            "a trace must be finite, but it is NaN or infinite: so are derivatives of the network, or their squares. "
            "Look for roots and logarithms of 0 in it and for huge weights, or take it in float64."
        )
    return Estimate(
        value,
        None if exact else stderr,
        method=parts[0].method,
        matrix=matrix,
        loss=task.loss,
        matvecs=max(part.matvecs for part in parts),
        seed=None if exact else seed,
        rows=task.rows,
    )


def _errors(part: _Part) -> Tensor:
    return (torch.zeros_like(part.values) if part.stderr is None else part.stderr).reshape(-1)
