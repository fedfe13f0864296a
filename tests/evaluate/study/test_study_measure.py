"""Finished parts of a study on disk: found again, never mistaken for another, computed again when damaged."""

from unittest.mock import Mock

import pytest
import torch

from flatfold.evaluate import study as module
from flatfold.evaluate.study import StudyParts, forget_study
from flatfold.io.store import Part, PartStore
from tests.evaluate.study.test_study import make_suite

TITLE = ("noise", "largest eigenvalue")


def make_work(value=1.5):
    """Return a function that computes a part and counts its calls."""
    return Mock(return_value=Part({"value": value, "stderr": None}, {"value": torch.tensor([1.0, 2.0]).double()}))


def get(folder, work, weights="w", title=TITLE, **key):
    with PartStore(folder, {"kind": "curvature"}) as store:
        return StudyParts(store, weights).get(*title, {"seed": "0", **key}, work)


def test_a_finished_part_is_computed_again_only_if_something_it_depends_on_changed(tmp_path, monkeypatch):
    work = make_work()
    get(tmp_path, work)
    again = get(tmp_path, work)
    assert work.call_count == 1
    assert again.info == {"value": 1.5, "stderr": None, "dataset": "noise"}
    assert torch.equal(again.tensors["value"], torch.tensor([1.0, 2.0]).double())
    others = [
        {"weights": "other"}, {"title": ("dark", TITLE[1])}, {"title": (TITLE[0], "trace")}, {"seed": "1"},
        {"steps": "3"},
    ]  # fmt: skip
    for change in others:
        assert get(tmp_path, make_work(2.5), **change).info["value"] == 2.5, change
    assert len(list(tmp_path.glob("*.safetensors"))) == 1 + len(others)
    monkeypatch.setattr(module, "__version__", "9.9")
    get(tmp_path, work)
    assert work.call_count == 2


def test_a_damaged_part_is_computed_again(tmp_path, caplog):
    work = make_work()
    get(tmp_path, work)
    (path,) = tmp_path.glob("*.safetensors")
    whole = path.read_bytes()
    for data in (whole[:-8] + bytes(8), whole[: len(whole) // 2], b"", whole.replace(b"1.5", b"1.6")):
        path.write_bytes(data)
        caplog.clear()
        assert get(tmp_path, work).info["value"] == 1.5
        assert "recomputed" in caplog.text
        assert path.read_bytes() == whole
    assert work.call_count == 5


def test_failed_and_killed_computations_leave_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        get(tmp_path, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(ValueError, match="finite"):
        get(tmp_path, make_work(float("nan")))
    assert list(tmp_path.glob("*.safetensors*")) == []


def test_only_parts_are_forgotten(tmp_path):
    get(tmp_path / "curvature", make_work())
    (tmp_path / "curvature" / "mine.safetensors").write_bytes(b"something else")
    (tmp_path / "curvature" / "notes.txt").write_text("mine")
    forget_study(make_suite(), tmp_path, 20)
    assert {path.name for path in (tmp_path / "curvature").iterdir()} == {"mine.safetensors", "notes.txt"}
    forget_study(make_suite(), tmp_path / "nowhere", 20)
