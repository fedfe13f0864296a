"""The method that the contributing page adds to the package, added as the page says."""

import shutil
import subprocess
import sys

import pytest

from tests.docs.page import ROOT, blocks
from tests.uncovered import environment


@pytest.fixture
def package_with_centre(tmp_path):
    """A copy of the package with the method of the contributing page added as the page says."""
    package = tmp_path / "src" / "flatfold"
    shutil.copytree(ROOT / "src" / "flatfold", package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf8")
    (block,) = (block for block in blocks(text) if block.language == "python")
    (package / "detectors" / "centre.py").write_text(block.text)
    page = package / "detectors" / "__init__.py"
    page.write_text(page.read_text().replace("    autofold,\n", "    autofold,\n    centre,\n", 1))
    return tmp_path / "src"


def test_the_method_of_the_contributing_page_is_one(package_with_centre):
    """It passes the contract, and a linter and a type checker have nothing to say."""
    tests = ["tests/test_contract.py", "-k", "centre", "-q", "-p", "no:cacheprovider", "--confcutdir=tests"]
    of_the_copy = environment(PYTHONPATH=str(package_with_centre))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests], cwd=ROOT, env=of_the_copy, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    config = str(ROOT / "pyproject.toml")
    file = str(package_with_centre / "flatfold" / "detectors" / "centre.py")
    for command in (["ruff", "check", "--config", config], ["mypy", "--strict", "--config-file", config]):
        done = subprocess.run([sys.executable, "-m", *command, file], env=of_the_copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
