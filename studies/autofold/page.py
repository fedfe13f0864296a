"""The page of the study: sentences are written by hand, whatever stands between markers is from a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copyfile

from flatfold.io.files import write_atomically

from .results import Found
from .sentences import sections

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "autofold.md"
FILES = ("autofold.csv", "autofold-curves.svg", "autofold-gains.svg")


def update(found: Sequence[Found], out: Path, page: Path = PAGE) -> None:
    """Put the results of a run into the page, and its table and figures beside it.

    Args:
        found: Of the run.
        out: Where the run wrote its files.
        page: With a marker for every section.
    """
    write_atomically(page, filled(page.read_text(encoding="utf8"), sections(found)))
    for name in FILES:
        copyfile(out / name, page.with_name(name))


def filled(text: str, contents: Mapping[str, str]) -> str:
    r"""Return a page with every section between its markers, in place of what was there.

    Example:
        >>> filled("<!-- begin a -->\nold\n<!-- end a -->", {"a": "new"})
        '<!-- begin a -->\nnew\n<!-- end a -->'
    """
    for name, content in contents.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"the page has no place for {name!r}. Add the lines {begin} and {end} where it should be.")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"
    return text
