"""Products of single inputs' gradients that are built, input by input: right for any use of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from ..core.precision import as_double
from ..models.batches import Batch
from ..models.forward import logits_of
from ..models.misfit import answer
from .graph import Parameters


class ByInput:
    """Inputs to run again, one by one, or with vmap where that can follow the network.

    Attributes:
        logits: ``(n, c)``, detached.
        bytes: Memory that one cotangent takes, for all inputs.
    """

    def __init__(self, model: nn.Module, parameters: Parameters, batch: Batch, logits: Tensor) -> None:
        self.logits, self._model, self._batch, self._parameters = logits, model, batch, parameters
        self.bytes = batch.rows * sum(parameter.nbytes for parameter in parameters.values())

    def products(self, cotangents: Tensor, pairs: bool) -> Tensor:
        """Return squared lengths ``(n, k)`` of gradients, or all products ``(n, k, k)``, in float64."""
        cotangents = cotangents.to(self.logits)
        try:
            with catch_warnings():
                filterwarnings("ignore", "There is a performance drop")  # it is still faster than one by one
                return as_double(self._together(cotangents, pairs))
        except (RuntimeError, ValueError, TypeError, NotImplementedError):  # a network that vmap cannot take
            return as_double(self._one_by_one(cotangents, pairs))

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
    """Return ``(k,)`` or ``(k, k)`` from the gradients of one input by each parameter, ``(k, ...)``."""
    flat = [gradient.flatten(1) for gradient in gradients]
    return torch.stack([one @ one.T if pairs else one.square().sum(1) for one in flat]).sum(0)
