"""`extract(..., out=...)`: a pass that was killed, interrupted or damaged goes on, and gives the same bits.

Run as a script, this file extracts into a directory, to be killed by the test below.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

import flatfold.files
from flatfold.core.errors import DamagedBank
from flatfold.models.extract import extract
from flatfold.models.images import ArrayImages
from flatfold.models.store import load_bank, save_bank
from flatfold.models.transform import Transform

ROWS, SHARD, BATCH = 50, 12, 4


class Counting(nn.Module):
    """A small classifier that notes how many rows it has seen; with a log, in a file, and it hangs in batch 9."""

    def __init__(self, seed=0, log=None):
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.seen, self.log = [], log

    def forward(self, x):
        self.seen.append(len(x))
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{len(x)}\n")
            time.sleep(0.02 if len(self.seen) < 9 else 600)
        return self.head(torch.tanh(self.body(x.flatten(1))))


def make_data(n=ROWS):
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(60, 6, generator=g), torch.randint(3, (60,), generator=g)
    return x[:n], y[:n]  # more or fewer rows are the same rows


def batches(size=BATCH, n=ROWS):
    x, y = make_data(n)
    return zip(x.split(size), y.split(size), strict=True)


def resume(out, model=None, **changes):
    options = {"key": "data-1", "shard_rows": SHARD, **changes}
    return extract(model or Counting(), options.pop("loader", None) or batches(), out=out, **options)[0]


def fresh_bank():
    """The oracle: one pass in memory, never interrupted."""
    return extract(Counting(), batches())[0]


def assert_same(bank, expected=None):
    expected = expected or fresh_bank()
    assert torch.equal(bank.features, expected.features)  # bit for bit
    assert torch.equal(bank.labels, expected.labels)


def manifest_of(out):
    return json.loads((out / "manifest.json").read_text())


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 25), shard=st.integers(1, 25), rows=st.integers(1, 40))
def test_any_batch_and_shard_size_gives_the_same_bank(tmp_path_factory, size, shard, rows):
    out = tmp_path_factory.mktemp("bank")
    bank, _ = extract(Counting(), batches(size, rows), out=out, key="k", shard_rows=shard)
    assert_same(bank, extract(Counting(), batches(size, rows))[0])
    assert_same(load_bank(out), bank)
    starts = [entry["rows"] for entry in manifest_of(out)["shards"]]
    assert starts == [min(shard, rows - i) for i in range(0, rows, shard)]


def test_a_finished_bank_runs_nothing_but_the_first_batch(tmp_path):
    resume(tmp_path)
    model, loader = Counting(), batches()
    assert_same(resume(tmp_path, model, loader=loader))
    assert model.seen == [BATCH]
    assert len(list(loader)) == 12  # nor is anything else drawn from the loader


def test_a_finished_bank_is_not_written_to(tmp_path, monkeypatch):
    extract(Counting(), image_source(), out=tmp_path)
    count = replacements(monkeypatch, stop_at=0, after=False)
    extract(Counting(), image_source(), out=tmp_path)
    assert count == []


@pytest.mark.parametrize("size", [4, 7], ids="batches of {}".format)
def test_a_pass_that_was_killed_goes_on(tmp_path, size):
    out, log = tmp_path / "bank", tmp_path / "log"
    command = [sys.executable, __file__, str(out), str(log)]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        deadline = time.monotonic() + 120
        try:
            while not log.exists() or len(log.read_text().split()) < 9:
                assert process.poll() is None, "the pass ended before it could be killed"
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
    with pytest.raises(DamagedBank, match=r"is not finished\. Call extract\(\.\.\., out=\.\.\.\) again"):
        load_bank(out)
    done = SHARD * len(manifest_of(out)["shards"])
    assert done == 24  # eight batches were through
    before, model = sum(map(int, log.read_text().split())), Counting()
    bank = resume(out, model, loader=batches(size))
    if size == BATCH:
        assert_same(bank)
        again = before + sum(model.seen[1:]) - ROWS  # the first batch runs once more, to find the head
        assert 0 <= again <= SHARD
    torch.testing.assert_close(bank.features, fresh_bank().features)
    assert sum(model.seen[1:]) <= ROWS - done + size  # at most one batch straddles the border


class Killed(BaseException):
    """Stands for the end of the process."""


def replacements(monkeypatch, stop_at, after):
    """Let the process die at the given file replacement, just before or just after it."""
    count, replace = [], os.replace

    def dying(source, target):
        count.append(target)
        if len(count) == stop_at and not after:
            raise Killed
        replace(source, target)
        if len(count) == stop_at:
            raise Killed

    monkeypatch.setattr(flatfold.files.os, "replace", dying)
    return count


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stop_at", range(1, 13))
def test_a_pass_that_dies_at_any_write_goes_on(tmp_path, monkeypatch, stop_at, after):
    with monkeypatch.context() as patch:
        replacements(patch, stop_at, after)
        first = Counting()
        with pytest.raises(Killed):
            resume(tmp_path, first)
    second = Counting()
    assert_same(resume(tmp_path, second))
    assert sum(first.seen) + sum(second.seen[1:]) - ROWS <= SHARD


def test_the_test_above_covers_every_write(tmp_path, monkeypatch):
    count = replacements(monkeypatch, stop_at=0, after=False)
    resume(tmp_path)
    assert len(count) == 12


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        killed.wait()
    for name in ("features-00001.safetensors", "manifest.json"):
        (tmp_path / f"{name}.{killed.pid}.partial").write_bytes(b"half")
    resume(tmp_path)
    assert not list(tmp_path.glob("*.partial"))


def test_finished_shards_survive_an_interruption_by_the_user(tmp_path):
    def interrupted():
        for index, batch in enumerate(batches()):
            if index == 8:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path, loader=interrupted())
    assert [entry["rows"] for entry in manifest_of(tmp_path)["shards"]] == [SHARD, SHARD]
    model = Counting()
    assert_same(resume(tmp_path, model))
    assert sum(model.seen) == BATCH + ROWS - 2 * SHARD


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("damage", [flip_a_byte, cut_short, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize(("shard", "rows"), [(0, 8), (1, 12), (2, 12), (4, 2)])
def test_only_the_rows_of_a_damaged_shard_are_redone(tmp_path, damage, shard, rows, caplog):
    resume(tmp_path)
    damage(tmp_path / f"features-{shard:05d}.safetensors")
    with pytest.raises(
        DamagedBank, match=f"features-{shard:05d}.safetensors is not as it was written.* redoes these rows"
    ):
        load_bank(tmp_path)
    model = Counting()
    assert_same(resume(tmp_path, model))
    assert_same(load_bank(tmp_path))
    assert sum(model.seen[1:]) == rows  # shard 0 also uses the batch that found the head
    assert f"features-{shard:05d}.safetensors is damaged or missing; its rows are extracted again" in caplog.text


def test_nothing_is_drawn_after_the_last_row_that_is_missing(tmp_path):
    resume(tmp_path)
    (tmp_path / "features-00001.safetensors").unlink()
    loader = batches()
    assert_same(resume(tmp_path, loader=loader))
    assert len(list(loader)) == 7  # of 13 batches the first six reach to row 24


@pytest.mark.parametrize("on_disk", [True, False])
def test_an_empty_batch_is_not_run(tmp_path, on_disk):
    x, model = make_data()[0], Counting()
    loader = [x[:0], x[:30], x[30:30], x[30:]]
    bank, _ = extract(model, loader, out=tmp_path if on_disk else None, key="k", shard_rows=SHARD)
    assert model.seen == [30, 20]
    assert len(bank) == ROWS


class Reads(ArrayImages):
    """Notes which images are decoded."""

    def picture(self, row):
        self.decoded = [*getattr(self, "decoded", []), row]
        return super().picture(row)


def image_source(size=BATCH, n=ROWS):
    pixels = np.random.default_rng(0).integers(0, 256, (n, 1, 2, 3), dtype=np.uint8)
    return Reads(pixels, np.arange(n) % 3, Transform(), size)


def test_a_source_needs_no_key_and_decodes_only_the_rows_that_are_missing(tmp_path):
    whole, _ = extract(Counting(), image_source(), out=tmp_path, shard_rows=SHARD)
    flip_a_byte(tmp_path / "features-00002.safetensors")
    source = image_source()
    bank, _ = extract(Counting(), source, out=tmp_path, shard_rows=SHARD)
    assert_same(bank, whole)
    assert source.decoded == [0, 1, *range(24, 36)]  # two to find the head


def test_a_source_may_change_its_batch_size_when_it_goes_on(tmp_path):
    extract(Counting(), image_source(), out=tmp_path, shard_rows=SHARD)
    (tmp_path / "features-00001.safetensors").unlink()
    source = image_source(size=10)
    bank, _ = extract(Counting(), source, out=tmp_path, shard_rows=999)
    torch.testing.assert_close(bank.features, extract(Counting(), image_source())[0].features)
    assert source.decoded == [0, 1, *range(10, 30)]
    assert manifest_of(tmp_path)["shard_rows"] == SHARD


def test_a_key_given_with_a_source_adds_to_its_fingerprint(tmp_path):
    extract(Counting(), image_source(), out=tmp_path, key="a")
    with pytest.raises(ValueError, match="holds features of other data"):
        extract(Counting(), image_source(), out=tmp_path, key="b")


def test_a_bank_of_something_else_is_refused_and_the_part_that_differs_is_named(tmp_path):
    resume(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    message = r"holds features of other weights: '\w{12}\.\.\.' there, '\w{12}\.\.\.' now\. Choose another directory"
    with pytest.raises(ValueError, match=message):
        resume(tmp_path, Counting(seed=1))
    with pytest.raises(ValueError, match=r"other data: 'data-1' there, 'data-2' now\. Choose another directory"):
        resume(tmp_path, key="data-2")
    with (
        pytest.warns(UserWarning, match="the output of 'body'"),
        pytest.raises(ValueError, match="other head: 'head' there, 'body' now"),
    ):
        resume(tmp_path, head="body")
    with pytest.raises(ValueError, match=r"was begun with labels=True, now it is False\. Choose another directory"):
        resume(tmp_path, loader=make_data()[0].split(4))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_bank_that_was_saved_by_hand_is_not_continued(tmp_path):
    save_bank(fresh_bank(), tmp_path)
    with pytest.raises(ValueError, match="holds a bank that extract did not write, so it cannot be continued"):
        resume(tmp_path)


@pytest.mark.parametrize(("rows", "shard"), [(3, 3), (20, 3), (48, 4)])
def test_data_that_shrank_under_its_key_is_refused(tmp_path, rows, shard):
    resume(tmp_path)
    (tmp_path / f"features-{shard:05d}.safetensors").unlink()
    with pytest.raises(ValueError, match=f"begun with data of 50 rows, now there are {rows}. The same key must mean"):
        resume(tmp_path, loader=batches(n=rows))


def test_data_that_grew_under_its_key_is_refused(tmp_path):
    resume(tmp_path)
    (tmp_path / "features-00004.safetensors").unlink()
    with pytest.raises(ValueError, match="begun with data of 50 rows, now there are at least 52"):
        resume(tmp_path, loader=batches(n=60))


def test_data_shorter_than_an_unfinished_bank_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        replacements(patch, stop_at=8, after=True)
        with pytest.raises(Killed):
            resume(tmp_path)
    with pytest.raises(ValueError, match="begun with data of at least 36 rows, now there are 30"):
        resume(tmp_path, loader=batches(n=30))


def test_a_loader_that_shuffles_is_refused(tmp_path):
    data = TensorDataset(*make_data())
    for loader in (
        DataLoader(data, batch_size=4, shuffle=True),
        DataLoader(data, batch_size=4, sampler=WeightedRandomSampler([1.0] * ROWS, ROWS)),
        DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, drop_last=False)),
        DataLoader(data, batch_size=None, shuffle=True),
    ):
        with pytest.raises(ValueError, match=r"same order in every pass, but this one shuffles.* Use shuffle=False"):
            resume(tmp_path / "bank", loader=loader)
    assert not (tmp_path / "bank").exists()
    assert_same(resume(tmp_path / "bank", loader=DataLoader(data, batch_size=4)))


@pytest.mark.parametrize("key", [None, ""])
def test_a_plain_iterable_needs_a_key(tmp_path, key):
    with pytest.raises(
        ValueError, match=r"out= needs to know which data this is.* a zip does not say\. Pass key='\.\.\.'"
    ):
        resume(tmp_path / "bank", key=key)
    assert not (tmp_path / "bank").exists()


@pytest.mark.parametrize("shard_rows", [0, -1, 2.5, True])
def test_a_shard_size_that_is_no_positive_number_is_refused(tmp_path, shard_rows):
    with pytest.raises(ValueError, match="shard_rows must be a positive whole number"):
        resume(tmp_path, shard_rows=shard_rows)


def test_a_damaged_manifest_is_refused(tmp_path):
    resume(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DamagedBank, match=r"manifest.json is damaged: .* Delete the directory and extract again"):
        resume(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "bank").write_text("")
    with pytest.raises(NotADirectoryError, match=r"a bank is a directory, but .*bank is a file\. Choose another path"):
        resume(tmp_path / "bank")


def test_a_bank_without_labels_comes_back_without_labels(tmp_path):
    bank = resume(tmp_path, loader=make_data()[0].split(4))
    assert bank.labels is None
    assert torch.equal(bank.features, fresh_bank().features)


if __name__ == "__main__":
    resume(Path(sys.argv[1]), Counting(log=Path(sys.argv[2])))
