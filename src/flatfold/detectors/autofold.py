"""AutoFold: FOLD with an exponent chosen from in-distribution data alone.

Park et al., "Exploiting Local Flatness for Efficient Out-of-Distribution Detection", ECCV 2026.

Masking the logit of a sample's own class yields a pseudo-OOD sample: an input of a class unknown to the network.
The best exponent is the one whose scores best separate pseudo-OOD from ID samples.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..core.autofold import (
    ClassAurocs,
    Moments,
    Weights,
    calibration_classes,
    flatness,
    group_rows,
    middle_of_maximum,
    one_vs_rest_auroc,
    paired_auroc,
    with_and_without,
    without_each,
)
from ..core.bank import FeatureBank, Head
from ..core.hessian import entry_chunks, row_chunks
from ..core.pairs import Pairs
from ..core.shaping import SMALLEST_DIVISOR, check_alpha, rescaled_logits, row_norms
from ..core.validation import check_choice, check_features, require_labels
from ..errors import MethodRefusedError, warn
from . import ash, react
from .base import Detector
from .fold import PAPER as FOLD
from .fold import Fold, ScoreNorm
from .registry import register
from .shaped import Shaped, Shaping

Criterion = Literal["paired", "one_vs_rest", "shrunk"]
GRID = tuple(i / 100 for i in range(1, 101))
SCORES = 2**25  # scores in memory at once, 256 MB


class Rows(NamedTuple):
    """Samples, and their quantities that do not depend on the exponent."""

    features: Tensor  # (n, d)
    projected: Tensor  # (n, c), logits without a bias
    norms: Tensor  # (n, 1)
    labels: Tensor  # (n,)

    def shrink(self, times: float) -> "Rows":
        """Return the same samples with shorter features."""
        return Rows(self.features / times, self.projected / times, self.norms / times, self.labels)


@register(
    "autofold", printed="AutoFold", full_name="FOLD, exponent from ID data", cite=(FOLD,), fits_on="val", tuned_on="id"
)
class AutoFold(Detector):
    r"""FOLD with the exponent that best separates in-distribution samples from their masked copies.

    .. math:: \alpha^* = \arg\max_\alpha
        \frac1K \sum_k \operatorname{AUROC}\big(S_k(\alpha),\, S_k^{\text{masked}}(\alpha)\big)

    ``fit`` needs labels and uses in-distribution data only: there is no argument for other data. It sets ``alpha_``,
    ``grid_``, ``curve_`` (the criterion at each exponent of the grid) and ``curve_stderr_``. Exact ties are resolved to
    the middle exponent; a curve that is flat within its standard error raises a warning.

    Args:
        criterion: ``"paired"`` compares the samples of a class with their own masked copies (the paper).
            ``"one_vs_rest"`` masks class k in all samples and compares its samples with those of all other classes
            (the authors' code). ``"shrunk"`` compares all samples with masked copies of half the norm (not in the
            paper; see the study in ``docs/studies/autofold.md``).
        grid: Exponents to try.
        max_classes: Average over at most this many classes, drawn with ``seed``; None means all. ``"shrunk"`` pools
            their samples instead.
        seed: Seed of that draw.
        score_norm: As in :class:`Fold`, both for choosing the exponent and for scoring.
    """

    alpha_: Tensor
    grid_: Tensor
    curve_: Tensor
    curve_stderr_: Tensor

    def __init__(
        self,
        criterion: Criterion = "paired",
        grid: Sequence[float] = GRID,
        max_classes: int | None = None,
        seed: int = 0,
        score_norm: ScoreNorm = None,
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.grid = grid
        self.max_classes = max_classes
        self.seed = seed
        self.fold = Fold(score_norm=score_norm)

    def learn(self, bank: FeatureBank, head: Head) -> None:
        check_choice("score_norm", self.fold.score_norm, get_args(ScoreNorm))
        if head.n_classes < 3:
            raise MethodRefusedError(
                "AutoFold masks one class, so two classes are too few. Use FOLD and choose alpha yourself."
            )
        check_choice("criterion", self.criterion, get_args(Criterion))
        if not isinstance(self.grid, Iterable) or not len(self.grid):
            raise MethodRefusedError(f"grid must be a sequence of exponents, got {self.grid!r}.")
        for alpha in self.grid:
            check_alpha(alpha)
        require_labels(bank, "AutoFold")
        curve, stderr = self._curve(bank, head)
        best = middle_of_maximum(curve)
        if why := flatness(curve, stderr):
            warn(
                f"AutoFold's curve is flat: {why}, so alpha = {self.grid[best]:g} is not significantly better than "
                "others. Pass more samples per class.",
            )
        self.fold.fit(bank, head)
        grid = curve.new_tensor(self.grid)
        learnt = {"alpha_": grid[best].clone(), "grid_": grid, "curve_": curve, "curve_stderr_": stderr}
        self.register_buffers(**{name: values.to(head.weight) for name, values in learnt.items()})

    def score(self, h: Tensor) -> Tensor:
        return self.fold.score_at(h, self.alpha_)

    def score_given(self, h: Tensor, logits: Tensor) -> Tensor:
        return self.fold.score_at(h, self.alpha_, logits)

    def pairs(self, h: Tensor, k: int) -> Pairs:
        check_features(h, self.fitted_weight)
        return self.fold.pairs(h, k, self.alpha_)

    @property
    def inner(self) -> Detector:
        """FOLD; its range of scores is the same for every exponent."""
        return self.fold

    def _curve(self, bank: FeatureBank, head: Head) -> tuple[Tensor, Tensor]:
        """Return the criterion and its standard error at each exponent, in float64."""
        if bank.features.device.type == "mps":  # no float64
            bank, head = bank.to("cpu"), head.to("cpu")
        assert bank.labels is not None
        labels, weight = bank.labels, head.weight.double()
        if self.criterion == "one_vs_rest" and len(torch.unique(labels)) < 2:
            raise MethodRefusedError(
                'criterion="one_vs_rest" needs at least two classes, but this bank has one. Use criterion="paired".'
            )
        classes = calibration_classes(labels, self.max_classes, self.seed, "AutoFold")
        weights = Weights.of(weight, second=self.fold.score_norm == "weight")

        def at(alpha: float, rows: Rows) -> tuple[Tensor, Callable[[Moments], Tensor], Tensor | None]:
            """Return the logits at an exponent, the function from moments to scores, and the mask of dimensions."""
            score = partial(_score, self.fold.score_norm, rows.norms.squeeze(-1) ** (2 - 2 * alpha))
            kept = None if self.fold.kept is None else self.fold.kept(rows.features / rows.norms**alpha)
            return rescaled_logits(rows.projected, rows.norms**alpha, head.bias), score, kept

        def masked_each(classes: Tensor, alpha: float, rows: Rows) -> Tensor:
            logits, score, kept = at(alpha, rows)
            return score(without_each(logits, classes, weights, kept))

        def known_and_masked(alpha: float, rows: Rows) -> Tensor:
            logits, score, kept = at(alpha, rows)
            known, masked = map(score, with_and_without(logits, rows.labels, weights, kept))
            if self.criterion == "shrunk":  # OOD inputs often have short features
                logits, score, kept = at(alpha, rows.shrink(2))
                masked = score(with_and_without(logits, rows.labels, weights, kept)[1])
            return torch.stack([known, masked])

        if self.criterion == "one_vs_rest":
            points: list[ClassAurocs] = []
            for some in torch.split(classes, max(1, SCORES // len(bank))):
                groups = group_rows(labels, some)
                scores = self._scores(bank, weight, len(some), partial(masked_each, some))
                found = [one_vs_rest_auroc(masked, groups) for masked in scores]
                points = [a.join(b) for a, b in zip(points, found, strict=True)] if points else found
        else:
            counted = torch.isin(labels, classes)
            groups = group_rows(labels[counted], classes)
            if self.criterion == "shrunk":  # pooled, because in use there is one threshold for all classes
                groups = group_rows(torch.zeros_like(labels[counted]), torch.zeros_like(labels[:1]))
            scores = self._scores(bank[counted], weight, 2, known_and_masked)
            points = [paired_auroc(known, masked, groups) for known, masked in scores]
        curve, stderr = torch.stack([torch.stack(point.mean()) for point in points], dim=-1)
        return curve, stderr

    def _scores(
        self,
        bank: FeatureBank,
        weight: Tensor,
        length: int,
        measure: Callable[[float, Rows], Tensor],
    ) -> Iterator[Tensor]:
        """Yield scores ``(length, n)`` at each exponent, computed in chunks of rows.

        Quantities of the rows that do not depend on the exponent are computed once for several exponents.
        """
        assert bank.labels is not None
        for some in row_chunks(len(self.grid), max(1, SCORES // (length * len(bank)))):
            alphas = self.grid[some]
            scores = weight.new_empty(len(alphas), length, len(bank))
            for part in entry_chunks(len(bank), max(weight.shape) if self.fold.kept else len(weight)):
                h = bank.features[part].double()
                rows = Rows(h, h @ weight.mT, row_norms(h), bank.labels[part])
                for alpha, out in zip(alphas, scores, strict=True):
                    out[:, part] = measure(alpha, rows)
            yield from scores


def _score(score_norm: ScoreNorm, square_lengths: Tensor, moments: Moments) -> Tensor:
    """Return FOLD's scores of features with these moments and squared lengths."""
    if score_norm is None:
        return moments.trace
    divisor = square_lengths if moments.second is None else moments.second - moments.trace
    return moments.trace / divisor.clamp_min(SMALLEST_DIVISOR)


class Joint(Detector):
    """The best of several AutoFolds on shaped features, one per percentile of the shaping.

    AutoFold's criterion is an AUROC, so its maxima under different percentiles are comparable: the largest one
    maximises over percentile and exponent jointly. ``fit`` sets ``percentile_``, ``percentiles_`` and ``maxima_``, the
    maximum of the curve at each usable percentile; ``chosen`` is the best detector. Exact ties are resolved to the
    middle one.
    """

    percentile_: Tensor
    percentiles_: Tensor
    maxima_: Tensor

    def __init__(self, make: Callable[[float], Shaped], percentiles: Sequence[float]) -> None:
        super().__init__()
        self.make = make
        self.percentiles = percentiles
        self.chosen = make(percentiles[0])

    def learn(self, bank: FeatureBank, head: Head) -> None:
        candidates, notes, usable, refusals = [], [], [], []
        for percentile in self.percentiles:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    candidates.append(self.make(percentile).fit(bank, head))
                except ValueError as error:  # for example, too few features for such a high percentile
                    refusals.append(error)
                    continue
            notes.append(caught)
            usable.append(percentile)
        if not candidates:
            raise refusals[0]
        maxima = torch.stack([candidate.detector.get_buffer("curve_").amax() for candidate in candidates])
        best = middle_of_maximum(maxima)
        for note in notes[best]:
            warn(str(note.message))
        self.chosen = candidates[best]
        self.register_buffers(
            percentile_=torch.tensor(float(usable[best]), dtype=torch.float64),  # float32 could change the shaping
            percentiles_=maxima.new_tensor(usable),
            maxima_=maxima,
        )

    def score(self, h: Tensor) -> Tensor:
        return self.chosen.score(h)

    @property
    def inner(self) -> Detector:
        return self.chosen

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}percentile_" in state_dict:  # build the detector of that percentile, which loads the other state
            self.chosen = self.make(state_dict[f"{prefix}percentile_"].item())
        super()._load_from_state_dict(state_dict, prefix, *args)


def on_shaped_features(
    shaping: Callable[[float], Shaping], percentiles: Sequence[float], summary: str
) -> Callable[..., Detector]:
    """Return a factory of AutoFold on shaped features, with a fixed ``percentile`` or several to choose from."""

    def factory(percentile: float | Sequence[float] = percentiles, masked: bool = False, **hyper: Any) -> Detector:
        check_choice("masked", masked, (True, False))

        def make(percentile: float) -> Shaped:
            shape, auto = shaping(percentile), AutoFold(**hyper)
            if masked and isinstance(shape, react.ReAct):
                auto.fold.kept = shape.kept
            return Shaped(shape, auto)

        if not isinstance(percentile, Sequence):
            return make(percentile)
        if not percentile or isinstance(percentile, str):
            raise MethodRefusedError(f"percentile must be a number, or several to choose from, got {percentile!r}.")
        return Joint(make, percentile)

    own = dict(signature(factory).parameters) | dict(signature(AutoFold).parameters)
    last = ["masked"] if shaping is react.ReAct else []  # ASH has no threshold for a mask
    named = [own[name] for name in ("percentile", *signature(AutoFold).parameters, *last)]
    keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in named]
    factory.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
    factory.__doc__ = summary
    return factory


register(
    "autofold-r",
    printed="AutoFold-R",
    full_name="AutoFold after ReAct",
    cite=(FOLD, react.PAPER),
    fits_on="val",
    tuned_on="id",
)(on_shaped_features(react.ReAct, react.PERCENTILES, "AutoFold on features clipped by ReAct, percentile chosen too."))

register(
    "autofold-a",
    printed="AutoFold-A",
    full_name="AutoFold after ASH",
    cite=(FOLD, ash.PAPER),
    fits_on="val",
    tuned_on="id",
)(on_shaped_features(ash.Ash, ash.PERCENTILES, "AutoFold on features shaped by ASH, percentile chosen too."))
