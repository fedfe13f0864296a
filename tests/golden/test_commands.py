"""Option names and exit codes of every command, and one process of each."""

import subprocess
import sys

import pytest
from typer.main import get_command

from flatfold.cli import app
from tests.command import flatfold
from tests.golden.pins import check


def commands(command, path=()):
    """Yield every command with its path."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from commands(each, (*path, name))
    else:
        yield path, command


EVERY = {" ".join(path): command for path, command in commands(get_command(app))}
EXIT_CODES = {
    "methods": 0,
    "--version": 0,
    "--help": 0,
    "fly": 2,
    "bench": 2,
    "bench cifar11": 1,
    "bench digits --methods fould": 1,
    "bench digits --batch-size 0": 2,
    "bench nowhere.toml": 1,
    "curvature digits --alpha 2": 2,
    "curvature digits --loss mse": 1,
    "reproduce nowhere.toml": 1,
    "doctor nowhere.toml": 1,
    "compare nowhere elsewhere": 1,
    "paper nowhere": 1,
    "report nowhere": 1,
    "fit nowhere": 2,
    "fit nowhere --model nets:tiny --out g.safetensors": 1,
    "score": 2,
    "score nowhere --guard nowhere.safetensors --model nets:tiny --out s.csv": 1,
    "join s.csv": 2,
    "serve nowhere.safetensors": 1,
    "export nowhere.safetensors --model nets:tiny --images nowhere": 1,
    "suite init": 2,
}


def test_option_names():
    found = {}
    for name, command in EVERY.items():
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        found[name] = sorted(options)
    check("options", found)


def test_exit_codes(tmp_path):
    """Whatever was wrong, nothing is written and no traceback is shown."""
    found = {}
    for line in EXIT_CODES:
        done = flatfold(*line.split(), cwd=tmp_path)
        found[line] = done.returncode
        assert "Traceback" not in done.stderr, line
        assert done.returncode == 0 or done.stderr, line
    assert found == EXIT_CODES
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", EVERY)
def test_a_process_of_each_command_starts_without_torch(name):
    """Help is instant because torch, which takes seconds, is not imported for it."""
    code = f"import sys; sys.argv[1:] = {[*name.split(), '--help']!r}; from flatfold.cli import main\ntry: main()\n"
    code += "except SystemExit as left: assert left.code == 0\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"flatfold {name}" in done.stdout


def test_guards_are_imported_without_the_compiler_of_torch_and_without_figures():
    """Each of these takes longer than flatfold itself."""
    slow = ("torch._dynamo", "matplotlib", "scipy.stats", "transformers", "onnxruntime", "pyarrow")
    code = f"import sys, flatfold as ff; ff.Guard, ff.create; sys.exit(str([n for n in {slow} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "[]\n"


def test_the_installed_program_answers(tmp_path):
    done = subprocess.run([sys.executable, "-m", "flatfold", "methods"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "autofold" in done.stdout
