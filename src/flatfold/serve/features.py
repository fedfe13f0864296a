"""From bytes to features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .refusal import Refusal


def rows_of(body: bytes, width: int, most: int) -> Tensor:
    """Return little-endian float32 numbers as features ``(n, d)``.

    Args:
        body: ``4 n d`` bytes, row after row.
        width: d, of the head.
        most: Rows that may be in it.

    Example:
        >>> rows_of(bytes(24), width=3, most=2)
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """
    count, left = divmod(len(body), 4 * width)
    if left:
        raise Refusal(
            422,
            f"features are rows of {width} little-endian float32 numbers, {4 * width} bytes each, but {len(body)} "
            "bytes are no whole number of them. Were they taken from the input of this model's last linear layer?",
        )
    if count > most:
        raise Refusal(413, f"a request may have {most} rows of features, but this one has {count}. Send them in parts.")
    values = np.frombuffer(body, "<f4").astype(np.float32).reshape(count, width)  # a copy, in this machine's order
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise Refusal(
            400,
            f"features must be finite, but row {int(finite.argmin())} has a NaN or infinite entry. "
            "Look at that input and at the model's weights.",
        )
    return torch.from_numpy(values)
