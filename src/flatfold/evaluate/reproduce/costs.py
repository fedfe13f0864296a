"""What every method of a benchmark costs to set up and to run, all on one batch (the paper's Figure 3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from ...detectors import create, get_method
from ...models.at_rest import as_it_was
from ...models.layers import logits_function
from ...models.rows import labelled_batches
from ...progress import track
from ..banks import Banks
from ..judge import NO_TRAIN, InputJudge
from ..memory import peak_memory
from ..rows import MethodRun
from ..settings import Settings
from ..suites.suite import Suite
from .clock import Action, in_turn, settled
from .plan import Plan
from .rows import Cost

FORWARD = "forward"
SETUPS = 3  # so often at most a set-up is timed

Prepare = Callable[[], Action]


@dataclass(frozen=True)
class _Ready:
    """A method that is set up, and what that took."""

    method: str
    sees: str
    setup_seconds: float
    peak_megabytes: float | None
    score: Action


def costs(
    suite: Suite, banks: Banks, runs: Sequence[MethodRun], settings: Settings | None = None, plan: Plan | None = None
) -> tuple[list[Cost], dict[str, str]]:
    """Return what the methods of a benchmark cost, that of a plain forward pass first, and why some have no cost.

    All of them see the same test inputs: their features, which are at hand, or the images. Hyper-parameters are those
    that the benchmark chose, so that setting up is one fit, without the search for them; only AutoFold's own search is
    a part of its set-up, and for MDSEns the training images are read. Scoring is timed in turn, every method in each
    round: a machine that slows down does so for all of them.

    Args:
        suite: The network and its images.
        banks: Their features.
        runs: The methods of the benchmark.
        settings: Where to run them.
        plan: On how many inputs, and how often.
    """
    settings, plan = settings or Settings(), plan or Plan()
    measure = _Measure(suite, banks, settings, plan)
    with as_it_was(suite.model, settings.device):
        ready, refused = [measure.forward()], dict[str, str]()
        for run in track(runs, "setting methods up"):
            try:
                ready.append(measure.method(run))
            except Exception as error:  # whatever one method stumbles over, the others are measured
                refused[run.method] = f"{type(error).__name__}: {error}"
        rounds = in_turn([each.score for each in ready], plan.rounds)
    return [_cost(each, seconds, measure.size) for each, seconds in zip(ready, rounds, strict=True)], refused


class _Measure:
    """Sets methods up for one batch."""

    def __init__(self, suite: Suite, banks: Banks, settings: Settings, plan: Plan) -> None:
        self.suite, self.banks, self.settings = suite, banks, settings
        self.size = min(plan.batch_size, len(banks.test))
        self.features = banks.test.features[: self.size].to(settings.device)
        self.images = _first(suite, self.size, settings.device)

    def forward(self) -> _Ready:
        """Return the network's own pass; there is nothing to set up."""
        return self._ready(FORWARD, "images", lambda: lambda: logits_function(self.suite.model)(self.images), setups=0)

    def method(self, run: MethodRun) -> _Ready:
        """Return a method; what all of them need is at hand before the clock starts."""
        if get_method(run.name).sees == "features":
            return self._ready(run.method, "features", self._on_features(run), SETUPS)
        return self._ready(run.method, "images", self._on_images(run), SETUPS)

    def _on_features(self, run: MethodRun) -> Prepare:
        bank = self.banks.train if run.fits_on == "train" else self.banks.val
        if bank is None:
            raise ValueError(NO_TRAIN)
        here, head = bank.to(self.settings.device), self.banks.head.to(self.settings.device)

        def prepare() -> Action:
            detector = create(run.name, **run.hyper).fit(here, head).eval()
            return lambda: detector(self.features)

        return prepare

    def _on_images(self, run: MethodRun) -> Prepare:
        judge = InputJudge(self.suite, Path(), self.settings)

        def prepare() -> Action:
            detector = judge.fitted(run.name, run.hyper)
            return lambda: detector(self.images)

        return prepare

    def _ready(self, method: str, sees: str, prepare: Prepare, setups: int) -> _Ready:
        """Set a method up, once for its peak of memory and then against the clock."""
        with peak_memory(self.settings.device) as peak:
            score = prepare()
            score()
        (rounds,) = in_turn([settled(prepare, self.settings.device)], setups) if setups else [[0.0]]
        return _Ready(method, sees, median(rounds), peak.megabytes, settled(score, self.settings.device))


def _cost(ready: _Ready, seconds: Sequence[float], size: int) -> Cost:
    low, middle, high = (1e3 * float(each) for each in np.quantile(seconds, [0.25, 0.5, 0.75]))
    setup = 1e3 * ready.setup_seconds
    return Cost(ready.method, ready.sees, setup, middle, low, high, len(seconds), ready.peak_megabytes, size)


def _first(suite: Suite, size: int, device: str) -> Tensor:
    """Return the first test inputs of the network as one batch."""
    batches, rows = [], 0
    for x, _ in islice(labelled_batches(suite.test, device, "reading a batch"), size):
        batches.append(x)
        rows += len(x)
        if rows >= size:
            break
    return torch.cat(batches)[:size]
