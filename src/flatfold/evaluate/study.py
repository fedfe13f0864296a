"""Run a curvature study: the curvature of the loss on ID and OOD images, over parameters, features and logits."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
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
from ..network.calls import evaluating
from ..network.fingerprint import weights_hash
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


class StudyParts:
    """Finished parts of a study, each under the hash of everything that it depends on."""

    def __init__(self, store: PartStore, weights: str) -> None:
        self.store, self.key = store, {"flatfold": __version__, "weights": weights}
        self.asked = self.found = 0  # parts that were needed, and those that an earlier run had finished

    def get(self, dataset: str, what: str, key: Mapping[str, str], compute: Callable[[], Part]) -> Part:
        """Return a part from its file, or compute and keep it."""
        everything = json.dumps({**self.key, "dataset": dataset, "what": what, **key})
        name = f"{what.replace(' ', '-')}-{short_key(everything)}"
        self.asked += 1
        if name in self.store:
            self.found += 1
        else:
            for _ in track((what,), f"{dataset}: {what}"):
                part = compute()
            self.store.write(name, part.tensors, {**part.info, "dataset": dataset})
        return self.store.read(name)


def measure_parameters(
    study: Study, model: nn.Module, data: DataSet, plan: Plan, settings: Settings, parts: StudyParts
) -> None:
    """Add the curvature over the parameters on one data set to a study; what is finished is not computed again."""
    asked: dict[str, Any] = {"matrix": plan.matrix, "loss": plan.loss, "seed": plan.seed}
    names = [name for name, _ in model.named_parameters()]  # frozen ones too: the loss depends on them as well
    # Images are read when a part needs them, and then kept in memory: Lanczos steps go over them again and again.
    read = cache(lambda: readable_inputs(data, settings.loading.workers))

    @cache
    def find_threads() -> int | None:
        """Look once per data set how many threads are fastest: other processes come and go during a long study."""
        if torch.device(settings.device).type != "cpu":
            return None
        few = read()[0][:FEW]
        threads = fastest_threads(lambda: multiply_once(model, few, names, plan.matrix, plan.loss))
        log.info("%s: second derivatives with %d thread%s", data.name, threads, "s" * (threads > 1))
        return threads

    def find(what: str, compute: Callable[..., Estimate | Spectrum], **options: Any) -> Part:
        def compute_part() -> Part:
            with evaluating(model, settings.device), torch_threads(find_threads()):
                result = vars(compute(model, read(), params=names, **asked, **options))
            tensors = {name: value.double() for name, value in result.items() if isinstance(value, Tensor)}
            kept = ("value", "stderr", "method", "matvecs", "size")
            return Part({name: result[name] for name in kept if name in result and name not in tensors}, tensors)

        key = {**data.key, **{name: str(value) for name, value in (asked | options).items()}}
        return parts.get(data.name, what, key, compute_part)

    largest = find("largest eigenvalue", param_lambda_max, level="dataset")
    single = find("traces of single inputs", param_trace, level="sample")
    if "stderr" in single.tensors:
        trace = find("trace", param_trace, level="dataset").info
    else:  # exact, and so is their mean
        trace = {**single.info, "value": float(single.tensors["value"].mean()), "stderr": None}
    spectrum = find("spectrum", param_spectrum, probes=plan.probes, steps=plan.steps)
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
            "when features were extracted. Restart the study to do both again."
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


def run_study(suite: Suite, out: Path, settings: Settings | None = None, **options: Any) -> Study:
    """Return the curvature on the ID test images and on every OOD data set of a suite.

    Over the parameters: the largest eigenvalue, the trace and the spectrum of the mean over the inputs, and the trace
    at every input. Over features and logits the same, all of it exact, and the largest eigenvalues at every input. All
    of it is measured on the same images; those that cannot be read are left out everywhere.

    ``out`` keeps features and every finished part, so that an interrupted study resumes; what depends on a changed
    network, image or setting is computed anew. The options are those of ``Plan``.
    """
    plan = Plan(**options)
    settings, start = settings or Settings(), perf_counter()
    suite = studied_suite(suite, plan.samples)
    banks = extract_all(suite, out / "banks", settings)
    alphas = {"none": 0.0, "partial": _choose_alpha(plan, banks), "full": 1.0}
    arrays: dict[str, dict[str, Array]] = {name: {} for name in STORED}
    study = Study(describe(suite, banks), [], [], alphas, sizes={}, provenance={}, **arrays)
    id_set = DataSet(ID, ID, suite.test, banks.unreadable.get("test", {}))
    ood_sets = [DataSet(o.name, o.group, o.images, banks.unreadable.get(o.name, {})) for o in suite.ood]
    with PartStore(out / PARTS, {"kind": "curvature"}) as store:
        parts = StudyParts(store, weights_hash(suite.model))
        for data in track([id_set, *ood_sets], "data sets"):
            measure_parameters(study, suite.model, data, plan, settings, parts)
            features = FeatureCurvature(banks.test_sets[data.name], banks.head)
            for space in ("feature", "logit"):
                features.measure(study, space, data.name, data.group)
            for name, alpha in alphas.items():
                key = {**data.key, "alpha": repr(alpha)}
                part = parts.get(data.name, "eigenvalues of single inputs", key, partial(features.eigenvalues, alpha))
                study.eigenvalues[f"{name}/{data.name}"] = part.tensors["eigenvalues"].numpy()
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


def forget_study(suite: Suite, out: Path, samples: int) -> None:
    """Remove what earlier studies of a suite kept in a folder: finished parts, and features of the same images."""
    PartStore(out / PARTS, {}, restart=True).remove()
    wanted = {source.fingerprint for source in studied_suite(suite, samples).sources.values()}
    for manifest in out.glob("banks/*/manifest.json"):
        if read_manifest(manifest.parent).key.get("data") in wanted:
            PartStore(manifest.parent, {}, restart=True).remove()


def _choose_alpha(plan: Plan, banks: Banks) -> float:
    """Return the exponent that was given, or AutoFold's choice on the validation data."""
    if plan.alpha is not None:
        return float(plan.alpha)
    try:
        with logged_warnings("autofold"):
            return round(AutoFold().fit(banks.val, banks.head).alpha_.item(), 6)
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
