"""A guard as a graph of torch, from a batch of real inputs."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from ...models.at_rest import as_it_was
from ...models.batches import Batch, split_batch
from ...models.stream import check_loader
from ..guarded import Guarded
from .exporters import explained, quiet

if TYPE_CHECKING:
    from ..guard import Guard

MOST = 1024  # inputs that are looked at: more of them would tell no more
TRACED = 4  # inputs of the batch that is traced; with one input, torch would take the size for a constant
BATCH = "batch"


class _Plain(nn.Module):
    """Gives a plain tuple: a file with a class of this library in it could not be opened without it.

    Its arguments have the names that they have in a batch: ``torch.export`` knows them by these.
    """

    def __init__(self, guarded: Guarded, batch: Batch) -> None:
        super().__init__()
        self.guarded = guarded

        def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
            return tuple(guarded(*args, **kwargs))

        parameters = [Parameter("x", Parameter.POSITIONAL_ONLY)] * len(batch.args)
        parameters += [Parameter(name, Parameter.KEYWORD_ONLY) for name in batch.kwargs]
        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


def gathered(guard: Guard, inputs: Iterable[Any]) -> Batch:
    """Return the first inputs of a loader as one batch, where the model lies; labels are left out."""
    check_loader(inputs)
    batches: list[Batch] = []
    for batch in inputs:
        batches.append(split_batch(batch)._replace(labels=None))
        if sum(each.rows for each in batches) >= MOST:
            break
    rows = sum(each.rows for each in batches)
    if rows < 2:
        raise ValueError(f"an export is checked on real inputs, at least 2, got {rows}. Give some hundred of them.")
    args = tuple(_joined("x", batches, [each.args[i] for each in batches]) for i in range(len(batches[0].args)))
    kwargs = {name: _joined(name, batches, [each.kwargs[name] for each in batches]) for name in batches[0].kwargs}
    with as_it_was(guard.model) as device:
        return Batch(args, kwargs, None, rows).part(0, MOST).to(device)


def _joined(name: str, batches: list[Batch], values: list[Any]) -> Any:
    if not batches[0].one_per_input(values[0]):
        return values[0]
    shapes = {tuple(value.shape[1:]) for value in values}
    if len(shapes) > 1:
        one, two, *_ = sorted(shapes)
        raise ValueError(
            f"an exported graph takes batches of any size, but inputs of one shape, got {one} and {two} for {name}. "
            "Resize or pad them."
        )
    return torch.cat(values)


def names_of(batch: Batch) -> list[str]:
    """Return what the tensors of a batch are called in an exported graph: x, or as the model calls them."""
    return ["x"] * len(batch.args) + [name for name, value in batch.kwargs.items() if isinstance(value, Tensor)]


def shapes_of(batch: Batch, size: Any) -> dict[str, Any]:
    """Return which dimensions of a batch may change, for ``torch.export``: the first, of all that comes per input."""

    def shape(value: Any) -> dict[int, Any] | None:
        return {0: size} if batch.one_per_input(value) else None

    named = [("x", value) for value in batch.args] + list(batch.kwargs.items())
    return {name: shape(value) for name, value in named}


def _blank(batch: Batch) -> Batch:
    """Return a batch of zeros: torch keeps what it traced in the file, and nobody's images belong there."""

    def blank(value: Any) -> Any:
        return torch.zeros_like(value) if batch.one_per_input(value) else value

    kwargs = {name: blank(value) for name, value in batch.kwargs.items()}
    return batch._replace(args=tuple(map(blank, batch.args)), kwargs=kwargs)


def traced(guard: Guard, batch: Batch) -> ExportedProgram:
    """Return model and judge as one graph for batches of any size."""
    some = _blank(batch.part(0, TRACED))
    module = _Plain(guard.as_module(), some)  # whose refusals are sentences already
    with quiet(), torch.no_grad(), explained("the model"):
        program = torch.export.export(module, some.args, some.kwargs, dynamic_shapes=shapes_of(some, Dim(BATCH)))
    _forget_sources(program)
    return program


def _forget_sources(program: ExportedProgram) -> None:
    """Drop where each node comes from: folders and lines of the user's code, which torch would write to the file."""
    for part in program.graph_module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
