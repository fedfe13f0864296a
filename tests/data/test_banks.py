"""Banks on disk: what was saved comes back, mapped into memory; what was altered is refused."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatfold import DamagedBankError, FeatureBank, load_bank, save_bank
from flatfold.io.store import Manifest, PartStore, read_manifest, replace_parts
from tests.refusals import refused

SHARD = "00000.safetensors"


def make_bank(n=20, d=4, labelled=True, dtype=torch.float32):
    g = torch.Generator().manual_seed(n)
    return FeatureBank(torch.randn(n, d, generator=g, dtype=dtype), torch.arange(n) % 3 if labelled else None)


def edit(folder, **changes):
    """Rewrite entries of the manifest as an attacker or an accident might."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    for name, value in changes.items():
        {"format": values, "version": values, "key": values}.get(name, values["info"])[name] = value
    path.write_text(json.dumps(values))


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
    with PartStore(tmp_path, {}) as store:
        store.write("00001", {})
    (tmp_path / "2024.safetensors").write_bytes(b"of somebody else")
    save_bank(make_bank(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [SHARD, "2024.safetensors", "manifest.json"]
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
    assert sorted(path.name for path in tmp_path.iterdir()) == [SHARD, "manifest.json"]


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
    except DamagedBankError:
        return
    assert name != SHARD
    assert torch.equal(bank.features, make_bank().features)
    assert torch.equal(bank.labels, make_bank().labels)


def test_verification_can_be_left_out_but_a_shard_must_be_readable(tmp_path):
    save_bank(make_bank(), tmp_path)
    content = bytearray((tmp_path / SHARD).read_bytes())
    content[-1] ^= 1
    (tmp_path / SHARD).write_bytes(content)
    with pytest.raises(DamagedBankError, match="is damaged"):
        load_bank(tmp_path)
    assert len(load_bank(tmp_path, verify=False)) == 20
    for damage in (lambda path: path.write_bytes(path.read_bytes()[:-4]), Path.unlink):
        damage(tmp_path / SHARD)
        with refused(damage, f"{SHARD} .* cannot be read", DamagedBankError):
            load_bank(tmp_path, verify=False)


def test_tensors_other_than_the_manifest_promises_are_refused(tmp_path):
    good = {"features": make_bank().features, "labels": make_bank().labels}
    save_bank(make_bank(), tmp_path)
    manifest = read_manifest(tmp_path)
    for case, tensors, keyword in [
        ("rows", {**good, "features": good["features"][:19]}, "do not match"),
        ("dtype", {**good, "features": good["features"].double()}, "do not match"),
        ("label dtype", {**good, "labels": good["labels"].int()}, "do not match"),
        ("no labels", {"features": good["features"]}, "do not match"),
        ("too many", {**good, "more": good["labels"].clone()}, "do not match"),
        ("not finite", {**good, "features": good["features"] / 0}, "finite"),
    ]:
        replace_parts(tmp_path, manifest, "00000", tensors, {"unreadable": {}})
        with refused(case, keyword, DamagedBankError):
            load_bank(tmp_path)
    for unreadable in (None, [], {"x": "cut"}, {"0": 5}, {"0": "cut"}):
        replace_parts(tmp_path, manifest, "00000", good, {"unreadable": unreadable})
        with refused(unreadable, SHARD, DamagedBankError):
            load_bank(tmp_path)
    form = {"width": "4", "dtype": "float32", "labels": "yes"}
    for key in ({}, form | {"width": "0"}, form | {"width": "x"}, form | {"dtype": "int8"}, form | {"labels": "1"}):
        replace_parts(tmp_path, Manifest(key, manifest.info), "00000", good, {"unreadable": {}})
        with refused(key, "does not belong to a bank", DamagedBankError):
            load_bank(tmp_path)


HOSTILE = [
    ({"format": "zip"}, "format"), ({"version": 3}, "version 3"), ({"version": None}, "version"),
    ({"rows": 19}, "do not match"), ({"rows": 21}, "00001"), ({"rows": None}, "not finished"),
    ({"rows": 10**15, "shard_rows": 20}, "00001"), ({"rows": 10**15, "shard_rows": 1}, "do not match"),
    *(({"rows": rows}, "rows") for rows in (10**400, -1, 0, True, 20.5)),
    *(({"shard_rows": rows}, "shard_rows") for rows in (0, None, "20")),
    ({"shard_rows": 7}, "do not match"), ({"key": "secret"}, "key"), ({"key": {"weights": 3}}, "key"),
    ({"key": {"width": "4", "dtype": "float64", "labels": "yes"}}, "another store"),
]  # fmt: skip


def test_a_hostile_manifest_is_refused(tmp_path):
    for changes, keyword in HOSTILE:
        save_bank(make_bank(), tmp_path)
        edit(tmp_path, **changes)
        with refused(changes, keyword, DamagedBankError):
            load_bank(tmp_path)


def test_a_path_without_a_manifest_of_a_bank_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_bank(tmp_path / "nowhere")
    with pytest.raises(DamagedBankError, match=r"no manifest\.json"):
        load_bank(tmp_path)
    contents = [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"rows": ' + b"9" * 5000 + b"}", b"[1]"]
    contents += [b'{"format": "flatfold-bank", "version": 2}', b'{"format": "flatfold-parts", "version": 1}']
    for content in contents:
        (tmp_path / "manifest.json").write_bytes(content)
        with refused(content[:50], "damaged", DamagedBankError):
            load_bank(tmp_path)
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(2**30)  # it would fill the memory
    with pytest.raises(DamagedBankError, match="larger"):
        load_bank(tmp_path)


def test_a_save_that_stops_at_any_write_leaves_the_old_bank_the_new_one_or_none(tmp_path, monkeypatch):
    replace = os.replace
    for old, new in [(make_bank(20), make_bank(7)), (make_bank(20), make_bank(20, labelled=False)), (make_bank(),) * 2]:
        for stop in (1, 2, 3):
            save_bank(old, tmp_path / "bank")
            calls = []

            def dying(source, target, calls=calls, stop=stop):
                calls.append(target)
                if len(calls) == stop:
                    raise OSError("killed")
                replace(source, target)

            with monkeypatch.context() as patch:
                patch.setattr(os, "replace", dying)
                try:
                    save_bank(new, tmp_path / "bank")
                except OSError:
                    assert stop < 3
            try:
                loaded = load_bank(tmp_path / "bank")
            except DamagedBankError:
                assert stop == 2
            else:
                assert any(loaded.features.equal(bank.features) for bank in ([old] if stop == 1 else [old, new]))
