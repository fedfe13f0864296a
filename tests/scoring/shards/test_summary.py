"""Shards become the table of one run, or an error says why not."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyarrow.parquet import ParquetFile

from flatfold.data.images import FolderImages
from flatfold.scoring.shards import Shard, Summary, join_tables, score_images, summary_path, unreadable_path
from tests.refusals import assert_refused
from tests.scoring.shards.small_run import TRANSFORM, broken, make_task


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("flatfold.scoring.shards.PART_ROWS", 8)
    monkeypatch.setattr("flatfold.scoring.shards.PARTS", 1)


@pytest.fixture
def task(tmp_path):
    task = make_task(tmp_path, images=37)
    for row, kind in {0: "text", 20: "cut off", 21: "16 bit"}.items():
        broken(kind, tmp_path / "images" / f"{row:04d}.png")
    return task


def shards(task, folder, of, suffix=".csv"):
    paths = [folder / f"shard-{number}{suffix}" for number in range(1, of + 1)]
    for number, path in enumerate(paths, 1):
        score_images(task, path, shard=Shard(number, of))
    return paths


def content(path):
    if path.suffix != ".parquet":
        return path.read_bytes()
    with ParquetFile(path) as file:
        return file.read().to_pylist(), file.schema_arrow.remove_metadata()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_shards_become_the_table_of_one_run(task, tmp_path, suffix):
    whole = tmp_path / f"whole{suffix}"
    expected = score_images(task, whole)
    for of in (1, 3, 15):  # of 10 batches
        out = tmp_path / f"new{of}" / f"joined{suffix}"
        paths = shards(task, tmp_path, of, suffix)
        before = [path.read_bytes() for path in paths]
        got = join_tables([str(path) for path in reversed(paths)], out)
        assert content(out) == content(whole), of
        assert unreadable_path(out).read_bytes() == unreadable_path(whole).read_bytes(), of
        assert (got.job, got.shard, got.unreadable, got.scored) == (expected.job, Shard(), 3, 34)
        assert got.monitor.to_dict() == expected.monitor.to_dict(), of
        if suffix != ".parquet":
            assert summary_path(out).read_bytes() == summary_path(whole).read_bytes(), of
        assert set(out.parent.iterdir()) == {out, summary_path(out), unreadable_path(out)}
        assert [path.read_bytes() for path in paths] == before, "a shard was changed"


def test_a_joined_table_counts_as_that_of_a_complete_run_and_replaces_an_older_list(tmp_path):
    task, out = make_task(tmp_path, images=9), tmp_path / "joined.csv"
    unreadable_path(out).write_text("path,reason\n")
    paths = shards(task, tmp_path, 2)
    join_tables(paths, out)
    assert not unreadable_path(out).exists()

    def never(task, parts):
        raise AssertionError("this was to be done already")

    assert score_images(task, out, executor=never).scored == 9
    shutil.copytree(tmp_path / "images", tmp_path / "copy")  # another machine sees the images at another place
    elsewhere = replace(task, source=FolderImages(tmp_path / "copy", TRANSFORM, task.source.batch_size, labels=False))
    score_images(elsewhere, paths[1], shard=Shard(2, 2))
    assert join_tables(paths, out).scored == 9


def test_tables_that_are_not_all_shards_of_one_run_are_refused_and_nothing_is_written(task, tmp_path):
    paths, out = shards(task, tmp_path, 3), tmp_path / "out.csv"
    for of in (Path, summary_path, unreadable_path):
        if of(paths[1]).exists():
            shutil.copy(of(paths[1]), of(tmp_path / "copy.csv"))
    other = {name: tmp_path / f"{name}.csv" for name in ("rate", "batch_size", "of", "data", "many")}
    score_images(replace(task, fpr=0.1), other["rate"], shard=Shard(2, 3))
    score_images(make_task(tmp_path, batch_size=5), other["batch_size"], shard=Shard(2, 3))
    score_images(task, other["of"], shard=Shard(2, 4))
    score_images(task, other["many"], shard=Shard(2, 9))
    (tmp_path / "images" / "0000.png").unlink()
    score_images(make_task(tmp_path), other["data"], shard=Shard(2, 3))
    first, second, third = paths
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for given, to, keyword in (
        ([], out, "got none"),
        ([first, third], out, "missing: 2"),
        ([second], out, "missing: 1, 3"),
        ([other["many"]], out, r"8 of 9 .*missing: 1, 3, 4, 5, 6 \.\.\."),
        ([*paths, tmp_path / "copy.csv"], out, "duplicate shard 2/3"),
        (paths, tmp_path / "out.jsonl", "jsonl"),
        (paths, tmp_path / "out.txt", "out.txt"),
        (paths, second, "one of the tables"),
        (paths, tmp_path / f"{'a' * 200}.csv", "200 bytes"),
        *(([first, other[name], third], out, f"{name}.csv.* one run") for name in ("rate", "batch_size", "of", "data")),
    ):
        assert_refused(ValueError, keyword, partial(join_tables, given, to))
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before, keyword


def test_a_shard_that_is_changed_or_has_lost_a_file_is_refused(task, tmp_path):
    paths, out = shards(task, tmp_path, 2), tmp_path / "out.csv"
    join = partial(join_tables, paths, out)
    for path in (unreadable_path(paths[1]), summary_path(paths[1]), paths[1]):
        content = path.read_bytes()
        path.unlink()
        assert_refused(FileNotFoundError, path.name, join)
        path.write_bytes(content)
    paths[0].write_bytes(paths[0].read_bytes().replace(b"true", b"false"))
    assert_refused(ValueError, r"shard-1\.csv.*checksum", join)
    assert not out.exists()


def test_a_summary_is_read_as_it_was_written_and_a_damaged_one_is_refused(task, tmp_path):
    out = tmp_path / "out.csv"
    one, two = score_images(task, out, shard=Shard(2, 3)), Summary.load(out)
    assert (one.job, one.shard, one.unreadable, one.table) == (two.job, two.shard, two.unreadable, two.table)
    assert one.monitor.to_dict() == two.monitor.to_dict()
    path, good = summary_path(out), json.loads(summary_path(out).read_text())
    for text in ("{", "[]"):
        path.write_text(text)
        assert_refused(ValueError, "out.csv.summary.json", partial(Summary.load, out), case=text)
    for key, values, keyword in (
        ("format", ("other", ...), "format"),
        ("version", (3,), "version"),
        ("job", (3, ...), "job"),
        ("unreadable", (-1, 1.0, ...), "unreadable"),
        ("table", (None, ...), "table"),
        ("shard", ({"number": 0, "of": 2}, 7, ...), "counted from 1|shard"),
        ("monitor", ({}, ...), "monitor"),
    ):
        for value in values:
            path.write_text(json.dumps({k: v for k, v in {**good, key: value}.items() if v is not ...}))
            assert_refused(ValueError, keyword, partial(Summary.load, out), case=(key, value))
