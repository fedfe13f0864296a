"""Atomic writes (the old file or the new one, never half), removal of what killed processes left, and locks."""

import errno
import hashlib
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors import SafetensorError

import flatfold as ff
from flatfold.data.banks import save_bank
from flatfold.io import files
from flatfold.io.artifacts import write_tensors
from flatfold.io.files import (
    LOCK,
    check_writable,
    lock_folder,
    locked,
    publishing,
    replacing,
    sha256_of,
    sweep,
    write_atomically,
    write_together,
)


def test_a_write_replaces_the_file_and_a_failed_one_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "older")
    write_atomically(path, b"old")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_complete_and_whoever_is_killed_leaves_nothing_in_the_watched_folder(tmp_path):
    watched = tmp_path / "new" / "watched"
    code = "import os, sys; from pathlib import Path; from flatfold.io.files import publishing\n"
    code += "with publishing(Path(sys.argv[1], 'model'), Path(sys.argv[1])) as folder:\n"
    code += "    (folder / 'file').write_text('half'); os._exit(9)"
    for place in (tmp_path, watched.parent):  # without the watched folder, and with it
        assert subprocess.run([sys.executable, "-c", code, watched]).returncode == 9
        assert [path.parents[2] for path in tmp_path.rglob("file")] == [place]
        sweep(place)
        watched.mkdir(parents=True, exist_ok=True)
        assert not any(watched.iterdir())
    with publishing(watched / "model", watched) as folder:
        (folder / "1").mkdir()
        (folder / "1" / "file").write_text("all")
        assert watched.is_dir()
        assert not any(watched.iterdir())
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "new", "new/watched", "new/watched/model", "new/watched/model/1", "new/watched/model/1/file"
    ]  # fmt: skip
    with pytest.raises(OSError, match="model"), publishing(watched / "model", watched):  # it is there: nothing changes
        pass
    assert (watched / "model" / "1" / "file").read_text() == "all"
    assert len(list(watched.iterdir())) == 1


def test_a_folder_is_filled_inside_of_the_watched_one_where_it_cannot_be_outside(tmp_path, monkeypatch):
    watched = tmp_path / "watched"
    watched.mkdir()
    monkeypatch.setattr("os.access", lambda place, mode: Path(place) != tmp_path)
    with publishing(watched / "model", watched) as folder:
        assert folder.parent.parent == watched
    assert [path.name for path in watched.iterdir()] == ["model"]


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


def leave(folder, process, host=files._HOST):
    """Leave what a killed process leaves, and return its name."""
    left = folder / f".flatfold-tmp-{host}-{process}-abcd_123"
    left.mkdir()
    (left / "file").write_text("half")
    (left / ".tmpAbCdEf").write_text("of safetensors")
    return left.name


@pytest.fixture
def dead():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_killed_processes_of_this_machine_left_is_removed_by_the_next_write(tmp_path, dead):
    for process in (dead, os.getpid(), 0, 10**17):
        leave(tmp_path, process)
    write_atomically(tmp_path / "file", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_files_that_are_not_ours_stay(tmp_path, dead):
    """Also what earlier versions took for theirs, and folders of other machines."""
    file = f".flatfold-tmp-{files._HOST}-{dead}-x"  # we make folders only
    for name in ("thesis.partial", f"out.csv.0.{dead}.partial", ".tmpAbCdEf", ".lock", file):
        (tmp_path / name).write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("mine")
    (tmp_path / f".flatfold-tmp-{files._HOST}-{dead}-link").symlink_to(tmp_path / "elsewhere")
    leave(tmp_path, dead, "0123456789ab")
    leave(tmp_path, f"x{dead}")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    save_bank(ff.FeatureBank(torch.ones(2, 3)), tmp_path)
    sweep(tmp_path)
    after = {path.name for path in tmp_path.rglob("*")}
    assert after == {*before, "manifest.json", "00000.safetensors"}


def test_nothing_is_written_through_a_link(tmp_path, monkeypatch):
    """The folder is new and closed to others; where its name exists already, another one is taken."""
    (tmp_path / "target").mkdir()
    names = iter(["taken", "free"])
    monkeypatch.setattr("tempfile._get_candidate_names", lambda: names)
    start = f".flatfold-tmp-{files._HOST}-{os.getpid()}-"
    files._in_use[f"{start}taken"] = tmp_path / f"{start}taken"
    (tmp_path / f"{start}taken").symlink_to(tmp_path / "target")
    with replacing(tmp_path / "file") as partial:
        partial.write_text("text")
        assert partial.parent.name == f"{start}free"
        assert stat.S_IMODE(partial.parent.stat().st_mode) == 0o700
    assert not any((tmp_path / "target").iterdir())
    (tmp_path / LOCK).symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="cannot be written"):
        lock_folder(tmp_path)
    assert not (tmp_path / "made").exists()


def test_what_another_process_is_writing_is_spared(tmp_path, monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        left = [leave(tmp_path, process.pid)]
        sweep(tmp_path)
        assert os.listdir(tmp_path) == left
        process.stdin.close()
    monkeypatch.setattr("os.kill", Mock(side_effect=PermissionError))  # a process of another user
    sweep(tmp_path)
    monkeypatch.setattr("os.name", "nt")
    monkeypatch.setattr("os.kill", lambda *args: pytest.fail("signal 0 is Ctrl+C there"))
    sweep(tmp_path)
    assert os.listdir(tmp_path) == left


def test_what_this_process_is_writing_is_spared(tmp_path):
    with replacing(tmp_path / "file") as partial:
        partial.write_text("half")
        sweep(tmp_path)
        assert partial.read_text() == "half"
    assert os.listdir(tmp_path) == ["file"]


def test_files_are_replaced_together_or_not_at_all(tmp_path, monkeypatch):
    write_together(tmp_path, {"a": "old", "b": b"old"})
    monkeypatch.setattr("os.fsync", Mock(side_effect=[None, OSError(errno.ENOSPC, "full")]))
    with pytest.raises(OSError, match=r"a cannot be written: No space left on device. Free some space"):
        write_together(tmp_path, {"a": "new", "b": "new"})
    assert {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path)} == {"a": "old", "b": "old"}


def test_a_full_disk_under_tensors_is_an_error_of_the_system(tmp_path, monkeypatch):
    full = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    monkeypatch.setattr("flatfold.io.artifacts.save_file", Mock(side_effect=full))
    with pytest.raises(OSError, match=r"x cannot be written: No space left on device. Free some space"):
        write_tensors(tmp_path / "x", "", {})


def test_a_folder_that_cannot_be_written_is_noticed_before_the_work(tmp_path, monkeypatch):
    check_writable(tmp_path / "new" / "deep")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError, match="file is a file"):
        check_writable(tmp_path / "file" / "deep")
    monkeypatch.setattr("os.mkdir", Mock(side_effect=OSError(errno.EROFS, "read-only")))
    with pytest.raises(OSError, match=r"cannot be written: Read-only file system. Change its permissions"):
        check_writable(tmp_path)


def test_a_folder_is_locked_by_one_at_a_time(tmp_path):
    for folder in (tmp_path, tmp_path / "new" / "deep"):
        with locked(folder):
            with pytest.raises(BlockingIOError, match="another process"), locked(folder):
                pass
            assert os.listdir(folder) == [LOCK]
        assert os.listdir(tmp_path) == []


def test_a_checksum_is_that_of_all_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_a_lock_that_is_removed_while_it_is_opened_is_made_anew(tmp_path, monkeypatch):
    rounds = []

    def flock(file, how):
        if not rounds:
            (tmp_path / LOCK).unlink()
        rounds.append(how)

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert len(rounds) == 2


def test_where_there_are_no_locks_folders_are_used_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(38, "Function not implemented")))
    with locked(tmp_path), locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert not list(tmp_path.iterdir())
