"""The file of a network's ablations and costs, ``ablations.json``, and beside it the scores behind its scatters."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..core.bootstrap import CHUNK, draws, percentile_interval
from ..core.intervals import Influence, paired_difference
from ..core.metrics import fpr_at_tpr
from ..core.shaping import row_norms
from ..detectors import create
from ..evaluate.banks import Banks
from ..evaluate.intervals import column_influence
from ..evaluate.methods import learnt_numbers
from ..evaluate.results import ID, MethodRun
from ..evaluate.study_measure import FeatureCurvature
from ..io.files import write_atomically

# What a reproduction measures beyond a benchmark and a curvature study: the paper's ablations and costs, as rows.


Normalisation = Literal["none", "partial", "full"]

NORMALISATIONS: tuple[Normalisation, ...] = ("none", "partial", "full")


@dataclass(frozen=True)
class Effect:
    """A method under one kind of normalisation (the paper's Table 3).

    Attributes:
        method: As in the registry: ``msp``, ``ebo``, ``react``, ``ash``, ``fold``, ``fold-r``, ``fold-a``.
        normalisation: ``none``, ``partial`` (AutoFold's exponent) or ``full``.
        alpha: The exponent.
        dataset: An unknown data set, or ``all`` for the unweighted mean over them.
        auroc, fpr95: Between 0 and 1, unknown inputs as the positive class.
        gain, gain_low, gain_high: AUROC minus that of the same method without normalisation, with its 95 % interval;
            paired, because both saw the same images. All three are 0 for ``none``.
    """

    method: str
    normalisation: Normalisation
    alpha: float
    dataset: str
    auroc: float
    fpr95: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True)
class Sensitivity:
    """What every exponent gives a method of the FOLD family, and what its AutoFold chose (the paper's Figure 4).

    Attributes:
        method: ``fold``, ``fold-r`` or ``fold-a``.
        grid: Exponents, 0 and 1 among them.
        auroc, fpr95: Lists along the grid by data set, and ``all`` for the unweighted mean over them.
        chosen: The exponent of its AutoFold.
        chosen_auroc, chosen_fpr95: What that gives, by the same keys.
        regret, regret_low, regret_high: AUROC, averaged over the data sets, of the best exponent of the grid minus that
            of the chosen one, with its paired 95 % interval.
    """

    method: str
    grid: list[float]
    auroc: dict[str, list[float]]
    fpr95: dict[str, list[float]]
    chosen: float
    chosen_auroc: dict[str, float]
    chosen_fpr95: dict[str, float]
    regret: float
    regret_low: float
    regret_high: float


@dataclass(frozen=True)
class Separation:
    """How far FOLD's scores of unknown inputs lie above those of known ones (the paper's Figure 5).

    Attributes:
        normalisation: ``none``, ``partial`` or ``full``.
        alpha: The exponent.
        dataset: An unknown data set, or ``all`` for the images of all of them together.
        cohens_d: Difference of the means, unknown minus known, over the pooled standard deviation, with its 95 %
            interval from a bootstrap over images.
        correlation: Spearman's, between norm and score, over known and unknown images together.
    """

    normalisation: Normalisation
    alpha: float
    dataset: str
    cohens_d: float
    low: float
    high: float
    correlation: float


@dataclass(frozen=True)
class Cost:
    """What a method costs (the paper's Figure 3): one batch, warm, the median of several rounds.

    Attributes:
        method: As in the benchmark; ``forward`` is the network itself, without any method.
        sees: ``features`` or, where the network runs again, ``images``.
        setup_ms: To fit it once, with the features of its data at hand.
        inference_ms: To score a batch: the method's own share, without the forward pass that all of them need; for
            methods that see images all that they do with the network.
        inference_low, inference_high: Quartiles over the rounds.
        rounds: How often scoring was timed.
        peak_megabytes: Memory that fitting and scoring took beyond what was in use, where the system tells.
        batch_size: Inputs in the batch, the same for all.
    """

    method: str
    sees: str
    setup_ms: float
    inference_ms: float
    inference_low: float
    inference_high: float
    rounds: int
    peak_megabytes: float | None
    batch_size: int


FORMAT, VERSION = "flatfold-ablations", 2

JSON, ARRAYS = "ablations.json", "ablations.safetensors"

STORED = ("scores", "logits", "norms")  # in the arrays

AGAIN = "Run `flatfold reproduce` again."


@dataclass(frozen=True)
class Ablations:
    """What a reproduction measures of one network beyond its benchmark and its curvature study.

    Attributes:
        alphas: The exponents by name: ``none`` 0, ``partial`` AutoFold's choice, ``full`` 1.
        effects: Normalisation in front of seven methods, by data set and on average.
        sensitivities: Every exponent for ``fold``, ``fold-r`` and ``fold-a``.
        separations: Cohen's d of FOLD's scores.
        costs: What every method costs, and ``forward``.
        scores: FOLD's, ``(n,)``, keyed by ``normalisation/dataset`` with ``id`` for the known test images.
        logits: Traces of the logit Hessian under partial normalisation, ``(n,)``, by data set.
        norms: Of the features, ``(n,)``, by data set.
        refused: Methods that could not be measured, and why.
        provenance: Where the numbers come from; ``weights, sha256`` among it.
    """

    alphas: dict[str, float]
    effects: list[Effect]
    sensitivities: list[Sensitivity]
    separations: list[Separation]
    costs: list[Cost]
    scores: dict[str, NDArray[np.float32]]
    logits: dict[str, NDArray[np.float32]]
    norms: dict[str, NDArray[np.float32]]
    refused: dict[str, str]
    provenance: dict[str, Any]

    def effect(self, method: str, normalisation: str, dataset: str = "all") -> Effect | None:
        """Return one cell of the table of normalisations, or None where the method could not be measured."""
        wanted = (method, normalisation, dataset)
        return next((e for e in self.effects if (e.method, e.normalisation, e.dataset) == wanted), None)

    def save(self, folder: Path) -> None:
        """Write the files, ``ablations.json`` last: it knows the arrays by their sha256, so a mixture is found."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        arrays = {f"{name}/{key}": values for name in STORED for key, values in content.pop(name).items()}
        data = save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
        content["sha256"] = hashlib.sha256(data).hexdigest()
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"  # which may refuse, before anything is written
        write_atomically(folder / ARRAYS, data)
        write_atomically(folder / JSON, text)


def load_ablations(folder: Path) -> Ablations:
    """Read the files that :meth:`Ablations.save` wrote."""
    path = folder / JSON
    if not path.exists():
        raise ValueError(f"there is no {JSON} in {folder}. Run `flatfold reproduce` first, or name its --out.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content.pop("format"), content.pop("version")) != (FORMAT, VERSION):
            raise ValueError(f"it is not a {FORMAT} file of version {VERSION}")
        return _from_json(content, _arrays(folder, content.pop("sha256")))
    except (AttributeError, KeyError, OSError, RecursionError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"the ablations in {folder} cannot be read: {error}. {AGAIN}") from error


def _arrays(folder: Path, checksum: str) -> Mapping[str, NDArray[np.float32]]:
    data = (folder / ARRAYS).read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise ValueError(f"{ARRAYS} is not the one that was written with {JSON}")
    arrays: dict[str, NDArray[np.float32]] = load(data)
    return arrays


def _from_json(content: dict[str, Any], arrays: Mapping[str, NDArray[np.float32]]) -> Ablations:
    stored: dict[str, Any] = {
        name: {key.removeprefix(f"{name}/"): values for key, values in arrays.items() if key.startswith(f"{name}/")}
        for name in STORED
    }
    return Ablations(
        effects=[Effect(**each) for each in content.pop("effects")],
        sensitivities=[Sensitivity(**each) for each in content.pop("sensitivities")],
        separations=[Separation(**each) for each in content.pop("separations")],
        costs=[Cost(**each) for each in content.pop("costs")],
        **stored,
        **content,
    )


# Scores of every judged data set by a method with given hyper-parameters, and what they come to in each column.


ALL = "all"

Scores = dict[str, NDArray[np.float32]]


@torch.no_grad()
def scored(name: str, banks: Banks, **hyper: Any) -> Scores:
    """Return the scores of a method that sees features and learns from validation data at most, by data set.

    Args:
        name: In the registry.
        banks: Features; ``id`` stands for the known test images.
        **hyper: Hyper-parameters of the method.
    """
    detector = create(name, **hyper).fit(banks.val, banks.head).eval()
    return {dataset: detector(bank.features).float().numpy() for dataset, bank in banks.test_sets.items()}


def logit_traces(banks: Banks, alpha: float) -> Scores:
    """Return the trace of the logit Hessian at partially normalised features, by data set; over features it is FOLD.

    Args:
        banks: Features; ``id`` stands for the known test images.
        alpha: The exponent.
    """
    judged = {name: FeatureCurvature(bank, banks.head) for name, bank in banks.test_sets.items()}
    return {name: curvature.traces("logit", alpha).astype(np.float32) for name, curvature in judged.items()}


def columns(scores: Mapping[str, NDArray[np.floating]]) -> dict[str, tuple[str, ...]]:
    """Return the data sets behind each column: every unknown one by itself, and ``all`` of them."""
    unknown = tuple(dataset for dataset in scores if dataset != ID)
    return {**{dataset: (dataset,) for dataset in unknown}, ALL: unknown}


def influences(scores: Mapping[str, NDArray[np.floating]]) -> dict[str, Influence]:
    """Return the AUROC in every column with the influence of every image, which makes paired intervals possible."""
    named = {f"/{dataset}": values for dataset, values in scores.items()}
    return {column: column_influence(named, "", members) for column, members in columns(scores).items()}


def fpr95(scores: Mapping[str, NDArray[np.floating]]) -> dict[str, float]:
    """Return the FPR95 in every column, unknown inputs as the positive class."""
    single = {dataset: fpr_at_tpr(scores[ID], scores[dataset]) for dataset in _unknown(scores)}
    return {**single, ALL: fmean(single.values())}


def _unknown(scores: Mapping[str, NDArray[np.floating]]) -> Iterator[str]:
    return (dataset for dataset in scores if dataset != ID)


# What partial and full normalisation do to other methods (the paper's Table 3).


NORMALISED_METHODS = ("msp", "ebo", "react", "ash", "fold", "fold-r", "fold-a")


def effects(
    banks: Banks, alphas: Mapping[Normalisation, float], hyper: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[Effect], dict[str, str]]:
    r"""Return seven methods under no, partial and full normalisation, and why some of them could not be measured.

    .. math:: \text{gain} = \operatorname{AUROC}(h / \|h\|^\alpha) - \operatorname{AUROC}(h)

    Its interval is paired: both AUROCs are of the same images, and the average over data sets counts that these share
    the known ones. The features are normalised behind ReAct and ASH, right in front of the score.

    Args:
        banks: Features of every data set.
        alphas: The exponent of each normalisation.
        hyper: Hyper-parameters by method, such as a percentile that was tuned, the same under every normalisation; an
            ``alpha`` among them is left out.
    """
    found, refused = list[Effect](), dict[str, str]()
    for method in NORMALISED_METHODS:
        own = {key: value for key, value in (hyper or {}).get(method, {}).items() if key != "alpha"}
        try:
            found += _effects(method, banks, alphas, own)
        except ValueError as error:  # ASH and negative features, say
            refused[method] = str(error)
    return found, refused


def _effects(method: str, banks: Banks, alphas: Mapping[Normalisation, float], hyper: dict[str, Any]) -> list[Effect]:
    scores = {kind: scored(method, banks, **hyper, alpha=alphas[kind]) for kind in NORMALISATIONS}
    aurocs = {kind: influences(values) for kind, values in scores.items()}
    rates = {kind: fpr95(values) for kind, values in scores.items()}
    return [
        Effect(
            method,
            kind,
            alphas[kind],
            column,
            aurocs[kind][column].auroc,
            rate,
            *_gain(kind, aurocs[kind][column], aurocs["none"][column]),
        )
        for kind in NORMALISATIONS
        for column, rate in rates[kind].items()
    ]


def _gain(kind: Normalisation, with_it: Influence, without: Influence) -> tuple[float, float, float]:
    """Return the difference and the ends of its interval; a method beside itself has no doubt."""
    if kind == "none":
        return 0.0, 0.0, 0.0
    difference = paired_difference(with_it, without)
    return difference.value, difference.low, difference.high


# How much the exponent matters to the FOLD family, and what AutoFold's choice gives away (the paper's Figure 4).


SENSITIVE_METHODS = ("fold", "fold-r", "fold-a")

GRID = tuple(step / 10 for step in range(11))


def sensitivities(
    banks: Banks, runs: Sequence[MethodRun] = (), grid: Sequence[float] = GRID
) -> tuple[list[Sensitivity], dict[str, str]]:
    r"""Return what every exponent gives, beside AutoFold's choice, and why some methods could not be measured.

    .. math:: \text{regret} = \max_{\alpha \in \text{grid}} A(\alpha) - A(\alpha^*)

    with :math:`A` the AUROC averaged over data sets and :math:`\alpha^*` the choice of AutoFold, which saw known
    inputs only; the maximum was found on the judged images themselves and flatters the grid. The interval is paired.
    Clipping and shaping have the percentile that AutoFold chose together with its exponent, so that its choice lies on
    the curve. Its own grid is finer: a choice between two points may beat both, and a regret be negative.

    Args:
        banks: Features of every data set.
        runs: Methods of a benchmark on the same data; what AutoFold chose there is not looked for again.
        grid: Exponents to try.
    """
    found, refused = list[Sensitivity](), dict[str, str]()
    for method in SENSITIVE_METHODS:
        try:
            found.append(_sensitivity(method, banks, _choice(method, banks, runs), grid))
        except ValueError as error:  # two classes, or ASH and negative features
            refused[method] = str(error)
    return found, refused


def _choice(method: str, banks: Banks, runs: Sequence[MethodRun]) -> dict[str, Any]:
    """Return the exponent that the AutoFold of a method chose, and the percentile where it has one."""
    name = f"auto{method}"
    learnt = next((run.learnt for run in runs if run.method == name), None)
    if learnt is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a flat curve is what the regret is about
            learnt = learnt_numbers(create(name).fit(banks.val, banks.head))
    chosen = {"alpha": learnt["alpha_"]}
    return chosen | ({"percentile": learnt["percentile_"]} if "percentile_" in learnt else {})


def _sensitivity(method: str, banks: Banks, choice: dict[str, Any], grid: Sequence[float]) -> Sensitivity:
    scores = [scored(method, banks, **{**choice, "alpha": alpha}) for alpha in grid]
    chosen = scored(method, banks, **choice)
    aurocs, rates = [influences(each) for each in scores], [fpr95(each) for each in scores]
    ours = influences(chosen)
    best = max((each[ALL] for each in aurocs), key=lambda influence: influence.auroc)
    regret = paired_difference(best, ours[ALL])
    return Sensitivity(
        method=method,
        grid=list(grid),
        auroc={column: [each[column].auroc for each in aurocs] for column in ours},
        fpr95={column: [each[column] for each in rates] for column in ours},
        chosen=choice["alpha"],
        chosen_auroc={column: influence.auroc for column, influence in ours.items()},
        chosen_fpr95=fpr95(chosen),
        regret=regret.value,
        regret_low=regret.low,
        regret_high=regret.high,
    )


# How far FOLD's scores of unknown inputs lie above those of known ones, and how they go with the norm (Figure 5).


REPLICATES = 1000  # of the bootstrap behind each interval

APART = 1e6  # stands for infinitely many standard deviations, which JSON does not know

Vector = NDArray[np.float64]


class Separated(NamedTuple):
    """The rows, and what was compared for them: scores by ``normalisation/dataset`` and norms by data set."""

    separations: list[Separation]
    scores: Scores
    norms: Scores


def separations(banks: Banks, alphas: Mapping[Normalisation, float], seed: int = 0) -> Separated:
    """Return Cohen's d of FOLD's scores under every normalisation, and their correlation with the norm.

    The interval comes from a bootstrap that draws known and unknown images again, the same ones under every
    normalisation.

    Args:
        banks: Features of every data set.
        alphas: The exponent of each normalisation.
        seed: Of the bootstrap.
    """
    norms = {name: row_norms(bank.features).squeeze(-1).float().numpy() for name, bank in banks.test_sets.items()}
    kinds = {kind: scored("fold", banks, alpha=alphas[kind]) for kind in NORMALISATIONS}
    rows = []
    for column, members in columns(norms).items():
        known = np.stack([scores[ID] for scores in kinds.values()]).astype(np.float64)
        unknown = np.stack([_joined(scores, members) for scores in kinds.values()])
        norm = np.concatenate([norms[ID], _joined(norms, members)])
        rngs = np.random.default_rng([seed, *ID.encode()]), np.random.default_rng([seed, *column.encode()])
        redrawn = bootstrapped_d(known, unknown, REPLICATES, rngs)
        for kind, ours, theirs, replicates in zip(NORMALISATIONS, known, unknown, redrawn, strict=True):
            d, correlation = cohens_d(ours, theirs), spearman(norm, np.concatenate([ours, theirs]))
            interval = percentile_interval(d, replicates)
            rows.append(Separation(kind, alphas[kind], column, d, *interval, correlation))
    rows.sort(key=lambda row: NORMALISATIONS.index(row.normalisation))
    return Separated(rows, {f"{kind}/{name}": v for kind, of in kinds.items() for name, v in of.items()}, norms)


def cohens_d(known: Vector, unknown: Vector) -> float:
    r"""Return the difference of two means in standard deviations.

    .. math:: d = \frac{\bar u - \bar k}{s}, \qquad s^2 = \frac{(n - 1) s_k^2 + (m - 1) s_u^2}{n + m - 2}

    with unbiased variances :math:`s_k^2, s_u^2` of ``n`` known and ``m`` unknown scores. Where neither side varies it
    is 0 for equal means, and otherwise a million, with the sign of the difference.

    Example:
        >>> cohens_d(np.array([0.0, 2.0]), np.array([3.0, 5.0]))
        2.1213203435596424
    """
    ones = np.ones((1, len(known)), np.int32), np.ones((1, len(unknown)), np.int32)
    return float(_d(ones[0], ones[1], known[None], unknown[None])[0, 0])


def bootstrapped_d(
    known: Vector, unknown: Vector, replicates: int, rngs: tuple[np.random.Generator, np.random.Generator]
) -> Vector:
    """Return Cohen's d on redrawn images for several scores at once, ``(k, replicates)``.

    Args:
        known: ``(k, n)``, a row for each kind of score.
        unknown: ``(k, m)``.
        replicates: How many.
        rngs: Draw known and unknown images.
    """
    rows = max(1, CHUNK // (known.shape[1] + unknown.shape[1]))
    sizes = [min(rows, replicates - first) for first in range(0, replicates, rows)]
    drawn = ((draws(known.shape[1], size, rngs[0]), draws(unknown.shape[1], size, rngs[1])) for size in sizes)
    return np.concatenate([_d(ours, theirs, known, unknown) for ours, theirs in drawn], axis=1)


def spearman(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; 0 where one side does not vary.

    Example:
        >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
        0.5
    """
    a, b = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    scale = sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else 0.0


def _ranks(values: NDArray[np.floating]) -> Vector:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Vector = (last - (counts - 1) / 2)[place]
    return ranks


def _joined(values: Scores, members: tuple[str, ...]) -> Vector:
    return np.concatenate([values[name] for name in members]).astype(np.float64)


def _d(known_counts: NDArray[np.int32], unknown_counts: NDArray[np.int32], known: Vector, unknown: Vector) -> Vector:
    """Return Cohen's d of scores ``(k, n)`` and ``(k, m)`` that count ``(b, n)`` and ``(b, m)`` times, ``(k, b)``."""
    # Around the median, or squares of large scores would cancel; what does not vary is then exactly 0.
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
