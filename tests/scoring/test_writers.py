"""`scoring.writers`: text that every reader of CSV and JSON takes apart again."""

import csv
import io
import json

import numpy as np
import pyarrow
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import ParquetFile

from flatfold.scoring.writers import GROUP, csv_text, json_text, write_tables

# Tables hold what can be encoded, and arrays of numpy lose a zero at the end of a text.
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1, max_size=9)


def chunks_of(texts):
    columns = {"path": np.array(texts, dtype="U"), "n": np.arange(len(texts))}
    return [columns, {name: values[:0] for name, values in columns.items()}, columns]


@given(texts=TEXTS)
def test_any_text_comes_back_from_csv(texts):
    rows = list(csv.reader(io.StringIO("".join(csv_text(chunks_of(texts))), newline="")))
    assert rows == [["path", "n"], *([text, str(n)] for _ in range(2) for n, text in enumerate(texts))]


@given(texts=TEXTS)
def test_any_text_comes_back_from_json_lines(texts):
    lines = "".join(json_text(chunks_of(texts))).split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == [{"path": t, "n": n} for _ in range(2) for n, t in enumerate(texts)]


def test_only_fields_that_need_them_have_quotes():
    names = np.array(["a b", "c,d", 'e"', "f\rg", "h\n", "'i'"])
    text = "".join(csv_text([{"a,b": names}]))
    assert text == '"a,b"\na b\n"c,d"\n"e"""\n"f\rg"\n"h\n"\n\'i\'\n'


def test_a_table_without_rows_has_the_names_of_its_columns():
    empty = {"path": np.zeros(0, "U"), "is_ood": np.zeros(0, bool)}
    assert "".join(csv_text([empty])) == "path,is_ood\n"
    assert "".join(json_text([empty])) == ""


def test_arrow_tables_become_one_file_with_few_row_groups(tmp_path):
    tables = [pyarrow.table({"n": list(range(5 * i, 5 * i + 5))}) for i in range(2 * GROUP + 1)]
    write_tables(iter(tables), tmp_path / "a.parquet")
    with ParquetFile(tmp_path / "a.parquet") as file:
        assert file.num_row_groups == 3
        assert file.read().column("n").to_pylist() == list(range(5 * len(tables)))
