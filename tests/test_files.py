"""`write_atomically`: the old file or the new one, never half; `sweep` and `opened_alone`: who else is writing."""

import hashlib
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from flatfold.files import opened_alone, sha256_of, sweep, write_atomically, written


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


def test_only_files_of_one_name_are_swept_if_that_is_wanted(tmp_path):
    names = ["out[1].csv.0.0.partial", "out[1].csv.summary.json.0.0.partial", "out1.csv.0.0.partial", "out.0.partial"]
    for name in names:
        (tmp_path / name).write_text("half")
    sweep(tmp_path, "out[1].csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[2:])


def test_the_sha256_is_that_of_all_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_a_file_is_opened_by_one_at_a_time_and_kept_as_it_is(tmp_path):
    path = tmp_path / "file"
    with opened_alone(path) as file:
        file.write(b"text")
        file.flush()
        message = r"file is being written by another process\. Wait for it to end, or choose another place"
        with pytest.raises(BlockingIOError, match=message):
            opened_alone(path)
    with opened_alone(path) as file:
        assert file.read() == b"text"


def test_a_file_that_is_removed_while_it_is_opened_is_made_anew(tmp_path, monkeypatch):
    path, rounds = tmp_path / "file", []

    def flock(file, how):
        if not rounds:
            path.unlink()
        rounds.append(how)

    monkeypatch.setattr("fcntl.flock", flock)
    with opened_alone(path) as file:
        file.write(b"text")
    assert path.read_bytes() == b"text"
    assert len(rounds) == 2


def test_where_there_are_no_locks_files_are_opened_all_the_same(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with opened_alone(tmp_path / "file") as file:
        assert file.read() == b""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with opened_alone(tmp_path / "file") as file:
        assert file.read() == b""
