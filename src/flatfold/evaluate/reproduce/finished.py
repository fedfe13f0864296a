"""Which networks of a folder can be judged together."""

from collections.abc import Collection, Sequence
from pathlib import Path

from ..results import Results, load_results
from ..study.files import JSON as STUDY
from .files import JSON as ABLATIONS
from .verdict import Material, load_material

FILES = ("results.json", STUDY, ABLATIONS)


def check_suite(folder: Path, networks: Sequence[str], suite: str) -> None:
    """Raise if results of another suite lie where those of this one go, and would be judged or lost with them.

    Args:
        folder: Of a reproduction.
        networks: All that the suite has; ``[""]`` for a single one, whose files are in ``folder`` itself.
        suite: Its name.
    """
    for network in networks:
        found = _suite_of(folder / network)
        if found not in (None, suite):
            raise ValueError(
                f"{folder / network} holds results of the suite {found!r}, but this run is of {suite!r}. "
                "Give another --out, or remove them."
            )


def finished(folder: Path, networks: Sequence[str], now: Collection[str]) -> tuple[list[Material], dict[str, str]]:
    """Return everything measured of each network that is finished, and why others are left out.

    Args:
        folder: Of a reproduction.
        networks: All that the suite has; ``[""]`` for a single one.
        now: Those of this run. Others, of an earlier one, count where they can be read and saw as many images.
    """
    found, left_out = list[Material](), dict[str, str]()
    for network in networks:
        if network not in now and not all((folder / network / file).exists() for file in FILES):
            continue
        try:
            found.append(load_material(folder / network, network))
        except ValueError as error:
            if network in now:
                raise
            left_out[network] = str(error)
    sizes = next(_sizes(material.results) for material in found if material.network in now)
    earlier = [material for material in found if material.network not in now]
    others = [material.network for material in earlier if _sizes(material.results) != sizes]
    left_out |= dict.fromkeys(others, "it was judged on other numbers of images. Run it with the same options.")
    return [material for material in found if material.network not in others], left_out


def _suite_of(place: Path) -> str | None:
    """Return the suite of the results in a folder, None where there are none that can be read."""
    try:
        return str(load_results(place).suite["name"])
    except (OSError, ValueError):
        return None


def _sizes(results: Results) -> list[tuple[str, int]]:
    """Return how many images of each data set were judged."""
    return [("test", results.suite["n_test"]), *((ood["name"], ood["n"]) for ood in results.suite["ood"])]
