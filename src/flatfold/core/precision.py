"""Where float32 is not enough: the digits of a confident sample are lost in its logits, not in its trace."""

from torch import Tensor


def widened(values: Tensor) -> Tensor:
    """Return ``values`` in float64, or as they are on a device that has no such type.

    A logit of 40 is rounded by 2e-6 in float32, and so, relatively, are all class probabilities behind it. Products
    with the head are a vanishing share of a forward pass, so those that feed a tiny trace are done in float64.

    Example:
        >>> import torch
        >>> widened(torch.zeros(1)).dtype
        torch.float64
    """
    return values if values.device.type == "mps" else values.double()
