"""The ``flatfold`` command in this process: a new one would take seconds to import torch."""

import io
import logging
import os
import sys
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from flatfold.cli import main
from flatfold.cli.output import ROOMS_OF_STEPS
from flatfold.detectors import METHODS


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def flatfold(*arguments, cwd=".", columns=120):
    """Run a command in a folder and leave no trace in this process; return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with ExitStack() as after, pytest.MonkeyPatch.context() as patch:
        for logger in map(logging.getLogger, ("flatfold", *ROOMS_OF_STEPS)):
            after.callback(logger.setLevel, logger.level)
        after.callback(_restore, METHODS, dict(METHODS))
        for entered in (chdir(cwd), redirect_stdout(out), redirect_stderr(err)):
            after.enter_context(entered)
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "argv", ["flatfold", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
    return Done(left.value.code, out.getvalue(), err.getvalue())


def _restore(methods, before):
    methods.clear()
    methods.update(before)


def uncovered_environment(**more):
    """Return the variables of this process without those by which coverage follows it, and some more.

    Coverage holds a lock while it looks at a call: an interrupt that comes just then leaves it locked for ever.
    """
    return {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")} | more
