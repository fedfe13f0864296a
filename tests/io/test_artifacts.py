"""`io.artifacts`: what is written comes back, and nothing else is read."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from flatfold.errors import DamagedFileError
from flatfold.io.artifacts import checksum, decode, encode, read_json, read_tensors, write_json, write_tensors
from tests.refusals import assert_refused


@dataclass
class Row:
    name: str
    value: float | None = None


@dataclass
class Table:
    FORMAT: ClassVar[str] = "flatfold-table"
    VERSION: ClassVar[int] = 3
    rows: list[Row]
    counts: dict[int, str] = field(default_factory=dict)


TABLE = Table([Row("a", 0.1 + 0.2), Row("b")], {7: "x"})


def test_a_document_comes_back(tmp_path):
    write_json(tmp_path / "t.json", TABLE)
    assert read_json(tmp_path / "t.json", Table) == TABLE
    assert decode(encode(TABLE, indent=0), Table) == TABLE
    assert "\n" not in encode(TABLE, indent=0)


def test_other_documents_are_refused(tmp_path):
    text = encode(TABLE)
    for case, keyword in (
        (text[:-9], "not a document"), ("[]", "not a document"), ("[" * 100_000, "not a document"),
        (text.replace("flatfold-table", "other"), "format"), (text.replace("3", "4", 1), "upgrade"),
        (text.replace("3", "2", 1), "older"), (text.replace('"a"', "5"), "Expected `str`"),
        (text.replace('"rows"', '"sets"'), "rows"),
    ):  # fmt: skip
        assert_refused(DamagedFileError, keyword, decode, case, Table)
    (tmp_path / "t.json").write_text(text[:-9])
    assert_refused(DamagedFileError, "t.json", read_json, tmp_path / "t.json", Table)
    for value in (float("nan"), float("inf")):
        assert_refused(ValueError, r"rows\[0\].value", encode, Table([Row("a", value)]))


def test_tensors_come_back_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "new" / "t.safetensors"
    write_tensors(path, "head", {"x": torch.arange(6).reshape(2, 3).mT})
    header, tensors = read_tensors(path)
    assert header == "head"
    assert tensors["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert_refused(DamagedFileError, "alone", read_tensors, path, "other")
    content = path.read_bytes()
    for damaged in (content[:-1], content[:20], b"", b"\xff" * 8 + content[8:]):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError):
            read_tensors(path)
    assert_refused(DamagedFileError, "regular", read_tensors, tmp_path)


def test_tensors_in_blocks_are_written_like_whole_ones(tmp_path):
    g = torch.Generator().manual_seed(0)
    labels, values = torch.arange(7), torch.randn(7, 3, generator=g)
    for dtype in (torch.float32, torch.float64):
        whole = {"labels": labels, "features": values.to(dtype)}
        blocks = {"labels": labels.split(2), "features": [values.to(dtype)[:0], *values.to(dtype).split(3)]}
        header = 'a "header" with \u00e9'
        for name, tensors in (("whole", whole), ("blocks", blocks)):
            write_tensors(tmp_path / name, header, tensors)
        assert (tmp_path / "blocks").read_bytes() == (tmp_path / "whole").read_bytes()
        assert checksum(header, blocks) == checksum(header, whole)
