"""README and the other pages as they are browsed in the repository: figure, links and anchors, one version."""

import doctest
import re
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from flatfold.detectors import METHODS
from tests.docs.page import outside_of_blocks

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
TELEPHONE = 358  # pixels between the margins of a page 390 pixels wide
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


def rows(page):
    """Return the rows of tables whose first cell is a method: the other cells by its name."""
    found = (line.strip("| ").split(" | ") for line in read(page).splitlines() if line.startswith("| `"))
    return {name.strip("`"): cells for name, *cells in found}


def test_the_readme_is_short_and_its_lines_fit_a_terminal():
    lines = read("README.md").splitlines()
    assert len(lines) <= 100
    assert [line for line in lines if len(line) > 115] == []


def test_table_and_figure_of_the_readme_are_of_one_run():
    shown = rows("README.md")
    assert all(name in METHODS for name in shown)
    for name, cells in shown.items():
        assert f"| `{name}` | {' | '.join(cells[:5])} |\n" in read("docs/howto/benchmark.md")
    figure = re.findall(r"AUROC ([\d.]+)", read("docs/scores.svg"))
    assert figure == [shown[name][4].partition(" ")[0] for name in ("fourfold", "ebo")]


def test_the_text_of_the_figure_can_be_read_on_a_telephone_and_in_the_dark():
    svg = read("docs/scores.svg")
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
    assert len(sizes) > 10
    assert min(sizes) * TELEPHONE / width >= 11
    drawn = svg.partition("</style>")[2]
    assert re.findall(r"(?:fill|stroke): (?!none|var)", drawn) == []
    assert "prefers-color-scheme: dark" in svg


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


def test_links_of_the_readme_lead_to_the_configured_address_in_a_package_and_else_stay_as_they_are(monkeypatch):
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    build = module_from_spec(spec)
    spec.loader.exec_module(build)
    assert doctest.testmod(build).failed == 0
    interface = ModuleType("hatchling.metadata.plugin.interface")  # hatchling itself is there only during a build
    interface.MetadataHookInterface = type("MetadataHookInterface", (), {"root": str(ROOT)})
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    hook, metadata = build.get_metadata_hook()(), {}
    hook.config = {"path": "hatch_build.py"}
    hook.update(metadata)
    assert metadata["readme"] == {"content-type": "text/markdown", "text": read("README.md")}
    hook.config = {"links": "https://example.org/links/", "images": "https://example.org/images/"}
    hook.update(metadata)
    assert LINK.findall(metadata["readme"]["text"]) == []
    for address in ("(https://example.org/images/docs/scores.svg)", "(https://example.org/links/docs/gallery.md)"):
        assert address in metadata["readme"]["text"]
    assert "readme" in PROJECT["dynamic"]


def test_the_ecosystem_is_tried_with_the_lowest_torch_that_is_admitted():
    (lowest,) = re.findall(r"^torch==(\S+)$", (ROOT / ".ci" / "ecosystem.txt").read_text(encoding="utf8"), re.MULTILINE)
    (floor,) = (entry for entry in PROJECT["dependencies"] if entry.startswith("torch>="))
    assert floor.partition(",")[0] == f"torch>={lowest.removesuffix('.0')}"
