"""Finished parts: kept whole, found again, never mistaken for another, computed again when damaged."""

import logging
import os

import numpy as np
import pytest

from flatfold.evaluate.study import parts as module
from flatfold.evaluate.study.parts import Part, Parts, forget_parts

TITLE = ("noise", "largest eigenvalue")


class Work:
    """Computes a part and counts how often."""

    def __init__(self, value=1.5):
        self.times = 0
        self.part = Part({"value": value, "stderr": None, "method": "by hand"}, {"value": np.array([1.0, 2.0])})

    def __call__(self):
        self.times += 1
        return self.part


def the_file(folder):
    (path,) = folder.iterdir()
    return path


def test_a_finished_part_is_not_computed_again(tmp_path):
    work = Work()
    first = Parts(tmp_path, {"weights": "w"}).get(TITLE, {"seed": "0"}, work)
    again = Parts(tmp_path, {"weights": "w"}).get(TITLE, {"seed": "0"}, work)
    assert work.times == 1
    assert again.told == first.told == work.part.told
    assert np.array_equal(again.arrays["value"], work.part.arrays["value"])
    assert again.arrays["value"].dtype == np.float64


@pytest.mark.parametrize(
    ("common", "title", "key"),
    [
        ({"weights": "other"}, TITLE, {"seed": "0"}),
        ({"weights": "w"}, ("dark", TITLE[1]), {"seed": "0"}),
        ({"weights": "w"}, (TITLE[0], "trace"), {"seed": "0"}),
        ({"weights": "w"}, TITLE, {"seed": "1"}),
        ({"weights": "w"}, TITLE, {"seed": "0", "steps": "3"}),
    ],
)
def test_whatever_it_depends_on_makes_it_another_part(common, title, key, tmp_path):
    Parts(tmp_path, {"weights": "w"}).get(TITLE, {"seed": "0"}, Work())
    work = Work(2.5)
    assert Parts(tmp_path, common).get(title, key, work).told["value"] == 2.5
    assert work.times == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_another_version_of_the_package_computes_its_own(tmp_path, monkeypatch):
    Parts(tmp_path, {}).get(TITLE, {}, Work())
    monkeypatch.setattr(module, "__version__", "9.9")
    work = Work()
    Parts(tmp_path, {}).get(TITLE, {}, work)
    assert work.times == 1


def damage_number(data):
    return data[:-8] + bytes(8)


@pytest.mark.parametrize(
    "damage",
    [
        damage_number,
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data.replace(b"1.5", b"1.6"),
        lambda data: data.replace(b'\\"version\\": 1', b'\\"version\\": 7'),
        lambda data: data.replace(b"flatfold-curvature-part", b"flatfold-curvature-tarp"),
        lambda data: data.replace(b'\\"key\\"', b'\\"yek\\"'),
        lambda data: data.replace(b'\\"sha256\\"', b'\\"sha265\\"'),
    ],
)
def test_a_damaged_part_is_computed_again_and_said(damage, tmp_path, caplog):
    parts, work = Parts(tmp_path, {}), Work()
    parts.get(TITLE, {}, work)
    path = the_file(tmp_path)
    whole = path.read_bytes()
    assert damage(whole) != whole
    path.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING):
        assert parts.get(TITLE, {}, work).told["value"] == 1.5
    assert work.times == 2
    assert "is damaged: that part is computed again" in caplog.text
    assert path.read_bytes() == whole


def test_a_part_that_fails_leaves_nothing(tmp_path):
    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Parts(tmp_path, {}).get(TITLE, {}, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_none_is_not_kept(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Parts(tmp_path, {}).get(TITLE, {}, Work(float("nan")))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    half = tmp_path / f"noise.safetensors.{os.getpid()}.partial"
    half.write_bytes(b"half")
    Parts(tmp_path, {})
    assert not half.exists()


def test_only_parts_are_forgotten(tmp_path):
    Parts(tmp_path, {}).get(TITLE, {}, Work())
    (tmp_path / "mine.safetensors").write_bytes(b"something else")
    (tmp_path / "notes.txt").write_text("mine")
    forget_parts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.safetensors", "notes.txt"}
    forget_parts(tmp_path / "nowhere")


def test_a_bar_tells_the_data_set_and_what_is_computed(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(module, "track", lambda items, title: (told.append(title), items)[1])
    Parts(tmp_path, {}).get(TITLE, {}, Work())
    Parts(tmp_path, {}).get(TITLE, {}, Work())
    assert told == ["noise: largest eigenvalue"]
