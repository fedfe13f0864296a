"""Copy the weights of a layer into a `Head`, and check that the layer computes what its weights say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.check import check_finite
from ..core.errors import UnsupportedHead
from ..core.head import Head
from .refusals import quoted

# How far |W h + b - z| may be from 0, relative to |z|. float32 leaves room for TF32, which convolutions use on CUDA by
# default; the half types for logits that were rounded to 11 or 8 bits.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def head_of(layer: nn.Module) -> Head:
    """Return a copy of a layer's weights on the CPU, in float32 unless they are float64."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    return Head(_copied(weight.flatten(1)), _copied(bias) if isinstance(bias, Tensor) else None)


def check_affine(name: str, layer: nn.Module, head: Head, features: Tensor, logits: Tensor) -> None:
    """Raise unless ``W h + b`` gives the layer's output: a subclass of ``nn.Linear`` may compute something else."""
    check_finite(features, "features")
    expected = head(features.cpu())
    came = logits.to("cpu", expected.dtype)
    error, size = float((expected - came).norm()), float(torch.maximum(expected.norm(), came.norm()))
    if not error <= TOLERANCE[logits.dtype] * size:
        raise UnsupportedHead(
            f"the head must compute z = W h + b, but {quoted(name)} ({type(layer).__name__}) gives something else: "
            f"|W h + b - z| is {error:.3g} for |z| = {size:.3g}. "
            "Use a plain nn.Linear, or name another layer with head='module.name'."
        )


def _copied(values: Tensor) -> Tensor:
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    return values.detach().to("cpu", dtype, copy=True)
