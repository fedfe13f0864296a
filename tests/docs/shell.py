"""The lines of a shell block, run as a reader would run them, but in this process where that is quicker."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from runpy import run_path

import pytest
from typer.testing import CliRunner

from flatfold.cli import app
from tests.docs.commands import make, methods_as_they_were, parse, with_options

ROOT = Path(__file__).parents[2]
SERVICE = "http://127.0.0.1:8000"  # where `flatfold serve` listens unless told otherwise
MOVED = {"/where/openood/lies": "openood", "cuda": "cpu"}
WIDE = {"COLUMNS": "160"}  # or tables would cut words off
# Programs that are not run, with the reason.
RECOGNISED = {
    "ray": "a cluster is nothing for a test; the tests of the engine start one for themselves",
    "sbatch": "a scheduler is nothing for a test",
}


class Shell:
    """Runs lines in the current folder, and ends at its end what it has started."""

    def __init__(self):
        self.service = None
        self.address = None
        self.answers = []
        self.said = None  # by the block above; None where none was run

    def run(self, line, options=(), only_parse=False, exit_code=0):
        """Run a line, or only look whether it could be.

        Args:
            line: As it stands on the page.
            options: To add to a command of flatfold that has them.
            only_parse: Whether to run nothing.
            exit_code: What a command of flatfold must leave with.
        """
        words = [expanded(word) for word in shlex.split(line, comments=True)]
        while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            name, _, value = words.pop(0).partition("=")
            os.environ[name] = value  # a page has an environment of its own
        known = {"flatfold": self.flatfold, "make": make, "pip": pip, "curl": self.curl, "python": python}
        if words[0] in RECOGNISED:
            parse(words)
            return
        if words[0] not in known:
            raise AssertionError(f"{words[0]!r} is not a program that tests/docs/shell.py knows: {line}")
        if only_parse and words[0] != "pip":
            parse(words)
        elif words[0] == "flatfold":
            self.flatfold(with_options(words[1:], options), exit_code)
        else:
            known[words[0]](words[1:])

    def flatfold(self, words, exit_code=0):
        """Run a command in this process; the service in another one."""
        if words[0] == "serve":
            self.serve(words)
            return
        target = None
        if ">" in words:
            words, target = words[: words.index(">")], words[-1]
        with methods_as_they_were():
            result = CliRunner(env=WIDE).invoke(app, [MOVED.get(word, word) for word in words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exit_code, f"flatfold {' '.join(words)}\n{result.output}"
        self.said = (self.said or "") + result.output
        if target is not None:
            Path(target).write_text(result.stdout)

    def serve(self, words):
        """Start the service on a free port."""
        pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'flatfold[serve]'")
        self.close()
        command = [sys.executable, "-m", "flatfold", *words, "--port", "0"]
        self.service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        told = []
        for line in self.service.stdout:
            told.append(line)
            if found := re.search(r"http://[0-9.:]+[0-9]", line):
                self.address = found[0]
                return
        raise AssertionError("".join(told))

    def curl(self, words):
        """Ask the service."""
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        assert self.address, "curl asks a service that no line above has started"
        asked = [word.replace(SERVICE, self.address) for word in words]
        command = ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "30", *asked]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        self.answers.append(done.stdout)
        self.said = (self.said or "") + done.stdout

    def close(self):
        """End the service, if there is one, as Ctrl+C does."""
        if self.service is not None:
            self.service.terminate()
            self.service.communicate(timeout=30)
            self.service = None


def expanded(word):
    """Put the values of environment variables in place of their names; one that is not set fails."""
    return re.sub(r"\$(\w+)", lambda found: os.environ[found[1]], word)


def pip(words):
    """Of an installation only that it is one of this package, with extras that exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["optional-dependencies"]
    assert words[0] == "install", "pip is here to install"
    for word in words[1:]:
        found = re.fullmatch(r"(\.|flatfold)(?:\[([\w,]+)\])?", word)
        assert found, f"{word} is not this package"
        assert set((found[2] or "").split(",")) - {""} <= set(extras), f"{word} names an extra that does not exist"


def python(words):
    """Run a script, in this process: torch takes long to import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(words[0]).resolve().parent))
        patch.setattr(sys, "argv", words)
        before = set(sys.modules)
        run_path(words[0], run_name="__main__")
        for name in set(sys.modules) - before:
            if "examples" in (getattr(sys.modules[name], "__file__", None) or ""):
                del sys.modules[name]  # its own neighbours: another script may have namesakes
