"""`--with`: a method in a file of one's own is listed, judged, guarded, and keeps the contract."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

import flatfold as ff
from flatfold.cli import app
from flatfold.cli.own import load_own
from flatfold.detectors import METHODS
from tests.docs.page import ROOT, blocks
from tests.uncovered import environment

EXAMPLE = ROOT / "examples" / "own_method.py"
MINE = """
import torch
import flatfold as ff

@ff.register("{name}")
class Mine(ff.Detector):
    "Minus the norm of the features."

    def score(self, h):
        return -h.norm(dim=-1)
"""


@pytest.fixture(autouse=True)
def methods_as_they_were(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before, modules = dict(METHODS), set(sys.modules)
    yield
    METHODS.clear()
    METHODS.update(before)
    for name in set(sys.modules) - modules:
        if name.startswith(("flatfold_own_", "beside")):
            del sys.modules[name]


def flatfold(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_files_are_run_and_the_new_names_returned():
    for name in ("one", "two"):
        Path(f"{name}.py").write_text(MINE.format(name=name))
    assert load_own([Path("one.py"), Path("two.py"), Path("one.py")]) == ("one", "two")
    assert_close(ff.create("one").fit(*small())(torch.tensor([[3.0, 4.0]])), torch.tensor([-5.0]))


def small():
    return ff.FeatureBank(torch.rand(4, 2), torch.tensor([0, 1, 0, 1])), ff.Head(torch.eye(2), torch.zeros(2))


def test_no_file_is_no_method():
    before = dict(METHODS)
    assert load_own(None) == load_own([]) == ()
    assert before == METHODS


def test_a_file_may_import_its_neighbours_and_leaves_the_path_as_it_was():
    Path("beside.py").write_text("NAME = 'besides'")
    Path("mine.py").write_text("from beside import NAME\n" + MINE.replace('"{name}"', "NAME"))
    before = list(sys.path)
    assert load_own([Path("mine.py")]) == ("besides",)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine.py", "x = 1", r"mine.py was run, but registered no method. Put @flatfold.register\(\"name\"\) above"),
        ("mine.py", "1 / 0", "mine.py could not be run: ZeroDivisionError: division by zero"),
        ("mine.py", MINE.format(name="msp"), "a method called 'msp' is registered already. Choose another name"),
        ("mine.txt", "x = 1", r"--with needs a Python file, \*.py, but .*mine.txt is none. Is the path right\?"),
    ],
)
def test_a_file_that_is_no_method_is_refused(name, text, message):
    before = list(sys.path)
    Path(name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_own([Path(name)])
    assert sys.path == before


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"--with needs a Python file, \*.py, but .*nowhere.py is none"):
        load_own([Path("nowhere.py")])


def test_the_list_of_methods_has_it():
    result = flatfold("methods", "--with", EXAMPLE)
    assert result.exit_code == 0
    assert "aside" in result.stdout
    assert "Sine of the angle" in " ".join(result.stdout.split())


NETWORK = ("--model", "nets:resnet20", "--weights", "resnet20.safetensors")


@pytest.fixture
def guard():
    """A guard of the example, after which nobody knows its method any more."""
    from tests.docs.belongings import photos

    photos()
    result = flatfold("fit", "val", *NETWORK, "--mode", "RGB", "--method", "aside", "--with", EXAMPLE, "--out", "g.st")
    assert result.exit_code == 0, result.output
    assert "method       aside" in result.stdout
    del METHODS["aside"]
    return "g.st"


def test_a_guard_of_it_scores_images(guard):
    result = flatfold("score", "photos", "--guard", guard, *NETWORK, "--with", EXAMPLE, "--out", "scores.csv")
    assert result.exit_code == 0, result.output
    assert len(Path("scores.csv").read_text().splitlines()) == 31


def test_a_guard_of_it_is_exported(guard):
    pytest.importorskip("onnxscript", reason="the extra [onnx] is not installed")
    result = flatfold("export", guard, *NETWORK, "--images", "photos", "--with", EXAMPLE, "--out", "g.onnx")
    assert result.exit_code == 0, result.output
    assert Path("g.onnx").stat().st_size > 0


def test_without_the_file_its_guard_is_refused(guard):
    result = flatfold("score", "photos", "--guard", guard, *NETWORK, "--out", "scores.csv")
    assert result.exit_code != 0
    assert "aside" in str(result.exception)


def test_the_file_is_run_before_anything_is_served(guard):
    pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'flatfold[serve]'")
    result = flatfold("serve", guard, *NETWORK, "--with", EXAMPLE, "--fpr", "2")  # a rate that is none ends it
    assert result.exit_code != 0
    assert "aside" in METHODS


def test_the_workers_of_a_cluster_do_not_run_it(guard):
    words = ("--guard", guard, *NETWORK, "--with", EXAMPLE, "--out", "scores.csv", "--engine", "ray")
    result = flatfold("score", "photos", *words)
    assert result.exit_code == 2
    assert "--with is for --engine local" in result.output


def test_it_is_in_the_tables_and_in_the_report(tmp_path):
    from tests.docs.belongings import suite

    suite()
    (toml,) = (b for b in blocks((ROOT / "docs/howto/benchmark.md").read_text(encoding="utf8")) if b.language == "toml")
    Path("mine.toml").write_text(toml.text)
    result = flatfold("bench", "mine.toml", "--with", EXAMPLE, "--methods", "msp,aside", "--bootstrap", "0")
    assert result.exit_code == 0, result.output
    assert "aside,nothing,textures" in Path("out/mine/results.csv").read_text()
    assert ">aside<" in Path("out/mine/report.html").read_text()


def test_the_example_is_the_sine_of_the_angle_to_the_nearest_mean():
    load_own([EXAMPLE])
    g = torch.Generator().manual_seed(0)
    features, labels = torch.rand(30, 5, generator=g, dtype=torch.float64), torch.arange(30) % 3
    head = ff.Head(torch.rand(3, 5, generator=g, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    h = torch.randn(7, 5, generator=g, dtype=torch.float64)
    means = torch.stack([features[labels == k].mean(0) for k in range(3)])
    angles = torch.tensor([[torch.dot(a, b) / a.norm() / b.norm() for b in means] for a in h], dtype=torch.float64)
    expected = angles.amax(1).clamp(min=0).arccos().sin()
    assert_close(ff.create("aside").fit(ff.FeatureBank(features, labels), head)(h), expected)
    with pytest.raises(ValueError, match=r"aside needs labels. Give FeatureBank\(features, labels\)"):
        ff.create("aside").fit(ff.FeatureBank(features), head)


def test_the_page_shows_the_example_and_both_are_short():
    (block,) = (b for b in blocks((ROOT / "docs/howto/own_method.md").read_text("utf8")) if b.language == "python")
    shown, file = (text[text.index("import torch") :] for text in (block.text, EXAMPLE.read_text(encoding="utf8")))
    assert shown == file
    assert len(shown.strip().splitlines()) < 30


def test_the_contract_of_all_methods_holds_for_the_example():
    """In a process of its own, where the example is registered before the tests are collected."""
    code = (
        "import sys, pytest; from pathlib import Path; from flatfold.cli.own import load_own; "
        f"load_own([Path({str(EXAMPLE)!r})]); "
        "sys.exit(pytest.main(['tests/test_contract.py', '-q', '-k', 'aside', '--no-cov', '-p', 'no:cacheprovider']))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= 30
