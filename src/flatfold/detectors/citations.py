"""Works to cite for a method: papers, and this library. Each is declared in the module of the method it introduced."""

from typing import NamedTuple

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
        return self.key == "flatfold"

    @property
    def short(self) -> str:
        """Authors, venue and year in a few words.

        Example:
            >>> Work("liu2024fdbd", "Fast ...", ("Litian Liu", "Yao Qin"), 2024, "ICML").short
            'Liu and Qin, ICML 2024'
        """
        if self.is_library:
            return "this library"
        names = [author.rpartition(" ")[2] for author in self.authors]
        who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
        return f"{who}, {self.venue} {self.year}" if self.venue else f"{who}, {self.year}"

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
        elif not self.venue:
            kind = "misc"
        else:
            kind, fields["booktitle"] = "inproceedings", self.venue
        fields["year"] = str(self.year)
        if number:
            fields |= {"eprint": number, "archiveprefix": "arXiv"}
        if self.link:
            fields["url"] = self.link
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
        return "\n".join([f"@{kind}{{{self.key},", *lines, "}"])


FLATFOLD = Work("flatfold", "flatfold", ("The flatfold authors",), 2026)
