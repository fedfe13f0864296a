"""What a reader must know of a run: what was judged, and where the numbers come from."""

import os
import platform
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..models.identity import weights_hash
from .banks import Banks, accuracy, accuracy_fits
from .settings import Settings
from .suites.suite import Suite


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
