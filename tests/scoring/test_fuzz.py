"""Two thousand files that are almost guards: each gives a sentence, or a guard that says exactly what it should.

They are loaded in a process of their own, in which every attempt to run, import, connect or write is noted, and whose
memory can be looked at afterwards. ``python tests/scoring/test_fuzz.py`` does it by hand.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import flatfold as ff
from flatfold.scoring.artefact.strict_json import canonical
from flatfold.scoring.artefact.tensor_file import checksum

FILES = 2000
LONGEST = 300  # characters of a message, beside the path
SOURCES = {"fold": {}, "autofold": {"grid": [0.2, 0.5, 0.8]}, "knn": {"k": 3}, "mds": {}}
MEGABYTE = 2**20
CODE = "__import__('os').system('touch /tmp/executed')"
HOSTILE = (
    *(None, True, False, 0, -1, 3, 10**9, 10**18, -(10**18), 0.0, 0.5, -0.5, 1e308, 5e-324, 1e-9),
    *("", "fold", "a\nb", "\ud800", "\u202e" * 50, CODE, "../../etc/passwd", "x" * 5000, "NaN", "0" * 64, "__class__"),
    *([], [[]], [[[]]] * 20, [0.5] * 2000, ["x" * 400], {}, {"a": {"b": {"c": []}}}, {"__reduce__": [CODE]}, {"": ""}),
)
TEXTS = (
    *("null", "[]", "{}", "", " ", "{", '"guard"', CODE, "NaN", "[" * 900, "[" * 5000, "{" * 20000, '{"a":' * 3000),
    *("9" * 5000, '{"format": "flatfold-guard", "version": ' + "9" * 4000 + "}", '{"version": 1e999}', "[-Infinity]"),
    *('{"format": "flatfold-guard"}', '{"format": "flatfold-guard", "version": 2}', "\u0000", "\U0001f600" * 100),
)


def make_model():
    """Three classes, each recognised by two of six inputs."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight[:6] += torch.eye(6)
        model[2].weight[:, :6] += torch.eye(3).repeat(1, 2)
    return model


class Source:
    """A guard, its file and what it says."""

    def __init__(self, name, model, folder):
        g = torch.Generator().manual_seed(0)
        y = torch.arange(240) % 3
        x = torch.rand(240, 6, generator=g) + 2 * torch.eye(3).repeat(1, 2)[y]
        guard = ff.Guard.fit(model, [(x, y)], ff.create(name, **SOURCES[name]), 0.1, per_class=name == "mds")
        guard.save(folder / name)
        self.content = (folder / name).read_bytes()
        self.start = 8 + int.from_bytes(self.content[:8], "little")
        self.header = json.loads(self.content[8 : self.start])
        self.settings = json.loads(self.header["__metadata__"]["guard"])
        self.tensors = load(self.content)
        self.inputs = torch.cat([x[:20], 4 * torch.rand(20, 6, generator=g)])
        self.says = guard(self.inputs)

    def forged(self, settings, tensors):
        """Return a file with a checksum that is right for what is in it."""
        settings = {key: value for key, value in settings.items() if key != "sha256"}
        settings["sha256"] = checksum(canonical(settings), tensors)
        return save(tensors, {"guard": canonical(settings)})

    def with_header(self, header):
        front = header if isinstance(header, bytes) else json.dumps(header).encode()
        return len(front).to_bytes(8, "little") + front + self.content[self.start :]


def flipped(r, source, _):
    return flips(r, source.content, 0, len(source.content))


def flipped_header(r, source, _):
    return flips(r, source.content, 0, source.start)


def flipped_tensors(r, source, _):
    return flips(r, source.content, source.start, len(source.content))


def flips(r, content, low, high):
    changed = bytearray(content)
    for _ in range(r.choice([1, 1, 1, 2, 8])):
        changed[r.randrange(low, high)] ^= 1 << r.randrange(8)
    return bytes(changed)


def cut(r, source, _):
    return source.content[: r.randrange(len(source.content))]


def inserted(r, source, _):
    place = r.randrange(len(source.content) + 1)
    return source.content[:place] + r.randbytes(r.choice([1, 8, 100])) + source.content[place:]


def removed(r, source, _):
    place = r.randrange(len(source.content))
    return source.content[:place] + source.content[place + r.choice([1, 8, 100]) :]


def wrong_length(r, source, _):
    length = r.choice([0, 1, 2**31, 2**62, 2**63, 2**64 - 1, len(source.content), r.randrange(2 * source.start)])
    return length.to_bytes(8, "little") + source.content[8:]


def swapped_places(r, source, _):
    header = json.loads(json.dumps(source.header))
    one, other = r.sample(sorted(source.tensors), 2)
    header[one], header[other] = header[other], header[one]
    return source.with_header(header)


def swapped_tensors(r, source, _):
    tensors = dict(source.tensors)
    same = [(a, b) for a in tensors for b in tensors if a < b and tensors[a].shape == tensors[b].shape]
    one, other = r.choice(same) if same and r.random() < 0.5 else r.sample(sorted(tensors), 2)
    tensors[one], tensors[other] = tensors[other], tensors[one]
    return source.forged(source.settings, tensors)


def scaled_tensor(r, source, _):
    """Change one tensor that every verdict depends on, and everything but the self-test."""
    used = ["distances", "alpha_", "bank", "scale", "means", "whitening", "weight", "bias"]
    name = r.choice([name for name in sorted(source.tensors) if name.rpartition(".")[2] in used])
    factor = r.choice([0.0, -1.0, 0.9, 1.01, torch.nan, torch.inf, 1e30])
    return source.forged(source.settings, {**source.tensors, name: source.tensors[name] * factor})


def mixed(r, source, sources):
    """Put one tensor, or the settings, of another guard into this one."""
    other = r.choice(sources)
    if r.random() < 0.3:
        return source.forged(other.settings, source.tensors)
    name = r.choice(sorted(other.tensors))
    return source.forged(source.settings, {**source.tensors, name: other.tensors[name]})


def other_calibration(r, source, _):
    name = r.choice(["calibration.scores", "calibration.counts", "probe.features", "probe.scores"])
    tensor = source.tensors[name]
    value = r.choice([tensor.flip(-1), tensor + 1, tensor * 0, tensor[..., :-1].contiguous(), tensor.double(), -tensor])
    return source.forged(source.settings, {**source.tensors, name: value.contiguous()})


def hostile_place(r, source, _):
    header = json.loads(json.dumps(source.header))
    entry = header[r.choice(sorted(source.tensors))]
    huge = [2**28], [10**18], [2**32, 2**32], [0, 2**62], [-1], [1] * 1000, [1e18], ["3"], None, [], [[2]], [10**30]
    part = r.choice(["shape", "data_offsets", "both", "dtype"])
    if part == "both":
        entry |= {"shape": [2**28], "data_offsets": [0, 2**30]}
    else:
        entry[part] = r.choice(["F64", "BF16", "I8", "", 3, None, CODE]) if part == "dtype" else r.choice(huge)
    return source.with_header(header)


def hostile_setting(r, source, _):
    settings = dict(source.settings)
    settings[r.choice(sorted(set(settings) - {"sha256"}))] = r.choice(HOSTILE)
    return source.forged(settings, source.tensors)


def hostile_hyper(r, source, _):
    hyper = dict(source.settings["hyper"])
    names = ["alpha", "k", "grid", "seed", "max_classes", "percentile", "name", "preset", "self", "__init__", "*"]
    hyper[r.choice([*hyper, *names])] = r.choice(HOSTILE)
    return source.forged({**source.settings, "hyper": hyper}, source.tensors)


def hostile_transform(r, source, _):
    names = ["resize", "crop", "mean", "std", "mode", "interpolation", "more"]
    usual = {"resize": 8, "crop": 8, "mean": None, "std": None, "mode": "RGB", "interpolation": "bilinear"}
    return source.forged(
        {**source.settings, "transform": {**usual, r.choice(names): r.choice(HOSTILE)}}, source.tensors
    )


def other_keys(r, source, _):
    settings = dict(source.settings)
    if r.random() < 0.5:
        del settings[r.choice(sorted(settings))]
    else:
        settings[r.choice(["", "more", "\u00fc", CODE, "x" * 3000])] = r.choice(HOSTILE)
    return source.forged(settings, source.tensors)


def hostile_text(r, source, _):
    text = r.choice([*TEXTS, source.header["__metadata__"]["guard"].replace(": ", ":" + " " * r.randrange(2, 5), 1)])
    return source.with_header({**source.header, "__metadata__": {"guard": text}})


def hostile_header(r, source, _):
    return source.with_header(r.choice(TEXTS).encode("utf-8", "surrogatepass") + r.choice([b"", b"\xff", b" " * 8]))


def doubled_key(r, source, _):
    front = source.content[8 : source.start].rstrip()
    name = r.choice([*source.header])
    more = json.dumps({name: r.choice([source.header[name], source.header["__metadata__"], 3])})
    return source.with_header(front[:-1] + b", " + more[1:].encode())


def doubled_setting(r, source, _):
    text = source.header["__metadata__"]["guard"]
    more = json.dumps({r.choice(sorted(source.settings)): r.choice(HOSTILE)})
    return source.with_header({**source.header, "__metadata__": {"guard": text[:-1] + ", " + more[1:]}})


def odd_name(r, source, _):
    name = r.choice(
        ["detector.", "detector.score", "detector.a.b", "probe.more", CODE, "\ud800", "detector.\u00fc", "x" * 999]
    )
    name = r.choice([name, "detector.training", "detector._buffers", "detector.forward", "detector.__class__", ""])
    return source.with_header({**source.header, name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})


def noise(r, source, _):
    return r.randbytes(r.choice([0, 1, 8, 9, 100, 10_000]))


def other_file(r, source, _):
    tensors = {
        f"layer.{i}": torch.zeros(r.randrange(5), dtype=r.choice([torch.uint8, torch.float32])) for i in range(3)
    }
    return save(tensors, r.choice([None, {"format": "pt"}, {"guard": "{}"}, {"guard": canonical(source.settings)}]))


def unchanged(r, source, _):
    return source.content


KINDS = (
    *(flipped, flipped_header, flipped_tensors, cut, inserted, removed, wrong_length, swapped_places, swapped_tensors),
    *(scaled_tensor, mixed, other_calibration, hostile_place, hostile_setting, hostile_hyper, hostile_transform),
    *(other_keys, hostile_text, hostile_header, doubled_key, doubled_setting, odd_name, noise, other_file, unchanged),
)
FORBIDDEN = (
    "exec",
    "compile",
    "import",
    "subprocess",
    "os.",
    "socket",
    "pickle",
    "marshal",
    "ctypes",
    "shutil",
    "code.",
)


class Watch:
    """Notes what a load does that it should not do."""

    def __init__(self):
        self.on, self.path, self.seen = False, None, set()
        sys.addaudithook(self.note)

    def note(self, event, args):
        if not self.on:
            return
        if event == "open" and (str(args[0]) != str(self.path) or args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            self.seen.add(f"open {args[0]}")
        elif event.startswith(FORBIDDEN):
            self.seen.add(f"{event} {args[:1]}")


def fault_of(load, source, path, watch):
    """Load a file; return whether it was taken, and what is wrong with the answer if something is."""
    watch.on = True
    try:
        loaded = load()
    except Exception as error:
        watch.on = False
        return False, fault_in(error, path)
    finally:
        watch.on = False
    try:
        verdict = loaded(source.inputs)
    except Exception as error:
        return True, f"no verdict: {error}"
    same = all(torch.equal(a, b) for a, b in zip(verdict, source.says, strict=True))
    return True, None if same else "another verdict"


def fault_in(error, path):
    message = str(error)
    if type(error) not in (ValueError, FileNotFoundError):
        return f"{type(error).__name__}: {message[:200]}"
    if str(path) not in message or not message.endswith(".") or "\n" in message:
        return f"no sentence: {message[:200]}"
    return f"long: {message[:400]}" if len(message) > LONGEST + len(str(path)) else None


def memory():
    """Return the largest amounts of memory used and asked for so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    table = dict(line.split(":", 1) for line in lines)
    return [1024 * int(table[key].split()[0]) for key in ("VmHWM", "VmPeak")]


def campaign():
    """Load all files and return what happened, as plain values."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model()
    r, watch, tally, faults = random.Random(0), Watch(), Counter(), []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "AutoFold's curve is flat")
        sources = [Source(name, model, Path(folder)) for name in SOURCES]
        path = watch.path = Path(folder) / "file"
        for source in sources:  # what is imported or set aside at the first use is no matter of the file
            path.write_bytes(source.content)
            ff.Guard.load(path, model)(source.inputs)
        before = memory() if sys.platform == "linux" else None
        for i in range(FILES):
            kind, source = KINDS[i % len(KINDS)], r.choice(sources)
            path.write_bytes(kind(r, source, sources))
            taken, fault = fault_of(lambda: ff.Guard.load(path, model), source, path, watch)
            tally[f"{kind.__name__} {'taken' if taken else 'refused'}"] += 1
            if fault:
                faults.append(f"{i} {kind.__name__}: {fault}")
        grown = before and [b - a for a, b in zip(before, memory(), strict=True)]
    return {"tally": tally, "faults": faults, "events": sorted(watch.seen), "grown": grown}


@pytest.fixture(scope="module")
def outcome():
    command = [sys.executable, "-W", "error", "-W", "ignore:`torch.jit.script` is deprecated", __file__]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_file_gives_a_sentence_or_the_right_verdicts(outcome):
    assert outcome["faults"] == []
    assert sum(outcome["tally"].values()) == FILES


def test_files_that_are_as_they_were_are_taken_and_most_others_are_not(outcome):
    tally = outcome["tally"]
    assert tally["unchanged taken"] == FILES // len(KINDS)
    for kind in KINDS:
        if kind is not unchanged:
            assert tally.get(f"{kind.__name__} refused", 0) > 0, kind.__name__
    for kind in (flipped, flipped_header, flipped_tensors, cut, inserted, removed, scaled_tensor, doubled_key):
        assert f"{kind.__name__} taken" not in tally


def test_nothing_is_run_imported_or_written(outcome):
    assert outcome["events"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory a process has asked for")
def test_no_number_in_a_file_is_believed_about_memory(outcome):
    used, asked_for = outcome["grown"]
    assert used < 64 * MEGABYTE
    assert asked_for < 256 * MEGABYTE


def test_the_watch_sees_what_it_should(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_fuzz; watch = test_fuzz.Watch(); watch.on = True\n"
        "eval('1'); import colorsys; open(sys.argv[2], 'w'); import pickle; watch.on = False\n"
        "print(*sorted(event.split()[0] for event in watch.seen))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path / "file")]
    seen = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert seen >= {"compile", "exec", "import", "open"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(campaign()))
