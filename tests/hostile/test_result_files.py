"""Result files that are forged, damaged or of another version: commands refuse them in one line, or cope with them.

Every trial changes the files of a small complete run and gives them to all commands that read results. Whatever it is
given, a command must not end in a stack trace, wait for ever, or change a file before it refuses.
"""

import json
import os
import shutil
import socket
from contextlib import suppress
from hashlib import sha256
from itertools import product

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.images import write_suite
from tests.cli.running import listing, succeed
from tests.command import flatfold
from tests.toy_study import draw_nothing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
]

ADD = ("bench", "toy.toml", "--add", "ebo", "--bootstrap", "0", "--no-report", "--out")
COMMANDS = [
    ("report", "run"),
    ("report", "run", "--latex", "-", "--metric", "fpr95,auroc"),
    ("compare", "run", "--methods", "msp,autofold"),
    ("compare", "good", "run", "--metric", "auroc,aupr-in", "--json"),
    ("paper", "run", "--anyway", "--table", "8"),
    (*ADD, "run"),
]
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a suite, a finished run of its network in ``good``, and one of two seeds in ``seeds``."""
    world = write_suite(tmp_path_factory.mktemp("hostile"))
    world.document["network"].pop()
    world.file()
    options = ("bench", "toy.toml", "--methods", "msp,knn:k=5,autofold", "--bootstrap", 20, "--no-report", "--out")
    succeed(*options, "good", cwd=world.folder)
    succeed(*options, "seeds", "--seed", "1,2", cwd=world.folder)
    return world.folder


@pytest.fixture
def copy(world, monkeypatch):
    """Return a function that gives a fresh copy of a run, which a trial may change, as ``run``."""
    draw_nothing(monkeypatch)
    place = world / "run"

    def copy(name="good"):
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):
            place.unlink()
        shutil.copytree(world / name, place)
        return place

    yield copy
    shutil.rmtree(place, ignore_errors=True)


def trial(world, commands, name, refused=None):
    """Run commands; if they refuse, with exit code 1 and the keyword, they must have changed nothing."""
    ended = []
    for command in commands:
        before = listing(world)
        done = flatfold(*command, cwd=world)
        case = f"{name}: {' '.join(command)}\n{done}"
        assert done.returncode in ((0, 1) if refused is None else (1,)), case
        assert "Traceback" not in done.stderr, case
        if done.returncode == 1:
            line = done.stderr.strip().splitlines()[-1]
            assert line.startswith("flatfold: "), case
            assert line.endswith(".") or "They were computed by: flatfold bench" in line, case
            assert len(line) < 1500, case
            assert (done.stdout == "") is ("--json" not in command), case
            assert listing(world) == before, case
            assert refused is None or refused in line, case
        ended.append(done.returncode)
    return ended


# Content of results.json and of scores.safetensors


def read(folder):
    return json.loads((folder / "results.json").read_text())


def write(folder, content):
    for file in content.get("sha256", {}):  # whoever forges a file also forges its checksum
        if (folder / file).is_file():
            content["sha256"][file] = sha256((folder / file).read_bytes()).hexdigest()
    (folder / "results.json").write_text(json.dumps(content))


def forged(*path, to=None, drop=False):
    """Return a change of one entry of the document."""

    def change(content, _):
        for key in path[:-1]:
            content = content[key]
        if drop:
            del content[path[-1]]
        else:
            content[path[-1]] = to

    return change


def scores(name, make):
    """Return a change of the array of this name."""

    def change(_, arrays):
        value = make(arrays[name])
        if value is None:
            del arrays[name]
        else:
            arrays[name] = value

    return change


def twice(*path):
    def change(content, _):
        for key in path:
            content = content[key]
        content.append(content[0])

    return change


SUITE_TYPES = {
    "name": 5, "network": None, "about": ["a"], "n_classes": "three", "accuracy": 1.5, "n_test": 0, "ood": {},
    "family": 3, "classes": "abc", "deviations": "none", "fingerprints": [], "protocol": {}, "architecture": 1.0,
}  # fmt: skip
REFUSED = {
    **{f"suite.{name} of another type": forged("suite", name, to=value) for name, value in SUITE_TYPES.items()},
    **{
        f"without suite.{name}": forged("suite", name, drop=True)
        for name in ("name", "network", "about", "n_classes", "accuracy", "n_test", "ood")
    },
    **{f"without {name}": forged(name, drop=True) for name in ("suite", "methods", "rows", "averages", "provenance")},
    "no data set": forged("suite", "ood", to=[]),
    "a data set of no group": forged("suite", "ood", 0, "group", to="middle"),
    "a data set of the other group": forged("suite", "ood", 0, "group", to="near"),
    "a data set without a name": forged("suite", "ood", 0, "name", drop=True),
    "another data set": forged("suite", "ood", 0, "name", to="../evil"),
    "a data set twice": twice("suite", "ood"),
    "an AUROC of 2": forged("rows", 0, "auroc", to=2.0),
    "an AUROC below 0": forged("averages", 0, "auroc", to=-0.1),
    "an AUROC as text": forged("rows", 0, "auroc", to="0.9"),
    "an AUROC that overflows": forged("rows", 0, "auroc", to=10**400),
    "an interval of one end": forged("rows", 0, "certainty", "intervals", "auroc", to=[0.5]),
    "an interval beyond 1": forged("rows", 0, "certainty", "intervals", "auroc", to=[0.5, 1e308]),
    "a p-value of 7": forged("rows", 0, "certainty", "p_value", to=7),
    "a row less": forged("rows", 0, drop=True),
    "a row twice": twice("rows"),
    "an average less": forged("averages", -1, drop=True),
    "an average twice": twice("averages"),
    "a row of an unknown method": forged("rows", 0, "method", to="other"),
    "no method": forged("methods", to=[]),
    "a method twice": twice("methods"),
    "a method with no name": forged("methods", 0, "method", drop=True),
    "a time below 0": forged("methods", 0, "fit_seconds", to=-1),
    "0 images": forged("rows", 0, "n_id", to=0),
    "other numbers of images": forged("rows", 0, "n_id", to=7),
    "a curve without points": forged("alpha_curves", 0, "grid", to=[]),
    "a curve without the average": forged("alpha_curves", 0, "auroc", "all", drop=True),
    "a curve of another length": forged("alpha_curves", 0, "curve", 0, drop=True),
    "a worst case of no method": forged("wrong", 0, "method", to="other"),
    "a worst case of no data set": forged("wrong", 0, "dataset", to="../evil"),
    "a worst case of a class below 0": forged("wrong", 0, "predicted", to=-1),
    "seconds as text": forged("provenance", "seconds", to="long"),
    "an unknown field": forged("more", to=1),
    "an older version": forged("version", to=3),
    "the first version": forged("version", to=1),
    "a newer version": forged("version", to=5),
    "a version as text": forged("version", to="4"),
    "no version": forged("version", drop=True),
    "another format": forged("format", to="flatfold-curvature"),
    "no format": forged("format", drop=True),
    "no checksums": forged("sha256", drop=True),
    "scores less": scores("msp/id", lambda values: None),
    "scores of fewer images": scores("msp/id", lambda values: values[:-1]),
    "scores with two axes": scores("msp/strange", lambda values: values[None]),
    "scores without end": scores("autofold/id", lambda values: np.full_like(values, np.inf)),
    "scores that are no numbers": scores("knn:k=5/dark", lambda values: np.full_like(values, np.nan)),
    "scores that are all equal": scores("msp/id", lambda values: np.zeros_like(values)),
    "norms of fewer images": scores("|h|/id", lambda values: values[:3]),
}  # fmt: skip
ACCEPTED = {  # what is only shown is shown as the text it is
    "markup and control characters": forged("suite", "about", to="[red]\x1b[2J<script>alert(1)</script>\\input{x}"),
    "a name for a shell": forged("suite", "name", to="$(rm -rf .); `ls` | &"),
    "deviations for LaTeX": forged("suite", "deviations", to=["\\write18{ls}\n\\end{document}", "a\x00b"]),
    "classes that are missing": forged("suite", "classes", to=[]),
    "no fingerprints": forged("suite", "fingerprints", to={}),
    "no worst cases": forged("wrong", to=[]),
    "no curves": forged("alpha_curves", to=[]),
    "no certainty": forged("rows", 0, "certainty", to=None),
    "an alpha that is no number": forged("methods", 0, "hyper", to={"alpha": ["x", {"y": None}]}),
    "no scores at all": lambda _, arrays: [arrays.pop(name) for name in list(arrays)],
    "provenance of any kind": forged("provenance", "command", to="\x1b]0;title\x07"),
    "weights of another network": forged("provenance", "weights, sha256", to="0" * 64),
    "long texts": forged("suite", "about", to="long " * 20_000),
    "a very large time": forged("methods", 0, "microseconds_per_sample", to=1e12),
    "a method that was left out": forged("refused", to={"[x]": "y\x1b[2J"}),
}  # fmt: skip


@pytest.mark.parametrize("name", [*REFUSED, *ACCEPTED])
def test_documents_that_are_forged(world, copy, name):
    run = copy()
    content, arrays = read(run), load_file(run / "scores.safetensors")
    (REFUSED | ACCEPTED)[name](content, arrays)
    save_file({key: np.ascontiguousarray(values) for key, values in arrays.items()}, run / "scores.safetensors")
    write(run, content)
    ended = trial(world, COMMANDS, name, "Run `flatfold bench` again." if name in REFUSED else None)
    assert name in REFUSED or ended[:2] == [int(name == "no scores at all"), 0], "a page and a table"


# Files as such


def replace_by(make, file="results.json"):
    def change(run):
        (run / file).unlink()
        make(run / file)

    return change


def link_to(target):
    return lambda path: path.symlink_to(target)


def bind_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


def edited(file, edit):
    return lambda run: (run / file).write_bytes(edit((run / file).read_bytes()))


def flipped(content):
    """Change a byte in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x20]) + content[middle + 1 :]


FILES = {
    "an empty document": edited("results.json", lambda content: b""),
    "a document cut short": edited("results.json", lambda content: content[:-40]),
    "a document with more behind it": edited("results.json", lambda content: content + b"{}"),
    "UTF-16": edited("results.json", lambda content: content.decode().encode("utf-16")),
    "bytes": edited("results.json", lambda content: bytes(range(256)) * 99),
    "lists in lists": edited("results.json", lambda content: DEEP.encode()),
    "a number": edited("results.json", lambda content: b"17"),
    "not a number": edited("results.json", lambda content: content.replace(b"0.", b"NaN0.", 1)),
    "a folder": replace_by(os.mkdir),
    "a pipe": replace_by(os.mkfifo),
    "a socket": replace_by(bind_socket),
    "an endless device": replace_by(link_to("/dev/zero")),
    "a link to itself": replace_by(link_to("results.json")),
    "scores from a pipe": replace_by(os.mkfifo, "scores.safetensors"),
    "scores from an endless device": replace_by(link_to("/dev/zero"), "scores.safetensors"),
    "no scores": lambda run: (run / "scores.safetensors").unlink(),
    "no thumbnails": lambda run: (run / "thumbnails.safetensors").unlink(),
    "scores with another byte": edited("scores.safetensors", flipped),
    "thumbnails with another byte": edited("thumbnails.safetensors", flipped),
    "scores that are not arrays": edited("scores.safetensors", lambda content: b"hello"),
}
HASHED = {  # with a checksum that fits
    "a header of 2^60 bytes": edited("scores.safetensors", lambda content: (2**60).to_bytes(8, "little") + content),
    "arrays cut short": edited("scores.safetensors", lambda content: content[:-9]),
    "no arrays at all": edited("scores.safetensors", lambda content: b""),
    "pickled arrays": edited("scores.safetensors", lambda content: b"\x80\x04cos\nsystem\n(S'touch evil'\ntR."),
}


@pytest.mark.parametrize("name", [*FILES, *HASHED])
def test_files_that_are_something_else(world, copy, name):
    run = copy()
    content = read(run)
    (FILES | HASHED)[name](run)
    if name in HASHED:
        write(run, content)
    trial(world, COMMANDS, name, "")
    assert not (world / "evil").exists()


# Runs of several seeds

SEVERAL = [("report", "run"), ("report", "run", "--latex", "-"), ("compare", "run", "--methods", "msp,autofold")]
SEVERAL += [("paper", "run", "--anyway", "--table", "8"), ("compare", "run", "seeds")]


def summary(**changes):
    def change(run):
        path = run / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def one_of_them(*path, to):
    def change(run):
        content = read(run / "tiny-seed2")
        forged(*path, to=to)(content, None)
        write(run / "tiny-seed2", content)

    return change


RUNS = {
    "runs elsewhere": (summary(runs=["../good", "../seeds/tiny-seed1"]), "folders next to it"),
    "runs at the root": (summary(runs=["/"]), "folders next to it"),
    "runs that do not exist": (summary(runs=["tiny-seed1", "none"]), "none"),
    "runs as text": (summary(runs="tiny-seed1"), "summary.json"),
    "an older summary": (summary(version=0), "version"),
    "no runs": (summary(runs=[], rows=[]), None),
    "a run twice": (summary(runs=["tiny-seed1", "tiny-seed1"]), None),
    "a summary that is a pipe": (replace_by(os.mkfifo, "summary.json"), "regular"),
    "a damaged run": (one_of_them("rows", 0, "auroc", to=3), "Run `flatfold bench` again."),
    "a run of another suite": (one_of_them("suite", "name", to="other"), "suite"),
    "two runs of one name": (one_of_them("suite", "network", to="tiny-seed1"), None),
    "a run of another family": (one_of_them("suite", "family", to="wide"), None),
    "a run without a name": (one_of_them("suite", "network", to=""), None),
    "a run without methods": (one_of_them("methods", to=[]), "Run `flatfold bench` again."),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_that_do_not_belong_together(world, copy, name):
    change, refused = RUNS[name]
    change(copy("seeds"))
    before = listing(world / "good")
    commands = [command for command in SEVERAL if refused != "suite" or command[1:3] != ("run", "--latex")]
    trial(world, commands, name, refused)
    assert listing(world / "good") == before, "no page is written elsewhere"


# Results that are complete, and options that do not fit them

OTHERS = [
    (("--limit-fit", "4"), "images of"), (("--limit", "4"), "images of"), (("--seed", "3"), "seed"),
    (("--dtype", "bfloat16"), "precision"), (("--methods", "msp"), "--methods"), (("--networks", "deep"), "deep"),
    (("--add", "msp,fould"), "fold"), (("--add", "knn@ood", "--limit-fit", "2"), "images of"),
    (("--add", ""), "method"),
    (("--sets", "none"), "--sets"), (("--metric", "none"), "--metric"), (("--latex", "-", "--json"), "--latex"),
]  # fmt: skip


@pytest.mark.parametrize("options", [options for options, _ in OTHERS], ids=" ".join)
def test_options_that_do_not_fit_finished_results(world, copy, options):
    copy()
    before, keyword = listing(world), dict(OTHERS)[options]
    done = flatfold(*ADD, "run", *options, cwd=world)
    assert done.returncode in (1, 2), done
    assert keyword in done.stderr, done
    assert "Traceback" not in done.stderr
    assert listing(world) == before


def test_methods_are_added_after_all_of_this_and_give_the_same_numbers(world, copy):
    """The files are those of a run of all methods at once."""
    run = copy()
    succeed(*ADD, "run", cwd=world)
    options = ("--methods", "msp,knn:k=5,autofold,ebo", "--bootstrap", 0, "--no-report", "--out", "whole")
    succeed("bench", "toy.toml", *options, cwd=world)
    added, whole = read(run), read(world / "whole")
    assert added["rows"] == whole["rows"]
    for table, names in product((added, whole), (("msp", "ebo"),)):
        assert {row["method"] for row in table["rows"]} >= set(names)
