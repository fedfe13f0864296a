r"""The temperature that makes probabilities honest: the one with the smallest cross-entropy on labelled logits."""

from math import sqrt

import torch
from torch import Tensor

COLDEST, HOTTEST = 1e-3, 1e3
_HALVINGS = 60


def best_temperature(logits: Tensor, labels: Tensor, bias: Tensor | None = None) -> float:
    r"""Return the temperature T of the smallest mean cross-entropy of ``softmax(z / T + b)``.

    The cross-entropy is convex in ``1 / T``, so the root of its slope is found by halving,

    .. math:: \frac1n \sum_i \Big( \sum_c p_{ic} z_{ic} - z_{i y_i} \Big) = 0.

    Logits whose every label is the largest have no best temperature but 0; the result lies within 0.001 and 1000.

    Args:
        logits: ``(n, c)``.
        labels: ``(n,)``.
        bias: ``(c,)``, which the temperature does not touch; None for none.
    """
    z = logits.double()
    b = z.new_zeros(()) if bias is None else bias.double()
    own = z.gather(-1, labels[:, None]).squeeze(-1)
    cold, hot = COLDEST, HOTTEST
    for _ in range(_HALVINGS):
        middle = sqrt(cold * hot)
        slope = ((z / middle + b).softmax(dim=-1) * z).sum(dim=-1).sub(own).mean()
        cold, hot = (middle, hot) if slope > 0 else (cold, middle)
    return sqrt(cold * hot)


def reference_temperature(logits: Tensor, labels: Tensor, start: float = 1.5) -> float:
    """Return the temperature that OpenOOD's optimiser stops at: fifty short steps of L-BFGS from 1.5.

    Without a line search it often stops far from the best one.
    """
    with torch.inference_mode(False):  # where there would be no gradient
        return _stepped(logits.clone(), labels.clone(), start)


def _stepped(logits: Tensor, labels: Tensor, start: float) -> float:
    temperature = torch.full((1,), start, dtype=logits.dtype, device=logits.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits / temperature, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    return temperature.item()
