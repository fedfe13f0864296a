"""Which methods belong together."""

from ..evaluate.reproduce import family
from ..evaluate.results import Results
from ..evaluate.rows import MethodRun


def in_family(run: MethodRun) -> bool:
    """Return whether a method is FOLD, AutoFold or one of their variants."""
    return family.in_family(run.name)


def best_of_family(results: Results) -> MethodRun | None:
    """Return the method of the FOLD family with the best average AUROC, if the run has any."""
    return next((run for run in results.ranked if in_family(run)), None)
