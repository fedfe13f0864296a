"""Requirements of the paper's own benchmarks: data, checkpoints and commands, from the suite files."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from ..evaluate.results import as_csv
from ..evaluate.suites.library import open_suite_file
from ..evaluate.suites.schema import OPENOOD, Table, built_in_names
from ..evaluate.suites.toml_file import SuiteFile
from ..io.files import write_atomically
from ..report.templates import render
from .tables import BENCHMARKS

FOLDER, TEMPLATES = "full-scale", Path(__file__).parent / "templates"
BACKBONES = Path(__file__).parent / "imagenet_backbones.toml"  # the paper's Table 5, as a suite file


@dataclass(frozen=True)
class Need:
    """A data set or a network that a benchmark needs."""

    suite: str  # as on the command line
    what: str  # a split, an OOD data set with its group, or a network
    images: int | None  # their number; None for a network, and if the suite does not state it
    where: str  # the list or checkpoint, or the name under which a network is downloaded
    start: str  # the folder in which the paths of a list start
    prepared: str  # the transform of the images
    note: str


def write_full_scale(folder: Path) -> Path:
    """Write what the four benchmarks of OpenOOD and the paper's other backbones need, and return the new folder.

    ``full-scale`` holds ``needs.csv`` and ``needs.md`` with every list, checkpoint and number, a script ``NAME.sh`` for
    each benchmark that checks, runs and compares it with the paper, and the suite file of the backbones.
    """
    place, needs = folder / FOLDER, list_needs()
    by_suite = {suite: list(group) for suite, group in groupby(needs, key=lambda need: need.suite)}
    write_atomically(place / BACKBONES.name, BACKBONES.read_bytes())
    write_atomically(place / "needs.csv", as_csv(map(asdict, needs)))
    averaged = " ".join(f"out/paper/{name}" for name in BENCHMARKS)
    text = render("needs.md", TEMPLATES, variable=OPENOOD, suites=by_suite, averaged=averaged)
    write_atomically(place / "needs.md", text)
    for suite in by_suite:
        name = Path(suite).stem
        text = render("full_scale.sh", TEMPLATES, name=name, variable=OPENOOD, suite=suite, out=f"out/paper/{name}")
        write_atomically(place / f"{name}.sh", text)
    return place


def list_needs() -> list[Need]:
    """Return the needs of all benchmarks, one benchmark after the other; the suite of the backbones is a file here."""
    files = {name: open_suite_file(name) for name in built_in_names()}
    files[BACKBONES.name] = open_suite_file(str(BACKBONES))
    return [need for name, file in files.items() for need in _read_needs(name, file)]


def _read_needs(name: str, file: SuiteFile) -> Iterator[Need]:
    shared = file.document.transform.settings
    for what, (_, table) in file.document.data_sets.items():
        note = "may be missing: methods that learn from it are left out" if getattr(table, "optional", False) else ""
        prepared = _format_transform(shared | table.settings)
        yield Need(name, what, table.expect, getattr(table, table.kind), table.images or "", prepared, note)
    for network in file.networks:
        entry = network.table
        accuracy = "" if entry.accuracy is None else f"accuracy {entry.accuracy:g} % on the test images"
        origin = f"downloaded: {entry.pretrained}" if entry.pretrained else f"made by {getattr(entry, entry.maker)}"
        prepared = _format_transform(shared | entry.transform.settings)
        note = "; ".join(filter(None, (origin, accuracy)))
        yield Need(name, f"network {network.name}", None, network.origin, "", prepared, note)


def _format_transform(transform: Table) -> str:
    return ", ".join(f"{key} {value}" for key, value in transform.items())
