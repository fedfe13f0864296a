"""The full name of every method and the works to cite for it, from ``citations.toml``."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .registry import method_name

SOFTWARE = "flatfold"  # key of this library among the works
ARXIV = "https://arxiv.org/abs/"


class Work(NamedTuple):
    """A paper, or this library: its BibTeX key, title, authors, year, venue and link; the last two may be empty."""

    key: str
    title: str
    authors: tuple[str, ...]
    year: int
    venue: str = ""
    link: str = ""

    @property
    def is_library(self) -> bool:
        """Whether this is the library itself and not a paper."""
        return self.key == SOFTWARE

    @property
    def short(self) -> str:
        """Authors, venue and year in a few words.

        Example:
            >>> cited_works("fold")[0].short
            'Park et al., ECCV 2026'
        """
        if self.is_library:
            return "this library"
        names = [author.rpartition(" ")[2] for author in self.authors]
        who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
        return f"{who}, {self.venue} {self.year}"

    @property
    def bibtex(self) -> str:
        """The work as a BibTeX entry; braces keep the capitals of the title."""
        authors = f"{{{self.authors[0]}}}" if self.is_library else " and ".join(self.authors)
        fields = {"title": f"{{{self.title}}}", "author": authors}
        number = self.link.removeprefix(ARXIV) if self.link.startswith(ARXIV) else ""
        if self.is_library:
            kind = "software"
        elif self.venue == "arXiv":
            kind, fields["journal"] = "article", f"arXiv preprint arXiv:{number}"
        else:
            kind, fields["booktitle"] = "inproceedings", self.venue
        fields["year"] = str(self.year)
        if number:
            fields |= {"eprint": number, "archiveprefix": "arXiv"}
        if self.link:
            fields["url"] = self.link
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
        return "\n".join([f"@{kind}{{{self.key},", *lines, "}"])


@cache
def _tables() -> tuple[dict[str, dict[str, Any]], dict[str, Work]]:
    """Return the entries of methods, and all works by key."""
    document = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    works = {
        key: Work(key, **{**fields, "authors": tuple(fields["authors"])}) for key, fields in document["works"].items()
    }
    return document["methods"], works


def full_name(method: str) -> str:
    """Return what the name of a method stands for, or an empty text for a method of one's own.

    Example:
        >>> full_name("msp")
        'Maximum softmax probability'
    """
    entries, _ = _tables()
    return str(entries[method]["name"]) if method in entries else ""


def cited_works(method: str) -> tuple[Work, ...]:
    """Return the works to cite for a method, its own first; none for a method of one's own."""
    entries, works = _tables()
    return tuple(works[key] for key in entries[method]["cite"]) if method in entries else ()


def bibtex(method: str) -> str:
    """Return the BibTeX entries of the works to cite for a method.

    Args:
        method: One of :func:`methods`, or an alias.

    Raises:
        ValueError: No method has this name, or it is not one of this library.
    """
    works = cited_works(method_name(method))
    if not works:
        raise ValueError(
            f"{method} has no citation: it was registered outside of this library. Cite what its author names."
        )
    return "\n\n".join(work.bibtex for work in works)
