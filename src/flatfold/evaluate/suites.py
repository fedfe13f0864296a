"""Suites by name."""

from pathlib import Path

from .digits import digits
from .suite import Suite

BUILT_IN = {"digits": digits}


def load_suite(name: str, out: Path, seed: int = 0, batch_size: int = 256) -> Suite:
    """Return a suite, making what it needs under ``out``.

    Args:
        name: One of the built-in suites.
        out: Folder for whatever the suite makes for itself.
        seed: Of everything random in it.
        batch_size: Images per forward pass.
    """
    if name not in BUILT_IN:
        raise ValueError(f"no suite is called {name!r}. Built in: {', '.join(BUILT_IN)}.")
    return BUILT_IN[name](out, seed=seed, batch_size=batch_size)
