"""What an exported file says about itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ... import __version__

if TYPE_CHECKING:
    from ..guard import Guard


def facts(guard: Guard) -> dict[str, Any]:
    """Return where a guard's decisions come from, as plain values for JSON."""
    made_by = guard.detector.made_by or (type(guard.detector).__name__, None)
    return {
        "version": __version__,
        "detector": made_by[0],
        "hyper": made_by[1],
        "fpr": guard.fpr,
        "threshold": guard.calibration.threshold.tolist(),
        "calibration_samples": guard.calibration.samples,
        "weights_sha256": guard.weights,
        "head": guard.found.name,
        "transform": None if guard.transform is None else guard.transform.as_dict(),
    }


def as_text(value: Any) -> str:
    """Return a fact as text: words as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
