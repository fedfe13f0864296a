"""Second derivatives that torch does not have for a step of a network, or has wrong: a sentence is made of either."""

from collections.abc import Iterator
from contextlib import contextmanager

ASYMMETRY = 1e-2  # of an entry: far beyond what rounding leaves
ROUNDING = 1e-5  # of the norm of the matrix: a part of any network may compute in float32


def check_symmetric(one: float, other: float, usual: float, most: float) -> None:
    """Raise unless ``u' A v`` and ``v' A u`` are equal up to rounding: a matrix of second derivatives is symmetric.

    In torch 2.13 that of a weight normalisation is not: its second derivative is wrong.

    Args:
        one: ``u' A v``.
        other: ``v' A u``.
        usual: Their size where vectors have no direction in common, ``|u| |A v|`` over the root of their length.
        most: The most they can be, ``|u| |v|`` times the norm of the matrix, as far as it is known.
    """
    if abs(one - other) > ASYMMETRY * (abs(one) + abs(other) + usual) + ROUNDING * most:
        raise ValueError(
            f"a curvature matrix must be symmetric, but this one has {one:.4g} and {other:.4g} for the same two "
            "directions. Either torch has a wrong second derivative for a step of the network, as for weight_norm "
            "(remove the parametrization first), or there is no curvature but rounding, as in the energy of "
            "log-probabilities (use loss='ce_pred')."
        )


@contextmanager
def told_if_missing() -> Iterator[None]:
    """Turn the error of a step that cannot be differentiated twice into a ``ValueError``."""
    try:
        yield
    except RuntimeError as error:  # NotImplementedError is one of them
        if not is_about_derivatives(error):
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"a step of the network has no second derivative: {reason}. For single inputs, and for the trace, "
            "matrix='ggn' needs the first ones only."
        ) from error


def is_about_derivatives(error: RuntimeError) -> bool:
    """Tell whether torch, in its own words, lacks a derivative."""
    return "differentia" in str(error) or "derivative" in str(error)
