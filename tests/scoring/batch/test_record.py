"""`Record`: nothing is lost on the way through a line of text."""

import numpy as np
import pytest

from flatfold.scoring.batch.record import Record


def make_record(n, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n).astype(dtype) * dtype(10.0) ** rng.integers(-30, 30, n).astype(dtype)
    columns = {
        "path": np.array([f'{i}, "é"\n.png' for i in range(n)], dtype="U"),
        "predicted": rng.integers(0, 1000, n),
        "score": score,
        "p_value": rng.random(n).astype(dtype),
        "is_ood": rng.random(n) < 0.5,
    }
    gaps = {"path": np.array(["a.png"][:n], dtype="U"), "reason": np.array(["broken"][:n], dtype="U")}
    return Record(columns, gaps)


def assert_same(one, other):
    for a, b in ((one.columns, other.columns), (one.unreadable, other.unreadable)):
        assert list(a) == list(b)
        for name in a:
            assert a[name].dtype == b[name].dtype
            assert np.array_equal(a[name], b[name])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 500])
def test_text_holds_every_digit(n, dtype):
    record = make_record(n, dtype)
    text = record.to_json()
    assert "\n" not in text
    assert_same(Record.from_json(text), record)


def test_several_records_follow_each_other():
    some, none, more = make_record(3), make_record(0), make_record(5, seed=1)
    joined = Record.joined([some, none, more])
    assert joined.columns["path"].tolist() == [*some.columns["path"], *more.columns["path"]]
    assert np.array_equal(joined.columns["score"], np.concatenate([some.columns["score"], more.columns["score"]]))
    assert joined.unreadable["path"].tolist() == ["a.png", "a.png"]
    assert joined.columns["is_ood"].dtype == np.bool_
    assert_same(Record.joined([none]), none)
