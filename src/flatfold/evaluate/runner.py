"""Run a suite: extract every data set once, then fit and evaluate each method on the features."""

import logging
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..core.metrics import auroc
from ..core.shaping import row_norms
from ..core.validation import MethodRefused, UnreadableImage
from ..detectors.autofold import AutoFold
from ..detectors.base import Detector, InputDetector
from ..detectors.joint import Joint
from ..detectors.shaped import Shaped
from ..io.progress import track
from ..io.store import read_manifest
from ..models.fingerprint import weights_hash
from .banks import Banks, Settings, accuracy, accuracy_fits, extract_all
from .intervals import certainty
from .methods import MethodResult, evaluate_method
from .results import ID, AlphaCurve, Average, Results, Row, averages, make_row
from .spec import Spec, parse_spec
from .suites.suite import Suite
from .worst_cases import worst_cases

log = logging.getLogger(__name__)


def run(suite: Suite, methods: Sequence[str | Spec], out: Path, settings: Settings | None = None) -> Results:
    """Return the results of some methods on a suite.

    A method that refuses the data, such as ASH with negative features, is left out with its reason. A method that fails
    in any other way is logged with its traceback and noted in ``results.failed``; the others go on. When no method is
    left, the reasons are raised.

    Args:
        suite: Network and data.
        methods: As on the command line: ``"knn"``, ``"knn:k=10"``, ``"knn@ood"``. One that comes twice is run once.
        out: Folder under which the features are kept, so that an interrupted run resumes.
        settings: How to run it.
    """
    settings = settings or Settings()
    specs = check_specs(methods, suite)
    start = perf_counter()
    banks = extract_all(suite, out / "banks", settings, tuning=any(spec.tune == "ood" for spec in specs))
    refused: dict[str, str] = {}
    failed: dict[str, str] = {}
    _try_method(
        Spec("fold"), suite, banks, out, settings, {}, {}
    )  # a warm-up, or the first method would pay for torch's start
    tried = (
        _try_method(spec, suite, banks, out / "scores", settings, refused, failed)
        for spec in track(specs, "fitting and scoring")
    )
    evaluated = [result for result in tried if result is not None]
    if not evaluated:
        raise ValueError("; ".join(f"{label}: {reason}" for label, reason in {**refused, **failed}.items()))
    rows, means = _figures(evaluated, suite, settings.replicates)
    curves = (alpha_curve(result.run.method, result.detector, banks) for result in evaluated)
    wrong, thumbnails = worst_cases(evaluated, suite, banks)
    return Results(
        suite=describe(suite, banks),
        methods=[result.run for result in evaluated],
        refused=refused,
        rows=rows,
        averages=means,
        alpha_curves=[curve for curve in curves if curve is not None],
        provenance=provenance(suite, settings, perf_counter() - start, banks.weights),
        scores=_all_scores(evaluated),
        norms={name: row_norms(bank.features).squeeze(-1).float().numpy() for name, bank in banks.test_sets.items()},
        wrong=wrong,
        thumbnails=thumbnails,
        unreadable={
            name: {str(row): reason for row, reason in reasons.items()} for name, reasons in banks.unreadable.items()
        },
        failed=failed,
    )


def check_specs(methods: Sequence[str | Spec], suite: Suite | None = None) -> list[Spec]:
    """Return the methods, each once; raise for those that cannot be run, before any network runs."""
    specs = {spec.label: spec for spec in (parse_spec(m) if isinstance(m, str) else m for m in methods)}
    if not specs:
        raise ValueError("a benchmark needs at least one method, got none. `flatfold methods` lists them.")
    for spec in specs.values():
        if spec.tune == "ood" and suite is not None and suite.ood_val is None:
            raise ValueError(
                f"{spec.label} is tuned on OOD images, but the suite {suite.name} has none for that. Add [ood_val] to "
                "its file, or tune on ID images, @id."
            )
    return list(specs.values())


def describe(suite: Suite, banks: Banks) -> dict[str, Any]:
    """Return the suite as results and pages show it: data sets, sizes, the network's accuracy."""
    share = accuracy(banks.test, banks.head)
    deviations = list(suite.deviations)
    if suite.accuracy is not None and not accuracy_fits(share, suite.accuracy, len(banks.test)):  # another network?
        deviations.append(
            f"the network is right on {100 * share:.2f} % of the test images, {suite.accuracy:g} % were expected"
        )
    deviations += [f"{len(rows)} images of {name} could not be read" for name, rows in banks.unreadable.items()]
    return {
        "name": suite.name,
        "network": suite.network,
        "about": suite.about,
        "n_classes": banks.head.n_classes,
        "n_features": banks.head.width,
        "family": suite.family,
        "architecture": suite.architecture,
        "protocol": suite.protocol,
        "classes": list(suite.classes),
        "deviations": deviations,
        "accuracy": share,
        "n_train": 0 if banks.train is None else len(banks.train),
        "n_val": len(banks.val),
        "n_test": len(banks.test),
        "n_ood_val": 0 if suite.ood_val is None else suite.ood_val.rows,
        "ood": [
            {"name": ood.name, "group": ood.group, "n": len(banks.ood[ood.name]), "about": ood.about}
            for ood in suite.ood
        ],
        "fingerprints": {name: source.fingerprint for name, source in suite.sources.items()},
    }


def provenance(suite: Suite, settings: Settings, seconds: float, weights: str | None = None) -> dict[str, Any]:
    """Return where the numbers come from: versions, machine, weights, command."""
    return {
        "flatfold": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "threads": torch.get_num_threads(),
        "device": settings.device,
        "seed": suite.seed,
        "bootstrap": settings.replicates,
        "weights, sha256": weights or weights_hash(suite.model),
        "command": settings.command,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
    }


def alpha_curve(name: str, detector: Detector | InputDetector, banks: Banks) -> AlphaCurve | None:
    """Return the criterion of an AutoFold over its grid with the true AUROC at each exponent; None for others."""
    if isinstance(detector, Joint):
        detector = detector.chosen
    features = {dataset: bank.features for dataset, bank in banks.test_sets.items()}
    if isinstance(detector, Shaped):
        features = {dataset: detector.shaping(h) for dataset, h in features.items()}
        detector = detector.detector
    if not isinstance(detector, AutoFold):
        return None
    truth: dict[str, list[float]] = {dataset: [] for dataset in banks.ood}
    for alpha in detector.grid:
        scores = {dataset: detector.fold.score_at(h, alpha) for dataset, h in features.items()}
        for dataset, values in truth.items():
            values.append(auroc(scores[ID], scores[dataset]))
    truth["all"] = np.mean(list(truth.values()), axis=0).tolist()
    return AlphaCurve(
        method=name,
        grid=list(detector.grid),
        curve=detector.curve_.tolist(),
        stderr=detector.curve_stderr_.tolist(),
        chosen=round(detector.alpha_.item(), 6),
        auroc=truth,
    )


def forget(out: Path) -> None:
    """Remove the features and scores that earlier runs kept in a folder, and nothing that somebody else put there."""
    for manifest in (*out.glob("banks/*/manifest.json"), *out.glob("scores/*/manifest.json")):
        if "data" in read_manifest(manifest.parent).key:  # a bank of one's own names none
            shutil.rmtree(manifest.parent)


def _try_method(
    spec: Spec,
    suite: Suite,
    banks: Banks,
    folder: Path,
    settings: Settings,
    refused: dict[str, str],
    failed: dict[str, str],
) -> MethodResult | None:
    """Return the result of a method, or note why there is none and let the others go on."""
    try:
        return evaluate_method(spec, suite, banks, folder, settings)
    except (MethodRefused, UnreadableImage) as error:
        refused[spec.label] = str(error)
    except Exception as error:
        log.exception("%s failed with an unexpected error", spec.label)
        failed[spec.label] = f"{type(error).__name__}: {error}"
    return None


def _all_scores(evaluated: Sequence[MethodResult]) -> dict[str, Any]:
    return {f"{it.run.method}/{dataset}": values for it in evaluated for dataset, values in it.scores.items()}


def _figures(evaluated: Sequence[MethodResult], suite: Suite, replicates: int) -> tuple[list[Row], list[Average]]:
    """Return the rows and their averages, each with its certainty."""
    rows = [
        make_row(it.run.method, it.run.tuned_on, ood.name, ood.group, it.scores[ID], it.scores[ood.name])
        for it in evaluated
        for ood in suite.ood
    ]
    means = averages(rows)
    columns: dict[str, tuple[str, ...]] = {ood.name: (ood.name,) for ood in suite.ood}
    for over in dict.fromkeys(mean.over for mean in means):
        columns[over] = tuple(ood.name for ood in suite.ood if over in (ood.group, "all"))
    labels = [result.run.method for result in evaluated]
    certain = certainty(_all_scores(evaluated), labels, columns, replicates, suite.seed)
    return (
        [replace(row, certainty=certain[row.method, row.dataset]) for row in rows],
        [replace(mean, certainty=certain[mean.method, mean.over]) for mean in means],
    )
