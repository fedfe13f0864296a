"""`score_images`: a table of everything, whoever computed it and however often it was begun."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from pyarrow.parquet import ParquetFile

import flatfold as ff
from flatfold.models.images import FolderImages
from flatfold.models.lists import ListImages
from flatfold.scoring.batch import Shard, Task, score_images
from flatfold.scoring.batch.local import score_here
from flatfold.scoring.batch.summary import journal_of, summary_of, unreadable_of
from tests.scoring.batch.small_run import (
    TRANSFORM,
    broken,
    make_network,
    make_task,
    read_csv,
    write_guard,
    write_images,
)

SUFFIXES = (".csv", ".jsonl", ".parquet")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("flatfold.scoring.batch.shard.PART_ROWS", 8)


class Engine:
    """Computes parts in this process, in another order, and may stop after some."""

    def __init__(self, stop_after=None, backwards=False):
        self.asked, self.done, self.stop_after, self.backwards = [], [], stop_after, backwards

    def __call__(self, task, parts):
        self.asked.append(list(parts))
        for number in sorted(parts, reverse=self.backwards):
            if len(self.done) == self.stop_after:
                raise KeyboardInterrupt
            yield from score_here(task, {number: parts[number]})
            self.done.append(number)


def never(task, parts):
    raise AssertionError("this was to be done already")


def files(out):
    """What lies at and beside a table, by name."""
    return {path.name[len(out.stem) :]: path.read_bytes() for path in out.parent.glob(f"{out.stem}.*")}


@pytest.fixture
def task(tmp_path):
    return make_task(tmp_path)


@pytest.fixture
def gaps(tmp_path):
    """A task with three images that cannot be scored, one of them the first."""
    task = make_task(tmp_path)
    for row, kind in {0: "text", 20: "cut off", 21: "16 bit"}.items():
        broken(kind, tmp_path / "images" / f"{row:04d}.png")
    return task


def values(out):
    """Return the columns of a table of any kind."""
    if out.suffix == ".parquet":
        with ParquetFile(out) as file:
            return file.read().to_pydict()
    if out.suffix == ".jsonl":
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    else:
        lines = read_csv(out)
        for line in lines:
            line |= {"predicted": int(line["predicted"]), "is_ood": {"true": True, "false": False}[line["is_ood"]]}
            line |= {name: float(line[name]) for name in ("score", "p_value")}
    return {name: [line[name] for line in lines] for name in lines[0]}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_image_has_the_row_that_the_guard_gives_it(task, tmp_path, suffix):
    out = tmp_path / "made" / "if needed" / f"scores{suffix}"
    summary = score_images(task, out)
    guard = ff.Guard.load(task.guard, task.model())
    verdicts = [guard(x) for x in task.source]
    got = values(out)
    assert list(got) == ["path", "predicted", "score", "p_value", "is_ood"]
    assert got["path"] == [str(tmp_path / "images" / path) for path in task.source.paths]
    assert got["predicted"] == [int(row.argmax()) for verdict in verdicts for row in verdict.logits]
    assert got["is_ood"] == [alarm for verdict in verdicts for alarm in verdict.is_ood.tolist()]
    for name in ("score", "p_value"):
        expected = np.concatenate([getattr(verdict, name).numpy() for verdict in verdicts])
        assert np.array_equal(np.array(got[name], np.float32), expected)
    monitor = guard.monitor()
    for verdict in verdicts:
        monitor.add(verdict)
    assert summary.monitor.to_dict() == monitor.to_dict()
    assert (summary.scored, summary.unreadable, str(summary.shard)) == (50, 0, "1/1")


def test_only_the_table_and_its_summary_are_left(task, tmp_path):
    score_images(task, tmp_path / "out.csv")
    assert set(files(tmp_path / "out.csv")) == {".csv", ".csv.summary.json"}


def test_what_could_not_be_scored_is_listed_with_its_reason(gaps, tmp_path):
    out = tmp_path / "out.csv"
    summary = score_images(gaps, out)
    assert (summary.scored, summary.unreadable) == (47, 3)
    listed = read_csv(unreadable_of(out))
    assert [line["path"] for line in listed] == [gaps.source.name(row) for row in (0, 20, 21)]
    words = ("no known kind of image", "could not be read", "8 bits per channel")
    assert all(word in line["reason"] for word, line in zip(words, listed, strict=True))
    scored = [line["path"] for line in read_csv(out)]
    assert scored == [gaps.source.name(row) for row in range(50) if row not in (0, 20, 21)]


def test_a_list_of_an_earlier_run_does_not_stay(gaps, tmp_path):
    out = tmp_path / "out.csv"
    score_images(gaps, out)
    write_images(tmp_path / "images", 50)
    score_images(make_task(tmp_path), out)
    assert not unreadable_of(out).exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_images_that_are_all_broken_give_an_empty_table_with_its_columns(tmp_path, suffix):
    task = make_task(tmp_path, images=10)
    for row in range(10):
        broken("nothing", tmp_path / "images" / f"{row:04d}.png")
    out = tmp_path / f"out{suffix}"
    summary = score_images(task, out)
    assert (summary.scored, summary.unreadable) == (0, 10)
    assert_empty(out)


def assert_empty(out):
    if out.suffix == ".parquet":
        with ParquetFile(out) as file:
            kinds = dict(zip(file.schema_arrow.names, map(str, file.schema_arrow.types), strict=True))
            assert file.metadata.num_rows == 0
        assert kinds == {"path": "string", "predicted": "int64", "score": "float", "p_value": "float", "is_ood": "bool"}
    else:
        assert out.read_text() == ("path,predicted,score,p_value,is_ood\n" if out.suffix == ".csv" else "")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_shard_gives_a_table_without_rows(task, tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    summary = score_images(task, out, shard=Shard(1, 40), engine=never)  # of 13 batches
    assert (summary.scored, summary.unreadable) == (0, 0)
    assert_empty(out)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("stop_after", range(8))
def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_bytes(gaps, tmp_path, suffix, stop_after, backwards):
    out, whole = tmp_path / f"out{suffix}", tmp_path / f"whole{suffix}"
    expected = score_images(gaps, whole)
    first, second = Engine(stop_after, backwards), Engine()
    try:
        score_images(gaps, out, engine=first)
    except KeyboardInterrupt:
        assert journal_of(out).exists()
        assert not out.exists()
    summary = score_images(gaps, out, engine=second)
    assert files(out) == files(whole)
    assert sorted(first.done + second.done) == list(range(7))  # nothing twice
    assert summary.monitor.to_dict() == expected.monitor.to_dict()


def test_images_may_be_read_ahead_by_other_processes(gaps, tmp_path):
    score_images(gaps, tmp_path / "one.csv")
    score_images(gaps, tmp_path / "two.csv", engine=partial(score_here, workers=2))
    assert files(tmp_path / "one.csv") == files(tmp_path / "two.csv")


def test_a_complete_run_is_not_done_again(gaps, tmp_path):
    out = tmp_path / "out.csv"
    first = score_images(gaps, out)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out.*")}
    again = score_images(gaps, out, engine=never)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("out.*")} == before
    assert (again.job, again.unreadable, again.table) == (first.job, first.unreadable, first.table)
    assert again.monitor.to_dict() == first.monitor.to_dict()


@pytest.mark.parametrize("damage", ["table changed", "table gone", "summary changed", "summary gone", "list gone"])
def test_a_run_whose_files_are_not_all_there_is_done_again(gaps, tmp_path, damage):
    out = tmp_path / "out.csv"
    score_images(gaps, out)
    before = files(out)
    what, _, how = damage.partition(" ")
    path = {"table": out, "summary": summary_of(out), "list": unreadable_of(out)}[what]
    path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-3])
    engine = Engine()
    score_images(gaps, out, engine=engine)
    assert len(engine.done) == 7
    assert files(out) == before


@pytest.mark.parametrize("change", ["data", "fpr", "guard", "batch_size", "shard", "place"])
def test_another_job_is_not_taken_for_the_one_that_was_finished(task, tmp_path, change):
    out = tmp_path / "out.csv"
    score_images(task, out)
    engine = Engine()
    score_images(*changed(task, tmp_path, change, out), engine=engine, shard=Shard(1, 1 + (change == "shard")))
    assert engine.done


@pytest.mark.parametrize("change", ["data", "fpr", "guard", "batch_size", "shard", "place"])
def test_a_run_that_was_stopped_is_not_continued_by_another_job(task, tmp_path, change):
    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        score_images(task, out, engine=Engine(stop_after=2))
    before = files(out)
    arguments, shard = changed(task, tmp_path, change, out), Shard(1, 1 + (change == "shard"))
    with pytest.raises(ValueError, match=rf"had another .*{change}.*\. Choose another --out, or give --restart"):
        score_images(*arguments, shard=shard, engine=never)
    assert files(out) == before
    engine = Engine()
    score_images(*arguments, shard=shard, engine=engine, restart=True)
    assert 0 in engine.done
    assert not journal_of(out).exists()


def changed(task, folder, change, out):
    if change == "data":
        write_images(folder / "images", 1, seed=5)
        return make_task(folder), out
    if change == "place":  # an exact copy: only the paths in the table are others
        shutil.copytree(folder / "images", folder / "copy")
        return replace(task, source=FolderImages(folder / "copy", TRANSFORM, 4, labels=False)), out
    if change == "guard":
        return replace(task, guard=write_guard(folder / "other", detector="ebo")), out
    if change == "batch_size":
        return make_task(folder, batch_size=8), out
    return replace(task, fpr=0.1 if change == "fpr" else None), out


def test_restarting_computes_everything_once_more(task, tmp_path):
    out = tmp_path / "out.csv"
    score_images(task, out)
    before, engine = files(out), Engine()
    score_images(task, out, engine=engine, restart=True)
    assert len(engine.done) == 7
    assert files(out) == before


def test_a_restart_that_is_stopped_goes_on(task, tmp_path):
    out = tmp_path / "out.csv"
    score_images(task, out)
    before = files(out)
    with pytest.raises(KeyboardInterrupt):
        score_images(task, out, engine=Engine(stop_after=3), restart=True)
    engine = Engine()
    score_images(task, out, engine=engine)
    assert engine.done == [3, 4, 5, 6]
    assert files(out) == before


@pytest.mark.parametrize("step", ["write_rows", "Summary", "unreadable_of"])
def test_a_run_that_was_stopped_while_it_wrote_computes_nothing_again(gaps, tmp_path, monkeypatch, step):
    out, whole = tmp_path / "out.csv", tmp_path / "whole.csv"
    score_images(gaps, whole)

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"flatfold.scoring.batch.score.{step}", stop)
        with pytest.raises(KeyboardInterrupt):
            score_images(gaps, out)
    score_images(gaps, out, engine=never)
    assert files(out) == files(whole)


def test_a_journal_that_was_left_behind_is_removed(task, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    with monkeypatch.context() as patch:  # killed between the summary and the end
        patch.setattr("flatfold.scoring.batch.journal.Journal.discard", lambda journal: None)
        score_images(task, out)
    assert journal_of(out).exists()
    before = out.read_bytes()
    score_images(task, out, engine=never)
    assert not journal_of(out).exists()
    assert out.read_bytes() == before


def test_half_a_table_of_a_killed_run_is_swept_away(task, tmp_path):
    names = ["out.csv.0.0.partial", "out.csv.summary.json.1.0.partial", "other.csv.0.0.partial"]
    for name in names:
        (tmp_path / name).write_text("half")
    score_images(task, tmp_path / "out.csv")
    assert [path.name for path in tmp_path.glob("*.partial")] == names[2:]


def test_parts_that_an_engine_loses_are_told(task, tmp_path):
    def forgetful(task, parts):
        yield from score_here(task, {number: rows for number, rows in parts.items() if number not in (2, 5)})

    with pytest.raises(RuntimeError, match=r"^2 of 7 parts did not come back; the others are kept\.$"):
        score_images(task, tmp_path / "out.csv", engine=forgetful)
    engine = Engine()
    score_images(task, tmp_path / "out.csv", engine=engine)
    assert engine.done == [2, 5]


def test_two_runs_cannot_write_the_same_table(task, tmp_path):
    def second(task, parts):
        score_images(task, tmp_path / "out.csv")
        yield

    with pytest.raises(BlockingIOError, match=r"out\.csv\.journal is being written by another process"):
        score_images(task, tmp_path / "out.csv", engine=second)


def test_a_table_that_cannot_be_written_is_refused_before_anything_is_read(task, tmp_path):
    unusable = replace(task, guard=tmp_path / "none")
    with pytest.raises(ValueError, match=r"a table of rows is a file \*\.csv, \*\.jsonl, \*\.parquet, got 'out\.txt'"):
        score_images(unusable, tmp_path / "out.txt")


def test_a_name_that_leaves_no_room_for_those_beside_it_is_refused_before_anything_is_read(task, tmp_path):
    message = r"^the name of a table has at most 200 bytes, because .*, got 201\. Choose a shorter --out\.$"
    with pytest.raises(ValueError, match=message):
        score_images(replace(task, guard=tmp_path / "none"), tmp_path / f"{'é' * 98}a.csv")
    out = tmp_path / f"{'é' * 98}.csv"
    broken("text", tmp_path / "images" / "0000.png")
    assert score_images(make_task(tmp_path), out).unreadable == 1
    assert unreadable_of(out).exists()


def test_a_guard_of_another_model_is_refused(task, tmp_path):
    with pytest.raises(ValueError, match="weights"):
        score_images(replace(task, model=partial(make_network, seed=4)), tmp_path / "out.csv")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_with_commas_quotes_lines_and_other_bytes_come_back(tmp_path, suffix):
    names = ["a, b.png", 'c"d".png', "e\nf.png", "g\rh.png", "i\udcffj.png", "é \t'k'.png", "l\\m.png", " n.png"]
    for number, name in enumerate(names):
        write_images(tmp_path / "images", 1, seed=number, names=name.replace("{", "{{"))
    (tmp_path / "images" / "x, y\n\udcfe.png").write_bytes(b"")
    out = tmp_path / f"out{suffix}"
    score_images(make_task(tmp_path), out)
    root = tmp_path / "images"
    assert sorted(values(out)["path"]) == sorted(f"{root}/{name}".replace("\udcff", "\\udcff") for name in names)
    (listed,) = read_csv(unreadable_of(out))
    assert listed["path"] == f"{root}/x, y\n\\udcfe.png"


def test_missing_images_of_a_list_are_named_and_the_others_are_scored(tmp_path):
    root = write_images(tmp_path / "images", 6)
    (tmp_path / "list.txt").write_text("0003.png\nnone.png\n0001.png\n0003.png\n")
    task = make_task(tmp_path)
    task = replace(task, source=ListImages(tmp_path / "list.txt", root, TRANSFORM, 4, labels=False))
    summary = score_images(task, tmp_path / "out.csv")
    assert (summary.scored, summary.unreadable) == (3, 1)
    rows = read_csv(tmp_path / "out.csv")
    assert [line["path"] for line in rows] == [f"{root}/{name}.png" for name in ("0003", "0001", "0003")]
    assert rows[0] == rows[2]
    assert read_csv(unreadable_of(tmp_path / "out.csv"))[0]["path"] == f"{root}/none.png"


def test_a_run_is_told_from_others_by_what_its_summary_says(task, tmp_path):
    summary = score_images(task, tmp_path / "out.csv")
    assert set(summary.job) == {"guard", "fpr", "data", "place", "batch_size", "rows"}
    assert (summary.job["rows"], summary.job["batch_size"], summary.job["fpr"]) == (50, 4, 0.2)
    assert summary.job["data"] == task.source.fingerprint
    assert isinstance(task, Task)
