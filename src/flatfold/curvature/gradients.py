"""Gradients of single inputs by the parameters: their squared lengths and products, for many cotangents at once.

Where every parameter belongs to one known layer, passes back to the outputs of the layers serve all inputs of a batch
(``by_layer``). Where one is used in any other way, gradients are built input by input (``by_input``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from ..models.batches import Batch
from ..models.forward import logits_of
from ..models.misfit import answer
from .by_input import ByInput
from .by_layer import ByLayer, goes_by_layer
from .graph import Parameters
from .layer_calls import check_graphs, noted_calls

__all__ = ["MEMORY", "Kept", "Parameters", "kept", "kept_parts"]

MEMORY = 2**28  # bytes that the gradients of a part of a batch may take


@dataclass(frozen=True)
class Kept:
    """A forward pass of some inputs, kept to go back through it.

    Attributes:
        way: How that is done.
    """

    way: ByLayer | ByInput

    @property
    def logits(self) -> Tensor:
        """The logits, ``(n, c)``, detached."""
        return self.way.logits

    @property
    def bytes(self) -> int:
        """Memory that one cotangent takes, for all inputs."""
        return self.way.bytes

    @property
    def together(self) -> int:
        """How many cotangents fit into memory at a time, at least one."""
        return max(1, MEMORY // max(1, self.bytes))

    def products(self, cotangents: Tensor, pairs: bool = False) -> Tensor:
        """Return the squared length of each gradient, or the products of all pairs of one input's gradients.

        Args:
            cotangents: Over the logits, ``(k, n, c)``.
            pairs: Whether all pairs are wanted.

        Returns:
            ``(n, k)``, or ``(n, k, k)`` for pairs, in float64.
        """
        return self.way.products(cotangents, pairs)


def kept_parts(model: nn.Module, parameters: Parameters, batch: Batch, cotangents: int | None = None) -> Iterator[Kept]:
    """Yield a forward pass of a batch, or of one part of it after the other, so that gradients fit into memory.

    Args:
        model: In evaluation mode, on the device of the batch; gradients must be enabled.
        parameters: Those to differentiate by, named as in the model.
        batch: Inputs.
        cotangents: How many of them should fit at a time, by default and at most as many as there are classes.
    """
    if batch.rows <= 1:
        yield kept(model, parameters, batch)
        return
    one = kept(model, parameters, batch.part(0, 1))
    classes = one.logits.shape[1]
    needed = one.bytes * (classes if cotangents is None else min(classes, cotangents))
    size = max(1, MEMORY // max(1, needed))
    del one
    for start in range(0, batch.rows, size):
        yield kept(model, parameters, batch.part(start, start + size))


def kept(model: nn.Module, parameters: Parameters, batch: Batch) -> Kept:
    """Return a forward pass of a batch, kept in the fastest way that is right for these parameters."""
    with noted_calls(model, parameters) as calls:
        logits = logits_of(answer(model, batch))
    check_graphs(model, calls)
    if goes_by_layer(logits, parameters, calls):
        return Kept(ByLayer(logits, calls))
    return Kept(ByInput(model, parameters, batch, logits.detach()))
