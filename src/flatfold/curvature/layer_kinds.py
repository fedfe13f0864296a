"""Layers whose gradient by the weight is a sum of what comes back times what went in, and how each of them does it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import batch_norm, group_norm, layer_norm, pad


class Kind(NamedTuple):
    """How the gradient by a layer's weight is made of its input and of the gradients over its output.

    Attributes:
        inputs: Brings the input to ``(n, groups, inputs, positions)``.
        outputs: Brings what has the shape of the output to ``(n, groups, outputs, positions)``.
    """

    inputs: Callable[[Any, Tensor], Tensor]
    outputs: Callable[[Any, Tensor], Tensor]


def _tokens(_: nn.Linear, values: Tensor) -> Tensor:
    return values.reshape(len(values), 1, -1, values.shape[-1]).transpose(2, 3)


def _patches(module: Any, x: Tensor) -> Tensor:
    """Return what each position of a convolution sees."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = pad(x, module._reversed_padding_repeated_twice, mode=mode)
    dims = len(module.kernel_size)
    for dim, (size, step, gap) in enumerate(zip(module.kernel_size, module.stride, module.dilation, strict=True)):
        x = x.unfold(2 + dim, gap * (size - 1) + 1, step)[..., ::gap]
    x = x.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    kept = prod(x.shape[2 + dims :])
    return x.reshape(len(x), module.groups, -1, kept)


def _maps(module: Any, values: Tensor) -> Tensor:
    return values.reshape(len(values), module.groups, values.shape[1] // module.groups, -1)


def _channels(_: Any, values: Tensor) -> Tensor:
    return values.reshape(len(values), values.shape[1], 1, -1)


def _per_slope(module: nn.PReLU, values: Tensor) -> Tensor:
    return _channels(module, values) if module.num_parameters > 1 else values.reshape(len(values), 1, 1, -1)


def _negative(module: nn.PReLU, x: Tensor) -> Tensor:
    return _per_slope(module, x.clamp_max(0))


def _batch_normalised(module: Any, x: Tensor) -> Tensor:
    return _channels(module, batch_norm(x, module.running_mean, module.running_var, eps=module.eps))


def _group_normalised(module: nn.GroupNorm, x: Tensor) -> Tensor:
    return _channels(module, group_norm(x, module.num_groups, eps=module.eps))


def _layer_normalised(module: nn.LayerNorm, x: Tensor) -> Tensor:
    return _entries(module, layer_norm(x, module.normalized_shape, eps=module.eps))


def _entries(module: nn.LayerNorm, values: Tensor) -> Tensor:
    return values.reshape(len(values), -1, 1, prod(module.normalized_shape)).transpose(1, 3)


KINDS: dict[type[nn.Module], Kind] = {
    nn.Linear: Kind(_tokens, _tokens),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), Kind(_patches, _maps)),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), Kind(_batch_normalised, _channels)),
    nn.GroupNorm: Kind(_group_normalised, _channels),
    nn.LayerNorm: Kind(_layer_normalised, _entries),
    nn.PReLU: Kind(_negative, _per_slope),
}
