"""`io.cores`: cores of this process, minus what others take."""

import os

import pytest

from flatfold.io import cores


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Say how many cores there are, which quota, and how busy others are."""

    def describe(total, bound=None, quota="max 100000", busy=0.0):
        (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.setattr(cores, "QUOTAS", (str(tmp_path / "none"), str(tmp_path / "cpu.max")))
        monkeypatch.setattr(os, "cpu_count", lambda: total)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(bound or total)), raising=False)
        times = iter((10.0, 10.0 + busy * cores.GLANCE))
        monkeypatch.setattr(cores, "_busy_seconds", lambda: next(times))
        clock = iter((0.0, cores.GLANCE))
        monkeypatch.setattr("flatfold.io.clock.perf_counter", lambda: next(clock))
        monkeypatch.setattr(cores, "sleep", lambda _: None)

    return describe


def test_free_memory_is_limited_by_the_container(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "_kilobytes", lambda file, name: 10**10)
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    assert cores.free_memory() == 10**10, "there is no container"
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 1500\n")
    for limit, free in (("max", 10**10), ("5000", 3500), ("1000", 0)):
        (tmp_path / "memory.max").write_text(limit)
        assert cores.free_memory() == free


@pytest.mark.parametrize(
    ("facts", "usable", "free"),
    [
        ({"total": 8}, 8, 8),
        ({"total": 8, "busy": 3.1}, 8, 5),
        ({"total": 2, "busy": 2.0}, 2, 1),
        ({"total": 8, "bound": 2}, 2, 2),
        ({"total": 8, "bound": 4, "busy": 6.0}, 4, 2),
        ({"total": 8, "quota": "150000 100000"}, 2, 2),
        ({"total": 8, "quota": "10000 100000"}, 1, 1),
    ],
)
def test_cores_are_those_bound_within_the_quota_and_not_in_use(machine, facts, usable, free):
    machine(**facts)
    assert cores.usable_cores() == usable
    assert cores.free_cores() == free


def test_a_system_without_figures_counts_as_idle(monkeypatch):
    monkeypatch.setattr(cores, "_busy_seconds", lambda: None)
    assert cores.free_cores() == cores.usable_cores() >= 1
    assert cores._kilobytes("/nowhere", "MemAvailable") is None


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="this system has no /proc")
def test_memory_is_that_of_the_system():
    assert 0 < cores.own_memory() < cores.free_memory() + cores.own_memory()
    assert cores._busy_seconds() > 0
