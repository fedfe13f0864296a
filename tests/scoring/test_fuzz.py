"""Many files that are almost guards: each is refused by a sentence, or gives exactly the verdicts of the guard.

They are loaded in a process of their own, in which every attempt to run, import, connect or write is noted, and whose
memory can be looked at afterwards. ``python -m tests.scoring.test_fuzz 2000`` does it by hand.
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

import flatfold as ff
from flatfold.io.artifacts import checksum
from flatfold.scoring.guard_file import canonical
from tests.four_classes import known, make_model

LONGEST = 300  # characters of a message, beside the path
RUNNING = ("exec", "compile", "import", "subprocess", "pickle", "marshal", "ctypes", "code.")
FORBIDDEN = (*RUNNING, "os.", "socket", "shutil")
HYPER = ("alpha", "k", "grid", "seed", "percentile", "name", "preset", "self", "__init__", "*")
NAMES = ("", "score", "a.b", "\u00fc", "training", "_buffers", "forward", "__class__")
SOURCES = {"fourfold": {}, "fold": {}, "autofold": {"grid": [0.2, 0.5, 0.8]}, "knn": {"k": 3}, "mds": {}}
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


class Source:
    """A guard, its file and what it says."""

    def __init__(self, name, model, folder):
        guard = ff.Guard.fit(
            model, [known(240)], method=ff.create(name, **SOURCES[name]), fpr=0.1, per_class=name == "mds"
        )
        guard.save(folder / name)
        self.content = (folder / name).read_bytes()
        self.start = 8 + int.from_bytes(self.content[:8], "little")
        self.header = json.loads(self.content[8 : self.start])
        self.settings = json.loads(self.header["__metadata__"]["guard"])
        self.tensors = load(self.content)
        self.inputs = torch.cat([known(20)[0], 4 * torch.rand(20, 8)])
        self.says = guard(self.inputs)

    def forged(self, settings, tensors):
        """Return a file with a checksum that is right for what is in it."""
        settings = {key: value for key, value in settings.items() if key != "sha256"}
        settings["sha256"] = checksum(canonical(settings), tensors)
        return save(tensors, {"guard": canonical(settings)})

    def with_header(self, header):
        front = header if isinstance(header, bytes) else json.dumps(header).encode()
        return len(front).to_bytes(8, "little") + front + self.content[self.start :]


def flips(r, content, low, high):
    changed = bytearray(content)
    for _ in range(r.choice([1, 1, 1, 2, 8])):
        changed[r.randrange(low, high)] ^= 1 << r.randrange(8)
    return bytes(changed)


def spliced(r, s, _):
    """Insert or remove some bytes."""
    place, size = r.randrange(len(s.content)), r.choice([1, 8, 100])
    front, back = s.content[:place], s.content[place:]
    return r.choice([front + r.randbytes(size) + back, front + back[size:]])


def scaled_tensor(r, s, _):
    """Change one tensor that every verdict depends on, and everything but the self-test."""
    used = ["distances", "alpha_", "bank", "scale", "means", "whitening", "weight", "bias"]
    name = r.choice([name for name in sorted(s.tensors) if name.rpartition(".")[2] in used])
    factor = r.choice([0.0, -1.0, 0.9, 1.01, torch.nan, torch.inf, 1e30])
    return s.forged(s.settings, {**s.tensors, name: s.tensors[name] * factor})


def doubled_key(r, s, _):
    name = r.choice([*s.header])
    more = json.dumps({name: r.choice([s.header[name], s.header["__metadata__"], 3])})
    return s.with_header(s.content[8 : s.start].rstrip()[:-1] + b", " + more[1:].encode())


def wrong_length(r, s, _):
    length = r.choice([0, 1, 2**31, 2**62, 2**63, 2**64 - 1, len(s.content), r.randrange(2 * s.start)])
    return length.to_bytes(8, "little") + s.content[8:]


def swapped_tensors(r, s, sources):
    """Swap two tensors, take one of another guard, or change the calibration or the self-test."""
    one, two = r.sample(sorted(s.tensors), 2)
    other, name = r.choice(sources), r.choice([name for name in sorted(s.tensors) if name[:6] in ("calibr", "probe.")])
    taken, tensor = r.choice(sorted(other.tensors)), s.tensors[name]
    value = r.choice([tensor.flip(-1), tensor + 1, tensor * 0, tensor[..., :-1].contiguous(), tensor.double(), -tensor])
    swapped = {one: s.tensors[two], two: s.tensors[one]}
    change = r.choice([swapped, {taken: other.tensors[taken]}, {name: value.contiguous()}])
    return s.forged(r.choice([s.settings, s.settings, other.settings]), {**s.tensors, **change})


def hostile_place(r, s, _):
    header = json.loads(json.dumps(s.header))
    entry = header[r.choice(sorted(s.tensors))]
    huge = [2**28], [10**18], [2**32, 2**32], [0, 2**62], [-1], [1] * 1000, [1e18], ["3"], None, [], [[2]], [10**30]
    part = r.choice(["shape", "data_offsets", "both", "dtype"])
    if part == "both":
        entry |= {"shape": [2**28], "data_offsets": [0, 2**30]}
    else:
        entry[part] = r.choice(["F64", "BF16", "I8", "", 3, None, CODE]) if part == "dtype" else r.choice(huge)
    return s.with_header(header)


def hostile_setting(r, s, _):
    """Replace, add, remove or write twice a setting, or one of the hyper-parameters or of the transform."""
    usual = {"resize": 8, "crop": 8, "mean": None, "std": None, "mode": "RGB", "interpolation": "bilinear"}
    name, value, dropped = r.choice(sorted(set(s.settings) - {"sha256"})), r.choice(HOSTILE), dict(s.settings)
    del dropped[name]
    changes = [
        dropped,
        {**s.settings, r.choice([name, "", "more", CODE, "x" * 3000]): value},
        {**s.settings, "hyper": {**s.settings["hyper"], r.choice([*s.settings["hyper"], *HYPER]): value}},
        {**s.settings, "transform": {**usual, r.choice([*usual, "more"]): value}},
    ]
    text = s.header["__metadata__"]["guard"][:-1] + ", " + json.dumps({name: value})[1:]
    twice = s.with_header({**s.header, "__metadata__": {"guard": text}})
    return r.choice([twice, *(s.forged(change, s.tensors) for change in changes)])


def hostile_text(r, s, _):
    """Another text instead of the settings or of the header, or another name of a tensor."""
    text = r.choice([*TEXTS, s.header["__metadata__"]["guard"].replace(": ", ":" + " " * r.randrange(2, 5), 1)])
    name = r.choice([*(f"detector.{name}" for name in NAMES), "probe.more", CODE, "\ud800", "x" * 999, ""])
    settings = {**s.header, "__metadata__": {"guard": text}}
    tensor = {**s.header, name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    whole = r.choice(TEXTS).encode("utf-8", "surrogatepass") + r.choice([b"", b"\xff", b" " * 8])
    return s.with_header(r.choice([settings, tensor, whole]))


NEVER_TAKEN = {
    "flipped": lambda r, s, _: flips(r, s.content, 0, len(s.content)),
    "flipped_header": lambda r, s, _: flips(r, s.content, 0, s.start),
    "flipped_tensors": lambda r, s, _: flips(r, s.content, s.start, len(s.content)),
    "cut": lambda r, s, _: s.content[: r.randrange(len(s.content))],
    "noise": lambda r, s, _: r.randbytes(r.choice([0, 1, 8, 9, 100, 10_000])),
    **{kind.__name__: kind for kind in (spliced, scaled_tensor, doubled_key)},
}
SOMETIMES_TAKEN = (wrong_length, swapped_tensors, hostile_place, hostile_setting, hostile_text)
KINDS = {**NEVER_TAKEN, **{kind.__name__: kind for kind in SOMETIMES_TAKEN}, "unchanged": lambda r, s, _: s.content}


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
        message = str(error)
        short = len(message) <= LONGEST + len(str(path)) and "\n" not in message
        fine = type(error) in (ValueError, FileNotFoundError) and str(path) in message and short
        return False, None if fine else f"{type(error).__name__}: {message[:400]}"
    finally:
        watch.on = False
    try:
        verdict = loaded(source.inputs)
    except Exception as error:
        return True, f"no verdict: {error}"
    same = all(torch.equal(a, b) for a, b in zip(verdict, source.says, strict=True))
    return True, None if same else "another verdict"


def memory():
    """Return the largest amounts of memory used and asked for so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    table = dict(line.split(":", 1) for line in lines)
    return [1024 * int(table[key].split()[0]) for key in ("VmHWM", "VmPeak")]


def campaign(files):
    """Load so many files and return what happened, as plain values."""
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
        for i in range(files):
            name, source = list(KINDS)[i % len(KINDS)], r.choice(sources)
            path.write_bytes(KINDS[name](r, source, sources))
            taken, fault = fault_of(lambda: ff.Guard.load(path, model), source, path, watch)
            tally[f"{name} {'taken' if taken else 'refused'}"] += 1
            if fault:
                faults.append(f"{i} {name}: {fault}")
        grown = before and [b - a for a, b in zip(before, memory(), strict=True)]
        events, watch.on = sorted(watch.seen), True
        eval("1")
        import tabnanny  # noqa: F401

        (Path(folder) / "other").write_bytes(b"")
        watch.on = False
    noticed = sorted({event.split()[0] for event in watch.seen})
    return {"tally": tally, "faults": faults, "events": events, "noticed": noticed, "grown": grown}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("files", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_file_is_refused_or_gives_the_right_verdicts_and_nothing_is_run_or_written(files):
    command = [sys.executable, "-W", "error", "-W", "ignore:`torch.jit.script` is deprecated", "-m"]
    where = {"cwd": Path(__file__).parents[2], "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    command += ["tests.scoring.test_fuzz", str(files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **where)
    assert done.returncode == 0, done.stderr[-2000:]
    outcome = json.loads(done.stdout)
    assert outcome["faults"] == []
    tally = outcome["tally"]
    assert sum(tally.values()) == files
    assert tally["unchanged taken"] == files // len(KINDS)
    for name in KINDS:
        assert name == "unchanged" or tally.get(f"{name} refused", 0) > 0, name
        assert name not in NEVER_TAKEN or f"{name} taken" not in tally, name
    assert outcome["events"] == []
    assert set(outcome["noticed"]) >= {"compile", "exec", "import", "open"}, "the watch is blind"
    if outcome["grown"]:  # no number in a file is believed about memory
        used, asked_for = outcome["grown"]
        assert used < 64 * MEGABYTE
        assert asked_for < 256 * MEGABYTE


if __name__ == "__main__":
    sys.stdout.write(json.dumps(campaign(int(sys.argv[1]))))
