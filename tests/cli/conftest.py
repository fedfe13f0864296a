"""What the tests of several commands share: a folder with a network, guards and photos, and a terminal."""

from unittest.mock import Mock

import pytest

import flatfold as ff
from flatfold.data.images import ArrayImages
from tests.cli.images import TRANSFORM, network, photos, pixels, write_folder, write_network


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder: a network and its weights, two guards (``blind`` knows no transform), and 50 photos."""
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path)
    images = ArrayImages(*pixels(200), TRANSFORM)
    ff.Guard.fit(network(), images, method="fold", fpr=0.1).save("guard.safetensors")
    ff.Guard.fit(network(), list(images), method="fold", fpr=0.1).save("blind.safetensors")
    write_folder(tmp_path / "photos", photos())
    return tmp_path


@pytest.fixture
def terminal(monkeypatch):
    """Let rich print as if to a terminal without colours, as wide as COLUMNS says."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "dumb", "LINES": "50"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def interrupt(monkeypatch):
    """Let a function, named by its module, be interrupted as soon as it is called."""

    def interrupt(name):
        stop = Mock(side_effect=KeyboardInterrupt)
        monkeypatch.setattr(name, stop)
        return stop

    return interrupt


@pytest.fixture
def printed(capsys, monkeypatch):
    """Call a function, and return what it prints at a width."""

    def printed(function, *arguments, width=120):
        monkeypatch.setenv("COLUMNS", str(width))
        function(*arguments)
        return capsys.readouterr().out

    return printed
