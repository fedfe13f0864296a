"""Whether the images of a suite are there, and as many as there should be."""

from pathlib import Path
from typing import Any

from torch import nn

from ...models.lists import ListImages
from ...models.sources import Source
from ...progress import track
from .data import SuiteData
from .file import SuiteFile
from .finding import FAILURES, Finding, State, reason, unset_sentence
from .keys import KINDS, SPLITS, Table
from .suite import OodSet, Suite

SHOWN = 3  # names of images that are missing


def examine_data(suite_file: SuiteFile) -> list[Finding]:
    """Return a finding for each section with images, and more if they cannot be prepared or do not go together."""
    file, document = suite_file.lenient(), suite_file.document
    findings, sources = [], {}
    plain = file.networks[0]._replace(table={})  # what networks change does not change what is there
    try:
        data = file.data(plain)
    except ValueError as error:
        findings.append(Finding("transform", "wrong", str(file.path), sentence=str(error)))
        file.document = {**document, "transform": {}}
        data = file.data(plain)
    sections = [(name, name, document[name]) for name in (*SPLITS, "ood_val") if name in document]
    sections += [(_title(table), "ood", table) for table in document["ood"]]
    for what, section, table in track(sections, "looking for images"):
        part = _Part(data, what, section, table, suite_file.any_counts)
        findings.append(part.finding())
        sources[what] = part.source
    return findings + _together(file, sources)


class _Part:
    """One section while it is looked at; ``source`` has its images if they can be used."""

    def __init__(self, data: SuiteData, what: str, section: str, table: Table, any_counts: bool) -> None:
        self.data, self.what, self.section, self.table, self.any_counts = data, what, section, table, any_counts
        self.source: Source | None = None
        self.optional = table.get("optional", False)
        self.expected = f"{table['expect']} images" if "expect" in table else ""

    def finding(self) -> Finding:
        written = " and ".join(self.table[key] for key in (*KINDS, "images") if key in self.table)
        unset = unset_sentence(written, self.data.variables)
        if unset:
            return self._missing(written, unset)
        try:
            kind, path, inside = self.data.place(self.table)
            for place in [path, Path(inside)] if kind == "list" else [path]:
                if not place.exists():
                    return self._missing(str(place), "It is not there. Get it, or correct the path.")
            return self._counted(path)
        except FAILURES as error:
            return Finding(self.what, "wrong", written, self.expected, "", reason(error, self.section, self.table))

    def _missing(self, where: str, sentence: str) -> Finding:
        state: State = "note" if self.optional else "missing"
        left_out = " Without it, methods that learn from it are left out." if self.optional else ""
        return Finding(self.what, state, where, self.expected, "", sentence + left_out)

    def _counted(self, path: Path) -> Finding:
        """Return a finding about images whose file or folder is there."""
        labelled = self.section in SPLITS
        whole = self.data.whole(self.table, labelled)
        source = self.data.split(self.section) if labelled else self.data.unknown(self.section, self.table)
        gone = whole.missing() if isinstance(whole, ListImages) else []
        rows = whole.rows - len(gone) if gone else source.rows
        found = f"{rows} images" if rows == whole.rows else f"{rows} of {whole.rows} images"
        if len(gone) < whole.rows:
            self.source = source
        elif self.optional:
            return self._missing(str(path), "None of its images is there.")
        count = self._count_sentence(whole.rows)
        state: State = "missing" if gone else "ok" if not count else "note" if self.any_counts else "wrong"
        sentences = [*([count] if count else []), *([_gone_sentence(gone, whole.rows)] if gone else [])]
        return Finding(self.what, state, str(path), self.expected, found, " ".join(sentences))

    def _count_sentence(self, found: int) -> str:
        expected = self.table.get("expect", found)
        if found == expected:
            return ""
        if found == self.table.get("outdated"):
            return (
                f"A list of {found} images is of an older version, this one has {expected}: two versions are mixed. "
                "Get all lists again."
            )
        return f"There are {found} images, {expected} were expected. Get them again."


def _title(table: Table) -> str:
    return f"{table['group']} {table['name']}"


def _gone_sentence(gone: list[str], rows: int) -> str:
    """Say how many images of a list are not on disk, and the first of them."""
    shown = ", ".join(gone[:SHOWN]) + (", ..." if len(gone) > SHOWN else "")
    return f"{len(gone)} of the {rows} images that its list names are not there: {shown}. Get them again."


def _together(file: SuiteFile, sources: dict[str, Source | None]) -> list[Finding]:
    """Return what is wrong with sections that are sound by themselves, if all of them are there."""
    needed = {name: source for name, source in sources.items() if name != "train"}
    if None in needed.values():
        return []
    known: dict[str, Any] = {name: sources.get(name) for name in (*SPLITS, "ood_val")}
    unknown: dict[str, Any] = {name: source for name, source in sources.items() if name not in known}
    tables = file.document["ood"]
    try:
        ood = tuple(OodSet(table["name"], table["group"], unknown[_title(table)], "") for table in tables)
        Suite(name="", about="", model=nn.Identity(), seed=0, ood=ood, **known)
    except ValueError as error:
        return [Finding("all together", "wrong", str(file.path), sentence=str(error))]
    return []
