"""Which exponent of partial normalisation a study takes."""

import logging
import warnings

from ...detectors.autofold import AutoFold
from ..banks import Banks
from .plan import Plan

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
