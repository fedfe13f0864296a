"""Errors of the system while an image is read: they say nothing about it, so no image is left out because of them."""

import errno
import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import flatfold as ff
from flatfold.core.errors import UnreadableImage
from flatfold.models.images import FolderImages, read_image
from flatfold.models.manifest import read_manifest

PASSING = [errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOMEM, errno.ETIMEDOUT, errno.ESTALE]


def make_folder(root, n=6):
    root.mkdir()
    rng = np.random.default_rng(0)
    for row in range(n):
        Image.fromarray(rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)).save(root / f"{row}.png")
    return root


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))


@pytest.fixture
def failing(monkeypatch):
    """Let the file of one name fail to open with an error, until it is told not to."""
    state = {"name": None, "error": None}
    real = Image.open

    def opened(file, *args, **kwargs):
        if Path(str(file)).name == state["name"]:
            raise state["error"]
        return real(file, *args, **kwargs)

    monkeypatch.setattr(Image, "open", opened)
    return state


@pytest.mark.parametrize("code", PASSING, ids=errno.errorcode.get)
def test_an_error_of_the_system_stays_what_it_is_and_names_the_file(tmp_path, failing, code):
    failing.update(name="x.png", error=OSError(code, os.strerror(code)))
    with pytest.raises(OSError, match=r"\[Errno .*x\.png") as caught:
        read_image(tmp_path / "x.png")
    assert caught.value.errno == code
    assert pickle.loads(pickle.dumps(caught.value)).filename == str(tmp_path / "x.png")  # noqa: S301 - for a worker


def test_a_read_that_fails_half_way_names_the_file_as_it_is_called():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 8:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    content = io.BytesIO()
    Image.new("RGB", (3, 2)).save(content, "PNG")
    with pytest.raises(OSError, match=r"^\[Errno 5\] Input/output error: 'table, row 3'$"):
        read_image(Failing(content.getvalue()), "table, row 3")


def test_a_lack_of_memory_stays_one_and_names_the_file(tmp_path, failing):
    failing.update(name="x.png", error=MemoryError())
    with pytest.raises(MemoryError, match=r"x\.png could not be read: there was no memory left\. Try fewer workers"):
        read_image(tmp_path / "x.png")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()], ids=["EIO", "memory"])
def test_a_pass_ends_instead_of_leaving_the_image_out_and_goes_on_when_it_can_be_read(
    tmp_path, failing, error, workers
):
    source = FolderImages(make_folder(tmp_path / "images"), ff.Transform(), batch_size=2)
    failing.update(name="4.png", error=error)
    with pytest.raises(type(error), match=r"^[^\n]*4\.png[^\n]*$"):  # a worker does not add its traceback
        ff.extract(make_model(), source, out=tmp_path / "bank", shard_rows=2, unreadable=1.0, workers=workers)
    failing["name"] = None
    bank, _ = ff.extract(make_model(), source, out=tmp_path / "bank", shard_rows=2, unreadable=1.0, workers=workers)
    assert len(bank) == 6
    assert read_manifest(tmp_path / "bank").unreadable == {}


def not_there(root):
    return root / "none.png"


def below_a_file(root):
    return root / "0.png" / "x.png"


def a_folder(root):
    return root


def a_circle(root):
    (root / "a.png").symlink_to(root / "b.png")
    (root / "b.png").symlink_to(root / "a.png")
    return root / "a.png"


def too_long(root):
    return root / ("y" * 300)


def leading_out_of_itself(root):
    """A TIFF whose first directory lies where no file can have bytes: the system calls that an invalid argument."""
    (root / "x.tif").write_bytes(b"II+\0" + struct.pack("<HHQ", 8, 0, 2**63 - 1) + bytes(32))
    return root / "x.tif"


@pytest.mark.parametrize("make", [not_there, below_a_file, a_folder, a_circle, too_long, leading_out_of_itself])
def test_an_error_that_speaks_of_the_file_makes_it_unreadable(tmp_path, make):
    with pytest.raises(UnreadableImage, match="could not be read as an image"):
        read_image(make(make_folder(tmp_path / "images")))
