"""Methods that misbehave, and wrong options: a benchmark names them, and the results of all others are right."""

import json
import random
import shutil

import numpy as np
import pytest
import torch

from tests.cli.images import write_suite
from tests.cli.running import listing, succeed
from tests.command import flatfold

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODIES = {  # the body of learn, and that of score
    "prints": ("print('HELLO')", "return h.sum(1)"),
    "seeds": ("torch.manual_seed(0); np.random.seed(0); random.seed(0)", "return h.sum(1)"),
    "double": ("torch.set_default_dtype(torch.float64)", "return h.sum(1).double()"),
    "draws": ("pass", "return torch.rand(len(h))"),
    "constant": ("pass", "return h.sum(1) * 0"),
    "nan": ("pass", "return h.sum(1) * float('nan')"),
    "endless": ("pass", "return h.sum(1) * float('inf')"),
    "none": ("pass", "return None"),
    "wide": ("pass", "return h"),
    "whole": ("pass", "return torch.arange(len(h))"),
    "raises": ("raise KeyError('a')", "return h.sum(1)"),
    "marks": ("raise RuntimeError('[bold]x[/bold] \\x1b[2J')", "return h.sum(1)"),
    "exits": ("sys.exit(0)", "return h.sum(1)"),
    "bank": ("bank.features.mul_(3)", "return h.sum(1)"),
    "labels": ("bank.labels.zero_()", "return h.sum(1)"),
    "head": ("head.weight.mul_(0)", "return h.sum(1)"),
    "rows": ("pass", "h.mul_(0); return torch.arange(len(h)) / 1.0"),
}
FINE = ("prints", "seeds", "double", "draws", "constant")
IN_PLACE = ("bank", "labels", "head", "rows")
METHOD = """
@register("bad-{name}", fits_on="val")
class Bad{title}(Detector):
    def learn(self, bank, head):
        {learn}
    def score(self, h):
        {score}
"""
IMPORTS = "import random, sys\nimport numpy as np, torch\nfrom flatfold import Detector\n"
IMPORTS += "from flatfold.detectors.registry import register\n"
BENCH = ("bench", "toy.toml", "--bootstrap", "0", "--no-report", "--with", "mine.py", "--out")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a suite, a file of methods, and a finished run in ``good``."""
    world = write_suite(tmp_path_factory.mktemp("hostile"))
    world.document["network"].pop()
    world.file()
    methods = (
        METHOD.format(name=name, title=name.title(), learn=learn, score=score)
        for name, (learn, score) in BODIES.items()
    )
    (world.folder / "mine.py").write_text(IMPORTS + "".join(methods))
    succeed(*BENCH, "good", "--methods", "msp,knn:k=5", cwd=world.folder)
    return world.folder


def aurocs(run):
    rows = json.loads((run / "results.json").read_text())["rows"]
    return {(row["method"], row["dataset"]): row["auroc"] for row in rows}


@pytest.mark.parametrize("name", BODIES)
def test_a_method_that_misbehaves_is_named_and_changes_no_other(world, name):
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    shutil.rmtree(world / "run", ignore_errors=True)
    try:
        done = flatfold(*BENCH, "run", "--methods", f"bad-{name},msp,knn:k=5", cwd=world)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
    assert done.returncode == int(name not in FINE), done
    if name not in FINE:
        last = done.stderr.strip().splitlines()[-1]
        assert f"bad-{name}" in last, done
        assert "\x1b" not in last, done
    if name in IN_PLACE:
        assert "in place" in done.stderr
        assert not (world / "run" / "results.json").exists(), "nothing is known about these results"
        return
    measured = aurocs(world / "run")
    others = {key: value for key, value in measured.items() if key[0] != f"bad-{name}"}
    assert others == aurocs(world / "good")
    assert (len(measured) > len(others)) == (name in FINE)
    assert name != "constant" or {value for key, value in measured.items() if key not in others} == {0.5}


REFUSED = [
    ("--add", "nope"), ("--add", ""), ("--add", ","), ("--add", "knn:k=999999"), ("--add", "knn@nope"), ("--add", "@"),
    ("--add", "ebo", "--methods", "msp"), ("--add", "ebo", "--limit", "3"), ("--add", "ebo", "--limit-fit", "2"),
    ("--add", "ebo", "--seed", "7"), ("--latex", "good"), ("--latex", ""), ("--latex", "/proc/x"),
    ("--latex", "toy.toml/x"), ("--limit-fit", "0"), ("--limit-fit", "-1"), ("--limit-fit", "1"), ("--limit-fit", "x"),
    ("--limit-fit", "1e3"), ("--metric", "nope"), ("--sets", "nope"), ("--seed", "-1"),
    ("--seed", "9" * 20), ("--batch-size", "0"), ("--methods", "knn@nope"), ("--methods", "x" * 5000),
    ("--methods", "knn:k=10:k=10"), ("--bootstrap", "-1"), ("--bootstrap", "x"),
]  # fmt: skip


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: " ".join(options)[:40])
def test_wrong_options_are_refused_and_change_nothing(world, options):
    shutil.rmtree(world / "run", ignore_errors=True)
    if "--add" in options:
        shutil.copytree(world / "good", world / "run")
    before = listing(world)
    methods = () if {"--methods", "--add"} & {*options} else ("--methods", "msp")
    done = flatfold(*BENCH, "run", *methods, *options, cwd=world)
    assert done.returncode in (1, 2), done
    assert "Traceback" not in done.stderr, done
    assert len(done.stderr) < 4000, done
    made = {path for path in listing(world).keys() - before.keys() if "/banks/" not in path}
    assert not made, done
    assert {path: time for path, time in listing(world).items() if path in before} == before, done


def test_methods_that_are_added_twice_replace_themselves(world):
    for added in ("msp", "ebo,ebo", "ebo", "msp,ebo,knn:k=5"):
        shutil.rmtree(world / "run", ignore_errors=True)
        shutil.copytree(world / "good", world / "run")
        succeed(*BENCH, "run", "--add", added, "--latex", "table.tex", cwd=world)
        measured = aurocs(world / "run")
        assert aurocs(world / "good").items() <= measured.items()
        assert {key[0] for key in measured} == {"msp", "knn:k=5", *({"ebo"} & {*added.split(",")})}
        assert (world / "table.tex").read_text().count("MSP") == 1
