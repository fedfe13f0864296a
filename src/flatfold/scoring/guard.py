"""Guard: a classifier that also detects OOD inputs, with a bounded false-alarm rate."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..data.batch import is_batch, split_batch
from ..data.loading import Loading
from ..data.sources import ImageSource, Source
from ..data.text_files import TextSource
from ..data.transform import Transform
from ..detectors.base import Detector
from ..network.calls import check_model, weights_dtype
from ..network.evidence import difference
from ..network.execution import Execution, RuntimeName
from ..network.graph import HeadModule, copy_around_memory
from ..network.heads import Pass
from ..network.network import Network
from ..passes.extract import EveryPositionError, Extraction, extract_features
from ..passes.passes import session
from ..passes.stream import Streamed, run_batches
from .calibrated import (
    GROUPS_WITH_CONFIDENCE,
    CalibratedDetector,
    Calibration,
    GuardVerdict,
    Verdict,
    check_enough,
    check_rate,
    join_verdicts,
)
from .explanation import Explanations, explain
from .fitting import SAME_DATA, FitResult, fit_detector, learns, make_detector
from .guard_file import GuardFile, read_guard, save_guard
from .monitor import Monitor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .export import Layout, Parity

log = logging.getLogger(__name__)

NO_POSITIONS = (
    "ignore_index= is about labels of positions, but this model has one row of logits per input. Leave out the inputs "
    "without a class."
)


class Guard:
    """A model, a fitted detector and the scores of held-out ID inputs.

    At most a fraction ``fpr`` of ID inputs raises an alarm, on average over the draw of the calibration data, for any
    model and detector, if calibration data and future ID data have the same distribution
    (:mod:`flatfold.core.conformal`). Create one with :meth:`fit` or :meth:`load`.

    A guard is only valid for the weights that it was fitted on. A call does not check whether they have changed;
    :meth:`save`, :meth:`as_module` and :meth:`export` do, and raise.

    Attributes:
        network: The classifier with its last linear layer, its dtype and runtime, and the range of
            input sizes seen during calibration; ``score`` and ``serve`` reject other sizes.
        calibrated: Turns features into scores, p-values and decisions; ``guard.calibrated(features)`` needs no model.
        loading: How data is prepared for the model, as it was in :meth:`fit`.
        fit_result: Report of :meth:`fit`, such as the model's accuracy; None for a loaded guard.
    """

    def __init__(
        self,
        network: Network,
        calibrated: CalibratedDetector,
        loading: Loading | None = None,
        fit_result: FitResult | None = None,
    ) -> None:
        self.network = network
        self.calibrated = calibrated
        self.loading = loading or Loading()
        self.fit_result = fit_result

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        data: Any,
        *others: Any,
        method: str | Detector = "fourfold",
        fpr: float = 0.05,
        calibration: Any = None,
        per_class: bool = False,
        confidence: float | None = None,
        seed: int = 0,
        groups: Any = None,
        ignore_index: int | Sequence[int] | None = None,
        loading: Loading | None = None,
        execution: Execution | None = None,
    ) -> Guard:
        """Fit a detector and calibrate it, on in-distribution data that the model was not trained on.

        A model with logits at every position, such as a segmentation network or a classifier of tokens, gets a
        :class:`~flatfold.scoring.dense.DenseGuard`.

        Args:
            model: Any classifier whose logits come from linear layers (:func:`~flatfold.network.heads.find_head`); one
                with a single output z has two classes, with ``sigmoid(z)`` as the probability of class 1.
            data: Labelled in-distribution data (labels may be missing if the detector needs none): any data that
                :func:`~flatfold.as_batches` accepts, such as a ``DataLoader``, a data set of torch or Hugging Face, a
                path of images, or arrays ``(X, y)``. Floating-point arrays and data frames are converted to the type of
                the model's weights; tensors are not.
            others: Nothing: all other arguments have names. Labels are given with the data, as a pair ``(X, y)``.
            method: A method such as ``"knn"`` or ``"knn:k=10"``, or a detector, which is copied. Only a detector made
                by a method string or ``create`` can be saved.
            fpr: Largest false-alarm rate: the fraction of ID inputs that may raise an alarm.
            calibration: Separate ID data for calibration. By default, a random half of ``data`` is held out.
            per_class: Use one threshold per predicted class, so that the rate holds for each of them; each
                needs enough calibration data.
            confidence: With 0.95, for example, the rate of this guard is at most ``fpr`` with a probability of 95 %
                over the draw of the calibration data, not only on average over such draws
                (:func:`flatfold.core.conformal.allowed_ranks` has the formula). The threshold is a little higher, and
                more calibration data is needed: 59 samples for 5 %. ``is_ood`` is then stricter than
                ``p_value <= fpr``. With ``per_class``, it holds for each class on its own.
            seed: Seed of the random half.
            groups: What belongs together, if inputs are not independent of each other: a number or name for each input
                of ``data``, in its order, such as the patient or the source image of a view. Whole groups are held out
                and each counts the same, so that at most a share ``fpr`` of the inputs of a new group raises an alarm,
                on average over groups. Near copies of a group would otherwise be on both sides, and the rate too high.
            ignore_index: Of models with logits at every position: labels that do not count, besides 255 and -100.
            loading: Settings for loading data. The guard keeps them and prepares inputs in the same way; a file of it
                holds the transform, and the name of a tokeniser. Pass the transform for paths and data sets of images;
                sources such as ``FolderImages`` have their own.
            execution: Settings for extracting features. The guard itself runs the model with torch until
                ``guard.network.use_runtime`` is called.
        """
        if others:
            raise _unnamed(others[0])
        loading = loading or Loading()
        check_rate(fpr, confidence)
        grouping = None if groups is None else _number_groups(groups, calibration, confidence)
        check_model(model)
        detector = make_detector(method)
        if calibration is not None and calibration is data and learns(detector):
            raise ValueError(SAME_DATA)
        dtype = weights_dtype(model)
        to_fit = loading.batches(data, dtype=dtype)
        to_hold = None if calibration is None else loading.batches(calibration, dtype=dtype)
        if to_hold is None and isinstance(to_fit, Source):  # before unreadable inputs are dropped
            check_enough(fpr, to_fit.rows - to_fit.rows // 2, "half of the data", confidence)
        elif isinstance(to_hold, Source):
            check_enough(fpr, to_hold.rows, "the calibration data", confidence)
        if loading.transform is None and isinstance(to_fit, ImageSource):
            loading = replace(loading, transform=to_fit.transform)
        if loading.collate is None and isinstance(to_fit, TextSource):
            loading = replace(loading, collate=to_fit.tokeniser)
        execution = execution or Execution()
        with session(execution):
            try:
                extracted = extract_features(model, to_fit, loading, execution)
            except EveryPositionError as found:
                from .dense import fit_dense  # late: that module makes guards

                others_given = {"groups": groups, "confidence": confidence}
                return fit_dense(
                    found,
                    detector,
                    fpr,
                    calibration=to_hold,
                    seed=seed,
                    ignore_index=ignore_index,
                    refused=[*("per_class",) * per_class, *(k for k, v in others_given.items() if v is not None)],
                    loading=loading,
                    execution=execution,
                )
            if ignore_index is not None:
                raise ValueError(NO_POSITIONS)
            network = extracted.network
            held_out = None if to_hold is None else extract_features(network, to_hold, loading, execution)
        result = fit_detector(
            detector,
            extracted.bank,
            network.found.head,
            fpr,
            held_out=None if held_out is None else held_out.bank,
            per_class=per_class,
            confidence=confidence,
            seed=seed,
            predicted=extracted.predicted,
            held_out_predicted=None if held_out is None else held_out.predicted,
            grouping=None if grouping is None else _groups_of_rows(grouping, extracted),
        )
        assert result.calibration is not None
        _warn_if_unsteady(extracted, execution)
        calibrated = CalibratedDetector(result.detector, result.calibration)
        result = replace(result, runtime=extracted.runtime)
        network.reset_runtime()
        network.record_evidence()
        return cls(network, calibrated, loading, result)

    @property
    def transform(self) -> Transform | None:
        """Preprocessing of images for the model, if known; assign one to a guard that was fitted on tensors."""
        transform: Transform | None = self.loading.transform
        return transform

    @transform.setter
    def transform(self, transform: Transform | None) -> None:
        self.loading = replace(self.loading, transform=transform)

    @property
    def model(self) -> nn.Module:
        """The classifier; it is never changed."""
        return self.network.model

    @property
    def detector(self) -> Detector:
        """The detector, which turns features into scores."""
        return self.calibrated.detector

    @property
    def calibration(self) -> Calibration:
        """Scores of held-out ID inputs, and the thresholds derived from them."""
        return self.calibrated.calibration

    @property
    def fpr(self) -> float:
        """The requested false-alarm rate."""
        return self.calibration.fpr

    def at(self, fpr: float, confidence: float | None = None) -> Guard:
        """Return this guard with another false-alarm rate, without refitting.

        Args:
            fpr: As in :meth:`fit`.
            confidence: As in :meth:`fit`; by default that of this guard.
        """
        return Guard(self.network, self.calibrated.at(fpr, confidence), self.loading, self.fit_result)

    def use_runtime(
        self, runtime: RuntimeName = "auto", rows: int | None = None, onnx_cache: Path | str | None = None
    ) -> None:
        """Run the model with another runtime; calibration tolerates the resulting rounding differences.

        Args:
            runtime: ``"torch"``, ``"torch-compile"``, ``"onnx"``, or ``"auto"`` for the fastest of them.
            rows: Number of inputs to follow: for a few, ``"auto"`` prepares nothing. None means many.
            onnx_cache: File that caches the graph exported for ``"onnx"``.
        """
        self.network.use_runtime(runtime, rows, onnx_cache)

    def __call__(self, data: Any) -> Verdict:
        """Run inputs through the model, in evaluation mode and on its device, and return a verdict on each of them.

        Args:
            data: A preprocessed batch, as from a loader: a tensor ``(n, ...)``, a pair ``(x, y)``, or a dict of keyword
                arguments. Or any data that :meth:`fit` accepts, which is prepared as it was in ``fit``: an image, its
                path, a text, lists of these, a folder, a data set, a loader, arrays. Labels are ignored.

        Returns:
            The verdict on all inputs, in their order. Other data than a preprocessed batch runs in batches, so memory
            is needed for one of them and for the verdict, which is on the CPU and has the names of images.

        Raises:
            ValueError: An input gives features that are not finite, as most networks do for a NaN; the message has its
                row. Exported graphs raise an alarm instead.
            UnreadableInputError: More than the share ``loading.max_unreadable`` of the images or texts of files cannot
                be read.
        """
        if is_batch(data):
            return self.calibrated.decide(*self.network(data))
        verdicts, names = [], list[str]()
        for output, batch_names in self._stream(data):
            verdict = self.calibrated.decide(*output)
            verdicts.append(GuardVerdict.of((values.cpu() for values in verdict), verdict.fpr))
            names += batch_names or ()
        return join_verdicts(verdicts, names)

    def batches(self, data: Any) -> Iterable[Any]:
        """Return batches of any data that :meth:`fit` accepts, prepared as in ``fit`` and without labels."""
        preparation = replace(self.loading, workers=None)  # they apply to sources only
        return preparation.batches(data, labels=False, dtype=weights_dtype(self.model))

    def _stream(self, data: Any) -> Iterator[Streamed]:
        """Prepare data as in :meth:`fit` and run it through the model in batches."""
        if is_batch(data):
            return iter([Streamed(self.network(data), None)])
        return run_batches(self.network, self.batches(data), self.loading)

    def plot(self, data: Any = None) -> Figure:
        """Return a figure with the scores of new inputs beside those of the calibration inputs, and the threshold.

        Args:
            data: A verdict, or inputs as in a call. By default the calibration alone is drawn.
        """
        from .plot import plot_scores  # late: matplotlib is slow to import

        return plot_scores(self.calibrated, data if data is None or isinstance(data, Verdict) else self(data))

    def warm_up(self, batch: Any = None) -> None:
        """Choose and prepare the runtime on some inputs of a batch, so that the next batch does not wait for it.

        By default synthetic inputs are used; if their shape is unknown, the runtime becomes torch.
        """
        self.network.warm_up(None if batch is None else split_batch(batch))

    @torch.no_grad()
    def explain(self, data: Any, names: Sequence[str] | None = None, pairs: int = 3) -> Explanations:
        """Explain the verdict on each input; see :class:`Explanation`.

        Args:
            data: As in a call.
            names: Names of the classes, in the order of the logits.
            pairs: Number of pairs of classes to include.
        """
        explanations = Explanations()
        for output, _ in self._stream(data):
            verdict, h = self.calibrated.decide(*output), output.features
            explanations += explain(verdict, self.detector.pairs(h, pairs), names, self.detector.signs(h))
        return explanations

    def monitor(self, data: Any = None) -> Monitor:
        """Create a monitor of a stream; update it with ``monitor.add(guard(x))``.

        Args:
            data: Inputs to begin with, as in a call; memory use does not grow with their number. By default none.
        """
        monitor = Monitor.of(self.calibrated)
        for output, _ in () if data is None else self._stream(data):
            monitor.add(self.calibrated.decide(*output))
        return monitor

    def as_module(self) -> GuardModule:
        """Return model and detector as one module, for ``torch.compile``, ``torch.export`` and other runtimes."""
        self.network.check_unchanged()
        return GuardModule(self.network, self.calibrated)

    def export(self, path: Path | str, inputs: Any, *, layout: Layout | None = None, name: str = "guard") -> Parity:
        """Write model and detector as one graph for another runtime, ``.onnx`` or ``.pt2``, for batches of any size.

        Args:
            path: File to write; with a layout, a folder.
            inputs: Real inputs, any data that :meth:`fit` accepts, on which the outputs of the file must match this
                guard's before it is written.
            layout: ``"triton"`` adds the model ``name``, or its next version, to the Triton model repository ``path``;
                ``"mlflow"`` makes ``path`` an MLflow model.
            name: Name of the model in a Triton repository.

        Returns:
            The numerical errors of the file; see :func:`flatfold.scoring.export.export`.
        """
        from .export import export  # late: torch.export is slow to import

        return export(self, path, inputs, layout=layout, name=name)

    def save(self, path: Path | str) -> None:
        """Write the guard, without the model, to a safetensors file."""
        self.network.check_unchanged()
        save_guard(Path(path), self.network, self.calibrated, self.loading)

    @classmethod
    def load(cls, path: Path | str | GuardFile, model: nn.Module, *, loading: Loading | None = None) -> Guard:
        """Read a guard for ``model``; reject a file made for another model.

        The weights must be equal, and the features of a few synthetic inputs must agree up to rounding, to detect
        models that compute something else with the same weights.

        Args:
            path: The file.
            model: The classifier that the guard was fitted on.
            loading: Settings for loading data; what they leave out is taken from the file. Needed for raw inputs if
                the file cannot hold their preparation, such as a function ``collate``. A tokeniser that the file names
                is loaded when the first texts come, from the files of this machine.
        """
        check_model(model)
        file = path if isinstance(path, GuardFile) else read_guard(Path(path))
        if file.images is not None:
            from .dense import DenseGuard  # late: that module makes guards

            return DenseGuard(file.match(model), file.calibrated, file.images, file.complete(loading))
        return cls(file.match(model), file.calibrated, file.complete(loading))

    def __repr__(self) -> str:
        name = self.detector.method_text or type(self.detector).__name__
        return f"Guard({name}, {self.calibration.extra_repr()})"


def _number_groups(groups: Any, calibration: Any, confidence: float | None) -> Tensor:
    """Return a number for each group, ``(n,)``; raise where groups cannot be used."""
    if calibration is not None:
        raise ValueError(
            "groups= says which inputs of the data belong together, and with calibration= there would be other data. "
            "Give all of it as data: whole groups are held out to calibrate on."
        )
    if confidence is not None:
        raise ValueError(GROUPS_WITH_CONFIDENCE)
    values = np.asarray(groups.cpu() if isinstance(groups, Tensor) else groups)
    if values.ndim != 1 or values.dtype.kind not in "iubUS":
        raise ValueError(
            f"groups must be a list with a whole number or a name for each input, got {values.dtype} of shape "
            f"{values.shape}."
        )
    return torch.from_numpy(np.unique(values, return_inverse=True)[1])


def _groups_of_rows(grouping: Tensor, extracted: Extraction) -> Tensor:
    """Return the groups of the inputs that could be read."""
    rows = len(extracted.bank) + len(extracted.unreadable)
    if len(grouping) != rows:
        raise ValueError(f"groups must have one entry for each of the {rows} inputs of the data, got {len(grouping)}.")
    kept = torch.ones(rows, dtype=torch.bool)
    kept[list(extracted.unreadable)] = False
    return grouping[kept]


def _warn_if_unsteady(extracted: Extraction, execution: Execution) -> None:
    """Log a warning if the first inputs have other features when they run again, after all others."""
    network, few = extracted.network, extracted.first
    try:
        again = network.run_few(few)
    except Exception:  # a network may raise anything: this one is made for batches of another size
        return
    there = network.device if execution.device is None else torch.device(execution.device)
    before = Pass(extracted.bank.features[: few.rows], again.logits)
    if change := difference(before, again, there.type, network.device.type):
        log.warning(
            "the model gives other features for the same inputs when they run again: they differ by %.2g %% of their "
            "norm. It draws random numbers, keeps a state between calls or mixes the inputs of a batch, so no "
            "false-alarm rate can hold. Make it deterministic in evaluation mode.",
            100 * change,
        )


def _unnamed(argument: Any) -> TypeError:
    """Return the error about a third argument without a name."""
    if isinstance(argument, (str, float, type, Detector)):
        return TypeError(
            "Guard.fit takes the model and the data, and all else by name: Guard.fit(model, data, method=...)."
        )
    return TypeError(
        f"Guard.fit takes the model and the data, and all else by name, got {type(argument).__name__} as a third "
        "argument. Give labels as a pair: Guard.fit(model, (X, y))."
    )


class GuardModule(nn.Module):
    """``x -> (logits, score, p_value, is_ood)`` in plain torch; see :class:`flatfold.network.graph.HeadModule`.

    Example:
        >>> import torch
        >>> from flatfold import Guard
        >>> model, x = nn.Linear(2, 3), torch.rand(60, 2)
        >>> guard = Guard.fit(model, [x], method="msp", fpr=0.1)
        >>> torch.equal(torch.compile(guard.as_module(), backend="eager")(x).score, guard(x).score)
        True
    """

    network: HeadModule

    def __init__(self, network: Network, calibrated: CalibratedDetector) -> None:
        super().__init__()
        self.network = network.as_module()
        self.calibrated = copy_around_memory(calibrated)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Verdict:
        """Return the verdict on a batch; arguments are those of the model."""
        features, logits = self.network(*args, **kwargs)
        return Verdict(logits, *self.calibrated(features.to(self.calibrated.detector.fitted_weight.dtype), logits))

    def train(self, mode: bool = True) -> Self:
        """Ignore ``mode``: a guard always runs in evaluation mode."""
        return super().train(False)
