"""Run a suite: extract every data set once, then fit and judge each method on the features."""

import os
import platform
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import __version__
from ..core.metrics import auroc
from ..core.shaping import row_norms
from ..detectors.autofold import AutoFold
from ..detectors.base import Detector, InputDetector
from ..detectors.joint import Joint
from ..detectors.shaped import Shaped
from ..io.progress import track
from ..io.store import read_manifest
from ..models.fingerprint import weights_hash
from .banks import Banks, Settings, accuracy, accuracy_fits, extract_all
from .intervals import certainty
from .methods import Judged, judge
from .results import ID, AlphaCurve, Average, Results, Row, averages, make_row
from .spec import Spec, parse_spec
from .suites.suite import Suite
from .worst_cases import most_wrong

# What a reader must know of a run: what was judged, and where the numbers come from.


def describe(suite: Suite, banks: Banks) -> dict[str, Any]:
    """Return what a reader must know of the suite: data sets, sizes, the network's accuracy."""
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
        "deviations": [*suite.deviations, *_inaccurate(suite, banks), *_gaps(banks)],
        "accuracy": accuracy(banks.test, banks.head),
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


def _inaccurate(suite: Suite, banks: Banks) -> list[str]:
    """Return a sentence if the network is not as good as it should be, or better: it may be another one."""
    if suite.accuracy is None:
        return []
    found, n = accuracy(banks.test, banks.head), len(banks.test)
    if accuracy_fits(found, suite.accuracy, n):
        return []
    return [f"the network is right on {100 * found:.2f} % of the test images, {suite.accuracy:g} % were expected"]


def _gaps(banks: Banks) -> list[str]:
    return [f"{len(reasons)} images of {name} could not be read" for name, reasons in banks.unreadable.items()]


def provenance(suite: Suite, settings: Settings, seconds: float) -> dict[str, Any]:
    """Return where the numbers come from."""
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
        "weights, sha256": weights_hash(suite.model),
        "command": settings.command,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
    }


def run(suite: Suite, methods: Sequence[str | Spec], out: Path, settings: Settings | None = None) -> Results:
    """Return the results of some methods on a suite.

    A method that refuses the data, such as ASH with negative features, is left out with its reason, unless it is the
    only one.

    Args:
        suite: Network and data.
        methods: As on the command line: ``"knn"``, ``"knn:k=10"``, ``"knn@ood"``. One that comes twice is run once.
        out: Folder under which the features are kept, so that an interrupted run goes on where it stopped.
        settings: How to run it.
    """
    settings = settings or Settings()
    specs = checked_specs(methods, suite)
    start = perf_counter()
    banks = extract_all(suite, out / "banks", settings, tuning=any(spec.tune == "ood" for spec in specs))
    judged, refused = _judged(specs, suite, banks, out, settings)
    scores = {f"{each.run.method}/{dataset}": values for each in judged for dataset, values in each.scores.items()}
    rows, means = figures(judged, suite, scores, settings.replicates)
    curves = (alpha_curve(each.run.method, each.detector, banks) for each in judged)
    wrong, thumbnails = most_wrong(judged, suite, banks)
    return Results(
        suite=describe(suite, banks),
        methods=[each.run for each in judged],
        refused=refused,
        rows=rows,
        averages=means,
        alpha_curves=[curve for curve in curves if curve is not None],
        provenance=provenance(suite, settings, perf_counter() - start),
        scores=scores,
        norms={name: row_norms(bank.features).squeeze(-1).float().numpy() for name, bank in banks.judged.items()},
        wrong=wrong,
        thumbnails=thumbnails,
        unreadable={
            name: {str(row): reason for row, reason in reasons.items()} for name, reasons in banks.unreadable.items()
        },
    )


def _judged(
    specs: Sequence[Spec], suite: Suite, banks: Banks, out: Path, settings: Settings
) -> tuple[list[Judged], dict[str, str]]:
    """Return the methods with their scores, and why some have none."""
    with suppress(Exception):  # a rehearsal, or whoever comes first would pay for torch's own start
        judge(Spec("fold"), suite, banks, out, settings)
    judged, refused = [], {}
    for spec in track(specs, "fitting and scoring"):
        try:
            judged.append(judge(spec, suite, banks, out / "scores", settings))
        except Exception as error:  # whatever one method stumbles over, the others are judged
            refused[spec.label] = _reason(error)
    if not judged:
        raise ValueError("; ".join(f"{label}: {reason}" for label, reason in refused.items()))
    return judged, refused


def figures(
    judged: Sequence[Judged], suite: Suite, scores: dict[str, NDArray[np.float32]], replicates: int
) -> tuple[list[Row], list[Average]]:
    """Return the rows and their averages, each with its certainty."""
    rows = [
        make_row(each.run.method, each.run.tuned_on, ood.name, ood.group, each.scores[ID], each.scores[ood.name])
        for each in judged
        for ood in suite.ood
    ]
    means = averages(rows)
    columns: dict[str, tuple[str, ...]] = {ood.name: (ood.name,) for ood in suite.ood}
    for over in dict.fromkeys(mean.over for mean in means):
        columns[over] = tuple(ood.name for ood in suite.ood if over in (ood.group, "all"))
    certain = certainty(scores, [each.run.method for each in judged], columns, replicates, suite.seed)
    return (
        [replace(row, certainty=certain[row.method, row.dataset]) for row in rows],
        [replace(mean, certainty=certain[mean.method, mean.over]) for mean in means],
    )


def _reason(error: Exception) -> str:
    """Return a message that was written for users as it is, any other with the kind of error."""
    return str(error) if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {error}"


def checked_specs(methods: Sequence[str | Spec], suite: Suite | None = None) -> list[Spec]:
    """Return what is to be run, each once; what cannot be is told before any network runs."""
    specs = {spec.label: spec for spec in (parse_spec(m) if isinstance(m, str) else m for m in methods)}
    if not specs:
        raise ValueError("a benchmark needs at least one method, got none. `flatfold methods` lists them.")
    for spec in specs.values():
        if spec.tune == "ood" and suite is not None and suite.ood_val is None:
            raise ValueError(
                f"{spec.label} is to be tuned on unknown images, but the suite {suite.name} has none for that: its "
                "file needs an [ood_val]. Or tune it on known ones, @id."
            )
    return list(specs.values())


def alpha_curve(name: str, detector: Detector | InputDetector, banks: Banks) -> AlphaCurve | None:
    """Return the curve of an AutoFold beside the AUROC that each exponent would really have given."""
    if isinstance(detector, Joint):
        detector = detector.chosen
    if isinstance(detector, Shaped):
        inner: Detector | InputDetector = detector.detector
        features = {dataset: detector.shaping(bank.features) for dataset, bank in banks.judged.items()}
    else:
        inner = detector
        features = {dataset: bank.features for dataset, bank in banks.judged.items()}
    if not isinstance(inner, AutoFold):
        return None
    truth: dict[str, list[float]] = {dataset: [] for dataset in banks.ood}
    for alpha in inner.grid:
        scores = {dataset: inner.fold.score_at(h, alpha) for dataset, h in features.items()}
        for dataset, values in truth.items():
            values.append(auroc(scores[ID], scores[dataset]))
    truth["all"] = np.mean(list(truth.values()), axis=0).tolist()
    return AlphaCurve(
        method=name,
        grid=list(inner.grid),
        curve=inner.curve_.tolist(),
        stderr=inner.curve_stderr_.tolist(),
        chosen=round(inner.alpha_.item(), 6),
        auroc=truth,
    )


def forget(out: Path) -> None:
    """Remove the features and scores that earlier runs kept in a folder, and nothing that somebody else put there."""
    for manifest in (*out.glob("banks/*/manifest.json"), *out.glob("scores/*/manifest.json")):
        if "data" in read_manifest(manifest.parent).key:  # a bank of one's own names none
            shutil.rmtree(manifest.parent)
