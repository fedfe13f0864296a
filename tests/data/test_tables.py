"""Images in parquet files: rows, labels, damage, memory and fingerprints."""

import io
import os
import pickle
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn

from flatfold import Loading, Transform, UnreadableImageError, extract
from flatfold.data import TableImages
from flatfold.data.sources import ImageSubset
from tests.refusals import refused

PLAIN = Transform()
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LABELS = [2, 0, 1, 1, 0, 2, 7, 0, 3, 1, 4]
KINDS = ["parquet", "parquets"]
EVERY = pytest.mark.parametrize("kind", KINDS)


def encoded(value, size=(5, 4), form="PNG"):
    file = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(file, form)
    return file.getvalue()


def make_table(labels=LABELS, first=0, kind=STRUCT, label_type="int64"):
    """A table of small images, each of its own colour."""
    images = [encoded(first + i) for i in range(len(labels))]
    if pa.types.is_struct(kind):
        images = [{"bytes": each, "path": f"{first + i}.png"} for i, each in enumerate(images)]
    return pa.table({"image": pa.array(images, kind), "label": pa.array(labels, label_type)})


def rows_of(values, kind=STRUCT):
    return pa.table({"image": pa.array(values, kind), "label": pa.array(range(len(values)))})


def write(path, kind, table=None):
    """Write a table in one or several files, replacing what is there; each has row groups of unequal length."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    table = make_table() if table is None else table
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=3)
        return path
    path.mkdir()
    for i, part in enumerate([table[:5], table[5:6], table[6:]]):
        pq.write_table(part, path / f"part-{i}.parquet", row_group_size=4)
    return path


def colour(source, row):
    return source.picture(row)[1].getpixel((0, 0))[0]


@EVERY
def test_rows_come_in_their_order_and_at_any_time_with_labels_and_names(tmp_path, kind):
    path = write(tmp_path / "t", kind)
    source = TableImages(str(path), PLAIN, batch_size=4)
    x, y = (torch.cat(parts) for parts in zip(*source, strict=True))
    assert (x[:, 0, 0, 0] * 255).round().tolist() == list(range(11))
    assert (x.shape, y.dtype, y.tolist()) == ((11, 3, 4, 5), torch.int64, LABELS)
    assert (source.rows, len(source)) == (11, 3)
    order = [*random.Random(0).choices(range(11), k=60), -1, -5, -11]
    assert [colour(source, row) for row in order] == [row % 11 for row in order]
    assert [source.name(row) for row in (0, 7, -4)] == [f"{path}:0", f"{path}:7", f"{path}:7"]
    assert source.picture(7)[0] == f"{path}, row 7 (7.png)"
    for use in (source.picture, source.name):
        for row in (11, -12):
            with refused(row, error=IndexError):
                use(row)
    picked = ImageSubset(source, np.array([9, 0, 5]))
    ((x, y),) = picked
    assert (x[:, 0, 0, 0] * 255).round().tolist() == [9, 0, 5]
    assert (y.tolist(), picked.name(2)) == ([1, 2, 2], f"{path}:5")


def test_bytes_and_whole_numbers_of_every_type_are_read(tmp_path):
    full = pa.struct([("path", pa.large_string()), ("bytes", pa.large_binary()), ("more", pa.int8())])
    kinds = [pa.binary(), pa.large_binary(), pa.struct([("bytes", pa.binary())]), full]
    for kind, label_type in zip(kinds, ["int8", "uint8", "int32", "uint64"], strict=True):
        pq.write_table(make_table(kind=kind, label_type=label_type), tmp_path / "t.parquet")
        source = TableImages(tmp_path / "t.parquet", PLAIN)
        assert [colour(source, row) for row in range(11)] == list(range(11)), kind
        assert source.labels.tolist() == LABELS, label_type
    pq.write_table(make_table([3], label_type="uint64"), tmp_path / "u.parquet")
    assert TableImages(tmp_path, PLAIN).labels.tolist() == [*LABELS, 3]


def test_columns_can_be_chosen_and_labels_left_out(tmp_path):
    table = make_table().append_column("image.url", pa.array(["u"] * 11))  # parquet calls parts of a struct like this
    path = write(tmp_path / "t", "parquet", table.append_column("fine", pa.array(range(11))))
    source = TableImages(path, PLAIN, label="fine")
    assert (source.labels.tolist(), colour(source, 8)) == (list(range(11)), 8)
    assert TableImages(path, PLAIN, label=None).labels is None


def test_files_come_in_the_order_of_their_names_without_others(tmp_path):
    tables = [make_table([i], first=i) for i in range(3)]
    parquets = tmp_path / "p"
    (parquets / "d.parquet").mkdir(parents=True)
    for table, name in zip(tables, ["c.parquet", "a.parquet", "b.parquet"], strict=True):
        pq.write_table(table, parquets / name)
    (parquets / "._a.parquet").write_text("left by another system")
    (parquets / "notes.txt").write_text("")
    assert TableImages(parquets, PLAIN).labels.tolist() == [1, 2, 0]


def test_pieces_without_rows_are_skipped_and_a_table_without_rows_is_refused(tmp_path):
    (tmp_path / "t").mkdir()
    for number, table in enumerate([make_table([]), make_table([5]), make_table([]), make_table([6], first=1)]):
        pq.write_table(table, tmp_path / "t" / f"{number}.parquet")
    source = TableImages(tmp_path / "t", PLAIN)
    assert (source.labels.tolist(), colour(source, 0), colour(source, 1)) == ([5, 6], 0, 1)
    for kind in KINDS:
        with refused(kind, "at least one row"):
            TableImages(write(tmp_path / kind, kind, make_table([])), PLAIN)


BAD = [
    (None, "row 1 does not hold"),
    ({"bytes": None, "path": ""}, "row 1 does not hold"),
    ({"bytes": b"", "path": "a.png"}, r"row 1 \(a\.png\) could not be read"),
    ({"bytes": b"hello", "path": None}, "row 1 could not be read"),
    ({"bytes": encoded(1, (64, 64))[:-30], "path": None}, "row 1 could not be read"),
    ({"bytes": encoded(1, form="EPS"), "path": None}, "row 1 could not be read"),  # would start another program
    ({"bytes": None, "path": "a.png"}, r"row 1 \(a\.png\) does not hold"),  # no file outside is read
]


@EVERY
def test_a_bad_image_is_named_when_it_is_read_and_harms_no_other(tmp_path, kind):
    good = {"bytes": encoded(3), "path": "/none.png"}
    for value, keyword in BAD:
        path = write(tmp_path / "t", kind, rows_of([good, value] + [good] * 5))
        ((tmp_path if kind == "parquet" else path) / "a.png").write_bytes(encoded(4))
        source = TableImages(path, PLAIN)
        with refused(value, keyword, UnreadableImageError):
            source.picture(1)
        assert [colour(source, 0), colour(source, 2)] == [3, 3], value


@EVERY
def test_columns_that_do_not_fit_are_refused(tmp_path, kind):
    table = make_table().append_column("name", pa.array(["x"] * 11))
    table = table.append_column("shape", pa.array([{"h": 1, "path": "x"}] * 11))
    numbered = pa.struct([("bytes", pa.binary()), ("path", pa.int64())])
    table = table.append_column("numbered", pa.array([None] * 11, numbered))
    path = write(tmp_path / "t", kind, table)
    for image, label, wanted in [
        ("img", "label", "'img' of encoded images; .*'image'"), ("image", "y", "'y' of whole numbers"),
        ("label", "label", "'label' of encoded images"), ("image", "image", "'image' of whole numbers"),
        ("image", "name", "'name' of whole numbers"), ("name", None, "'name' of encoded images"),
        ("shape", None, "'shape' of encoded images"), ("numbered", None, "'numbered' of encoded images"),
    ]:  # fmt: skip
        with refused((image, label), wanted):
            TableImages(path, PLAIN, image=image, label=label)


@EVERY
def test_every_row_needs_a_class_unless_labels_are_left_out(tmp_path, kind):
    for value, shown in [(None, "null"), (-1, "-1")]:
        path = write(tmp_path / "t", kind, make_table([*LABELS[:8], value, -5, 0]))
        with refused(value, f"row 8 has {shown}"):
            TableImages(path, PLAIN)
        assert TableImages(path, PLAIN, label=None).rows == 11


def test_a_folder_that_is_no_single_table_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no table"):
        TableImages(tmp_path / "none", PLAIN)
    with pytest.raises(ValueError, match="no table"):
        TableImages(tmp_path, PLAIN)


@EVERY
def test_a_damaged_file_is_named(tmp_path, kind):
    damages = [lambda data: data[: len(data) // 2], lambda data: data[:-8], lambda data: b"", lambda data: b"hello"]
    for number, damage in enumerate(damages):
        path = write(tmp_path / "t", kind)
        file = path if kind == "parquet" else sorted(f for f in path.iterdir() if f.suffix != ".json")[1]
        file.write_bytes(damage(file.read_bytes()))
        for label in ("label", None):
            with refused((number, label), f"{file.name} cannot be read as a table"):
                TableImages(path, PLAIN, label=label)


def test_any_altered_byte_gives_an_image_or_a_clear_error(tmp_path):
    file = path = write(tmp_path / "t", "parquet")
    data, rng = file.read_bytes(), random.Random(0)
    for _ in range(150):
        altered = bytearray(data)
        for _ in range(rng.choice([1, 2, 8])):
            altered[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(altered)
        with suppress(ValueError):
            source = TableImages(path, PLAIN)
            for row in range(min(source.rows, 11)):
                with suppress(UnreadableImageError):
                    assert isinstance(source.picture(row)[1], Image.Image)


def test_a_file_that_is_damaged_or_shrinks_while_it_is_in_use_is_noticed(tmp_path):
    for kind in KINDS:
        path = write(tmp_path / kind, kind)
        source = TableImages(path, PLAIN)
        write(path, kind, make_table(LABELS[:1]))
        with refused(kind, "changed while it was in use"):
            source.picture(0)
    path = write(tmp_path / "t", "parquet")
    source = TableImages(path, PLAIN)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read as a table") as caught:
        source.picture(3)
    assert not isinstance(caught.value, UnreadableImageError)  # no bad image but a damaged file
    assert [colour(source, 2), colour(source, 6)] == [2, 6]


@EVERY
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on: other tests leave threads behind
def test_a_source_in_use_can_be_pickled_without_its_images_forked_and_read_by_threads(tmp_path, kind):
    source = TableImages(write(tmp_path / "t", kind, make_table(kind=STRUCT)), PLAIN, batch_size=3)
    noise = [{"bytes": np.random.default_rng(i).bytes(2**16), "path": None} for i in range(8)]
    large = TableImages(write(tmp_path / "n", kind, rows_of(noise)), PLAIN)
    with pytest.raises(UnreadableImageError):
        large.picture(0)
    assert len(pickle.dumps(large)) < 2**14
    assert colour(source, 4) == 4
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own
    assert [colour(copy, row) for row in range(11)] == list(range(11))
    assert copy.fingerprint == source.fingerprint
    bank, _ = extract(nn.Sequential(nn.Flatten(), nn.Linear(60, 2)), source, loading=Loading(workers=2))
    assert (bank.features[:, 0] * 255).round().tolist() == list(range(11))
    order = random.Random(1).choices(range(11), k=200)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda row: colour(source, row), order)) == order


def test_the_fingerprint_changes_with_files_names_columns_labels_and_transform(tmp_path):
    table = make_table().append_column("again", make_table()["image"]).append_column("same", make_table()["label"])
    path = write(tmp_path / "t", "parquet", table)
    shutil.copy2(path, tmp_path / "u")
    uses = [{}, {"image": "again"}, {"label": "same"}, {"label": None}, {"transform": Transform(crop=2)}]
    fingerprints = {TableImages(path, **{"transform": PLAIN, **use}).fingerprint for use in uses}
    fingerprints.add(TableImages(tmp_path / "u", PLAIN).fingerprint)
    for row_group_size in (3, 2):
        pq.write_table(table, path, row_group_size=row_group_size)
        os.utime(path, (0, 0))
        fingerprints.add(TableImages(path, PLAIN).fingerprint)
    assert len(fingerprints) == 8


@EVERY
def test_the_fingerprint_depends_on_pixels_but_not_on_place_or_batch_size(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(pq, "write_table", partial(pq.write_table, compression="none", use_dictionary=False))

    def written(place, colours):
        """Write images with the same names, sizes and times whatever their colours are."""
        values = [{"bytes": encoded(value, form="BMP"), "path": None} for value in colours]
        path = write(place / "t", kind, rows_of(values))
        files = list(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            os.utime(file, (0, 0))
        return path, {file.name: file.stat().st_size for file in files}

    (tmp_path / "far").mkdir()
    path, sizes = written(tmp_path, range(11))
    before = TableImages(path, PLAIN, batch_size=2, label=None).fingerprint
    copy, _ = written(tmp_path / "far", range(11))
    assert TableImages(copy, PLAIN, batch_size=3, label=None).fingerprint == before
    path, others = written(tmp_path, range(100, 111))
    assert others == sizes
    assert TableImages(path, PLAIN, label=None).fingerprint != before


@pytest.mark.parametrize("kind", [pa.large_binary(), STRUCT], ids=str)
def test_a_small_file_does_not_fill_the_memory(tmp_path, monkeypatch, kind):
    content = encoded(7).ljust(2 * 10**5, b"\0")
    table = rows_of([{"bytes": content, "path": "x"} if kind == STRUCT else content] * 100, kind)
    before = pa.total_allocated_bytes()
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd")
    source = TableImages(tmp_path / "t.parquet", PLAIN)
    assert source.picture(50)[1].getpixel((0, 0)) == (7, 7, 7)
    assert pa.total_allocated_bytes() - before < 10**6  # equal images once
    monkeypatch.setattr("flatfold.data.tables.LARGEST_GROUP", 10**7)
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd", use_dictionary=False)
    with refused("pages", "'image' of row group 0 would expand .* to 20 MB", ValueError):
        TableImages(tmp_path / "t.parquet", PLAIN)
    monkeypatch.setattr("flatfold.data.tables.LARGEST_GROUP", 1000)
    pq.write_table(rows_of([None] * 10**6, kind), tmp_path / "t.parquet", compression="zstd")
    TableImages(tmp_path / "t.parquet", PLAIN, label=None)
    monkeypatch.setattr("flatfold.data.tables.EXPANSION", 1)
    with refused("labels", "'label' would expand .* to 8 MB", ValueError):
        TableImages(tmp_path / "t.parquet", PLAIN)
