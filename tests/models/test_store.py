"""`models.store`: what was saved comes back, mapped; what was altered does not."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from flatfold.core.bank import FeatureBank
from flatfold.core.errors import DamagedBank
from flatfold.files import sha256_of, written
from flatfold.models.store import load_bank, save_bank

SHARD = "features-00000.safetensors"


def make_bank(n=20, d=4, labelled=True, dtype=torch.float32):
    g = torch.Generator().manual_seed(n)
    return FeatureBank(torch.randn(n, d, generator=g, dtype=dtype), torch.arange(n) % 3 if labelled else None)


def edit(folder, **changes):
    """Rewrite entries of the manifest as an attacker or an accident might."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def replace_shard(folder, tensors):
    """Put other tensors in place of the first shard, with a checksum that fits."""
    save_file(tensors, folder / SHARD)
    edit(folder, shards=[{"file": SHARD, "rows": 20, "sha256": sha256_of(folder / SHARD), "unreadable": {}}])


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_bank_comes_back_as_it_was(tmp_path, labelled, dtype):
    bank = make_bank(labelled=labelled, dtype=dtype)
    save_bank(bank, tmp_path / "new" / "bank")
    loaded = load_bank(str(tmp_path / "new" / "bank"))
    assert torch.equal(loaded.features, bank.features)
    assert torch.equal(loaded.labels, bank.labels) if labelled else loaded.labels is None
    assert sorted(path.name for path in (tmp_path / "new" / "bank").iterdir()) == [SHARD, "manifest.json"]


def test_a_strided_view_is_saved_as_its_rows(tmp_path):
    bank = make_bank()
    save_bank(bank[::2], tmp_path)
    assert torch.equal(load_bank(tmp_path).features, bank.features[::2])


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_bank_of_one_shard_is_mapped_and_not_copied(tmp_path):
    save_bank(make_bank(50_000, 16), tmp_path)
    bank = load_bank(tmp_path)
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if line.endswith(str(tmp_path / SHARD))]
    (start, stop), *_ = [(int(a, 16), int(b, 16)) for a, b in ranges]
    assert start <= bank.features.data_ptr() < stop
    assert start <= bank.labels.data_ptr() < stop


def test_writing_to_a_mapped_bank_does_not_change_the_file(tmp_path):
    save_bank(make_bank(), tmp_path)
    load_bank(tmp_path).features.zero_()
    assert torch.equal(load_bank(tmp_path).features, make_bank().features)


def test_a_bank_can_be_saved_over_the_one_it_is_mapped_from(tmp_path):
    save_bank(make_bank(), tmp_path)
    save_bank(load_bank(tmp_path)[:5], tmp_path)
    assert torch.equal(load_bank(tmp_path).features, make_bank().features[:5])


def test_saving_removes_the_shards_of_an_older_bank(tmp_path):
    (tmp_path / "features-00001.safetensors").write_bytes(b"old")
    save_bank(make_bank(), tmp_path)
    assert not (tmp_path / "features-00001.safetensors").exists()


def test_a_save_that_fails_leaves_the_old_bank(tmp_path, monkeypatch):
    save_bank(make_bank(), tmp_path)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("flatfold.models.store.save_file", full)
    with pytest.raises(OSError, match="No space"):
        save_bank(make_bank(7), tmp_path)
    assert len(load_bank(tmp_path)) == 20
    assert not list(tmp_path.glob("*.partial"))


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def stop_half_way():
        with written(path) as partial:
            partial.write_text("ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_reaches_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("sync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("rename"), replace(*paths)))
    with written(tmp_path / "file") as partial:
        partial.write_text("new")
    assert events == ["sync", "rename", "sync"]  # the last one is the directory


def test_a_path_without_a_bank_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no bank at .*nowhere: no such directory\. Check the path"):
        load_bank(tmp_path / "nowhere")
    with pytest.raises(DamagedBank, match=r"is no bank: it has no manifest.json\. Check the path, or extract again"):
        load_bank(tmp_path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_in_a_shard_is_found(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bank")
    save_bank(make_bank(), folder)
    content = bytearray((folder / SHARD).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / SHARD).write_bytes(content)
    with pytest.raises(DamagedBank, match=f"{SHARD} is not as it was written: it is missing, cut short or altered"):
        load_bank(folder)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_in_the_manifest_never_gives_another_bank(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bank")
    save_bank(make_bank(), folder)
    content = bytearray((folder / "manifest.json").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "manifest.json").write_bytes(content)
    try:
        bank = load_bank(folder)
    except DamagedBank:
        return
    assert torch.equal(bank.features, make_bank().features)
    assert torch.equal(bank.labels, make_bank().labels)


def test_without_verification_a_shard_that_cannot_be_parsed_is_still_refused(tmp_path):
    save_bank(make_bank(), tmp_path)
    (tmp_path / SHARD).write_bytes((tmp_path / SHARD).read_bytes()[:-4])
    with pytest.raises(DamagedBank, match=f"{SHARD} cannot be read: "):
        load_bank(tmp_path, verify=False)
    (tmp_path / SHARD).unlink()
    with pytest.raises(DamagedBank, match=f"{SHARD} cannot be read: "):
        load_bank(tmp_path, verify=False)


def test_verification_can_be_left_out(tmp_path):
    save_bank(make_bank(), tmp_path)
    edit(tmp_path, shards=[{"file": SHARD, "rows": 20, "sha256": "0" * 64, "unreadable": {}}])
    assert len(load_bank(tmp_path, verify=False)) == 20


GOOD = {"features": make_bank().features, "labels": make_bank().labels}


@pytest.mark.parametrize(
    "tensors",
    [
        {**GOOD, "features": GOOD["features"][:19].clone()},
        {**GOOD, "features": GOOD["features"].double()},
        {**GOOD, "labels": GOOD["labels"].int()},
        {"features": GOOD["features"]},
        {**GOOD, "more": GOOD["labels"].clone()},
    ],
    ids=["rows", "dtype", "label dtype", "no labels", "too many"],
)
def test_tensors_other_than_the_manifest_promises_are_refused(tmp_path, tensors):
    save_bank(make_bank(), tmp_path)
    replace_shard(tmp_path, tensors)
    with pytest.raises(DamagedBank, match=f"{SHARD} does not hold the tensors its manifest promises"):
        load_bank(tmp_path)


def test_values_no_bank_may_have_are_refused(tmp_path):
    save_bank(make_bank(), tmp_path)
    replace_shard(tmp_path, {**GOOD, "features": GOOD["features"] / 0})
    with pytest.raises(DamagedBank, match="holds values no bank may have: features must be finite"):
        load_bank(tmp_path)


ENTRY = {"file": SHARD, "rows": 20, "sha256": "0" * 64, "unreadable": {}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "zip"}, r"does not describe a bank: its format must be 'flatfold-bank'\. Check the path"),
        ({"version": 3}, r"has version 3, this flatfold reads version 2\. Upgrade flatfold or extract again"),
        ({"version": None}, "has version None"),
        ({"complete": False}, "'complete' does not agree with the shards"),
        ({"rows": 19}, f"{SHARD} does not fit the other shards"),
        ({"rows": 21}, "'complete' does not agree with the shards"),
        ({"rows": 10**15, "shard_rows": 20}, "'complete' does not agree"),
        ({"rows": 10**15, "shard_rows": 1}, "does not fit the other shards"),
        ({"rows": 10**400}, "'rows' must be a positive whole number"),
        ({"rows": -1}, "'rows' must be a positive whole number, not -1"),
        ({"rows": True}, "'rows' must be a positive whole number, not True"),
        ({"rows": 20.0}, "'rows' must be a positive whole number, not 20.0"),
        ({"rows": None}, "'complete' does not agree"),
        ({"width": 0}, "'width' must be a positive whole number"),
        ({"width": "4"}, "'width' must be a positive whole number, not '4'"),
        ({"shard_rows": 0}, "'shard_rows' must be a positive whole number"),
        ({"dtype": "int8"}, "'dtype', 'labels' or 'shards' is of the wrong kind"),
        ({"dtype": ["float32"]}, "damaged"),
        ({"labels": 1}, "'dtype', 'labels' or 'shards' is of the wrong kind"),
        ({"shards": {}}, "'dtype', 'labels' or 'shards' is of the wrong kind"),
        ({"shards": ["x"]}, "a shard is of the wrong kind"),
        ({"shards": [{}]}, "'file' is missing"),
        ({"shards": [ENTRY, ENTRY]}, "does not fit the other shards"),
        ({"shards": []}, "'complete' does not agree"),
        ({"shards": [{**ENTRY, "file": "../features-00000.safetensors"}]}, "is no name of a shard"),
        ({"shards": [{**ENTRY, "file": "/etc/passwd"}]}, "'/etc/passwd' is no name of a shard"),
        ({"shards": [{**ENTRY, "file": None}]}, "None is no name of a shard"),
        ({"shards": [{**ENTRY, "file": "features-99999.safetensors"}]}, "does not fit the other shards"),
        ({"shards": [{**ENTRY, "rows": 10**12}]}, "does not fit the other shards"),
        ({"shards": [{**ENTRY, "sha256": "abc"}]}, "has no sha256"),
        ({"key": "secret"}, "'key' is of the wrong kind"),
        ({"key": {"weights": 3}}, "'key' is of the wrong kind"),
    ],
    ids=str,
)
def test_a_hostile_manifest_is_refused(tmp_path, changes, message):
    save_bank(make_bank(), tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(DamagedBank, match=message):
        load_bank(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"rows": ' + b"9" * 5000 + b"}"],
    ids=["empty", "cut", "not text", "deep", "long number"],
)
def test_a_manifest_that_is_no_json_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DamagedBank, match=r"manifest.json is damaged: .*\. Delete the directory and extract again"):
        load_bank(tmp_path)


def test_a_manifest_of_another_shape_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text("[1]")
    with pytest.raises(DamagedBank, match="does not describe a bank"):
        load_bank(tmp_path)


def test_a_manifest_without_an_entry_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": "flatfold-bank", "version": 2}')
    with pytest.raises(DamagedBank, match="damaged: 'key' is missing"):
        load_bank(tmp_path)


def test_a_manifest_that_would_fill_the_memory_is_not_read(tmp_path):
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(DamagedBank, match="larger than any manifest of flatfold"):
        load_bank(tmp_path)
