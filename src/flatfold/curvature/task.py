"""What a curvature statistic depends on: a model, some of its parameters, a loss, and batches as often as needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..models.batches import Batch, split_batch
from ..progress import track
from .estimate import Loss
from .first_look import check_alone, logits_per_input
from .losses import losses, targets

SAME = 1e-4  # relative change of the mean loss between two passes that rounding may explain
ROUNDING = 100  # times the precision of the logits: what rounding may change of a loss that is nearly 0


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
    _seen: int = field(default=0, init=False)

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
                ready = recordable(told.to(self.device))
                self._look_at(ready)
                yield ready
        if not rows:
            raise ValueError("there are no inputs: batches must yield at least one, as x or (x, labels).")
        if self.rows and rows != self.rows:
            raise ValueError(
                f"batches gave {self.rows} inputs at first and {rows} later. Every pass must give the same ones."
            )
        self.rows = rows

    def check_same(self, mean: float, size: float) -> None:
        """Raise if the mean loss of a pass is not that of the first: the inputs must have been others.

        Args:
            mean: The mean loss.
            size: The mean of the largest absolute logit, which the loss owes its rounding to.
        """
        if self._mean is None:
            self._mean = mean
        if abs(mean - self._mean) > SAME * abs(self._mean) + ROUNDING * torch.finfo(self.dtype).eps * size:
            raise ValueError(
                f"the mean loss was {self._mean:.6g} in one pass over the data and {mean:.6g} in another: the batches "
                "change. Turn random augmentation and sampling off, or give a list of batches."
            )

    def _look_at(self, batch: Batch) -> None:
        """Check the model on the first batch, and on the first that has several inputs."""
        if self._seen < min(batch.rows, 2):
            check_alone(self.model, self.parameters, batch)
            self._seen = min(batch.rows, 2)

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the logits ``(n, c)`` of a batch, its losses ``(n,)``, and what they were measured against."""
        logits = logits_per_input(self.model, batch)
        target = targets(self.loss, logits, batch.labels)
        values = losses(logits, target)
        bad = int((~values.isfinite()).sum())
        if bad:
            raise ValueError(
                f"the loss must be finite, but it is NaN or infinite for {bad} of {batch.rows} inputs of a batch. "
                "Look for NaN among inputs and weights; half precision overflows."
            )
        return logits, values, target


def recordable(batch: Batch) -> Batch:
    """Return a batch without tensors from ``torch.inference_mode``, which no graph may hold."""

    def ready(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and value.is_inference() else value

    kwargs = {name: ready(value) for name, value in batch.kwargs.items()}
    return batch._replace(args=tuple(map(ready, batch.args)), kwargs=kwargs, labels=ready(batch.labels))


def single_inputs(batch: Batch) -> Iterator[Batch]:
    """Yield batches of one input each."""
    return (batch.part(row, row + 1) for row in range(batch.rows))
