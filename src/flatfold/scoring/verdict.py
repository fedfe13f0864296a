"""What a guard says."""

from typing import NamedTuple

from torch import Tensor


class Verdict(NamedTuple):
    """What a guard says about a batch."""

    logits: Tensor
    """``(n, c)``, as the model's last linear layer gives them."""
    score: Tensor
    """``(n,)``, higher = more out-of-distribution."""
    p_value: Tensor
    """``(n,)``, how unusual the score is among known inputs: small = unusual."""
    is_ood: Tensor
    """``(n,)`` bool, True where the p-value is at most the false-alarm rate asked for."""
