"""`models.tables`: the right pixels with the right labels out of every kind of table, and never two row groups."""

import gc
import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from flatfold.core.errors import UnreadableImage
from flatfold.models.images import Transform
from flatfold.models.picked import PickedImages
from flatfold.models.table_paths import outside_paths
from flatfold.models.tables import TableImages

PLAIN = Transform()
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LABELS = [2, 0, 1, 1, 0, 2, 7, 0, 3, 1, 4]
KINDS = ["parquet", "parquets", "datasets"]


def png(value, size=(5, 4)):
    file = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(file, "PNG")
    return file.getvalue()


def make_table(labels=LABELS, first=0, kind=STRUCT, label_type="int64"):
    """A table of small images, each of its own colour."""
    images = [png(first + i) for i in range(len(labels))]
    if pa.types.is_struct(kind):
        images = [{"bytes": each, "path": f"{first + i}.png"} for i, each in enumerate(images)]
    return pa.table({"image": pa.array(images, kind), "label": pa.array(labels, label_type)})


def write_datasets(folder, tables, rows=2, names=None):
    """Write what ``Dataset.save_to_disk`` of Hugging Face writes: Arrow streams, and state.json with their order."""
    folder.mkdir(parents=True)
    names = names or [f"data-{i:05d}-of-{len(tables):05d}.arrow" for i in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=rows)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write(path, kind, table=None):
    """Write a table in one of three ways; each has several pieces of unequal length."""
    table = make_table() if table is None else table
    if kind == "datasets":
        return write_datasets(path, [table[:5], table[5:6], table[6:]])
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=3)
        return path
    path.mkdir()
    for i, part in enumerate([table[:5], table[5:6], table[6:]]):
        pq.write_table(part, path / f"part-{i}.parquet", row_group_size=4)
    return path


def colour(source, row):
    return source.picture(row)[1].getpixel((0, 0))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_images_and_labels_come_in_the_order_of_the_rows(tmp_path, kind):
    source = TableImages(str(write(tmp_path / "t", kind)), PLAIN, batch_size=4)
    x, y = (torch.cat(parts) for parts in zip(*source, strict=True))
    assert (x[:, 0, 0, 0] * 255).round().tolist() == list(range(11))
    assert x.shape == (11, 3, 4, 5)
    assert y.dtype == torch.int64
    assert y.tolist() == LABELS
    assert (source.rows, len(source)) == (11, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_any_row_can_be_read_at_any_time(tmp_path, kind):
    source = TableImages(write(tmp_path / "t", kind), PLAIN)
    order = random.Random(0).choices(range(11), k=60)
    assert [colour(source, row) for row in order] == order
    assert [colour(source, row) for row in (-1, -5, -11)] == [10, 6, 0]
    for row in (11, -12):
        with pytest.raises(IndexError):
            source.picture(row)
    (pair,) = PickedImages(source, np.array([9, 0, 5]))
    assert (pair[0][:, 0, 0, 0] * 255).round().tolist() == [9, 0, 5]
    assert pair[1].tolist() == [1, 2, 2]


def test_a_row_is_called_by_its_number_and_path(tmp_path):
    source = TableImages(write(tmp_path / "t", "parquets"), PLAIN)
    assert source.picture(7)[0] == f"{tmp_path / 't'}, row 7 (7.png)"
    pq.write_table(make_table(kind=pa.binary()), tmp_path / "b.parquet")
    assert TableImages(tmp_path / "b.parquet", PLAIN).picture(-4)[0] == f"{tmp_path / 'b.parquet'}, row 7"


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_results_calls_a_row_by_file_and_number_without_reading_it(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t", kind)
    source = TableImages("t", PLAIN)
    monkeypatch.setattr(source, "_value", None)
    assert [source.name(row) for row in (0, 7, -4)] == ["t:0", "t:7", "t:7"]
    assert TableImages(tmp_path / "t", PLAIN).name(3) == f"{tmp_path / 't'}:3"
    assert PickedImages(source, np.array([9, 2])).name(1) == "t:2"
    with pytest.raises(IndexError):
        source.name(11)


def test_a_kind_of_image_that_starts_another_program_is_unreadable_in_a_table(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "EPS")
    pq.write_table(rows_of([file.getvalue()], pa.binary()), tmp_path / "t.parquet")
    with pytest.raises(
        UnreadableImage, match=r"t\.parquet, row 0 could not be read as an image: it has the form of no"
    ):
        TableImages(tmp_path / "t.parquet", PLAIN).picture(0)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.struct([("bytes", pa.binary())]),
        pa.struct([("path", pa.large_string()), ("bytes", pa.large_binary()), ("more", pa.int8())]),
    ],
    ids=str,
)
@pytest.mark.parametrize("label_type", ["int8", "uint8", "int32", "uint64"])
def test_bytes_and_whole_numbers_of_every_kind_are_read(tmp_path, kind, label_type):
    table = make_table(kind=kind, label_type=label_type)
    pq.write_table(table, tmp_path / "t.parquet")
    for path in (tmp_path / "t.parquet", write_datasets(tmp_path / "d", [table])):
        source = TableImages(path, PLAIN)
        assert [colour(source, row) for row in range(11)] == list(range(11))
        assert source.labels.tolist() == LABELS


def test_files_of_one_table_may_keep_labels_in_different_types(tmp_path):
    tables = [make_table([1, 2], label_type="int8"), make_table([3], label_type="uint64")]
    assert TableImages(write_datasets(tmp_path / "d", tables), PLAIN).labels.tolist() == [1, 2, 3]


def test_columns_can_be_chosen_and_labels_left_out(tmp_path):
    table = make_table().rename_columns(["img", "fine"]).append_column("image.url", pa.array(["u"] * 11))
    path = write(tmp_path / "t", "parquet", table)
    source = TableImages(path, PLAIN, image="img", label="fine")
    assert (source.labels.tolist(), colour(source, 8)) == (LABELS, 8)
    assert TableImages(path, PLAIN, image="img", label=None).labels is None
    both = make_table().append_column("image.url", pa.array(["u"] * 11))  # parquet calls parts of a struct like this
    assert colour(TableImages(write(tmp_path / "u", "parquet", both), PLAIN), 8) == 8


def test_arrow_files_come_in_the_order_of_the_state_and_others_are_left_out(tmp_path):
    tables = [make_table([i], first=i) for i in range(3)]
    folder = write_datasets(tmp_path / "d", tables, names=["z.arrow", "a.arrow", "m.arrow"])
    shutil.copy(folder / "z.arrow", folder / "cache-0.arrow")
    assert TableImages(folder, PLAIN).labels.tolist() == [0, 1, 2]


def test_parquet_files_come_in_the_order_of_their_names_without_hidden_ones(tmp_path):
    for i, name in enumerate(["c.parquet", "a.parquet", "b.parquet"]):
        pq.write_table(make_table([i]), tmp_path / name)
    (tmp_path / "._a.parquet").write_text("left by another system")
    (tmp_path / "d.parquet").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert TableImages(tmp_path, PLAIN).labels.tolist() == [1, 2, 0]


def test_pieces_without_rows_are_passed_over(tmp_path):
    (tmp_path / "t").mkdir()
    for i, table in enumerate([make_table([]), make_table([5]), make_table([]), make_table([6], first=1)]):
        pq.write_table(table, tmp_path / "t" / f"{i}.parquet")
    source = TableImages(tmp_path / "t", PLAIN)
    assert (source.labels.tolist(), colour(source, 0), colour(source, 1)) == ([5, 6], 0, 1)


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_a_table_without_rows_is_refused(tmp_path, kind):
    path = write(tmp_path / "t", kind, make_table([]))
    with pytest.raises(ValueError, match=r"t must hold at least one row, but its tables are empty\. Check the path"):
        TableImages(path, PLAIN)


def test_a_file_without_row_groups_is_refused(tmp_path):
    with pq.ParquetWriter(tmp_path / "t.parquet", make_table().schema):
        pass
    assert pq.ParquetFile(tmp_path / "t.parquet").num_row_groups == 0
    with pytest.raises(ValueError, match="must hold at least one row"):
        TableImages(tmp_path / "t.parquet", PLAIN)


def rows_of(values, kind=STRUCT):
    return pa.table({"image": pa.array(values, kind), "label": pa.array(range(len(values)))})


@pytest.mark.parametrize("kind", KINDS)
def test_where_there_are_no_bytes_the_path_is_followed_from_the_folder(tmp_path, kind):
    values = [{"bytes": None, "path": "sub/x.png"}, {"bytes": png(9), "path": "/none.png"}]
    path = write(tmp_path / "t", kind, rows_of(values * 4))
    folder = tmp_path if kind == "parquet" else path
    (folder / "sub").mkdir()
    (folder / "sub" / "x.png").write_bytes(png(77))
    source = TableImages(path, PLAIN)
    assert [colour(source, row) for row in range(4)] == [77, 9, 77, 9]


BAD = {
    "null": (None, r"row 1 has neither the bytes of an image nor a path to one\. Remove the row"),
    "nothing": ({"bytes": None, "path": None}, "row 1 has neither the bytes"),
    "no path": ({"bytes": None, "path": ""}, "row 1 has neither the bytes"),
    "empty": ({"bytes": b"", "path": "a.png"}, r"row 1 \(a\.png\) could not be read as an image"),
    "no image": ({"bytes": b"hello", "path": None}, "row 1 could not be read as an image"),
    "cut": ({"bytes": png(1, (64, 64))[:-30], "path": None}, "row 1 could not be read as an image"),
    "missing": ({"bytes": None, "path": "none.png"}, r"row 1 \(none\.png\) could not be read as an image"),
    "odd": ({"bytes": None, "path": "a\0b.png"}, "could not be read as an image"),
    "absolute": ({"bytes": None, "path": "/x.png"}, r"row 1 \(/x\.png\) has a path that does not lead downwards"),
    "outside": ({"bytes": None, "path": "a/../../x.png"}, r"downwards from .*\. Write the table with the bytes"),
}


@pytest.mark.parametrize(("value", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_image_is_named_when_it_is_read_and_harms_no_other(tmp_path, kind, value, message):
    good = {"bytes": png(3), "path": None}
    path = write(tmp_path / "t", kind, rows_of([good, value] + [good] * 5))
    ((tmp_path if kind == "parquet" else path) / "a.png").write_bytes(png(4))  # not asked for where there are bytes
    source = TableImages(path, PLAIN)
    with pytest.raises(UnreadableImage, match=message):
        source.picture(1)
    assert [colour(source, 0), colour(source, 2)] == [3, 3]


def test_binary_without_bytes_is_a_bad_image(tmp_path):
    pq.write_table(rows_of([png(3), None], pa.binary()), tmp_path / "t.parquet")
    with pytest.raises(UnreadableImage, match="row 1 has neither the bytes"):
        TableImages(tmp_path / "t.parquet", PLAIN).picture(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("image", "label", "wanted"),
    [
        ("img", "label", "one column 'img' of encoded images"),
        ("image", "y", "one column 'y' of whole numbers"),
        ("label", "label", "one column 'label' of encoded images"),
        ("image", "image", "one column 'image' of whole numbers"),
        ("image", "name", "one column 'name' of whole numbers"),
        ("name", None, "one column 'name' of encoded images"),
        ("shape", None, "one column 'shape' of encoded images"),
        ("numbered", None, "one column 'numbered' of encoded images"),
    ],
)
def test_columns_that_do_not_fit_are_named_with_those_that_are_there(tmp_path, kind, image, label, wanted):
    table = make_table().append_column("name", pa.array(["x"] * 11))
    table = table.append_column("shape", pa.array([{"h": 1, "path": "x"}] * 11))
    numbered = pa.struct([("bytes", pa.binary()), ("path", pa.int64())])
    table = table.append_column("numbered", pa.array([None] * 11, numbered))
    there = r"its columns are 'image' \(struct<bytes: binary, path: string>\), 'label' \(int64\), 'name' \(string\), "
    with pytest.raises(
        ValueError, match=rf"must have {wanted}; {there}.*Pass image='\.\.\.' for the images and label="
    ):
        TableImages(write(tmp_path / "t", kind, table), PLAIN, image=image, label=label)


def test_two_columns_of_one_name_are_refused(tmp_path):
    column = make_table()["label"]
    table = make_table().append_column("label", column)
    with pytest.raises(ValueError, match=r"must have one column 'label'.*'label' \(int64\), 'label' \(int64\)\. Pass"):
        TableImages(write_datasets(tmp_path / "d", [table]), PLAIN)
    twice = pa.StructArray.from_arrays([pa.array([b""]), pa.array([b""])], ["bytes", "bytes"])
    with pytest.raises(ValueError, match="must have one column 'image' of encoded images"):
        TableImages(write_datasets(tmp_path / "e", [pa.table({"image": twice})]), PLAIN, label=None)


@pytest.mark.parametrize(("value", "came"), [(None, "null"), (-1, "-1")])
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_needs_a_class(tmp_path, kind, value, came):
    table = make_table([*LABELS[:8], value, -5, 0])
    path = write(tmp_path / "t", kind, table)
    with pytest.raises(
        ValueError,
        match=rf"column 'label' of .*t must hold a class index from 0 in every row, but row 8 has {came}\. "
        "Pass label=None",
    ):
        TableImages(path, PLAIN)
    assert TableImages(path, PLAIN, label=None).rows == 11


def test_a_folder_of_several_splits_is_refused_with_their_names(tmp_path):
    for name in ("train", "test"):
        write_datasets(tmp_path / name, [make_table()])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(
        ValueError, match=r"must be one table, but it holds the splits 'train', 'test'\. Pass the folder"
    ):
        TableImages(tmp_path, PLAIN)
    assert TableImages(tmp_path / "test", PLAIN).rows == 11


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"splits": 3}', '{"splits": [3]}', "[" * 100_000])
def test_a_damaged_list_of_splits_is_refused(tmp_path, content):
    (tmp_path / "dataset_dict.json").write_text(content)
    with pytest.raises(ValueError, match=r"dataset_dict\.json is damaged|must be one table, but it holds the splits "):
        TableImages(tmp_path, PLAIN)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000], ids=len)
def test_a_damaged_state_is_refused(tmp_path, content):
    folder = write_datasets(tmp_path / "d", [make_table()])
    (folder / "state.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"state\.json is damaged: .*\. Write the data set again with save_to_disk"):
        TableImages(folder, PLAIN)


@pytest.mark.parametrize(
    "files", [None, [], 3, ["x.arrow"], [{}], [{"filename": 3}], [{"filename": "../x.arrow"}], [{"filename": "/x"}]]
)
def test_a_state_without_files_of_its_own_folder_is_refused(tmp_path, files):
    folder = write_datasets(tmp_path / "d", [make_table()])
    shutil.copy(folder / "data-00000-of-00001.arrow", tmp_path / "x.arrow")
    (folder / "state.json").write_text(json.dumps([] if files is None else {"_data_files": files}))
    with pytest.raises(ValueError, match=r"state\.json must list files of its own folder under '_data_files', got "):
        TableImages(folder, PLAIN)


def test_rows_picked_by_a_table_of_indices_are_refused(tmp_path):
    folder = write_datasets(tmp_path / "d", [make_table()])
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"_indices_data_files": []}))
    assert TableImages(folder, PLAIN).rows == 11
    (folder / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(ValueError, match=r"picks rows by a table of indices, .*\. Load and save the data set with"):
        TableImages(folder, PLAIN)


def test_a_path_without_a_table_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no table .*none\. Check the path"):
        TableImages(tmp_path / "none", PLAIN)
    with pytest.raises(
        ValueError, match=r"holds no table: neither files \*\.parquet nor a state\.json .*Pass the folder"
    ):
        TableImages(tmp_path, PLAIN)


def cut_inside(data):
    return data[: len(data) // 2]


def cut_between(data):
    """Without the mark at the end of an Arrow stream all batches are still there: so it looks after a lost batch."""
    return data[:-8]


def empty(data):
    return b""


def other(data):
    return b"hello"


@pytest.mark.parametrize("damage", [cut_inside, cut_between, empty, other])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("label", ["label", None])
def test_a_damaged_file_is_named(tmp_path, kind, damage, label):
    path = write(tmp_path / "t", kind)
    file = path if kind == "parquet" else sorted(f for f in path.iterdir() if f.suffix != ".json")[1]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=rf"{file.name} cannot be read as a table: .*\. Copy or write it again"):
        TableImages(path, PLAIN, label=label)


def test_a_file_that_is_not_there_is_named(tmp_path):
    path = write(tmp_path / "t", "datasets")
    (path / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(ValueError, match=r"data-00001-of-00003\.arrow cannot be read as a table: .*No such file"):
        TableImages(path, PLAIN)


def test_a_damaged_row_group_is_no_bad_image_but_a_damaged_file(tmp_path):
    path = write(tmp_path / "t", "parquet")
    source = TableImages(path, PLAIN)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)
    assert colour(source, 2) == 2
    with pytest.raises(ValueError, match="t cannot be read as a table") as caught:
        source.picture(3)
    assert not isinstance(caught.value, UnreadableImage)
    assert colour(source, 6) == 6


def test_offsets_that_lead_out_of_the_file_are_noticed(tmp_path):
    """Arrow itself would follow them, to wherever they lead in memory."""
    table = make_table(kind=pa.binary())
    path = write_datasets(tmp_path / "d", [table], rows=11)
    file = path / "data-00000-of-00001.arrow"
    lengths = np.cumsum([0] + [len(each.as_py()) for each in table["image"]]).astype("<i4").tobytes()
    assert file.read_bytes().count(lengths) == 1
    file.write_bytes(file.read_bytes().replace(lengths[:8], lengths[:4] + b"\xff\xff\xff\x7f"))
    with pytest.raises(ValueError, match="cannot be read as a table"):
        TableImages(path, PLAIN).picture(0)


def test_names_that_are_no_text_are_damage(tmp_path):
    path = write_datasets(tmp_path / "d", [make_table()])
    file = path / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes().replace(b"path", b"pa\xffh"))
    with pytest.raises(ValueError, match=r"arrow cannot be read as a table: .*can't decode"):
        TableImages(path, PLAIN)


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_any_altered_byte_gives_an_image_or_a_sentence(tmp_path, kind):
    path = write(tmp_path / "t", kind)
    file = path if kind == "parquet" else path / "data-00000-of-00003.arrow"
    data, rng = file.read_bytes(), random.Random(0)
    for _ in range(150):
        altered = bytearray(data)
        for _ in range(rng.choice([1, 2, 8])):
            altered[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(altered)
        with suppress(ValueError):
            source = TableImages(path, PLAIN)
            for row in range(min(source.rows, 11)):
                with suppress(UnreadableImage):
                    assert isinstance(source.picture(row)[1], Image.Image)


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_a_file_that_shrinks_while_it_is_in_use_is_noticed(tmp_path, kind):
    path = write(tmp_path / "t", kind)
    source = TableImages(path, PLAIN)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    write(path, kind, make_table(LABELS[:1]))
    with pytest.raises(ValueError, match=r"was changed while it was in use\. Begin again"):
        source.picture(0)


def test_one_row_group_is_kept_and_dropped_before_the_next_is_read(tmp_path, monkeypatch):
    noise = [np.random.default_rng(i).bytes(2**20) for i in range(8)]
    pq.write_table(rows_of(noise, pa.binary()), tmp_path / "t.parquet", row_group_size=2, compression="none")
    source = TableImages(tmp_path / "t.parquet", PLAIN)
    held, real = [], pq.ParquetFile.read_row_group
    before = pa.total_allocated_bytes()

    def watched(*args, **how):
        end = time.monotonic() + 2
        while pa.total_allocated_bytes() - before > 2**20 and time.monotonic() < end:
            time.sleep(0.01)  # a thread of pyarrow may let go a moment later than we do
        held.append(pa.total_allocated_bytes() - before)
        return real(*args, **how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    for row in range(8):
        with pytest.raises(UnreadableImage):
            source.picture(row)
    assert len(held) == 4, "a row group is read once as long as its rows are read"
    assert max(held) < 2**20


def test_arrow_files_are_mapped_and_not_read(tmp_path):
    noise = [np.random.default_rng(i).bytes(2**20) for i in range(4)]
    path = write_datasets(tmp_path / "d", [rows_of(noise, pa.binary())])
    before = pa.total_allocated_bytes()
    source = TableImages(path, PLAIN)
    with pytest.raises(UnreadableImage):
        source.picture(3)
    assert pa.total_allocated_bytes() - before < 2**18


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux, where open files can be listed")
def test_no_file_stays_open(tmp_path, kind):
    source = TableImages(write(tmp_path / "t", kind), PLAIN)
    assert colour(source, 4) == 4
    gc.collect()
    opened = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists the folder is gone by now
            opened.append(os.readlink(link))
    assert not [name for name in opened if name.startswith(str(tmp_path))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_source_holds_no_images(tmp_path, kind):
    noise = [{"bytes": np.random.default_rng(i).bytes(2**16), "path": None} for i in range(8)]
    source = TableImages(write(tmp_path / "n", kind, rows_of(noise)), PLAIN)
    with pytest.raises(UnreadableImage):
        source.picture(0)
    assert len(pickle.dumps(source)) < 2**14
    source = TableImages(write(tmp_path / "t", kind), PLAIN)
    assert colour(source, 3) == 3
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own
    assert [colour(copy, row) for row in range(11)] == list(range(11))
    assert copy.fingerprint == source.fingerprint


def test_threads_may_read_from_one_source(tmp_path):
    source = TableImages(write(tmp_path / "t", "parquet"), PLAIN)
    order = random.Random(1).choices(range(11), k=200)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda row: colour(source, row), order)) == order


class Colours(torch.utils.data.Dataset):
    def __init__(self, source):
        self.source = source

    def __len__(self):
        return self.source.rows

    def __getitem__(self, row):
        return colour(self.source, row)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that can fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on: other tests leave threads behind
def test_workers_read_from_a_source_that_was_already_read_from(tmp_path, kind):
    source = TableImages(write(tmp_path / "t", kind), PLAIN)
    assert colour(source, 4) == 4
    loader = DataLoader(Colours(source), batch_size=3, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert torch.cat(list(loader)).tolist() == list(range(11))
    assert colour(source, 5) == 5


def touch(path):
    os.utime(path, (0, 0))


def grow(path):
    pq.write_table(make_table([*LABELS, 0])[:11], path, row_group_size=2)
    os.utime(path, ns=(10**18, 10**18))


@pytest.mark.parametrize("change", [touch, grow])
def test_the_fingerprint_changes_with_the_files(tmp_path, change):
    path = write(tmp_path / "t", "parquet")
    os.utime(path, ns=(10**18, 10**18))
    before = TableImages(path, PLAIN, label=None).fingerprint
    change(path)
    assert TableImages(path, PLAIN, label=None).fingerprint != before


def test_the_fingerprint_changes_with_names_columns_labels_and_transform(tmp_path):
    table = make_table().append_column("again", make_table()["image"]).append_column("same", make_table()["label"])
    path = write(tmp_path / "t", "parquet", table)
    shutil.copy2(path, tmp_path / "u")
    sources = [
        TableImages(path, PLAIN),
        TableImages(path, PLAIN, image="again"),
        TableImages(path, PLAIN, label="same"),
        TableImages(path, PLAIN, label=None),
        TableImages(path, Transform(crop=2)),
        TableImages(tmp_path / "u", PLAIN),
    ]
    assert len({source.fingerprint for source in sources}) == len(sources)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_depends_on_nothing_else(tmp_path, kind):
    path = write(tmp_path / "t", kind)
    (tmp_path / "far").mkdir()
    copy = tmp_path / "far" / "t"
    shutil.copytree(path, copy) if path.is_dir() else shutil.copy2(path, copy)
    one, two = TableImages(path, PLAIN, batch_size=2), TableImages(copy, PLAIN, batch_size=3)
    assert one.fingerprint == two.fingerprint


def rewrite(path, kind, colours):
    """Write images of other colours with the same names, sizes and times."""
    table = rows_of([{"bytes": bmp(colour), "path": None} for colour in colours])
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    write(path, kind, table)
    for file in path.iterdir() if path.is_dir() else [path]:
        os.utime(file, (0, 0))
    return {file.name: file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path])}


def bmp(value):
    file = io.BytesIO()
    Image.new("RGB", (5, 4), (value, value, value)).save(file, "BMP")
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_other_pixels_in_tables_of_the_same_sizes_and_times_change_the_fingerprint(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(pq, "write_table", partial(pq.write_table, compression="none", use_dictionary=False))
    path = tmp_path / "t"
    path.mkdir()
    sizes = rewrite(path, kind, range(11))
    before = TableImages(path, PLAIN, label=None).fingerprint
    assert rewrite(path, kind, range(100, 111)) == sizes
    assert TableImages(path, PLAIN, label=None).fingerprint != before


def outside_table(tmp_path, kind, statistics=True):
    """A table that holds some images and names others, which are there, missing, or forbidden."""
    names = ["a.png", "z.png", None, "sub/b.png", "", "none.png", "../c.png", "z.png", "/d.png", "e\0.png"]
    values = [{"bytes": png(1) if name == "z.png" else None, "path": name} for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq, "write_table", partial(pq.write_table, write_statistics=statistics))
        path = write(tmp_path / "t", kind, rows_of([*values, None]))
    folder = tmp_path if kind == "parquet" else path
    (folder / "sub").mkdir()
    for name in ("a.png", "sub/b.png", "z.png"):
        (folder / name).write_bytes(png(1))
        os.utime(folder / name, (0, 0))
    return path, folder


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a.png", "sub/b.png"])
def test_images_outside_of_the_table_are_part_of_the_fingerprint(tmp_path, kind, name, statistics):
    path, folder = outside_table(tmp_path, kind, statistics)
    before = TableImages(path, PLAIN).fingerprint
    assert TableImages(path, PLAIN).fingerprint == before
    for change in (lambda file: os.utime(file, (5, 5)), grow_by_a_byte, Path.unlink):
        change(folder / name)
        after = TableImages(path, PLAIN).fingerprint
        assert after != before
        before = after


def grow_by_a_byte(file):
    file.write_bytes(file.read_bytes() + b"0")
    os.utime(file, (5, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_is_asked_for_when_all_images_are_in_the_table(tmp_path, kind, monkeypatch):
    source = TableImages(write(tmp_path / "t", kind), PLAIN)
    asked, real = [], os.stat
    monkeypatch.setattr(os, "stat", lambda file, **how: asked.append(str(file)) or real(file, **how))
    assert source.fingerprint
    assert not [file for file in asked if file.endswith(".png")]


def test_the_bytes_of_images_are_not_read_for_the_fingerprint_of_a_parquet_file(tmp_path, monkeypatch):
    path, _ = outside_table(tmp_path, "parquet")
    read, real = [], pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda self, i, columns, **how: read.append(columns) or real(self, i, columns, **how),
    )
    assert TableImages(path, PLAIN).fingerprint
    assert read == [["image.path"]] * 4


@pytest.mark.parametrize("kind", [pa.binary(), pa.struct([("bytes", pa.binary())])], ids=str)
def test_a_column_without_paths_names_no_image_outside(tmp_path, kind):
    table = rows_of([png(1), None] if kind == pa.binary() else [{"bytes": png(1)}, {"bytes": None}, None], kind)
    for how in KINDS:
        source = TableImages(write(tmp_path / how, how, table), PLAIN)
        assert outside_paths(source._pieces, "image") == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_paths_outside_are_those_of_rows_without_bytes(tmp_path, kind):
    path, _ = outside_table(tmp_path, kind)
    paths = outside_paths(TableImages(path, PLAIN)._pieces, "image")
    named = ["a.png", "sub/b.png", "none.png", "../c.png", "/d.png", "e\0.png"]
    assert [name for name in paths if name != "z.png"] == named
    if kind == "datasets":
        assert "z.png" not in paths  # which rows have bytes is known there


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "t", "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"which is not installed\. Run: pip install 'flatfold\[parquet\]'"):
        TableImages(path, PLAIN)


def test_pyarrow_is_imported_only_when_a_table_is_read():
    code = "import sys, flatfold.models.tables; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
