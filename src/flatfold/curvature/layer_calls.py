"""Calls of layers, noted during a forward pass: what went in, what came out, and what gradients are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .graph import Parameters
from .layer_kinds import KINDS, Kind


class Call(NamedTuple):
    """One call of a module with chosen parameters, ``own`` by their names in it."""

    module: Any
    own: set[str]
    input: Any
    output: Any
    version: int | None

    @property
    def kind(self) -> Kind | None:
        """How its gradients come about; None where that is not known."""
        kind = KINDS.get(type(self.module))  # a subclass may do anything with its weight
        tensors = isinstance(self.input, Tensor) and isinstance(self.output, Tensor)
        # A forward that somebody has replaced is not that of the class either.
        usual = tensors and self.own <= {"weight", "bias"} and "forward" not in vars(self.module)
        untouched = tensors and self.input._version == self.version
        return kind if usual and untouched else None

    def folded(self, gradient: Tensor) -> Tensor:
        """Return what has the shape of the output as ``(n, groups, outputs, positions)``."""
        return KINDS[type(self.module)].outputs(self.module, gradient)

    def factors(self) -> Tensor:
        """Return what the gradients over the output are multiplied with, ``(n, groups, inputs, positions)``."""
        values = KINDS[type(self.module)].inputs(self.module, self.input.detach())
        if "bias" not in self.own:
            return values
        ones = torch.ones_like(values[:, :, :1])  # a bias is the weight of one more input
        return torch.cat([values, ones], dim=2) if "weight" in self.own else ones


@contextmanager
def noted_calls(model: nn.Module, parameters: Parameters) -> Iterator[list[Call]]:
    """Yield a list that fills with the calls of all modules that have some of these parameters."""
    chosen = {id(parameter) for parameter in parameters.values()}
    calls: list[Call] = []
    with ExitStack() as hooks:
        for module in model.modules():
            own = {name for name, value in module.named_parameters(recurse=False) if id(value) in chosen}
            if own:
                hook = module.register_forward_hook(_note(own, calls), with_kwargs=True, prepend=True)
                hooks.callback(hook.remove)
        yield calls


def _note(own: set[str], calls: list[Call]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        value = next(iter((*args, *kwargs.values())), None)
        calls.append(Call(module, own, value, output, getattr(value, "_version", None)))
        return output.clone() if isinstance(output, Tensor) else None  # what follows may change it in place

    return hook


def check_graphs(model: nn.Module, calls: Sequence[Call]) -> None:
    """Raise if a layer ran where no gradient is recorded: its parameters would pass for ones without any effect."""
    for call in calls:
        if isinstance(call.output, Tensor) and not call.output.requires_grad:
            name = next(name for name, module in model.named_modules() if module is call.module)
            raise ValueError(
                f"gradients by the parameters of {name or 'the model'} are needed, but it runs without recording any. "
                "Take torch.no_grad() out of the forward pass, and use checkpoint(..., use_reentrant=False)."
            )
