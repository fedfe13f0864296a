"""Commands in processes of their own that start in milliseconds, and that fail or die at a chosen step.

A step is a call that changes the file system: it opens a file for writing, makes a folder, syncs or renames. Processes
are forked from one that has imported torch once.
"""

import atexit
import builtins
import io
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest

from flatfold.cli import main

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "flatfold.cli", "flatfold.evaluate.runner", "flatfold.evaluate.study", "flatfold.network.model_loading",
        "flatfold.passes.local", "flatfold.report.page", "flatfold.scoring.shards", "matplotlib.figure", "pydantic",
        "rich.table", "tests.hostile.forked",
    ]
)  # fmt: skip
UNCAUGHT = 70  # exit code for an exception that left the command
STEPS = ("mkdir", "fsync", "replace", "rename", "unlink", "rmdir")


class Done(NamedTuple):
    """A process that has ended: its exit code, -9 if it was killed, and what it printed."""

    returncode: int
    stdout: str
    stderr: str
    steps: int


class Fault(NamedTuple):
    """What happens at a step, counted from 1: a signal that the process gets, or the number of a system error."""

    step: int
    signal: int = 0
    error: int = 0


class Steps:
    """Counts the steps of this process below a folder, and lets one fail."""

    def __init__(self, fault):
        self.count, self.fault = 0, fault

    def take(self):
        self.count += 1
        if self.fault is None or self.count < self.fault.step:
            return
        if self.fault.signal and self.count == self.fault.step:
            os.kill(os.getpid(), self.fault.signal)
        if self.fault.error:  # a disk stays full
            raise OSError(self.fault.error, os.strerror(self.fault.error))

    def install(self, patch):
        """Count the calls of this process until the patches are undone."""
        for name in STEPS:
            patch.setattr(os, name, self._counted(getattr(os, name), name))
        opened = io.open

        def open_counted(file, mode="r", *args, **options):
            if isinstance(file, (str, os.PathLike)) and set(mode) & set("wax+") and "/dev/" not in str(file):
                self.take()
            return opened(file, mode, *args, **options)

        patch.setattr(io, "open", open_counted)
        patch.setattr(builtins, "open", open_counted)

    def _counted(self, call, name):
        def counted(*args, **options):
            freeing = name in ("unlink", "rmdir")
            if not (freeing and self.fault is not None and self.fault.error):  # a full disk lets files be removed
                self.take()
            return call(*args, **options)

        return counted


def run(*arguments, cwd=".", fault=None, kill_after=None, memory=None, file_size=None, **environment):
    """Run a command in a process of its own, which a fault or SIGKILL after some seconds may end.

    It may take ``memory`` bytes of addresses more than it has at its start, and write files of ``file_size`` bytes.
    """
    limits = {"memory": memory, "file_size": file_size}
    out, err = (Path(cwd, f".std{name}") for name in ("out", "err"))
    out.touch()
    err.touch()
    mine, theirs = _context.Pipe(duplex=False)
    words = ("flatfold", *map(str, arguments))
    process = _context.Process(target=_work, args=(words, str(cwd), fault, limits, environment, theirs))
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("COVERAGE"):
                patch.delenv(name)
        process.start()
    theirs.close()
    if kill_after is not None:
        process.join(kill_after)
        process.kill()
    try:
        code, steps = mine.recv()
    except EOFError:
        code, steps = None, 0
    process.join(120)
    assert process.exitcode is not None, "the command hangs"
    done = Done(process.exitcode if code is None else code, out.read_text(), err.read_text(), steps)
    for path in (out, err):
        path.unlink()
    return done


def _work(words, folder, fault, limits, environment, pipe):
    """Run the command in this process, with its standard streams in files."""
    os.chdir(folder)
    os.environ.update(environment)
    for stream, name in ((1, ".stdout"), (2, ".stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout, sys.stderr = (open(stream, "w", encoding="utf-8", closefd=False) for stream in (1, 2))  # noqa: SIM115
    sys.argv[:] = words
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if limits["memory"] is not None:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + limits["memory"], resource.RLIM_INFINITY))
    if limits["file_size"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_size"], resource.RLIM_INFINITY))
    steps, code = Steps(fault), None
    with pytest.MonkeyPatch.context() as patch:
        steps.install(patch)
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            code = UNCAUGHT
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()  # a forked process does not
    pipe.send((code, steps.count))
    pipe.close()
    os._exit(0)
