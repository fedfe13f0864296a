"""Every Python block of the documentation runs, in the order it stands there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from flatfold.detectors import METHODS
from tests.uncovered import environment

ROOT = Path(__file__).parents[1]


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf8"), re.DOTALL)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """What a reader has: a model, data, a folder of photos."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5))
    rng = np.random.default_rng(0)
    x = torch.rand(60, 3, 8, 8)
    y = model(x).argmax(-1)
    monkeypatch.chdir(tmp_path)
    for label in range(2):
        (tmp_path / "photos" / f"class{label}").mkdir(parents=True)
        for index in range(3):
            pixels = np.random.default_rng(index).integers(0, 256, (260, 300, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"class{label}" / f"{index}.png")
    return {
        "torch": torch,
        "model": model,
        "val_loader": [(x[:30], y[:30]), (x[30:], y[30:])],
        "new_images": torch.rand(4, 3, 8, 8),
        "new_loader": [torch.rand(9, 3, 8, 8)],
        "test_loader": [(x[:20], y[:20])],
        "weight": rng.normal(size=(5, 7)).astype(np.float32),
        "bias": rng.normal(size=5).astype(np.float32),
        "features": rng.random((20, 7)).astype(np.float32),
        "labels": np.arange(20, dtype=np.int32) % 5,
        "known_scores": rng.normal(size=50),
        "unknown_scores": rng.normal(1, 1, size=50),
    }


@pytest.mark.filterwarnings("ignore:AutoFold's curve is flat", "ignore:the choice for fold-r is hardly better")
def test_the_readme_runs(world):
    code = blocks("README.md")
    assert len(code) == 9
    for block in code:
        exec(block, world)
    assert world["scores"].shape == (20,)


@pytest.fixture
def package_with_centre(tmp_path):
    """A copy of the package with the method of the contributing page added as the page says."""
    package = tmp_path / "src" / "flatfold"
    shutil.copytree(ROOT / "src" / "flatfold", package, ignore=shutil.ignore_patterns("__pycache__"))
    (block,) = blocks("CONTRIBUTING.md")
    (package / "detectors" / "centre.py").write_text(block)
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


def commands():
    """Every line of a shell block that calls flatfold, without its comment."""
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf8"), re.DOTALL))
    shell = shell.replace("\\\n", " ")
    return [re.sub(r"\s+#.*", "", line) for line in re.findall(r"^(?:\w+=\S+ )?flatfold (.*)$", shell, re.MULTILINE)]


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_has_the_options_that_it_uses(command):
    words = command.split()
    path = words[:2] if words[0] == "suite" else words[:1]
    done = subprocess.run([sys.executable, "-m", "flatfold", *path, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"{option}\b", done.stdout), f"{option} is no option of {' '.join(path)}"


def test_nothing_is_left_to_be_filled_in():
    for page in ROOT.glob("*.md"):
        assert not re.search(r"[A-Z]+_[A-Z]+\b(?<!FLATFOLD_DATA)", page.read_text(encoding="utf8")), page.name


def test_every_method_of_the_readme_exists_and_none_is_missing():
    table = (ROOT / "README.md").read_text(encoding="utf8").split("## What it does")[1].split("A higher score")[0]
    named = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([a-z-]+)`", line.split("|")[1])
    }
    assert named == set(METHODS)


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf8")):
        assert target.startswith("https://") or (ROOT / target).exists()


def test_the_architecture_names_every_file_of_the_package():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf8")
    rooms = {"core": set(), "models": set(), "evaluate": set(), "scoring": set(), "report": set(), "serve": set()}
    for room in rooms:
        files = {path.stem for path in (ROOT / "src" / "flatfold" / room).rglob("*.py")} - {"__init__"}
        files -= {path.stem for path in (ROOT / "src" / "flatfold" / "evaluate" / "paper_tables").glob("*.py")}
        assert {name for name in files if not re.search(rf"\b{name}\b", text)} == set()
