"""The scripts of `examples` run, and print what they are there to show."""

import re

import pytest

from tests.docs.page import ROOT
from tests.docs.shell import python

SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(name):
        python([str(ROOT / "examples" / name)])
        return capsys.readouterr().out

    return run


def test_a_guard_keeps_its_rate_and_finds_what_is_unknown(printed):
    out = printed("guard.py")
    known, unknown = (float(share) for share in re.findall(r"known: ([\d.]+) % of 500 raise an alarm", out))
    assert known < 8
    assert unknown > 90
    assert re.search(r"^unknown \(p = [\d.]+\): \d+ % of the curvature between ", out, re.MULTILINE)


def test_a_monitor_notices_the_hour_in_which_a_stream_changes(printed):
    lines = printed("stream.py").splitlines()
    assert [("not like" in line) for line in lines[:8]] == [False] * 4 + [True] * 4
    assert lines[8].startswith("1,600 inputs, ")


def test_every_script_has_a_test():
    """`own_method.py` has a file of its own; `cifar_resnet.py` is used by the suite file beside it."""
    assert set(SCRIPTS) == {"guard.py", "stream.py", "own_method.py", "cifar_resnet.py"}
