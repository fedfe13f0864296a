"""`join_tables`: shards become the table of one run, or a sentence says why not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow.parquet import ParquetFile

from flatfold.models.images import FolderImages
from flatfold.scoring.batch import Shard, score_images
from flatfold.scoring.batch.join import join_tables
from flatfold.scoring.batch.summary import Summary, summary_of, unreadable_of
from tests.scoring.batch.small_run import TRANSFORM, broken, make_task, read_csv


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("flatfold.scoring.batch.shard.PART_ROWS", 8)


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


def rows(path):
    with ParquetFile(path) as file:
        return file.read().to_pylist(), file.schema_arrow.remove_metadata()


@pytest.mark.parametrize("of", [1, 2, 3, 7, 15])  # of 10 batches
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_shards_become_the_table_of_one_run(task, tmp_path, suffix, of):
    whole, out = tmp_path / f"whole{suffix}", tmp_path / "new" / f"joined{suffix}"
    expected = score_images(task, whole)
    got = join_tables(reversed_(shards(task, tmp_path, of, suffix)), out)
    if suffix == ".parquet":
        assert rows(out) == rows(whole)
    else:
        assert out.read_bytes() == whole.read_bytes()
    assert unreadable_of(out).read_bytes() == unreadable_of(whole).read_bytes()
    assert (got.job, got.shard, got.unreadable, got.scored) == (expected.job, Shard(), 3, 34)
    assert got.monitor.to_dict() == expected.monitor.to_dict()
    if suffix != ".parquet":
        assert summary_of(out).read_bytes() == summary_of(whole).read_bytes()
    assert sorted(path.name.partition(".")[2] for path in out.parent.iterdir()) == sorted(
        [suffix[1:], f"{suffix[1:]}.summary.json", f"{suffix[1:]}.unreadable.csv"]
    )


def reversed_(paths):
    return [str(path) for path in reversed(paths)]


def test_a_joined_table_counts_as_that_of_a_complete_run(task, tmp_path):
    out = tmp_path / "joined.csv"
    join_tables(shards(task, tmp_path, 3), out)

    def never(task, parts):
        raise AssertionError("this was to be done already")

    assert score_images(task, out, engine=never).scored == 34


def test_shards_themselves_stay_as_they_are(task, tmp_path):
    paths = shards(task, tmp_path, 3)
    before = [path.read_bytes() for path in paths]
    join_tables(paths, tmp_path / "joined.csv")
    assert [path.read_bytes() for path in paths] == before


def test_a_list_of_an_earlier_join_does_not_stay(tmp_path):
    task = make_task(tmp_path, images=9)
    out = tmp_path / "joined.csv"
    unreadable_of(out).write_text("path,reason\n")
    join_tables(shards(task, tmp_path, 2), out)
    assert not unreadable_of(out).exists()


def refused(paths, out, kind, message):
    before = {path: path.read_bytes() for path in out.parent.iterdir() if path.is_file()}
    with pytest.raises(kind, match=message):
        join_tables(paths, out)
    assert {path: path.read_bytes() for path in out.parent.iterdir() if path.is_file()} == before


def test_nothing_cannot_be_joined(tmp_path):
    refused([], tmp_path / "out.csv", ValueError, r"joining takes the tables of all shards, got none\. Name them")


def test_tables_that_are_not_there_are_told(task, tmp_path):
    paths = shards(task, tmp_path, 2)
    paths[1].unlink()
    refused(paths, tmp_path / "out.csv", FileNotFoundError, r"there is no table .*shard-2\.csv\. Check the path")


def test_a_table_without_its_summary_is_told(task, tmp_path):
    paths = shards(task, tmp_path, 2)
    summary_of(paths[1]).unlink()
    message = r"shard-2\.csv has no summary shard-2\.csv\.summary\.json beside it: was it written by `flatfold score`"
    refused(paths, tmp_path / "out.csv", FileNotFoundError, message)


def test_a_table_without_its_list_is_told(task, tmp_path):
    paths = shards(task, tmp_path, 2)
    unreadable_of(paths[1]).unlink()
    message = r"shard-2\.csv has no list shard-2\.csv\.unreadable\.csv of what could not be scored beside it\. Keep"
    refused(paths, tmp_path / "out.csv", FileNotFoundError, message)


def test_a_table_that_has_changed_is_told(task, tmp_path):
    paths = shards(task, tmp_path, 2)
    paths[0].write_bytes(paths[0].read_bytes().replace(b"true", b"false"))
    message = r"shard-1\.csv is not as it was written: its checksum is another\. Score this shard again"
    refused(paths, tmp_path / "out.csv", ValueError, message)


@pytest.mark.parametrize("change", ["rate", "batch size", "data", "number of shards"])
def test_shards_of_different_runs_are_told(task, tmp_path, change):
    paths = shards(task, tmp_path, 2)
    other = {"rate": replace(task, fpr=0.1), "batch size": make_task(tmp_path, batch_size=5)}.get(change, task)
    if change == "data":
        (tmp_path / "images" / "0000.png").unlink()
        other = make_task(tmp_path)
    score_images(other, paths[1], shard=Shard(2, 3 if change == "number of shards" else 2))
    message = r"shard-2\.csv and .*shard-1\.csv are not shards of one run\. Score all of them in the same way"
    refused(paths, tmp_path / "out.csv", ValueError, message)


def test_machines_may_see_the_images_at_different_places(task, tmp_path):
    paths = shards(task, tmp_path, 2)
    shutil.copytree(tmp_path / "images", tmp_path / "copy")
    elsewhere = replace(task, source=FolderImages(tmp_path / "copy", TRANSFORM, task.source.batch_size, labels=False))
    score_images(elsewhere, paths[1], shard=Shard(2, 2))
    assert join_tables(paths, tmp_path / "out.csv").scored == 34
    folders = [Path(line["path"]).parent.name for line in read_csv(tmp_path / "out.csv")]
    assert folders == sorted(folders, reverse=True)
    assert set(folders) == {"images", "copy"}


def test_a_name_that_leaves_no_room_for_those_beside_it_is_refused(task, tmp_path):
    refused(shards(task, tmp_path, 2), tmp_path / f"{'a' * 200}.csv", ValueError, "at most 200 bytes, .* got 204")


def test_a_shard_that_comes_twice_is_told(task, tmp_path):
    paths = shards(task, tmp_path, 3)
    for of in (lambda path: path, summary_of, unreadable_of):
        if of(paths[1]).exists():
            shutil.copy(of(paths[1]), of(tmp_path / "copy.csv"))
    message = r"shard 2/3 is there 2 times\. Give each once"
    refused([*paths, tmp_path / "copy.csv"], tmp_path / "out.csv", ValueError, message)


@pytest.mark.parametrize(
    ("given", "message"),
    [([1, 3], r"1 of 3 shards are missing: 2\. Score"), ([2], r"2 of 3 shards are missing: 1, 3\. Score them first")],
)
def test_shards_that_are_missing_are_named(task, tmp_path, given, message):
    paths = shards(task, tmp_path, 3)
    refused([paths[number - 1] for number in given], tmp_path / "out.csv", ValueError, message)


def test_of_many_missing_shards_a_few_are_named(task, tmp_path):
    score_images(task, tmp_path / "one.csv", shard=Shard(2, 9))
    message = r"8 of 9 shards are missing: 1, 3, 4, 5, 6 \.\.\.\. Score them first"
    refused([tmp_path / "one.csv"], tmp_path / "out.csv", ValueError, message)


def test_tables_are_joined_as_they_are(task, tmp_path):
    paths = shards(task, tmp_path, 2)
    message = r"tables are joined as they are, but .*shard-1\.csv does not end in \.jsonl\. Rename --out"
    refused(paths, tmp_path / "out.jsonl", ValueError, message)
    refused(paths, tmp_path / "out.txt", ValueError, r"a table of rows is a file \*\.csv")
    refused(paths, paths[1], ValueError, r"shard-2\.csv is one of the tables to be joined\. Choose another --out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "Score the images again"),
        ("[]", "its format must be 'flatfold-scores', version 1"),
        ({"format": "other"}, "its format must be 'flatfold-scores', version 1"),
        ({"version": 2}, "its format must be 'flatfold-scores', version 1"),
        ({"job": 3}, "its values have the wrong types"),
        ({"unreadable": -1}, "its values have the wrong types"),
        ({"unreadable": 1.0}, "its values have the wrong types"),
        ({"table": None}, "its values have the wrong types"),
        ({"shard": "0/2"}, "shards are counted from 1"),
        ({"shard": 7}, "Score the images again"),
        ({"monitor": {}}, "this holds no monitor"),
    ],
)
def test_a_summary_that_is_none_is_refused(task, tmp_path, change, message):
    score_images(task, tmp_path / "out.csv")
    path = summary_of(tmp_path / "out.csv")
    content = path.read_text()
    path.write_text(change if isinstance(change, str) else json.dumps(json.loads(content) | change))
    with pytest.raises(ValueError, match=rf"out\.csv\.summary\.json cannot be used: .*{message}"):
        Summary.load(tmp_path / "out.csv")


@pytest.mark.parametrize("key", ["job", "unreadable", "table", "shard", "monitor"])
def test_a_summary_without_one_of_its_values_is_refused(task, tmp_path, key):
    score_images(task, tmp_path / "out.csv")
    path = summary_of(tmp_path / "out.csv")
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"summary\.json cannot be used: '{key}'\. Score the images again"):
        Summary.load(tmp_path / "out.csv")


def test_a_summary_is_read_as_it_was_written(task, tmp_path):
    one = score_images(task, tmp_path / "out.csv", shard=Shard(2, 3))
    two = Summary.load(tmp_path / "out.csv")
    assert (one.job, one.shard, one.unreadable, one.table) == (two.job, two.shard, two.unreadable, two.table)
    assert one.monitor.to_dict() == two.monitor.to_dict()
