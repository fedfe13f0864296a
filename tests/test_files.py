"""`write_atomically`: the old file or the new one, never half of either; `sweep`: what no live process writes."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from flatfold.files import sweep, write_atomically, written


def test_text_and_bytes_replace_what_was_there(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_may_write_the_same_file(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_atomically(tmp_path / "file", text), ["a" * 10_000, "b" * 10_000] * 40))
    assert set((tmp_path / "file").read_text()) in ({"a"}, {"b"})
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_others_may_read_a_file_as_far_as_the_umask_allows(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "text")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
        assert os.umask(0o027) == 0o027  # looking at it did not change it
    finally:
        os.umask(before)


def dead_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def live_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.stdin.close()


def test_what_killed_processes_left_is_swept_away(tmp_path):
    names = [
        f"x.{dead_process()}.partial",
        f"y.{os.getpid()}.partial",
        "z.partial",
        f"w.{10**30}.partial",
        "v.0.partial",
    ]
    for name in names:
        (tmp_path / name).write_text("half")
    (tmp_path / f"whole.{dead_process()}").write_text("")
    sweep(tmp_path)
    assert [path.name.partition(".")[0] for path in tmp_path.iterdir()] == ["whole"]


def test_what_another_process_is_writing_is_spared(tmp_path, live_process):
    (tmp_path / f"manifest.json.{live_process}.partial").write_text("half")
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_process_of_somebody_else_is_writing_is_spared(tmp_path, monkeypatch):
    def refuse(process, signal):
        raise PermissionError

    (tmp_path / "x.77.partial").write_text("half")
    monkeypatch.setattr("os.kill", refuse)
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_this_process_is_writing_is_spared(tmp_path):
    with written(tmp_path / "file") as partial:
        partial.write_text("half")
        sweep(tmp_path)
        assert partial.read_text() == "half"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    partial.write_text("half")  # of an earlier process with this number
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_where_a_process_cannot_be_asked_nothing_of_others_is_swept(tmp_path, monkeypatch):
    (tmp_path / "x.77.partial").write_text("half")
    monkeypatch.setattr("flatfold.files.os.name", "nt")
    monkeypatch.setattr("os.kill", lambda *args: pytest.fail("signal 0 is Ctrl+C there"))
    partial = [*tmp_path.iterdir()]
    try:
        sweep(tmp_path)
    finally:
        monkeypatch.undo()
    assert [*tmp_path.iterdir()] == partial
