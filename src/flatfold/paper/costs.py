"""Costs of every method of a benchmark, to set up and to score, all on one batch (the paper's Figure 3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..detectors import create, get_method
from ..evaluate.banks import Banks, Settings
from ..evaluate.methods import NO_TRAIN, InputMethodRunner, peak_memory
from ..evaluate.results import MethodRun
from ..evaluate.suites.suite import Suite
from ..io.progress import track
from ..models.forward import evaluating
from ..models.layers import labelled_batches, logits_function
from .ablations import Cost

FORWARD = "forward"  # the name of the network's own pass among the costs
SLOW = 1.0  # seconds; what takes longer is timed once, without a warm-up
SETUPS = 3  # rounds of a set-up

Action = Callable[[], Any]
Fit = Callable[[], Callable[[Tensor], Tensor]]


def measure_costs(
    suite: Suite,
    banks: Banks,
    runs: Sequence[MethodRun],
    settings: Settings | None = None,
    batch_size: int = 256,
    rounds: int = 11,
) -> tuple[list[Cost], dict[str, str]]:
    """Return the costs of a plain forward pass and of the methods of a benchmark, and why some have none.

    All methods see the same test inputs: their features, which are given, or the images. Hyper-parameters are those of
    the benchmark, so a set-up is one fit without the search for them; AutoFold's own search is part of its set-up, and
    for MDSEns the training images are read. In every round each method scores once, so that a machine that slows down
    does so for all of them.
    """
    settings = settings or Settings()
    size, device = min(batch_size, len(banks.test)), settings.device
    inputs = {"features": banks.test.features[:size].to(device), "images": _read_images(suite, size, device)}
    with evaluating(suite.model, device):
        forward = _set_up(FORWARD, "images", lambda: logits_function(suite.model), inputs["images"], device, setups=0)
        ready, refused = [forward], dict[str, str]()
        for run in track(runs, "setting methods up"):
            try:
                sees = "features" if get_method(run.name).sees == "features" else "images"
                fit = (
                    _fit_on_features(run, banks, device) if sees == "features" else _fit_on_images(run, suite, settings)
                )
                ready.append(_set_up(run.method, sees, fit, inputs[sees], device, SETUPS))
            except Exception as error:  # one method that fails does not stop the others
                refused[run.method] = f"{type(error).__name__}: {error}"
        seconds = time_in_turn([method.score for method in ready], rounds)
    return [_make_cost(method, times, size) for method, times in zip(ready, seconds, strict=True)], refused


def time_in_turn(actions: Sequence[Action], rounds: int) -> list[list[float]]:
    """Return the seconds that each action takes in every round; a round is each of them once.

    A first round warms up and does not count, except for actions that take more than a second: they run only then.
    """
    seconds = [[_time(action)] for action in actions]
    for _ in track(range(rounds), "measuring costs"):
        for action, times in zip(actions, seconds, strict=True):
            if times[0] <= SLOW:
                times.append(_time(action))
    return [times[1:] or times for times in seconds]


def synchronised(action: Action, device: str) -> Action:
    """Return an action that ends when the device has finished it."""
    if torch.device(device).type != "cuda":
        return action

    def wait() -> None:
        action()
        torch.cuda.synchronize(device)

    return wait


@dataclass(frozen=True)
class _Ready:
    """A method that is set up, and the cost of that."""

    method: str
    sees: str
    setup_seconds: float
    peak_megabytes: float | None
    score: Action


def _fit_on_features(run: MethodRun, banks: Banks, device: str) -> Fit:
    """Return a function that fits a method on features, which are on the device before the clock starts."""
    bank = banks.train if run.fits_on == "train" else banks.val
    if bank is None:
        raise ValueError(NO_TRAIN)
    here, head = bank.to(device), banks.head.to(device)
    return lambda: create(run.name, **run.hyper).fit(here, head).eval()


def _fit_on_images(run: MethodRun, suite: Suite, settings: Settings) -> Fit:
    return partial(InputMethodRunner(suite, Path(), settings).fit, run.name, run.hyper)


def _set_up(method: str, sees: str, fit: Fit, inputs: Tensor, device: str, setups: int) -> _Ready:
    """Set a method up, once for its peak of memory and then against the clock."""
    with peak_memory(device) as peak:
        score = partial(fit(), inputs)
        score()
    (times,) = time_in_turn([synchronised(fit, device)], setups) if setups else [[0.0]]
    return _Ready(method, sees, median(times), peak.megabytes, synchronised(score, device))


def _make_cost(ready: _Ready, seconds: Sequence[float], size: int) -> Cost:
    low, middle, high = (1e3 * float(time) for time in np.quantile(seconds, [0.25, 0.5, 0.75]))
    setup = 1e3 * ready.setup_seconds
    return Cost(ready.method, ready.sees, setup, middle, low, high, len(seconds), ready.peak_megabytes, size)


def _time(action: Action) -> float:
    start = perf_counter()
    action()
    return perf_counter() - start


def _read_images(suite: Suite, size: int, device: str) -> Tensor:
    """Return the first test inputs of the network as one batch."""
    batches, rows = [], 0
    for x, _ in islice(labelled_batches(suite.test, device, "reading a batch"), size):
        batches.append(x)
        rows += len(x)
        if rows >= size:
            break
    return torch.cat(batches)[:size]
