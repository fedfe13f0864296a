"""Which layers do not bend what they are given, and which others come to see what depends on the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from .graph import Parameters

_DIMENSIONS = ("1d", "2d", "3d")
_IN_DIMENSIONS = (
    *("Conv", "ConvTranspose", "BatchNorm", "Dropout", "MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool"),
    *("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad"),
)
_WITHOUT = (
    *("Linear", "Embedding", "Identity", "Flatten", "Unflatten", "Dropout", "Upsample", "UpsamplingNearest2d"),
    *("UpsamplingBilinear2d", "PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "ReLU", "LeakyReLU", "PReLU"),
    *("RReLU", "ReLU6", "Hardtanh", "Threshold", "Hardshrink", "Softshrink"),
)
PIECEWISE_LINEAR: frozenset[type[nn.Module]] = frozenset(
    getattr(nn, name) for name in (*(kind + size for kind in _IN_DIMENSIONS for size in _DIMENSIONS), *_WITHOUT)
)
"""Layers that are piecewise linear in their input in evaluation mode, and affine in each of their parameters."""


def is_known(module: nn.Module) -> bool:
    """Tell whether a module is one of these layers, or only holds others, and does what its class does."""
    usual = "forward" not in vars(module)  # one that somebody has replaced may do anything
    return usual and type(module) in PIECEWISE_LINEAR | {nn.Sequential, nn.ModuleList, nn.ModuleDict}


@contextmanager
def others_fixed(model: nn.Module, parameters: Parameters) -> Iterator[None]:
    """Let a tensor require a gradient only where it depends on these parameters, while the block runs."""
    chosen = {id(parameter) for parameter in parameters.values()}
    others = [value for value in model.parameters() if value.requires_grad and id(value) not in chosen]
    try:
        for value in others:
            value.requires_grad_(False)
        yield
    finally:
        for value in others:
            value.requires_grad_(True)


@contextmanager
def unknown_behind(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield a list that fills with the layers of torch that are not known and are given what requires a gradient."""
    found: list[nn.Module] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.extend([module] if any(map(_may_depend, (*args, *kwargs.values()))) else [])

    with ExitStack() as hooks:
        for module in model.modules():
            place = type(module).__module__
            # From elsewhere in torch come wrappers, such as those of torch.compile.
            from_torch = place.startswith("torch.nn.") or (place.startswith("torch.") and not any(module.children()))
            if from_torch and not is_known(module):
                hooks.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        yield found


def _may_depend(value: Any) -> bool:
    """Tell whether an argument depends on the parameters, or may hold something that does."""
    return value.requires_grad if isinstance(value, Tensor) else isinstance(value, (tuple, list, dict))
