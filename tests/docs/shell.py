"""The lines of a shell block, run as a reader would run them, in this process where that is quicker, or only parsed."""

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
from typer.main import get_command

from flatfold.cli import app
from flatfold.detectors import METHODS
from tests.command import flatfold
from tests.docs.page import ROOT

SERVICE = "http://127.0.0.1:8000"  # where `flatfold serve` listens unless told otherwise
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
MOVED = {"/path/to/OpenOOD": "openood", "cuda": "cpu"}
RECOGNISED = ("docker", "ray", "sbatch")  # containers, a cluster and a scheduler are nothing for a test


class Shell:
    """Runs lines in the current folder, and ends at its end what it has started."""

    def __init__(self):
        self.service = self.address = None
        self.answers = []
        self.said = None  # by the block above; None where none was run

    def run(self, line, options=(), only_parse=False, exit_code=0):
        """Run a line of a page with further options, or only look whether it could be run."""
        words = [expanded(word) for word in shlex.split(line, comments=True)]
        while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            name, _, value = words.pop(0).partition("=")
            os.environ[name] = value  # a page has an environment of its own
        known = {"flatfold": self.flatfold, "make": make, "pip": pip, "curl": self.curl, "python": self.python}
        assert words[0] in (*RECOGNISED, *known), f"{words[0]!r} is not a program that tests/docs/shell.py knows"
        if words[0] in RECOGNISED or (only_parse and words[0] != "pip"):
            parse(words)
        elif words[0] == "flatfold":
            self.flatfold(with_options(words[1:], options), exit_code)
        else:
            known[words[0]](words[1:])

    def flatfold(self, words, exit_code=0):
        """Run a command in this process, without the methods that the page registered; the service in another one."""
        if words[0] == "serve":
            self.serve(words)
            return
        words, target = (words[: words.index(">")], words[-1]) if ">" in words else (words, None)
        before = dict(METHODS)
        for name in [name for name, method in before.items() if not method.factory.__module__.startswith("flatfold.")]:
            del METHODS[name]
        done = flatfold(*(MOVED.get(word, word) for word in words), columns=160)  # or tables would cut words off
        METHODS.update(before)
        assert done.returncode == exit_code, f"flatfold {' '.join(words)}\n{done.stdout}{done.stderr}"
        self.said = (self.said or "") + done.stdout + done.stderr
        if target is not None:
            Path(target).write_text(done.stdout)

    def serve(self, words):
        """Start the service on a free port."""
        pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'flatfold[serve]'")
        self.close()
        command = [sys.executable, "-m", "flatfold", *words, "--port", "0"]
        self.service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []
        for line in self.service.stdout:
            lines.append(line)
            if found := re.search(r"http://[0-9.:]+[0-9]", line):
                self.address = found[0]
                return
        raise AssertionError("".join(lines))

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

    def python(self, words):
        """Run a script; one that asks the service asks that of this page."""
        python([word.replace(SERVICE, self.address) if self.address else word for word in words])

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
    """Of an installation only that it is one of torch, or of this package with extras that exist."""
    if words == ["install", "torch", "--index-url", "https://download.pytorch.org/whl/cpu"]:
        return
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


def click_command(words):
    """Return the click command that words call, and the words behind its name."""
    command = get_command(app)
    words = words[next((i for i, word in enumerate(words) if not word.startswith("-")), len(words)) :]
    while hasattr(command, "commands"):
        assert words, "a command is missing"
        assert words[0] in command.commands, f"flatfold has no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parse(words):
    """Look whether a command has the options that it is given; one of flatfold may follow another program's."""
    if words[:2] == ["python", "-m"]:
        place = ROOT / words[2].replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), f"there is no module {words[2]}"
    elif words[0] == "python":
        assert (ROOT / words[1]).exists(), f"there is no script {words[1]}"
    elif words[0] == "make":
        make(words[1:])
    elif "flatfold" in words:
        command, rest = click_command(words[words.index("flatfold") + 1 :])
        command.make_context(command.name, list(rest)).close()


def options_of(command):
    """Return the options that a command and those below it have, ``--help`` too."""
    named = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    below = (options_of(each) for each in getattr(command, "commands", {}).values())
    return {name for name in named if name.startswith("-")}.union({"--help"}, *below)


def check_options(lines, options):
    """Look whether at least one of the lines has each option that a comment adds to them."""
    commands = [shlex.split(line, comments=True) for line in lines]
    known = set().union(*(options_of(click_command(c[1:])[0]) for c in commands if c[0] == "flatfold"))
    unknown = [word for word in options if word.startswith("--") and word not in known]
    assert not unknown, f"no command of the block has {' '.join(unknown)}"


def with_options(words, options):
    """Return a command with other values for options, or with more; those that it does not have are left out."""
    known, words = options_of(click_command(words)[0]), list(words)
    for name, values in re.findall(r"(--\S+)((?: (?!--)\S+)*)", " ".join(options)):
        if name not in known:
            continue
        if name in words and values:
            words[words.index(name) + 1] = values.split()[0]
        elif name not in words:
            words += [name, *values.split()]
    return words


def make(words):
    """Look whether the Makefile has a target, without running it; ARGS=... may follow."""
    words = [word for word in words if "=" not in word]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE)
    assert set(words) <= set(targets), f"make has no target {words}"
