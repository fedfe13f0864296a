"""`io.store`: parts are whole or absent, and only those of the same key are taken over."""

import logging
import os
import subprocess
import sys
import time

import pytest
import torch

from flatfold.errors import DamagedFileError
from flatfold.io import store as store_module
from flatfold.io.store import MANIFEST, PartStore, read_manifest
from tests.refusals import assert_refused

KEY = {"weights": "w" * 64, "data": "d"}


def filled(folder, count=3):
    with PartStore(folder, KEY, {"rows": 30}) as store:
        for number in range(count):
            store.write(f"{number:05d}", {"x": torch.full((2, 2), float(number))}, {"unreadable": {"1": "cut"}})
    return folder


def test_parts_and_facts_come_back(tmp_path):
    filled(tmp_path / "s")
    with PartStore(tmp_path / "s", KEY, {"rows": 99}) as store:
        assert list(store) == ["00000", "00001", "00002"]
        assert len(store) == 3
        assert store.info == {"rows": 30}  # those of the first run
        part = store.read("00002")
        assert part.info == {"unreadable": {"1": "cut"}}
        assert part.tensors["x"].tolist() == [[2, 2], [2, 2]]
        assert "00003" not in store
        assert_refused(DamagedFileError, "cannot be read", store.read, "00003")
        store.update(complete=True)
    assert read_manifest(tmp_path / "s").info == {"rows": 30, "complete": True}


def test_a_damaged_exchanged_or_foreign_part_counts_as_absent(tmp_path, caplog):
    folder = filled(tmp_path / "s")
    other = tmp_path / "other"
    with PartStore(other, KEY | {"data": "e"}) as store:
        store.write("00000", {"x": torch.zeros(2, 2)})
    paths = sorted(folder.glob("0*"))
    whole = [path.read_bytes() for path in paths]
    flipped = bytearray(whole[0])
    flipped[-1] ^= 1
    for damaged in (whole[0][:-1], b"", bytes(flipped), whole[1], (other / "00000.safetensors").read_bytes()):
        paths[0].write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING), PartStore(folder, KEY) as store:
            assert list(store) == ["00001", "00002"]
        assert len(caplog.records) == 1
    with PartStore(folder, KEY) as store:
        store.write("00000", {"x": torch.zeros(2, 2)})
        assert "00000" in store


def test_a_part_is_kept_if_an_interrupt_comes_just_after_it_was_written(tmp_path, monkeypatch):
    def write_and_stop(*args):
        write_part(*args)
        raise KeyboardInterrupt

    write_part = store_module._write_part
    with PartStore(tmp_path / "s", KEY) as store:
        assert "00000" not in store  # which is remembered
        monkeypatch.setattr(store_module, "_write_part", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            store.write("00000", {"x": torch.ones(2)})
        assert list(store) == ["00000"]


def test_another_key_is_refused_unless_nothing_was_done(tmp_path):
    folder = filled(tmp_path / "s")
    assert_refused(ValueError, "another data", PartStore, folder, KEY | {"data": "x"})
    assert_refused(ValueError, "another data and weights", PartStore, folder, {"data": "x", "weights": "y"})
    with PartStore(folder, {"data": "x"}, restart=True) as store:
        assert len(store) == 0
    PartStore(folder, KEY).close()  # nothing was written meanwhile
    (tmp_path / "file").write_text("x")
    assert_refused(NotADirectoryError, "file", PartStore, tmp_path / "file", KEY)
    (filled(tmp_path / "t") / MANIFEST).write_text("{")
    assert_refused(ValueError, MANIFEST, PartStore, tmp_path / "t", KEY)


def test_reading_writes_nothing_and_removing_leaves_nothing(tmp_path):
    with PartStore(tmp_path / "none", KEY) as store:
        assert "00000" not in store
    assert not (tmp_path / "none").exists()
    folder = filled(tmp_path / "s")
    before = sorted(path.name for path in folder.iterdir())
    with PartStore(folder, KEY) as store:
        store.read("00000")
    assert sorted(path.name for path in folder.iterdir()) == before
    for name in ("", "../x", "a/b", ".hidden"):
        assert_refused(ValueError, "name", PartStore(folder, KEY).write, name, {})
    with PartStore(folder, KEY) as store:
        store.remove()
    assert not folder.exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no flock")
def test_two_processes_do_not_write_at_once_and_a_killed_one_leaves_whole_parts(tmp_path):
    code = (
        "import sys, torch; from pathlib import Path; from flatfold.io.store import PartStore\n"
        f"store = PartStore(Path(sys.argv[1]), {KEY!r})\n"
        "for n in range(10**6): store.write(f'{n:05d}', {'x': torch.full((1000,), float(n))})"
    )
    folder = tmp_path / "s"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)]) as process:
        while not (folder / "00003.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.01)
        assert_refused(BlockingIOError, "another process", PartStore(folder, KEY).write, "a", {})
        assert_refused(BlockingIOError, "another process", lambda: PartStore(folder, KEY, lock=True))
        process.kill()
    with PartStore(folder, KEY, lock=True) as store:
        assert len(store) >= 4
        assert all(store.read(name).tensors["x"][0] == int(name) for name in store)
        store.write("00000", {})
