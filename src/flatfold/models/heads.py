"""Find the last linear layer of a model by watching one batch go through it, not by its name.

Every linear layer and 1x1 convolution is hooked; the one whose output *is* the model's logits is the head, and its
input is the feature. This works for any architecture that ends in ``z = W h + b``, whatever comes before.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.errors import UnsupportedHead
from ..core.head import Head
from .affine import check_affine, head_of
from .at_rest import as_it_was
from .batches import Batch, split_batch
from .forward import Call, is_linear, logits_of, plain_name, recorded
from .misfit import answer
from .refusals import no_such_layer, not_a_head, other_logits, quoted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FoundHead:
    """The head of a model.

    Attributes:
        name: The layer's name in the model, ``""`` when the model is that layer; as it is without ``torch.compile``.
        module: The layer itself.
        head: A copy of its weights on the CPU, float32 (float64 for a float64 model).
        gives_logits: False when the layer was named by the user and the model's logits are something else.
    """

    name: str
    module: nn.Module
    head: Head
    gives_logits: bool


class Pass(NamedTuple):
    """What one batch gives: features ``(n, d)`` in the head's type, logits ``(n, c)`` as the head gave them."""

    features: Tensor
    logits: Tensor


def find_head(model: nn.Module, batch: Any, name: str | None = None) -> FoundHead:
    """Run one batch and return the layer whose output is the model's logits.

    The model runs in evaluation mode, without gradients, where it lies, and is left as it was.

    Args:
        model: Any classifier.
        batch: Something it accepts: a tensor, ``(x, y)`` or a dict (see ``split_batch``).
        name: The layer to take, as in ``model.named_modules()``. A warning says so when the logits are something else.

    Raises:
        UnsupportedHead: There is no such layer, or several are combined.
        ValueError: The model cannot take this batch.

    Example:
        >>> find_head(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(2, 4)).name
        '2'
    """
    with as_it_was(model) as device:
        found, _ = probe(model, split_batch(batch).to(device), name)
    warn_of_other_logits(found, stacklevel=3)
    return found


def warn_of_other_logits(found: FoundHead, stacklevel: int) -> None:
    """Warn when the user named a layer whose output is not what the model returns."""
    if not found.gives_logits:
        warnings.warn(
            f"the output of {quoted(found.name)} is not what the model returns, so scores describe this layer and not "
            "the model's own logits. Leave out head= to let flatfold look for the layer that gives them.",
            stacklevel=stacklevel,
        )


def probe(model: nn.Module, batch: Batch, name: str | None = None) -> tuple[FoundHead, Pass]:
    """Find the head and return it with what the batch gave; the caller puts the model into evaluation mode."""
    if batch.rows == 0:
        raise ValueError("a batch with at least one input is needed to find the head, got an empty one. Take another.")
    layers = _linear_layers(model) if name is None else {plain_name(name): _named_layer(model, name)}
    with recorded(layers, batch.rows) as calls:
        logits = logits_of(answer(model, batch))
    call = _last_that_gives(calls, logits)
    gives_logits = call is not None
    if call is None:
        call = _last_call(calls, logits, name)
    module = layers[call.name]
    found = FoundHead(call.name, module, head_of(module), gives_logits)
    result = _as_pass(call, batch, found)
    check_affine(call.name, module, found.head, *result)
    logger.info("the head is %s: %r", quoted(found.name), found.head)
    return found, result


def run(model: nn.Module, found: FoundHead, batch: Batch) -> Pass:
    """Run one batch through a model whose head is known."""
    with recorded({found.name: found.module}, batch.rows) as calls:
        logits = logits_of(answer(model, batch))
    call = _last_that_gives(calls, logits) if found.gives_logits else _last_flat(calls)
    if call is None:
        raise UnsupportedHead(other_logits(found.name))
    return _as_pass(call, batch, found)


def _linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    return {plain_name(name): module for name, module in model.named_modules() if is_linear(module)}


def _named_layer(model: nn.Module, name: str) -> nn.Module:
    layer = module_named(model, name)
    if layer is None or not is_linear(layer):
        raise UnsupportedHead(no_such_layer(name, layer, list(_linear_layers(model))))
    return layer


def module_named(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module of a name, with or without the parts that ``torch.compile`` adds; None if there is none."""
    modules = {plain_name(key): module for key, module in model.named_modules(remove_duplicate=False)}
    return modules.get(plain_name(name))


def _last_that_gives(calls: list[Call], logits: Tensor) -> Call | None:
    return next((call for call in reversed(calls) if _same(call.logits, logits)), None)


def _same(output: Tensor | None, logits: Tensor) -> bool:
    """Tell whether two tensors hold the same numbers, apart from dimensions of size 1 and the floating-point type."""
    if output is None or [n for n in output.shape if n != 1] != [n for n in logits.shape if n != 1]:
        return False
    output, logits = output.to(logits.device, logits.dtype).flatten(), logits.detach().flatten()
    # The second look, which takes longer, is only for those with a NaN.
    return torch.equal(output, logits) or torch.allclose(output, logits, rtol=0, atol=0, equal_nan=True)


def _last_call(calls: list[Call], logits: Tensor, name: str | None) -> Call:
    """Return the last call of the layer the user named; refuse when none was named."""
    call = _last_flat(calls)
    if name is None or call is None:
        raise UnsupportedHead(not_a_head(calls, logits, name))
    return call


def _last_flat(calls: list[Call]) -> Call | None:
    return next((call for call in reversed(calls) if call.features is not None and call.logits is not None), None)


def _as_pass(call: Call, batch: Batch, found: FoundHead) -> Pass:
    assert call.features is not None
    assert call.logits is not None
    if len(call.features) != batch.rows:
        raise UnsupportedHead(
            f"one row of features per input is needed, but {quoted(call.name)} got {len(call.features)} rows for a "
            f"batch of {batch.rows}. Does the model cut its inputs? Wrap it so that each input gives one row."
        )
    return Pass(call.features.to(found.head.weight.dtype), call.logits)
