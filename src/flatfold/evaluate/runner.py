"""Run a suite: extract every data set once, then fit and judge each method on the features."""

import hashlib
import logging
import platform
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from ..core.bank import FeatureBank
from ..core.head import Head
from ..core.ranking import auroc
from ..detectors import create, get_method, hyperparameters
from ..detectors.autofold import AutoFold
from ..detectors.base import Detector
from ..detectors.shaped import Shaped
from ..models.extract import extract
from ..models.identity import weights_hash
from ..progress import track
from .results import ID, AlphaCurve, Results
from .rows import MethodRun, averages, make_row
from .suite import Suite

log = logging.getLogger(__name__)

TIMED_ROUNDS = 5  # each method scores everything this often; the median counts


@dataclass(frozen=True)
class Banks:
    """The features of every data set of a suite, each extracted once."""

    head: Head
    train: FeatureBank
    val: FeatureBank
    test: FeatureBank
    ood: dict[str, FeatureBank]

    @property
    def judged(self) -> dict[str, FeatureBank]:
        """The banks that are scored: the in-distribution test data first."""
        return {ID: self.test, **self.ood}


def run(suite: Suite, names: Sequence[str], out: Path, device: str = "cpu") -> Results:
    """Return the results of some methods on a suite.

    Args:
        suite: Network and data.
        names: Methods, by their names in the registry; a name that comes twice is run once.
        out: Folder under which the features are kept, so that an interrupted run goes on where it stopped.
        device: Any torch device string.
    """
    names = list(dict.fromkeys(names))
    if not names:
        raise ValueError("a benchmark needs at least one method, got none. `flatfold methods` lists them.")
    for name in names:
        get_method(name)  # a misspelt name is told before the network runs
    start = perf_counter()
    banks = extract_all(suite, out / "banks", device)
    run_method("fold", banks)  # a rehearsal: whoever comes first would pay for torch's own start
    runs, curves, scores = [], [], {}
    for name in track(names, "fitting and scoring"):
        detector, method_run, mine = run_method(name, banks)
        runs.append(method_run)
        scores.update({f"{name}/{dataset}": values for dataset, values in mine.items()})
        curve = alpha_curve(name, detector, banks)
        if curve is not None:
            curves.append(curve)
    rows = [
        make_row(name, ood.name, ood.group, scores[f"{name}/{ID}"], scores[f"{name}/{ood.name}"])
        for name in names
        for ood in suite.ood
    ]
    return Results(
        suite=describe(suite, banks),
        methods=runs,
        rows=rows,
        averages=averages(rows),
        alpha_curves=curves,
        provenance=provenance(suite, device, perf_counter() - start),
        scores=scores,
    )


def extract_all(suite: Suite, folder: Path, device: str = "cpu") -> Banks:
    """Return the features of every data set, from ``folder`` where they are there already.

    Each bank lies under a name that holds the weights and the data, so that those of another network never get in the
    way.
    """
    splits = {"train": suite.train, "val": suite.val, "test": suite.test}
    sources = splits | {ood.name: ood.images for ood in suite.ood}
    weights = weights_hash(suite.model)
    banks = {}
    for name, images in sources.items():
        key = hashlib.sha256(f"{weights} {images.fingerprint}".encode()).hexdigest()[:16]
        banks[name], head = extract(suite.model, images, device=device, out=folder / f"{name}-{key}")
    log.info("features of %d images from the input of %r", sum(map(len, banks.values())), head)
    ood = {ood.name: banks[ood.name] for ood in suite.ood}
    return Banks(head, banks["train"], banks["val"], banks["test"], ood)


def run_method(name: str, banks: Banks) -> tuple[Detector, MethodRun, dict[str, Any]]:
    """Fit one method, score every data set with it, and note how long that took."""
    method = get_method(name)
    bank = banks.train if method.fits_on == "train" else banks.val
    start = perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        detector = create(name).fit(bank, banks.head).eval()
    fitted = perf_counter()
    with torch.no_grad():
        rounds = [_scored(detector, banks) for _ in range(TIMED_ROUNDS)]
    scores, seconds = rounds[0][0], median(seconds for _, seconds in rounds)
    notes = [str(warning.message) for warning in caught]
    for note in notes:
        log.warning("%s: %s", name, note)
    method_run = MethodRun(
        method=name,
        hyper=hyperparameters(name),
        fits_on=method.fits_on,
        tuned_on=method.tuned_on,
        fit_seconds=fitted - start,
        microseconds_per_sample=1e6 * seconds / sum(map(len, scores.values())),
        learnt=learnt_numbers(detector),
        warnings=notes,
    )
    return detector, method_run, scores


def _scored(detector: Detector, banks: Banks) -> tuple[dict[str, Any], float]:
    """Return the scores of every data set and the seconds they took."""
    start = perf_counter()
    scores = {dataset: detector(bank.features).numpy() for dataset, bank in banks.judged.items()}
    return scores, perf_counter() - start


def learnt_numbers(detector: Detector) -> dict[str, float]:
    """Return the single numbers that ``fit`` learnt, such as ``alpha_`` and ``threshold_``."""
    buffers = {name.rpartition(".")[2]: buffer for name, buffer in detector.named_buffers()}
    return {
        name: round(buffer.item(), 6) for name, buffer in buffers.items() if name.endswith("_") and buffer.ndim == 0
    }


def alpha_curve(name: str, detector: Detector, banks: Banks) -> AlphaCurve | None:
    """Return the curve of an AutoFold beside the AUROC that each exponent would really have given."""
    if isinstance(detector, Shaped):
        inner = detector.detector
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
        "about": suite.about,
        "n_classes": banks.head.n_classes,
        "n_features": banks.head.width,
        "accuracy": accuracy(banks.test, banks.head),
        "n_train": len(banks.train),
        "n_val": len(banks.val),
        "n_test": len(banks.test),
        "ood": [
            {"name": ood.name, "group": ood.group, "n": len(banks.ood[ood.name]), "about": ood.about}
            for ood in suite.ood
        ],
    }


def accuracy(bank: FeatureBank, head: Head) -> float:
    """Return the share of a labelled bank that the head classifies correctly."""
    if bank.labels is None:
        raise ValueError("accuracy needs labels, but this bank has none. Give FeatureBank(features, labels).")
    hits: Tensor = head(bank.features).argmax(dim=-1) == bank.labels
    return float(hits.double().mean())


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
