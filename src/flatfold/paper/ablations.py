"""The paper's ablations on one network: normalisation, exponent, separation of scores, and the costs of all methods.

The numbers are in ``ablations.json``, the scores of the scatter plots in ``ablations.safetensors``.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from ..core.bootstrap import CHUNK, draws, percentile_interval
from ..core.intervals import Influence, auroc_influence, mean_influence, paired_difference
from ..core.metrics import fpr_at_tpr
from ..core.shaping import row_norms
from ..data.batch import Batch, split_batch
from ..detectors import create, get_method
from ..evaluate.banks import Banks, Settings
from ..evaluate.methods import ImageData, learnt_numbers, peak_memory
from ..evaluate.results import ID, MethodRun
from ..evaluate.study import FeatureCurvature
from ..evaluate.suites.suite import Suite
from ..io.artifacts import read_document, write_document
from ..io.clock import time_call
from ..io.progress import track
from ..network.calls import evaluating
from ..network.heads import probe
from ..network.layers import logits_function
from ..network.runtime import TorchRuntime
from ..passes.inputs import labelled_batches

Normalisation = Literal["none", "partial", "full"]
Scores = dict[str, NDArray[np.float32]]
Vector = NDArray[np.float64]
Action = Callable[[], Any]
Fit = Callable[[], Callable[..., Tensor]]

JSON, ARRAYS = "ablations.json", "ablations.safetensors"
ALL = "all"
NORMALISATIONS: tuple[Normalisation, ...] = ("none", "partial", "full")
NORMALISED_METHODS = ("msp", "ebo", "react", "ash", "fold", "fold-r", "fold-a")
SENSITIVE_METHODS = ("fold", "fold-r", "fold-a")
GRID = tuple(step / 10 for step in range(11))
REPLICATES = 1000  # of Cohen's d
APART = 1e6  # Cohen's d of scores without spread and with different means; JSON has no infinity
FORWARD = "forward"  # the name of the network's own pass among the costs
SLOW = 1.0  # seconds; an action that takes longer is timed once, without a warm-up
SETUPS = 3  # rounds of timing a set-up


@dataclass(frozen=True)
class Effect:
    """A method under one normalisation (Table 3)."""

    method: str
    normalisation: Normalisation
    alpha: float
    dataset: str  # an OOD data set, or "all" for the unweighted mean over them
    auroc: float
    fpr95: float
    gain: float  # AUROC minus that without normalisation, with its paired 95 % interval
    gain_low: float
    gain_high: float


@dataclass(frozen=True)
class Sensitivity:
    """A method of the FOLD family at every exponent of a grid, and at AutoFold's choice (Figure 4)."""

    method: str
    grid: list[float]
    auroc: dict[str, list[float]]  # along the grid, by data set, and "all" for the unweighted mean over them
    fpr95: dict[str, list[float]]
    chosen: float
    chosen_auroc: dict[str, float]
    chosen_fpr95: dict[str, float]
    regret: float  # mean AUROC of the best exponent of the grid minus that of the chosen one, with its paired interval
    regret_low: float
    regret_high: float


@dataclass(frozen=True)
class Separation:
    """Separation of FOLD's scores under one normalisation (Figure 5)."""

    normalisation: Normalisation
    alpha: float
    dataset: str  # an OOD data set, or "all" for the images of all of them together
    cohens_d: float  # of OOD against ID scores, with the 95 % interval of a bootstrap over images
    low: float
    high: float
    gap: float  # mean of the OOD scores minus that of the ID scores
    id_variance: float
    ood_variance: float
    fpr95: float  # OOD as positive
    correlation: float  # Spearman's, between norm and score, over ID and OOD images together


@dataclass(frozen=True)
class Cost:
    """The cost of a method (Figure 3): one batch, warm, the median of several rounds."""

    method: str  # as in the benchmark; "forward" is the network itself
    sees: str  # "features" or, for methods that run the network, "images"
    setup_ms: float  # to fit once, with the features given
    inference_ms: float  # the method alone: to score a batch with the features and logits of the forward pass given
    inference_low: float  # quartiles over the rounds
    inference_high: float
    total_ms: float  # the network and the method: from the images of a batch to its scores
    total_low: float
    total_high: float
    passes: float  # the same over the time of a bare forward pass in the same round
    passes_low: float
    passes_high: float
    rounds: int
    peak_megabytes: float | None  # of fitting and scoring beyond what was in use, where the system reports it
    batch_size: int


@dataclass(frozen=True)
class Ablations:
    """All measurements of a network beyond its benchmark and its curvature study."""

    FORMAT: ClassVar[str] = "flatfold-ablations"
    VERSION: ClassVar[int] = 5
    ARRAYS: ClassVar[Mapping[str, tuple[str, str]]] = {
        name: (ARRAYS, f"{name}/") for name in ("scores", "logits", "norms")
    }

    alphas: dict[str, float]  # "none" 0, "partial" AutoFold's choice, "full" 1
    effects: list[Effect]
    sensitivities: list[Sensitivity]
    separations: list[Separation]
    costs: list[Cost]
    scores: Scores  # FOLD's, (n,), keyed by normalisation/dataset with "id" for the ID test images
    logits: Scores  # traces of the logit Hessian under partial normalisation, (n,), by data set
    norms: Scores  # of the features, (n,), by data set
    refused: dict[str, str]  # methods that could not be measured, and why
    provenance: dict[str, Any]
    computed_from: dict[str, str]  # identifies the inputs; a run with the same values does not compute them again

    def effect(self, method: str, normalisation: str) -> Effect | None:
        """Return the mean effect of a normalisation, or None if the method could not be measured."""
        wanted = (method, normalisation, ALL)
        return next((e for e in self.effects if (e.method, e.normalisation, e.dataset) == wanted), None)

    def check(self) -> None:
        """Raise unless every normalisation has an exponent."""
        if set(self.alphas) != set(NORMALISATIONS):
            raise ValueError("an exponent is missing")

    def save(self, folder: Path) -> None:
        """Write the files."""
        write_document(folder / JSON, self)


def load_ablations(folder: Path) -> Ablations:
    """Read the files that :meth:`Ablations.save` wrote."""
    return read_document(folder / JSON, Ablations, "flatfold reproduce")


class _Cell(NamedTuple):
    """The AUROC of a method on a data set, with the influence of every image, and its FPR95 with OOD as positive."""

    influence: Influence
    fpr95: float

    @property
    def auroc(self) -> float:
        return self.influence.auroc


def _evaluate(scores: Scores) -> dict[str, _Cell]:
    """Return the AUROC and FPR95 on every OOD data set, and their means as ``all``."""
    unknown = {dataset: values for dataset, values in scores.items() if dataset != ID}
    cells = {
        dataset: _Cell(auroc_influence(scores[ID], values), fpr_at_tpr(scores[ID], values))
        for dataset, values in unknown.items()
    }
    influence = mean_influence([cell.influence for cell in cells.values()])
    return cells | {ALL: _Cell(influence, fmean(cell.fpr95 for cell in cells.values()))}


def measure_effects(
    banks: Banks, alphas: Mapping[Normalisation, float], hyper: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[Effect], dict[str, str]]:
    """Return seven methods under no, partial and full normalisation, and the errors of those that failed.

    The features are normalised after ReAct and ASH, right before the score. ``hyper`` has hyper-parameters by method,
    such as a tuned percentile, the same under every normalisation; an ``alpha`` among them is ignored.
    """
    rows, refused = list[Effect](), dict[str, str]()
    for method in NORMALISED_METHODS:
        settings = dict((hyper or {}).get(method, {}))
        try:
            cells = {
                kind: _evaluate(score_all(method, banks, **{**settings, "alpha": alphas[kind]}))
                for kind in NORMALISATIONS
            }
        except ValueError as error:  # ASH and negative features, for example
            refused[method] = str(error)
            continue
        for kind in NORMALISATIONS:
            for column, cell in cells[kind].items():
                gain = (0.0, 0.0, 0.0)
                if kind != "none":
                    difference = paired_difference(cell.influence, cells["none"][column].influence)
                    gain = difference.value, difference.low, difference.high
                rows.append(Effect(method, kind, alphas[kind], column, cell.auroc, cell.fpr95, *gain))
    return rows, refused


def measure_sensitivities(
    banks: Banks, runs: Sequence[MethodRun] = (), grid: Sequence[float] = GRID
) -> tuple[list[Sensitivity], dict[str, str]]:
    """Return the FOLD family at every exponent, and the errors of methods that failed.

    AutoFold chooses on ID data, the best exponent of the grid on the test images themselves, which favours the grid.
    AutoFold's own grid is finer, so a regret can be negative. ReAct and ASH use the percentile that AutoFold chose with
    its exponent. Choices made in ``runs``, a benchmark on the same data, are reused.
    """
    sensitivities, refused = list[Sensitivity](), dict[str, str]()
    for method in SENSITIVE_METHODS:
        try:
            choice = _find_choice(method, banks, runs)
            curve = [_evaluate(score_all(method, banks, **{**choice, "alpha": alpha})) for alpha in grid]
            chosen = _evaluate(score_all(method, banks, **choice))
        except ValueError as error:  # two classes, or ASH and negative features
            refused[method] = str(error)
            continue
        best = max((cells[ALL] for cells in curve), key=lambda cell: cell.auroc)
        regret = paired_difference(best.influence, chosen[ALL].influence)
        sensitivities.append(
            Sensitivity(
                method=method,
                grid=list(grid),
                auroc={column: [cells[column].auroc for cells in curve] for column in chosen},
                fpr95={column: [cells[column].fpr95 for cells in curve] for column in chosen},
                chosen=choice["alpha"],
                chosen_auroc={column: cell.auroc for column, cell in chosen.items()},
                chosen_fpr95={column: cell.fpr95 for column, cell in chosen.items()},
                regret=regret.value,
                regret_low=regret.low,
                regret_high=regret.high,
            )
        )
    return sensitivities, refused


def _find_choice(method: str, banks: Banks, runs: Sequence[MethodRun]) -> dict[str, Any]:
    """Return the exponent that the AutoFold of a method chose, and the percentile if it has one."""
    name = f"auto{method}"
    learnt = next((run.learnt for run in runs if run.method == name), None)
    if learnt is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a flat curve, whose cost the regret shows
            learnt = learnt_numbers(create(name).fit(banks.fitted_on("val"), banks.head))
    return {key: learnt[f"{key}_"] for key in ("alpha", "percentile") if f"{key}_" in learnt}


def measure_separations(
    banks: Banks, alphas: Mapping[Normalisation, float], seed: int = 0
) -> tuple[list[Separation], Scores, Scores]:
    """Return Cohen's d under every normalisation, FOLD's scores by ``normalisation/dataset``, and norms by data set.

    The bootstrap draws the same images under every normalisation.
    """
    norms = {name: row_norms(bank.features).squeeze(-1).float().numpy() for name, bank in banks.test_sets.items()}
    kinds = {kind: score_all("fold", banks, alpha=alphas[kind]) for kind in NORMALISATIONS}
    known = np.stack([scores[ID] for scores in kinds.values()]).astype(np.float64)
    rows = []
    for column, members in {**{name: [name] for name in banks.ood}, ALL: list(banks.ood)}.items():
        together = [np.concatenate([scores[name] for name in members]) for scores in kinds.values()]
        unknown = np.stack(together).astype(np.float64)
        norm = np.concatenate([norms[name] for name in (ID, *members)])
        rngs = np.random.default_rng([seed, *ID.encode()]), np.random.default_rng([seed, *column.encode()])
        redrawn = bootstrap_cohens_d(known, unknown, REPLICATES, rngs)
        for kind, ours, theirs, replicates in zip(NORMALISATIONS, known, unknown, redrawn, strict=True):
            d, correlation = cohens_d(ours, theirs), spearman(norm, np.concatenate([ours, theirs]))
            interval = percentile_interval(d, replicates)
            rows.append(
                Separation(
                    kind,
                    alphas[kind],
                    column,
                    d,
                    *interval,
                    gap=float(theirs.mean() - ours.mean()),
                    id_variance=float(ours.var()),
                    ood_variance=float(theirs.var()),
                    fpr95=fpr_at_tpr(ours, theirs),
                    correlation=correlation,
                )
            )
    rows.sort(key=lambda row: NORMALISATIONS.index(row.normalisation))
    return rows, {f"{kind}/{name}": values for kind, of in kinds.items() for name, values in of.items()}, norms


def cohens_d(known: Vector, unknown: Vector) -> float:
    """Return the difference of the means over the pooled standard deviation of ID and OOD scores.

    If neither side varies it is 0 for equal means, and otherwise ±1e6.
    """
    ones = [np.ones((1, len(scores)), np.int32) for scores in (known, unknown)]
    return float(_cohens_d(ones[0], ones[1], known[None], unknown[None])[0, 0])


def bootstrap_cohens_d(
    known: Vector, unknown: Vector, replicates: int, rngs: tuple[np.random.Generator, np.random.Generator]
) -> Vector:
    """Return Cohen's d on redrawn images, ``(k, replicates)``, for ``k`` kinds of scores ``(k, n)`` and ``(k, m)``."""
    rows = max(1, CHUNK // (known.shape[1] + unknown.shape[1]))
    sizes = [min(rows, replicates - first) for first in range(0, replicates, rows)]
    drawn = ((draws(known.shape[1], size, rngs[0]), draws(unknown.shape[1], size, rngs[1])) for size in sizes)
    return np.concatenate([_cohens_d(ours, theirs, known, unknown) for ours, theirs in drawn], axis=1)


def _cohens_d(
    known_counts: NDArray[np.int32], unknown_counts: NDArray[np.int32], known: Vector, unknown: Vector
) -> Vector:
    """Return Cohen's d of scores ``(k, n)`` and ``(k, m)`` that count ``(b, n)`` and ``(b, m)`` times, ``(k, b)``."""
    # Centred on the median: squares of large scores would cancel, and constant scores must give exactly 0.
    middle, their_middle = (np.median(values, axis=1, keepdims=True) for values in (known, unknown))
    (a, aa), (b, bb) = _moments(known_counts, known - middle), _moments(unknown_counts, unknown - their_middle)
    n, m = known.shape[1], unknown.shape[1]
    pooled = (n * aa + m * bb) / max(n + m - 2, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        d: Vector = (their_middle - middle + b - a) / np.sqrt(pooled)
    return np.clip(np.nan_to_num(d, posinf=APART, neginf=-APART), -APART, APART)


def _moments(counts: NDArray[np.int32], values: Vector) -> tuple[Vector, Vector]:
    """Return mean and mean squared deviation of values ``(k, n)`` that count ``(b, n)`` times, each ``(k, b)``."""
    times = counts.T.astype(np.float64) / counts.shape[1]
    mean = values @ times
    return mean, np.maximum(values**2 @ times - mean**2, 0.0)


def spearman(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Return Spearman's rank correlation; 0 if one side does not vary."""
    a, b = (rankdata(values) - (len(values) + 1) / 2 for values in (x, y))
    scale = sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else 0.0


@torch.no_grad()
def score_all(name: str, banks: Banks, **hyper: Any) -> Scores:
    """Return the scores by data set of a method that sees features and learns from no more than validation data."""
    detector = create(name, **hyper).fit(banks.fitted_on("val"), banks.head).eval()
    return {dataset: detector(bank.features).float().numpy() for dataset, bank in banks.test_sets.items()}


def logit_traces(banks: Banks, alpha: float) -> Scores:
    """Return the trace of the logit Hessian at partially normalised features, by data set."""
    curvatures = {name: FeatureCurvature(bank, banks.head) for name, bank in banks.test_sets.items()}
    return {name: curvature.traces("logit", alpha).astype(np.float32) for name, curvature in curvatures.items()}


def measure_costs(
    suite: Suite, banks: Banks, runs: Sequence[MethodRun], settings: Settings, batch_size: int = 256, rounds: int = 11
) -> tuple[list[Cost], dict[str, str]]:
    """Return the costs of a bare forward pass and of the methods of a benchmark, and the errors of those that failed.

    All methods score the same test images: alone, with the features and logits of the network given, and behind the
    network, as a guard does. A set-up is one fit with the hyper-parameters of the benchmark, without the search for
    them; it includes AutoFold's own search, and for MDSEns reading the training images. Each round times every method
    once, right after a bare pass, so that drifts of the machine affect both alike.
    """
    size, device = min(batch_size, len(banks.test)), settings.device
    images, refused = _read_images(suite, size, device), dict[str, str]()
    with evaluating(suite.model, device):
        batch = split_batch(images)
        found, given = probe(suite.model, batch, suite.head)
        network = TorchRuntime(suite.model, found)
        bare = partial(logits_function(suite.model), images)
        with peak_memory(device) as peak:
            bare()
        ready = [_Ready(FORWARD, "images", 0.0, peak.megabytes, bare)]
        for run in track(runs, "setting methods up"):
            try:
                sees = "features" if get_method(run.name).sees == "features" else "images"
                fit = _prepare_fit(run, suite, banks, settings)
                ready.append(_set_up(run.method, sees, fit, given if sees == "features" else (images,), device))
            except Exception as error:  # a method that fails does not stop the others
                refused[run.method] = f"{type(error).__name__}: {error}"
        actions: list[Action] = []
        for each in ready:  # the network and the method right after the bare pass
            both = partial(_run_both, network, batch, each.score.func) if each.sees == "features" else each.score
            actions += [bare, both] if each.sees == "images" else [bare, both, each.score]
        seconds = iter(time_in_turn(actions, rounds, device))
    costs = []
    for each in ready:
        without, total = next(seconds), next(seconds)
        own = next(seconds) if each.sees == "features" else total
        (low, middle, high), (total_low, total_middle, total_high) = map(_milliseconds, (own, total))
        passes_low, passes, passes_high = _ratios(total, without)
        costs.append(
            Cost(
                method=each.method,
                sees=each.sees,
                setup_ms=each.setup_ms,
                inference_ms=middle,
                inference_low=low,
                inference_high=high,
                total_ms=total_middle,
                total_low=total_low,
                total_high=total_high,
                passes=passes,
                passes_low=passes_low,
                passes_high=passes_high,
                rounds=len(total),
                peak_megabytes=each.peak,
                batch_size=size,
            )
        )
    return costs, refused


class _Ready(NamedTuple):
    """A method that is fitted, or the network itself, with the action that scores a batch."""

    method: str
    sees: str
    setup_ms: float
    peak: float | None
    score: "partial[Tensor]"


def _set_up(method: str, sees: str, fit: Fit, inputs: Sequence[Tensor], device: str) -> _Ready:
    """Set a method up, once for its peak memory and then timed."""
    with peak_memory(device) as peak:
        score = partial(fit(), *inputs)
        score()
    (times,) = time_in_turn([fit], SETUPS, device)
    return _Ready(method, sees, 1e3 * median(times), peak.megabytes, score)


def _run_both(network: TorchRuntime, batch: Batch, score: Callable[..., Tensor]) -> Tensor:
    """Return the scores of a batch of images by a method that sees features."""
    return score(*network(batch))


def _milliseconds(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of times between its quartiles."""
    low, middle, high = (1e3 * float(time) for time in np.quantile(seconds, [0.25, 0.5, 0.75]))
    return low, middle, high


def _ratios(seconds: Sequence[float], bare: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, between its quartiles, of the ratio in each round, or one ratio if a slow action has one."""
    if len(seconds) != len(bare):
        return (median(seconds) / median(bare),) * 3
    low, middle, high = (float(ratio) for ratio in np.quantile(np.divide(seconds, bare), [0.25, 0.5, 0.75]))
    return low, middle, high


def time_in_turn(actions: Sequence[Action], rounds: int, device: str) -> list[list[float]]:
    """Return the seconds of each action in every round; a round runs each of them once.

    The first round is a warm-up, except for actions that take more than a second: they run only then.
    """
    seconds = [[time_call(action, device)] for action in actions]
    for _ in track(range(rounds), "measuring costs"):
        for action, times in zip(actions, seconds, strict=True):
            if times[0] <= SLOW:
                times.append(time_call(action, device))
    return [times[1:] or times for times in seconds]


def _prepare_fit(run: MethodRun, suite: Suite, banks: Banks, settings: Settings) -> Fit:
    """Return a function that fits a method to features that are on the device already, or to images."""
    if get_method(run.name).sees != "features":
        return partial(ImageData(suite, Path(), settings).fit, run.name, run.hyper)
    here, head = banks.fitted_on(get_method(run.name).fits_on).to(settings.device), banks.head.to(settings.device)
    return lambda: create(run.name, **run.hyper).fit(here, head).eval()


def _read_images(suite: Suite, size: int, device: str) -> Tensor:
    """Return the first test inputs of the network as one batch."""
    batches = list[Tensor]()
    for x, _ in labelled_batches(suite.test, device, "reading a batch"):
        batches.append(x)
        if sum(map(len, batches)) >= size:
            break
    return torch.cat(batches)[:size]
