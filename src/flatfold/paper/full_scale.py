"""What it takes to run the paper's own benchmarks: data, checkpoints and commands, all read from the suite files."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..evaluate.results import as_csv
from ..evaluate.suites.doctor import set_title
from ..evaluate.suites.library import open_suite_file
from ..evaluate.suites.schema import KINDS, OPENOOD, SPLITS, Table, built_in_names
from ..evaluate.suites.toml_file import MAKERS, SuiteFile
from ..io.files import write_atomically

FOLDER = "full-scale"

BACKBONES = Path(__file__).parent / "imagenet_backbones.toml"  # the paper's Table 5, as a suite file

OPTIONS = "--device cuda --workers 8"


@dataclass(frozen=True)
class Need:
    """One thing that a benchmark needs.

    Attributes:
        suite: The benchmark, as on the command line.
        what: A split, an unknown data set with its group, or a network.
        images: How many images there must be; None for a network, and where the suite does not say.
        where: The list or checkpoint, or what a network is downloaded by; ``$OPENOOD`` is the folder that holds
            OpenOOD's data and results.
        start: The folder in which the paths of a list start.
        prepared: How images are prepared before the network sees them.
        note: What else must be known.
    """

    suite: str
    what: str
    images: int | None
    where: str
    start: str
    prepared: str
    note: str


def write_full_scale(folder: Path) -> Path:
    """Write what the four benchmarks of OpenOOD and the paper's other backbones need, and return the new folder.

    It holds ``needs.csv`` and ``needs.md`` with every list, checkpoint and number, a script ``NAME.sh`` for each
    benchmark that looks for all of it, runs it and puts it beside the paper, and the suite file of the backbones.

    Args:
        folder: Where the folder ``full-scale`` is made.
    """
    place = folder / FOLDER
    found = needs()
    write_atomically(place / BACKBONES.name, BACKBONES.read_bytes())
    write_atomically(place / "needs.csv", as_csv(map(asdict, found)))
    write_atomically(place / "needs.md", _page(found))
    for name in _suites():
        write_atomically(place / f"{Path(name).stem}.sh", script(name))
    return place


def needs() -> list[Need]:
    """Return everything that the paper's benchmarks need, one benchmark after the other."""
    return [need for name, file in _suites().items() for need in _needs(name, file)]


def script(name: str) -> str:
    """Return the commands of a full run of one benchmark as a shell script.

    Args:
        name: Of a built-in suite, or of a suite file that lies beside the script.
    """
    out = f"out/paper/{Path(name).stem}"
    suite = f'"$(dirname "$0")/{name}"' if name.endswith(".toml") else name
    return "\n".join(
        [
            "#!/bin/sh",
            f"# Every number of the paper on {Path(name).stem}. {OPENOOD} is the folder that holds OpenOOD's data and",
            f"# results, as in: {OPENOOD}=/where/openood/lies sh {Path(name).stem}.sh",
            "set -eu",
            f': "${{{OPENOOD}:?is not set: name the folder that holds the data and results of OpenOOD}}"',
            f'flatfold doctor {suite} --data "${OPENOOD}"',
            f'flatfold reproduce {suite} --data "${OPENOOD}" --out {out} {OPTIONS}',
            f"flatfold paper {out} --csv {out}/beside-paper.csv",
            "",
        ]
    )


def _suites() -> dict[str, SuiteFile]:
    """Return the suite files by the name that the command line knows; the backbones' lies in the folder itself."""
    return {name: open_suite_file(name) for name in built_in_names()} | {
        BACKBONES.name: open_suite_file(str(BACKBONES))
    }


def _needs(name: str, file: SuiteFile) -> Iterator[Need]:
    document = file.document
    known = [(split, document[split]) for split in (*SPLITS, "ood_val") if split in document]
    shared = document.get("transform", {})
    for what, table in [*known, *((set_title(table), table) for table in document["ood"])]:
        where = next(str(table[kind]) for kind in KINDS if kind in table)
        note = "may be missing: methods that learn from it are left out" if table.get("optional") else ""
        yield Need(
            name, what, table.get("expect"), where, table.get("images", ""), _prepared(shared | _own(table)), note
        )
    for network in file.networks:
        table = network.table
        made_by = next(str(table[key]) for key in MAKERS if key in table)
        where = str(table.get("weights", "")).replace("{seed}", str(network.seed)) or made_by
        expected = f"should be right on {table['accuracy']} % of the test images" if "accuracy" in table else ""
        origin = f"downloaded: {table['pretrained']}" if "pretrained" in table else f"made by {made_by}"
        prepared = _prepared(shared | table.get("transform", {}))
        yield Need(
            name, f"network {network.name}", None, where, "", prepared, "; ".join(filter(None, (origin, expected)))
        )


def _own(table: Table) -> Table:
    return {key: table[key] for key in ("resize", "crop", "mean", "std", "mode", "interpolation") if key in table}


def _prepared(transform: Table) -> str:
    return ", ".join(f"{key} {value}" for key, value in transform.items())


def _page(found: Sequence[Need]) -> str:
    lines = [
        "# What the paper's benchmarks need",
        "",
        f"`${OPENOOD}` is the folder that holds OpenOOD's `data` and `results`. `flatfold doctor NAME --data "
        f'"${OPENOOD}"` looks for all of this. Each script here runs one benchmark from beginning to end.',
        "",
        "Features are kept on disk and in memory while methods learn from them, 4 bytes for each number: those of the "
        "1,281,167 training images of ImageNet-1K are 10.5 GB for a network with 2,048 features. Without these images "
        "the methods that learn from them are left out. Second derivatives take several times the memory of a forward "
        "pass: lower `--batch-size` where a GPU has too little.",
    ]
    for suite in dict.fromkeys(need.suite for need in found):
        mine = [need for need in found if need.suite == suite]
        lines += ["", f"## {suite}", "", f"Commands: `{Path(suite).stem}.sh`.", ""]
        lines += ["| what | images | where | paths start in | prepared | note |", "|---|---:|---|---|---|---|"]
        lines += [_line(need) for need in mine]
        lines += ["", _total(mine)]
    return "\n".join([*lines, ""])


def _total(mine: Sequence[Need]) -> str:
    """Return how many images there are, and which lists do not say it."""
    total = sum(need.images or 0 for need in mine)
    open_ = [need.what for need in mine if need.images is None and need.start]
    return (
        f"{total:,} images in all{f', without those of {open_[0]}, which the suite does not count' if open_ else ''}."
    )


def _line(need: Need) -> str:
    count = "" if need.images is None else f"{need.images:,}"
    start = f"`{need.start}`" if need.start else ""
    return f"| {need.what} | {count} | `{need.where}` | {start} | {need.prepared} | {need.note} |"
