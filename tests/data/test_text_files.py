"""Texts in files: the same texts and labels from every format, reasons for rows without a text, little memory."""

import json
import pickle
import tracemalloc

import numpy as np
import pyarrow as arrow
import pytest
import torch
from pyarrow.parquet import write_table

import flatfold as ff
from flatfold.data.sources import read_batches, take_subset
from flatfold.data.text_files import MOST_BYTES, open_texts
from tests.data.tokenisers import Letters, make_texts
from tests.tiny_texts import write_all, write_csv

BROKEN = {  # lines of JSON, and a word of the reason
    b'{"text": "cut': "JSON",
    b'{"text": "\xff"}': "UTF-8",
    b'{"other": 1}': "entry",
    b'{"text": null}': "null",
    b'{"text": ["a"]}': "list",
    b'{"text": "  "}': "empty",
    b"[1, 2]": "object",
    b"[" * 5000: "JSON",
}


def opened(path, batch_size=4, **options):
    return open_texts(path, Letters(), batch_size, **options)


def texts_of(source):
    return [source.text(row) for row in range(source.rows)]


def test_every_format_gives_the_same_texts_labels_and_tokens(tmp_path):
    texts, labels = make_texts(17)
    texts[3], texts[5] = 'two\nlines, "quoted" é', "\u2028a\x0cb"
    rows = list(zip(texts, labels, strict=True))
    for kind, path in write_all(tmp_path, rows).items():
        if kind == "txt":  # which has neither labels nor texts of two lines
            path.write_text("\n".join(text.replace("\n", " ") for text in texts), encoding="utf-8")
        source = opened(path)
        assert (source.rows, len(source)) == (17, 5)
        assert source.name(6) == f"{path}:6"
        if kind == "txt":
            assert source.labels is None
            assert texts_of(source)[4:] == texts[4:]
            continue
        assert texts_of(source) == texts
        assert source.labels.tolist() == labels
        assert opened(path, labels=False).labels is None
        for batch, start in zip(source, range(0, 17, 4), strict=True):
            wanted = Letters()(texts[start : start + 4], True, True, "pt")["input_ids"]
            assert torch.equal(batch.kwargs["input_ids"], wanted)
            assert batch.labels.tolist() == labels[start : start + 4]


def test_a_file_begins_with_a_byte_order_mark_or_has_other_columns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfreview,stars,n\r\nfine,1,x\r\n\r\nbad,0,y\r\n")
    source = opened(path, text="review", labels="stars")
    assert (texts_of(source), source.labels.tolist()) == (["fine", "bad"], [1, 0])
    with pytest.raises(ValueError, match="'review', 'stars', 'n'"):
        opened(path)
    path = tmp_path / "a.jsonl"
    path.write_text('{"review": "fine"}')
    with pytest.raises(ValueError, match="'review'"):
        opened(path)
    (tmp_path / "a.txt").write_text("fine")
    with pytest.raises(ValueError, match="without columns"):
        opened(tmp_path / "a.txt", text="review")
    for name, error in {"none.csv": FileNotFoundError, "a.xlsx": ValueError, "empty.txt": ValueError}.items():
        if name != "none.csv":
            (tmp_path / name).write_text("\n \n")
        with pytest.raises(error):
            opened(tmp_path / name)


@pytest.mark.parametrize(
    ("values", "classes", "wanted"),
    [
        (["b", "a", "c"], None, [1, 0, 2]),
        (["b", "a", "c"], {"LABEL_0": 0, "LABEL_1": 1}, [1, 0, 2]),  # the default names of transformers
        (["b", "a", "a"], {"c": 0, "b": 1, "a": 2}, [1, 2, 2]),
        (["10", "2", "2"], None, [10, 2, 2]),
        ([True, False, True], None, [1, 0, 1]),
    ],
)
def test_names_of_classes_are_numbered_by_the_model_or_in_sorted_order(tmp_path, values, classes, wanted):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "abc", "label": value}) + "\n" for value in values))
    assert opened(path, classes=classes).labels.tolist() == wanted


def test_labels_that_are_no_classes_of_the_model_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path, [("abc", "good"), ("abd", "dull")])
    with pytest.raises(ValueError, match="'dull'"):
        opened(path, classes={"good": 0, "bad": 1})
    write_csv(path, [("abc", "-1"), ("abd", "0")])
    with pytest.raises(ValueError, match="-1"):
        opened(path)


def test_rows_without_a_text_are_unreadable_with_a_reason_and_the_others_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b'{"text": "abc"}', *BROKEN, b'{"text": "abd"}']))
    source = opened(path, batch_size=64, labels=False)
    batch, reasons = source.attempt(range(source.rows))
    assert batch.rows == 2
    for (line, word), (row, reason) in zip(BROKEN.items(), reasons.items(), strict=True):
        assert word in reason, line
        assert f"row {row}" in reason
    with pytest.raises(ff.UnreadableTextError, match="JSON"):
        source.read(range(4))
    csv = tmp_path / "a.csv"
    csv.write_bytes(b'n,text\n1,abc\n2\n3,\xff\n4,"a"b\n5,abd\n6,\n7,"never closed\n')
    batch, reasons = opened(csv, batch_size=64, labels=False).attempt(range(7))
    assert batch.rows == 2
    assert [*reasons] == [1, 2, 3, 5, 6]
    table = tmp_path / "a.parquet"
    write_table(arrow.table({"text": ["abc", None, ""]}), table)
    assert [*opened(table, labels=False).attempt(range(3))[1]] == [1, 2]


def test_a_row_without_a_label_is_unreadable_only_if_labels_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nabc,1\nabd,\nabe,0\n")
    assert [*opened(path).attempt(range(3))[1]] == [1]
    assert not opened(path, labels=False).attempt(range(3))[1]


def test_texts_are_truncated_as_the_tokeniser_says_and_the_batch_says_which(tmp_path):
    transformers = pytest.importorskip("transformers")
    from tests.tiny_texts import LONGEST, write_transformer

    write_transformer(tmp_path / "bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    path = tmp_path / "a.txt"
    path.write_text(f"{'rain ' * LONGEST}\nrain\n{'rain ' * (LONGEST + 1)}\n")
    batch = open_texts(path, tokenizer).read(range(3))
    assert batch.kwargs["input_ids"].shape == (3, LONGEST)
    assert batch.columns["truncated"].tolist() == [False, False, True]
    assert batch.part(1, 3).columns["truncated"].tolist() == [False, True]


def test_a_tokeniser_that_does_not_say_what_it_cuts_off_is_asked_again(tmp_path):
    from functools import partial

    path = tmp_path / "a.txt"
    path.write_text("abc\nabcde\nabcd\n")
    batch = open_texts(path, partial(Letters(), max_length=4)).read(range(3))
    assert batch.columns["truncated"].tolist() == [False, True, False]


def test_a_subset_and_a_copy_have_the_same_texts(tmp_path):
    texts, labels = make_texts(40)
    write_csv(tmp_path / "a.csv", zip(texts, labels, strict=True))
    source = opened(tmp_path / "a.csv")
    part = take_subset(take_subset(source, 20, 0), 5, 1, balanced=True)
    rows = [int(part.name(row).rpartition(":")[2]) for row in range(5)]
    assert texts_of(part) == [texts[row] for row in rows]
    assert part.labels.tolist() == [labels[row] for row in rows]
    again = pickle.loads(pickle.dumps(part))  # noqa: S301 - our own
    assert (texts_of(again), again.fingerprint) == (texts_of(part), part.fingerprint)
    assert len({source.fingerprint, part.fingerprint, opened(tmp_path / "a.csv", labels=False).fingerprint}) == 3
    assert open_texts(tmp_path / "a.csv", Letters(shift=1)).fingerprint != source.fingerprint
    assert opened(tmp_path / "a.csv", batch_size=7).fingerprint == source.fingerprint


def test_a_guard_takes_the_path_of_a_file_of_texts(tmp_path):
    from tests.data.tokenisers import Reader

    texts, labels = make_texts()
    write_csv(tmp_path / "a.csv", zip(texts, labels, strict=True))
    loading = ff.Loading(collate=Letters())
    guard = ff.Guard.fit(Reader().eval(), tmp_path / "a.csv", method="msp", loading=loading)
    same = ff.Guard.fit(Reader().eval(), (texts, labels), method="msp", loading=loading)
    assert torch.equal(guard.calibration.scores, same.calibration.scores)
    verdict = guard(tmp_path / "a.csv")
    assert torch.allclose(verdict.score, guard(texts).score)
    assert verdict.names[3] == f"{tmp_path / 'a.csv'}:3"
    source = ff.Guard.fit(Reader().eval(), opened(tmp_path / "a.csv"), method="msp")
    assert torch.allclose(source(texts[:3]).score, verdict.score[:3])  # it keeps the tokeniser of the source


@pytest.mark.slow
def test_memory_does_not_grow_with_the_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    line = json.dumps({"text": "abc" * 400}) + "\n"
    peaks = []
    for rows in (200, 4000):  # 0.2 and 5 MB
        path.write_text(line * rows)
        tracemalloc.start()
        for _ in read_batches(opened(path, batch_size=8, labels=False), workers=0):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 200_000


def test_a_line_that_is_too_long_is_unreadable_and_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("flatfold.data.text_files.MOST_BYTES", 100)
    for name, head in {"a.txt": "", "a.csv": "text\n"}.items():
        (tmp_path / name).write_text(f"{head}abc\n{'a' * 350}\nabd\n")
        batch, reasons = opened(tmp_path / name, labels=False).attempt(range(3))
        assert (batch.rows, [*reasons]) == (2, [1]), name
    assert np.log2(MOST_BYTES) == 22
