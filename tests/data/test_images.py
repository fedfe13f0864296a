"""Images from folders, lists, arrays and any path: pixels and labels in a fixed order, and clear errors."""

import errno
import hashlib
import io
import json
import os
import pickle
import shutil
import socket
import struct
import subprocess
import zlib
from contextlib import chdir, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from flatfold import FolderImages, Loading, Transform, UnreadableImageError, extract
from flatfold.data import ListImages, NpzImages, TableImages
from flatfold.data.images import ArrayImages, open_images, read_image
from flatfold.data.sources import ImageSubset
from flatfold.errors import TooManyPixelsError
from tests.refusals import refused

PLAIN = Transform()


def make_pixels(n=7, h=4, w=5, grey=False):
    return np.random.default_rng(n).integers(0, 256, (n, h, w) if grey else (n, h, w, 3), dtype=np.uint8)


def make_folder(root, names, size=(5, 4)):
    """Write one small image per name; its colour is its position in the list."""
    for value, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (value, value, value)).save(path)
    return root


def encoded(kind="PNG", size=(40, 30), value=0):
    file = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(file, kind)
    return file


def colours(source):
    batches = [batch[0] if isinstance(batch, tuple) else batch for batch in source]
    return [round(value) for batch in batches for value in (batch[:, 0, 0, 0] * 255).tolist()]


CLASSES = ["cat/b.png", "cat/sub/a.PNG", "ant/c.png", "bee/d.bmp", "bee/e.png"]


def test_sub_folders_give_labels_in_the_order_of_their_names(tmp_path):
    source = FolderImages(make_folder(tmp_path, CLASSES), PLAIN, batch_size=2)
    assert source.classes == ("ant", "bee", "cat")
    assert colours(source) == colours(source) == [2, 3, 4, 0, 1]
    assert torch.cat([y for _, y in source]).tolist() == [0, 1, 1, 2, 2]
    assert source.paths == ("ant/c.png", "bee/d.bmp", "bee/e.png", "cat/b.png", "cat/sub/a.PNG")
    assert (source.rows, len(source)) == (5, 3)
    bank, _ = extract(nn.Sequential(nn.Flatten(), nn.Linear(60, 3)), source)
    assert [round(value) for value in (bank.features[:, 0] * 255).tolist()] == [2, 3, 4, 0, 1]
    assert bank.labels.tolist() == [0, 1, 1, 2, 2]


def test_a_flat_folder_gives_no_labels(tmp_path):
    source = FolderImages(str(make_folder(tmp_path, ["b.png", "a.png", ".c.png"])), PLAIN)
    assert (source.labels, source.classes, colours(source)) == (None, (), [1, 0])


def slow_paths(root):
    """Slow and obvious: every file below ``root`` by the parts of its path, of those that are images and not hidden."""
    found = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    shown = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return tuple(path.as_posix() for path in sorted(shown, key=lambda path: path.parts) if path.suffix in (".png",))


TREES = st.lists(
    st.lists(st.sampled_from(["a", "a.b", "a-b", "a b", "b", "B", ".h", "é", "a\\b"]), max_size=3), max_size=9
)


@given(folders=TREES, names=st.lists(st.sampled_from(["a.png", "a", "b.png", ".c.png", "d.png.", "é.png"])))
def test_files_are_sorted_by_the_parts_of_their_paths(tmp_path_factory, folders, names):
    root = tmp_path_factory.mktemp("tree")
    (root / "z.png").touch()
    for folder, name in zip(folders, names, strict=False):
        root.joinpath(*folder).mkdir(parents=True, exist_ok=True)
        if not root.joinpath(*folder, name).exists():
            root.joinpath(*folder, f"{name}.png" if name == "a" else name).touch()
    assert FolderImages(root, PLAIN, labels=False).paths == slow_paths(root)


def test_linked_folders_are_followed_but_not_in_circles_and_dead_links_are_unreadable(tmp_path):
    make_folder(tmp_path / "far", ["x.png"])
    root = make_folder(tmp_path / "root", ["a/y.png"])
    (root / "b").symlink_to(tmp_path / "far")
    for link in ("a/up", "self.png"):
        (root / link).symlink_to(root if link == "a/up" else root / link)
    (root / "gone.png").symlink_to(tmp_path / "nothing")
    source = FolderImages(root, PLAIN, labels=False)
    assert source.paths == ("a/y.png", "b/x.png", "gone.png", "self.png")
    read, failed = source.attempt(range(4))
    assert (read.shape, list(failed)) == ((2, 3, 4, 5), [2, 3])


def test_a_folder_that_cannot_be_opened_is_not_passed_over(tmp_path, monkeypatch):
    make_folder(tmp_path, ["a/x.png", "b/y.png"])
    real = os.scandir

    def scandir(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="b'"):
        FolderImages(tmp_path, PLAIN)


def test_a_folder_of_another_form_is_refused(tmp_path):
    both = make_folder(tmp_path / "both", ["a/x.png", "y.png"])
    hole = make_folder(tmp_path / "hole", ["a/x.png", "c/x.png"])
    for place in (hole / "b", tmp_path / "nothing"):
        place.mkdir()
    (tmp_path / "nothing" / "notes.txt").write_text("")
    for path, keyword, error in [
        (both, "both: y.png", ValueError),
        (hole, "'b' has none", ValueError),  # an empty class would shift the labels behind it
        (tmp_path / "nothing", "no image", ValueError),
        (tmp_path / "none", "does not exist", NotADirectoryError),
        (both / "y.png", "is a file", NotADirectoryError),
    ]:
        with refused(path, keyword, error):
            FolderImages(path, PLAIN)
    source = FolderImages(both, PLAIN, labels=False)
    assert (source.rows, source.labels, source.classes) == (2, None, ())


def test_images_of_several_sizes_need_a_transform_that_makes_them_equal(tmp_path):
    make_folder(tmp_path, ["a.png", "aa.png"])
    make_folder(tmp_path, ["b.png", "c.png"], size=(8, 8))
    with pytest.raises(ValueError, match=r"\(4, 5\) for .*a\.png and \(8, 8\) for .*b\.png"):
        list(FolderImages(tmp_path, PLAIN))
    (x,) = FolderImages(tmp_path, Transform(resize=4, crop=4))
    assert x.shape == (4, 3, 4, 4)
    large = Transform(crop=9)
    with pytest.raises(ValueError, match=r"a\.png: a crop"):
        list(FolderImages(tmp_path, large))
    with pytest.raises(ValueError, match="image 0: a crop"):
        list(ArrayImages(make_pixels(), None, large))


def grow(file):
    """More bytes, written at the same time."""
    time = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes() + b"\0")
    os.utime(file, ns=(time, time))


def repaint(file):
    """Other pixels in a file of the same size and time."""
    time, size = file.stat().st_mtime_ns, file.stat().st_size
    Image.new("RGB", (5, 4), (99, 9, 9)).save(file)
    os.utime(file, ns=(time, time))
    assert file.stat().st_size == size


CHANGES = [grow, repaint, Path.unlink, lambda file: os.utime(file, (0, 0))]


def test_the_fingerprint_of_a_folder_changes_with_its_files_and_with_nothing_else(tmp_path):
    one, two = make_folder(tmp_path / "one", [*CLASSES, "bee/f.bmp"]), tmp_path / "two"
    shutil.copytree(one, two)
    before = FolderImages(one, PLAIN, batch_size=2).fingerprint
    assert before == FolderImages(two, PLAIN, batch_size=3).fingerprint
    assert before != FolderImages(one, Transform(crop=2)).fingerprint
    assert before != FolderImages(one, PLAIN, labels=False).fingerprint
    moves = [lambda file: file.rename(file.with_name("g.bmp")), lambda file: file.rename(two / "ant" / "f.bmp")]
    for number, change in enumerate([*CHANGES, *moves]):
        shutil.rmtree(two)
        shutil.copytree(one, two)
        change(two / "bee" / "f.bmp")
        assert FolderImages(two, PLAIN).fingerprint != before, number
    source = FolderImages(one, PLAIN)
    (one / "bee" / "f.bmp").unlink()  # after the names were read
    assert source.fingerprint != before


@pytest.mark.parametrize("count", [3, 45])
def test_the_fingerprint_of_a_folder_is_that_of_the_banks_on_disk(tmp_path, count):
    make_folder(tmp_path, [f"{row % 2}/é{row}.png" for row in range(count)])
    paths = sorted(tmp_path.glob("*/*.png"), key=lambda path: path.parts)
    digest = hashlib.sha256(json.dumps(PLAIN.as_dict(), sort_keys=True).encode())
    for path in paths:
        status = path.stat()
        entry = [path.relative_to(tmp_path).as_posix(), status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(entry).encode())
    for step in range(min(count, 20)):
        chosen = paths[step if count <= 20 else step * (count - 1) // 19]
        digest.update(hashlib.sha256(chosen.read_bytes()).digest())
    digest.update(np.array([int(path.parent.name) for path in paths], "<i8").tobytes())
    assert FolderImages(tmp_path, PLAIN).fingerprint == digest.hexdigest()


def test_a_file_that_is_no_whole_image_is_named(tmp_path):
    noise = Image.fromarray(make_pixels(1, 64, 64)[0])
    for name in ("x.png", "x.jpg", "x.gif", "x.tif", "x.webp", "x.bmp"):
        noise.save(tmp_path / name)
        data = (tmp_path / name).read_bytes()
        for content in (data[: len(data) // 2], b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a"):
            (tmp_path / name).write_bytes(content)
            with refused((name, content), f"{name} could not be read", UnreadableImageError):
                list(FolderImages(tmp_path, PLAIN))
            with refused((name, content), "^upload could not be read", UnreadableImageError):
                read_image(io.BytesIO(content), "upload")
        (tmp_path / name).unlink()


def test_an_image_is_known_by_its_bytes_and_not_by_its_name(tmp_path, monkeypatch):
    for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        for mode in ("L", "1"):
            Image.new("L" if kind == "WEBP" else mode, (7, 5), 255).save(tmp_path / "x.png", kind)
            read = read_image(tmp_path / "x.png")
            assert (read.size, read.convert("L").getextrema()) == ((7, 5), (255, 255)), (kind, mode)
    first, second = Image.new("RGB", (9, 6), (200, 0, 0)), Image.new("RGB", (3, 2))
    first.save(tmp_path / "x.jpg", "MPO", save_all=True, append_images=[second])  # as phones write it
    image = read_image(tmp_path / "x.jpg")
    assert (image.format, image.size) == ("MPO", (9, 6))
    assert abs(image.getpixel((4, 3))[0] - 200) < 4
    started = []
    for name in ("Popen", "check_call", "call", "run"):
        monkeypatch.setattr(subprocess, name, lambda *args, **how: started.append(args))
    for kind in ("EPS", "ICO", "TGA", "JPEG2000", "PCX"):  # the first would start another program
        with refused(kind, "unknown image format", UnreadableImageError):
            read_image(encoded(kind))
    assert started == []


def scanned(count, side=40, inside=b"", behind=b""):
    """A progressive JPEG with a comment, whose last scan is repeated until there are ``count``."""
    out = io.BytesIO()
    Image.new("L", (side, side)).save(out, "JPEG", progressive=True)
    start, *scans = out.getvalue()[2:-2].split(b"\xff\xda")
    scans += [scans[-1]] * (count - len(scans))
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(inside)) + inside
    return io.BytesIO(b"\xff\xd8" + comment + b"\xff\xda".join([start, *scans]) + b"\xff\xd9" + behind)


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(monkeypatch):
    more = b"\xff\xda" * 200  # in a comment, or in a film behind the picture, they do not count
    for image in (scanned(6), scanned(100), scanned(20, 2000), scanned(30, inside=more), scanned(30, behind=more)):
        assert read_image(image).size in ((40, 40), (2000, 2000))
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.load", lambda image: pytest.fail("it was decoded"))
    for image in (scanned(101), scanned(21, 8000), scanned(101, inside=b"\xff\xd9")):
        with refused(image, "x.jpg .*(101 scans, .* is 100|21 scans, .* is 20)", TooManyPixelsError):
            read_image(image, "x.jpg")


@pytest.mark.skipif(os.name == "nt", reason="it has no such files")
def test_what_is_no_regular_file_is_unreadable_and_keeps_nobody_waiting(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    with socket.socket(socket.AF_UNIX) as bound, chdir(tmp_path):
        bound.bind("c.png")
    (tmp_path / "d.png").symlink_to("/dev/zero")
    batch, reasons = FolderImages(tmp_path, PLAIN).attempt(range(4))
    assert len(batch) == 1
    assert list(reasons) == [1, 2, 3]
    assert all("not a regular file" in reason for reason in reasons.values())


def declared(width, height):
    """A PNG that declares more pixels than it has."""
    data = bytearray(encoded().getvalue())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def test_an_image_that_declares_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    assert read_image(encoded(), most_pixels=1200).size == (40, 30)

    def load(image):
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    for width, height in [(101, 10), (1, 1001), (12_000, 9_000), (60_000, 50_000)]:
        (tmp_path / "x.png").write_bytes(declared(width, height))
        for file in (tmp_path / "x.png", io.BytesIO(declared(width, height))):
            keyword = f"upload .*({width} x {height}.* limit of 1000|decompression bomb)"  # whose limit is met first
            with refused((width, height), keyword, TooManyPixelsError):
                read_image(file, "upload", most_pixels=1000)


@pytest.mark.filterwarnings("ignore")  # so that it is not pytest that turns the warning into an error
def test_an_image_that_pillow_takes_for_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    make_folder(tmp_path, ["x.png"], size=(40, 30))
    for limit in (1100, 100):  # Pillow warns above the limit and raises above twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with refused(limit, "x.png .*(limit of 1100|decompression bomb)", TooManyPixelsError):
            read_image(tmp_path / "x.png")
    for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        with refused(kind, "40 x 30|limit of 200", TooManyPixelsError):  # some versions read WEBP sizes too late
            read_image(encoded(kind), most_pixels=1199)


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM", b"II*\x00", b"P6 "]),
)
def test_any_bytes_are_an_image_or_unreadable(noise, start):
    with suppress(UnreadableImageError):
        assert isinstance(read_image(io.BytesIO(start + noise)), Image.Image)


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


def test_an_error_of_the_system_says_nothing_about_the_image_and_names_the_file(tmp_path, failing):
    failing["name"] = "x.png"
    (tmp_path / "x.png").touch()
    for code in (errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOMEM, errno.ETIMEDOUT, errno.ESTALE):
        failing["error"] = OSError(code, os.strerror(code))
        with pytest.raises(OSError, match=r"\[Errno .*x\.png") as caught:
            read_image(tmp_path / "x.png")
        assert caught.value.errno == code
        assert pickle.loads(pickle.dumps(caught.value)).filename == str(tmp_path / "x.png")  # noqa: S301 - for a worker
    failing["error"] = MemoryError()
    with pytest.raises(MemoryError, match=r"x\.png"):
        read_image(tmp_path / "x.png")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_ends_at_an_error_of_the_system_and_goes_on_when_the_image_can_be_read(tmp_path, failing, workers):
    model = nn.Sequential(nn.Flatten(), nn.Linear(60, 2))
    source = FolderImages(make_folder(tmp_path / "images", [f"{i}.png" for i in range(6)]), PLAIN, batch_size=2)
    for error in (OSError(errno.EIO, "Input/output error"), MemoryError()):
        how = {
            "out": tmp_path / type(error).__name__,
            "shard_rows": 2,
            "loading": Loading(workers=workers, max_unreadable=1.0),
        }
        failing.update(name="4.png", error=error)
        with refused(error, r"^[^\n]*4\.png[^\n]*$", type(error)):  # a thread does not add its traceback
            extract(model, source, **how)
        failing["name"] = None
        assert len(extract(model, source, **how)[0]) == 6


def test_an_error_that_speaks_of_the_file_makes_it_unreadable(tmp_path):
    make_folder(tmp_path, ["0.png"])
    (tmp_path / "a.png").symlink_to(tmp_path / "b.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "a.png")
    # A TIFF whose first directory lies where no file can have bytes: the system calls that an invalid argument.
    (tmp_path / "x.tif").write_bytes(b"II+\0" + struct.pack("<HHQ", 8, 0, 2**63 - 1) + bytes(32))
    for name in ("none.png", "0.png/x.png", "", "a.png", "y" * 300, "x.tif"):
        with refused(name, "could not be read", UnreadableImageError):
            read_image(tmp_path / name)


def save_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_npz_images_come_with_their_labels(tmp_path):
    for grey in (False, True):
        pixels, y = make_pixels(grey=grey), np.arange(7, dtype=np.uint8)
        source = NpzImages(save_npz(tmp_path / "d.npz", x=pixels, y=y, more=y), PLAIN, batch_size=3)
        x = torch.cat([x for x, _ in source])
        expected = torch.from_numpy(np.stack([pixels] * 3, 1) if grey else pixels.transpose(0, 3, 1, 2)) / 255
        assert torch.equal(x, expected)
        assert torch.cat([labels for _, labels in source]).tolist() == list(range(7))
        assert (source.rows, len(source)) == (7, 3)
    path = save_npz(tmp_path / "d.npz", images=make_pixels(), classes=np.arange(7))
    assert NpzImages(path, PLAIN, x="images", y="classes").labels.tolist() == list(range(7))
    assert NpzImages(path, PLAIN, x="images", y=None).labels is None


def test_a_file_that_is_no_npz_of_images_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "e.npz", x=np.zeros((50, 8, 8), np.uint8), y=np.arange(50))
    data = bytearray((tmp_path / "e.npz").read_bytes())
    (tmp_path / "cut.npz").write_bytes(data[:100])
    data[30 + sum(struct.unpack("<HH", data[26:30]))] = 0xFF  # a block of a type that does not exist
    (tmp_path / "altered.npz").write_bytes(data)
    (tmp_path / "empty.npz").write_bytes(b"")
    save_npz(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.arange(1))
    for name in ("cut.npz", "altered.npz", "empty.npz", "objects.npz"):
        with refused(name, f"{name} must be a .npz file of plain arrays"):
            NpzImages(tmp_path / name, PLAIN)
    for name, other in ("xy", "yx"):
        with refused(name, f"no array '{name}'; .*'{other}'"):
            NpzImages(save_npz(tmp_path / "d.npz", **{other: make_pixels()}), PLAIN)


def test_arrays_and_batch_sizes_of_another_kind_are_refused():
    x = make_pixels()
    for pixels, labels, error, keyword in [
        (x / 255, None, ValueError, "float64"), (x[0, 0], None, ValueError, r"\(5, 3\)"),
        (x[:0], None, ValueError, "n > 0"), (x, np.arange(6), ValueError, r"shape \(7,\)"),
        (x, np.arange(7.0), TypeError, "integer"), (x, np.arange(7) - 1, ValueError, "-1"),
    ]:  # fmt: skip
        with refused(keyword, keyword, error):
            ArrayImages(pixels, labels, PLAIN)
    for size in (0, -1, 1.5, True, None):
        with refused(size, "batch_size"):
            ArrayImages(x, None, PLAIN, size)


def test_the_fingerprint_of_arrays_is_that_of_their_contents(tmp_path):
    x, y = make_pixels(), np.arange(7)
    before = ArrayImages(x, y, PLAIN).fingerprint
    assert NpzImages(save_npz(tmp_path / "d.npz", x=x, y=y), PLAIN, batch_size=2).fingerprint == before
    assert ArrayImages(np.asfortranarray(x), y.astype(np.int32), PLAIN).fingerprint == before
    changed = x.copy()
    changed[6, 3, 4, 2] ^= 1
    others = [(changed, y, PLAIN), (x, y[::-1], PLAIN), (x, None, PLAIN), (x.reshape(7, 5, 4, 3), y, PLAIN)]
    others.append((x, y, Transform(mean=(0, 0, 1))))
    assert len({before, *(ArrayImages(*other).fingerprint for other in others)}) == 6


NAMES = ["cat/b.png", "ant/a.png", "cat/c.png", "bee/.hidden.png", "d.bmp"]
LABELS = [2, 0, 2, 1, 7]


def make_list(path, names=NAMES, labels=LABELS, end="\n"):
    path.write_bytes("".join(f"{n} {y}{end}" for n, y in zip(names, labels, strict=True)).encode())
    return path


@pytest.fixture
def root(tmp_path):
    return make_folder(tmp_path / "images", NAMES)


@pytest.fixture
def given_list(tmp_path):
    """Return a function that writes bytes to a list and reads it."""

    def read(content, labels=False):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "list.txt").write_bytes(content)
        return ListImages(tmp_path / "list.txt", tmp_path / "images", PLAIN, labels=labels)

    return read


def test_images_and_labels_come_in_the_order_of_the_list(tmp_path, root):
    names, labels = [NAMES[4], *NAMES[:4], NAMES[0]], [7, *LABELS[:4], 5]
    made = ListImages(make_list(tmp_path / "l.txt", names, labels), root, PLAIN, batch_size=4)
    for source in (made, pickle.loads(pickle.dumps(made))):  # noqa: S301 - our own
        assert colours(source) == [4, 0, 1, 2, 3, 0]
        assert torch.cat([y for _, y in source]).tolist() == labels
        assert (source.rows, len(source), source.paths) == (6, 2, tuple(names))
        assert source.picture(1)[0] == source.name(-1) == str(root / "cat/b.png")
        assert colours(ImageSubset(source, np.array([0, 2]))) == [4, 1]
    unlabelled = make_list(tmp_path / "u.txt", labels=[-1, 5, -1, -1, 0])
    assert colours(ListImages(str(unlabelled), str(root), PLAIN, labels=False)) == list(range(5))


def test_line_ends_blank_lines_and_space_around_labels_do_not_matter(tmp_path, root, given_list):
    plain = ListImages(make_list(tmp_path / "plain.txt"), root, PLAIN)
    for end in ("\n", "\r\n", "\n\n", "\r\n \t\r\n"):
        other = ListImages(make_list(tmp_path / "other.txt", end=end), root, PLAIN)
        assert (other.paths, other.labels.tolist()) == (plain.paths, LABELS), repr(end)
        assert other.fingerprint == plain.fingerprint, repr(end)
    marked = given_list(b"\xef\xbb\xbfa.png  3 \nb.png \t4\t", labels=True)  # a byte order mark, and no last line end
    assert (marked.paths, marked.labels.tolist()) == (("a.png", "b.png"), [3, 4])
    assert given_list(b"./a..b/c...png 1\n12:30.png 1\n").paths == ("./a..b/c...png", "12:30.png")


def test_a_line_of_another_form_is_named(given_list):
    lines = ["my cat.png 3", "a.png", "a.png\t3", "a.png ", " a.png 3", "a.png 3.0", "a.png 1_0", "a.png ٣"]
    lines += ["a.png --1", "a.png 3 4", "a.png 99999999999999999999", "a.png {'x': 1}", "x" * 5000]
    for line in lines:
        with refused(line, "list.txt:2: a line must be"):
            given_list(f"b.png 1\n{line}\n".encode(), labels=True)
    with refused("no class", "list.txt:3: .*-1"):
        given_list(b"a.png 0\n\nb.png -1\n", labels=True)
    outside = ["/etc/passwd", "../x.png", "a/../../x.png", "a/../x.png", ".."]
    for labels in (True, False):
        with refused("no path", "list.txt:1: a line must be"):
            given_list(b" 3\n", labels)
        for name in outside:
            with refused((name, labels), "list.txt:2: .*relative to root"):
                given_list(f"a.png 0\n{name} 1\n".encode(), labels)
    for content, keyword in [
        (b"/my photo.png", "to root"), (b"my photo/../../x.png", "to root"), (b"", "at least one image"),
        (b"\n \n\r\n", "at least one image"), ("straße.png 1\n".encode("latin-1"), "UTF-8"),
        ("a.png 1\n".encode("utf-16"), "UTF-8"),
    ]:  # fmt: skip
        with refused(content, keyword):
            given_list(content)


def test_without_labels_a_line_may_be_a_path_as_a_whole(given_list):
    whole = ["a.png", "my photo.jpg", "my cat.png 3", "sub/my photo of 3 cats.jpg", "a.png 3.0", "a.png\t3", " a.png"]
    whole += ["a.png 99999999999999999999"]
    for line in [*whole, "a.png 3", "a.png  -1 ", "a.png \t "]:
        for end in ("\n", "\r\n", ""):
            path = line if line in whole else "a.png"
            assert given_list(f"b.png\n{line}{end}".encode()).paths == ("b.png", path), (line, end)


def test_without_a_root_paths_start_beside_the_list_and_may_be_absolute(tmp_path, root, monkeypatch):
    (root / "lists").mkdir()
    names = ["../cat/b.png", str(root / "ant/a.png"), "c.png"]
    shutil.copy(root / NAMES[2], root / "lists" / "c.png")
    path = make_list(root / "lists" / "l.txt", names, [3, 1, 2])
    source = ListImages(path, None, PLAIN)
    assert (source.root, source.paths, source.missing()) == (root / "lists", tuple(names), [])
    odd = ["none.png", "cat", "null\0byte.png", "y" * 300, "none.png"]
    other = ListImages(make_list(tmp_path / "odd.txt", [*NAMES, *odd], range(10)), root, PLAIN)
    assert other.missing() == odd
    assert colours(source) == colours(ListImages(path, None, PLAIN, labels=False)) == [0, 1, 2]
    assert [source.name(row) for row in range(3)] == [str(root / "lists" / name) for name in names]
    assert source.name(1) == str(root / "ant/a.png")
    monkeypatch.chdir(root / "lists")
    assert ListImages("l.txt", None, PLAIN).name(2) == "c.png"
    assert ListImages("l.txt", None, PLAIN).fingerprint == source.fingerprint
    for place, start, error in [
        (tmp_path / "none" / "l.txt", None, FileNotFoundError),
        (root, root, FileNotFoundError),
        (path, tmp_path / "none", NotADirectoryError),
        (path, path, NotADirectoryError),
    ]:
        with refused((place, start), "list|folder", error):
            ListImages(place, start, PLAIN)


def test_the_fingerprint_of_a_list_changes_with_list_and_files_and_with_nothing_else(tmp_path, root):
    swapped = [NAMES[1], NAMES[0], *NAMES[2:]]
    lists = [(NAMES, LABELS), (NAMES[:4], LABELS[:4]), (swapped, LABELS), (NAMES, [*LABELS[:4], 6])]
    lists += [(["x"], [0]), (["y"], [0])]  # which are not there
    sources = [ListImages(make_list(tmp_path / f"{i}.txt", *each), root, PLAIN) for i, each in enumerate(lists)]
    path, copy = tmp_path / "0.txt", tmp_path / "copy"
    sources += [ListImages(path, root, PLAIN, labels=False), ListImages(path, root, Transform(crop=2))]
    assert len({source.fingerprint for source in sources}) == len(sources)
    before = sources[0].fingerprint
    for number, change in enumerate([lambda file: None, *CHANGES]):
        shutil.copytree(root, copy)
        change(copy / "d.bmp")
        same = ListImages(make_list(tmp_path / "again.txt"), copy, PLAIN, batch_size=3).fingerprint == before
        assert same is (number == 0), number
        shutil.rmtree(copy)


PARTS = st.text(st.characters(codec="utf-8", exclude_characters=" /\\\n\r:\0\ufeff."), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.lists(PARTS, min_size=1, max_size=3), st.integers(0, 10**18 - 1)), min_size=1, max_size=6))
def test_what_is_written_to_a_list_is_read(tmp_path_factory, entries):
    folder = tmp_path_factory.mktemp("lists")
    names, labels = ["/".join(parts) for parts, _ in entries], [label for _, label in entries]
    source = ListImages(make_list(folder / "l.txt", names, labels), folder, PLAIN)
    assert source.paths == tuple(names)
    assert source.labels.tolist() == labels


def folder(root):
    return make_folder(root / "photos", ["b/x.png", "a/x.png", "c/x.png"])


def parquet(root, name="t.parquet", image="image", label="label"):
    images = [encoded(size=(5, 4), value=value).getvalue() for value in range(3)]
    pq.write_table(pa.table({image: pa.array(images, pa.binary()), label: [1, 0, 2]}), root / name)
    return root / name


def npz(root, x="x", y="y"):
    pixels = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 5, 3), np.uint8)
    return save_npz(root / "d.npz", **{x: pixels, y: np.array([1, 0, 2])})


def listed(root):
    folder(root)
    return make_list(root / "l.txt", [f"photos/{name}/x.png" for name in "bac"], [1, 0, 2])


KINDS = {folder: FolderImages, parquet: TableImages, npz: NpzImages, listed: ListImages}


@pytest.mark.parametrize("make", KINDS)
def test_every_path_is_opened_as_what_it_is_with_labels_where_they_are_wanted(tmp_path, make):
    place = make(tmp_path)
    for labels in (True, False):
        source = open_images(str(place) if labels else place, Transform(crop=2), 2, labels=labels)
        assert type(source) is KINDS[make]
        assert (source.rows, source.batch_size, source.transform) == (3, 2, Transform(crop=2))
        order = [1, 0, 2] if make is folder else [0, 1, 2]
        assert colours(source) == order
        assert (source.labels is None) is not labels
        assert not labels or source.labels.tolist() == [[1, 0, 2][value] for value in order]
    assert open_images(place, PLAIN, labels=False).batch_size == 64
    if make is not listed:
        with pytest.raises(ValueError, match="root"):
            open_images(place, PLAIN, labels=False, root=tmp_path)


def test_a_path_of_another_kind_is_refused(tmp_path):
    for name in ("none", "none.npz", "none.txt", "none.parquet", "none.png"):
        with refused(name, f"{name}: it does not exist", FileNotFoundError):
            open_images(tmp_path / name, PLAIN, labels=False)
    for name in ("x.csv", "x", "x.npy"):
        (tmp_path / name).write_bytes(encoded().getvalue())
        with refused(name, f"parquet, .*{name}"):
            open_images(tmp_path / name, PLAIN, labels=False)
    photos = folder(tmp_path)
    parquet(photos, "._t.parquet")  # a hidden file is not one of the table
    assert isinstance(open_images(photos, PLAIN, labels=True), FolderImages)
    parquet(photos)
    with pytest.raises(ValueError, match=r"both: t\.parquet"):
        open_images(photos, PLAIN, labels=False)
