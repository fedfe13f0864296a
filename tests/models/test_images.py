"""`models.images`: the right pixels with the right labels in a fixed order, and a sentence for every broken file."""

import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flatfold.core.errors import TooManyPixels, UnreadableImage
from flatfold.models.extract import extract
from flatfold.models.folders import find_images
from flatfold.models.images import ArrayImages, FolderImages, NpzImages, Transform, read_image

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


def colours(source):
    batches = [batch[0] if isinstance(batch, tuple) else batch for batch in source]
    return [round(value) for batch in batches for value in (batch[:, 0, 0, 0] * 255).tolist()]


CLASSES = ["cat/b.png", "cat/sub/a.PNG", "ant/c.png", "bee/d.bmp", "bee/e.png"]


def test_sub_folders_give_labels_in_the_order_of_their_names(tmp_path):
    source = FolderImages(make_folder(tmp_path, CLASSES), PLAIN, batch_size=2)
    assert source.classes == ("ant", "bee", "cat")
    assert colours(source) == [2, 3, 4, 0, 1]
    assert torch.cat([y for _, y in source]).tolist() == [0, 1, 1, 2, 2]
    assert source.paths == ("ant/c.png", "bee/d.bmp", "bee/e.png", "cat/b.png", "cat/sub/a.PNG")
    assert (source.rows, len(source)) == (5, 3)


def test_a_flat_folder_gives_no_labels(tmp_path):
    source = FolderImages(str(make_folder(tmp_path, ["b.png", "a.png"])), PLAIN)
    assert source.labels is None
    assert source.classes == ()
    assert colours(source) == [1, 0]


def test_a_source_can_be_iterated_again(tmp_path):
    source = FolderImages(make_folder(tmp_path, CLASSES), PLAIN, batch_size=2)
    assert colours(source) == colours(source)


def test_hidden_files_and_files_of_other_kinds_are_left_out(tmp_path):
    make_folder(tmp_path, ["a/x.png", "a/.x.png", ".git/x.png"])
    (tmp_path / "a" / "notes.txt").write_text("")
    assert len(FolderImages(tmp_path, PLAIN).paths) == 1


def test_linked_folders_are_followed_but_not_in_circles(tmp_path):
    make_folder(tmp_path / "far", ["x.png"])
    make_folder(tmp_path / "root", ["a/y.png"])
    (tmp_path / "root" / "b").symlink_to(tmp_path / "far")
    (tmp_path / "root" / "a" / "up").symlink_to(tmp_path / "root")
    assert FolderImages(tmp_path / "root", PLAIN).labels.tolist() == [0, 1]


def slow_paths(root):
    """Slow and obvious: every file below ``root`` by the parts of its path, of those that are images and not hidden."""
    found = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    shown = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return tuple(path.as_posix() for path in sorted(shown, key=lambda path: path.parts) if path.suffix in (".png",))


TREES = st.lists(
    st.lists(st.sampled_from(["a", "a.b", "a-b", "a b", "b", "B", ".h", "é", "a\\b"]), max_size=3), max_size=9
)


@settings(deadline=None)
@given(folders=TREES, names=st.lists(st.sampled_from(["a.png", "a", "b.png", ".c.png", "d.png.", "é.png"])))
def test_files_are_sorted_by_the_parts_of_their_paths(tmp_path_factory, folders, names):
    root = tmp_path_factory.mktemp("tree")
    (root / "z.png").touch()
    for folder, name in zip(folders, names, strict=False):
        root.joinpath(*folder).mkdir(parents=True, exist_ok=True)
        if not root.joinpath(*folder, name).exists():
            root.joinpath(*folder, f"{name}.png" if name == "a" else name).touch()
    assert find_images(root) == slow_paths(root)


def test_a_folder_comes_where_its_own_name_belongs(tmp_path):
    names = ["a/z.png", "a-b/y.png", "a.png", "a/b/x.png", "b.png"]
    make_folder(tmp_path, names)
    assert find_images(tmp_path) == ("a/b/x.png", "a/z.png", "a-b/y.png", "a.png", "b.png")


def test_links_that_lead_nowhere_are_named_when_they_are_read_and_hinder_no_other(tmp_path):
    make_folder(tmp_path, ["y.png"])
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing")
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    source = FolderImages(tmp_path, PLAIN)
    assert source.paths == ("gone.png", "self.png", "y.png")
    assert [tuple(x.shape) for x in source.attempt(range(3))[0]] == [(3, 4, 5)]
    assert list(source.attempt(range(3))[1]) == [0, 1]


def test_a_folder_that_cannot_be_opened_is_not_passed_over(tmp_path, monkeypatch):
    make_folder(tmp_path, ["a/x.png", "b/y.png"])
    real = os.scandir

    def scandir(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match=r"Permission denied: .*b'"):
        FolderImages(tmp_path, PLAIN)


def test_a_name_that_is_no_utf_8_is_read_like_any_other(tmp_path):
    make_folder(tmp_path, ["cat/x.png"])
    odd = os.fsencode(tmp_path / "cat") + b"/\xff.png"
    try:
        shutil.copy(os.fsencode(tmp_path / "cat/x.png"), odd)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes only names in UTF-8")
    source = FolderImages(tmp_path, PLAIN)
    assert source.paths == ("cat/x.png", "cat/\udcff.png")
    assert source.read(range(2))[0].shape == (2, 3, 4, 5)
    assert source.name(1) == os.fsdecode(odd)
    assert len(source.fingerprint) == 64


def test_many_files_take_little_memory(tmp_path):
    for number in range(4000):
        (tmp_path / f"{number:06d}.png").touch()
    tracemalloc.start()
    try:
        paths = find_images(tmp_path)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(paths) == 4000
    assert kept < 4000 * 110  # 59 bytes for the name, 8 for its place; a Path takes more than 400
    assert most < 4000 * 300


def test_images_beside_class_folders_are_refused_unless_labels_are_not_wanted(tmp_path):
    make_folder(tmp_path, ["a/x.png", "y.png"])
    with pytest.raises(
        ValueError, match=r"either images or one sub-folder per class, but has both: y.png .* labels=False"
    ):
        FolderImages(tmp_path, PLAIN)
    source = FolderImages(tmp_path, PLAIN, labels=False)
    assert (source.rows, source.labels, source.classes) == (2, None, ())


def test_an_empty_class_folder_is_refused_because_it_would_shift_labels(tmp_path):
    make_folder(tmp_path, ["a/x.png", "c/x.png"])
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=r"every class folder of .* must hold an image, but 'b' has none\. Remove it"):
        FolderImages(tmp_path, PLAIN)


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"holds no image: no file ends in \.bmp, .*\. Check the path"):
        FolderImages(tmp_path, PLAIN)


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(NotADirectoryError, match=r"images are read from a folder, but .*none does not exist"):
        FolderImages(tmp_path / "none", PLAIN)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"file is a file\. Check the path"):
        FolderImages(tmp_path / "file", PLAIN)


@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.gif", "x.tif", "x.webp", "x.bmp"])
def test_a_truncated_image_is_named(tmp_path, name):
    noise = Image.fromarray(make_pixels(1, 64, 64)[0])
    noise.save(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(UnreadableImage, match=f"{name} could not be read as an image: .*replace or remove the file"):
        list(FolderImages(tmp_path, PLAIN))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a"], ids=str)
def test_a_file_that_is_no_image_is_named(tmp_path, content):
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(UnreadableImage, match=r"x.png could not be read as an image"):
        read_image(tmp_path / "x.png")


def test_a_file_of_a_kind_that_starts_another_program_is_no_image(tmp_path, monkeypatch):
    started = []
    for name in ("Popen", "check_call", "call", "run"):
        monkeypatch.setattr(subprocess, name, lambda *args, **how: started.append(args))
    path = tmp_path / "x.png"
    Image.new("RGB", (3, 2)).save(path, "EPS")
    with pytest.raises(
        UnreadableImage, match=r"x\.png could not be read as an image: it has the form of no known kind"
    ):
        read_image(path)
    with pytest.raises(
        UnreadableImage, match=r"x\.png could not be read as an image: it has the form of no known kind"
    ):
        list(FolderImages(tmp_path, PLAIN))
    assert started == []


@pytest.mark.parametrize("kind", ["ICO", "TGA", "JPEG2000", "PCX"])
def test_other_kinds_of_images_are_not_read(kind):
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, kind)
    with pytest.raises(UnreadableImage, match="form of no known kind of image"):
        read_image(file)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
@pytest.mark.parametrize("mode", ["L", "1"])
def test_an_image_is_known_by_its_bytes_and_not_by_its_name(tmp_path, kind, mode):
    image = Image.new("L" if kind == "WEBP" else mode, (7, 5), 255)
    image.save(tmp_path / "x.png", kind)
    read = read_image(tmp_path / "x.png")
    assert (read.size, read.convert("L").getextrema()) == ((7, 5), (255, 255))


def test_the_first_picture_of_a_phone_is_read(tmp_path):
    first, second = Image.new("RGB", (9, 6), (200, 0, 0)), Image.new("RGB", (3, 2))
    first.save(tmp_path / "x.jpg", "MPO", save_all=True, append_images=[second])
    image = read_image(tmp_path / "x.jpg")
    assert (image.format, image.size) == ("MPO", (9, 6))
    assert abs(image.getpixel((4, 3))[0] - 200) < 4


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def declared(width, height):
    """A PNG that declares a size and has no pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(101, 10), (1, 1001), (12_000, 9_000), (60_000, 50_000)])
@pytest.mark.parametrize("path", [True, False])
def test_an_image_that_declares_too_many_pixels_is_refused_with_its_size(tmp_path, width, height, path):
    (tmp_path / "x.png").write_bytes(declared(width, height))
    file = tmp_path / "x.png" if path else io.BytesIO(declared(width, height))
    with pytest.raises(
        TooManyPixels,
        match=rf"^upload could not be read as an image: it declares {width} x {height} pixels, and at most 1000 are "
        r"read\. Scale it down\.$",
    ):
        read_image(file, "upload", most_pixels=1000)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF"])
def test_sizes_of_nearly_every_kind_are_known_where_pillow_does_not_open_the_file(monkeypatch, kind):
    file = io.BytesIO()
    Image.new("RGB", (40, 30)).save(file, kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(TooManyPixels, match=r"declares 40 x 30 pixels, and at most 1199 are read"):
        read_image(file, most_pixels=1199)
    with pytest.raises(TooManyPixels, match=r"exceeds limit of 200 pixels, could be decompression bomb"):
        read_image(file, most_pixels=1200)


def test_a_size_that_pillow_does_not_tell_is_too_many_pixels_as_well(monkeypatch):
    file = io.BytesIO()
    Image.new("RGB", (40, 30)).save(file, "WEBP")  # which compares the size itself, in some versions
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(TooManyPixels, match=r"declares 40 x 30 pixels|\(1200 pixels\) exceeds limit of 200 pixels"):
        read_image(file, most_pixels=1199)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)
    with pytest.raises(TooManyPixels, match=r"declares 40 x 30 pixels, and at most 1199 are read"):
        read_image(file, most_pixels=1199)


def test_too_many_pixels_are_not_decoded(monkeypatch):
    def load(image):
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(TooManyPixels):
        read_image(io.BytesIO(declared(40, 30)), most_pixels=1199)


def test_as_many_pixels_as_are_allowed_are_read():
    file = io.BytesIO()
    Image.new("RGB", (40, 30)).save(file, "PNG")
    assert read_image(file, most_pixels=1200).size == (40, 30)


@settings(deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM", b"II*\x00", b"P6 "]),
)
def test_any_bytes_are_an_image_or_unreadable(noise, start):
    with suppress(UnreadableImage):
        assert isinstance(read_image(io.BytesIO(start + noise)), Image.Image)


def test_bytes_that_are_no_image_are_called_by_the_name_given():
    with pytest.raises(UnreadableImage, match=r"^upload\.jpg could not be read as an image"):
        read_image(io.BytesIO(b"hello"), "upload.jpg")


@pytest.mark.filterwarnings("ignore")  # so that it is not pytest that turns the warning into an error
def test_an_image_meant_to_fill_the_memory_is_refused(tmp_path, monkeypatch):
    make_folder(tmp_path, ["x.png"], size=(30, 30))
    for limit in (800, 100):  # Pillow warns above the limit and raises above twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(TooManyPixels, match=r"x.png could not be read as an image: .*decompression bomb"):
            read_image(tmp_path / "x.png")
        with pytest.raises(UnreadableImage, match=r"x.png could not be read as an image: .*decompression bomb"):
            list(FolderImages(tmp_path, PLAIN))


def test_an_open_file_is_read():
    file = io.BytesIO()
    Image.new("L", (3, 2)).save(file, "PNG")
    assert read_image(file).size == (3, 2)


def test_images_of_several_sizes_need_a_transform_that_makes_them_equal(tmp_path):
    make_folder(tmp_path, ["a.png", "aa.png"])
    make_folder(tmp_path, ["b.png", "c.png"], size=(8, 8))
    with pytest.raises(
        ValueError,
        match=r"one size, got \(h, w\) = \(4, 5\) for .*a\.png and \(8, 8\) for .*b\.png\. Give the transform",
    ):
        list(FolderImages(tmp_path, PLAIN))
    (x,) = FolderImages(tmp_path, Transform(resize=4, crop=4))
    assert x.shape == (4, 3, 4, 4)


def test_an_image_the_transform_refuses_is_named(tmp_path):
    make_folder(tmp_path, ["a.png"])
    with pytest.raises(ValueError, match=r"a.png: a crop of 9 needs an image at least that large"):
        list(FolderImages(tmp_path, Transform(crop=9)))
    with pytest.raises(ValueError, match="image 0: a crop of 9 needs"):
        list(ArrayImages(make_pixels(), None, Transform(crop=9)))


def rename(root):
    (root / "bee" / "e.png").rename(root / "bee" / "f.png")


def move(root):
    (root / "bee" / "e.png").rename(root / "ant" / "e.png")


def grow(root):
    with (root / "bee" / "e.png").open("ab") as file:
        file.write(b"\0")


def remove(root):
    (root / "bee" / "e.png").unlink()


def edit(root):
    """Other pixels in a file of the same size."""
    os.utime(root / "bee" / "e.png", (0, 0))


@pytest.mark.parametrize("change", [rename, move, grow, remove, edit])
def test_the_fingerprint_of_a_folder_changes_with_its_files(tmp_path, change):
    make_folder(tmp_path, CLASSES)
    before = FolderImages(tmp_path, PLAIN).fingerprint
    change(tmp_path)
    assert FolderImages(tmp_path, PLAIN).fingerprint != before


def test_the_fingerprint_of_a_folder_depends_on_nothing_else(tmp_path):
    make_folder(tmp_path / "one", CLASSES)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one = FolderImages(tmp_path / "one", PLAIN, batch_size=2)
    assert one.fingerprint == FolderImages(tmp_path / "two", PLAIN, batch_size=3).fingerprint
    assert one.fingerprint != FolderImages(tmp_path / "one", Transform(crop=2)).fingerprint
    assert one.fingerprint != FolderImages(tmp_path / "one", PLAIN, labels=False).fingerprint


@pytest.mark.parametrize("count", [3, 45])
def test_the_fingerprint_of_a_folder_is_that_of_the_banks_on_disk(tmp_path, count):
    """Written out: what stands in the manifests of banks must stay what it is."""
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


@pytest.mark.parametrize("gone", ["a.png", "b.png"])
def test_a_file_that_is_gone_changes_the_fingerprint_and_stops_nothing(tmp_path, gone):
    folder = make_folder(tmp_path, ["a.png", "b.png"])
    before, source = FolderImages(folder, PLAIN).fingerprint, FolderImages(folder, PLAIN)
    (tmp_path / gone).unlink()
    assert source.fingerprint != before


def save_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("grey", [False, True])
def test_npz_images_come_with_their_labels(tmp_path, grey):
    pixels, y = make_pixels(grey=grey), np.arange(7, dtype=np.uint8)
    source = NpzImages(save_npz(tmp_path / "d.npz", x=pixels, y=y, more=y), PLAIN, batch_size=3)
    x = torch.cat([x for x, _ in source])
    expected = torch.from_numpy(np.stack([pixels] * 3, 1) if grey else pixels.transpose(0, 3, 1, 2)) / 255
    assert torch.equal(x, expected)
    assert torch.cat([labels for _, labels in source]).tolist() == list(range(7))
    assert (source.rows, len(source)) == (7, 3)


def test_names_of_the_arrays_can_be_chosen_and_labels_left_out(tmp_path):
    path = save_npz(tmp_path / "d.npz", images=make_pixels(), classes=np.arange(7))
    assert NpzImages(path, PLAIN, x="images", y="classes").labels.tolist() == list(range(7))
    assert NpzImages(path, PLAIN, x="images", y=None).labels is None


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_missing_array_is_named_with_those_that_are_there(tmp_path, name):
    arrays = {"x": make_pixels(), "y": np.arange(7), "z": np.arange(2)}
    arrays.pop(name)
    present = ", ".join(map(repr, arrays))
    with pytest.raises(
        ValueError, match=rf"d.npz has no array '{name}'; it has {present}\. Pass x='\.\.\.' for the images"
    ):
        NpzImages(save_npz(tmp_path / "d.npz", **arrays), PLAIN)


def test_a_npz_with_pickled_objects_is_refused(tmp_path):
    path = save_npz(tmp_path / "d.npz", x=np.array([{}], dtype=object), y=np.arange(1))
    with pytest.raises(ValueError, match=r"must be a \.npz file of plain arrays: .*allow_pickle"):
        NpzImages(path, PLAIN)


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none.npz\. Check the path"):
        NpzImages(tmp_path / "none.npz", PLAIN)
    np.save(tmp_path / "d.npy", make_pixels())
    np.savez_compressed(tmp_path / "e.npz", x=np.zeros((50, 8, 8), np.uint8), y=np.arange(50))
    data = bytearray((tmp_path / "e.npz").read_bytes())
    (tmp_path / "cut.npz").write_bytes(data[:100])
    start = 30 + sum(struct.unpack("<HH", data[26:30]))  # behind the header, the name and the extra field
    data[start] = 0xFF  # a block of a type that does not exist
    (tmp_path / "altered.npz").write_bytes(data)
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("d.npy", "cut.npz", "altered.npz", "empty.npz"):
        with pytest.raises(
            ValueError, match=rf"{name} must be a \.npz file of plain arrays: .* Write it with numpy.savez"
        ):
            NpzImages(tmp_path / name, PLAIN)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (make_pixels() / 255, None, ValueError, r"images must be a uint8 array of shape .* got float64"),
        (make_pixels()[0, 0], None, ValueError, r"got uint8 of shape \(5, 3\)"),
        (make_pixels()[:0], None, ValueError, r"with n > 0, got uint8 of shape \(0, 4, 5, 3\)"),
        (make_pixels(), np.arange(6), ValueError, r"labels must have shape \(7,\)"),
        (make_pixels(), np.arange(7.0), TypeError, "labels must be integer class indices, got float64"),
        (make_pixels(), np.arange(7) - 1, ValueError, "labels must be class indices from 0, got -1"),
    ],
)
def test_arrays_of_another_kind_are_refused(x, y, error, message):
    with pytest.raises(error, match=message):
        ArrayImages(x, y, PLAIN)


def test_the_fingerprint_of_arrays_is_that_of_their_contents(tmp_path):
    x, y = make_pixels(), np.arange(7)
    before = ArrayImages(x, y, PLAIN).fingerprint
    assert NpzImages(save_npz(tmp_path / "d.npz", x=x, y=y), PLAIN, batch_size=2).fingerprint == before
    assert ArrayImages(np.asfortranarray(x), y.astype(np.int32), PLAIN).fingerprint == before
    changed = x.copy()
    changed[6, 3, 4, 2] ^= 1
    others = [
        ArrayImages(changed, y, PLAIN),
        ArrayImages(x, y[::-1], PLAIN),
        ArrayImages(x, None, PLAIN),
        ArrayImages(x, y, Transform(mean=(0, 0, 1))),
        ArrayImages(x.reshape(7, 5, 4, 3), y, PLAIN),
    ]
    assert len({before, *(other.fingerprint for other in others)}) == 6


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None])
def test_a_batch_size_that_is_no_positive_number_is_refused(size):
    with pytest.raises(ValueError, match="batch_size must be a positive whole number"):
        ArrayImages(make_pixels(), None, PLAIN, size)


@settings(deadline=None)
@given(n=st.integers(1, 30), size=st.integers(1, 12), data=st.data())
def test_batches_from_given_rows_lie_on_the_grid_and_cover_them(n, size, data):
    source = ArrayImages(np.arange(n, dtype=np.uint8).reshape(n, 1, 1), None, PLAIN, size)
    starts = data.draw(st.lists(st.integers(0, n), max_size=3))
    ranges = [range(start, data.draw(st.integers(start, n))) for start in starts]
    wanted = {row for rows in ranges for row in rows}
    got = [(rows[0], colours([source.read(rows)])) for rows in source.touched(ranges)]
    expected = [list(range(i, min(i + size, n))) for i in range(0, n, size)]
    assert got == [(rows[0], rows) for rows in expected if wanted & set(rows)]


def test_a_folder_is_extracted_with_its_labels(tmp_path):
    make_folder(tmp_path, CLASSES)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 3))
    bank, _ = extract(model, FolderImages(tmp_path, PLAIN, batch_size=2))
    assert [round(value) for value in (bank.features[:, 0] * 255).tolist()] == [2, 3, 4, 0, 1]
    assert bank.labels.tolist() == [0, 1, 1, 2, 2]


def test_a_table_calls_an_image_by_its_file_or_its_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "photos", ["b/x y.png", "a/z.png"])
    save_npz("d.npz", x=make_pixels(), y=np.arange(7))
    folder, npz, array = (
        FolderImages("photos", PLAIN),
        NpzImages("d.npz", PLAIN),
        ArrayImages(make_pixels(), None, PLAIN),
    )
    shutil.rmtree(tmp_path / "photos")  # a name is told without a look at the image
    assert [folder.name(row) for row in (0, 1)] == [
        os.path.join("photos", *p) for p in (("a", "z.png"), ("b", "x y.png"))
    ]
    assert [npz.name(0), npz.name(6), npz.name(-1)] == ["d.npz:0", "d.npz:6", "d.npz:6"]
    assert NpzImages(tmp_path / "d.npz", PLAIN).name(3) == f"{tmp_path / 'd.npz'}:3"
    assert [array.name(0), array.name(6), array.name(-1)] == ["image 0", "image 6", "image 6"]
    for source in (folder, npz, array):
        with pytest.raises(IndexError):
            source.name(7)


def test_errors_call_an_image_of_a_file_of_arrays_by_its_number(tmp_path):
    source = NpzImages(save_npz(tmp_path / "d.npz", x=make_pixels(), y=np.arange(7)), Transform(crop=9))
    with pytest.raises(ValueError, match=r"^image 0: a crop of 9 needs"):
        list(source)
