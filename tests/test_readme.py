"""README and the other pages of the root: methods that exist, links that lead somewhere."""

import re
from pathlib import Path

from flatfold.detectors import METHODS

ROOT = Path(__file__).parents[1]


def read(page):
    return (ROOT / page).read_text(encoding="utf8")


def test_nothing_is_left_to_be_filled_in():
    for page in ROOT.glob("*.md"):
        assert not re.search(r"\b(?!FLATFOLD_)[A-Z]+_[A-Z]+\b", page.read_text(encoding="utf8")), page.name


def test_every_method_of_the_readme_exists_and_none_is_missing():
    rows = [line for line in read("README.md").splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])} == set(METHODS)


def test_links_lead_somewhere():
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target, anchor in re.findall(r"\]\(([^)#\s]+)(?:#([^)]*))?\)", read(page)):
            assert target.startswith("https://") or (ROOT / target).exists(), (page, target)
            if anchor:
                titles = re.findall(r"^#+ (.*)$", read(target), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
                assert anchor in anchors, (page, target, anchor)
