"""Run a curvature study: the curvature of the loss on ID and OOD images, over parameters, features and logits."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import __version__
from ..core.bank import FeatureBank, Head
from ..core.hessian import row_chunks, widen
from ..core.intervals import interval
from ..core.shaping import check_alpha, rescaled_logits, row_norms
from ..curvature.eigenvalues import param_lambda_max, param_spectrum
from ..curvature.estimate import LOSSES, MATRICES, Estimate, Loss, Matrix, Spectrum
from ..curvature.features import (
    feature_eigenvalues,
    feature_shares,
    feature_spectrum,
    feature_trace,
    logit_spectrum,
    logit_trace,
)
from ..curvature.operators import multiply_once
from ..curvature.trace import param_trace
from ..data.sources import ImageSource, Source, read_batches
from ..detectors.autofold import AutoFold
from ..io.cores import fastest_threads, torch_threads
from ..io.progress import track
from ..io.store import Part, PartStore, read_manifest
from ..network.calls import evaluating, usable_device
from ..network.execution import Execution
from ..network.fingerprint import weights_hash
from ..passes.passes import Job, run, session
from .banks import Banks, Settings, extract_all, short_key
from .compare import column_influence
from .methods import logged_warnings
from .results import ID, columns_of
from .runner import describe, provenance
from .study_results import SPACES, STORED, Detection, Name, Space, Statistic, Study
from .suites.library import limit_suite
from .suites.suite import Suite

PARTS = "curvature"  # folder of what is finished
TOP = 50  # eigenvalues of single inputs, as in the paper's figure
ROWS = 1024  # of features at once
LARGEST, SINGLE, TRACE, SPECTRUM = "largest eigenvalue", "traces of single inputs", "trace", "spectrum"
SPACES_OF_FEATURES: tuple[Space, ...] = ("feature", "logit")
FEW = 8  # inputs on which numbers of threads are tried

log = logging.getLogger(__name__)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """The settings of a curvature study."""

    samples: int = 500  # most images of each data set
    matrix: Matrix = "hessian"  # over the parameters, as the loss
    loss: Loss = "energy"
    probes: int = 4  # random vectors for the spectrum over the parameters
    steps: int = 16  # of Lanczos from each
    alpha: float | None = None  # exponent of partial normalisation; None lets AutoFold choose on the validation data
    seed: int = 0  # of the random vectors; the images do not depend on it

    def __post_init__(self) -> None:
        if self.matrix not in MATRICES:
            raise ValueError(f"matrix must be one of {', '.join(MATRICES)}, got {self.matrix!r}.")
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be energy or ce_pred, got {self.loss!r}.")
        if self.loss == "ce":
            raise ValueError("the loss ce needs labels, and OOD images have none. Use energy or ce_pred.")
        if self.alpha is not None:
            check_alpha(self.alpha)


@dataclass(frozen=True)
class DataSet:
    """A data set whose curvature is measured; images in ``left_out`` have no features, as they cannot be read."""

    name: str
    group: str
    source: Source
    left_out: Mapping[int, str]

    @property
    def rows(self) -> int:
        """How many images have features."""
        return self.source.rows - len(self.left_out)

    @property
    def key(self) -> dict[str, str]:
        """What distinguishes its images from others."""
        return {"data": self.source.fingerprint, "left_out": repr(sorted(self.left_out))}


@dataclass(frozen=True)
class Quantity:
    """A quantity over the parameters on one data set, and the function that computes it."""

    dataset: str
    what: str
    compute: Callable[..., Estimate | Spectrum]
    options: dict[str, Any]


Loaded = dict[str, tuple[list[Tensor], int | None]]
"""The images of a data set that are in memory, and the number of threads to compute with, None for that of torch."""


@dataclass(frozen=True)
class ParameterCurvature(Job):
    """The curvature over the parameters of a model; each part is one quantity on one data set."""

    model: nn.Module
    data: Mapping[str, DataSet]
    plan: Plan
    settings: Settings
    title: str = "curvature over the parameters"

    @property
    def asked(self) -> dict[str, Any]:
        """What all quantities have in common."""
        return {"matrix": self.plan.matrix, "loss": self.plan.loss, "seed": self.plan.seed}

    def quantities(self, dataset: str) -> list[Quantity]:
        """Return the quantities that are always computed on a data set."""
        return [
            Quantity(dataset, LARGEST, param_lambda_max, {"level": "dataset"}),
            Quantity(dataset, SINGLE, param_trace, {"level": "sample"}),
            Quantity(dataset, SPECTRUM, param_spectrum, {"probes": self.plan.probes, "steps": self.plan.steps}),
        ]

    def trace(self, dataset: str) -> Quantity:
        """Return the trace on a data set, for models whose traces at single inputs are estimates."""
        return Quantity(dataset, TRACE, param_trace, {"level": "dataset"})

    def key(self, quantity: Quantity) -> dict[str, str]:
        """Return everything that a quantity depends on, apart from the model."""
        return {**self.data[quantity.dataset].key, **{k: str(v) for k, v in (self.asked | quantity.options).items()}}

    def load(self, rows: int | None = None) -> Loaded:
        """Return the store of the images that are in memory; a worker moves its copy of the model to its device."""
        if self.settings.execution.distributed:
            self.model.eval().to(usable_device(self.settings.execution.device or "cpu"))
        return {}

    def part(self, loaded: Loaded, which: Quantity) -> Part:
        """Return a quantity with its error, and the single values or eigenvalues it has."""
        names = [name for name, _ in self.model.named_parameters()]  # frozen ones too: the loss depends on them as well
        device = None if self.settings.execution.distributed else self.settings.device
        with evaluating(self.model, device):
            if which.dataset not in loaded:  # kept in memory, since Lanczos steps go over them again and again
                loaded.clear()
                inputs = readable_inputs(self.data[which.dataset], self.settings.loading.workers)
                here = device is not None and torch.device(device).type == "cpu"
                threads = self._find_threads(which.dataset, inputs[0][:FEW], names) if here else None
                loaded[which.dataset] = inputs, threads
            inputs, threads = loaded[which.dataset]
            with torch_threads(threads):
                result = vars(which.compute(self.model, inputs, params=names, **self.asked, **which.options))
        tensors = {name: value.double() for name, value in result.items() if isinstance(value, Tensor)}
        kept = ("value", "stderr", "method", "matvecs", "size")
        return Part({name: result[name] for name in kept if name in result and name not in tensors}, tensors)

    def _find_threads(self, dataset: str, few: Tensor, names: list[str]) -> int:
        """Look once per data set how many threads are fastest: other processes come and go during a long study."""
        threads = fastest_threads(lambda: multiply_once(self.model, few, names, self.plan.matrix, self.plan.loss))
        log.info("%s: second derivatives with %d thread%s", dataset, threads, "s" * (threads > 1))
        return threads


class StudyParts:
    """Finished parts of a study, each under the hash of everything that it depends on."""

    def __init__(self, store: PartStore, weights: str) -> None:
        self.store, self.key = store, {"flatfold": __version__, "weights": weights}
        self.asked = self.found = 0  # parts that were needed, and parts that an earlier run had finished

    def get(self, dataset: str, what: str, key: Mapping[str, str], compute: Callable[[], Part]) -> Part:
        """Return a part from its file, or compute and keep it."""
        name, finished = self._look(dataset, what, key)
        if not finished:
            for _ in track((what,), f"{dataset}: {what}"):
                part = compute()
            self.store.write(name, part.tensors, {**part.info, "dataset": dataset})
        return self.store.read(name)

    def compute(
        self, job: ParameterCurvature, quantities: Sequence[Quantity], execution: Execution
    ) -> dict[tuple[str, str], Part]:
        """Compute quantities that are not finished, here or elsewhere; return all by data set and name."""
        found = [(quantity, *self._look(quantity.dataset, quantity.what, job.key(quantity))) for quantity in quantities]
        missing = [(quantity, name) for quantity, name, finished in found if not finished]
        for number, part in run(job, {i: quantity for i, (quantity, _) in enumerate(missing)}, execution):
            quantity, name = missing[number]
            self.store.write(name, part.tensors, {**part.info, "dataset": quantity.dataset})
        return {(quantity.dataset, quantity.what): self.store.read(name) for quantity, name, _ in found}

    def _look(self, dataset: str, what: str, key: Mapping[str, str]) -> tuple[str, bool]:
        """Return the name of a part and whether it is finished, and count it."""
        everything = json.dumps({**self.key, "dataset": dataset, "what": what, **key})
        name = f"{what.replace(' ', '-')}-{short_key(everything)}"
        finished = name in self.store
        self.asked += 1
        self.found += finished
        return name, finished


Finished = Mapping[tuple[str, str], Part]
"""Quantities by data set and name."""


def compute_parameters(
    job: ParameterCurvature, datasets: Sequence[str], parts: StudyParts, execution: Execution
) -> Finished:
    """Return the quantities over the parameters on some data sets; finished parts are not computed again."""
    finished = parts.compute(job, [quantity for name in datasets for quantity in job.quantities(name)], execution)
    estimated = [name for name in datasets if "stderr" in finished[name, SINGLE].tensors]
    return finished | parts.compute(job, [job.trace(name) for name in estimated], execution)


def add_parameters(study: Study, data: DataSet, plan: Plan, finished: Finished) -> None:
    """Add the curvature over the parameters on one data set to a study."""
    largest, single, spectrum = (finished[data.name, what] for what in (LARGEST, SINGLE, SPECTRUM))
    if (data.name, TRACE) in finished:
        trace = finished[data.name, TRACE].info
    else:  # exact at single inputs, and so is their mean
        trace = {**single.info, "value": float(single.tensors["value"].mean()), "stderr": None}
    estimates: dict[Name, Mapping[str, Any]] = {"lambda_max": largest.info, "trace": trace}
    for name, it in estimates.items():
        about = (it["value"], it["stderr"], it["method"], plan.matrix, plan.loss, it["matvecs"], data.rows)
        study.statistics.append(Statistic(data.name, data.group, "parameter", name, *about))
    key = f"parameter/{data.name}"
    study.traces[key] = single.tensors["value"].numpy()
    if "shares" in largest.tensors:
        study.top_shares[key] = largest.tensors["shares"].numpy()
    if "stderr" in single.tensors:
        study.trace_stderr[key] = single.tensors["stderr"].numpy()
    study.nodes[key], study.weights[key] = (spectrum.tensors[name].numpy() for name in ("nodes", "weights"))
    study.sizes["parameter"] = spectrum.info["size"]


def readable_inputs(data: DataSet, workers: int | None = None) -> list[Tensor]:
    """Return the inputs that have features, in batches; raise if other images can be read than at their extraction."""
    source = data.source
    unreadable: set[int] = set()
    batches = []
    for result in read_batches(source, source.batch_ranges([range(source.rows)]), f"{data.name}: reading", workers):
        unreadable |= result.unreadable.keys()
        if result.batch is not None:
            batches.append(result.batch.first_tensor)
    if unreadable != set(data.left_out):
        raise ValueError(
            f"{data.name}: {len(unreadable)} images cannot be read, but {len(data.left_out)} or other ones could not "
            "when features were extracted. Start the study again to do both again."
        )
    return batches


class FeatureCurvature:
    r"""The curvature over the features, or the logits, of one data set; all of it is exact.

    .. math:: H = W^\top (\operatorname{diag} p - p p^\top) W, \qquad
        p = \operatorname{softmax}(W \tilde h + b), \qquad \tilde h = h / \|h\|^\alpha

    and over the logits the same without W. It is that of the energy, and of the cross-entropy with any label.
    """

    def __init__(self, bank: FeatureBank, head: Head) -> None:
        self.bank, self.head = bank, head
        self.weight, _ = widen(head.weight, bank.features[:0])

    def logits(self, alpha: float) -> Iterator[Tensor]:
        """Yield the logits of partially normalised features, ``(rows, c)`` at a time."""
        for chunk in row_chunks(len(self.bank), ROWS):
            weight, h = widen(self.head.weight, self.bank.features[chunk])
            yield rescaled_logits(h @ weight.mT, row_norms(h) ** alpha, self.head.bias)

    def traces(self, space: Space, alpha: float) -> Array:
        """Return the trace at every input, ``(n,)``."""
        chunks = (
            feature_trace(self.weight, logits) if space == "feature" else logit_trace(logits)
            for logits in self.logits(alpha)
        )
        return torch.cat([chunk.double() for chunk in chunks]).numpy()

    def eigenvalues(self, alpha: float) -> Part:
        """Return the largest feature eigenvalues at every input, largest first, ``(n, k)``, as a part of a study."""
        k = min(TOP, self.head.n_classes, self.head.width)
        chunks = [feature_eigenvalues(self.weight, logits, k=k).double() for logits in self.logits(alpha)]
        return Part({}, {"eigenvalues": torch.cat(chunks)})

    def measure(self, study: Study, space: Space, dataset: str, group: str) -> None:
        """Add largest eigenvalue, trace, traces of single inputs and, over features, spectrum at alpha = 0."""
        key, traces, logits = f"{space}/{dataset}", self.traces(space, alpha=0.0), self.logits(alpha=0.0)
        spectrum = feature_spectrum(self.weight, logits) if space == "feature" else logit_spectrum(logits)
        about = (spectrum.method, spectrum.matrix, spectrum.loss, spectrum.matvecs, len(self.bank))
        values: dict[Name, float] = {"lambda_max": spectrum.lambda_max, "trace": float(traces.mean())}
        for name, value in values.items():
            study.statistics.append(Statistic(dataset, group, space, name, value, None, *about))
        study.traces[key] = traces
        study.sizes[space] = spectrum.size
        if space == "feature":
            study.nodes[key], study.weights[key] = (x.double().numpy() for x in (spectrum.nodes, spectrum.weights))
            shares = feature_shares(self.weight, self.logits(alpha=0.0))
            study.top_shares[key], study.square_shares[key] = (share.numpy() for share in shares)


def run_study(suite: Suite, out: Path | str, settings: Settings | None = None, **options: Any) -> Study:
    """Return the curvature on the ID test images and on every OOD data set of a suite.

    Over the parameters: the largest eigenvalue, the trace and the spectrum of the mean over the inputs, and the trace
    at every input. Over features and logits the same, all of it exact, and the largest eigenvalues at every input. All
    of it is measured on the same images; unreadable ones are omitted everywhere.

    ``out`` keeps features and every finished part, so that an interrupted study resumes; what depends on a changed
    network, image or setting is computed anew. The options are those of ``Plan``.
    """
    settings = settings or Settings()
    with session(settings.execution):
        return _run_study(suite, Path(out), settings, Plan(**options))


def _run_study(suite: Suite, out: Path, settings: Settings, plan: Plan) -> Study:
    start = perf_counter()
    suite = studied_suite(suite, plan.samples)
    banks = extract_all(suite, out / "banks", settings)
    alphas = {"none": 0.0, "partial": _choose_alpha(plan, banks), "full": 1.0}
    arrays: dict[str, dict[str, Array]] = {name: {} for name in STORED}
    study = Study(describe(suite, banks), [], [], alphas, sizes={}, provenance={}, **arrays)
    id_set = DataSet(ID, ID, suite.test, banks.unreadable.get("test", {}))
    ood_sets = [DataSet(o.name, o.group, o.images, banks.unreadable.get(o.name, {})) for o in suite.ood]
    datasets = [id_set, *ood_sets]
    # On this machine one data set after the other, whose images are read once; on a cluster all at the same time.
    execution = settings.execution
    groups = [datasets] if execution.distributed else [[data] for data in datasets]
    with PartStore(out / PARTS, {"kind": "curvature"}) as store:
        parts = StudyParts(store, weights_hash(suite.model))
        job = ParameterCurvature(suite.model, {data.name: data for data in datasets}, plan, settings)
        for group in track(groups, "data sets"):
            finished = compute_parameters(job, [data.name for data in group], parts, execution)
            for data in group:
                add_parameters(study, data, plan, finished)
                _measure_features(study, data, FeatureCurvature(banks.test_sets[data.name], banks.head), parts)
    study.suite["n_parameters"] = study.sizes["parameter"]
    _add_detections(study, suite, banks)
    facts = provenance(suite, settings, perf_counter() - start)
    del facts["bootstrap"]  # there is none
    if parts.found:
        facts["seconds"] = f"{facts['seconds']}, with {parts.found} of {parts.asked} parts from an earlier run"
    facts |= {name: getattr(plan, name) for name in ("samples", "matrix", "loss", "probes", "steps")}
    chosen = "AutoFold's choice" if plan.alpha is None else "given"
    study.provenance.update(facts, **{"seed of the probes": plan.seed, "alpha": f"{alphas['partial']:g}, {chosen}"})
    return study


def _measure_features(study: Study, data: DataSet, features: FeatureCurvature, parts: StudyParts) -> None:
    """Add the curvature over features and logits on one data set to a study."""
    for space in SPACES_OF_FEATURES:
        features.measure(study, space, data.name, data.group)
    for name, alpha in study.alphas.items():
        key = {**data.key, "alpha": repr(alpha)}
        part = parts.get(data.name, "eigenvalues of single inputs", key, partial(features.eigenvalues, alpha))
        study.eigenvalues[f"{name}/{data.name}"] = part.tensors["eigenvalues"].numpy()


def studied_suite(suite: Suite, samples: int) -> Suite:
    """Return a suite with at most ``samples`` images of each test set and, for AutoFold, all validation images."""
    deviations = list(suite.deviations)
    if not all(isinstance(source, ImageSource) for source in (suite.test, *(ood.images for ood in suite.ood))):
        deviations.append("the suite holds features only, so the parameters are those of the last layer alone")
    suite = replace(suite, train=None, ood_val=None, deviations=tuple(deviations))
    return limit_suite(suite, samples)


def detections(
    space: Space, alpha: float, traces: Mapping[str, NDArray[np.floating]], groups: Mapping[str, str]
) -> list[Detection]:
    """Return the AUROC of traces on every OOD data set and its mean over near, far and all, with 95 % intervals.

    ``traces`` are keyed by space/dataset, ``groups`` by OOD data set.
    """
    rows = []
    for column, members in columns_of(groups).items():
        it = column_influence(traces, space, members)
        rows.append(Detection(space, alpha, column, it.auroc, *interval(it.auroc, it.stderr, it.pairs, it.pairs)))
    return rows


def forget_study(suite: Suite, out: Path | str, samples: int) -> None:
    """Remove what earlier studies of a suite kept in a folder: finished parts, and features of the same images."""
    PartStore(Path(out) / PARTS, {}, restart=True).remove()
    wanted = {source.fingerprint for source in studied_suite(suite, samples).sources.values()}
    for manifest in Path(out).glob("banks/*/manifest.json"):
        if read_manifest(manifest.parent).key.get("data") in wanted:
            PartStore(manifest.parent, {}, restart=True).remove()


def _choose_alpha(plan: Plan, banks: Banks) -> float:
    """Return the exponent that was given, or AutoFold's choice on the validation data."""
    if plan.alpha is not None:
        return float(plan.alpha)
    try:
        with logged_warnings("autofold"):
            return round(AutoFold().fit(banks.fitted_on("val"), banks.head).alpha_.item(), 6)
    except (TypeError, ValueError) as error:
        raise ValueError(f"AutoFold cannot choose an exponent: {error} Or give one from 0 to 1 as alpha=.") from error


def _add_detections(study: Study, suite: Suite, banks: Banks) -> None:
    """Add the traces as detectors: at alpha = 0, and over features and logits also at the exponent."""
    alpha, groups = study.alphas["partial"], {ood.name: ood.group for ood in suite.ood}
    for space in SPACES:
        study.detections.extend(detections(space, 0.0, study.traces, groups))
        if space != "parameter" and alpha > 0:
            curvatures = {name: FeatureCurvature(bank, banks.head) for name, bank in banks.test_sets.items()}
            traces = {f"{space}/{name}": it.traces(space, alpha) for name, it in curvatures.items()}
            study.detections.extend(detections(space, alpha, traces, groups))
