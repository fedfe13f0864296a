"""``flatfold reproduce``: what reaches the run, the table of verdicts, the files and the sentences."""

import io
import logging
import re
import subprocess
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from flatfold.cli import main
from flatfold.evaluate.reproduce import claims, run
from flatfold.evaluate.reproduce.verdict import Verdict
from flatfold.evaluate.suites import library
from flatfold.report import summary
from flatfold.report.curvature import page as curvature_page
from flatfold.report.reproduction import page as reproduction_page
from tests.toy_ablations import make_material, save
from tests.toy_suite import World

VERDICTS = [
    Verdict("Table 1", "Curvature", "It grows.", "It grows [here] too.", "agrees", []),
    Verdict("Figure 4", "Exponents", "It is near the best.", "It is not.", "disagrees", []),
    Verdict("Table 5", "Backbones", "It is best.", "One network only.", "not tested", []),
    Verdict("Table 6", "Curvature", "It grows.", "It grows.", "agrees", []),
]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def flatfold(*arguments, cwd):
    """Run the program in this process, for a new one takes seconds to import what it needs; leave no trace here."""
    out, err = io.StringIO(), io.StringIO()
    with ExitStack() as after, pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for logger in map(logging.getLogger, ("flatfold", "flatfold.models")):
            after.callback(logger.setLevel, logger.level)
        patch.chdir(cwd)
        patch.setenv("COLUMNS", "120")
        patch.setattr(sys, "argv", ["flatfold", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
    return Done(left.value.code, out.getvalue(), err.getvalue())


class Runs:
    """Takes the place of the run: remembers what was asked for, and writes files as a run would."""

    def __init__(self):
        self.suites, self.settings, self.plans, self.judged, self.drawn = [], [], [], [], []

    def reproduce(self, suites, folder, settings, plan):
        for suite in suites:
            self.suites.append(suite)
            self.settings.append(settings)
            self.plans.append(plan)
            material = make_material(suite.network)
            told = {
                **material.results.suite,
                "name": suite.name,
                "network": suite.network,
                "family": suite.family,
            }
            save(material._replace(results=replace(material.results, suite=told)), run.place_of(suite, folder))

    def verdicts(self, materials):
        self.judged.append([material.network for material in materials])
        return VERDICTS

    def drawer(self, name):
        def draw(folder, *rest):
            self.drawn.append((name, folder.name, *rest))
            return folder / name

        return draw


@pytest.fixture
def runs(monkeypatch):
    runs = Runs()
    monkeypatch.setattr(run, "reproduce", runs.reproduce)
    monkeypatch.setattr(claims, "verdicts", runs.verdicts)
    monkeypatch.setattr(curvature_page, "write_curvature", runs.drawer("curvature.html"))
    monkeypatch.setattr(summary, "write_summary", runs.drawer("index.html"))
    monkeypatch.setattr(reproduction_page, "write_reproduction", runs.drawer("reproduction.html"))
    return runs


@pytest.fixture
def world(tmp_path):
    """A suite file with two networks."""
    world = World(tmp_path)
    world.document["network"].append({"name": "wide", "factory": "nets:wide"})
    world.file()
    return world


def test_every_table_and_figure_has_a_line_and_they_are_counted(runs, world):
    done = flatfold("reproduce", "toy.toml", cwd=world.folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"│ Table 1 +│ agrees +│ It grows \[here\] too\. +│", done.stdout)
    assert re.search(r"│ Figure 4 +│ disagrees +│ It is not\. +│", done.stdout)
    assert "4 claims: 2 agrees, 1 disagrees, 1 not tested." in done.stdout


def test_every_network_has_a_folder_and_pages_under_the_default_place(runs, world):
    done = flatfold("reproduce", "toy.toml", cwd=world.folder)
    folder = world.folder / "out" / "paper" / "toy"
    assert [suite.network for suite in runs.suites] == ["tiny", "wide"]
    assert runs.judged == [["tiny", "wide"]]
    assert runs.drawn == [
        ("curvature.html", "tiny"),
        ("curvature.html", "wide"),
        ("index.html", "toy"),
        ("reproduction.html", "toy", ["tiny", "wide"]),
    ]
    assert (folder / "summary.csv").exists()
    for line in (
        "tiny -> out/paper/toy/tiny",
        "every table and figure -> out/paper/toy/reproduction.html",
        "what a full run needs -> out/paper/toy/full-scale",
    ):
        assert line in done.stdout
    assert (folder / "full-scale" / "cifar10.sh").exists()


def test_a_single_network_lies_in_the_folder_itself(runs, world):
    del world.document["network"][1]
    world.file()
    done = flatfold("reproduce", "toy.toml", "--out", "mine", cwd=world.folder)
    assert done.returncode == 0, done.stderr
    assert runs.judged == [[""]]
    assert runs.drawn[-1] == ("reproduction.html", "mine", [""])
    assert (world.folder / "mine" / "ablations.json").exists()
    assert not (world.folder / "mine" / "summary.json").exists()


def test_networks_of_an_earlier_run_are_judged_with_those_of_this_one(runs, world):
    for name in ("wide", "tiny"):
        assert flatfold("reproduce", "toy.toml", "--networks", name, "--no-report", cwd=world.folder).returncode == 0
    assert runs.judged == [["wide"], ["tiny", "wide"]]


def test_no_page_is_drawn_when_none_is_wanted(runs, world):
    done = flatfold("reproduce", "toy.toml", "--no-report", cwd=world.folder)
    assert done.returncode == 0, done.stderr
    assert runs.drawn == []
    assert "reproduction.html" not in done.stdout


def test_options_reach_the_run(runs, world):
    numbers = ("--samples", 9, "--rounds", 3, "--alpha", 0.25, "--bootstrap", 7, "--workers", 2, "--limit", 5)
    others = ("--methods", "msp,knn:k=3", "--max-unreadable", 0.5, "--batch-size", 4, "--seed", 6, "--device", "cpu")
    done = flatfold("reproduce", "toy.toml", *numbers, *others, "--no-report", cwd=world.folder)
    assert done.returncode == 0, done.stderr
    plan, settings, suite = runs.plans[0], runs.settings[0], runs.suites[0]
    assert (plan.samples, plan.rounds, plan.alpha, plan.batch_size) == (9, 3, 0.25, 256)
    assert [spec.label for spec in plan.methods] == ["msp", "knn:k=3"]
    assert (settings.device, settings.workers, settings.unreadable, settings.replicates) == ("cpu", 2, 0.5, 7)
    assert settings.command.startswith("flatfold reproduce toy.toml --samples 9")
    assert (suite.seed, suite.test.batch_size, suite.test.rows) == (6, 4, 5)
    assert runs.plans[0].methods is not None


def test_without_options_the_papers_methods_are_taken(runs, world):
    flatfold("reproduce", "toy.toml", "--no-report", cwd=world.folder)
    assert (runs.plans[0].methods, runs.plans[0].alpha, runs.plans[0].samples) == (None, None, 200)
    assert runs.suites[0].test.batch_size == 64


def test_a_restart_forgets_what_was_kept_and_a_resumed_run_does_not(runs, world, monkeypatch):
    forgotten = []
    monkeypatch.setattr(run, "forget_reproduction", lambda suite, place, plan: forgotten.append(place.name))
    flatfold("reproduce", "toy.toml", "--no-report", cwd=world.folder)
    assert forgotten == []
    flatfold("reproduce", "toy.toml", "--no-report", "--restart", cwd=world.folder)
    assert forgotten == ["tiny", "wide"]


@pytest.mark.parametrize(
    ("asked", "names"), [((), ["cnn", "mlp", "residual"]), (("--networks", "mlp, cnn"), ["mlp", "cnn"])]
)
def test_of_digits_all_networks_are_taken_unless_some_are_named(asked, names, runs, world, monkeypatch):
    def load(name, out, seeds, batch_size, data, any_counts, wanted, limit):
        assert (name, wanted) == ("digits", names)
        return world.read()

    monkeypatch.setattr(library, "load_suites", load)
    done = flatfold("reproduce", "digits", *asked, "--no-report", cwd=world.folder)
    assert done.returncode == 0, done.stderr
    assert (world.folder / "out" / "paper" / "digits" / "tiny").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["cifar11"], 1, "flatfold: no suite is called 'cifar11'"),
        (["toy.toml", "--networks", "huge"], 1, "no network is called 'huge'. There are tiny, wide."),
        (["toy.toml", "--methods", "fould"], 1, "flatfold: no method is called 'fould'"),
        (["toy.toml", "--methods", ""], 1, "flatfold: a benchmark needs at least one method, got none"),
        (["toy.toml", "--device", "abacus"], 1, "flatfold: device 'abacus' cannot be used here"),
        (["toy.toml", "--seed", "-1"], 1, "flatfold: --seed takes whole numbers from 0"),
        (["toy.toml", "--alpha", "2"], 2, "alpha"),
        (["toy.toml", "--samples", "1"], 2, "samples"),
        (["toy.toml", "--rounds", "0"], 2, "rounds"),
        ([], 2, "Missing argument 'suite'"),
    ],
)
def test_a_mistake_gets_a_sentence_and_no_traceback(arguments, code, message, runs, world):
    done = flatfold("reproduce", *arguments, cwd=world.folder)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert runs.suites == []
    assert not (world.folder / "out").exists()


def test_results_do_not_come_to_lie_among_others(runs, world):
    (world.folder / "mine").mkdir()
    (world.folder / "mine" / "results.json").write_text("{}")
    done = flatfold("reproduce", "toy.toml", "--out", "mine", cwd=world.folder)
    assert (done.returncode, runs.suites) == (1, [])
    assert "holds the results of a single run" in done.stderr


def test_results_of_another_suite_are_refused(runs, world):
    world.document["name"] = "first"
    world.file()
    assert flatfold("reproduce", "toy.toml", "--out", "mine", "--no-report", cwd=world.folder).returncode == 0
    world.document["name"] = "second"
    world.file()
    done = flatfold("reproduce", "toy.toml", "--out", "mine", cwd=world.folder)
    assert (done.returncode, len(runs.suites)) == (1, 2)
    assert "holds results of the suite 'first', but this run is of 'second'. Give another --out" in done.stderr


def test_a_damaged_network_of_an_earlier_run_is_left_out_with_the_reason(runs, world):
    assert flatfold("reproduce", "toy.toml", "--no-report", cwd=world.folder).returncode == 0
    (world.folder / "out" / "paper" / "toy" / "wide" / "ablations.json").write_text("{")
    done = flatfold("reproduce", "toy.toml", "--networks", "tiny", "--no-report", cwd=world.folder)
    assert done.returncode == 0, done.stderr
    assert runs.judged[-1] == ["tiny"]
    assert "wide is left out: the ablations in out/paper/toy/wide cannot be read" in done.stderr


def test_a_run_that_is_stopped_while_pages_are_drawn_says_that_it_goes_on(runs, world, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduction_page, "write_reproduction", stop)
    stopped = flatfold("reproduce", "toy.toml", cwd=world.folder)
    assert stopped.returncode == 130
    assert "The same command goes on with what is already in out/paper/toy." in stopped.stderr


def test_an_interrupted_run_says_that_it_goes_on(world, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "reproduce", stop)
    stopped = flatfold("reproduce", "toy.toml", cwd=world.folder)
    assert stopped.returncode == 130
    assert "The same command goes on with what is already in" in stopped.stderr


def test_a_small_run_goes_from_the_images_to_the_verdicts(world):
    x = np.random.default_rng(0).integers(0, 256, (9, 4, 4), dtype=np.uint8)
    np.savez(world.folder / "dark.npz", x=x // 8)
    world.document["ood"].append({"name": "dark", "group": "near", "npz": "dark.npz"})
    del world.document["network"][1]
    world.file()
    options = (
        "--samples",
        4,
        "--rounds",
        1,
        "--bootstrap",
        0,
        "--methods",
        "msp,ebo,knn:k=2,fold,autofold",
        "--alpha",
        0.5,
    )
    done = flatfold("reproduce", "toy.toml", *options, "--no-report", cwd=world.folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"│ Table 2 +│ (agrees|partly|disagrees|cannot be told|not tested) +│", done.stdout)


def test_help_teaches():
    def shown(*arguments):
        command = [sys.executable, "-m", "flatfold", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    text = " ".join(shown("reproduce", "--help").split())
    assert "Example: flatfold reproduce digits" in text
    assert "say of every table and figure whether it agrees" in text
    assert "reproduce" in shown("--help")
