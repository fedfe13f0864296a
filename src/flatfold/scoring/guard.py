"""Guard: a classifier that also says which inputs it does not know, with a guaranteed false-alarm rate."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from ..core.bank import FeatureBank, Head
from ..detectors import create, get_method
from ..detectors.base import Detector
from ..models.batches import split_batch
from ..models.eval_mode import evaluating
from ..models.extract import extract_features
from ..models.fingerprint import weights_hash
from ..models.heads import FoundHead, Pass, run
from ..models.sources import ImageSource
from ..models.transform import Transform
from . import guard_file
from .calibrated import Calibration, Judge, Verdict, check_enough, check_rate, lifted, without_autocast
from .explanation import Explanation, explain
from .guard_module import Guarded
from .monitor import Monitor

if TYPE_CHECKING:
    from .export import Parity


# Features of known inputs to a judge: half of them fit a detector, the others calibrate it.


log = logging.getLogger(__name__)


def fit_judge(
    detector: Detector,
    bank: FeatureBank,
    head: Head,
    fpr: float,
    *,
    held_out: FeatureBank | None = None,
    per_class: bool = False,
    seed: int = 0,
) -> Judge:
    """Fit a detector and calibrate it on features of inputs that the model was not trained on.

    Args:
        detector: It is fitted, and kept by the judge.
        bank: Features of known inputs, with labels if the detector needs them.
        head: The model's last layer.
        fpr: The share of known inputs that may raise an alarm.
        held_out: Features of others to calibrate on. Without them half of ``bank``, drawn at random, is kept for that.
        per_class: Give each predicted class a threshold of its own.
        seed: Of the draw.
    """
    _note_labels(bank, head)
    where = "half of the data" if held_out is None else "the calibration data"
    if held_out is None:
        bank, held_out = _halves(bank, seed)
    else:
        check_apart(detector, torch.equal(bank.features, held_out.features))
    check_enough(fpr, len(held_out), where)
    with without_autocast(bank.features), torch.no_grad():
        detector.fit(bank, head)
        predicted = head(held_out.features).argmax(dim=-1) if per_class else None
        scores = lifted(detector(held_out.features))
        return Judge(detector, Calibration.of(scores, fpr, predicted, head.n_classes))


def fresh_detector(detector: str | Detector) -> Detector:
    """Return a new detector by its name, or a copy: the caller may fit the original again."""
    made = create(detector) if isinstance(detector, str) else deepcopy(detector)
    if isinstance(made, type):
        raise TypeError(
            f"a guard takes a detector or the name of one, got the class {made.__name__}. "
            f"Make one: {made.__name__}(...)."
        )
    if not isinstance(made, Detector):
        raise TypeError(
            f"a guard scores features, which costs next to nothing, but {type(made).__name__} runs the network "
            "and its gradient again for every input. Use a method that sees features."
        )
    return made


def check_apart(detector: Detector, same: bool) -> None:
    """Raise if a detector that learns from data would be calibrated on the same data."""
    learns = detector.made_by is None or get_method(detector.made_by[0]).fits_on != "nothing"
    if learns and same:
        raise ValueError(
            "the detector has seen what is in the loader, so calibration= must be other data, or the false-alarm rate "
            "would mean nothing. Leave it out, and half of the data is kept for that."
        )


def _note_labels(bank: FeatureBank, head: Head) -> None:
    """Say so when the model knows the labels no better than a guess, or knows them under other numbers."""
    if bank.labels is None:
        return
    predicted = head(bank.features).argmax(dim=-1)
    usual = _usual_prediction(bank.labels, predicted)
    right = _share(predicted == bank.labels)
    renamed = _share(predicted == torch.tensor([usual[label] for label in bank.labels.tolist()]).to(predicted))
    most = int(bank.labels.bincount().max()) / len(bank)
    if len(set(usual.values())) == len(usual) > 1 and renamed > max(0.5, 2 * right):
        label = next(label for label, prediction in usual.items() if label != prediction)
        log.warning(
            "the model is right about %.1f %% of the labelled inputs, but about %.1f %% if its classes had another "
            "order: what is labelled %d is mostly predicted as %d. Labels must be in the order of its outputs; class "
            "folders are numbered in that of their names, 10 before 2.",
            *(100 * right, 100 * renamed, label, usual[label]),
        )
    elif right <= most < 1:
        log.warning(
            "the model is right about %.1f %% of the labelled inputs, where the most frequent class alone makes up "
            "%.1f %%. Are its weights loaded, inputs prepared as in training, labels in the order of its outputs?",
            *(100 * right, 100 * most),
        )


def _usual_prediction(labels: Tensor, predicted: Tensor) -> dict[int, int]:
    """Return what the inputs of each label are predicted as most often, in the order of the labels."""
    counts = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
    usual = dict(pair for pair, _ in reversed(counts.most_common()))  # of several predictions the last one is kept
    return dict(sorted(usual.items()))


def _share(those: Tensor) -> float:
    return float(those.double().mean())


def _halves(bank: FeatureBank, seed: int) -> tuple[FeatureBank, FeatureBank]:
    if len(bank) < 2:
        raise ValueError(
            "one sample cannot both fit and calibrate. Give more data, or a second loader as calibration=."
        )
    order = torch.randperm(len(bank), generator=torch.Generator().manual_seed(seed))
    return bank[order[: len(bank) // 2]], bank[order[len(bank) // 2 :]]


class Guard:
    """A model, a fitted detector and the scores of held-out known inputs.

    Of known inputs at most a share ``fpr`` raises an alarm, on average over the draw of the calibration data,
    whatever the model and the detector, as long as the calibration data is like the data to come
    (:mod:`flatfold.core.conformal`). Make one with :meth:`fit` or :meth:`load`.

    A guard belongs to the weights that the model had then. A call does not look whether they have changed since;
    :meth:`save`, :meth:`as_module` and :meth:`export` do, and refuse.

    Attributes:
        model: The classifier; it is never changed.
        found: Its last linear layer.
        judge: Turns features into scores, p-values and decisions; ``guard.judge(features)`` needs no model.
        transform: How images are prepared for the model, if that is known.
        weights: The sha256 of the model's weights, by default as they are now.
    """

    def __init__(
        self,
        model: nn.Module,
        found: FoundHead,
        judge: Judge,
        transform: Transform | None = None,
        weights: str | None = None,
    ) -> None:
        self.model = model
        self.found = found
        self.judge = judge
        self.transform = transform
        self.weights = weights_hash(model) if weights is None else weights

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        detector: str | Detector = "autofold",
        fpr: float = 0.05,
        *,
        calibration: Iterable[Any] | None = None,
        per_class: bool = False,
        head: str | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        transform: Transform | None = None,
        workers: int = 0,
        unreadable: float = 0.0,
    ) -> Self:
        """Fit a detector and calibrate it, on in-distribution data that the model was not trained on.

        Args:
            model: Any classifier that ends in a linear layer.
            loader: Labelled in-distribution batches (labels may be missing if the detector needs none).
            detector: A name for ``create``, or a detector, which is copied. Only one that came from ``create`` can be
                saved.
            fpr: The share of known inputs that may raise an alarm.
            calibration: More such batches, to calibrate on, of other data. Without it half of ``loader``'s data, drawn
                at random, is kept for that.
            per_class: Give each predicted class a threshold of its own, so that the rate holds for every one of them;
                each needs enough calibration data.
            head: As in ``extract``.
            device: As in ``extract``.
            seed: Of the draw.
            transform: How images are prepared for the model, to be kept with the guard; sources such as
                ``FolderImages`` know it.
            workers: As in ``extract``.
            unreadable: As in ``extract``.
        """
        check_rate(fpr)
        _check_model(model)
        made = fresh_detector(detector)
        bank, found, _ = extract_features(model, loader, device, head, workers, unreadable)
        held_out = None
        if calibration is not None:
            check_apart(made, calibration is loader)
            held_out = extract_features(model, calibration, device, found.name, workers, unreadable).bank
        judge = fit_judge(made, bank, found.head, fpr, held_out=held_out, per_class=per_class, seed=seed)
        if transform is None and isinstance(loader, ImageSource):
            transform = loader.transform
        return cls(model, found, judge, transform)

    @property
    def detector(self) -> Detector:
        """What turns features into scores."""
        return self.judge.detector

    @property
    def calibration(self) -> Calibration:
        """Scores of held-out known inputs, and the thresholds that follow from them."""
        return self.judge.calibration

    @property
    def fpr(self) -> float:
        """The false-alarm rate asked for."""
        return self.calibration.fpr

    def at(self, fpr: float) -> Guard:
        """Return this guard with another false-alarm rate; nothing is fitted again."""
        return Guard(self.model, self.found, self.judge.at(fpr), self.transform, self.weights)

    @torch.no_grad()
    def __call__(self, batch: Any) -> Verdict:
        """Run a batch through the model, in evaluation mode and where it lies, and judge each of its inputs.

        Args:
            batch: As a loader gives it, and prepared as for the model: a tensor ``(n, ...)``, a pair ``(x, y)``, or a
                dict of keyword arguments. Labels are not looked at.
        """
        return self.judged(self.look(batch))

    @torch.no_grad()
    def look(self, batch: Any) -> Pass:
        """Run a batch through the model and return its features and logits, which :meth:`judged` takes."""
        with evaluating(self.model) as device:
            return run(self.model, self.found, split_batch(batch).to(device))

    @torch.no_grad()
    def judged(self, seen: Pass) -> Verdict:
        """Return what a call says about a batch whose features and logits are known."""
        if self.calibration.scores.device != seen.features.device:
            self.judge.to(seen.features.device)
        return Verdict(seen.logits, *self.judge(seen.features, seen.logits))

    @torch.no_grad()
    def explain(self, batch: Any, names: Sequence[str] | None = None, pairs: int = 3) -> list[Explanation]:
        """Say for each input between which classes the energy bends most; see :class:`Explanation`.

        Args:
            batch: As in a call.
            names: Of the classes, in the order of the logits.
            pairs: How many pairs of classes to name.
        """
        seen = self.look(batch)
        verdict = self.judged(seen)
        return explain(verdict, self.detector.pairs(seen.features, pairs), names)

    def monitor(self) -> Monitor:
        """Return an empty summary of a stream; feed it with ``monitor.add(guard(x))``."""
        return Monitor.of(self.judge)

    def as_module(self) -> Guarded:
        """Return model and judge as one module, for ``torch.compile``, ``torch.export`` and other runtimes."""
        self._check_unchanged()
        return Guarded(self.model, self.found, self.judge)

    def export(self, path: Path | str, inputs: Iterable[Any]) -> Parity:
        """Write model and judge as one graph for another runtime, ``.onnx`` or ``.pt2``, for batches of any size.

        Args:
            path: Where to.
            inputs: Batches of real inputs, on which the file must give this guard's answers before it is written.

        Returns:
            How well it does; see :func:`flatfold.scoring.export.export`.
        """
        from .export import export  # late: torch.export takes a while to import

        return export(self, path, inputs)

    def save(self, path: Path | str) -> None:
        """Write everything but the model to a safetensors file."""
        self._check_unchanged()
        guard_file.save(Path(path), self.found, self.judge, self.transform, self.weights)

    @classmethod
    def load(cls, path: Path | str, model: nn.Module) -> Self:
        """Read a guard for ``model``; a file made for another model is refused."""
        _check_model(model)
        return cls(model, *guard_file.load(Path(path), model))

    def __repr__(self) -> str:
        name = self.detector.made_by[0] if self.detector.made_by else type(self.detector).__name__
        each = " per class" if self.calibration.per_class else ""
        return f"Guard({name}, fpr={self.fpr:g}{each}, {self.calibration.samples} calibration samples)"

    def _check_unchanged(self) -> None:
        if weights_hash(self.model) != self.weights:
            raise ValueError(
                "a guard belongs to the weights that it was fitted on, but those of its model have changed since. Was "
                "the model trained on, or converted? Fit the guard again."
            )


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model must be a torch.nn.Module, not {type(model).__name__}. Build the network and load its weights "
            "first: network.load_state_dict(...)."
        )
