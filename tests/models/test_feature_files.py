"""`models.feature_files`: whatever holds them, the rows that come out are those that went in."""

import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from flatfold import FeatureBank, FolderImages, Transform, extract, save_bank
from flatfold.core.errors import DamagedBank
from flatfold.models.feature_files import open_features

N, D = 11, 3


def make(dtype=torch.float32, n=N):
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, D, generator=g, dtype=torch.float64).to(dtype), torch.randint(-1, 5, (n,), generator=g)


def safetensors(path, features, labels=None):
    save_file({"features": features} | ({} if labels is None else {"labels": labels}), path / "f.safetensors")
    return path / "f.safetensors"


def npy(path, features, labels=None):
    np.save(path / "f.npy", features.numpy())
    return path / "f.npy"


def npz(path, features, labels=None, save=np.savez):
    save(path / "f.npz", features=features.numpy(), **({} if labels is None else {"labels": labels.numpy()}))
    return path / "f.npz"


def packed(path, features, labels=None):
    return npz(path, features, labels, np.savez_compressed)


def bank(path, features, labels=None):
    save_bank(FeatureBank(features, labels), path / "bank")
    return path / "bank"


def shards(path, features, labels=None):
    """A bank of several files, of four rows each."""
    batches = [(features, labels)] if labels is not None else [features]
    extract(nn.Linear(D, 2).to(features.dtype), batches, out=path / "shards", key="rows", shard_rows=4)
    return path / "shards"


WRITERS = [safetensors, npy, npz, packed, bank, shards]


def read(path, rows):
    """Return everything in a file, and the size of each chunk."""
    chunks = list(open_features(path).chunks(rows))
    assert [chunk.first for chunk in chunks] == np.cumsum([0, *(len(c.features) for c in chunks)])[:-1].tolist()
    labels = None if chunks[0].labels is None else torch.cat([chunk.labels for chunk in chunks])
    return torch.cat([chunk.features for chunk in chunks]), labels, [len(chunk.features) for chunk in chunks]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [1, 4, 5, N, 100])
def test_rows_come_out_in_chunks_as_they_went_in(tmp_path, write, dtype, rows):
    features, _ = make(dtype)
    path = write(tmp_path, features)
    got, labels, sizes = read(path, rows)
    assert torch.equal(got, features)
    assert got.dtype == dtype == open_features(path).dtype
    assert labels is None
    assert max(sizes) == min(rows, 4 if write is shards else N)
    opened = open_features(str(path))
    assert (opened.rows, opened.width, opened.has_labels, opened.path) == (N, D, False, path)


@pytest.mark.parametrize("write", [safetensors, npz, packed, bank, shards])
def test_labels_keep_to_their_rows(tmp_path, write):
    features, labels = make()
    labels = labels if write in (safetensors, npz, packed) else labels.abs()  # a bank has known classes only
    path = write(tmp_path, features, labels)
    assert open_features(path).has_labels
    got = read(path, 3)[1]
    assert torch.equal(got, labels)
    assert got.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32])
@pytest.mark.parametrize("write", [safetensors, npz])
def test_labels_of_any_integer_type_become_int64(tmp_path, write, dtype):
    labels = torch.arange(N).to(dtype)
    got = read(write(tmp_path, make()[0], labels), 4)[1]
    assert got.dtype == torch.int64
    assert got.tolist() == list(range(N))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_types_are_widened_exactly(tmp_path, dtype):
    features = torch.cat([make(dtype)[0], torch.full((1, D), torch.finfo(dtype).smallest_normal, dtype=dtype)])
    writers = [safetensors] if dtype == torch.bfloat16 else [safetensors, npy, npz]  # numpy has no bfloat16
    for write in writers:
        got, _, _ = read(write(tmp_path, features), 4)
        assert got.dtype == torch.float32
        assert torch.equal(got.double(), features.double())


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_the_order_of_bytes_and_of_columns_does_not_matter(tmp_path, suffix):
    features = make()[0].numpy()
    for stored in (features.astype(">f4"), np.asfortranarray(features), np.asfortranarray(features.astype(">f4"))):
        path = tmp_path / f"f.{suffix}"
        np.save(path, stored) if suffix == "npy" else np.savez(path, features=stored)
        got, _, sizes = read(path, 4)
        assert torch.equal(got, torch.from_numpy(features))
        assert sizes == [4, 4, 3]


def test_chunks_can_be_read_again_and_left_early(tmp_path):
    opened = open_features(packed(tmp_path, *make()))
    assert next(opened.chunks(2)).first == 0
    assert [len(chunk.features) for chunk in opened.chunks(6)] == [6, 5]
    assert [len(chunk.features) for chunk in opened.chunks()] == [11]


def test_chunks_may_be_written_to(tmp_path):
    path = npy(tmp_path, make()[0])
    before = path.read_bytes()
    for chunk in open_features(path).chunks(4):
        chunk.features.zero_()
    assert path.read_bytes() == before


def test_a_single_matrix_may_have_any_name(tmp_path):
    features, labels = make()
    save_file({"h": features, "labels": labels, "norms": features.norm(dim=1)}, tmp_path / "f.safetensors")
    np.savez(tmp_path / "f.npz", h=features.numpy(), labels=labels.numpy(), shape=np.ones((2, 2), dtype=int))
    for name in ("f.safetensors", "f.npz"):
        got, classes, _ = read(tmp_path / name, 4)
        assert torch.equal(got, features)
        assert torch.equal(classes, labels)


def test_features_are_taken_by_their_name_among_other_matrices(tmp_path):
    features, _ = make()
    save_file({"logits": torch.zeros(N, 2), "features": features}, tmp_path / "f.safetensors")
    assert torch.equal(read(tmp_path / "f.safetensors", 4)[0], features)


def test_a_bank_holds_all_rows(tmp_path):
    features, labels = make()
    got = open_features(safetensors(tmp_path, features, labels.abs())).bank()
    assert torch.equal(got.features, features)
    assert torch.equal(got.labels, labels.abs())
    assert open_features(npy(tmp_path, features)).bank().labels is None
    with pytest.raises(ValueError, match=r"f\.npz: labels must be class indices from 0, got -1"):
        open_features(npz(tmp_path, features, labels)).bank()


@pytest.mark.parametrize("labels", [None, torch.arange(9000)], ids=["no labels", "labels"])
def test_a_bank_of_several_chunks_holds_all_rows(tmp_path, labels):
    features, _ = make(n=9000)
    got = open_features(safetensors(tmp_path, features, labels)).bank()
    assert torch.equal(got.features, features)
    assert got.labels is None if labels is None else torch.equal(got.labels, labels)


def test_rows_of_a_bank_whose_images_could_not_be_read_are_left_out(tmp_path):
    for i in range(6):
        Image.new("RGB", (2, 2), (40 * i, 0, 0)).save(tmp_path / f"{i}.png")
    for i in (2, 3, 4):
        (tmp_path / f"{i}.png").write_bytes(b"broken")
    source = FolderImages(tmp_path, Transform(), labels=False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    whole, _ = extract(model, source, out=tmp_path / "bank", shard_rows=2, unreadable=0.5)
    opened = open_features(tmp_path / "bank")
    assert opened.rows == len(whole) == 3
    got, _, sizes = read(tmp_path / "bank", 4)
    assert torch.equal(got, whole.features)
    assert sizes == [2, 1]


@pytest.mark.parametrize("write", [safetensors, npy, npz, packed])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_is_named(tmp_path, write, bad):
    features, _ = make()
    features[7, 2] = bad
    chunks = open_features(write(tmp_path, features)).chunks(3)
    assert [next(chunks).first, next(chunks).first] == [0, 3]
    with pytest.raises(ValueError, match=r"features of .*f\.\w+ must be finite, but row 7 has a NaN or infinite entry"):
        next(chunks)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"it holds none\. Save the features under that name"),
        (
            {"labels": torch.zeros(3)},
            r"'features' \(n, d\), or a single matrix of floats; it holds 'labels' \(3,\) float32",
        ),
        ({"a": torch.zeros(3, 2), "b": torch.zeros(2, 2).half()}, r"'a' \(3, 2\) float32, 'b' \(2, 2\) float16\. Save"),
        ({name: torch.zeros(3, 2) for name in "abcde"}, r"'c' \(3, 2\) float32 and 2 more\. Save"),
        ({"features": torch.zeros(3)}, r"features must have shape \(n, d\) with n, d > 0, got \(3,\)"),
        ({"features": torch.zeros(3, 2, 2)}, r"got \(3, 2, 2\)"),
        ({"features": torch.zeros(0, 2)}, r"got \(0, 2\)"),
        ({"features": torch.zeros(3, 0)}, r"got \(3, 0\)"),
        (
            {"features": torch.zeros(3, 2), "labels": torch.zeros(2).long()},
            r"labels must have shape \(3,\).*got \(2,\)",
        ),
        ({"features": torch.zeros(3, 2), "labels": torch.zeros(3, 1).long()}, r"labels must have.*got \(3, 1\)"),
    ],
)
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_arrays_that_are_no_features_are_refused(tmp_path, arrays, message, suffix):
    path = tmp_path / f"f.{suffix}"
    np.savez(path, **{k: v.numpy() for k, v in arrays.items()}) if suffix == "npz" else save_file(arrays, path)
    with pytest.raises(ValueError, match=rf"f\.{suffix}:? .*{message}"):
        open_features(path)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_arrays_of_other_types_are_refused(tmp_path, suffix):
    def save(**arrays):
        path = tmp_path / f"f.{suffix}"
        np.savez(path, **{k: v.numpy() for k, v in arrays.items()}) if suffix == "npz" else save_file(arrays, path)
        return path

    kinds = "float16, bfloat16, float32, float64"
    with pytest.raises(TypeError, match=rf"features must be {kinds}, got int8\. Convert them"):
        open_features(save(features=torch.zeros(3, 2).to(torch.int8)))
    for dtype in (torch.float32, torch.uint64, torch.bool):
        with pytest.raises(TypeError, match=r"labels must be whole class indices, got (float32|uint64|bool|BOOL)\. "):
            open_features(save(features=torch.zeros(3, 2), labels=torch.zeros(3).to(dtype)))


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there are no features at .*none\.npy\. Check the path"):
        open_features(tmp_path / "none.npy")


@pytest.mark.parametrize("write", [safetensors, npy, npz, packed])
def test_a_file_that_was_cut_is_refused_before_anything_is_read(tmp_path, write):
    path = write(tmp_path, make()[0])
    content = path.read_bytes()
    for length in (0, 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"must be a \S+ file, but cannot be read: .*\. Write it again"):
            open_features(path)


@pytest.mark.parametrize("name", ["f.safetensors", "f.npy", "f.npz", "f"])
def test_a_file_of_something_else_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"hello, this is a text and not an array" * 10)
    with pytest.raises(ValueError, match=rf"{name} must be a \S+ file, but cannot be read"):
        open_features(tmp_path / name)


@pytest.mark.parametrize("write", [npz, packed])
def test_a_zip_whose_bytes_have_changed_is_refused(tmp_path, write):
    path = write(tmp_path, make(n=500)[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"f\.npz must be a \.npz file, but cannot be read"):
        list(open_features(path).chunks(4))


def test_an_array_in_a_zip_that_is_shorter_than_it_says_is_refused(tmp_path):
    file = io.BytesIO()
    np.save(file, make()[0].numpy())
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("features.npy", file.getvalue()[:-5])
    with pytest.raises(ValueError, match=r"f\.npz must be a \.npz file, but cannot be read"):
        list(open_features(tmp_path / "f.npz").chunks(4))


def test_a_header_that_nobody_knows_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("features.npy", b"\x93NUMPY\x09\x00" + b" " * 200)
    with pytest.raises(ValueError, match="cannot be read: an array has a header of another version of numpy"):
        open_features(tmp_path / "f.npz")


def test_no_pickle_is_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    trap = np.array([[Trap()]], dtype=object)
    np.save(tmp_path / "f.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "f.npz", features=trap)
    with pytest.raises(ValueError, match="cannot be read"):
        open_features(tmp_path / "f.npy")
    with pytest.raises(TypeError, match="got object"):
        open_features(tmp_path / "f.npz")


def test_a_bank_that_is_damaged_or_unfinished_is_refused(tmp_path):
    path = shards(tmp_path, make()[0])
    (path / "features-00001.safetensors").write_bytes(b"")
    with pytest.raises(DamagedBank, match="is not as it was written"):
        list(open_features(path).chunks())
    with pytest.raises(DamagedBank, match="is no bank"):
        open_features(tmp_path)

    def cut():
        yield make()[0][:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(nn.Linear(D, 2), cut(), out=tmp_path / "cut", key="rows", shard_rows=4)
    with pytest.raises(DamagedBank, match=r"the bank in .*cut is not finished\. Call extract"):
        open_features(tmp_path / "cut")
