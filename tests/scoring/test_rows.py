"""`scoring.rows`: the numbers of a detector and of a calibration, in a table that can be read back exactly."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from pyarrow.parquet import ParquetFile
from safetensors.torch import save_file

import flatfold as ff
from flatfold.models.feature_files import open_features
from flatfold.scoring import writers
from flatfold.scoring.calibration import Calibration, lifted
from flatfold.scoring.rows import calibrate, score_features
from flatfold.scoring.writers import check_out, csv_text, json_text, write_rows


def saved(path, features, labels=None):
    save_file({"features": features} | ({} if labels is None else {"labels": labels}), path)
    return open_features(path)


def table(chunks):
    """Join chunks of rows."""
    chunks = list(chunks)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def many(world, n, seed=0):
    """Features between the known and the unknown ones."""
    g = torch.Generator().manual_seed(seed)
    some = world.bank.features[torch.randint(len(world.bank), (n,), generator=g)]
    return (some * torch.rand(n, 1, generator=g).to(some)).contiguous()


@pytest.fixture
def detector(world):
    return ff.create("fold").fit(world.bank, world.head)


def test_scores_and_classes_are_those_of_the_detector_and_the_head(tmp_path, world, detector):
    features = many(world, 9000)  # three chunks
    got = table(score_features(saved(tmp_path / "f", features), detector))
    assert list(got) == ["row", "predicted", "score"]
    assert np.array_equal(got["row"], np.arange(9000))
    assert np.array_equal(got["score"], detector(features).numpy())
    assert got["score"].dtype == features.numpy().dtype
    slow = features.double() @ world.head.weight.double().T + world.head.bias.double()
    assert np.array_equal(got["predicted"], slow.argmax(1).numpy())


@pytest.mark.parametrize("name", ["react", "autofold", "knn"])
def test_shaped_and_composed_detectors_predict_with_the_plain_head(tmp_path, world, name):
    hyper = {"k": 5} if name == "knn" else {}
    detector = ff.create(name, **hyper).fit(world.bank, world.head)
    features = many(world, 50)
    got = table(score_features(saved(tmp_path / "f", features), detector))
    assert np.array_equal(got["predicted"], world.head(features).argmax(1).numpy())
    assert np.array_equal(got["score"], detector(features).detach().numpy())


def test_labels_come_last_and_are_not_looked_at(tmp_path, world, detector):
    features, labels = many(world, 5000), torch.arange(5000) - 1
    got = table(score_features(saved(tmp_path / "f", features, labels), detector))
    assert list(got) == ["row", "predicted", "score", "label"]
    assert np.array_equal(got["label"], labels.numpy())


def slow_p(score, calibration):
    """Count, one by one."""
    return [(1 + sum(c >= s for c in calibration)) / (len(calibration) + 1) for s in score]


@pytest.mark.parametrize("per_class", [False, True])
def test_p_values_are_ranks_among_the_calibration_scores(tmp_path, world, detector, per_class):
    known, features = many(world, 600, seed=1), many(world, 300, seed=2)
    calibration = calibrate(saved(tmp_path / "known", known), detector, 0.1, per_class)
    got = table(score_features(saved(tmp_path / "f", features), detector, calibration))
    assert list(got) == ["row", "predicted", "score", "p_value", "is_ood"]
    scores, groups = lifted(detector(known)).tolist(), world.head(known).argmax(1).tolist()
    expected = [
        slow_p([score], [s for s, g in zip(scores, groups, strict=True) if not per_class or g == predicted])[0]
        for score, predicted in zip(got["score"].tolist(), got["predicted"].tolist(), strict=True)
    ]
    np.testing.assert_allclose(got["p_value"], expected, rtol=1e-6)
    assert np.array_equal(got["is_ood"], np.array(expected) <= 0.1)
    assert 0 < got["is_ood"].sum() < 300


def test_calibrating_from_a_file_is_calibrating_on_all_its_scores(tmp_path, world, detector):
    known = many(world, 5000)
    predicted = world.head(known).argmax(1)
    source = saved(tmp_path / "known", known)
    for per_class, groups in ((False, None), (True, predicted)):
        got, expected = (
            calibrate(source, detector, 0.05, per_class),
            Calibration.of(lifted(detector(known)), 0.05, groups, 6),
        )
        assert torch.equal(got.scores, expected.scores)
        assert torch.equal(got.threshold, expected.threshold)
        assert (got.fpr, got.per_class) == (0.05, per_class)


def test_float32_is_widened_and_float64_is_not_rounded(tmp_path, make_world):
    narrow, wide = make_world(torch.float32), make_world(torch.float64)
    source = saved(tmp_path / "f", narrow.unknown)
    detector = ff.create("fold").fit(wide.bank, wide.head)
    got = table(score_features(source, detector))
    assert np.array_equal(got["score"], detector(narrow.unknown.double()).numpy())
    assert got["score"].dtype == np.float64
    detector = ff.create("fold").fit(narrow.bank, narrow.head)
    sentence = r"f holds features in torch\.float64, but what judges them was fitted in torch\.float32, and they are"
    with pytest.raises(TypeError, match=sentence):
        next(score_features(saved(tmp_path / "f", wide.unknown), detector))


def test_features_of_another_width_are_refused(tmp_path, detector):
    for use in (lambda f: next(score_features(f, detector)), lambda f: calibrate(f, detector, 0.1)):
        with pytest.raises(ValueError, match=r"f: features have d=23 columns but the head expects d=24"):
            use(saved(tmp_path / "f", torch.zeros(3, 23)))


def test_a_score_that_is_not_finite_is_refused_with_its_row(tmp_path, world):
    detector = ff.create("mls").fit(world.bank, world.head)
    features = many(world, 5000)
    features[4500] = torch.finfo(features.dtype).max
    with pytest.raises(ValueError, match=r"scores of .*f must be finite, but row 4500 has"):
        list(score_features(saved(tmp_path / "f", features), detector))


def test_too_few_calibration_rows_are_refused_with_the_name_of_the_file(tmp_path, world, detector):
    known = saved(tmp_path / "known", many(world, 18))
    with pytest.raises(ValueError, match=r"known: a false-alarm rate of 0\.05 takes 19 calibration samples"):
        calibrate(known, detector, 0.05)
    with pytest.raises(ValueError, match=r"known: a false-alarm rate of 0\.1 for each class takes 9"):
        calibrate(known, detector, 0.1, per_class=True)


def hard_values(dtype):
    """Numbers that lose a digit unless every one is written."""
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(size=50), 10.0 ** rng.uniform(-37, 37, 50), [0.1, 0.0, -0.0, 1.0]]).astype(dtype)


def chunks_of(dtype=np.float32):
    score = hard_values(dtype)
    row = np.arange(len(score))
    columns = {"row": row, "predicted": row % 3, "score": score, "p_value": np.abs(score), "is_ood": row % 2 == 1}
    return [{name: values[part] for name, values in columns.items()} for part in (slice(0, 60), slice(60, None))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".CSV"])
def test_a_file_holds_every_digit(tmp_path, dtype, suffix):
    chunks = chunks_of(dtype)
    write_rows(iter(chunks), tmp_path / "new" / f"rows{suffix}")
    expected = table(chunks)
    got = read_back(tmp_path / "new" / f"rows{suffix}", dtype)
    assert list(got) == list(expected)
    for name, values in expected.items():
        assert got[name].dtype == values.dtype, name
        assert got[name].tobytes() == values.tobytes(), name  # -0.0 too
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"rows{suffix}"]


def read_back(path, dtype):
    """Return the columns of a file, by nothing but the libraries that know its format."""
    if path.suffix == ".parquet":
        with ParquetFile(path) as file:
            found = file.read()
        return {name: found.column(name).to_numpy() for name in found.column_names}
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(type(line["is_ood"]) is bool and type(line["row"]) is int for line in lines)
    else:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        assert {line["is_ood"] for line in lines} == {"true", "false"}
        lines = [{**line, "is_ood": line["is_ood"] == "true"} for line in lines]
    types = {"row": int, "predicted": int, "is_ood": bool}
    return {name: np.array([line[name] for line in lines]).astype(types.get(name, dtype)) for name in lines[0]}


def test_numbers_have_no_more_digits_than_they_need():
    score = np.array([0.1, 1 / 3, 1e-8], dtype=np.float32)
    assert list(csv_text([{"row": np.arange(3), "score": score}])) == ["row,score\n0,0.1\n1,0.33333334\n2,1e-08\n"]
    assert next(json_text([{"score": score}])) == '{"score": 0.1}\n{"score": 0.33333334}\n{"score": 1e-08}\n'


def test_columns_of_text_are_quoted_where_they_must_be(tmp_path):
    names = np.array(['a, "b".png', "c\nd.png", "é.png"])
    chunks = [{"path": names, "score": np.arange(3.0)}]
    write_rows(chunks, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        assert [line["path"] for line in csv.DictReader(file)] == names.tolist()
    write_rows(chunks, tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["path"] for line in lines] == names.tolist()
    write_rows(chunks, tmp_path / "a.parquet")
    with ParquetFile(tmp_path / "a.parquet") as file:
        assert file.read().column("path").to_pylist() == names.tolist()


def test_many_chunks_of_a_parquet_file_share_a_row_group(tmp_path):
    chunks = [{"row": np.arange(10 * i, 10 * i + 10)} for i in range(40)]
    write_rows(chunks, tmp_path / "a.parquet")
    with ParquetFile(tmp_path / "a.parquet") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [40] * 10
        assert file.read().column("row").to_pylist() == list(range(400))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_rows_that_fail_leave_the_old_file_as_it_was(tmp_path, suffix):
    def failing():
        yield from chunks_of() * 20
        raise ValueError("row 7 has a NaN")

    path = tmp_path / f"rows{suffix}"
    path.write_text("old")
    with pytest.raises(ValueError, match="row 7"):
        write_rows(failing(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"a table of rows is a file \*\.csv, \*\.jsonl, \*\.parquet, got 'rows\.txt'"):
        check_out(tmp_path / "rows.txt")
    (tmp_path / "rows.csv").mkdir()
    with pytest.raises(IsADirectoryError, match=r"is a file, but .*rows\.csv is a folder\. Choose another name"):
        check_out(tmp_path / "rows.csv")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.csv")
        with pytest.raises(ValueError, match=r"is a file, but .*pipe\.csv is a device or a pipe\. Choose another name"):
            check_out(tmp_path / "pipe.csv")
    monkeypatch.setattr(writers, "find_spec", lambda name: None)
    check_out(tmp_path / "rows.jsonl")
    with pytest.raises(ModuleNotFoundError, match=r"written by pyarrow.* pip install 'flatfold\[parquet\]'"):
        check_out(tmp_path / "rows.parquet")

    def never():
        pytest.fail("the work has begun")
        yield

    with pytest.raises(ModuleNotFoundError):
        write_rows(never(), tmp_path / "rows.parquet")


PEAK = """
import sys, threading
import torch
import flatfold as ff
from pathlib import Path
from flatfold.models.feature_files import open_features
from flatfold.scoring.rows import calibrate, score_features
from flatfold.scoring.writers import write_rows

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

torch.set_num_threads(1)
head = ff.Head(torch.eye(3, 64))
detector = ff.create("fold").fit(ff.FeatureBank(torch.ones(1, 64)), head)
source, known = open_features(sys.argv[1]), open_features(sys.argv[2])
peak = 0
def watched(chunks):
    global peak
    for chunk in chunks:
        peak = max(peak, anonymous())
        yield chunk
write_rows(watched(score_features(source, detector, calibrate(known, detector, 0.1))), sys.argv[3])
print(peak)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc, which is not here")
@pytest.mark.parametrize(
    ("suffix", "out"), [("safetensors", "csv"), ("npy", "jsonl"), ("npz", "parquet"), ("bank", "csv")]
)
def test_ten_times_as_many_rows_take_no_more_memory(tmp_path, suffix, out):
    known = tmp_path / "known.npy"
    np.save(known, np.random.default_rng(1).normal(size=(500, 64)).astype(np.float32))
    peaks = []
    for n in (20_000, 200_000):
        features = np.random.default_rng(0).normal(size=(n, 64)).astype(np.float32)  # 51 MB of the larger one
        path = tmp_path / f"{n}.{suffix}"
        if suffix == "safetensors":
            save_file({"features": torch.from_numpy(features)}, path)
        elif suffix == "bank":
            ff.extract(torch.nn.Linear(64, 3), torch.from_numpy(features).split(4096), out=path, key="rows")
        else:
            np.save(path, features) if suffix == "npy" else np.savez_compressed(path, features=features)
        code = [sys.executable, "-c", PEAK, str(path), str(known), str(tmp_path / f"rows.{out}")]
        done = subprocess.run(code, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.1 * peaks[0]
