"""Run a suite: extract every data set once, then fit and judge each method on the features."""

import logging
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..core.ranking import auroc
from ..detectors.autofold import AutoFold
from ..detectors.base import Detector
from ..detectors.inputs import InputDetector
from ..detectors.joint import Joint
from ..detectors.shaped import Shaped
from ..progress import track
from .banks import Banks, accuracy, extract_all
from .judge import judge
from .results import ID, AlphaCurve, Results
from .rows import averages, make_row
from .spec import Spec, parse_spec
from .suite import Suite

log = logging.getLogger(__name__)


def run(suite: Suite, methods: Sequence[str | Spec], out: Path, device: str = "cpu") -> Results:
    """Return the results of some methods on a suite.

    A method that refuses the data, such as ASH with negative features, is left out with its reason, unless it is the
    only one.

    Args:
        suite: Network and data.
        methods: As on the command line: ``"knn"``, ``"knn:k=10"``, ``"knn@ood"``. One that comes twice is run once.
        out: Folder under which the features are kept, so that an interrupted run goes on where it stopped.
        device: Any torch device string.
    """
    specs = checked_specs(methods, suite)
    start = perf_counter()
    banks = extract_all(suite, out / "banks", device, tuning=any(spec.tune == "ood" for spec in specs))
    judge(Spec("fold"), suite, banks, out)  # a rehearsal: whoever comes first would pay for torch's own start
    done, curves, scores, refused = [], [], {}, {}
    for spec in track(specs, "fitting and scoring"):
        try:
            judged = judge(spec, suite, banks, out / "scores", device)
        except Exception as error:  # whatever one method stumbles over, the others are judged
            refused[spec.label] = _reason(error)
            log.warning("%s is left out: %s", spec.label, refused[spec.label])
            continue
        done.append(judged.run)
        scores.update({f"{spec.label}/{dataset}": values for dataset, values in judged.scores.items()})
        curve = alpha_curve(spec.label, judged.detector, banks)
        if curve is not None:
            curves.append(curve)
    if not done:
        raise ValueError("; ".join(f"{label}: {reason}" for label, reason in refused.items()))
    rows = [
        make_row(
            m.method, m.tuned_on, ood.name, ood.group, scores[f"{m.method}/{ID}"], scores[f"{m.method}/{ood.name}"]
        )
        for m in done
        for ood in suite.ood
    ]
    return Results(
        suite=describe(suite, banks),
        methods=done,
        refused=refused,
        rows=rows,
        averages=averages(rows),
        alpha_curves=curves,
        provenance=provenance(suite, device, perf_counter() - start),
        scores=scores,
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


def describe(suite: Suite, banks: Banks) -> dict[str, Any]:
    """Return what a reader must know of the suite: data sets, sizes, the network's accuracy."""
    return {
        "name": suite.name,
        "network": suite.network,
        "about": suite.about,
        "n_classes": banks.head.n_classes,
        "n_features": banks.head.width,
        "accuracy": accuracy(banks.test, banks.head),
        "n_train": len(banks.train),
        "n_val": len(banks.val),
        "n_test": len(banks.test),
        "n_ood_val": 0 if suite.ood_val is None else suite.ood_val.rows,
        "ood": [
            {"name": ood.name, "group": ood.group, "n": len(banks.ood[ood.name]), "about": ood.about}
            for ood in suite.ood
        ],
    }


def provenance(suite: Suite, device: str, seconds: float) -> dict[str, Any]:
    """Return where the numbers come from."""
    return {
        "flatfold": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "device": device,
        "seed": suite.seed,
        "command": " ".join(["flatfold", *sys.argv[1:]]),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
    }
