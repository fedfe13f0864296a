"""Tables of scores: the numbers of a detector and of a calibration, in files that can be read back exactly."""

import csv
import io
import json
import os
from functools import partial

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import ParquetFile
from safetensors.torch import save_file

import flatfold as ff
from flatfold.data.feature_files import open_features
from flatfold.scoring import tables as writers
from flatfold.scoring.calibrated import with_rounding_margin
from flatfold.scoring.fitting import fit_detector
from flatfold.scoring.tables import (
    GROUP,
    check_out,
    csv_text,
    fit_on_files,
    json_text,
    score_features,
    write_rows,
    write_tables,
)
from tests.refusals import assert_refused

# Tables hold what can be encoded, and arrays of numpy lose a zero at the end of a text.
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1, max_size=9)


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
    features, labels = many(world, 9000), torch.arange(9000) - 1
    chunks = list(score_features(saved(tmp_path / "f", features, labels), detector))
    assert len(chunks) == 3, "memory grows with the number of rows"
    got = table(chunks)
    assert list(got) == ["row", "predicted", "score", "label"]
    assert np.array_equal(got["row"], np.arange(9000))
    assert np.array_equal(got["score"], detector(features).numpy())
    assert got["score"].dtype == features.numpy().dtype
    slow = features.double() @ world.head.weight.double().T + world.head.bias.double()
    assert np.array_equal(got["predicted"], slow.argmax(1).numpy())
    assert np.array_equal(got["label"], labels.numpy())


def calibrate(source, world, fpr, per_class=False):
    return fit_on_files(ff.create("fold"), world.head, source, None, source, fpr, per_class).calibration


def slow_p(score, calibration):
    return (1 + sum(c >= score for c in calibration)) / (len(calibration) + 1)


@pytest.mark.parametrize("per_class", [False, True])
def test_p_values_are_ranks_among_the_calibration_scores(tmp_path, world, detector, per_class):
    known, features = many(world, 600, seed=1), many(world, 300, seed=2)
    calibration = calibrate(saved(tmp_path / "known", known), world, 0.1, per_class)
    got = table(score_features(saved(tmp_path / "f", features), detector, calibration))
    assert list(got) == ["row", "predicted", "score", "p_value", "is_ood"]
    scores, groups = with_rounding_margin(detector(known)).tolist(), world.head(known).argmax(1).tolist()
    assert (calibration.samples, calibration.fpr, calibration.per_class) == (600, 0.1, per_class)
    expected = [
        slow_p(score, [s for s, g in zip(scores, groups, strict=True) if not per_class or g == predicted])
        for score, predicted in zip(got["score"].tolist(), got["predicted"].tolist(), strict=True)
    ]
    np.testing.assert_allclose(got["p_value"], expected, rtol=1e-6)
    assert np.array_equal(got["is_ood"], np.array(expected) <= 0.1)
    assert 0 < got["is_ood"].sum() < 300


def test_float32_is_widened_and_float64_is_not_rounded(tmp_path, make_world):
    narrow, wide = make_world(torch.float32), make_world(torch.float64)
    detector = ff.create("fold").fit(wide.bank, wide.head)
    got = table(score_features(saved(tmp_path / "f", narrow.unknown), detector))
    assert np.array_equal(got["score"], detector(narrow.unknown.double()).numpy())
    assert got["score"].dtype == np.float64
    detector = ff.create("fold").fit(narrow.bank, narrow.head)
    with pytest.raises(TypeError, match="float64"):
        next(score_features(saved(tmp_path / "f", wide.unknown), detector))


def test_a_detector_is_fitted_on_files_as_on_banks_and_calibrated_on_others(tmp_path, world):
    known, more = many(world, 300, seed=1), many(world, 200, seed=2)
    labels = world.head(known).argmax(dim=1)
    fit, held_out = saved(tmp_path / "fit", known, labels), saved(tmp_path / "more", more)
    result = fit_on_files(ff.create("knn"), world.head, held_out, fit, held_out, 0.1)
    expected = fit_detector(
        ff.create("knn"), ff.FeatureBank(known, labels), world.head, 0.1, held_out=ff.FeatureBank(more)
    )
    assert torch.equal(result.calibration.threshold, expected.calibration.threshold)
    assert (result.samples, result.accuracy, result.copies) == (300, 1.0, expected.copies)
    assert fit_on_files(ff.create("knn"), world.head, held_out, fit, None, 0.1).calibration is None, "none are held out"
    again = saved(tmp_path / "again", known[:100])
    with pytest.raises(ValueError, match=r"fit and .*again: the calibration data is"):
        fit_on_files(ff.create("knn"), world.head, again, fit, again, 0.1)


def test_features_that_cannot_be_scored_or_calibrated_on_are_refused(tmp_path, world, detector):
    narrow, few = saved(tmp_path / "narrow", torch.zeros(3, 23)), saved(tmp_path / "few", many(world, 18))
    features = many(world, 5000)
    features[4500] = torch.finfo(features.dtype).max
    endless, mls = saved(tmp_path / "endless", features), ff.create("mls").fit(world.bank, world.head)
    for use, keyword in (
        (lambda: next(score_features(narrow, detector)), "narrow.*d=23"),
        (lambda: calibrate(narrow, world, 0.1), "narrow.*d=23"),
        (lambda: list(score_features(endless, mls)), "endless.*row 4500"),
        (lambda: calibrate(few, world, 0.05), "few.*takes 19"),
        (lambda: calibrate(few, world, 0.1, per_class=True), "few.*each class takes 9"),
    ):
        assert_refused(ValueError, keyword, use)


def chunks_of(dtype=np.float32):
    """Rows with numbers that lose a digit unless every one is written."""
    rng = np.random.default_rng(0)
    score = np.concatenate([rng.normal(size=50), 10.0 ** rng.uniform(-37, 37, 50), [0.1, 0.0, -0.0, 1.0]]).astype(dtype)
    row = np.arange(len(score))
    columns = {"row": row, "predicted": row % 3, "score": score, "p_value": np.abs(score), "is_ood": row % 2 == 1}
    return [{name: values[part] for name, values in columns.items()} for part in (slice(0, 60), slice(60, None))]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".CSV"])
def test_a_file_holds_every_digit(tmp_path, suffix):
    for dtype in (np.float32, np.float64):
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
            lines = [{**line, "is_ood": json.loads(line["is_ood"])} for line in csv.DictReader(file)]
    types = {"row": int, "predicted": int, "is_ood": bool}
    return {name: np.array([line[name] for line in lines]).astype(types.get(name, dtype)) for name in lines[0]}


def test_numbers_have_no_more_digits_and_fields_no_more_quotes_than_they_need():
    score = np.array([0.1, 1 / 3, 1e-8], dtype=np.float32)
    assert list(csv_text([{"row": np.arange(3), "score": score}])) == ["row,score\n0,0.1\n1,0.33333334\n2,1e-08\n"]
    assert next(json_text([{"score": score}])) == '{"score": 0.1}\n{"score": 0.33333334}\n{"score": 1e-08}\n'
    names = np.array(["a b", "c,d", 'e"', "f\rg", "h\n", "'i'"])
    text = "".join(csv_text([{"a,b": names}]))
    assert text == '"a,b"\na b\n"c,d"\n"e"""\n"f\rg"\n"h\n"\n\'i\'\n'
    formulas = np.array(["=cmd|'/C calc'!A0", "+1", "-1", "@x", "\t=1", "\r=1", "a=1"])  # are texts in a spreadsheet
    assert [line[0] for line in csv.reader(csv_text([{"x": formulas}]).__next__().splitlines(True))][1:5] == [
        f"'{text}" for text in formulas[:4]
    ]
    empty = {"path": np.zeros(0, "U"), "is_ood": np.zeros(0, bool)}
    assert "".join(csv_text([empty])) == "path,is_ood\n"
    assert "".join(json_text([empty])) == ""


@given(texts=TEXTS)
def test_any_text_comes_back_from_csv_and_json_lines(texts):
    columns = {"path": np.array(texts, dtype="U"), "n": np.arange(len(texts))}
    chunks = [columns, {name: values[:0] for name, values in columns.items()}, columns]
    rows = list(csv.reader(io.StringIO("".join(csv_text(chunks)), newline="")))
    fields = ["'" * text.startswith(("=", "+", "-", "@", "\t", "\r")) + text for text in texts]
    assert rows == [["path", "n"], *([field, str(n)] for _ in range(2) for n, field in enumerate(fields))]
    lines = "".join(json_text(chunks)).split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == [{"path": t, "n": n} for _ in range(2) for n, t in enumerate(texts)]


def test_parquet_files_hold_text_and_many_chunks_share_a_row_group(tmp_path):
    path, names = tmp_path / "a.parquet", ['a, "b".png', "c\nd.png", "é.png"]
    write_rows([{"path": np.array(names)}], path)
    with ParquetFile(path) as file:
        assert file.read().column("path").to_pylist() == names
    write_rows([{"row": np.arange(10 * i, 10 * i + 10)} for i in range(40)], path)
    with ParquetFile(path) as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [40] * 10
        assert file.read().column("row").to_pylist() == list(range(400))
    write_tables((pyarrow.table({"n": list(range(5 * i, 5 * i + 5))}) for i in range(2 * GROUP + 1)), path)
    with ParquetFile(path) as file:
        assert file.num_row_groups == 3
        assert file.read().column("n").to_pylist() == list(range(5 * (2 * GROUP + 1)))


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
    def never():
        pytest.fail("the work has begun")
        yield

    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    monkeypatch.setattr(writers, "find_spec", lambda name: None)
    check_out(tmp_path / "rows.jsonl")
    for name, kind, keyword in (
        ("rows.txt", ValueError, "rows.txt"),
        ("folder.csv", IsADirectoryError, "folder.csv"),
        ("pipe.csv", ValueError, "pipe.csv"),
        ("rows.parquet", ModuleNotFoundError, r"flatfold\[parquet\]"),
    ):
        assert_refused(kind, keyword, partial(check_out, tmp_path / name))
        assert_refused(kind, keyword, partial(write_rows, never(), tmp_path / name))
