"""Parse methods as in ``--methods`` (``knn:k=10``, ``knn@id``), and evaluate them on every data set of a suite.

The data that a method is tuned on is part of its label, and so of its rows and averages.
"""

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import __version__
from ..core.metrics import auroc
from ..core.validation import check_finite
from ..data.sources import ImageSource, Source
from ..detectors import create, get_method, hyperparameters
from ..detectors.autofold import AutoFold, Joint
from ..detectors.base import ROWS_AT_ONCE, Detector, InputDetector
from ..detectors.registry import parse_method
from ..detectors.shaped import Shaped
from ..errors import MethodRefusedError, is_users_code
from ..io.clock import time_in_turn
from ..io.progress import track
from ..io.store import PartStore
from ..network.calls import evaluating
from ..network.fingerprint import weights_hash
from ..network.layers import layers_and_head, layers_of, logits_function
from ..passes.inputs import labelled_batches, read_first_batch, score_inputs
from .banks import NO_DATA, Banks, Settings, short_key
from .results import ID, AlphaCurve, MethodRun
from .suites.suite import Suite
from .tuning import Tuning, grid_points, search, tune

TIMED_ROUNDS, TIMED_SECONDS = 3, 0.02  # rounds of timing, fewer if they take longer; the median is used
SLOW = 10**8  # multiplications per row of a method that takes minutes for some thousand rows
WORTH_STORING = 10.0  # seconds of a method whose result is stored until the run has ended
MEGABYTE = 1e6
PACKAGE = __name__.partition(".")[0]
RESET = Path("/proc/self/clear_refs")  # writing 5 there resets the peak
STATUS = Path("/proc/self/status")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Spec:
    """A method with some fixed hyper-parameters, and the data on which the others are tuned."""

    name: str
    hyper: dict[str, Any] = field(default_factory=dict)
    tune: Literal["id", "ood"] | None = None

    def __post_init__(self) -> None:
        method = get_method(self.name)
        hyperparameters(self.name, **self.hyper)  # raises for names that do not exist
        if self.tune not in (None, "id", "ood"):
            raise ValueError(f"{self.name}@{self.tune} is not valid: tune with @id or @ood.")
        if self.tune and not self.grid:
            reason = "it tunes itself" if method.tuned_on == "id" else "it has no hyper-parameters to tune"
            raise ValueError(f"{self.label} cannot be tuned: {reason}. Leave out the @.")
        if self.tune == "id" and method.sees != "features":
            raise ValueError(f"{self.name} sees inputs, not features, and cannot be tuned on ID data. Use @ood.")

    @property
    def grid(self) -> dict[str, Any]:
        """The values to try for each hyper-parameter that is not fixed."""
        return {key: values for key, values in get_method(self.name).grid.items() if key not in self.hyper}

    @property
    def label(self) -> str:
        """Name in tables and figures, with hyper-parameters and tuning data."""
        hyper = "".join(f":{key}={value}" for key, value in self.hyper.items())
        return f"{self.name}{hyper}" + (f"@{self.tune}" if self.tune else "")

    @property
    def tuned_on(self) -> str:
        """Data for the choice of hyper-parameters: ``"nothing"``, ``"id"`` or ``"ood"``."""
        return self.tune or get_method(self.name).tuned_on


def parse_spec(text: str) -> Spec:
    """Parse one method of ``--methods``, such as ``gen:top=10@ood``."""
    method, at, tune = text.strip().partition("@")
    return Spec(*parse_method(method), tune=tune if at else None)  # type: ignore[arg-type]  # Spec checks it


def split_methods(text: str) -> list[str]:
    """Split ``--methods`` at commas, except inside brackets."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]


@dataclass(frozen=True)
class MethodResult:
    """Settings and costs of a method, its scores by data set, and AutoFold's curve."""

    run: MethodRun
    scores: dict[str, NDArray[np.float32]]
    curve: AlphaCurve | None = None


class FinishedMethods:
    """Results of slow methods on disk, so that a run that was stopped does not compute them again.

    They are removed when the results of the run are saved. Results of methods from user code are not stored, because
    the code may change before the run is resumed.
    """

    def __init__(self, folder: Path, key: Mapping[str, str]) -> None:
        self._store = PartStore(folder / f"finished-{short_key(*key.values())}", {"data": "scores", **key})

    def get(self, spec: Spec) -> MethodResult | None:
        """Return the stored result of a method, or None."""
        name = short_key(spec.label)
        if name not in self._store:
            return None
        info, tensors = self._store.read(name)
        log.info("%s: taken from the run that was stopped", spec.label)
        curve = None if info["curve"] is None else AlphaCurve(**info["curve"])
        return MethodResult(MethodRun(**info["run"]), {name: scores.numpy() for name, scores in tensors.items()}, curve)

    def add(self, spec: Spec, result: MethodResult, seconds: float) -> None:
        """Store the result of a method that took long."""
        own = not get_method(spec.name).factory.__module__.startswith(f"{PACKAGE}.")
        if seconds > WORTH_STORING and not own:
            info = {"run": asdict(result.run), "curve": None if result.curve is None else asdict(result.curve)}
            scores = {name: torch.from_numpy(values) for name, values in result.scores.items()}
            self._store.write(short_key(spec.label), scores, info)

    def remove(self) -> None:
        """Remove all stored results."""
        self._store.remove()

    def close(self) -> None:
        """Release the directory."""
        self._store.close()


def evaluate_method(spec: Spec, suite: Suite, banks: Banks, folder: Path, settings: Settings) -> MethodResult:
    """Tune, fit, score and time one method; raise MethodRefusedError if it does not apply."""
    data = FeatureData(banks) if get_method(spec.name).sees == "features" else ImageData(suite, folder, settings)
    with peak_memory(settings.device) as peak:
        fitted = fit_method(spec, data, banks)
        scores, seconds_per_sample = data.score(fitted.detector, spec.label)
    for dataset, values in scores.items():
        check_finite(values[:, None], f"scores of {dataset}")
    run, detector = method_run(fitted, seconds_per_sample, peak.megabytes), fitted.detector
    curve = alpha_curve(spec.label, detector, banks)
    return MethodResult(run, {name: values.numpy() for name, values in scores.items()}, curve)


class Fitted(NamedTuple):
    """A fitted method: what it was tuned by, how long this took, and its warnings."""

    spec: Spec
    detector: Detector | InputDetector
    tuning: Tuning | None
    seconds: float
    notes: list[str]


def fit_method(spec: Spec, data: "FeatureData | ImageData", banks: Banks) -> Fitted:
    """Tune and fit a method."""
    start, saved = perf_counter(), banks.seconds_saved
    with logged_warnings(spec.label) as notes:
        tuning = data.tune(spec) if spec.tune else None
        detector = data.fit(spec.name, tuning.hyper if tuning else spec.hyper)
    # As if the method were fitted alone: what an earlier one has computed counts too.
    return Fitted(spec, detector, tuning, perf_counter() - start + banks.seconds_saved - saved, notes)


def method_run(fitted: Fitted, seconds_per_sample: float, peak_megabytes: float | None = None) -> MethodRun:
    """Return the settings and costs of a method for its results."""
    spec, detector, tuning, seconds, notes = fitted
    assert detector.made_by is not None
    return MethodRun(
        method=spec.label,
        name=spec.name,
        hyper=detector.made_by[1],
        fits_on=get_method(spec.name).fits_on,
        tuned_on=spec.tuned_on,
        fit_seconds=seconds,
        microseconds_per_sample=1e6 * seconds_per_sample,
        learnt=learnt_numbers(detector),
        warnings=notes,
        trials=[asdict(trial) for trial in tuning.trials] if tuning else [],
        peak_megabytes=peak_megabytes,
    )


def alpha_curve(name: str, detector: Detector | InputDetector, banks: Banks) -> AlphaCurve | None:
    """Return AutoFold's criterion over its grid with the true AUROC at each exponent; None for other methods."""
    if isinstance(detector, Joint):
        detector = detector.chosen
    shaping: Callable[[Tensor], Tensor] = lambda h: h  # noqa: E731
    if isinstance(detector, Shaped):
        shaping, detector = detector.shaping, detector.detector
    if not isinstance(detector, AutoFold):
        return None
    fold, grid = detector.fold, detector.grid
    scores = {dataset: fold.score_over(shaping(bank.features), grid) for dataset, bank in banks.test_sets.items()}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # numpy releases the lock while sorting
        truth = {dataset: list(pool.map(auroc, scores[ID], scores[dataset])) for dataset in banks.ood}
    truth["all"] = np.mean(list(truth.values()), axis=0).tolist()
    return AlphaCurve(
        method=name,
        grid=list(grid),
        curve=detector.curve_.tolist(),
        stderr=detector.curve_stderr_.tolist(),
        chosen=round(detector.alpha_.item(), 6),
        auroc=truth,
    )


class FeatureData:
    """The data of a suite for methods that see features."""

    def __init__(self, banks: Banks) -> None:
        self.banks = banks

    def tune(self, spec: Spec) -> Tuning:
        """Tune hyper-parameters on ID or on OOD validation data."""
        banks, ood = self.banks, self.banks.ood_val if spec.tune == "ood" else None
        assert spec.tune == "id" or ood is not None  # else tuning on ID data would be reported as tuning on OOD data
        return tune(
            spec.name, banks.head, banks.fitted_on("val"), train=banks.train, ood=ood, grid=spec.grid, **spec.hyper
        )

    def fit(self, name: str, hyper: dict[str, Any]) -> Detector:
        """Fit a method on the split that it learns from."""
        return create(name, **hyper).fit(self.banks.fitted_on(get_method(name).fits_on), self.banks.head)

    def score(self, detector: Detector | InputDetector, label: str) -> tuple[dict[str, Tensor], float]:
        """Return the scores of the test data, and the seconds per sample."""
        assert isinstance(detector, Detector)
        assert detector.made_by is not None
        fitted_on = self.banks.fitted_on(get_method(detector.made_by[0]).fits_on)
        scores: dict[str, Tensor] = {}
        cost = detector.eval().costs(len(fitted_on), fitted_on.width, self.banks.head.n_classes).score
        size = ROWS_AT_ONCE if cost < SLOW else ROWS_AT_ONCE // 8  # so that the progress bar moves

        def score_all() -> None:
            for name, bank in self.banks.test_sets.items():
                parts = torch.split(bank.features, size)
                scores[name] = torch.cat([detector(part) for part in track(parts, f"{label} on {name}")])

        with torch.no_grad():
            seconds = _time(score_all)
        return scores, seconds / sum(map(len, scores.values()))


class ImageData:
    """The data of a suite for methods that run the network themselves; their scores are stored on disk."""

    def __init__(self, suite: Suite, folder: Path, settings: Settings) -> None:
        if not all(isinstance(source, ImageSource) for source in suite.sources.values()):
            raise MethodRefusedError("images to run the network on are needed, but there are only features or tensors.")
        self.suite, self.folder, self.settings = suite, folder, settings

    def tune(self, spec: Spec) -> Tuning:
        """Tune hyper-parameters on OOD validation images."""
        val, ood_val = self.suite.val, self.suite.ood_val
        assert ood_val is not None  # validated by check_specs
        if val is None:
            raise MethodRefusedError(NO_DATA["val"])

        def value(point: dict[str, Any]) -> tuple[float, None]:
            detector = self.fit(spec.name, {**spec.hyper, **point})
            id_scores = self._score(detector, val, spec.label, "val")
            return auroc(id_scores, self._score(detector, ood_val, spec.label, "ood_val")), None

        return search(spec.name, spec.hyper, grid_points(spec.grid, spec.name), value, "ood")

    def fit(self, name: str, hyper: dict[str, Any]) -> InputDetector:
        """Fit a method on the images of the split that it learns from."""
        model, method = self.suite.model, get_method(name)
        images = self.suite.test if self.suite.val is None else self.suite.val
        source = self._fitted_on(name)
        if "std" in hyperparameters(name):  # the normalisation of images
            assert isinstance(images, ImageSource)
            hyper = {"std": images.transform.std or 1.0, **hyper}
        detector: InputDetector = create(name, **hyper)  # type: ignore[assignment]  # as registered
        with evaluating(model, self.settings.device) as place:
            if detector.sees == "logits":
                network: Any = logits_function(model)
            else:
                batch = read_first_batch(self.suite.test)[:2].to(place)
                try:
                    if detector.sees == "layers":
                        network = layers_of(model, batch, detector.layers)
                    else:
                        network = layers_and_head(model, batch, detector.layers, self.suite.head)
                except ValueError as error:  # the model has no such layers
                    raise MethodRefusedError(str(error)) from error
            title, workers = f"fitting {name}", self.settings.loading.workers
            detector.fit(
                network, labelled_batches(source, place, title, workers, method.needs_labels) if source else ()
            )
        return detector.to(place)

    def _fitted_on(self, name: str) -> Source | None:
        """Return the images that a method learns from."""
        fits_on = get_method(name).fits_on
        if fits_on == "nothing":
            return None
        source = self.suite.train if fits_on == "train" else self.suite.val
        if source is None:
            raise MethodRefusedError(NO_DATA[fits_on])
        return source

    def score(self, detector: Detector | InputDetector, label: str) -> tuple[dict[str, Tensor], float]:
        """Return the scores of the test data, and the seconds per sample of a batch."""
        sources = {ID: self.suite.test} | {ood.name: ood.images for ood in self.suite.ood}
        scores = {name: self._score(detector, source, label, name) for name, source in sources.items()}
        with evaluating(self.suite.model, self.settings.device) as place:
            x = read_first_batch(self.suite.test).to(place)
            return scores, _time(lambda: detector(x)) / len(x)

    def _score(self, detector: Detector | InputDetector, source: Source, label: str, dataset: str) -> Tensor:
        assert detector.made_by is not None
        name, hyper = detector.made_by
        fitted_on = self._fitted_on(name)
        key = {
            "flatfold": __version__,
            "weights": weights_hash(self.suite.model),
            "method": name,
            "hyper": repr(hyper),
            "fitted_on": "" if fitted_on is None else fitted_on.fingerprint,
        }
        out = self.folder / f"{name}-{dataset}-{short_key(*key.values(), source.fingerprint)}"
        execution = replace(self.settings.execution, device=self.settings.execution.device or "cpu")
        title, workers = f"{label} on {dataset}", self.settings.loading.workers
        return score_inputs(detector, self.suite.model, source, out, key, execution, title, workers)


def own_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame of user code on; None if there is none."""
    step = error.__traceback__
    while step is not None and not is_users_code(step.tb_frame.f_code.co_filename):
        step = step.tb_next
    return step


def describe_error(error: BaseException) -> str:
    """Format the type and message of an error, and the last line of user code that led to it, if any."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_code(frame.filename)]
    message = f"{type(error).__name__}: {error}"
    if not frames:
        return message
    path, line = Path(frames[-1].filename), frames[-1].line
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{message} ({path}, line {frames[-1].lineno}, in {frames[-1].name}{f': {line}' if line else ''})"


def learnt_numbers(detector: Detector | InputDetector) -> dict[str, float]:
    """Return the scalars learnt by ``fit``, such as ``alpha_`` and ``threshold_``."""
    buffers = {name.rpartition(".")[2]: buffer for name, buffer in detector.named_buffers()}
    return {
        name: round(buffer.item(), 6) for name, buffer in buffers.items() if name.endswith("_") and buffer.ndim == 0
    }


def _time(action: Callable[[], object]) -> float:
    """Return the median time of an action in seconds."""
    (seconds,) = time_in_turn([action], TIMED_ROUNDS, TIMED_SECONDS)
    return median(seconds)


@contextmanager
def logged_warnings(label: str) -> Iterator[list[str]]:
    """Collect the warnings raised in the block, and log them."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    notes += dict.fromkeys(str(warning.message) for warning in caught)
    for note in notes:
        log.warning("%s: %s", label, note)


@dataclass
class Peak:
    """Peak memory of a block in megabytes, set at its end; None if the system does not report it."""

    megabytes: float | None = None


@contextmanager
def peak_memory(device: str = "cpu") -> Iterator[Peak]:
    """Measure the peak memory of a block: of the GPU for CUDA devices, of the process on Linux otherwise.

    On the CPU, reused memory that was freed before is not counted, so small values may be 0; pages of mapped files,
    which the system may drop, are not counted either.
    """
    peak, start, mapped = Peak(), None, 0.0
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.megabytes = (torch.cuda.max_memory_allocated(device) - before) / MEGABYTE
        return
    with suppress(OSError, ValueError):
        RESET.write_text("5")
        start, mapped = _resident_bytes("VmRSS"), _resident_bytes("RssFile")
    yield peak
    if start is not None:
        mapped = max(0.0, _resident_bytes("RssFile") - mapped)
        peak.megabytes = max(0.0, _resident_bytes("VmHWM") - start - mapped) / MEGABYTE


def _resident_bytes(name: str) -> float:
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024.0 * int(line.split()[1])
