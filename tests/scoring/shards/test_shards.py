"""Scoring many images: a table of everything, whoever computed it and however often it was begun."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow.parquet import ParquetFile
from torch import nn

from flatfold import Execution
from flatfold.data.images import FolderImages
from flatfold.passes.local import Pace, run_local
from flatfold.scoring import guard_file
from flatfold.scoring.guard_file import read_guard
from flatfold.scoring.shards import (
    NOT_FINITE,
    PART_ROWS,
    Shard,
    parts_path,
    score_images,
    summary_path,
    unreadable_path,
)
from tests.refusals import assert_refused
from tests.scoring.shards.small_run import SIDE, TRANSFORM, broken, make_network, make_task, read_csv, write_guard
from tests.scoring.shards.small_run import write_images as write

SUFFIXES = (".csv", ".jsonl", ".parquet")


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr("flatfold.scoring.shards.PART_ROWS", 8)
    monkeypatch.setattr("flatfold.scoring.shards.PARTS", 1)


@pytest.fixture
def task(tmp_path, small_parts):
    return make_task(tmp_path)


@pytest.fixture
def gaps(task, tmp_path):
    """A task with three images that cannot be scored, one of them the first."""
    for row, kind in {0: "text", 20: "cut off", 21: "16 bit"}.items():
        broken(kind, tmp_path / "images" / f"{row:04d}.png")
    return make_task(tmp_path)


class Engine:
    """Computes parts in this process, in another order, and may stop after some."""

    def __init__(self, stop_after=None, backwards=False):
        self.done, self.stop_after, self.backwards = [], stop_after, backwards

    def __call__(self, task, parts):
        for number in sorted(parts, reverse=self.backwards):
            if len(self.done) == self.stop_after:
                raise KeyboardInterrupt
            yield from run_local(task, {number: parts[number]})
            self.done.append(number)


def never(task, parts):
    raise AssertionError("this was to be done already")


def files(out):
    """What lies at and beside a table, by name."""
    paths = (path for top in out.parent.glob(f"{out.stem}.*") for path in (top, *top.rglob("*")) if path.is_file())
    return {str(path.relative_to(out.parent))[len(out.stem) :]: path.read_bytes() for path in paths}


def values(out):
    """Return the columns of a table of any kind."""
    if out.suffix == ".parquet":
        with ParquetFile(out) as file:
            return file.read().to_pydict()
    lines = read_csv(out) if out.suffix == ".csv" else [*map(json.loads, out.read_text(encoding="utf-8").splitlines())]
    if out.suffix == ".csv":
        read = {"path": str, "predicted": int, "score": float, "p_value": float, "is_ood": json.loads}
        lines = [{name: read[name](value) for name, value in line.items()} for line in lines]
    return {name: [line[name] for line in lines] for name in lines[0]}


@pytest.mark.parametrize(("suffix", "detector"), [(".csv", "fold"), (".jsonl", "knn"), (".parquet", "msp")])
def test_every_image_has_the_row_that_the_guard_gives_it(tmp_path, small_parts, suffix, detector):
    write_guard(tmp_path / "guard.safetensors", method=detector, per_class=detector == "knn")
    task, out = make_task(tmp_path), tmp_path / "made" / "if needed" / f"scores{suffix}"
    summary = score_images(task, out)
    guard = task.load()
    verdicts = [guard(x) for x in task.source]
    got = values(out)
    assert list(got) == ["path", "predicted", "score", "p_value", "is_ood"]
    assert got["path"] == [str(tmp_path / "images" / path) for path in task.source.paths]
    assert got["predicted"] == [int(row.argmax()) for verdict in verdicts for row in verdict.logits]
    assert got["is_ood"] == [alarm for verdict in verdicts for alarm in verdict.is_ood.tolist()]
    assert 0 < sum(got["is_ood"]) < 50
    for name in ("score", "p_value"):
        expected = np.concatenate([getattr(verdict, name).numpy() for verdict in verdicts])
        assert np.array_equal(np.array(got[name], np.float32), expected)
    monitor = guard.monitor()
    for verdict in verdicts:
        monitor.add(verdict)
    assert summary.monitor.to_dict() == monitor.to_dict()
    assert (summary.scored, summary.unreadable, str(summary.shard)) == (50, 0, "1/1")
    assert (summary.job["rows"], summary.job["batch_size"], summary.job["fpr"]) == ("50", "4", "0.2")
    assert set(files(out)) == {suffix, f"{suffix}.summary.json"}


def test_the_file_of_the_guard_is_read_once(tmp_path, monkeypatch):
    read = Mock(wraps=guard_file.read_tensors)
    monkeypatch.setattr(guard_file, "read_tensors", read)
    score_images(make_task(tmp_path, fpr=0.3), tmp_path / "out.csv")
    assert read.call_count == 1


def test_what_could_not_be_scored_is_listed_and_the_list_does_not_outlive_its_run(gaps, tmp_path):
    out = tmp_path / "out.csv"
    summary = score_images(gaps, out)
    assert (summary.scored, summary.unreadable) == (47, 3)
    listed = read_csv(unreadable_path(out))
    assert [line["path"] for line in listed] == [gaps.source.name(row) for row in (0, 20, 21)]
    assert "8 bits" in listed[2]["reason"]
    assert [line["path"] for line in read_csv(out)] == [gaps.source.name(r) for r in range(50) if r not in (0, 20, 21)]
    write(tmp_path / "images", 50)
    score_images(make_task(tmp_path), out)
    assert not unreadable_path(out).exists()


def test_without_scores_or_in_an_empty_shard_a_table_has_its_columns(task, tmp_path):
    for row in range(50):
        broken("nothing", tmp_path / "images" / f"{row:04d}.png")
    for suffix in SUFFIXES:
        for shard, engine, unreadable in ((Shard(1, 40), never, 0), (Shard(), run_local, 50)):  # of 13 batches
            out = tmp_path / f"out{unreadable}{suffix}"
            summary = score_images(make_task(tmp_path), out, shard=shard, executor=engine)
            assert (summary.scored, summary.unreadable) == (0, unreadable)
            if suffix == ".parquet":
                with ParquetFile(out) as file:
                    kinds = [*map(str, file.schema_arrow.types)]
                    assert (file.metadata.num_rows, file.schema_arrow.names[0]) == (0, "path")
                assert kinds == ["string", "int64", "float", "float", "bool"]
            else:
                assert out.read_text() == ("path,predicted,score,p_value,is_ood\n" if suffix == ".csv" else "")


def test_names_with_commas_quotes_lines_and_other_bytes_come_back(tmp_path):
    names = ["a, b.png", 'c"d".png', "e\nf.png", "g\rh.png", "i\udcffj.png", "é \t'k'.png", "l\\m.png", " n.png"]
    root = tmp_path / "images"
    for number, name in enumerate(names):
        write(root, 1, seed=number, names=name)
    (root / "x, y\n\udcfe.png").write_bytes(b"")
    for out in (tmp_path / f"out{suffix}" for suffix in SUFFIXES):
        score_images(make_task(tmp_path), out)
        assert sorted(values(out)["path"]) == sorted(f"{root}/{name}".replace("\udcff", "\\udcff") for name in names)
        assert [line["path"] for line in read_csv(unreadable_path(out))] == [f"{root}/x, y\n\\udcfe.png"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_bytes(gaps, tmp_path, suffix):
    out, whole = tmp_path / f"out{suffix}", tmp_path / f"whole{suffix}"
    expected = score_images(gaps, whole)
    for stop_after, backwards in ((0, False), (1, True), (4, False), (6, True)):
        first, second = Engine(stop_after, backwards), Engine()
        with pytest.raises(KeyboardInterrupt):
            score_images(gaps, out, executor=first)
        assert (parts_path(out).exists(), out.exists()) == (stop_after > 0, False)
        summary = score_images(gaps, out, executor=second)
        assert files(out) == files(whole), stop_after
        assert sorted(first.done + second.done) == list(range(7)), "a part was computed twice"
        assert summary.monitor.to_dict() == expected.monitor.to_dict()
        for path in tmp_path.glob("out.*"):
            path.unlink()


def test_a_complete_run_is_done_again_only_where_a_file_is_damaged_or_a_restart_is_asked_for(gaps, tmp_path):
    out = tmp_path / "out.csv"
    first = score_images(gaps, out)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out.*")}
    again = score_images(gaps, out, executor=never)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("out.*")} == times
    assert (again.job, again.unreadable, again.table) == (first.job, first.unreadable, first.table)
    assert again.monitor.to_dict() == first.monitor.to_dict()
    before = files(out)

    def check_done_again(case, **options):
        engine = Engine()
        score_images(gaps, out, executor=engine, **options)
        assert len(engine.done) == 7, case
        assert files(out) == before, case

    for path in (out, summary_path(out), unreadable_path(out)):
        path.unlink()
        check_done_again(path)
    for path in (out, summary_path(out)):
        path.write_bytes(path.read_bytes()[:-3])
        check_done_again(path)
    check_done_again("restart", restart=True)
    with pytest.raises(KeyboardInterrupt):
        score_images(gaps, out, executor=Engine(stop_after=3), restart=True)
    engine = Engine()
    score_images(gaps, out, executor=engine)
    assert engine.done == [3, 4, 5, 6]
    assert files(out) == before


@pytest.mark.parametrize("change", ["data", "fpr", "guard", "batch_size", "shard", "place"])
def test_another_job_neither_continues_a_run_nor_is_taken_for_a_finished_one(task, tmp_path, change):
    out, finished = tmp_path / "out.csv", tmp_path / "finished.csv"
    score_images(task, finished)
    with pytest.raises(KeyboardInterrupt):
        score_images(task, out, executor=Engine(stop_after=2))
    before, shard = files(out), Shard(1, 1 + (change == "shard"))
    if change == "data":
        write(tmp_path / "images", 1, seed=5)
    elif change == "place":  # an exact copy: only the paths in the table are others
        shutil.copytree(tmp_path / "images", tmp_path / "copy")
    other = {
        "data": lambda: make_task(tmp_path),
        "place": lambda: replace(task, source=FolderImages(tmp_path / "copy", TRANSFORM, 4, labels=False)),
        "guard": lambda: replace(task, guard=read_guard(write_guard(tmp_path / "other", method="ebo"))),
        "batch_size": lambda: make_task(tmp_path, batch_size=8),
        "fpr": lambda: replace(task, fpr=0.1),
        "shard": lambda: task,
    }[change]()
    with pytest.raises(ValueError, match=change):
        score_images(other, out, shard=shard, executor=never)
    assert files(out) == before
    for path, options in ((out, {"restart": True}), (finished, {})):
        engine = Engine()
        score_images(other, path, shard=shard, executor=engine, **options)
        assert 0 in engine.done
        assert not parts_path(path).exists()


def test_a_damaged_part_is_computed_again_and_files_of_others_are_never_overwritten(task, tmp_path, caplog):
    out, whole = tmp_path / "out.csv", tmp_path / "whole.csv"
    score_images(task, whole)
    with pytest.raises(KeyboardInterrupt):
        score_images(task, out, executor=Engine(stop_after=3))
    part = parts_path(out) / "00000001.safetensors"
    content = part.read_bytes()
    for damaged in (content[:-5], content[:-9] + b"?" + content[-8:], b""):
        part.write_bytes(damaged)
        engine = Engine(stop_after=1)
        with pytest.raises(KeyboardInterrupt):
            score_images(task, out, executor=engine)
        assert (engine.done, part.read_bytes()) == ([1], content)
        assert part.name in caplog.text
    score_images(task, out)
    assert files(out) == files(whole)
    for restart in (False, True):
        other = tmp_path / f"other{restart}.csv"
        parts_path(other).write_bytes(b"mine")
        assert_refused(NotADirectoryError, "parts", partial(score_images, task, other, restart=restart))
        parts_path(other).unlink()
        parts_path(other).mkdir()
        (parts_path(other) / "mine.safetensors").write_bytes(b"mine")
        score_images(task, other, restart=restart)
        assert files(other).pop(".csv.parts/mine.safetensors") == b"mine"


def test_lost_parts_a_second_run_and_impossible_names_are_refused(task, tmp_path):
    out = tmp_path / "new" / "out.csv"

    def forgetful(task, parts):
        yield from run_local(task, {number: rows for number, rows in parts.items() if number not in (2, 5)})

    def second(task, parts):
        score_images(task, out)
        yield

    other_model = replace(task, model=partial(make_network, seed=4))
    too_long = tmp_path / f"{'é' * 98}a.csv"
    for use, kind, keyword in (
        (partial(score_images, task, out, executor=second), BlockingIOError, "another process"),
        (partial(score_images, other_model, out), ValueError, "weights"),
        (partial(score_images, task, tmp_path / "out.txt"), ValueError, "out.txt"),
        (partial(score_images, task, too_long), ValueError, "200 bytes"),
        (partial(score_images, task, out, executor=forgetful), RuntimeError, "2 of 7 parts"),
    ):
        assert not (tmp_path / "new").exists(), "a run that was refused left something behind"
        assert_refused(kind, keyword, use)
    engine = Engine()
    score_images(task, out, executor=engine)
    assert engine.done == [2, 5]
    assert score_images(task, tmp_path / f"{'é' * 98}.csv").scored == 50


# One process loads torch once; what it kills are copies of itself.
KILLER = """
import os, random, shutil, signal, sys, time
from pathlib import Path
import torch
from flatfold.scoring.shards import score_images
import flatfold.scoring.shards as shard
from tests.scoring.shards.small_run import make_task

torch.set_num_threads(1)
shard.PART_ROWS, shard.PARTS = 4, 1
folder, suffix = Path(sys.argv[1]), sys.argv[2]
task, out = make_task(folder), folder / f"killed{suffix}"
random.seed(suffix)

def start(out):
    child = os.fork()
    if child == 0:
        score_images(task, out)
        os._exit(0)
    return child

def done():
    return len(list(Path(f"{out}.parts").glob("*.safetensors")))

assert os.waitpid(start(folder / f"whole{suffix}"), 0)[1] == 0
resumed = -1
while resumed < 5:
    resumed += 1
    child, wanted = start(out), done() + random.randint(2, 6)
    while done() < wanted and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        pass
    time.sleep(random.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    if os.waitpid(child, 0)[1] == 0:  # it was faster, so all of it begins again
        resumed = -1
        for path in folder.glob("killed*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
assert done() > resumed
assert os.waitpid(start(out), 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are copied by fork, which is not here")
@pytest.mark.parametrize("suffix", [".csv", *(pytest.param(s, marks=pytest.mark.slow) for s in SUFFIXES[1:])])
@pytest.mark.slow
def test_a_run_that_is_killed_often_ends_with_the_same_bytes(tmp_path, suffix):
    make_task(tmp_path, images=300)
    for row in (7, 100, 199):
        broken("cut off", tmp_path / "images" / f"{row:04d}.png")
    command = [sys.executable, "-c", KILLER, str(tmp_path), suffix]
    subprocess.run(command, cwd=Path(__file__).parents[3], check=True)
    whole, killed = tmp_path / f"whole{suffix}", tmp_path / f"killed{suffix}"
    for of in (Path, summary_path, unreadable_path):
        assert of(killed).read_bytes() == of(whole).read_bytes()
    assert len(list(tmp_path.glob("killed*"))) == 3


def record_of(task, rows=None):
    part = task.part(task.load(), range(task.source.rows) if rows is None else rows)
    return part._replace(info={"unreadable": part.info["unreadable"]})


def test_a_task_can_be_given_another_rate_or_device_and_sent_to_another_process(tmp_path):
    task = make_task(tmp_path)
    usual, strict = (
        record_of(task).tensors,
        record_of(replace(task, fpr=0.02, execution=Execution(device="cpu"))).tensors,
    )
    assert torch.equal(usual["score"], strict["score"])
    assert torch.equal(strict["is_ood"], usual["p_value"] <= 0.02)
    assert not torch.equal(strict["is_ood"], usual["is_ood"])
    assert (task.calibrated().calibration.fpr, replace(task, fpr=0.02).calibrated().calibration.fpr) == (0.2, 0.02)
    there = pickle.loads(pickle.dumps(task))  # noqa: S301
    for name, values in record_of(there).tensors.items():
        assert torch.equal(values, usual[name])
    write_guard(tmp_path / "guard.safetensors", method="ebo")
    with pytest.raises(ValueError, match="another guard"):  # than the one that was read here
        pickle.loads(pickle.dumps(task))  # noqa: S301
    with pytest.raises(ValueError, match="nowhere"):
        replace(task, execution=Execution(device="nowhere")).load()


def check_without(rows, task, whole):
    """Check that the record of a task has all of the whole one but some rows, and lists these; return the reasons."""
    record, good = record_of(task), [row for row in range(12) if row not in rows]
    if record.tensors or good:
        assert record.tensors["row"].tolist() == good
        torch.testing.assert_close(record.tensors["score"], whole["score"][good], rtol=1e-5, atol=0)
        assert all(record.tensors[name].dtype == whole[name].dtype for name in whole)
    unreadable = record.info["unreadable"]
    assert list(unreadable) == list(rows)
    return set(unreadable.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_broken_images_are_named_and_the_others_are_scored(tmp_path, dtype):
    class Cast(nn.Sequential):
        def forward(self, x):
            return super().forward(x.to(dtype))

    task = make_task(tmp_path, images=12, model=lambda: Cast(*make_network(dtype=dtype)))
    whole = record_of(task).tensors
    for bad in ([0], [4, 5, 6, 7], [1, 9], range(12)):
        write(tmp_path / "images", 12)
        for row in bad:
            broken("cut off", tmp_path / "images" / f"{row:04d}.png")
        check_without(bad, task, whole)


def test_what_cannot_be_prepared_counts_as_what_cannot_be_read(tmp_path):
    task = make_task(tmp_path, images=12, batch_size=12, transform=replace(TRANSFORM, crop=SIDE))
    kinds = {
        4: ("text", "unknown image format"),
        5: ("16 bit", "8 bits"),
        6: ("too small", "crop"),
        9: ("nothing", "read"),
    }
    for row, (kind, _) in kinds.items():
        broken(kind, tmp_path / "images" / f"{row:04d}.png")
    record = record_of(task)
    assert list(record.info["unreadable"]) == list(kinds)
    for reason, (kind, keyword) in zip(record.info["unreadable"].values(), kinds.values(), strict=True):
        assert keyword in reason, kind
    assert len(record.tensors["row"]) == 8


def test_images_of_another_size_are_named(tmp_path):
    """Of sizes that the guard does not know, or, if all are allowed, that most others in the batch do not have."""
    tasks = [(make_task(tmp_path, images=12), "calibrated on 6 x 6")]
    tasks += [(replace(tasks[0][0], allow_sizes=True), "one size")]
    for odd, named in (([5], [5]), ([4, 5, 6], [7]), ([4, 5], [6, 7]), ([0, 1, 2, 3], [])):
        write(tmp_path / "images", 12)
        for row in odd:
            broken("another size", tmp_path / "images" / f"{row:04d}.png")
        for (task, reason), rows in zip(tasks, (odd, named), strict=True):
            record = record_of(task)
            assert list(record.info["unreadable"]) == rows, odd
            assert len(record.tensors.get("row", ())) == 12 - len(rows), odd
            assert all(reason in text for text in record.info["unreadable"].values()), odd
    assert tasks[0][0].source.fingerprint == tasks[1][0].source.fingerprint
    assert tasks[0][0].key() != tasks[1][0].key()
    grey = make_task(tmp_path, transform=replace(TRANSFORM, mode="L", mean=None, std=None))
    with pytest.raises(ValueError, match=r"0004\.png to .*0007\.png: .*\(1, 6, 6\)"):
        record_of(grey, range(4, 6))


class Touchy(nn.Module):
    """A network that gives a black image features of one value."""

    def __init__(self, value):
        super().__init__()
        *body, self.head = make_network()
        self.body, self.value = nn.Sequential(*body), value

    def forward(self, x):
        black = (x == -2).flatten(1).all(dim=1)
        return self.head(torch.where(black[:, None], torch.tensor(self.value), self.body(x)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_without_a_finite_answer_are_named(tmp_path, value):
    model = partial(Touchy, value)
    write_guard(tmp_path / "guard.safetensors", model(), method="gradnorm")
    task = make_task(tmp_path, images=12, model=model)
    whole = record_of(task).tensors
    for rows in ([5], [0, 3, 5, 11], range(12)):
        for row in rows:
            Image.new("RGB", (SIDE, SIDE)).save(task.source.name(row))
        assert check_without(rows, task, whole) == {NOT_FINITE}


def test_images_with_a_score_that_is_not_finite_raise_an_alarm(tmp_path):
    model = partial(Touchy, 3e38)
    write_guard(tmp_path / "guard.safetensors", model(), method="gradnorm")
    task = make_task(tmp_path, images=12, model=model)
    Image.new("RGB", (SIDE, SIDE)).save(task.source.name(5))
    for name in ("a.csv", "a.jsonl"):
        summary = score_images(task, tmp_path / name)
        assert (summary.scored, summary.unreadable, summary.monitor.histogram().stream[-1]) == (12, 0, 1)
    row = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[5])
    assert (row["score"], row["is_ood"]) == (None, True)
    (*_, score, p_value, is_ood) = (tmp_path / "a.csv").read_text().splitlines()[6].split(",")
    smallest = 1 / (task.calibrated().calibration.samples + 1)
    assert (score, float(p_value), is_ood) == ("nan", pytest.approx(smallest), "true")


@given(rows=st.integers(0, 5000), batch_size=st.integers(1, 3000), of=st.integers(1, 40))
def test_shards_hold_every_row_once_in_whole_batches_and_differ_by_one_at_most(rows, batch_size, of):
    shards = [Shard(number, of).parts(rows, batch_size) for number in range(1, of + 1)]
    parts = [part for shard in shards for part in shard]
    assert [row for part in parts for row in part] == list(range(rows))
    assert all(parts)
    assert all(part.start % batch_size == 0 for part in parts)
    assert all(part.stop % batch_size == 0 or part.stop == rows for part in parts)
    assert all(len(part) <= max(PART_ROWS, batch_size) for part in parts)
    batches = [sum(-(-len(part) // batch_size) for part in shard) for shard in shards]
    assert max(batches) - min(batches) <= 1
    assert Shard().parts(5000, 2000) == [range(2000), range(2000, 4000), range(4000, 5000)]


def test_shards_are_written_as_they_are_read_and_counted_from_one():
    for text in ("1/1", "3/4", "7/1000"):
        assert str(Shard.parse(text)) == text
    for text in ("", "1", "a/b", "1/", "-1/4", "1/4 ", "1/4/5", "1.0/2", "1/99999999999"):
        assert_refused(ValueError, "i/n", partial(Shard.parse, text), case=text)
    for text in ("0/4", "5/4", "0/0", "1/0"):
        assert_refused(ValueError, "counted from 1", partial(Shard.parse, text), case=text)


def test_as_many_threads_read_as_keep_up_with_the_network(monkeypatch):
    monkeypatch.setattr("flatfold.passes.local.usable_cores", lambda: 3)
    for read, compute, readers in ((1.0, 8.0, 1), (8.0, 8.0, 1), (9.0, 8.0, 2), (90.0, 8.0, 3), (1.0, 0.0, 3)):
        assert Pace(read, compute).readers == readers, (read, compute)


def test_reading_is_timed_without_the_start_of_the_network(task, monkeypatch):
    """Made-up clocks: an image takes 3 s to read, and a batch of any size 16 s."""
    now = [0.0]
    monkeypatch.setattr("flatfold.io.clock.perf_counter", lambda: now[0])
    network, source = task.load().network, task.source
    run, attempt = network.run, source.attempt

    def later(seconds, result):
        now[0] += seconds
        return result

    monkeypatch.setattr(network, "run", lambda batch: later(16, run(batch)))
    monkeypatch.setattr(source, "attempt", lambda rows: later(3 * len(rows), attempt(rows)))
    monkeypatch.setattr("flatfold.passes.local.TIMED_ROWS", 2)
    assert source.batch_size > 2
    assert Pace.of(network, task, {0: range(source.batch_size)}) == (3.0, 8.0)
