"""Guard: a classifier that also detects OOD inputs, at a guaranteed false-alarm rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from ..detectors.base import Detector
from ..models.extract import extract_features
from ..models.fingerprint import weights_hash
from ..models.forward import evaluating, split_batch
from ..models.heads import FoundHead, Pass
from ..models.inputs import as_batches
from ..models.runtime import FastestRuntime, Runtime, RuntimeName, TorchRuntime
from ..models.sources import ImageSource, Source
from ..models.transform import Transform
from .calibrated import (
    SAME_DATA,
    CalibratedDetector,
    Calibration,
    FitResult,
    Verdict,
    check_enough,
    check_rate,
    fit_detector,
    learns,
    make_detector,
)
from .explanation import Explanation, explain
from .guard_file import GuardFile, read_guard, save_guard
from .guard_module import GuardModule
from .monitor import Monitor

if TYPE_CHECKING:
    from .export import Parity

WARM_UP = 8  # made-up inputs on which a service chooses its runtime


class Guard:
    """A model, a fitted detector and the scores of held-out ID inputs.

    Of ID inputs at most a share ``fpr`` raises an alarm, on average over the draw of the calibration data, whatever the
    model and the detector, as long as the calibration data is like the data to come (:mod:`flatfold.core.conformal`).
    Make one with :meth:`fit` or :meth:`load`.

    A guard belongs to the weights that the model had then. A call does not check whether they have changed since;
    :meth:`save`, :meth:`as_module` and :meth:`export` do, and refuse.

    Attributes:
        model: The classifier; it is never changed.
        found: Its last linear layer.
        calibrated: Turns features into scores, p-values and decisions; ``guard.calibrated(features)`` needs no model.
        transform: How images are prepared for the model, if that is known.
        weights: The sha256 of the model's weights, by default as they are now.
        dtype: ``torch.bfloat16`` if the model computes in mixed precision, else None.
        input_shape: That of one input, ``(c, h, w)`` for images, if it is known.
        runtime: Runs the model; see :meth:`use_runtime`.
        fit_result: What :meth:`fit` reports, such as the model's accuracy; None for a guard that was loaded.
    """

    fit_result: FitResult | None = None

    def __init__(
        self,
        model: nn.Module,
        found: FoundHead,
        calibrated: CalibratedDetector,
        transform: Transform | None = None,
        weights: str | None = None,
        dtype: torch.dtype | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.model = model
        self.found = found
        self.calibrated = calibrated
        self.transform = transform
        self.weights = weights_hash(model) if weights is None else weights
        self.dtype = dtype
        self.input_shape = input_shape
        self.runtime: Runtime = TorchRuntime(model, found, dtype=dtype)

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loader: Any,
        detector: str | Detector = "fourfold",
        fpr: float = 0.05,
        *,
        calibration: Any = None,
        per_class: bool = False,
        head: str | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        transform: Any = None,
        workers: int | None = None,
        unreadable: float = 0.0,
        runtime: RuntimeName = "torch",
        dtype: torch.dtype | None = None,
        graph: Path | None = None,
        batch_size: int = 64,
        collate: Any = None,
    ) -> Self:
        """Fit a detector and calibrate it, on in-distribution data that the model was not trained on.

        Args:
            model: Any classifier that ends in a linear layer; one with a single output z has two classes, with
                ``sigmoid(z)`` as the probability of class 1.
            loader: Labelled in-distribution data (labels may be missing if the detector needs none): whatever
                :func:`~flatfold.models.inputs.as_batches` takes, such as a ``DataLoader``, a data set of torch or
                Hugging Face, a path of images, or arrays ``(X, y)``.
            detector: A method such as ``"knn"`` or ``"knn:k=10"``, or a detector, which is copied. Only one that came
                from a method string or ``create`` can be saved.
            fpr: The share of ID inputs that may raise an alarm.
            calibration: Other such data, to calibrate on. Without it, a random half of ``loader``'s
                data is held out for that.
            per_class: Give each predicted class its own threshold, so that the rate holds for every one of them; each
                needs enough calibration data.
            head: As in ``extract``.
            device: As in ``extract``.
            seed: Seed of the random half.
            transform: How images are prepared for the model, which is kept with the guard: a :class:`Transform`, or the
                preparation of published weights that :meth:`Transform.of` takes. It is applied to paths and to data
                sets of images, not to tensors. Sources such as ``FolderImages`` know theirs.
            workers: As in ``extract``.
            unreadable: As in ``extract``.
            runtime: As in ``extract``. The guard itself runs the model with torch until :meth:`use_runtime` is called.
            dtype: ``torch.bfloat16`` to compute in mixed precision, now and in every later call: scores of another
                precision would not fit the calibration.
            graph: File in which a graph that is exported for the runtime ``onnx`` is kept.
            batch_size: As in ``extract``.
            collate: As in ``extract``.
        """
        check_rate(fpr)
        _check_model(model)
        detector = make_detector(detector)
        if calibration is loader and learns(detector):
            raise ValueError(SAME_DATA)
        transform = None if transform is None else Transform.of(transform)
        batching = partial(as_batches, batch_size=batch_size, transform=transform, collate=collate)
        loader, calibration = batching(loader), None if calibration is None else batching(calibration)
        if calibration is None and isinstance(loader, Source):  # before the pass; afterwards unreadable inputs are gone
            check_enough(fpr, loader.rows - loader.rows // 2, "half of the data")
        elif isinstance(calibration, Source):
            check_enough(fpr, calibration.rows, "the calibration data")
        passing = partial(extract_features, model, device=device, workers=workers, unreadable=unreadable, dtype=dtype)
        bank, found, _, used, shape = passing(loader, head=head, runtime=runtime, graph=graph)
        held_out = None if calibration is None else passing(calibration, head=found.name, runtime=used).bank
        result = fit_detector(detector, bank, found.head, fpr, held_out=held_out, per_class=per_class, seed=seed)
        assert result.calibration is not None
        if transform is None and isinstance(loader, ImageSource):
            transform = loader.transform
        calibrated = CalibratedDetector(result.detector, result.calibration)
        guard = cls(model, found, calibrated, transform, dtype=dtype, input_shape=shape)
        guard.fit_result = replace(result, runtime=str(used))
        return guard

    @property
    def detector(self) -> Detector:
        """What turns features into scores."""
        return self.calibrated.detector

    @property
    def calibration(self) -> Calibration:
        """Scores of held-out ID inputs, and the thresholds that follow from them."""
        return self.calibrated.calibration

    @property
    def fpr(self) -> float:
        """The false-alarm rate asked for."""
        return self.calibration.fpr

    def at(self, fpr: float) -> Guard:
        """Return this guard with another false-alarm rate; nothing is fitted again."""
        calibrated = self.calibrated.at(fpr)
        guard = Guard(self.model, self.found, calibrated, self.transform, self.weights, self.dtype, self.input_shape)
        guard.runtime = self.runtime
        return guard

    def use_runtime(self, runtime: RuntimeName = "auto", rows: int | None = None, graph: Path | None = None) -> None:
        """Run the model with ``"torch"``, ``"torch-compile"``, ``"onnx"``, or with the fastest of them (``"auto"``).

        It is prepared and compared with torch when the next batch comes; logits may differ by 1e-5 of the largest, and
        calibration allows for what that changes in a score. The weights must not change afterwards.

        Args:
            runtime: Name of the runtime.
            rows: How many inputs are to come: for a few, ``"auto"`` prepares nothing. None means many.
            graph: File in which a graph that is exported for ``"onnx"`` is kept.
        """
        self.runtime = FastestRuntime(runtime, self.model, self.found, rows=rows, cache=graph, dtype=self.dtype)

    @torch.no_grad()
    def __call__(self, batch: Any) -> Verdict:
        """Run a batch through the model, in evaluation mode and on its device, and decide on each of its inputs.

        Args:
            batch: As a loader gives it, and prepared as for the model: a tensor ``(n, ...)``, a pair ``(x, y)``, or a
                dict of keyword arguments. Labels are ignored.
        """
        return self.calibrated.decide(*self.run(batch))

    @torch.no_grad()
    def run(self, batch: Any) -> Pass:
        """Run a batch through the model and return its features and logits, which ``guard.calibrated.decide`` takes."""
        with evaluating(self.model) as device:
            return self.runtime(split_batch(batch).to(device))

    def warm_up(self, batch: Any = None) -> None:
        """Choose and prepare the runtime on some inputs of a batch, so that the next batch does not wait for it.

        By default inputs are made up; where their shape is not known, the runtime becomes torch.
        """
        if batch is None:
            transform, shape = self.transform, self.input_shape
            if shape is None and transform is not None and transform.crop is not None:
                shape = (len(transform.mode), transform.crop, transform.crop)
            if shape is None:
                self.use_runtime("torch")
                return
            dtype, generator = next(self.model.parameters()).dtype, torch.Generator().manual_seed(0)
            batch = torch.randn(WARM_UP, *shape, generator=generator).to(dtype)
        if isinstance(self.runtime, FastestRuntime):
            with evaluating(self.model) as device:
                self.runtime.choose(split_batch(batch).to(device))

    @torch.no_grad()
    def explain(self, batch: Any, names: Sequence[str] | None = None, pairs: int = 3) -> list[Explanation]:
        """Say for each input what is unusual about it; see :class:`Explanation`.

        Args:
            batch: As in a call.
            names: Of the classes, in the order of the logits.
            pairs: How many pairs of classes to name.
        """
        output = self.run(batch)
        verdict, h = self.calibrated.decide(*output), output.features
        return explain(verdict, self.detector.pairs(h, pairs), names, self.detector.signs(h))

    def monitor(self) -> Monitor:
        """Return an empty summary of a stream; feed it with ``monitor.add(guard(x))``."""
        return Monitor.of(self.calibrated)

    def as_module(self) -> GuardModule:
        """Return model and detector as one module, for ``torch.compile``, ``torch.export`` and other runtimes."""
        self._check_unchanged()
        if self.dtype is not None:
            raise ValueError(
                f"this guard computes in {self.dtype}, which is not a part of the model's graph. Fit it without dtype= "
                "to export it."
            )
        return GuardModule(self.model, self.found, self.calibrated)

    def export(self, path: Path | str, inputs: Any) -> Parity:
        """Write model and detector as one graph for another runtime, ``.onnx`` or ``.pt2``, for batches of any size.

        Args:
            path: File to write.
            inputs: Real inputs, any data that :meth:`fit` takes, on which the file must give this guard's answers
                before it is written.

        Returns:
            The errors of the file; see :func:`flatfold.scoring.export.export`.
        """
        from .export import export  # late: torch.export takes a while to import

        return export(self, path, inputs)

    def save(self, path: Path | str) -> None:
        """Write everything but the model to a safetensors file."""
        self._check_unchanged()
        save_guard(Path(path), self.found, self.calibrated, self.transform, self.weights, self.dtype, self.input_shape)

    @classmethod
    def load(cls, path: Path | str | GuardFile, model: nn.Module) -> Self:
        """Read a guard for ``model``; a file made for another model is refused."""
        _check_model(model)
        file = path if isinstance(path, GuardFile) else read_guard(Path(path))
        weights, dtype, shape = file.settings.weights_sha256, file.dtype, file.settings.input_shape
        found = file.match(model)
        return cls(
            model, found, file.calibrated, file.transform, weights, dtype, None if shape is None else tuple(shape)
        )

    def __repr__(self) -> str:
        name = self.detector.method_text or type(self.detector).__name__
        per_class = " per class" if self.calibration.per_class else ""
        return f"Guard({name}, fpr={self.fpr:g}{per_class}, {self.calibration.samples} calibration samples)"

    def _check_unchanged(self) -> None:
        if weights_hash(self.model) != self.weights:
            raise ValueError(
                "a guard belongs to the weights that it was fitted on, but those of its model have changed since. "
                "Was the model trained on, or converted? Fit the guard again."
            )


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model must be a torch.nn.Module, not {type(model).__name__}. Build the network and load its weights "
            "first: network.load_state_dict(...)."
        )
