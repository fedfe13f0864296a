"""Atomic writes (the old file or the new one, never half), sweeping of partial files, and files opened alone."""

import hashlib
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from flatfold.io.files import open_exclusive, replacing, sha256_of, sweep, write_atomically


def test_a_write_replaces_the_file_and_a_failed_one_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "older")
    write_atomically(path, b"old")
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


def names_after_sweep(folder, *names, only=()):
    for name in names:
        (folder / name).write_text("half")
    sweep(folder, *only)
    return sorted(path.name for path in folder.iterdir())


def test_what_killed_processes_left_is_swept_away(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    whole, names = (
        f"whole.{dead.pid}",
        [f"x.{dead.pid}.partial", f"y.{os.getpid()}.partial", "z.partial", f"w.{10**30}.partial", "v.0.partial"],
    )
    assert names_after_sweep(tmp_path, *names, whole) == [whole]
    names = ["out.0.partial", "out1.csv.0.0.partial", "out[1].csv.0.0.partial", "out[1].csv.summary.json.0.0.partial"]
    assert names_after_sweep(tmp_path, *names, only=["out[1].csv"]) == sorted([*names[:2], whole])


def test_what_another_process_is_writing_is_spared(tmp_path, monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = f"manifest.json.{process.pid}.partial"
        assert names_after_sweep(tmp_path, name) == [name]
        process.stdin.close()
    monkeypatch.setattr("os.kill", Mock(side_effect=PermissionError))  # a process of another user
    assert "x.77.partial" in names_after_sweep(tmp_path, "x.77.partial")


def test_what_this_process_is_writing_is_spared(tmp_path):
    with replacing(tmp_path / "file") as partial:
        partial.write_text("half")
        sweep(tmp_path)
        assert partial.read_text() == "half"
    assert names_after_sweep(tmp_path, partial.name) == ["file"]  # of an earlier process with this number


def test_where_a_process_cannot_be_asked_nothing_of_others_is_swept(tmp_path):
    partial = tmp_path / "x.77.partial"
    partial.write_text("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flatfold.io.files.os.name", "nt")
        patch.setattr("os.kill", lambda *args: pytest.fail("signal 0 is Ctrl+C there"))
        sweep(tmp_path)
    assert partial.exists()


def test_a_file_is_opened_by_one_at_a_time_and_kept_as_it_is(tmp_path):
    path = tmp_path / "file"
    with open_exclusive(path) as file:
        file.write(b"abc" * 100_000)
        file.flush()
        with pytest.raises(BlockingIOError, match="another process"):
            open_exclusive(path)
    with open_exclusive(path) as file:
        assert file.read() == b"abc" * 100_000
    assert sha256_of(path) == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_a_file_that_is_removed_while_it_is_opened_is_made_anew(tmp_path, monkeypatch):
    path, rounds = tmp_path / "file", []

    def flock(file, how):
        if not rounds:
            path.unlink()
        rounds.append(how)

    monkeypatch.setattr("fcntl.flock", flock)
    with open_exclusive(path) as file:
        file.write(b"text")
    assert path.read_bytes() == b"text"
    assert len(rounds) == 2


def test_where_there_are_no_locks_files_are_opened_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(38, "Function not implemented")))
    with open_exclusive(tmp_path / "file") as file:
        assert file.read() == b""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with open_exclusive(tmp_path / "file") as file:
        assert file.read() == b""
