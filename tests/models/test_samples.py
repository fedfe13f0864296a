"""Bytes of some files tell data sets apart whose names, sizes and times agree, and cost the same for any number."""

import hashlib
import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flatfold.models.images import FolderImages
from flatfold.models.lists import ListImages
from flatfold.models.samples import evenly_spaced, feed_samples
from flatfold.models.transform import Transform

PLAIN = Transform()


def write(path, content):
    path.write_bytes(content)
    os.utime(path, (0, 0))
    return path


def fed(files):
    digest = hashlib.sha256()
    feed_samples(digest, files)
    return digest.hexdigest()


def folder_source(root):
    return FolderImages(root, PLAIN)


def list_source(root):
    names = sorted(path.name for path in root.glob("*.bmp"))
    (root / "list.txt").write_text("".join(f"{name} 0\n" for name in names) + "none.bmp 0\n")
    return ListImages(root / "list.txt", root, PLAIN)


@pytest.mark.parametrize("make", [folder_source, list_source])
@pytest.mark.parametrize("changed", [0, 2, 4])
def test_other_pixels_in_files_of_the_same_names_sizes_and_times_change_the_fingerprint(tmp_path, make, changed):
    for colour in range(5):
        Image.new("RGB", (3, 2), (colour, 0, 0)).save(tmp_path / f"{colour}.bmp")
        os.utime(tmp_path / f"{colour}.bmp", (0, 0))
    before = make(tmp_path).fingerprint
    assert make(tmp_path).fingerprint == before
    Image.new("RGB", (3, 2), (9, 9, 9)).save(tmp_path / f"{changed}.bmp")
    os.utime(tmp_path / f"{changed}.bmp", (0, 0))
    assert make(tmp_path).fingerprint != before


@pytest.mark.parametrize(("size", "place"), [(10, 5), (2**16, 2**16 - 1), (2**16 + 9, 2**16 + 3), (10**6, 10**6 - 1)])
def test_the_beginning_and_the_end_of_a_file_count(tmp_path, size, place):
    before = fed([write(tmp_path / "x", bytes(size))])
    for where in (0, place):
        content = bytearray(size)
        content[where] = 1
        assert fed([write(tmp_path / "x", content)]) != before


def test_no_more_than_the_ends_of_twenty_files_are_read(tmp_path):
    files = [write(tmp_path / f"{i:03d}", bytes(3 * 2**16)) for i in range(100)]
    before = fed(files)
    middle = bytearray(3 * 2**16)
    middle[2**16 : 2**17] = b"x" * 2**16
    write(files[0], middle)
    assert fed(files) == before
    for file in set(files) - set(evenly_spaced(files)):
        file.unlink()
    assert fed(files) == before


def test_no_files_are_fine():
    assert fed([]) == hashlib.sha256().hexdigest()


@given(st.integers(1, 5000))
def test_the_chosen_ones_are_spread_from_the_first_to_the_last(n):
    chosen = evenly_spaced(range(n))
    assert len(chosen) == len(set(chosen)) == min(n, 20)
    assert (chosen[0], chosen[-1]) == (0, n - 1)
    steps = {after - before for before, after in pairwise(chosen)}
    assert not steps or max(steps) - min(steps) <= 1


def test_a_file_that_cannot_be_opened_is_not_passed_over(tmp_path, monkeypatch):
    file = write(tmp_path / "x", b"1")
    file.unlink()
    with pytest.raises(OSError, match="x"):
        fed([file])
