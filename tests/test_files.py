"""`write_atomically`: the old file or the new one, never half of either."""

import os
import stat

import pytest

from flatfold.files import write_atomically


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


def test_others_may_read_a_file_as_far_as_the_umask_allows(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "text")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
        assert os.umask(0o027) == 0o027  # looking at it did not change it
    finally:
        os.umask(before)
