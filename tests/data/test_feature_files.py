"""Stored features: the rows of any file come out as they went in, and a bank runs through its own head unchanged."""

import io
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flatfold import DamagedBankError, FeatureBank, extract, save_bank
from flatfold.data.feature_files import FeatureRows, linear_head, open_features
from tests.refusals import refused

N, D = 11, 3


def make(dtype=torch.float32, n=N):
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, D, generator=g, dtype=torch.float64).to(dtype), torch.randint(-1, 5, (n,), generator=g)


def save(path, **arrays):
    """Write named tensors to a file of the kind that its ending says."""
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in arrays.items()})
    else:
        save_file(arrays, path)
    return path


def single(name, write):
    """Return a function that writes features and labels to one file."""

    def to(path, features, labels=None):
        write(path / name, **({"features": features} | ({} if labels is None else {"labels": labels})))
        return path / name

    return to


safetensors = single("f.safetensors", save)
npy = single("f.npy", lambda path, features: np.save(path, features.numpy()))
npz = single("f.npz", save)
packed = single("p.npz", lambda path, **arrays: np.savez_compressed(path, **{k: v.numpy() for k, v in arrays.items()}))
bank = single("bank", lambda path, features, labels=None: save_bank(FeatureBank(features, labels), path))


def shards(path, features, labels=None):
    """A bank of several files, of four rows each."""
    batches = [(features, labels)] if labels is not None else [features]
    out = path / f"shards {features.dtype} {labels is None}"
    extract(nn.Linear(D, 2).to(features.dtype), batches, out=out, key="rows", shard_rows=4)
    return out


FILES = [safetensors, npy, npz, packed]


def read(path, rows):
    """Return everything in a file, and the size of each chunk."""
    chunks = list(open_features(path).chunks(rows))
    assert [chunk.first for chunk in chunks] == np.cumsum([0, *(len(c.features) for c in chunks)])[:-1].tolist()
    labels = None if chunks[0].labels is None else torch.cat([chunk.labels for chunk in chunks])
    return torch.cat([chunk.features for chunk in chunks]), labels, [len(chunk.features) for chunk in chunks]


@pytest.mark.parametrize("write", [*FILES, bank, shards])
def test_rows_and_labels_come_out_in_chunks_as_they_went_in(tmp_path, write):
    for dtype in (torch.float32, torch.float64):
        features, labels = make(dtype)
        path = write(tmp_path, features)
        for rows in (1, 4, 5, N, 100):
            got, none, sizes = read(path, rows)
            assert torch.equal(got, features)
            assert (got.dtype, none) == (dtype, None)
            assert max(sizes) == min(rows, 4 if write is shards else N)
        opened = open_features(str(path))
        assert (opened.rows, opened.width, opened.has_labels, opened.path) == (N, D, False, path)
        assert opened.dtype == dtype
    if write is not npy:
        labels = labels.abs() if write in (bank, shards) else labels  # a bank has known classes only
        path = write(tmp_path, features, labels)
        assert open_features(path).has_labels
        assert torch.equal(read(path, 3)[1], labels)


def test_types_are_widened_exactly_and_orders_of_bytes_and_columns_do_not_matter(tmp_path):
    for dtype in (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32):
        for write in (safetensors, npz):
            got = read(write(tmp_path, make()[0], torch.arange(N).to(dtype)), 4)[1]
            assert (got.dtype, got.tolist()) == (torch.int64, list(range(N))), (dtype, write)
    for dtype, writers in {torch.float16: [safetensors, npy, npz], torch.bfloat16: [safetensors]}.items():
        features = torch.cat([make(dtype)[0], torch.full((1, D), torch.finfo(dtype).smallest_normal, dtype=dtype)])
        for write in writers:
            got, _, _ = read(write(tmp_path, features), 4)
            assert got.dtype == torch.float32
            assert torch.equal(got.double(), features.double()), (dtype, write)
    features = make()[0].numpy()
    for stored in (features.astype(">f4"), np.asfortranarray(features), np.asfortranarray(features.astype(">f4"))):
        np.save(tmp_path / "f.npy", stored)
        np.savez(tmp_path / "f.npz", features=stored)
        for name in ("f.npy", "f.npz"):
            got, _, sizes = read(tmp_path / name, 4)
            assert torch.equal(got, torch.from_numpy(features)), name
            assert sizes == [4, 4, 3]


def test_a_bank_holds_all_rows_of_several_chunks(tmp_path):
    features, labels = make(n=9000)
    got = open_features(safetensors(tmp_path, features, labels.abs())).bank()
    assert torch.equal(got.features, features)
    assert torch.equal(got.labels, labels.abs())
    assert open_features(npy(tmp_path, features)).bank().labels is None
    with pytest.raises(ValueError, match=r"f\.npz: .*-1"):
        open_features(npz(tmp_path, features, labels)).bank()
    some = {"h": features, "labels": labels.abs(), "norms": features.norm(dim=1)}  # a single matrix of any name
    for arrays in (some, {"logits": torch.zeros(9000, 2), "features": features}):
        assert torch.equal(open_features(save(tmp_path / "f.safetensors", **arrays)).bank().features, features)


def test_a_row_that_is_not_finite_is_named(tmp_path):
    for write in FILES:
        for bad in (float("nan"), float("inf"), -float("inf")):
            features, _ = make()
            features[7, 2] = bad
            chunks = open_features(write(tmp_path, features)).chunks(3)
            assert [next(chunks).first, next(chunks).first] == [0, 3]
            with refused((write, bad), "finite, but row 7"):
                next(chunks)


def test_arrays_that_are_no_features_are_refused(tmp_path):
    x = torch.zeros(3, 2)
    for arrays, error, keyword in [
        ({}, ValueError, "none"),
        ({"labels": torch.zeros(3)}, ValueError, "'labels'"),
        ({"a": x, "b": torch.zeros(2, 2).half()}, ValueError, "'a' .*'b'"),
        ({name: x.clone() for name in "abcde"}, ValueError, "2 more"),
        ({"features": torch.zeros(3)}, ValueError, r"got \(3,\)"),
        ({"features": torch.zeros(3, 2, 2)}, ValueError, r"got \(3, 2, 2\)"),
        ({"features": torch.zeros(0, 2)}, ValueError, r"got \(0, 2\)"),
        ({"features": torch.zeros(3, 0)}, ValueError, r"got \(3, 0\)"),
        ({"features": x, "labels": torch.zeros(2).long()}, ValueError, "labels"),
        ({"features": x, "labels": torch.zeros(3, 1).long()}, ValueError, "labels"),
        ({"features": x.to(torch.int8)}, TypeError, "int8"),
        *(({"features": x, "labels": torch.zeros(3).to(getattr(torch, dtype))}, TypeError, f"(?i){dtype}")
          for dtype in ("float32", "uint64", "bool")),
    ]:  # fmt: skip
        for suffix in ("npz", "safetensors"):
            with refused((arrays, suffix), keyword, error):
                open_features(save(tmp_path / f"f.{suffix}", **arrays))


def test_files_that_are_damaged_or_something_else_are_refused_and_no_pickle_is_run(tmp_path):
    for write in FILES:
        path = write(tmp_path, make(n=500)[0])
        content = path.read_bytes()
        damaged = [content[:length] for length in (0, 5, len(content) // 2, len(content) - 1)]
        damaged.append(b"hello, this is a text and not an array" * 10)
        if path.suffix == ".npz":  # whose parts have checksums
            middle = len(content) // 2
            damaged.append(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        for number, data in enumerate(damaged):
            path.write_bytes(data)
            with refused((path.name, number), "cannot be read"):
                list(open_features(path).chunks(4))
    file = io.BytesIO()
    np.save(file, make()[0].numpy())
    for content in (file.getvalue()[:-5], b"\x93NUMPY\x09\x00" + b" " * 200):  # too short, and of an unknown version
        with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
            archive.writestr("features.npy", content)
        with refused(content, "cannot be read"):
            list(open_features(tmp_path / "f.npz").chunks(4))

    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    np.save(tmp_path / "f.npy", np.array([[Trap()]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="cannot be read"):
        open_features(tmp_path / "f.npy")


def test_a_damaged_bank_is_refused(tmp_path):
    file = shards(tmp_path, make()[0]) / "00001.safetensors"
    for content in (b"", file.read_bytes()[:-1] + b"\0"):
        file.write_bytes(content)
        for use in (lambda: list(open_features(file.parent).chunks()), lambda: FeatureRows(file.parent, labels=False)):
            with refused((content, use), "is damaged", DamagedBankError):
                use()


def make_bank(n=N, dtype=torch.float32):
    features, labels = make(dtype, n)
    return FeatureBank(features, labels.abs() % 3)


def saved(folder, bank):
    save_bank(bank, folder)
    return folder


def test_a_bank_run_through_its_head_comes_out_as_it_went_in(tmp_path):
    for dtype, rtol in [(torch.float32, 1e-5), (torch.float64, 1e-12)]:
        bank, g = make_bank(dtype=dtype), torch.Generator().manual_seed(1)
        weight, bias = torch.randn(4, D, generator=g).to(dtype), torch.randn(4, generator=g).to(dtype)
        before = torch.get_rng_state()
        for tensors in ({"weight": weight, "bias": bias}, {"weight": weight}):
            layer = linear_head(str(save(tmp_path / "h.safetensors", **tensors)))
            expected = bank.features.double() @ weight.double().T + tensors.get("bias", torch.zeros(4)).double()
            torch.testing.assert_close(layer(bank.features).double(), expected, rtol=rtol, atol=rtol)
            assert not layer.training
            for labels in (True, False):
                rows = FeatureRows(saved(tmp_path / "bank", bank), batch_size=4, labels=labels)
                got, head = extract(layer, rows, out=tmp_path / f"{dtype}{len(tensors)}{labels}", shard_rows=3)
                assert torch.equal(got.features, bank.features)
                assert torch.equal(got.labels, bank.labels) if labels else got.labels is None
                assert torch.equal(head.weight, weight)
                assert torch.equal(head.bias, bias) if "bias" in tensors else head.bias is None
        assert torch.equal(torch.get_rng_state(), before)
        again, _ = extract(layer, FeatureRows(tmp_path / f"{dtype}2True"))  # from several shards
        assert torch.equal(again.features, bank.features)


def test_batches_and_picked_rows_keep_their_order(tmp_path):
    bank = make_bank()
    rows = FeatureRows(str(saved(tmp_path / "bank", bank)), batch_size=4)
    assert (rows.rows, len(rows), [len(x) for x, _ in rows]) == (11, 3, [4, 4, 3])
    for got, expected in zip(rows.read(range(3, 6)), (bank.features[3:6], bank.labels[3:6]), strict=True):
        assert torch.equal(got, expected)
    some = rows.subset(np.array([7, 1, 4, 0, 9]))
    for part, expected in zip(zip(*some, strict=True), (bank.features, bank.labels), strict=True):
        assert torch.equal(torch.cat(part), expected[[7, 1, 4, 0, 9]])
    assert len({rows.fingerprint, some.fingerprint, rows.subset(np.array([7, 1])).fingerprint}) == 3
    assert torch.equal(some.subset(np.array([2, 0])).read(range(2))[0], bank.features[[4, 7]])
    with pytest.raises(ValueError, match="batch_size"):
        FeatureRows(tmp_path / "bank", batch_size=0)
    plain = saved(tmp_path / "plain", FeatureBank(bank.features))
    with pytest.raises(ValueError, match="labels=False"):
        FeatureRows(plain)
    assert torch.equal(FeatureRows(plain, labels=False).read(range(3, 6)), bank.features[3:6])


def test_the_fingerprint_changes_with_features_labels_and_their_use_and_with_nothing_else(tmp_path):
    bank = make_bank()
    moved, other = FeatureBank(bank.features, bank.labels.roll(1)), FeatureBank(bank.features + 1, bank.labels)
    banks = [bank, moved, other, make_bank(10), make_bank(dtype=torch.float64)]
    prints = [FeatureRows(saved(tmp_path / str(i), each)).fingerprint for i, each in enumerate(banks)]
    prints.append(FeatureRows(tmp_path / "0", labels=False).fingerprint)
    assert len(set(prints)) == 6
    assert FeatureRows(saved(tmp_path / "again", make_bank()), batch_size=3).fingerprint == prints[0]


def test_tensors_that_make_no_head_are_refused_with_the_name_of_the_file(tmp_path):
    w = torch.ones(3, 2)
    for tensors, error, keyword in [
        ({}, ValueError, "none"),
        ({"bias": torch.zeros(3)}, ValueError, "'bias'"),
        ({"weight": w, "fc.weight": w.clone()}, ValueError, "'fc.weight'"),
        ({name: w.clone() for name in "abcde"}, ValueError, "2 more"),
        ({"weight": torch.ones(3)}, ValueError, "two dimensions"),
        ({"weight": w * torch.nan}, ValueError, "finite"),
        ({"weight": w, "bias": torch.zeros(2)}, ValueError, "bias"),
        ({"weight": w, "bias": torch.zeros(3).double()}, ValueError, "float32"),
        ({"weight": w.half()}, TypeError, "float16"),
    ]:
        with refused(tensors, rf"h\.safetensors:? .*{keyword}", error):
            linear_head(save(tmp_path / "h.safetensors", **tensors))
