"""Guard: a classifier that also says which inputs it does not know, with a guaranteed false-alarm rate."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank
from ..core.conformal import p_values, samples_needed
from ..detectors import create
from ..detectors.base import Detector
from ..models.batches import split_batch
from ..models.extract import one_pass
from ..models.forward import as_it_was
from ..models.heads import FoundHead, run
from . import artefact


class Verdict(NamedTuple):
    """What a guard says about a batch."""

    logits: Tensor
    """``(n, c)``, the model's own."""
    score: Tensor
    """``(n,)``, higher = more out-of-distribution."""
    p_value: Tensor
    """``(n,)``, how unusual the score is among known inputs: small = unusual."""
    is_ood: Tensor
    """``(n,)`` bool, True where the p-value is at most the false-alarm rate asked for."""


class Guard:
    """A model, a fitted detector and the scores of held-out known inputs.

    Of known inputs at most a share ``fpr`` raises an alarm, on average over the draw of the calibration data,
    whatever the model and the detector, as long as the calibration data is like the data to come
    (:mod:`flatfold.core.conformal`). Make one with :meth:`fit` or :meth:`load`.

    Attributes:
        model: The classifier; it is never changed.
        found: Its last linear layer.
        detector: Turns features into scores.
        calibration: Scores of held-out known inputs in ascending order.
        fpr: The false-alarm rate asked for.
    """

    def __init__(self, model: nn.Module, found: FoundHead, detector: Detector, calibration: Tensor, fpr: float) -> None:
        _check_rate(fpr, len(calibration))
        self.model = model
        self.found = found
        self.detector = detector.eval()
        self.calibration = calibration
        self.fpr = fpr

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        detector: str | Detector = "autofold",
        fpr: float = 0.05,
        *,
        calibration: Iterable[Any] | None = None,
        head: str | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> Self:
        """Fit a detector and calibrate it, on in-distribution data that the model was not trained on.

        Args:
            model: Any classifier that ends in a linear layer.
            loader: Labelled in-distribution batches (labels may be missing if the detector needs none).
            detector: A name for ``create``, or a detector, which is copied. Only one that came from ``create`` can be
                saved.
            fpr: The share of known inputs that may raise an alarm.
            calibration: More such batches, to calibrate on. Without it half of ``loader``'s data, drawn at random, is
                kept for that.
            head: As in ``extract``.
            device: As in ``extract``.
            seed: Of the draw.
        """
        _check_rate(fpr)
        fitted = create(detector) if isinstance(detector, str) else deepcopy(detector)  # the caller may fit it again
        if not isinstance(fitted, Detector):
            raise TypeError(
                f"a guard scores features, which costs next to nothing, but {type(fitted).__name__} runs the network "
                "and its gradient again for every input. Use a method that sees features."
            )
        bank, found = one_pass(model, loader, device, head)
        if calibration is None:
            bank, held_out = _halves(bank, seed)
        else:
            held_out, _ = one_pass(model, calibration, device, found.name)
        _check_rate(fpr, len(held_out), "half of the data" if calibration is None else "the calibration data")
        fitted.fit(bank, found.head)
        with torch.no_grad():
            scores = fitted(held_out.features).sort().values
        return cls(model, found, fitted, scores, fpr)

    @torch.no_grad()
    def __call__(self, batch: Any) -> Verdict:
        """Run a batch through the model, in evaluation mode and where it lies, and judge each of its inputs."""
        with as_it_was(self.model) as device:
            features, logits = run(self.model, self.found, split_batch(batch).to(device))
        score = self.detector.to(features.device)(features)
        p = p_values(score, self.calibration.to(score.device))
        return Verdict(logits, score, p, p <= self.fpr)

    def save(self, path: Path | str) -> None:
        """Write everything but the model to a safetensors file."""
        artefact.save(Path(path), self.model, self.found, self.detector, self.calibration, self.fpr)

    @classmethod
    def load(cls, path: Path | str, model: nn.Module) -> Self:
        """Read a guard for ``model``; a file made for another model is refused."""
        return cls(model, *artefact.load(Path(path), model))

    def __repr__(self) -> str:
        name = self.detector.made_by[0] if self.detector.made_by else type(self.detector).__name__
        return f"Guard({name}, fpr={self.fpr:g}, {len(self.calibration)} calibration samples)"


def _halves(bank: FeatureBank, seed: int) -> tuple[FeatureBank, FeatureBank]:
    if len(bank) < 2:
        raise ValueError(
            "one sample cannot both fit and calibrate. Give more data, or a second loader as calibration=."
        )
    order = torch.randperm(len(bank), generator=torch.Generator().manual_seed(seed))
    return bank[order[: len(bank) // 2]], bank[order[len(bank) // 2 :]]


def _check_rate(fpr: float, samples: int | None = None, where: str = "the calibration data") -> None:
    if not 0 < fpr < 1:
        raise ValueError(f"fpr must lie between 0 and 1, got {fpr:g}. 0.05 allows 5 false alarms in 100 known inputs.")
    if samples is not None and samples < samples_needed(fpr):
        raise ValueError(
            f"a false-alarm rate of {fpr:g} takes {samples_needed(fpr)} calibration samples, {where} has {samples}. "
            "Give more in-distribution data, or allow a higher rate."
        )
