"""The graph that autograd recorded on the way to the logits: which parameters are in it, and how often."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor, nn

Parameters = dict[str, nn.Parameter]


def uses(logits: Tensor, parameters: Parameters) -> tuple[Counter[str], set[Any]]:
    """Return how often each parameter is used on the way to the logits, and the steps of that way."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    counts: Counter[str] = Counter()
    steps: set[Any] = set()
    waiting: list[Any] = [logits.grad_fn]
    while waiting:
        step = waiting.pop()
        if step is None or step in steps:
            continue
        steps.add(step)
        waiting.extend(before for before, _ in step.next_functions)
        found = (names.get(id(getattr(before, "variable", None))) for before, _ in step.next_functions)
        counts.update(name for name in found if name is not None)
    return counts, steps
