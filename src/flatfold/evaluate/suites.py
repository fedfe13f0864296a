"""Suites by name or from a file."""

from pathlib import Path

from .digits import digits
from .suite import Suite
from .suite_file import read_suites

BUILT_IN = {"digits": digits}


def load_suites(name: str, out: Path, seed: int | None = None, batch_size: int = 256) -> list[Suite]:
    """Return a suite for each network, making what it needs under ``out``.

    Args:
        name: One of the built-in suites, or the path of a suite file, which ends in ``.toml`` (see ``read_suites``).
        out: Folder for whatever a built-in suite makes for itself.
        seed: Of everything random in it; by default the suite file's, and 0 for a built-in suite.
        batch_size: Images per forward pass.
    """
    if name.endswith(".toml"):
        return read_suites(Path(name), batch_size=batch_size, seed=seed)
    if name not in BUILT_IN:
        raise ValueError(
            f"no suite is called {name!r}. Built in: {', '.join(BUILT_IN)}. "
            "For a network and data of your own, give the path of a suite file, which ends in .toml."
        )
    return [BUILT_IN[name](out, seed=seed or 0, batch_size=batch_size)]
