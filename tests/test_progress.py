"""The progress bar: there on a terminal, silent elsewhere."""

import io

from flatfold.progress import track


def test_items_pass_through_and_a_pipe_sees_nothing(capsys):
    assert list(track([1, 2, 3], "counting")) == [1, 2, 3]
    assert capsys.readouterr().err == ""


def test_a_terminal_sees_what_goes_on(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert list(track((i for i in range(3)), "counting")) == [0, 1, 2]
    assert list(track(range(3), "counting again")) == [0, 1, 2]
    assert "counting again" in terminal.getvalue()
