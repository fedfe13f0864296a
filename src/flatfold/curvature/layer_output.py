"""The output of one layer, seen during a pass, from where the logits are followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.check import check_finite
from ..models.batches import Batch
from .first_look import check_batch_norm, logits_per_input


class Seen(NamedTuple):
    """Logits of a pass, and the output of a layer that they were computed from, which starts the graph."""

    logits: Tensor
    output: Tensor


def seen_output(model: nn.Module, layer: str, batch: Batch) -> Seen:
    """Return the logits of a batch with the output of a layer.

    Args:
        model: In evaluation mode, on the device of the batch; gradients must be enabled.
        layer: Name of a module that runs once in a pass.
        batch: Inputs.
    """
    check_batch_norm(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    if layer not in modules:
        raise ValueError(
            f"layer must be the name of a module, got {layer!r}. "
            f"The model has {', '.join(name for name, _ in model.named_children())} and what is inside them."
        )
    outputs: list[Tensor] = []

    def start(output: Any) -> Tensor:
        outputs.append(_checked(output, layer, batch.rows).detach().requires_grad_())
        return outputs[-1].clone()  # what follows may change it in place

    logits = _logits_with(modules[layer], start, model, batch)
    if len(outputs) != 1:
        times = f"{len(outputs)} times" if outputs else "not at all"
        raise ValueError(f"layer must name a module that runs once in a pass, but {layer} runs {times}. Name another.")
    check_finite(logits.detach().clamp_min(torch.finfo(logits.dtype).min), "logits")  # -inf: a class that is left out
    seen = Seen(logits, outputs[0])
    if not _is_followed(seen, layer):
        changed = _logits_with(modules[layer], lambda output: 2 * output + 1, model, batch)
        if not torch.allclose(changed, logits, rtol=1e-3, atol=1e-6):
            raise ValueError(
                f"the logits change with the output of {layer}, but no gradient leads back to it. "
                "Take .detach() and torch.no_grad() out of the forward pass."
            )
    return seen


def _logits_with(module: nn.Module, changed: Callable[[Any], Any], model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of a pass in which the output of a module is changed."""
    handle = module.register_forward_hook(lambda _, __, output: changed(output))
    try:
        return logits_per_input(model, batch)
    finally:
        handle.remove()


def _checked(output: Any, layer: str, rows: int) -> Tensor:
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
        raise TypeError(f"the output of {layer} must be a tensor of floating-point numbers, got {kind}. Name another.")
    if output.ndim == 0 or len(output) != rows:
        raise ValueError(
            f"the output of {layer} must have one entry per input, ({rows}, ...), got {tuple(output.shape)}. "
            "Name a layer where inputs come first."
        )
    return output


def _is_followed(seen: Seen, layer: str) -> bool:
    """Tell whether a graph leads from the logits back to the output; raise if it leads to that of other inputs."""
    if not seen.logits.requires_grad:
        return False
    first = torch.zeros_like(seen.logits)
    first[:1] = torch.randn(seen.logits.shape[1], generator=torch.Generator().manual_seed(0))
    (found,) = torch.autograd.grad(seen.logits, seen.output, first, retain_graph=True, allow_unused=True)
    if found is not None and found[1:].any():  # tokens may come first, and be as many as inputs
        raise ValueError(
            f"entry i of the output of {layer} must belong to input i, but the logits of the first input depend on "
            "others as well. Name a layer where inputs come first, of a model that does not mix the inputs of a batch."
        )
    return found is not None
