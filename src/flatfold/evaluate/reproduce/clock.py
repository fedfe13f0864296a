"""How long things take, beside each other."""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from ...progress import track

SLOW = 1.0  # seconds; what takes longer is timed once, and not warmed up for
Action = Callable[[], Any]


def in_turn(actions: Sequence[Action], rounds: int) -> list[list[float]]:
    """Return the seconds that each action takes in every round; a round is each of them once.

    A first round warms up and does not count, except for what takes more than a second: that is timed only then.
    """
    seconds = [[_seconds(action)] for action in actions]
    for _ in track(range(rounds), "measuring costs"):
        for action, own in zip(actions, seconds, strict=True):
            if own[0] <= SLOW:
                own.append(_seconds(action))
    return [own[1:] or own for own in seconds]


def settled(action: Action, device: str) -> Action:
    """Return an action that is over when the device has done it, not when it has been told to."""
    if torch.device(device).type != "cuda":
        return action

    def waited() -> None:
        action()
        torch.cuda.synchronize(device)

    return waited


def _seconds(action: Action) -> float:
    start = perf_counter()
    action()
    return perf_counter() - start
