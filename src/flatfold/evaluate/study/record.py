"""Where the figures of a study come from."""

from typing import Any

from ..record import provenance
from ..settings import Settings
from ..suites.suite import Suite
from .parts import Parts
from .plan import Plan


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
