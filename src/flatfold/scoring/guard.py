"""Guard: a classifier that also detects OOD inputs, with a bounded false-alarm rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from ..data.batch import split_batch
from ..data.inputs import as_batches
from ..data.sources import ImageSource, Source
from ..data.transform import InputSizes, Transform, join_sizes
from ..detectors.base import Detector
from ..network.calls import evaluating
from ..network.evidence import Evidence
from ..network.fingerprint import weights_hash
from ..network.graph import HeadModule, copy_around_memory
from ..network.heads import FoundHead, Pass
from ..network.runtime import FastestRuntime, Runtime, RuntimeName, TorchRuntime
from ..passes.extract import extract_features
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
from .monitor import Monitor

if TYPE_CHECKING:
    from .export import Layout, Parity

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
        evidence: Features that the model gave for made-up inputs, by which a model that computes something else with
            the same weights is recognised; None if that is not possible.
        sizes: Of the inputs that it was calibrated on, if they are known; ``score`` and ``serve`` refuse others.
        runtime: Runs the model; see :meth:`use_runtime`.
        fit_result: What :meth:`fit` reports, such as the model's accuracy; None for a guard that was loaded.
    """

    fit_result: FitResult | None = None
    sizes: InputSizes | None = None

    def __init__(
        self,
        model: nn.Module,
        found: FoundHead,
        calibrated: CalibratedDetector,
        transform: Transform | None = None,
        weights: str | None = None,
        dtype: torch.dtype | None = None,
        input_shape: tuple[int, ...] | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        self.model = model
        self.found = found
        self.calibrated = calibrated
        self.transform = transform
        self.weights = weights_hash(model) if weights is None else weights
        self.dtype = dtype
        self.input_shape = input_shape
        self.evidence = evidence
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
        confidence: float | None = None,
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
                :func:`~flatfold.data.inputs.as_batches` takes, such as a ``DataLoader``, a data set of torch or
                Hugging Face, a path of images, or arrays ``(X, y)``.
            detector: A method such as ``"knn"`` or ``"knn:k=10"``, or a detector, which is copied. Only one that came
                from a method string or ``create`` can be saved.
            fpr: The share of ID inputs that may raise an alarm.
            calibration: Other such data, to calibrate on. Without it, a random half of ``loader``'s
                data is held out for that.
            per_class: Give each predicted class its own threshold, so that the rate holds for every one of them; each
                needs enough calibration data.
            confidence: With 0.95, say, the rate of this guard is at most ``fpr`` with a probability of 95 % over the
                draw of the calibration data, not only on average over such draws
                (:func:`flatfold.core.conformal.allowed_ranks` has the formula). The threshold is a little higher, and
                more calibration data is needed: 59 samples for 5 %. ``is_ood`` is then stricter than
                ``p_value <= fpr``. With ``per_class``, it holds for each class on its own.
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
        check_rate(fpr, confidence)
        _check_model(model)
        detector = make_detector(detector)
        if calibration is loader and learns(detector):
            raise ValueError(SAME_DATA)
        transform = None if transform is None else Transform.of(transform)
        batching = partial(as_batches, batch_size=batch_size, transform=transform, collate=collate)
        loader, calibration = batching(loader), None if calibration is None else batching(calibration)
        if calibration is None and isinstance(loader, Source):  # before the pass; afterwards unreadable inputs are gone
            check_enough(fpr, loader.rows - loader.rows // 2, "half of the data", confidence)
        elif isinstance(calibration, Source):
            check_enough(fpr, calibration.rows, "the calibration data", confidence)
        passing = partial(extract_features, model, device=device, workers=workers, unreadable=unreadable, dtype=dtype)
        bank, found, _, used, shape, predicted, inputs, sizes = passing(loader, head=head, runtime=runtime, graph=graph)
        held_out = None if calibration is None else passing(calibration, head=found.name, runtime=used)
        sizes = sizes if held_out is None else join_sizes(sizes, held_out.sizes)
        result = fit_detector(
            detector,
            bank,
            found.head,
            fpr,
            held_out=None if held_out is None else held_out.bank,
            per_class=per_class,
            confidence=confidence,
            seed=seed,
            predicted=predicted,
            held_out_predicted=None if held_out is None else held_out.predicted,
        )
        assert result.calibration is not None
        if transform is None and isinstance(loader, ImageSource):
            transform = loader.transform
        calibrated = CalibratedDetector(result.detector, result.calibration)
        evidence = None if inputs is None else Evidence.of(model, found, inputs, dtype)
        guard = cls(model, found, calibrated, transform, dtype=dtype, input_shape=shape, evidence=evidence)
        guard.sizes = sizes
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

    def at(self, fpr: float, confidence: float | None = None) -> Guard:
        """Return this guard with another false-alarm rate; nothing is fitted again.

        Args:
            fpr: As in :meth:`fit`.
            confidence: As in :meth:`fit`; by default that of this guard.
        """
        calibrated = self.calibrated.at(fpr, confidence)
        kept = (self.transform, self.weights, self.dtype, self.input_shape, self.evidence)
        guard = Guard(self.model, self.found, calibrated, *kept)
        guard.runtime, guard.sizes = self.runtime, self.sizes
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

    def __call__(self, batch: Any) -> Verdict:
        """Run a batch through the model, in evaluation mode and on its device, and decide on each of its inputs.

        Args:
            batch: As a loader gives it, and prepared as for the model: a tensor ``(n, ...)``, a pair ``(x, y)``, or a
                dict of keyword arguments. Labels are ignored.
        """
        return self.calibrated.decide(*self.run(batch))

    def run(self, batch: Any) -> Pass:
        """Run a batch through the model and return its features and logits, which ``guard.calibrated.decide`` takes."""
        with evaluating(self.model) as device:
            return self.runtime(split_batch(batch).to(device))

    def warm_up(self, batch: Any = None) -> None:
        """Choose and prepare the runtime on some inputs of a batch, so that the next batch does not wait for it.

        By default inputs are made up; where their shape is not known, the runtime becomes torch.
        """
        if batch is not None:
            inputs = split_batch(batch)
        elif self.evidence is not None:
            inputs = self.evidence.inputs.make(WARM_UP)
        else:
            transform, shape = self.transform, self.input_shape
            if shape is None and transform is not None and transform.crop is not None:
                shape = (len(transform.mode), transform.crop, transform.crop)
            if shape is None:
                self.use_runtime("torch")
                return
            dtype, generator = next(self.model.parameters()).dtype, torch.Generator().manual_seed(0)
            inputs = split_batch(torch.randn(WARM_UP, *shape, generator=generator).to(dtype))
        if isinstance(self.runtime, FastestRuntime):
            with evaluating(self.model) as device:
                self.runtime.choose(inputs.to(device))

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

    def export(self, path: Path | str, inputs: Any, *, layout: Layout | None = None, name: str = "guard") -> Parity:
        """Write model and detector as one graph for another runtime, ``.onnx`` or ``.pt2``, for batches of any size.

        Args:
            path: File to write; with a layout, a folder.
            inputs: Real inputs, any data that :meth:`fit` takes, on which the file must give this guard's answers
                before it is written.
            layout: ``"triton"`` adds the model ``name``, or its next version, to the Triton model repository ``path``;
                ``"mlflow"`` makes ``path`` an MLflow model.
            name: Name of the model in a Triton repository.

        Returns:
            The errors of the file; see :func:`flatfold.scoring.export.export`.
        """
        from .export import export  # late: torch.export takes a while to import

        return export(self, path, inputs, layout=layout, name=name)

    def save(self, path: Path | str) -> None:
        """Write everything but the model to a safetensors file."""
        self._check_unchanged()
        kept = (self.transform, self.weights, self.dtype, self.input_shape, self.evidence, self.sizes)
        save_guard(Path(path), self.found, self.calibrated, *kept)

    @classmethod
    def load(cls, path: Path | str | GuardFile, model: nn.Module) -> Self:
        """Read a guard for ``model``; a file made for another model is refused.

        The weights must be the same, and so must be the features of a few made-up inputs, up to rounding: a model that
        computes something else with its weights is another model.
        """
        _check_model(model)
        file = path if isinstance(path, GuardFile) else read_guard(Path(path))
        settings, found = file.settings, file.match(model)
        shape = None if settings.input_shape is None else tuple(settings.input_shape)
        kept = (file.transform, settings.weights_sha256, file.dtype, shape, file.evidence)
        guard = cls(model, found, file.calibrated, *kept)
        guard.sizes = file.sizes
        return guard

    def __repr__(self) -> str:
        name = self.detector.method_text or type(self.detector).__name__
        per_class = " per class" if self.calibration.per_class else ""
        sure = "" if self.calibration.confidence is None else f", confidence={self.calibration.confidence:g}"
        return f"Guard({name}, fpr={self.fpr:g}{per_class}{sure}, {self.calibration.samples} calibration samples)"

    def _check_unchanged(self) -> None:
        if weights_hash(self.model) != self.weights:
            raise ValueError(
                "a guard belongs to the weights that it was fitted on, but those of its model have changed since. "
                "Was the model trained on, or converted? Fit the guard again."
            )
        if self.evidence is not None and self.evidence.difference(self.model, self.found, self.dtype):
            raise ValueError(
                "a guard belongs to what its model computed when it was fitted, but the same inputs give other "
                "features now. Was a layer without weights exchanged, or a setting of one? Fit the guard again."
            )


class GuardModule(nn.Module):
    """``x -> (logits, score, p_value, is_ood)`` in plain torch; see :class:`flatfold.network.graph.HeadModule`.

    Example:
        >>> import torch
        >>> from flatfold import Guard
        >>> model, x = nn.Linear(2, 3), torch.rand(60, 2)
        >>> guard = Guard.fit(model, [x], detector="msp", fpr=0.1)
        >>> torch.equal(torch.compile(guard.as_module(), backend="eager")(x).score, guard(x).score)
        True
    """

    def __init__(self, model: nn.Module, found: FoundHead, calibrated: CalibratedDetector) -> None:
        super().__init__()
        self.network = HeadModule(model, found)
        self.calibrated = copy_around_memory(calibrated)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Verdict:
        """Return the verdict on a batch; takes what the model takes."""
        features, logits = self.network(*args, **kwargs)
        return Verdict(logits, *self.calibrated(features.to(self.calibrated.detector.fitted_weight.dtype), logits))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is asked for."""
        return super().train(False)


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model must be a torch.nn.Module, not {type(model).__name__}. Build the network and load its weights "
            "first: network.load_state_dict(...)."
        )
