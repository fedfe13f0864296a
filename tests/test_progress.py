"""The progress bar: there on a terminal, silent elsewhere."""

import io
from contextlib import suppress

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


def test_work_inside_of_other_work_gets_a_line_of_its_own_and_gives_it_back(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    seen = [(outer, inner) for outer in track("ab", "outside") for inner in track([1, 2], f"inside {outer}")]
    assert seen == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert list(track([3], "afterwards")) == [3]
    assert "outside" in terminal.getvalue()


def test_work_that_fails_inside_leaves_the_bar_usable(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())

    def fails():
        for _ in track([1], "outside"):
            for _ in track([2], "inside"):
                raise ValueError("no")

    for _ in range(2):
        with suppress(ValueError):
            fails()
    assert list(track([3], "afterwards")) == [3]
