"""Run a curvature study: the curvature of the loss on ID and OOD images, over parameters, features and logits."""

import logging
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ..core.intervals import auroc_influence, interval, mean_influence
from ..curvature.estimate import Loss, Matrix
from ..detectors.autofold import AutoFold
from ..io.progress import track
from ..io.store import Part, PartStore, read_manifest
from ..models.sources import ImageSource
from .banks import Banks, Settings, extract_all
from .results import ID
from .runner import describe, provenance
from .study_measure import Array, DataSet, FeatureCurvature, Measured, ParameterCurvature, Plan, StudyParts
from .study_results import Detection, Space, Study
from .suites.library import limit_suite
from .suites.suite import OodSet, Suite

PARTS = "curvature"  # folder of what is finished

log = logging.getLogger(__name__)


def run_study(
    suite: Suite,
    out: Path,
    settings: Settings | None = None,
    *,
    samples: int = 500,
    matrix: Matrix = "hessian",
    loss: Loss = "energy",
    probes: int = 4,
    steps: int = 16,
    alpha: float | None = None,
    seed: int = 0,
) -> Study:
    """Return the curvature on the ID test images and on every OOD data set of a suite.

    Over the parameters: the largest eigenvalue, the trace and the spectrum of the mean over the inputs, and the trace
    at every input. Over features and logits the same, all of it exact, and the largest eigenvalues at every input. All
    of it is measured on the same images; those that cannot be read are left out everywhere.

    ``out`` keeps features and every finished part, so that an interrupted study resumes; what depends on a changed
    network, image or setting is computed anew. The other arguments are those of ``Plan``.
    """
    plan = Plan(samples, matrix, loss, probes, steps, alpha, seed)
    settings, start = settings or Settings(), perf_counter()
    suite = studied_suite(suite, plan.samples)
    banks = extract_all(suite, out / "banks", settings)
    alphas = {"none": 0.0, "partial": _choose_alpha(plan, banks), "full": 1.0}
    measured: dict[str, dict[Space, Measured]] = {}
    eigenvalues: dict[str, Array] = {}
    id_set = DataSet(ID, ID, suite.test, banks.unreadable.get("test", {}))
    ood_sets = [DataSet(o.name, o.group, o.images, banks.unreadable.get(o.name, {})) for o in suite.ood]
    with StudyParts(out / PARTS, banks.weights) as parts:
        for data in track([id_set, *ood_sets], "data sets"):
            features = FeatureCurvature(banks.test_sets[data.name], banks.head)
            measured[data.name] = {
                "parameter": ParameterCurvature(suite.model, data, plan, settings, parts).measure(),
                "feature": features.measure("feature", data.name, data.group),
                "logit": features.measure("logit", data.name, data.group),
            }
            eigenvalues |= _eigenvalues(features, data, alphas, parts)
    by_key = {f"{space}/{name}": it for name, spaces in measured.items() for space, it in spaces.items()}
    spectra = {key: it for key, it in by_key.items() if not key.startswith("logit/")}
    sizes = {space: it.size for space, it in measured[ID].items()}
    return Study(
        suite={**describe(suite, banks), "n_parameters": sizes["parameter"]},
        statistics=[statistic for it in by_key.values() for statistic in it.statistics],
        detections=_all_detections(suite, banks, measured, alphas["partial"]),
        alphas=alphas,
        traces={key: it.traces for key, it in by_key.items()},
        trace_stderr={key: it.stderr for key, it in by_key.items() if it.stderr is not None},
        nodes={key: it.nodes for key, it in spectra.items()},
        weights={key: it.weights for key, it in spectra.items()},
        sizes={str(space): size for space, size in sizes.items()},
        eigenvalues=eigenvalues,
        provenance=_study_provenance(
            provenance(suite, settings, perf_counter() - start, banks.weights), plan, alphas["partial"], parts
        ),
    )


def studied_suite(suite: Suite, samples: int) -> Suite:
    """Return a suite without training and OOD validation data, and at most ``samples`` images of each test set.

    All validation images stay, for AutoFold. A sentence among the deviations says what was left out.
    """
    deviations = list(suite.deviations)
    if not all(isinstance(source, ImageSource) for source in (suite.test, *(ood.images for ood in suite.ood))):
        deviations.append("the suite holds features only, so the parameters are those of the last layer alone")
    suite = replace(suite, train=None, ood_val=None, deviations=tuple(deviations))
    return limit_suite(suite, samples, keep_val=True)


def detections(space: Space, alpha: float, traces: Mapping[str, Array], ood: Sequence[OodSet]) -> list[Detection]:
    """Return the AUROC of traces on every OOD data set and its mean over near, far and all, with 95 % intervals."""
    influences = {it.name: auroc_influence(traces[ID], traces[it.name]) for it in ood}
    columns = dict(influences)
    for group in ("near", "far", "all"):
        members = [influences[it.name] for it in ood if group in (it.group, "all")]
        if members:
            columns[group] = mean_influence(members)
    return [
        Detection(space, alpha, name, it.auroc, *interval(it.auroc, it.stderr, it.pairs, it.pairs))
        for name, it in columns.items()
    ]


def forget_study(suite: Suite, out: Path, samples: int) -> None:
    """Remove what earlier studies of a suite kept in a folder: finished parts, and features of the same images."""
    PartStore(out / PARTS, {}, restart=True).remove()
    wanted = {source.fingerprint for source in studied_suite(suite, samples).sources.values()}
    for manifest in out.glob("banks/*/manifest.json"):
        if read_manifest(manifest.parent).key.get("data") in wanted:
            shutil.rmtree(manifest.parent)


def _choose_alpha(plan: Plan, banks: Banks) -> float:
    """Return the exponent that was given, or AutoFold's choice on the validation data."""
    if plan.alpha is not None:
        return float(plan.alpha)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            alpha = AutoFold().fit(banks.val, banks.head).alpha_.item()
        except (TypeError, ValueError) as error:
            raise ValueError(f"AutoFold cannot choose an exponent: {error} Or give one, --alpha, 0 to 1.") from error
    for warning in caught:
        log.warning("autofold: %s", warning.message)
    return round(alpha, 6)


def _eigenvalues(
    features: FeatureCurvature, data: DataSet, alphas: Mapping[str, float], parts: StudyParts
) -> dict[str, Array]:
    """Return the largest eigenvalues at every input of a data set for every exponent."""
    arrays = {}
    for name, alpha in alphas.items():

        def compute(alpha: float = alpha) -> Part:
            return Part({}, {"eigenvalues": features.eigenvalues(alpha)})

        part = parts.get(data.name, "eigenvalues of single inputs", {**data.key, "alpha": repr(alpha)}, compute)
        arrays[f"{name}/{data.name}"] = part.tensors["eigenvalues"].numpy()
    return arrays


def _all_detections(
    suite: Suite, banks: Banks, measured: Mapping[str, Mapping[Space, Measured]], alpha: float
) -> list[Detection]:
    """Return the traces as detectors: at alpha = 0, and over features and logits also at the exponent."""
    rows = []
    for space in measured[ID]:
        rows += detections(space, 0.0, {name: spaces[space].traces for name, spaces in measured.items()}, suite.ood)
        if space != "parameter" and alpha > 0:
            at = {
                name: FeatureCurvature(bank, banks.head).traces(space, alpha) for name, bank in banks.test_sets.items()
            }
            rows += detections(space, alpha, at, suite.ood)
    return rows


def _study_provenance(facts: dict[str, Any], plan: Plan, alpha: float, parts: StudyParts) -> dict[str, Any]:
    """Return where the figures come from: as for a benchmark, and the plan."""
    del facts["bootstrap"]  # there is none
    if parts.found:
        facts["seconds"] = f"{facts['seconds']}, with {parts.found} of {parts.asked} parts from an earlier run"
    asked = {name: getattr(plan, name) for name in ("samples", "matrix", "loss", "probes", "steps")}
    chosen = "AutoFold's choice" if plan.alpha is None else "given"
    return {**facts, **asked, "seed of the probes": plan.seed, "alpha": f"{alpha:g}, {chosen}"}
