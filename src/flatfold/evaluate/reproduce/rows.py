"""What a reproduction measures beyond a benchmark and a curvature study: the paper's ablations and costs, as rows."""

from dataclasses import dataclass
from typing import Literal

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
