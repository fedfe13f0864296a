"""The method that the contributing page adds to the package, the examples, and methods in files of one's own."""

import json
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


def run(*arguments, path, cwd=ROOT, status=0, **variables):
    command, variables = [sys.executable, *arguments], uncovered_environment(PYTHONPATH=str(path), **variables)
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


CHECKS = (
    "tests/detectors/test_baselines.py",
    "tests/detectors/test_citations.py",
    "tests/detectors/test_registry.py",
    "tests/test_readme.py",
)
GOLDEN = ("tests/golden/test_scores.py", "tests/golden/test_digits.py", "tests/golden/test_reference.py")
SLOW_CENTRE = """
    def centre(self, h):
        means = [self.unit(np.mean([self.unit(row) for row in self.h[self.y == c]], axis=0)) for c in self.classes]
        return -max(self.unit(h) @ mean for mean in means)
"""
PYTEST = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short")


def is_part(old, new):
    """Whether a record still has everything that it had before."""
    if isinstance(old, dict):
        return all(key in new and is_part(value, new[key]) for key, value in old.items())
    return old == new


@pytest.mark.docs
@pytest.mark.timeout(600)
def test_a_method_added_as_the_contributing_page_says_fails_only_tests_that_say_what_to_add(tmp_path):
    for name in ("src", "tests", "docs", "examples", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(path, tmp_path)
    (block,) = (block for block in blocks(read("CONTRIBUTING.md")) if block.language == "python")
    package, reference = tmp_path / "src" / "flatfold" / "detectors", Path("docs", "reference", "detectors.md")
    (package / "centre.py").write_text(block.text)
    formulas = tmp_path / "tests" / "detectors" / "test_baselines.py"
    with (package / "__init__.py").open("a") as page:
        page.write("from .centre import Centre as Centre\n")
    place = {"path": f"{tmp_path / 'src'}:{tmp_path}", "cwd": tmp_path}
    run(*PYTEST, "tests/test_contract.py", "-k", "centre or summary", **place)
    told = run(*PYTEST, *CHECKS, *GOLDEN, **place, status=1)
    assert {line.split("::")[1].split(" ")[0] for line in told.splitlines() if line.startswith("FAILED")} == {
        "test_every_method_of_another_paper_has_its_formula_here",
        "test_methods_that_see_features",
        "test_results",
        "test_the_reference_has_the_table_of_all_registered_methods",
        "test_the_mean_auroc_is_pinned_more_tightly",
    }
    assert told.count("run FLATFOLD_RECORD=1 .venv/bin/python -m pytest tests/golden") >= 4
    assert "Add the slow formula of centre to Slow in tests/detectors/test_baselines.py" in told
    formulas.write_text(formulas.read_text().replace("\n\nNAMES = ", SLOW_CENTRE + "\n\nNAMES = "))
    run(*PYTEST, *GOLDEN, **place, FLATFOLD_RECORD="1")
    run(*PYTEST, *CHECKS, *GOLDEN, **place)
    for path in (ROOT / "tests" / "golden" / "expected").glob("*.json"):
        old, new = (json.loads((top / path.relative_to(ROOT)).read_text()) for top in (ROOT, tmp_path))
        assert is_part(old, new), path.name
    before, after = ((top / reference).read_text(encoding="utf8").splitlines() for top in (ROOT, tmp_path))
    (row,) = {*after} - {*before}
    assert row.startswith("| `centre` | **Cosine with the class centre.** Minus the largest cosine")
    assert [line for line in after if line != row] == before
    config = str(ROOT / "pyproject.toml")
    for command in (("ruff", "check", "--config", config), ("mypy", "--strict", "--config-file", config)):
        run("-m", *command, str(package / "centre.py"), path=tmp_path / "src")


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
