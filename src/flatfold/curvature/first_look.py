"""What a model must be like for each input to have a curvature of its own; looked at before anything is measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..models.batches import Batch
from ..models.forward import logits_of
from ..models.misfit import answer
from .graph import Parameters
from .layer_calls import check_graphs, noted_calls

ALONE = 1e-2  # relative change of logits with the rest of the batch: TensorFloat-32 stays well below


def logits_per_input(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of a batch, ``(n, c)`` with two classes or more, or say what came instead."""
    logits = logits_of(answer(model, batch))
    if logits.ndim != 2 or len(logits) != batch.rows or logits.shape[1] < 2:
        raise ValueError(
            f"the model must return one row of at least two logits per input, ({batch.rows}, c), "
            f"got {tuple(logits.shape)}."
        )
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point numbers, got {logits.dtype}. Return them before the argmax.")
    return logits


def check_batch_norm(model: nn.Module) -> None:
    """Raise if a batch normalisation would mix the inputs of a batch: then no input has a curvature of its own."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            what = "is in training mode" if module.running_mean is not None else "keeps no running statistics"
            raise ValueError(
                f"{name or 'the model'} is a batch normalisation that {what}, so that the loss of an input depends on "
                "the others in its batch. Call model.eval(), with track_running_stats=True in that layer."
            )


def check_alone(model: nn.Module, parameters: Parameters, batch: Batch) -> None:
    """Raise if logits change with the rest of their batch, or by themselves, or do not show the way to the parameters.

    Args:
        model: In evaluation mode, on the device of the batch; gradients must be enabled.
        parameters: Those to differentiate by, named as in the model.
        batch: Inputs, which are run together, and half of them by themselves.
    """
    half = max(1, batch.rows // 2)
    with torch.no_grad():
        together = logits_per_input(model, batch)[:half]
    with noted_calls(model, parameters) as calls:
        apart = logits_per_input(model, batch.part(0, half))
    check_graphs(model, calls)
    if not apart.requires_grad:
        raise ValueError(
            "none of the chosen parameters reaches the logits, so that nothing bends with them. Choose others, or take "
            ".detach() and torch.no_grad() out of the forward pass."
        )
    change, size = float((together - apart.detach()).abs().max()), float(together.abs().max())
    if change > ALONE * size:  # not so for NaN, which is told where the loss is taken
        raise ValueError(
            f"the logits of an input must depend on it alone, but in a second pass with other inputs they change by "
            f"{change:.2g}, at a size of {size:.2g}. Look for a normalisation over the batch, for dropout that is "
            "always on, or for an argument with as many entries as inputs that is none of theirs."
        )
