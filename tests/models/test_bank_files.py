"""Banks on disk: what was saved comes back, mapped into memory; what was altered is refused."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from flatfold import DamagedBank, FeatureBank, load_bank, save_bank
from flatfold.io.files import sha256_of
from tests.refusals import refused

SHARD = "features-00000.safetensors"
ENTRY = {"file": SHARD, "rows": 20, "sha256": "0" * 64, "unreadable": {}}


def make_bank(n=20, d=4, labelled=True, dtype=torch.float32):
    g = torch.Generator().manual_seed(n)
    return FeatureBank(torch.randn(n, d, generator=g, dtype=dtype), torch.arange(n) % 3 if labelled else None)


def edit(folder, **changes):
    """Rewrite entries of the manifest as an attacker or an accident might."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_bank_comes_back_as_it_was(tmp_path):
    for labelled, dtype in [(True, torch.float32), (False, torch.float64)]:
        bank, folder = make_bank(labelled=labelled, dtype=dtype), tmp_path / str(labelled) / "bank"
        save_bank(bank, folder)
        loaded = load_bank(str(folder))
        assert loaded.features.dtype == dtype
        assert torch.equal(loaded.features, bank.features)
        assert torch.equal(loaded.labels, bank.labels) if labelled else loaded.labels is None
        assert sorted(path.name for path in folder.iterdir()) == [SHARD, "manifest.json"]


def test_a_mapped_bank_can_be_written_to_cut_and_saved_over_itself(tmp_path):
    (tmp_path / "features-00001.safetensors").write_bytes(b"of an older bank")
    save_bank(make_bank(), tmp_path)
    assert not (tmp_path / "features-00001.safetensors").exists()
    load_bank(tmp_path).features.zero_()
    assert torch.equal(load_bank(tmp_path).features, make_bank().features)
    save_bank(load_bank(tmp_path)[::2], tmp_path)
    assert torch.equal(load_bank(tmp_path).features, make_bank().features[::2])


def test_a_save_that_fails_leaves_the_old_bank(tmp_path, monkeypatch):
    save_bank(make_bank(), tmp_path)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save_bank(make_bank(7), tmp_path)
    assert len(load_bank(tmp_path)) == 20
    assert not list(tmp_path.glob("*.partial"))


@settings(max_examples=150)
@given(data=st.data(), name=st.sampled_from([SHARD, "manifest.json"]))
def test_a_flipped_bit_never_gives_another_bank(tmp_path_factory, data, name):
    folder = tmp_path_factory.mktemp("bank")
    save_bank(make_bank(), folder)
    content = bytearray((folder / name).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / name).write_bytes(content)
    try:
        bank = load_bank(folder)
    except DamagedBank:
        return
    assert name != SHARD
    assert torch.equal(bank.features, make_bank().features)
    assert torch.equal(bank.labels, make_bank().labels)


def test_verification_can_be_left_out_but_a_shard_must_be_readable(tmp_path):
    save_bank(make_bank(), tmp_path)
    edit(tmp_path, shards=[ENTRY])
    with pytest.raises(DamagedBank, match="not as it was written"):
        load_bank(tmp_path)
    assert len(load_bank(tmp_path, verify=False)) == 20
    for damage in (lambda path: path.write_bytes(path.read_bytes()[:-4]), Path.unlink):
        damage(tmp_path / SHARD)
        with refused(damage, f"{SHARD} cannot be read", DamagedBank):
            load_bank(tmp_path, verify=False)


def test_tensors_other_than_the_manifest_promises_are_refused(tmp_path):
    good = {"features": make_bank().features, "labels": make_bank().labels}
    for case, tensors, keyword in [
        ("rows", {**good, "features": good["features"][:19].clone()}, "promises"),
        ("dtype", {**good, "features": good["features"].double()}, "promises"),
        ("label dtype", {**good, "labels": good["labels"].int()}, "promises"),
        ("no labels", {"features": good["features"]}, "promises"),
        ("too many", {**good, "more": good["labels"].clone()}, "promises"),
        ("not finite", {**good, "features": good["features"] / 0}, "finite"),
    ]:
        save_bank(make_bank(), tmp_path)
        save_file(tensors, tmp_path / SHARD)
        edit(tmp_path, shards=[{**ENTRY, "sha256": sha256_of(tmp_path / SHARD)}])
        with refused(case, keyword, DamagedBank):
            load_bank(tmp_path)


HOSTILE = [
    ({"format": "zip"}, "format"), ({"version": 3}, "version 3"), ({"version": None}, "version None"),
    ({"complete": False}, "complete"), ({"rows": 19}, "other shards"), ({"rows": 21}, "complete"),
    ({"rows": 10**15, "shard_rows": 20}, "complete"), ({"rows": 10**15, "shard_rows": 1}, "other shards"),
    *(({"rows": rows}, "'rows'") for rows in (10**400, -1, True, 20.0)), ({"rows": None}, "complete"),
    ({"width": 0}, "width"), ({"width": "4"}, "width"), ({"shard_rows": 0}, "shard_rows"),
    ({"dtype": "int8"}, "dtype"), ({"dtype": ["float32"]}, "damaged"), ({"labels": 1}, "labels"),
    ({"shards": {}}, "shards"), ({"shards": ["x"]}, "wrong kind"), ({"shards": [{}]}, "file"),
    ({"shards": [ENTRY, ENTRY]}, "other shards"), ({"shards": []}, "complete"),
    *(({"shards": [{**ENTRY, "file": name}]}, "no name") for name in (f"../{SHARD}", "/etc/passwd", None)),
    ({"shards": [{**ENTRY, "file": "features-99999.safetensors"}]}, "other shards"),
    ({"shards": [{**ENTRY, "rows": 10**12}]}, "other shards"), ({"shards": [{**ENTRY, "sha256": "abc"}]}, "sha256"),
    *(({"shards": [{**ENTRY, "unreadable": kind}]}, "wrong kind") for kind in ([], {"0": 5})),
    ({"shards": [{**ENTRY, "unreadable": {"x": "y"}}]}, "damaged"),
    ({"shards": [{**ENTRY, "unreadable": {"77": "y"}}]}, "does not fit"), ({"key": "secret"}, "'key'"),
    ({"key": {"weights": 3}}, "'key'"),
]  # fmt: skip


def test_a_hostile_manifest_is_refused(tmp_path):
    for changes, keyword in HOSTILE:
        save_bank(make_bank(), tmp_path)
        edit(tmp_path, **changes)
        with refused(changes, keyword, DamagedBank):
            load_bank(tmp_path)


def test_a_path_without_a_manifest_of_a_bank_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_bank(tmp_path / "nowhere")
    with pytest.raises(DamagedBank, match=r"no manifest\.json"):
        load_bank(tmp_path)
    contents = [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"rows": ' + b"9" * 5000 + b"}", b"[1]"]
    contents += [b'{"format": "flatfold-bank", "version": 2}']
    for content in contents:
        (tmp_path / "manifest.json").write_bytes(content)
        with refused(content[:50], "damaged|describe", DamagedBank):
            load_bank(tmp_path)
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(2**30)  # it would fill the memory
    with pytest.raises(DamagedBank, match="larger"):
        load_bank(tmp_path)
