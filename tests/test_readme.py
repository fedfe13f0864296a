"""README and the other pages as they are browsed in the repository: methods, links and anchors, one version."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from flatfold.detectors import METHODS
from tests.docs.page import outside_of_blocks

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
NOT_OURS = r"github\.com/flatfold|flatfold\.readthedocs|githubuser[c]ontent"


def read(page):
    return (ROOT / page).read_text(encoding="utf8")


def links(page):
    """Return target and anchor of every relative link of a page, outside of code."""
    return LINK.findall(re.sub(r"`[^`\n]+`", "", outside_of_blocks(read(page))))


def anchors(page):
    """Return the anchors that forges make of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", outside_of_blocks(read(page)), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_nothing_is_left_to_be_filled_in():
    for page in ROOT.glob("*.md"):
        assert not re.search(r"\b(?!FLATFOLD_)[A-Z]+_[A-Z]+\b", page.read_text(encoding="utf8")), page.name


def test_every_method_of_the_readme_exists_and_none_is_missing():
    rows = [line for line in read("README.md").splitlines() if line.startswith("| `")]
    shown = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    for name in shown ^ set(METHODS):
        row = f"| `{name}` | what it scores | what it learns from |"
        change = "remove it from" if name in shown else f"add {row!r}, or {name} to a row, in"
        pytest.fail(f"{name} is not both a method and in README.md: {change} the table under Methods.")


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files_of_the_repository_and_to_their_headings(page):
    for target, anchor in links(page):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.is_file(), f"{page}: {target} is no file. Link to files as seen from {page}, not from its site."
        if anchor:
            assert anchor in anchors(path), f"{page}: {target} has no heading #{anchor}"


def test_pages_that_the_source_refers_to_exist():
    named = [r"docs/([\w/]+)\.md()", r'docs_link\("([\w/]+)(?:#([\w-]+))?"']
    for path in (path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".html", ".toml")):
        for place, anchor in (found for name in named for found in re.findall(name, path.read_text(encoding="utf8"))):
            page = f"docs/{place}.md"
            assert page in PAGES, f"{path}: {page} does not exist"
            assert not anchor or anchor in anchors(page), f"{path}: {page} has no heading #{anchor}"


def test_no_file_names_an_address_that_is_not_ours():
    if not (ROOT / ".git").exists():
        pytest.skip("not in a clone")
    found = subprocess.run(["git", "grep", "-lIE", NOT_OURS], cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, ""), "link to files of the repository by relative paths"


def test_the_citation_names_this_version():
    assert re.search(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE)[1] == PROJECT["version"]
