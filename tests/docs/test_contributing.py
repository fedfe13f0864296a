"""The method that the contributing page adds to the package, the examples, and methods in files of one's own."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flatfold.cli.options import load_plugins
from flatfold.detectors import METHODS
from tests.command import flatfold, uncovered_environment
from tests.docs.belongings import photos, suite
from tests.docs.page import ROOT, blocks, read
from tests.docs.shell import python
from tests.toy_study import refusal

EXAMPLE = ROOT / "examples" / "own_method.py"
NETWORK = ("--model", "nets:resnet20", "--weights", "resnet20.safetensors")
MINE = """import flatfold as ff
@ff.register("{name}")
class Mine(ff.Detector):
    "Minus the norm of the features."
    def score(self, h): return -h.norm(dim=-1)
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    methods, modules = dict(METHODS), set(sys.modules)
    yield
    METHODS.clear()
    METHODS.update(methods)
    for name in set(sys.modules) - modules:
        if name.startswith(("flatfold_own_", "beside")):
            del sys.modules[name]


def run(*arguments, path):
    command, variables = [sys.executable, *arguments], uncovered_environment(PYTHONPATH=str(path))
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


@pytest.mark.docs
@pytest.mark.timeout(300)
def test_the_method_of_the_contributing_page_passes_the_contract_and_the_linters(tmp_path):
    package = tmp_path / "src" / "flatfold"
    shutil.copytree(ROOT / "src" / "flatfold", package, ignore=shutil.ignore_patterns("__pycache__"))
    (block,) = (block for block in blocks(read("CONTRIBUTING.md")) if block.language == "python")
    file, page = package / "detectors" / "centre.py", package / "detectors" / "__init__.py"
    file.write_text(block.text)
    page.write_text(page.read_text() + "from . import centre as centre\n")
    tests = ("tests/test_contract.py", "-k", "centre", "-q", "-p", "no:cacheprovider", "--confcutdir=tests")
    assert " passed" in run("-m", "pytest", *tests, path=package.parent)
    config = str(ROOT / "pyproject.toml")
    for command in (("ruff", "check", "--config", config), ("mypy", "--strict", "--config-file", config)):
        run("-m", *command, str(file), path=package.parent)


@pytest.mark.docs
def test_the_contract_holds_for_the_example_and_the_page_shows_it():
    code = (
        "import sys, pytest; from pathlib import Path; from flatfold.cli.options import load_plugins; "
        f"load_plugins([Path({str(EXAMPLE)!r})]); "
        "sys.exit(pytest.main(['tests/test_contract.py', '-q', '-k', 'aside', '-p', 'no:cacheprovider']))"
    )
    assert " passed" in run("-c", code, path=ROOT)
    (block,) = (b for b in blocks(read("docs/howto/own_method.md")) if b.language == "python")
    shown, file = (text[text.index("import torch") :] for text in (block.text, EXAMPLE.read_text(encoding="utf8")))
    assert shown == file


@pytest.mark.docs
def test_the_examples_show_what_they_promise(capsys):
    python([str(ROOT / "examples" / "guard.py")])
    known, unknown = re.findall(r"known: ([\d.]+) % of 500 raise an alarm", capsys.readouterr().out)
    assert (float(known) < 8, float(unknown) > 90) == (True, True)
    python([str(ROOT / "examples" / "stream.py")])
    lines = capsys.readouterr().out.splitlines()
    assert [("not like" in line) for line in lines[:8]] == [False] * 4 + [True] * 4  # from the hour of the change
    python([str(ROOT / "examples" / "layer_curvature.py")])
    *_, head = re.findall(r"trace ([\de.+-]+) ID, ([\de.+-]+) OOD", capsys.readouterr().out)
    assert float(head[1]) > 10 * float(head[0])


def test_files_are_run_beside_their_neighbours_and_refused_without_a_new_method():
    before = list(sys.path)
    Path("beside.py").write_text("NAME = 'besides'")
    Path("one.py").write_text(MINE.format(name="one"))
    Path("two.py").write_text("from beside import NAME\n" + MINE.replace('"{name}"', "NAME"))
    assert load_plugins(None) == load_plugins([]) == ()
    assert load_plugins([Path("one.py"), Path("two.py"), Path("one.py")]) == ("one", "besides")
    bad = {"nothing.py": "x = 1", "broken.py": "1 / 0", "again.py": MINE.format(name="msp"), "mine.txt": "x = 1"}
    for name, text in bad.items():
        Path(name).write_text(text)
    for name, keyword in zip((*bad, "no.py"), ("register", "ZeroDivision", "msp", "mine.txt", "no.py"), strict=True):
        assert keyword in refusal(load_plugins, [Path(name)]), name
    assert sys.path == before


@pytest.mark.docs
def test_every_command_takes_a_method_of_ones_own():
    def done(*arguments):
        result = flatfold(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    own = ("--with", EXAMPLE)
    assert "aside" in done("methods", *own).stdout
    photos()
    done("fit", "val", *NETWORK, "--mode", "RGB", "--method", "aside", *own, "--out", "g.st")
    score = ("score", "photos", "--guard", "g.st", *NETWORK, "--out", "scores.csv")
    done(*score, *own)
    assert len(Path("scores.csv").read_text().splitlines()) == 31
    assert "aside" in flatfold(*score, "--out", "other.csv").stderr  # its file is missing
    assert "--with" in flatfold(*score, *own, "--engine", "ray").stderr  # whose workers do not run the file
    done("export", "g.st", *NETWORK, "--images", "photos", *own, "--out", "g.onnx")
    assert "fpr" in flatfold("serve", "g.st", *NETWORK, *own, "--fpr", "2").stderr.lower()  # which is no rate
    suite()
    (toml,) = (block for block in blocks(read("docs/howto/benchmark.md")) if block.language == "toml")
    Path("mine.toml").write_text(toml.text)
    done("bench", "mine.toml", *own, "--methods", "msp,aside", "--bootstrap", "0")
    assert "aside,nothing,textures" in Path("out/mine/results.csv").read_text()
    assert ">aside<" in Path("out/mine/report.html").read_text()
