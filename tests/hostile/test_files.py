"""Files that are not what their names say: images, arrays, tables, suites, banks, monitors and methods as texts.

Each trial reads a file that was changed, or another thing in its place. It is refused by a sentence of a documented
type, soon and without much memory, or it is read.
"""

import io
import json
import os
import random
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow.parquet import write_table
from safetensors.torch import save
from torch import nn

import flatfold as ff
from flatfold.data.feature_files import open_features, read_head
from flatfold.data.images import open_images
from flatfold.data.text_files import open_texts
from flatfold.errors import UnreadableImageError
from flatfold.evaluate.suites.toml_file import SuiteFile
from flatfold.network.model_loading import read_weights
from tests.four_classes import known, make_model
from tests.hostile.test_result_files import bind_socket, link_to
from tests.refusals import SENTENCES, outcome, refused
from tests.toy_suite import World, toml

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*(exceeds limit|EXIF|header parsing|Truncated)")]

TRANSFORM = ff.Transform(resize=8, crop=8)
H, LABELS = np.random.default_rng(0).random((30, 4)).astype("f4"), np.arange(30) % 3
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 12, 10, 3), dtype="u1")


def written(write):
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def image(kind="PNG", mode="RGB", picture=None, **options):
    return written(lambda file: (picture or Image.fromarray(PIXELS[0]).convert(mode)).save(file, kind, **options))


# Images


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, depth=8, colours=0, content=b"", more=b""):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + more + chunk(b"IDAT", zlib.compress(content, 9)) + chunk(b"IEND", b"")


def rotated(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return image("JPEG", exif=exif)


GREY16 = Image.fromarray(np.arange(120, dtype="u2").reshape(12, 10) * 500)
OTHERS = [Image.fromarray(PIXELS[number]) for number in (1, 2)]
READ = {
    "16 bits of three colours": png(10, 12, 16, 2, b"".join(b"\0" + bytes(range(60)) for _ in range(12))),
    **{f"{mode} in {kind}": image(kind, mode) for kind, mode in (
        ("JPEG", "CMYK"), ("TIFF", "CMYK"), ("TIFF", "LAB"), ("TIFF", "YCbCr"), ("PNG", "LA"), ("PNG", "1"),
        ("PNG", "P"), ("PNG", "RGBA"), ("JPEG", "L"),
    )},
    "transparent palette": image("PNG", "P", transparency=b"\0\1\2"),
    **{f"animated {kind}": image(kind, save_all=True, append_images=OTHERS, lossless=True)
       for kind in ("GIF", "WEBP", "PNG", "TIFF")},
    **{f"orientation {number}": rotated(number) for number in (0, 6, 9, 65535)},
    "broken EXIF": image("JPEG", exif=b"Exif\0\0" + b"\xff" * 50),
    "data behind the pixels": png(4, 4, content=b"\0" * 10**7),
}  # fmt: skip
UNREADABLE = {
    "nothing": b"",
    **{f"16 bits in {kind}": image(kind, picture=GREY16) for kind in ("PNG", "TIFF")},
    "floats": image("TIFF", picture=Image.fromarray(H)),
    "a large PNG": png(60_000, 60_000),
    "a PNG without end": png(2**31 - 1, 2**31 - 1),
    "a PNG of one bit": png(13_000, 13_000, 1, content=b"\0" * 10**6),
    "a large text": png(4, 4, content=b"\0" * 20, more=chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 10**7, 9))),
    "a large profile": png(4, 4, content=b"\0" * 20, more=chunk(b"iCCP", b"a\0\0" + zlib.compress(b"x" * 10**7, 9))),
    "no width": png(0, 5),
    "a large GIF": b"GIF89a" + struct.pack("<HHBBB", *[65535] * 2, 0, 0, 0) + b"," + b"\0" * 4 + b"\xff" * 4 + b"\0;",
    "a large PPM": b"P6 60000 60000 255\n",
    "a large number": b"P3 10 12 255\n" + b"9" * 10**6,
    "a BMP upside down": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, -10, -(2**31), 1, 24, *[0] * 6),
    "a TIFF of many tags": b"II*\0\x08\0\0\0\xff\xff" + b"\xff" * 2000,
    "a TIFF in a circle": b"II*\0\x08\0\0\0\0\0\x08\0\0\0",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
}  # fmt: skip


def prepared(path):
    return open_images(path, TRANSFORM, labels=False).read(range(1))


@pytest.mark.parametrize("name", [*READ, *UNREADABLE])
def test_images_of_all_kinds(tmp_path, name):
    (tmp_path / "x.png").write_bytes((READ | UNREADABLE)[name])
    if name in READ:
        assert prepared(tmp_path / "x.png").shape == (1, 3, 8, 8)
    else:
        with refused(name, "x.png", UnreadableImageError):
            prepared(tmp_path / "x.png")


def test_an_image_is_the_first_of_several_and_as_it_lies_in_the_file(tmp_path):
    for name, content in READ.items():
        if name.startswith(("animated", "orientation")):
            kind = "JPEG" if name.startswith("orientation") else name.split()[1]
            for path, data in (("a.png", content), ("b.png", image(kind, lossless=True))):
                (tmp_path / path).write_bytes(data)
            assert torch.allclose(prepared(tmp_path / "a.png"), prepared(tmp_path / "b.png"), atol=0.02), name


NAMES = [
    "x" * 251 + ".png",
    os.fsdecode(b"\xff\xfe\x80.png"),
    "new\nline\x1b[2J.png",
    " .png",
    "'$(ls)`.PNG",
    "\u202e.png",
]


def test_files_have_names_of_all_kinds(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(image())
    assert sorted(open_images(tmp_path, TRANSFORM, labels=False).paths) == sorted(NAMES)
    assert len(open_images(tmp_path, TRANSFORM, labels=False).read(range(len(NAMES)))) == len(NAMES)
    for path in (str(tmp_path / ("x" * 300 + ".png")), f"{tmp_path}/a\0b.png", f"{tmp_path}/\ud800.png", ""):
        for data in (path, [path]):
            with refused(data, error=SENTENCES):
                list(ff.as_batches(data, transform=TRANSFORM))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_images_that_are_cut_or_changed_are_unreadable_or_read(tmp_path, kind):
    whole, r, cut = image(kind), random.Random(0), 0
    for trial in range(60):
        content = bytearray(whole)
        if trial % 2:
            for _ in range(r.choice([1, 8])):
                content[r.randrange(len(content))] ^= 1 << r.randrange(8)
        else:
            del content[r.randrange(len(content)) :]
        (tmp_path / "x.png").write_bytes(content)
        try:
            assert prepared(tmp_path / "x.png").shape == (1, 3, 8, 8)
        except UnreadableImageError:
            cut += 1
    assert cut > 20


# Other things in the place of files

PLACES = {
    "a pipe": os.mkfifo,
    "a device": link_to("/dev/zero"),
    "a socket": bind_socket,
    "a folder": os.mkdir,
    "nothing": Path.touch,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a dead link": link_to("nothing"),
}
OPENERS = {
    "f.npy": open_features,
    "f.npz": open_features,
    "f.safetensors": open_features,
    "h.safetensors": read_head,
    **{f"i.{ending}": prepared for ending in ("npz", "parquet", "txt", "png")},
    **{
        f"t.{ending}": lambda path: open_texts(path, lambda texts: None)
        for ending in ("csv", "jsonl", "parquet", "txt")
    },
    "s.toml": SuiteFile,
    "g.safetensors": lambda path: ff.Guard.load(path, nn.Linear(4, 3)),
    "m.json": ff.Monitor.load,
    "bank": ff.load_bank,
    "w.pt": read_weights,
    "w.safetensors": read_weights,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", OPENERS)
def test_what_is_no_file_is_refused(tmp_path, name):
    for kind, make in PLACES.items():
        path = tmp_path / f"{kind.replace(' ', '')}.{name}"
        make(path)
        with refused((name, kind), error=(*SENTENCES, OSError)):
            OPENERS[name](path)


# Changes of valid files


def changed(content, changes):
    """Return a content after some changes: (place, kind, value), the place as a share of the first bytes or of all."""
    content = bytearray(content)
    for place, near, kind, value in changes:
        start = int(place * min(len(content), near))
        if kind == "flip":
            content[start : start + 1] = bytes(byte ^ (1 << value % 8) for byte in content[start : start + 1])
        elif kind == "cut":
            del content[start:]
        elif kind == "insert":
            content[start:start] = [b"9" * 20, b"\0" * 8, b"(" * 300, b"[", b"'", b"-1", b"{"][value % 7]
        elif kind == "length":
            content[start : start + 8] = [2**31, 2**40, 2**62, 2**63, 2**64 - 1][value % 5].to_bytes(8, "little")
        else:
            content[start : start + 4] = content[value : value + 4]
    return bytes(content)


CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from([32, 200, 10**6]),
        st.sampled_from(["flip", "cut", "insert", "length", "copy"]),
        st.integers(0, 200),
    ),
    min_size=1,
    max_size=4,
)
ENCODED = [written(lambda file, each=each: Image.fromarray(each).save(file, "PNG")) for each in PIXELS]


def table(column, **options):
    values = {"image": column, "label": [0, 1, 2] * 2}
    return written(lambda file: write_table(arrow.table(values), file, **options))


def suite_of(path):
    SuiteFile(path).suites()


def rows_of(path):
    list(open_features(path).chunks(7))
    open_features(path).bank()


def images_of(path):
    list(open_images(path, TRANSFORM, 2, labels=True))


VALID = {
    "npy": (rows_of, [written(lambda file: np.save(file, H)), written(lambda file: np.save(file, H.astype(">f8").T))]),
    "npz": (rows_of, [written(lambda file, save=save: save(file, features=H, labels=LABELS))
                      for save in (np.savez, np.savez_compressed)]),
    "safetensors": (rows_of, [save({"features": torch.from_numpy(H), "labels": torch.from_numpy(LABELS)})]),
    "head": (read_head, [save({"weight": torch.from_numpy(H[:3]), "bias": torch.zeros(3)})]),
    "pixels.npz": (images_of, [written(lambda file: np.savez(file, x=PIXELS, y=LABELS[:6]))]),
    "parquet": (images_of, [table(ENCODED), table(ENCODED, compression="none", use_dictionary=False),
                            table([{"bytes": each, "path": "a"} for each in ENCODED], compression="zstd")]),
    "txt": (images_of, [b"a.png 0\nb.png 1\n"]),
}  # fmt: skip


@pytest.mark.parametrize("ending", VALID)
def test_files_with_changes_are_refused_or_read(tmp_path, ending):
    read, contents = VALID[ending]

    @given(content=st.sampled_from(contents), changes=CHANGES)
    @settings(max_examples=40, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def attempt(content, changes):
        path = tmp_path / f"x.{ending}"
        path.unlink(missing_ok=True)
        path.write_bytes(changed(content, changes))
        outcome(lambda: read(path), changes)

    attempt()


def test_files_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("flatfold.data.tables.LARGEST_GROUP", 2**20)  # a quick test instead of a large one
    zeros = np.zeros((300, 100, 100), "u1")
    np.savez_compressed(tmp_path / "f.npz", features=zeros.reshape(300, -1).astype("f4"))
    np.savez_compressed(tmp_path / "x.npz", x=zeros, y=np.zeros(300, int))
    empty = arrow.table({"image": [b"\0" * 10**4] * 300, "label": [0] * 300})
    write_table(empty, tmp_path / "x.parquet", compression="zstd", use_dictionary=False)
    for name, read in (("f.npz", rows_of), ("x.npz", images_of), ("x.parquet", images_of)):
        with refused(name, "MB in memory"):
            read(tmp_path / name)
    declared = written(lambda file: np.save(file, H)).replace(b"(30, 4), }", b"(3" + b"0" * 11 + b", 4), }")
    (tmp_path / "f.npy").write_bytes(declared)
    with refused("f.npy", "f.npy"):
        rows_of(tmp_path / "f.npy")


WRONG = [
    None,
    -1,
    0,
    3,
    10**30,
    0.5,
    float("inf"),
    True,
    "",
    "a",
    "../../x",
    "\x00",
    "\u202e" * 50,
    "x" * 200,
    [],
    [[]],
    {},
]


def test_suites_with_other_values_are_refused_or_read(tmp_path):
    world = World(tmp_path)
    valid = json.dumps(world.document)
    trials = 0
    for section in world.document:
        entries = world.document[section][0] if isinstance(world.document[section], list) else world.document[section]
        for key in (*entries, "more"):
            for value in WRONG:
                document = json.loads(valid)
                place = document[section][0] if isinstance(document[section], list) else document[section]
                place[key] = value
                try:
                    text = toml(document)
                except (TypeError, ValueError):
                    continue
                trials += 1
                world.path.write_text(text.replace("Infinity", "inf"), errors="replace")
                outcome(lambda: suite_of(world.path), (section, key, value))
    assert trials > 150
    for text in (
        "[" * 5000,
        "a = " + "[" * 50_000,
        "a = " + "9" * 5000,
        "\0",
        "=",
        "[[network]]\n" * 3000,
        "a.b.c.d = 1",
    ):
        world.path.write_text(text)
        with refused(text):
            suite_of(world.path)


@given(changes=CHANGES)
@settings(max_examples=60, deadline=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_suite_files_with_changes_are_refused_or_read(tmp_path_factory, changes):
    world = World(tmp_path_factory.mktemp("suite"))
    world.path.write_bytes(changed(toml(world.document).encode(), changes))
    outcome(lambda: suite_of(world.path), changes)


# Banks and monitors


def test_banks_with_changes_are_refused_or_equal_and_runs_resume(tmp_path):
    model, x, y, r = nn.Linear(4, 3).eval(), torch.from_numpy(H), torch.from_numpy(LABELS), random.Random(0)
    batches = [(x[start : start + 5], y[start : start + 5]) for start in range(0, 30, 5)]
    good, _ = ff.extract(model, batches, out=tmp_path / "good", key="k", shard_rows=6)
    ended = []
    for trial in range(100):
        shutil.rmtree(tmp_path / "bank", ignore_errors=True)
        shutil.copytree(tmp_path / "good", tmp_path / "bank")
        path = r.choice(sorted((tmp_path / "bank").iterdir()))
        content = path.read_bytes()
        if trial % 4 == 0:
            path.write_bytes(content[: r.randrange(len(content))])
        elif trial % 4 == 1:
            path.write_bytes(changed(content, [(r.random(), 10**6, r.choice(["flip", "length", "insert"]), trial)]))
        elif trial % 4 == 2:
            shutil.copy(r.choice(sorted((tmp_path / "good").iterdir())), path)
        else:
            path.unlink()
        loaded = outcome(lambda: ff.load_bank(tmp_path / "bank"), (trial, path.name))
        resumed = outcome(
            lambda: ff.extract(model, batches, out=tmp_path / "bank", key="k", shard_rows=6), (trial, path.name)
        )
        for bank in (loaded, resumed and resumed[0]):
            assert bank is None or (torch.equal(bank.features, good.features) and torch.equal(bank.labels, good.labels))
        ended.append(resumed is not None)
    assert sum(ended) > 60


def test_monitors_with_changes_are_refused_or_consistent(tmp_path):
    guard = ff.Guard.fit(make_model().eval(), known(200), method="ebo")
    monitor, r, path = guard.monitor(known(50)[0]), random.Random(0), tmp_path / "m.json"
    monitor.save(path)
    content, valid = path.read_bytes(), monitor.to_dict()

    def use(other):
        assert other.alarms <= other.seen
        return str(other), other.groups, other.drift_p_value, repr(other.histogram()), (other + other).seen

    for trial in range(100):
        changes = [(r.random(), 10**6, r.choice(["flip", "cut", "insert", "length", "copy"]), trial)]
        path.write_bytes(changed(content, changes))
        outcome(lambda: use(ff.Monitor.load(path)), changes)
    for key in (*valid, "more"):
        for value in (
            *WRONG[:10],
            2**53,
            [0],
            [2**53 - 1] * 3,
            *([each] * len(valid["edges"]) for each in (0, 2**52, None)),
        ):
            outcome(lambda key=key, value=value: use(ff.Monitor.from_dict({**valid, key: value})), (key, value))
