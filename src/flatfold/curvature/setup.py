"""What a user gives, made ready to be differentiated: a model at rest, some parameters, batches that come again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import is_autocast_available
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from ..models.at_rest import as_it_was
from .estimate import LOSSES, Loss, check_choice
from .first_look import check_batch_norm
from .task import Task


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
    with recording(model, device) as place, ExitStack() as undo:
        undo.enter_context(sdpa_kernel(SDPBackend.MATH))  # the fast kernels have no second derivative
        for parameter in chosen.values():
            undo.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(True)
        yield Task(model, chosen, _again_and_again(batches), loss, place)


@contextmanager
def recording(model: nn.Module, device: torch.device | str | None = None) -> Iterator[torch.device]:
    """Record gradients of a model at rest in full precision, whatever surrounds the call; undo all of it at the end.

    Under ``torch.inference_mode`` nothing would be recorded, and every curvature would be 0; under ``torch.autocast``
    it would have two digits.

    Yields:
        The device to move inputs to.
    """
    with torch.inference_mode(False), as_it_was(model, device) as place, torch.enable_grad(), _full_precision(place):
        yield place


def _full_precision(device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, enabled=False) if is_autocast_available(device.type) else nullcontext()


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
    bad = [name for name, parameter in chosen.items() if is_lazy(parameter) or parameter.is_inference()]
    if bad:
        raise ValueError(
            f"gradients need parameters with values, made where gradients are recorded, but {bad[0]} is not. "
            "Call a lazy module once; make and load the model outside of torch.inference_mode()."
        )
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
