"""Finished parts of a study on disk: found again, never mistaken for another, computed again when damaged."""

import os
from unittest.mock import Mock

import numpy as np
import pytest

from flatfold.evaluate import study_measure as module
from flatfold.evaluate.study_measure import Part, Parts, forget_parts

TITLE = ("noise", "largest eigenvalue")


def make_work(value=1.5):
    """Return a function that computes a part and counts its calls."""
    return Mock(return_value=Part({"value": value, "stderr": None}, {"value": np.array([1.0, 2.0])}))


def test_a_finished_part_is_computed_again_only_if_something_it_depends_on_changed(tmp_path, monkeypatch):
    work = make_work()
    Parts(tmp_path, {"weights": "w"}).get(TITLE, {"seed": "0"}, work)
    again = Parts(tmp_path, {"weights": "w"}).get(TITLE, {"seed": "0"}, work)
    assert work.call_count == 1
    assert again.told == {"value": 1.5, "stderr": None}
    assert np.array_equal(again.arrays["value"], [1.0, 2.0])
    assert again.arrays["value"].dtype == np.float64
    others = [
        ("other", TITLE, {"seed": "0"}),
        ("w", ("dark", TITLE[1]), {"seed": "0"}),
        ("w", (TITLE[0], "trace"), {"seed": "0"}),
        ("w", TITLE, {"seed": "1"}),
        ("w", TITLE, {"seed": "0", "steps": "3"}),
    ]
    for weights, title, key in others:
        other = Parts(tmp_path, {"weights": weights}).get(title, key, make_work(2.5))
        assert other.told["value"] == 2.5, (weights, title, key)
    assert len(list(tmp_path.iterdir())) == 1 + len(others)
    monkeypatch.setattr(module, "__version__", "9.9")
    Parts(tmp_path, {"weights": "w"}).get(TITLE, {"seed": "0"}, work)
    assert work.call_count == 2


def test_a_damaged_part_is_computed_again(tmp_path, caplog):
    parts, work = Parts(tmp_path, {}), make_work()
    parts.get(TITLE, {}, work)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = {
        "number": whole[:-8] + bytes(8),
        "half": whole[: len(whole) // 2],
        "empty": b"",
        "told": whole.replace(b"1.5", b"1.6"),
        "version": whole.replace(b'\\"version\\": 1', b'\\"version\\": 7'),
        "format": whole.replace(b"flatfold-curvature-part", b"flatfold-curvature-tarp"),
        "key": whole.replace(b'\\"key\\"', b'\\"yek\\"'),
        "checksum": whole.replace(b'\\"sha256\\"', b'\\"sha265\\"'),
    }
    for times, (what, data) in enumerate(damaged.items(), start=2):
        assert data != whole, what
        path.write_bytes(data)
        caplog.clear()
        assert parts.get(TITLE, {}, work).told["value"] == 1.5, what
        assert work.call_count == times, what
        assert "damaged" in caplog.text, what
        assert path.read_bytes() == whole, what


def test_failed_and_killed_computations_leave_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Parts(tmp_path, {}).get(TITLE, {}, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(ValueError, match="JSON"):
        Parts(tmp_path, {}).get(TITLE, {}, make_work(float("nan")))
    (tmp_path / f"noise.safetensors.{os.getpid()}.partial").write_bytes(b"half")
    Parts(tmp_path, {})
    assert list(tmp_path.iterdir()) == []


def test_only_parts_are_forgotten(tmp_path):
    Parts(tmp_path, {}).get(TITLE, {}, make_work())
    (tmp_path / "mine.safetensors").write_bytes(b"something else")
    (tmp_path / "notes.txt").write_text("mine")
    forget_parts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.safetensors", "notes.txt"}
    forget_parts(tmp_path / "nowhere")
