"""Seconds of calls, by a made-up clock: what is timed, in which order, and when it ends."""

from functools import partial

import pytest

from flatfold.io.clock import time_call, time_in_turn


@pytest.fixture
def clock(monkeypatch):
    """Calls that take the seconds they are given, and their names in order."""
    now, order = [0.0], []
    monkeypatch.setattr("flatfold.io.clock.perf_counter", lambda: now[0])

    def spend(name, seconds):
        now[0] += seconds
        order.append(name)

    return partial(partial, spend), order


def test_calls_take_turns_until_the_rounds_or_the_seconds_are_over(clock):
    taking, order = clock
    assert time_call(taking("a", 3)) == 3
    calls = [taking("a", 1), taking("b", 2)]
    assert time_in_turn(calls, 2) == [[1, 1], [2, 2]]
    assert "".join(order) == "a" + "abab"
    assert time_in_turn(calls, 9, limit=4) == [[1, 1], [2, 2]], "a round that has begun is finished"
    assert time_in_turn(calls, 9, limit=3) == [[1], [2]]
