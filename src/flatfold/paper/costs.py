"""What every method of a benchmark costs to set up and to run, all on one batch (the paper's Figure 3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.shaping import check_alpha
from ..detectors import create, get_method
from ..evaluate.banks import Banks, Settings
from ..evaluate.methods import NO_TRAIN, InputMethodRunner, peak_memory
from ..evaluate.results import MethodRun, in_family
from ..evaluate.spec import Spec, parse_spec
from ..evaluate.suites.suite import Suite
from ..evaluate.tuning import grid_points
from ..io.progress import track
from ..models.eval_mode import evaluating
from ..models.layers import labelled_batches, logits_function
from .ablations import Cost
from .tables import read_table

# How long things take, beside each other.


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


# What a reproduction runs: the paper's methods, tuned as the paper tuned them, and how much of everything else.


BESIDES = ("mdsens",)  # of which the paper's appendix speaks, but none of its tables


@dataclass(frozen=True)
class Plan:
    """What is measured; how the network is run stands in ``Settings``.

    Args:
        samples: Most images of each data set whose curvature is measured.
        batch_size: Inputs in the batch on which costs are measured.
        rounds: How often each cost is timed.
        methods: As for a benchmark; None takes the paper's.
        alpha: Exponent of partial normalisation; None lets AutoFold choose it on the validation data.
    """

    samples: int = 200
    batch_size: int = 256
    rounds: int = 11
    methods: tuple[str | Spec, ...] | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("batch_size", 1), ("rounds", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        if self.methods is not None and not self.methods:
            raise ValueError("a reproduction needs at least one method, got none. Leave methods out for the paper's.")
        if self.alpha is not None:
            check_alpha(self.alpha)

    def specs(self, banks: Banks) -> list[Spec]:
        """Return the methods: those that were given, or the paper's as far as these data can tune them."""
        if self.methods is not None:
            return [parse_spec(method) if isinstance(method, str) else method for method in self.methods]
        return [_tuned_spec(name, banks) for name in paper_methods()]


def paper_methods() -> list[str]:
    """Return the names of all methods of the paper as the registry has them, its 14 baselines first.

    Example:
        >>> paper_methods()[:3], paper_methods()[-3:]
        (['openmax', 'msp', 'tempscale'], ['autofold', 'autofold-r', 'autofold-a'])
    """
    rows = list(dict.fromkeys(number.row.lower() for number in read_table("main")))
    own = [name for name in rows if in_family(name)]
    return [*(name for name in rows if name not in own), *BESIDES, *own]


def _tuned_spec(name: str, banks: Banks) -> Spec:
    """Return a method, tuned on unknown validation images where there are some and it has something to choose.

    OpenOOD and the paper choose so. Where not one point of the grid can be used, as when ViM is to keep more dimensions
    than there are, the method has its own defaults.
    """
    grid = get_method(name).grid
    points = grid_points(grid, name) if grid else []
    if banks.ood_val is None or len(points) < 2 or not _usable(name, points, banks):
        return Spec(name)
    return Spec(name, tune="ood")


def _usable(name: str, points: Sequence[dict[str, Any]], banks: Banks) -> bool:
    method = get_method(name)
    bank = banks.train if method.fits_on == "train" else banks.val
    if method.sees != "features" or bank is None:
        return True  # the benchmark says why not
    for point in points:
        try:
            create(name, **point).fit(bank, banks.head)
        except ValueError:
            continue
        return True
    return False


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
    with evaluating(suite.model, settings.device):
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
        judge = InputMethodRunner(self.suite, Path(), self.settings, self.banks.weights)

        def prepare() -> Action:
            detector = judge.fit(run.name, run.hyper)
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
