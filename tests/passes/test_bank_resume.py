"""`extract(..., out=...)`: a pass that was killed or damaged goes on with the same bits, for the same network only.

Run as a script, this file extracts into a directory, to be killed by the test below.
"""

import os
import shutil
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
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from flatfold import DamagedBankError, Execution, FolderImages, Loading, Transform, extract, load_bank, save_bank
from flatfold.data.images import ArrayImages
from flatfold.passes.extract import extract_features
from flatfold.passes.inputs import score_inputs
from tests.refusals import refused

ROWS, SHARD, BATCH = 50, 12, 4


class Counting(nn.Module):
    """A small classifier that notes how many rows it has seen; with a log, in a file, and it hangs in batch 9."""

    def __init__(self, seed=0, log=None, activation=torch.tanh, scale=1.0):
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.seen, self.log, self.activation, self.scale = [], log, activation, scale

    def forward(self, x):
        self.seen.append(len(x))
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{len(x)}\n")
            time.sleep(0.02 if len(self.seen) < 9 else 600)
        return self.head(self.activation(self.body(x.flatten(1))) * self.scale)


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


def assert_same(bank, expected=None):
    expected = expected or extract(Counting(), batches())[0]  # the oracle: one pass in memory, never interrupted
    assert torch.equal(bank.features, expected.features)  # bit for bit
    assert torch.equal(bank.labels, expected.labels)


def shards_of(out):
    return sorted(path.name for path in out.glob("*.safetensors"))


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=25)
@given(size=st.integers(1, 25), shard=st.integers(1, 25), rows=st.integers(1, 40))
def test_any_batch_and_shard_size_gives_the_same_bank(tmp_path_factory, size, shard, rows):
    out = tmp_path_factory.mktemp("bank")
    bank, _ = extract(Counting(), batches(size, rows), out=out, key="k", shard_rows=shard)
    assert_same(bank, extract(Counting(), batches(size, rows))[0])
    assert_same(load_bank(out), bank)
    sizes = [len(load_file(out / name)["features"]) for name in shards_of(out)]
    assert sizes == [min(shard, rows - i) for i in range(0, rows, shard)]


def test_a_finished_bank_runs_nothing_but_the_first_batch_and_is_not_written_to(tmp_path, monkeypatch):
    resume(tmp_path)
    written = replacements(monkeypatch, stop_at=0, after=False)
    model, loader = Counting(), batches()
    assert_same(resume(tmp_path, model, loader=loader))
    assert model.seen == [BATCH]
    assert len(list(loader)) == 12  # nor is anything else drawn from the loader
    assert written == []


def test_a_pass_that_was_killed_goes_on(tmp_path):
    out, log = tmp_path / "bank", tmp_path / "log"
    command = [sys.executable, __file__, str(out), str(log)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, env=environment) as process:
        deadline = time.monotonic() + 100
        try:
            while not log.exists() or len(log.read_text().split()) < 9:
                assert process.poll() is None, "the pass ended before it could be killed"
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
    with pytest.raises(DamagedBankError, match="not finished"):
        load_bank(out)
    with pytest.raises(ValueError, match="at least 24 rows, got 20"):
        resume(shutil.copytree(out, tmp_path / "shorter"), loader=batches(n=20))
    done = SHARD * len(shards_of(out))
    assert done == 24  # eight batches were through
    before = sum(map(int, log.read_text().split()))
    shutil.copytree(out, tmp_path / "copy")
    model = Counting()
    assert_same(resume(out, model))
    again = before + sum(model.seen[1:]) - ROWS  # the first batch runs once more, to find the head
    assert 0 <= again <= SHARD
    model = Counting()
    bank = resume(tmp_path / "copy", model, loader=batches(7))
    torch.testing.assert_close(bank.features, load_bank(out).features)
    assert sum(model.seen[1:]) <= ROWS - done + 7  # at most one batch straddles the border


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

    monkeypatch.setattr(os, "replace", dying)
    return count


def test_a_pass_that_dies_at_any_write_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        count = replacements(patch, stop_at=0, after=False)
        resume(tmp_path / "whole")
        assert len(count) == 7
    for stop_at in range(1, 8):
        for after in (False, True):
            out, first, second = tmp_path / f"{stop_at}{after}", Counting(), Counting()
            with monkeypatch.context() as patch:
                replacements(patch, stop_at, after)
                with pytest.raises(Killed):
                    resume(out, first)
            assert_same(resume(out, second))
            assert sum(first.seen) + sum(second.seen[1:]) - ROWS <= SHARD, (stop_at, after)


def test_a_large_bank_becomes_one_file_and_a_pass_that_dies_meanwhile_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("flatfold.data.banks.BYTES_JOINED", 49 * 8 * 4)  # a row less than all
    with monkeypatch.context() as patch:
        count = replacements(patch, stop_at=0, after=False)
        assert_same(resume(tmp_path / "whole"))
        assert len(count) == 7 + 2
    assert shards_of(tmp_path / "whole") == ["00000.safetensors"]
    model = Counting()
    assert_same(resume(tmp_path / "whole", model))
    assert model.seen == [BATCH]
    assert_same(load_bank(tmp_path / "whole"))
    for stop_at in range(6, 10):
        for after in (False, True):
            out, first, second = tmp_path / f"{stop_at}{after}", Counting(), Counting()
            with monkeypatch.context() as patch:
                replacements(patch, stop_at, after)
                with pytest.raises(Killed):
                    resume(out, first)
            assert_same(resume(out, second))
            assert sum(first.seen) + sum(second.seen[1:]) - ROWS <= SHARD, (stop_at, after)
            assert shards_of(out) == ["00000.safetensors"]
            assert_same(load_bank(out))
    flip_a_byte(out / "00000.safetensors")
    with pytest.raises(DamagedBankError):
        load_bank(out)
    assert_same(resume(out))


def test_a_large_bank_of_shards_stays_readable_where_nothing_can_be_written(tmp_path, monkeypatch, caplog):
    resume(tmp_path)
    monkeypatch.setattr("flatfold.data.banks.BYTES_JOINED", 0)

    def full(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("flatfold.data.banks.replace_parts", full)
        assert_same(resume(tmp_path))
    assert "No space" in caplog.text
    assert len(shards_of(tmp_path)) == 5
    assert_same(load_bank(tmp_path))  # as a version before would have left it


def test_the_images_that_a_large_bank_lacks_are_still_known(tmp_path, monkeypatch):
    for row in range(8):
        pixels = np.random.default_rng(row).integers(0, 256, (1, 2, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
    for row in (1, 5):
        (tmp_path / f"{row}.png").write_bytes(b"no image")
    source = FolderImages(tmp_path, Transform(), 4, labels=False)
    monkeypatch.setattr("flatfold.data.banks.BYTES_JOINED", 0)
    options = {"out": tmp_path / "bank", "shard_rows": 3, "loading": Loading(max_unreadable=0.5)}
    first = extract_features(Counting(), source, options.pop("loading"), **options)
    again = extract_features(Counting(), source, Loading(max_unreadable=0.5), **options)
    assert shards_of(tmp_path / "bank") == ["00000.safetensors"]
    assert len(again.bank) == 6
    assert sorted(again.unreadable) == sorted(first.unreadable) == [1, 5]
    assert torch.equal(again.bank.features, first.bank.features)


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_only_the_rows_of_a_damaged_shard_are_redone(tmp_path, caplog):
    resume(tmp_path)
    damages = [flip_a_byte, lambda path: path.write_bytes(path.read_bytes()[:-7]), Path.unlink, Path.touch]
    # Shard 0 also uses the batch that found the head; the batch after it is compared with what is stored.
    for (shard, rows), damage in zip([(0, 12), (1, 12), (2, 12), (4, 2)], damages, strict=True):
        name = f"{shard:05d}.safetensors"
        if damage is Path.touch:
            (tmp_path / name).write_bytes(b"")
        damage(tmp_path / name)
        with refused(name, name, DamagedBankError):
            load_bank(tmp_path)
        model, loader = Counting(), batches()
        assert_same(resume(tmp_path, model, loader=loader))
        assert_same(load_bank(tmp_path))
        assert sum(model.seen[1:]) == rows, shard
        assert damage is Path.unlink or name in caplog.text
        assert len(list(loader)) == 13 - min(13, 3 * (shard + 1) + (shard == 0)), (
            "nothing is drawn after the last missing row"
        )


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
    flip_a_byte(tmp_path / "00002.safetensors")
    source = image_source()
    bank, _ = extract(Counting(), source, out=tmp_path, shard_rows=SHARD)
    assert_same(bank, whole)
    assert sorted(source.decoded) == [0, 1, *range(24, 36)]  # two to find the head
    (tmp_path / "00001.safetensors").unlink()
    source = image_source(size=10)  # another batch size
    bank, _ = extract(Counting(), source, out=tmp_path, shard_rows=999)
    torch.testing.assert_close(bank.features, whole.features)
    assert sorted(source.decoded) == [0, 1, *range(10, 30)]
    assert len(shards_of(tmp_path)) == 5
    with pytest.raises(ValueError, match="another data"):
        extract(Counting(), image_source(), out=tmp_path, key="added to the fingerprint")


@pytest.mark.filterwarnings("ignore:the model does not return the output of 'body'")
def test_a_bank_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    resume(tmp_path / "bank")
    before = files_of(tmp_path / "bank")
    for keyword, changes in {
        "another weights": {"model": Counting(seed=1)}, "data was data-1, now it is data-2": {"key": "data-2"},
        "another head": {"execution": Execution(head="body")}, "another labels": {"loader": make_data()[0].split(4)},
        "other inputs under the same key": {"loader": [(x + 1, y) for x, y in batches()]},
        "another computed_in": {"execution": Execution(dtype=torch.bfloat16)},
    }.items():  # fmt: skip
        with refused(changes, keyword):
            resume(tmp_path / "bank", **changes)
    assert files_of(tmp_path / "bank") == before
    save_bank(load_bank(tmp_path / "bank"), tmp_path / "by hand")
    with pytest.raises(ValueError, match="extract did not write"):
        resume(tmp_path / "by hand")
    (tmp_path / "bank" / "manifest.json").write_text("{")
    with pytest.raises(DamagedBankError, match="damaged"):
        resume(tmp_path / "bank")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        resume(tmp_path / "file")


def test_data_that_shrank_or_grew_under_its_key_is_refused(tmp_path):
    resume(tmp_path)
    for rows, shard, now in [(3, 3, "3"), (20, 3, "20"), (48, 4, "48"), (60, 4, "at least 52")]:
        (tmp_path / f"{shard:05d}.safetensors").unlink(missing_ok=True)
        with refused(rows, f"50 rows, got {now}"):
            resume(tmp_path, loader=batches(n=rows))


def test_loaders_that_cannot_be_resumed_are_refused(tmp_path):
    data, out = TensorDataset(*make_data()), tmp_path / "bank"
    for loader in (
        DataLoader(data, batch_size=4, shuffle=True),
        DataLoader(data, batch_size=4, sampler=WeightedRandomSampler([1.0] * ROWS, ROWS)),
        DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, drop_last=False)),
        DataLoader(data, batch_size=None, shuffle=True),
    ):
        with refused(loader.sampler, "shuffle"):
            resume(out, loader=loader)
    for key in (None, ""):
        with refused(key, "key="):
            resume(out, key=key)
    for size in (0, -1, 2.5, True):
        with refused(size, "shard_rows"):
            resume(out, shard_rows=size)
    assert not out.exists()
    assert_same(resume(out, loader=DataLoader(data, batch_size=4)))


OTHER = "another network"


def test_an_exchanged_activation_is_noticed_whatever_the_loader_and_whatever_is_missing(tmp_path):
    resume(tmp_path)
    for activation in (torch.relu, nn.functional.gelu, torch.sigmoid):
        with refused(activation, OTHER):
            resume(tmp_path, Counting(activation=activation))
    for size in (1, 4, 7, 50):
        with refused(size, OTHER):
            resume(tmp_path, Counting(activation=torch.relu), loader=batches(size))
    for shard in (2, 0):  # an unfinished bank, also where its beginning is missing
        out = tmp_path / str(shard)
        extract(Counting(), image_source(), out=out, shard_rows=SHARD)
        missing = out / f"0000{shard}.safetensors"
        missing.unlink()
        with refused(shard, OTHER):
            extract(Counting(activation=torch.relu), image_source(), out=out, shard_rows=SHARD)
        assert not missing.exists()
        missing = tmp_path / missing.name
        missing.unlink()
        with refused(shard, OTHER):
            resume(tmp_path, Counting(activation=torch.relu))
        assert not missing.exists()
    assert_same(resume(tmp_path))


def test_rounding_and_other_batch_sizes_are_allowed_for_and_a_change_is_not(tmp_path):
    def cast(size):
        return [x.to(dtype) for x in make_data()[0].split(size)]

    for dtype, near, far in [
        (torch.float32, 1.009, 1.02),
        (torch.float64, 0.991, 0.98),
        (torch.bfloat16, 1.04, 1.1),  # 8 bits
        (torch.float32, 1.0, torch.nan),
    ]:
        out = tmp_path / f"{dtype}{far}"
        first = resume(out, Counting().to(dtype), loader=cast(20))
        (out / "00003.safetensors").unlink()
        again = resume(out, Counting().to(dtype), loader=cast(3))
        torch.testing.assert_close(first.features, again.features, rtol=2e-2, atol=2e-2)
        resume(out, Counting(scale=near).to(dtype), loader=cast(20))
        with refused((dtype, far), f"{OTHER}|finite"):
            resume(out, Counting(scale=far).to(dtype), loader=cast(20))


def test_the_features_of_rows_behind_a_gap_are_compared_with_their_own(tmp_path):
    for row in range(8):
        pixels = np.random.default_rng(row).integers(0, 256, (1, 2, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
    for row in (0, 1, 2, 5):
        (tmp_path / f"{row}.png").write_bytes(b"no image")
    source = FolderImages(tmp_path, Transform(), 4, labels=False)
    for shard_rows in (2, 3, 8):  # a whole shard, the beginning of one, and both inside of one
        how = {"out": tmp_path / f"bank{shard_rows}", "shard_rows": shard_rows, "loading": Loading(max_unreadable=0.5)}
        first, _ = extract(Counting(), source, **how)
        again, _ = extract(Counting(), source, **how)
        assert torch.equal(first.features, again.features)
        with refused(shard_rows, OTHER):
            extract(Counting(activation=torch.relu), source, **how)


def energies(model, out, source=None, shift=0.0, factor=1e-3):
    def score(x):
        return 0.1 + (shift - model(x).logsumexp(1)) * factor

    return score_inputs(score, model, source or image_source(), out, {"method": "energy"})


def test_scores_are_read_for_the_same_network_only_compared_by_how_far_they_lie_apart(tmp_path):
    """ODIN's differ in the fourth digit: relative to their size, any two networks would agree."""
    first, model = energies(Counting(), tmp_path / "s"), Counting()
    spread = float(first.std()) / 1e-3
    assert torch.equal(energies(model, tmp_path / "s", image_source(size=7), shift=0.001 * spread), first)
    assert model.seen == [2]
    before = files_of(tmp_path / "s")
    for model, shift in [(Counting(), 0.1 * spread), (Counting(), -0.1 * spread), (Counting(activation=torch.relu), 0)]:
        with refused((model, shift), "scores of another network"):
            energies(model, tmp_path / "s", shift=shift)
    assert files_of(tmp_path / "s") == before
    one = image_source(n=1)  # without any spread only rounding is allowed for
    score = energies(Counting(), tmp_path / "one", one)
    assert torch.equal(energies(Counting(), tmp_path / "one", one, shift=float(score) * 1e-3), score)
    with pytest.raises(ValueError, match=OTHER):
        energies(Counting(), tmp_path / "one", one, shift=float(score.abs()) * 0.1)


if __name__ == "__main__":
    resume(Path(sys.argv[1]), Counting(log=Path(sys.argv[2])))
