"""Products of single inputs' gradients that are built, input by input: right for any use of the parameters.

With ``vmap`` all inputs go at once. It sees a parameter only where the model has it under its name; one that is also
kept in a plain list, or in a function, would pass for a constant. So the fast way is compared with the slow one, which
asks autograd for the parameters themselves, and left where they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from ..models.batches import Batch
from ..models.forward import logits_of
from ..models.misfit import answer
from .graph import Parameters, uses
from .squares import row_products

AGREEMENT = 1e-2  # relative difference that rounding may leave: TensorFloat-32 stays well below


class ByInput:
    """Inputs to run again, one by one, or with vmap where that can follow the network.

    Attributes:
        logits: ``(n, c)``, detached.
        bytes: Memory that one cotangent takes, for all inputs.
    """

    def __init__(self, model: nn.Module, parameters: Parameters, batch: Batch, logits: Tensor) -> None:
        self.logits, self._model, self._batch, self._parameters = logits, model, batch, parameters
        self.bytes = batch.rows * sum(parameter.nbytes for parameter in parameters.values())
        self._fast, self._compared = batch.rows > 1, False

    def products(self, cotangents: Tensor, pairs: bool) -> Tensor:
        """Return squared lengths ``(n, k)`` of gradients, or all products ``(n, k, k)``, in float64."""
        cotangents = cotangents.to(self.logits)
        if self._fast:
            try:
                with catch_warnings():
                    filterwarnings("ignore", "There is a performance drop")  # it is still faster than one by one
                    found = self._together(cotangents, pairs)
                    self._fast = self._compared or (self._all_reached() and self._agrees(found, cotangents))
            except (RuntimeError, ValueError, TypeError, NotImplementedError):  # a network that vmap cannot take
                self._fast = False
            self._compared = True
        return found if self._fast else self._one_by_one(cotangents, pairs)

    def _all_reached(self) -> bool:
        """Tell whether a pass with other tensors in place of the parameters does without the parameters."""
        one = self._batch.part(0, 1)
        others = {name: parameter.detach() for name, parameter in self._parameters.items()}
        counts, _ = uses(logits_of(functional_call(self._model, others, one.args, one.kwargs)), self._parameters)
        return not counts

    def _agrees(self, found: Tensor, cotangents: Tensor) -> bool:
        """Tell whether the first gradient of the first input is as long by itself."""
        first = ByInput(self._model, self._parameters, self._batch.part(0, 1), self.logits[:1])
        length = first.products(cotangents[:1, :1], pairs=False)
        return bool(torch.isclose(found.flatten()[0], length.flatten()[0], rtol=AGREEMENT, atol=0.0))

    def _together(self, cotangents: Tensor, pairs: bool) -> Tensor:
        values = [*self._batch.args, *self._batch.kwargs.values()]
        names = list(self._batch.kwargs)
        own = [self._batch.one_per_input(value) for value in values]
        parameters = {name: parameter.detach() for name, parameter in self._parameters.items()}

        def products(cotangents: Tensor, *inputs: Any) -> Tensor:
            rows = [value[None] if single else value for value, single in zip(inputs, own, strict=True)]
            args, kwargs = rows[: len(rows) - len(names)], dict(zip(names, rows[len(rows) - len(names) :], strict=True))
            back = vjp(lambda new: logits_of(functional_call(self._model, new, tuple(args), kwargs))[0], parameters)[1]
            (gradients,) = vmap(back)(cotangents)
            return _flat_products(list(gradients.values()), pairs)

        with torch.no_grad():  # vjp records what it needs; a graph to all other parameters would only fill the memory
            return vmap(products, in_dims=(1, *(0 if single else None for single in own)))(cotangents, *values)

    def _one_by_one(self, cotangents: Tensor, pairs: bool) -> Tensor:
        parameters = list(self._parameters.values())
        found = []
        for row in range(self._batch.rows):
            logits = logits_of(answer(self._model, self._batch.part(row, row + 1)))
            each = [
                torch.autograd.grad(logits, parameters, one[row : row + 1], retain_graph=True, materialize_grads=True)
                for one in cotangents
            ]
            found.append(_flat_products([torch.stack(gradients) for gradients in zip(*each, strict=True)], pairs))
        return torch.stack(found)


def _flat_products(gradients: Sequence[Tensor], pairs: bool) -> Tensor:
    """Return ``(k,)`` or ``(k, k)``, in float64, from the gradients of one input by each parameter, ``(k, ...)``."""
    return torch.stack([row_products(gradient.flatten(1), pairs) for gradient in gradients]).sum(0)
