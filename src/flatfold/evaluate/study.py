"""Run a curvature study: how sharply the loss bends on known and on unknown images, over parameters and features."""

import logging
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from ..core.intervals import Influence, auroc_influence, interval, mean_influence
from ..curvature.estimate import Loss, Matrix
from ..detectors.autofold import AutoFold
from ..io.progress import track
from ..io.store import read_manifest
from ..models.fingerprint import weights_hash
from .banks import Banks, Settings, extract_all
from .results import ID
from .runner import describe, provenance
from .study_measure import (
    Array,
    DataSet,
    FeatureCurvature,
    Measured,
    ParameterCurvature,
    Part,
    Parts,
    Plan,
    forget_parts,
    studied,
)
from .study_results import Detection, Space, Study
from .suites.suite import OodSet, Suite

# Which exponent of partial normalisation a study takes.


log = logging.getLogger(__name__)


def chosen_alpha(plan: Plan, banks: Banks) -> float:
    """Return the exponent that was given, or AutoFold's choice on the validation data."""
    if plan.alpha is not None:
        return float(plan.alpha)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            chosen = AutoFold().fit(banks.val, banks.head).alpha_.item()
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"AutoFold cannot choose an exponent here: {error} Or give one, --alpha, between 0 and 1."
            ) from error
    for warning in caught:
        log.warning("autofold: %s", warning.message)
    return round(chosen, 6)


# Traces of single inputs as detectors: how well each tells unknown data sets from the known one.


def detections(space: Space, alpha: float, traces: Mapping[str, Array], ood: Sequence[OodSet]) -> list[Detection]:
    """Return the AUROC on every unknown data set and its mean over near, far and all of them, with 95 % intervals.

    Args:
        space: Whose traces.
        alpha: At which exponent of partial normalisation.
        traces: Of single inputs by data set, ``id`` for the known test images. Higher counts as more unknown.
        ood: The unknown data sets.
    """
    influences = {each.name: auroc_influence(traces[ID], traces[each.name]) for each in ood}
    columns = dict(influences)
    for group in ("near", "far", "all"):
        members = [influences[each.name] for each in ood if group in (each.group, "all")]
        if members:
            columns[group] = mean_influence(members)
    return [_detection(space, alpha, name, influence) for name, influence in columns.items()]


def _detection(space: Space, alpha: float, dataset: str, found: Influence) -> Detection:
    low, high = interval(found.auroc, found.stderr, found.pairs, found.pairs)
    return Detection(space, alpha, dataset, found.auroc, low, high)


# Where the figures of a study come from.


def study_provenance(
    suite: Suite, plan: Plan, settings: Settings, alpha: float, parts: Parts, seconds: float
) -> dict[str, Any]:
    """Return where the figures come from: what a benchmark tells, and what was asked for.

    Args:
        suite: What was studied.
        plan: What was asked for.
        settings: How the network was run.
        alpha: The exponent that was taken.
        parts: What was computed. Where an earlier run had finished some of it, the time says so.
        seconds: How long it took.
    """
    about = provenance(suite, settings, seconds)
    del about["bootstrap"]  # nothing is drawn again
    if parts.found:
        about["seconds"] = f"{about['seconds']}, with {parts.found} of {parts.asked} parts from an earlier run"
    asked = {name: getattr(plan, name) for name in ("samples", "matrix", "loss", "probes", "steps")}
    chosen = "AutoFold's choice" if plan.alpha is None else "given"
    return {**about, **asked, "seed of the probes": plan.seed, "alpha": f"{alpha:g}, {chosen}"}


PARTS = "curvature"  # folder of what is finished


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
    """Return the curvature on the known test images and on every unknown data set of a suite.

    Over the parameters: the largest eigenvalue, the trace and the spectrum of the mean over the inputs, and the trace
    at every input. Over features and logits the same, all of it exact, and the largest eigenvalues at every input. All
    of it on the very same images; those that cannot be read are left out everywhere.

    Args:
        suite: Network and data.
        out: Folder under which features and every finished part are kept, so that an interrupted study goes on where
            it stopped. A changed network, image or setting is computed anew.
        settings: How to run the network and read the images.
        samples: As in ``Plan``.
        matrix: As in ``Plan``.
        loss: As in ``Plan``.
        probes: As in ``Plan``.
        steps: As in ``Plan``.
        alpha: As in ``Plan``.
        seed: As in ``Plan``.

    Raises:
        ValueError: The plan cannot be, AutoFold cannot choose an exponent, or the data changed on the way.
    """
    plan = Plan(samples, matrix, loss, probes, steps, alpha, seed)
    settings, start = settings or Settings(), perf_counter()
    suite = studied(suite, plan.samples)
    banks = extract_all(suite, out / "banks", settings)
    alphas = {"none": 0.0, "partial": chosen_alpha(plan, banks), "full": 1.0}
    parts = Parts(out / PARTS, {"weights": weights_hash(suite.model)})
    measured: dict[str, dict[Space, Measured]] = {}
    eigenvalues: dict[str, Array] = {}
    for data in track(_data_sets(suite, banks), "data sets"):
        features = FeatureCurvature(banks.judged[data.name], banks.head)
        measured[data.name] = {
            "parameter": ParameterCurvature(suite.model, data, plan, settings, parts).measure(),
            "feature": features.measure("feature", data.name, data.group),
            "logit": features.measure("logit", data.name, data.group),
        }
        eigenvalues |= _eigenvalues(features, data, alphas, parts)
    found = _detections(suite, banks, measured, alphas["partial"])
    about = study_provenance(suite, plan, settings, alphas["partial"], parts, perf_counter() - start)
    return _study(describe(suite, banks), measured, found, alphas, eigenvalues, about)


def _study(
    suite: dict[str, Any],
    measured: Mapping[str, Mapping[Space, Measured]],
    found: list[Detection],
    alphas: dict[str, float],
    eigenvalues: dict[str, Array],
    about: dict[str, Any],
) -> Study:
    flat = {f"{space}/{name}": each for name, spaces in measured.items() for space, each in spaces.items()}
    drawn = {key: each for key, each in flat.items() if not key.startswith("logit/")}
    sizes = {space: each.size for space, each in measured[ID].items()}
    return Study(
        suite={**suite, "n_parameters": sizes["parameter"]},
        statistics=[statistic for each in flat.values() for statistic in each.statistics],
        detections=found,
        alphas=alphas,
        traces={key: each.traces for key, each in flat.items()},
        trace_stderr={key: each.stderr for key, each in flat.items() if each.stderr is not None},
        nodes={key: each.nodes for key, each in drawn.items()},
        weights={key: each.weights for key, each in drawn.items()},
        sizes={str(space): size for space, size in sizes.items()},
        eigenvalues=eigenvalues,
        provenance=about,
    )


def _data_sets(suite: Suite, banks: Banks) -> list[DataSet]:
    """Return what is measured, the known test images first."""
    known = DataSet(ID, ID, suite.test, banks.unreadable.get("test", {}))
    return [known, *(DataSet(o.name, o.group, o.images, banks.unreadable.get(o.name, {})) for o in suite.ood)]


def _eigenvalues(
    features: FeatureCurvature, data: DataSet, alphas: Mapping[str, float], parts: Parts
) -> dict[str, Array]:
    """Return the largest eigenvalues at every input of a data set for every exponent."""
    found = {}
    for name, alpha in alphas.items():

        def compute(alpha: float = alpha) -> Part:
            return Part(arrays={"eigenvalues": features.eigenvalues(alpha)})

        part = parts.get((data.name, "eigenvalues of single inputs"), {**data.key, "alpha": repr(alpha)}, compute)
        found[f"{name}/{data.name}"] = part.arrays["eigenvalues"]
    return found


def _detections(
    suite: Suite, banks: Banks, measured: Mapping[str, Mapping[Space, Measured]], alpha: float
) -> list[Detection]:
    """Return the traces as detectors: as they are, and over features and logits with the exponent too."""
    found = []
    for space in measured[ID]:
        raw = {name: spaces[space].traces for name, spaces in measured.items()}
        found += detections(space, 0.0, raw, suite.ood)
        if space != "parameter" and alpha > 0:
            at = {name: FeatureCurvature(bank, banks.head).traces(space, alpha) for name, bank in banks.judged.items()}
            found += detections(space, alpha, at, suite.ood)
    return found


def forget_study(suite: Suite, out: Path, samples: int) -> None:
    """Remove what earlier studies of a suite kept in a folder: finished parts, and features of the same images."""
    forget_parts(out / PARTS)
    wanted = {source.fingerprint for source in studied(suite, samples).sources.values()}
    for manifest in out.glob("banks/*/manifest.json"):
        if read_manifest(manifest.parent).key.get("data") in wanted:
            shutil.rmtree(manifest.parent)
