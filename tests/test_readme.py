"""What README and the other pages of the root promise: methods that exist, links that lead somewhere, few words."""

import re
from pathlib import Path

import pytest

from flatfold.detectors import METHODS
from tests.docs.page import blocks

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]


def read(page):
    return (ROOT / page).read_text(encoding="utf8")


def test_nothing_is_left_to_be_filled_in():
    for page in ROOT.glob("*.md"):
        assert not re.search(r"[A-Z]+_[A-Z]+\b(?<!FLATFOLD_DATA)", page.read_text(encoding="utf8")), page.name


def test_the_readme_shows_a_figure_eight_lines_and_two_commands_within_a_page_or_two():
    text = read("README.md")
    python, shell = blocks(text)
    assert (python.language, shell.language) == ("python", "sh")
    assert len([line for line in python.text.splitlines() if line]) <= 8
    assert [line.split()[:2] for line in shell.text.splitlines()] == [["make", "demo"], ["make", "test"]]
    assert "](docs/scores.svg)" in text
    assert text.count("\n") < 115


def test_every_method_of_the_readme_exists_and_none_is_missing():
    table = read("README.md").split("## What it does")[1].split("A higher score")[0]
    named = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([a-z-]+)`", line.split("|")[1])
    }
    assert named == set(METHODS)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]+)(?:#([^)]*))?\)", read(page)):
        assert target.startswith("https://") or (ROOT / target).exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", read(target), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, anchor


def test_the_architecture_names_every_file_of_the_package():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf8")
    rooms = {"core": set(), "models": set(), "evaluate": set(), "scoring": set(), "report": set(), "serve": set()}
    for room in rooms:
        files = {path.stem for path in (ROOT / "src" / "flatfold" / room).rglob("*.py")} - {"__init__"}
        files -= {path.stem for path in (ROOT / "src" / "flatfold" / "evaluate" / "paper_tables").glob("*.py")}
        assert {name for name in files if not re.search(rf"\b{name}\b", text)} == set()
