"""README and the other files of the root: methods that exist, links that lead somewhere, one version."""

import re
import tomllib
from pathlib import Path

import pytest

from flatfold.detectors import METHODS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
HOME = PROJECT["urls"]["Repository"]
IN_THE_REPOSITORY = (f"{HOME}/blob/main/", f"{HOME.replace('//github.com', '//raw.githubusercontent.com')}/main/")


def read(page):
    return (ROOT / page).read_text(encoding="utf8")


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


def links(page):
    """Yield target and anchor of every link of a page, with files of the repository as paths relative to its root."""
    for target, anchor in re.findall(r"\]\(([^)#\s]+)(?:#([^)]*))?\)", read(page)):
        home = next((home for home in IN_THE_REPOSITORY if target.startswith(home)), "")
        yield target.removeprefix(home), anchor


def test_links_lead_somewhere():
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        for target, anchor in links(page):
            outside = target.startswith("https://")
            assert outside or (ROOT / target).exists(), (page, target)
            if anchor and not outside:
                titles = re.findall(r"^#+ (.*)$", read(target), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
                assert anchor in anchors, (page, target, anchor)


def test_links_of_the_readme_work_on_the_page_of_the_package():
    relative = re.findall(r"\]\((?!https://|#)[^)]*\)", read("README.md"))
    assert not relative, f"write them as {IN_THE_REPOSITORY[0]}..., pictures as {IN_THE_REPOSITORY[1]}..."


def test_the_citation_names_this_version():
    assert re.search(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE)[1] == PROJECT["version"]
