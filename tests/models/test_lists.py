"""`models.lists`: the images and classes of a list in its order, and the line of every mistake."""

import os
import pathlib
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flatfold.core.errors import UnreadableImage
from flatfold.models.images import Transform
from flatfold.models.lists import ListImages
from flatfold.models.picked import PickedImages

PLAIN = Transform()
NAMES = ["cat/b.png", "ant/a.png", "cat/c.png", "bee/.hidden.png", "d.bmp"]
LABELS = [2, 0, 2, 1, 7]


def make_root(root, names=NAMES):
    """Write one small image per name; its colour is its position in the list."""
    for value, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4), (value, value, value)).save(root / name)
    return root


def make_list(path, names=NAMES, labels=LABELS, end="\n"):
    path.write_bytes("".join(f"{n} {y}{end}" for n, y in zip(names, labels, strict=True)).encode())
    return path


@pytest.fixture
def root(tmp_path):
    return make_root(tmp_path / "images")


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
    source = ListImages(make_list(tmp_path / "l.txt", names, labels), root, PLAIN, batch_size=4)
    x, y = (torch.cat(parts) for parts in zip(*source, strict=True))
    assert (x[:, 0, 0, 0] * 255).round().tolist() == [4, 0, 1, 2, 3, 0]
    assert y.dtype == torch.int64
    assert y.tolist() == labels
    assert (source.rows, len(source), source.paths) == (6, 2, tuple(names))
    name, image = source.picture(1)
    assert (name, image.getpixel((0, 0))) == (str(root / "cat/b.png"), (0, 0, 0))


def test_paths_may_be_words_and_labels_may_be_ignored(tmp_path, root):
    path = make_list(tmp_path / "l.txt", labels=[-1, 5, -1, -1, 0])
    source = ListImages(str(path), str(root), PLAIN, labels=False)
    assert source.labels is None
    assert [tuple(x.shape) for x in source] == [(5, 3, 4, 5)]


def test_labels_need_a_class_on_every_line(given_list):
    with pytest.raises(
        ValueError,
        match=r"list\.txt:3: labels must be class indices from 0, got -1, which marks an image of no class\. "
        "Pass labels=False",
    ):
        given_list(b"a.png 0\n\nb.png -1\n", labels=True)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\r\n \t\r\n"], ids=repr)
def test_line_ends_and_blank_lines_do_not_matter(tmp_path, root, end):
    plain = ListImages(make_list(tmp_path / "plain.txt"), root, PLAIN)
    other = ListImages(make_list(tmp_path / "other.txt", end=end), root, PLAIN)
    assert other.paths == plain.paths
    assert other.labels.tolist() == LABELS
    assert other.fingerprint == plain.fingerprint


def test_the_last_line_needs_no_end_and_the_first_may_have_a_byte_order_mark(given_list):
    source = given_list(b"\xef\xbb\xbfa.png 3\nb.png 4", labels=True)
    assert (source.paths, source.labels.tolist()) == (("a.png", "b.png"), [3, 4])


def test_space_around_a_label_does_not_matter(given_list):
    assert given_list(b"a.png  3 \nb.png \t4\t", labels=True).labels.tolist() == [3, 4]


@pytest.mark.parametrize(
    "line",
    [
        "my cat.png 3",
        "a.png",
        "a.png\t3",
        "a.png ",
        " a.png 3",
        "a.png 3.0",
        "a.png 1_0",
        "a.png ٣",
        "a.png --1",
        "a.png 3 4",
        "a.png 99999999999999999999",
        "a.png {'x': 1}",
    ],
)
def test_a_line_of_another_form_is_named(given_list, line):
    with pytest.raises(ValueError, match=r"list\.txt:2: a line must be .* split at the first space, got ") as caught:
        given_list(f"b.png 1\n{line}\n".encode(), labels=True)
    assert f"got {line!r}. Rename images that have a space in their path." in str(caught.value)


def test_a_long_line_is_cut_in_the_message(given_list):
    with pytest.raises(ValueError, match="got '" + "x" * 80 + r"\.\.\.'\. Rename"):
        given_list(b"x" * 5000, labels=True)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("a.png", "a.png"),
        ("my photo.jpg", "my photo.jpg"),
        ("my cat.png 3", "my cat.png 3"),
        ("sub/my photo of 3 cats.jpg", "sub/my photo of 3 cats.jpg"),
        ("a.png 3", "a.png"),
        ("a.png  -1 ", "a.png"),
        ("a.png 3.0", "a.png 3.0"),
        ("a.png\t3", "a.png\t3"),
        ("a.png \t ", "a.png"),
        (" a.png", " a.png"),
        ("a.png 99999999999999999999", "a.png 99999999999999999999"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", ""], ids=repr)
def test_without_labels_a_line_may_be_a_path_as_a_whole(given_list, line, path, end):
    assert given_list(f"b.png\n{line}{end}".encode()).paths == ("b.png", path)


def test_a_number_without_a_path_is_refused_with_and_without_labels(given_list):
    for labels in (True, False):
        with pytest.raises(ValueError, match=r"list\.txt:1: a line must be '<relative path> <whole number>'"):
            given_list(b" 3\n", labels)


def test_images_of_a_plain_list_are_read(tmp_path):
    names = ["my photo.png", "cat/a b c.png", "plain.png"]
    root = make_root(tmp_path / "images", names)
    (tmp_path / "l.txt").write_bytes("\r\n".join(names).encode())
    (x,) = ListImages(tmp_path / "l.txt", root, PLAIN, labels=False)
    assert (x[:, 0, 0, 0] * 255).round().tolist() == [0, 1, 2]


def test_a_plain_path_must_lead_downwards_from_a_root_that_was_given(given_list):
    for name in ("/my photo.png", "my photo/../../x.png"):
        with pytest.raises(
            ValueError, match=r"list\.txt:1: a path must lead from root downwards, without '\.\.', got '"
        ):
            given_list(name.encode())


@pytest.mark.parametrize("labels", [True, False])
def test_without_a_root_paths_start_beside_the_list_and_may_be_absolute(tmp_path, root, labels, monkeypatch):
    (root / "lists").mkdir()
    names = ["../cat/b.png", str(root / "ant/a.png"), "c.png"]
    shutil.copy(root / NAMES[2], root / "lists" / "c.png")
    path = make_list(root / "lists" / "l.txt", names, [3, 1, 2])
    source = ListImages(path, None, PLAIN, labels=labels)
    assert (source.root, source.paths, source.missing()) == (root / "lists", tuple(names), [])
    x = next(iter(source))[0] if labels else next(iter(source))
    assert (x[:, 0, 0, 0] * 255).round().tolist() == [0, 1, 2]
    assert [source.name(row) for row in range(3)] == [str(root / "lists" / name) for name in names]
    assert source.name(1) == str(root / "ant/a.png")
    monkeypatch.chdir(root / "lists")
    assert ListImages("l.txt", None, PLAIN, labels=labels).name(2) == "c.png"
    assert ListImages("l.txt", None, PLAIN, labels=labels).fingerprint == source.fingerprint


def test_a_list_that_is_not_there_is_told_without_a_root_too(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no list of images .*l\.txt\. Check the path"):
        ListImages(tmp_path / "none" / "l.txt", None, PLAIN)


def test_an_image_is_called_by_its_path_without_a_look_at_it(tmp_path, root):
    source = ListImages(make_list(tmp_path / "l.txt", ["none/x.png", *NAMES[1:]]), root, PLAIN)
    assert [source.name(0), source.name(-1)] == [str(root / "none/x.png"), str(root / "d.bmp")]
    picked = PickedImages(source, np.array([4, 0]))
    assert [picked.name(0), picked.name(1)] == [str(root / "d.bmp"), str(root / "none/x.png")]
    with pytest.raises(IndexError):
        source.name(5)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.png", "a/../../x.png", "a/../x.png", ".."])
@pytest.mark.parametrize("labels", [True, False])
def test_a_path_that_does_not_lead_downwards_from_root_is_refused(given_list, name, labels):
    with pytest.raises(
        ValueError,
        match=r"list\.txt:2: a path must lead from root downwards, without '\.\.', got '.*'\. Write it relative",
    ):
        given_list(f"a.png 0\n{name} 1\n".encode(), labels)


def test_dots_and_colons_inside_a_name_are_no_way_out(given_list):
    assert given_list(b"./a..b/c...png 1\n12:30.png 1\n").paths == ("./a..b/c...png", "12:30.png")


@pytest.mark.parametrize("content", [b"", b"\n \n\r\n"], ids=repr)
def test_a_list_without_a_line_is_refused(given_list, content):
    with pytest.raises(ValueError, match=r"list\.txt must name at least one image, but all of its lines are blank"):
        given_list(content)


@pytest.mark.parametrize("text", ["straße.png 1\n".encode("latin-1"), "a.png 1\n".encode("utf-16")], ids=repr)
def test_a_list_in_another_encoding_is_refused(given_list, text):
    with pytest.raises(ValueError, match=r"list\.txt must be text in UTF-8, but is not: .*can't decode.* Save it in"):
        given_list(text)


def test_a_list_or_root_that_is_not_there_is_refused(tmp_path, root):
    with pytest.raises(FileNotFoundError, match=r"there is no list of images .*none\.txt\. Check the path"):
        ListImages(tmp_path / "none.txt", root, PLAIN)
    with pytest.raises(FileNotFoundError, match=r"there is no list of images .*images\. Check the path"):
        ListImages(root, root, PLAIN)
    path = make_list(tmp_path / "l.txt")
    with pytest.raises(NotADirectoryError, match=r"paths of a list start in a folder, but .*none does not exist\."):
        ListImages(path, tmp_path / "none", PLAIN)
    with pytest.raises(NotADirectoryError, match=r"l\.txt is a file\. Check the path"):
        ListImages(path, path, PLAIN)


def test_images_that_are_not_there_are_told_on_demand_and_not_before(tmp_path, root):
    names = [*NAMES, "none.png", "cat", "null\0byte.png", "y" * 300, "none.png"]
    source = ListImages(make_list(tmp_path / "l.txt", names, range(10)), root, PLAIN)
    assert source.missing() == names[5:]
    for row in range(5, 10):
        with pytest.raises(UnreadableImage, match=r"could not be read as an image: .*replace or remove the file"):
            source.picture(row)
    assert ListImages(make_list(tmp_path / "l.txt"), root, PLAIN).missing() == []


def test_no_image_is_asked_for_before_it_is_needed(tmp_path, root, monkeypatch):
    path = make_list(tmp_path / "l.txt")
    asked = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda file, **how: asked.append(pathlib.Path(file)) or real(file, **how))
    source = ListImages(path, root, PLAIN)
    assert not [file for file in asked if file.suffix != ".txt" and file != root]
    asked.clear()
    source.missing()
    assert asked == [root / name for name in NAMES]


@pytest.mark.parametrize("content", [b"", b"no image", "half"], ids=str)
def test_a_damaged_image_is_named_when_it_is_read(tmp_path, root, content):
    file = root / NAMES[2]
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[:4000] if content == "half" else content)
    source = ListImages(make_list(tmp_path / "l.txt"), root, PLAIN)
    with pytest.raises(UnreadableImage, match=r"c\.png could not be read as an image"):
        source.picture(2)
    assert source.picture(1)[1].size == (5, 4)


def grow(root):
    """More bytes, written at the same time."""
    time = (root / NAMES[0]).stat().st_mtime_ns
    with (root / NAMES[0]).open("ab") as file:
        file.write(b"\0")
    os.utime(root / NAMES[0], ns=(time, time))


def touch(root):
    os.utime(root / NAMES[0], (0, 0))


def remove(root):
    (root / NAMES[0]).unlink()


@pytest.mark.parametrize("change", [grow, touch, remove])
def test_the_fingerprint_changes_with_the_files(tmp_path, root, change):
    path = make_list(tmp_path / "l.txt")
    before = ListImages(path, root, PLAIN).fingerprint
    change(root)
    assert ListImages(path, root, PLAIN).fingerprint != before


def test_the_fingerprint_changes_with_the_list(tmp_path, root):
    swapped = [NAMES[1], NAMES[0], *NAMES[2:]]
    lists = [(NAMES, LABELS), (NAMES[:4], LABELS[:4]), (swapped, LABELS), (NAMES, [*LABELS[:4], 6])]
    sources = [ListImages(make_list(tmp_path / f"{i}.txt", *each), root, PLAIN) for i, each in enumerate(lists)]
    absent = [ListImages(make_list(tmp_path / name, [name], [0]), root, PLAIN) for name in ("x", "y")]
    sources += absent
    path = make_list(tmp_path / "again.txt")
    sources += [ListImages(path, root, PLAIN, labels=False), ListImages(path, root, Transform(crop=2))]
    assert len({source.fingerprint for source in sources}) == len(sources)


def test_the_fingerprint_depends_on_nothing_else(tmp_path, root):
    shutil.copytree(root, tmp_path / "copy")
    for place in (root, tmp_path / "copy"):
        (place / NAMES[3]).unlink()
    one = ListImages(make_list(tmp_path / "one.txt"), root, PLAIN, batch_size=2)
    two = ListImages(make_list(tmp_path / "two.txt"), tmp_path / "copy", PLAIN, batch_size=3)
    assert one.fingerprint == two.fingerprint


def test_a_source_can_be_sent_to_another_process_and_picked_from(tmp_path, root):
    source = pickle.loads(pickle.dumps(ListImages(make_list(tmp_path / "l.txt"), root, PLAIN)))  # noqa: S301 - our own
    (pair,) = PickedImages(source, np.array([4, 1]))
    assert (pair[0][:, 0, 0, 0] * 255).round().tolist() == [4, 1]
    assert pair[1].tolist() == [7, 0]


PARTS = st.text(st.characters(codec="utf-8", exclude_characters=" /\\\n\r:\0\ufeff."), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.lists(PARTS, min_size=1, max_size=3), st.integers(0, 10**18 - 1)), min_size=1, max_size=6))
def test_what_is_written_is_read(tmp_path_factory, entries):
    folder = tmp_path_factory.mktemp("lists")
    names, labels = ["/".join(parts) for parts, _ in entries], [label for _, label in entries]
    source = ListImages(make_list(folder / "l.txt", names, labels), folder, PLAIN)
    assert source.paths == tuple(names)
    assert source.labels.tolist() == labels
