"""`evaluate.reproduce.clock` with a clock that stands still unless it is told to go."""

import pytest
import torch

from flatfold.evaluate.reproduce import clock as module
from flatfold.evaluate.reproduce.clock import in_turn, settled


class Clock:
    """Time that passes only when an action says so."""

    def __init__(self, *steps):
        self.now, self.steps, self.calls = 0.0, list(steps), 0

    def __call__(self):
        return self.now

    def act(self):
        self.now += self.steps[min(self.calls, len(self.steps) - 1)]
        self.calls += 1


def test_the_first_round_warms_up_and_does_not_count(monkeypatch):
    clock = Clock(0.9, 0.1, 0.2, 0.3)
    monkeypatch.setattr(module, "perf_counter", clock)
    assert in_turn([clock.act], 3) == [pytest.approx([0.1, 0.2, 0.3])]
    assert clock.calls == 4


def test_what_takes_more_than_a_second_is_timed_once(monkeypatch):
    clock = Clock(1.5)
    monkeypatch.setattr(module, "perf_counter", clock)
    assert in_turn([clock.act], 9) == [[1.5]]
    assert clock.calls == 1


def test_every_action_has_its_turn_in_each_round(monkeypatch):
    order, slow = [], Clock(2.0)
    monkeypatch.setattr(module, "perf_counter", slow)
    in_turn([lambda: order.append("a"), lambda: order.append("slow") or slow.act(), lambda: order.append("b")], 2)
    assert order == ["a", "slow", "b", "a", "b", "a", "b"]


def test_the_device_is_waited_for_where_it_works_on_by_itself(monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", done.append)
    action = object()
    assert settled(action, "cpu") is action
    settled(lambda: done.append("told"), "cuda:1")()
    assert done == ["told", "cuda:1"]
