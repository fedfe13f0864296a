"""The progress bar: there on a terminal, silent elsewhere."""

import io

import pytest

from flatfold.io.progress import track


def put_a_terminal(monkeypatch):
    """Replace stderr, in the test itself: pytest replaces it once more after the fixtures."""
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def test_items_pass_through_and_a_pipe_sees_nothing(capsys):
    assert list(track([1, 2, 3], "counting")) == [1, 2, 3]
    assert capsys.readouterr().err == ""


def test_a_terminal_sees_nested_bars_of_sequences_and_generators(monkeypatch):
    terminal = put_a_terminal(monkeypatch)
    seen = [(outer, inner) for outer in track("ab", "outside") for inner in track((i for i in range(2)), "inside")]
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert "outside" in terminal.getvalue()


def test_work_that_fails_inside_leaves_the_bar_usable(monkeypatch):
    terminal = put_a_terminal(monkeypatch)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            [1 / 0 for _ in track([1], "outside") for _ in track([2], "inside")]
    assert list(track([3], "afterwards")) == [3]
    assert "afterwards" in terminal.getvalue()
