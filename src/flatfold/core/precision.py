"""Where float32 is not enough: the digits of a confident sample are lost in its logits, not in its trace."""

from torch import Tensor

WIDE_WEIGHTS = 2**18
"""Entries of a head up to which its products are done in float64: 100 classes of 2048 features and more."""


def widened(weight: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return a head's weight and features in float64 where that costs nothing, else as they are.

    A logit of 40 is rounded by 2e-6 in float32, and so, relatively, are all class probabilities behind it. In float64
    they keep every digit that float32 can hold, and do not depend on the size of the batch. For a head like that of
    ImageNet-1K the product would be half of FOLD's cost, so it stays in the type of the features, and the relative
    error of a confident sample's score is then about 1e-5. Some devices (MPS) have no float64 at all.

    Example:
        >>> import torch
        >>> widened(torch.zeros(10, 4), torch.zeros(1, 4))[0].dtype
        torch.float64
        >>> widened(torch.zeros(1000, 2048), torch.zeros(1, 2048))[0].dtype
        torch.float32
    """
    if weight.device.type == "mps" or weight.numel() > WIDE_WEIGHTS:
        return weight, h
    return weight.double(), h.double()


def as_double(values: Tensor) -> Tensor:
    """Return ``values`` in float64; from a device that has none (MPS), on the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()
