"""The commands about scale that README and docs/scale.md show, as they stand there."""

import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

ROOT = Path(__file__).parents[1]
NETS = """
from torch import nn


def resnet20():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
"""


def commands(page, section):
    """Return the commands of a section: lines of its shell blocks, joined where they go on, without comments."""
    text = (ROOT / page).read_text(encoding="utf8").split(f"## {section}\n")[1].split("\n## ")[0]
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("flatfold ")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What a reader has: a module with a network, its weights, images sorted by class, and photos."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    torch.manual_seed(0)
    scope = {}
    exec(NETS, scope)
    save_file(scope["resnet20"]().state_dict(), "resnet20.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (150, 12, 12, 3), np.uint8)
    for i, each in enumerate(pixels):
        place = Path("val", str(i % 3)) if i < 120 else Path("photos")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(each // (1 + i % 3)).save(place / f"{i}.png")
    Path("images.txt").write_text("".join(f"{path}\n" for path in sorted(Path("photos").glob("*.png"))))
    return tmp_path


def run(command, **replaced):
    words = [re.sub(r"\$(\w+)", lambda found: replaced[found[1]], word) for word in command]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/scale.md"])
def test_a_guard_is_fitted_and_photos_are_scored(folder, page):
    fit, score = commands(page, "At any scale" if page == "README.md" else "A folder, a list, a table")[:2]
    assert (fit[1], score[1]) == ("fit", "score")
    run(fit)
    assert "30 images, all scored -> scores.csv" in run(score)
    rows = (folder / "scores.csv").read_text().splitlines()
    assert rows[0] == "path,predicted,score,p_value,is_ood"
    assert len(rows) == 31


def test_shares_of_a_list_are_scored_and_joined(folder):
    run(commands("README.md", "At any scale")[0])
    score, join = commands("docs/scale.md", "Several processes, any scheduler")
    score = [word.replace("/100", "/2").replace(".parquet", ".csv") for word in score]
    for number in ("1", "2"):
        run([*score, "--batch-size", "8"], SLURM_ARRAY_TASK_ID=number)
    at = join.index("scores-*.parquet")
    run([*join[:at], "scores-1.csv", "scores-2.csv", "--out", "scores.csv"])
    assert len((folder / "scores.csv").read_text().splitlines()) == 31


def test_the_guard_is_served(folder):
    pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'flatfold[serve]'")
    fit, _, serve = commands("README.md", "At any scale")
    run(fit)
    words = [sys.executable, "-m", *serve, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as service:
        try:
            address = next(found[0] for line in service.stdout if (found := re.search(r"http://[0-9.:]+[0-9]", line)))
            photo = next(folder.joinpath("photos").glob("*.png")).read_bytes()
            asked = urllib.request.Request(f"{address}/score", photo, {"Content-Type": "image/png"})
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert b'"is_ood"' in answer.read()
        finally:
            service.terminate()
    assert service.returncode == 0
