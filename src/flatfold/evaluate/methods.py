"""Fit one method and score every data set of a suite with it: from features, or from the images themselves."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import __version__
from ..core.metrics import auroc
from ..core.validation import check_finite
from ..detectors import create, get_method, hyperparameters
from ..detectors.base import Detector, InputDetector
from ..models.eval_mode import evaluating
from ..models.fingerprint import weights_hash
from ..models.layers import labelled_batches, layers_of, logits_function, read_first_batch, score_inputs
from ..models.sources import ImageSource, Source
from .banks import Banks, Settings, short_key
from .results import ID, MethodRun
from .spec import Spec
from .suites.suite import Suite
from .tuning import Tuning, grid_points, search, tune

# How much memory a piece of work takes beyond what was in use before it.


MEGABYTE = 1e6

RESET = Path("/proc/self/clear_refs")  # writing 5 there forgets the peak

STATUS = Path("/proc/self/status")


@dataclass
class Peak:
    """Filled in when the work is done: megabytes, or None where the system does not tell."""

    megabytes: float | None = None


@contextmanager
def peak_memory(device: str = "cpu") -> Iterator[Peak]:
    """Measure the peak of a block: of the process on Linux, of the GPU when the work is done there.

    Memory that was freed before and is used again does not count on the CPU, so a small figure may be 0.

    Args:
        device: Where the work is done.
    """
    peak = Peak()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.megabytes = (torch.cuda.max_memory_allocated(device) - before) / MEGABYTE
        return
    start = None
    with suppress(OSError):
        RESET.write_text("5")
        start = _resident("VmRSS")
    yield peak
    if start is not None:
        peak.megabytes = max(0.0, _resident("VmHWM") - start) / MEGABYTE


def _resident(name: str) -> float:
    """Return a size of this process in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * int(line.split()[1])
    raise OSError(f"the system does not tell {name}")


log = logging.getLogger(__name__)


NO_TRAIN = "it learns from training data, and this suite has none. Give its file a [train]."

TIMED_ROUNDS, TIMED_SECONDS = 5, 1.0  # scoring is timed this often, unless it takes long; the median counts

Scores = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Judged:
    """A fitted method, what was done for it, and its scores by data set."""

    detector: Detector | InputDetector
    run: MethodRun
    scores: Scores


def judge(spec: Spec, suite: Suite, banks: Banks, folder: Path, settings: Settings | None = None) -> Judged:
    """Tune, fit and score one method, and note how long that took.

    Args:
        spec: The method.
        suite: For the methods that need the network and the images.
        banks: For all others.
        folder: Where scores of images are kept, so that an interrupted run goes on where it stopped.
        settings: How to run the network and read the images.
    """
    settings = settings or Settings()
    with peak_memory(settings.device) as peak:
        if get_method(spec.name).sees == "features":
            judged = _judge_features(spec, banks)
        else:
            judged = InputJudge(suite, folder, settings).judge(spec)
    for dataset, scores in judged.scores.items():
        check_finite(torch.from_numpy(scores)[:, None], f"scores of {dataset}")
    return replace(judged, run=replace(judged.run, peak_megabytes=peak.megabytes))


def _judge_features(spec: Spec, banks: Banks) -> Judged:
    method = get_method(spec.name)
    bank = banks.train if method.fits_on == "train" else banks.val
    if bank is None:
        raise ValueError(NO_TRAIN)
    start = perf_counter()
    with _noted(spec.label) as notes:
        tuning = _tuned(spec, banks)
        hyper = tuning.hyper if tuning else spec.hyper
        detector = create(spec.name, **hyper).fit(bank, banks.head)
    fitted = perf_counter()
    with torch.no_grad():
        scores, seconds = _timed(lambda: {name: detector.eval()(bank.features) for name, bank in banks.judged.items()})
    per_sample = 1e6 * seconds / sum(map(len, scores.values()))
    run = _describe(spec, hyper, detector, fitted - start, per_sample, notes, tuning)
    return Judged(detector, run, {name: values.numpy() for name, values in scores.items()})


def _tuned(spec: Spec, banks: Banks) -> Tuning | None:
    if spec.tune is None:
        return None
    assert spec.tune == "id" or banks.ood_val is not None  # or a choice on ID data would pass for one on OOD data
    ood = banks.ood_val if spec.tune == "ood" else None
    return tune(spec.name, banks.head, banks.val, train=banks.train, ood=ood, grid=spec.grid, **spec.hyper)


class InputJudge:
    """Judges methods that run the network themselves; their scores are kept on disk."""

    def __init__(self, suite: Suite, folder: Path, settings: Settings) -> None:
        if not all(isinstance(source, ImageSource) for source in suite.sources.values()):
            raise ValueError("it runs the network on images, but this suite holds their features only.")
        self.suite, self.folder, self.settings = suite, folder, settings
        self.weights = weights_hash(suite.model)

    def judge(self, spec: Spec) -> Judged:
        """Tune, fit and score one method."""
        start = perf_counter()
        with _noted(spec.label) as notes:
            tuning = self._tuned(spec)
            hyper = self._complete(tuning.hyper if tuning else spec.hyper, spec.name)
            detector = self.fitted(spec.name, hyper)
        fitted = perf_counter()
        sources = {ID: self.suite.test} | {ood.name: ood.images for ood in self.suite.ood}
        scores = {name: self._scores(detector, source, spec.label, name) for name, source in sources.items()}
        per_sample = self._microseconds(detector)
        run = _describe(spec, hyper, detector, fitted - start, per_sample, notes, tuning)
        return Judged(detector, run, {name: values.numpy() for name, values in scores.items()})

    def _complete(self, hyper: dict[str, Any], name: str) -> dict[str, Any]:
        """Add what only the suite knows: how its images were normalised."""
        if "std" not in hyperparameters(name) or "std" in hyper:
            return hyper
        assert isinstance(self.suite.val, ImageSource)
        return {**hyper, "std": self.suite.val.transform.std or 1.0}

    def _tuned(self, spec: Spec) -> Tuning | None:
        if spec.tune is None:
            return None
        unknown = self.suite.ood_val
        assert unknown is not None  # the runner has looked

        def value(point: dict[str, Any]) -> tuple[float, None]:
            detector = self.fitted(spec.name, self._complete({**spec.hyper, **point}, spec.name))
            known = self._scores(detector, self.suite.val, spec.label, "val")
            return auroc(known, self._scores(detector, unknown, spec.label, "ood_val")), None

        return search(spec.name, spec.hyper, grid_points(spec.grid, spec.name), value, "ood")

    def fitted(self, name: str, hyper: dict[str, Any]) -> InputDetector:
        """Return a method with these hyper-parameters, fitted on the training images where it learns from them."""
        detector: InputDetector = create(name, **hyper)  # type: ignore[assignment]  # by its registration
        model, train = self.suite.model, self.suite.train
        learns = get_method(name).fits_on == "train"
        if learns and train is None:
            raise ValueError(NO_TRAIN)
        with evaluating(model, self.settings.device) as place:
            if detector.sees == "logits":
                network: Any = logits_function(model)
            else:
                network = layers_of(model, read_first_batch(self.suite.test)[:2].to(place), detector.layers)  # type: ignore[arg-type]
            title, workers = f"fitting {name}", self.settings.workers
            detector.fit(network, labelled_batches(train, place, title, workers) if learns and train else ())
        return detector.to(place)

    def _scores(self, detector: InputDetector, source: Source, label: str, dataset: str) -> Tensor:
        assert detector.made_by is not None
        name, hyper = detector.made_by
        train = self.suite.train
        fitted_on = train.fingerprint if train is not None and get_method(name).fits_on == "train" else ""
        key = {
            "flatfold": __version__,
            "weights": self.weights,
            "method": name,
            "hyper": repr(hyper),
            "fitted_on": fitted_on,
        }
        out = self.folder / f"{name}-{dataset}-{short_key(*key.values(), source.fingerprint)}"
        title = f"{label} on {dataset}"
        device, workers = self.settings.device, self.settings.workers
        return score_inputs(detector, self.suite.model, source, out, key, device, title, workers)

    def _microseconds(self, detector: InputDetector) -> float:
        """Return what one sample costs in a batch of the test data, the network's passes included."""
        with evaluating(self.suite.model, self.settings.device) as place:
            x = read_first_batch(self.suite.test).to(place)
            _, seconds = _timed(lambda: detector(x))
        return 1e6 * seconds / len(x)


def _timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return what an action returns and the median of the seconds it takes."""
    rounds: list[float] = []
    while len(rounds) < TIMED_ROUNDS and sum(rounds) < TIMED_SECONDS:
        start = perf_counter()
        result = action()
        rounds.append(perf_counter() - start)
    return result, median(rounds)


@contextmanager
def _noted(label: str) -> Iterator[list[str]]:
    """Collect the warnings of the block, and log them."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    notes += dict.fromkeys(str(warning.message) for warning in caught)
    for note in notes:
        log.warning("%s: %s", label, note)


def _describe(
    spec: Spec,
    hyper: dict[str, Any],
    detector: Detector | InputDetector,
    fit_seconds: float,
    microseconds_per_sample: float,
    notes: list[str],
    tuning: Tuning | None,
) -> MethodRun:
    return MethodRun(
        method=spec.label,
        name=spec.name,
        hyper=hyperparameters(spec.name, **hyper),
        fits_on=get_method(spec.name).fits_on,
        tuned_on=spec.tuned_on,
        fit_seconds=fit_seconds,
        microseconds_per_sample=microseconds_per_sample,
        learnt=learnt_numbers(detector),
        warnings=notes,
        trials=[asdict(trial) for trial in tuning.trials] if tuning else [],
    )


def learnt_numbers(detector: Detector | InputDetector) -> dict[str, float]:
    """Return the single numbers that ``fit`` learnt, such as ``alpha_`` and ``threshold_``."""
    buffers = {name.rpartition(".")[2]: buffer for name, buffer in detector.named_buffers()}
    return {
        name: round(buffer.item(), 6) for name, buffer in buffers.items() if name.endswith("_") and buffer.ndim == 0
    }
