"""Run a curvature study: how sharply the loss bends on known and on unknown images, over parameters and features."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from ...curvature.estimate import Loss, Matrix
from ...models.identity import weights_hash
from ...models.manifest import read_manifest
from ...progress import track
from ..banks import Banks, extract_all
from ..record import describe
from ..results import ID
from ..settings import Settings
from ..suites.suite import Suite
from .alpha import chosen_alpha
from .detection import detections
from .features import FeatureCurvature
from .files import Study
from .measured import Array, DataSet, Measured
from .parameters import ParameterCurvature
from .parts import Part, Parts, forget_parts
from .plan import Plan, studied
from .record import study_provenance
from .rows import Detection, Space

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
        key = read_manifest(manifest.parent).key
        if key is not None and key.get("data") in wanted:  # a bank of one's own has none
            shutil.rmtree(manifest.parent)
