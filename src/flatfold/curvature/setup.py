"""What a user gives, made ready to be differentiated: a model at rest, some parameters, batches as often as needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from ..models.batches import Batch, split_batch
from ..models.forward import as_it_was, logits_of
from ..models.misfit import answer
from ..progress import track
from .estimate import LOSSES, Loss, check_choice
from .gradients import rows_of
from .losses import losses, targets

SAME = 1e-4  # relative change of the mean loss between two passes that rounding may explain


@dataclass
class Task:
    """A model with its parameters, a loss and data: everything that a curvature statistic depends on.

    Attributes:
        model: In evaluation mode, on ``device``.
        parameters: Those that the loss is differentiated by.
        batches: Can be iterated again and again.
        loss: Which one.
        device: Where the model is.
        rows: Inputs in one pass; 0 before the first.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    batches: Iterable[Any]
    loss: Loss
    device: torch.device
    rows: int = field(default=0, init=False)
    _mean: float | None = field(default=None, init=False)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return next(iter(self.parameters.values())).dtype

    def each(self, title: str) -> Iterator[Batch]:
        """Yield the batches, on the device, one after the other; the first pass counts the inputs.

        Args:
            title: Of the progress bar.
        """
        rows = 0
        for batch in track(self.batches, title):
            told = split_batch(batch)
            if told.rows:
                rows += told.rows
                yield told.to(self.device)
        if not rows:
            raise ValueError("there are no inputs: batches must yield at least one, as x or (x, labels).")
        if self.rows and rows != self.rows:
            raise ValueError(
                f"batches gave {self.rows} inputs at first and {rows} later. Every pass must give the same ones."
            )
        self.rows = rows

    def check_same(self, mean: float) -> None:
        """Raise if the mean loss of a pass is not that of the first: the inputs must have been others."""
        if self._mean is None:
            self._mean = mean
        if abs(mean - self._mean) > SAME * abs(self._mean):
            raise ValueError(
                f"the mean loss was {self._mean:.6g} in one pass over the data and {mean:.6g} in another: the batches "
                "change. Turn random augmentation and sampling off, or give a list of batches."
            )

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits of a batch, ``(n, c)``."""
        logits = logits_of(answer(self.model, batch))
        if logits.ndim != 2 or len(logits) != batch.rows or logits.shape[1] < 2:
            raise ValueError(
                f"the model must return one row of at least two logits per input, ({batch.rows}, c), "
                f"got {tuple(logits.shape)}."
            )
        return logits

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the logits ``(n, c)`` of a batch, its losses ``(n,)``, and what they were measured against."""
        logits = self.logits(batch)
        target = targets(self.loss, logits, batch.labels)
        values = losses(logits, target)
        bad = int((~values.isfinite()).sum())
        if bad:
            raise ValueError(
                f"the loss must be finite, but it is NaN or infinite for {bad} of {batch.rows} inputs of a batch. "
                "Look for NaN among inputs and weights; half precision overflows."
            )
        return logits, values, target


@contextmanager
def prepared(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = "energy",
    params: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Task]:
    """Make a task, and leave the model as it was at the end: its modes, its device, its ``requires_grad``.

    Args:
        model: Returns logits.
        batches: Inputs, or pairs of inputs and labels.
        loss: Which one.
        params: Names of parameters, or of modules for all parameters inside; by default all that require a gradient.
        device: Where to run; by default where the model is.
    """
    check_choice("loss", loss, LOSSES)
    check_batch_norm(model)
    chosen = _chosen(model, params)
    with ExitStack() as undo:
        place = undo.enter_context(as_it_was(model, device))
        undo.enter_context(torch.enable_grad())
        undo.enter_context(sdpa_kernel(SDPBackend.MATH))  # the fast kernels have no second derivative
        for parameter in chosen.values():
            undo.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(True)
        yield Task(model, chosen, _again_and_again(batches), loss, place)


def check_batch_norm(model: nn.Module) -> None:
    """Raise if a batch normalisation would mix the inputs of a batch: then no input has a curvature of its own."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            what = "is in training mode" if module.running_mean is not None else "keeps no running statistics"
            raise ValueError(
                f"{name or 'the model'} is a batch normalisation that {what}, so that the loss of an input depends on "
                "the others in its batch. Call model.eval(), with track_running_stats=True in that layer."
            )


def _chosen(model: nn.Module, params: Sequence[str] | None) -> dict[str, nn.Parameter]:
    every = dict(model.named_parameters())
    if params is None:
        chosen = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
        if not chosen:
            raise ValueError(
                "the model has no parameter that requires a gradient. Name those to differentiate by: params=[...]."
            )
    else:
        names = [params] if isinstance(params, str) else list(params)
        fits = {name: [full for full in every if full == name or full.startswith(f"{name}.")] for name in names}
        unknown = [name for name, full in fits.items() if not full]
        if unknown or not names:
            some = ", ".join(list(every)[:5])
            raise ValueError(f"params must name parameters or modules that have some, such as {some}, got {params!r}.")
        wanted = {full for found in fits.values() for full in found}
        chosen = {name: parameter for name, parameter in every.items() if name in wanted}
    kinds = {parameter.dtype for parameter in chosen.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(map(str, kinds)))
        raise ValueError(
            f"curvature needs parameters that are all float32 or all float64, got {found}. "
            "Second derivatives in half precision have no correct digit: call model.float()."
        )
    return chosen


def _again_and_again(batches: Iterable[Any]) -> Iterable[Any]:
    """Return batches that can be iterated more than once."""
    bare = isinstance(batches, (Tensor, Mapping)) or (
        isinstance(batches, tuple) and len(batches) == 2 and isinstance(batches[1], Tensor) and batches[1].ndim == 1
    )
    if bare or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches must be an iterable of batches, such as a data loader, got {type(batches).__name__} by itself. "
            "For a single batch give a list: [x] or [(x, labels)]."
        )
    return list(batches) if isinstance(batches, Iterator) else batches


def single_inputs(batch: Batch) -> Iterator[Batch]:
    """Yield batches of one input each."""
    return (rows_of(batch, row, row + 1) for row in range(batch.rows))
