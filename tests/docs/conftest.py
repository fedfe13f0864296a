"""A folder, a namespace and a shell for every page."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from flatfold.detectors import METHODS
from flatfold.evaluate.suites import digits as digits_suite
from tests.docs.belongings import BELONGINGS
from tests.docs.shell import Shell


@pytest.fixture
def reader(digits, tmp_path, monkeypatch):
    """Return a function that gives a reader what they have, by words, and returns their namespace of Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(digits_suite, "EPOCHS", 1)  # one more would show nothing else
    methods, modules, environment = dict(METHODS), set(sys.modules), dict(os.environ)

    def having(words):
        names = {"__name__": "page"}
        for word in words:
            if "=" in word:
                monkeypatch.setenv(*word.split("=", 1))
            elif word == "digits":
                shutil.copytree(digits, Path("out", "digits"))
            else:
                assert word in BELONGINGS, f"no belonging is called {word!r}. Known: {', '.join(BELONGINGS)}, digits."
                names |= BELONGINGS[word]()
        return names

    yield having
    METHODS.clear()
    METHODS.update(methods)
    os.environ.clear()
    os.environ.update(environment)
    for name in set(sys.modules) - modules:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def shell():
    made = Shell()
    yield made
    made.close()
