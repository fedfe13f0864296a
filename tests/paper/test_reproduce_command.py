"""``flatfold reproduce``: a small run from the images to the verdicts, and what reaches it."""

import json
import re

import pytest

from tests.cli.images import write_suite
from tests.cli.running import assert_mistakes, listing, succeed
from tests.command import flatfold
from tests.toy_study import draw_nothing

SMALL = ("--samples", 4, "--rounds", 1, "--bootstrap", 0, "--alpha", 0.5, "--methods", "msp,ebo,knn:k=2,fold,autofold")
TOY = ("reproduce", "toy.toml", *SMALL)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder and the output of a run with two networks."""
    folder = write_suite(tmp_path_factory.mktemp("paper")).folder
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        return folder, succeed(*TOY, cwd=folder).stdout


@pytest.fixture
def stopped(interrupt):
    return interrupt("flatfold.paper.run.reproduce")


def verdicts(text):
    return re.findall(r"│ ((?:Table|Figure) \d+)\S* +│ (agrees|partly|disagrees|undecided|not tested) +│", text)


def test_each_network_has_a_folder_and_all_have_verdicts_and_pages(done):
    folder, text = done
    found = verdicts(text)
    assert {"Table 1", "Table 2", "Figure 4"} <= {number for number, _ in found}
    (counts,) = re.findall(r"(\d+) claims: (.*)\.", text)
    assert int(counts[0]) == sum(map(int, re.findall(r"\d+", counts[1])))
    assert not re.search(r"\b1 (agree|disagree)\b|\b([02-9]|\d\d+) (agrees|partly|disagrees)\b", counts[1])
    out = folder / "out" / "paper" / "toy"
    for network in ("tiny", "deep"):
        assert f"{network} -> out/paper/toy/{network}" in text
        names = {path.name for path in (out / network).iterdir()}
        assert {"results.json", "curvature.json", "ablations.json", "report.html", "curvature.html"} <= names
    assert {"summary.csv", "report.html", "reproduction.html"} <= {path.name for path in out.iterdir()}
    assert (out / "full-scale" / "cifar10.sh").exists()


def test_networks_of_an_earlier_run_are_kept_and_judged_too_unless_they_are_damaged(done):
    folder, text = done
    out = folder / "out" / "paper" / "toy"
    kept = listing(out / "deep" / "banks")
    again = succeed(*TOY, "--networks", "deep", "--no-report", cwd=folder).stdout
    assert verdicts(again) == verdicts(text)
    assert "html" not in again
    assert listing(out / "deep" / "banks") == kept
    (out / "tiny" / "ablations.json").write_text("{")
    less = succeed(*TOY, "--networks", "deep", "--no-report", "--restart", cwd=folder)
    assert "tiny is omitted" in less.stderr
    assert all(listing(out / "deep" / "banks")[path] > time for path, time in kept.items())


def test_a_single_network_lies_in_the_folder_itself(tmp_path):
    world = write_suite(tmp_path)
    world.document["network"].pop()
    world.file()
    summary = json.loads(succeed(*TOY, "--out", "mine", "--no-report", "--json", cwd=tmp_path).stdout)
    assert "Table 1" in {verdict["number"] for verdict in summary["verdicts"]}
    assert json.loads((tmp_path / "mine" / "ablations.json").read_text())
    assert not (tmp_path / "mine" / "summary.json").exists()
    world.document["name"] = "second"
    world.file()
    assert_mistakes(TOY, [(["--out", "mine"], 1, "'second'")], tmp_path)


def test_options_reach_the_run_and_an_interrupted_one_says_that_it_goes_on(tmp_path, stopped):
    write_suite(tmp_path)
    numbers = ("--samples", 9, "--rounds", 3, "--alpha", 0.25, "--bootstrap", 7, "--workers", 2, "--limit", 5)
    others = ("--methods", "msp,knn:k=3", "--max-unreadable", 0.5, "--batch-size", 4, "--seed", 6)
    ended = flatfold("reproduce", "toy.toml", *numbers, *others, cwd=tmp_path)
    assert (ended.returncode, "same command" in ended.stderr) == (130, True)
    suite, place, settings, plan = stopped.call_args.args
    assert (plan.samples, plan.rounds, plan.alpha, plan.batch_size) == (9, 3, 0.25, 256)
    assert [spec.label for spec in plan.methods] == ["msp", "knn:k=3"]
    loading = settings.loading
    assert (settings.device, loading.workers, loading.max_unreadable, settings.replicates) == ("cpu", 2, 0.5, 7)
    assert settings.command.startswith("flatfold reproduce toy.toml --samples 9")
    assert (suite.seed, suite.test.batch_size, suite.test.rows, str(place)) == (6, 4, 5, "out/paper/toy/tiny")
    flatfold("reproduce", "toy.toml", cwd=tmp_path)
    suite, _, _, plan = stopped.call_args.args
    assert (plan.methods, plan.alpha, plan.samples, suite.test.batch_size) == (None, None, 200, 64)


def test_of_digits_all_networks_are_taken_unless_some_are_named(tmp_path, interrupt):
    asked = interrupt("flatfold.evaluate.suites.library.load_suites")
    for options in ((), ("--networks", "mlp, cnn")):
        assert flatfold("reproduce", "digits", *options, cwd=tmp_path).returncode == 130
    assert [(name, str(out), names) for name, out, *_, names, _, _ in (call.args for call in asked.call_args_list)] == [
        ("digits", "out/paper/digits", names) for names in (["cnn", "mlp", "residual"], ["mlp", "cnn"])
    ]


def test_mistakes(tmp_path, stopped):
    write_suite(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "results.json").write_text("{}")
    cases = [
        (["cifar11"], 1, "cifar11"),
        (["toy.toml", "--networks", "huge"], 1, "huge"),
        (["toy.toml", "--methods", "fould"], 1, "fould"),
        (["toy.toml", "--alpha", "2"], 2, "alpha"),
        (["toy.toml", "--samples", "1"], 2, "samples"),
        (["toy.toml", "--out", "mine"], 1, "single run"),
    ]
    assert_mistakes(("reproduce",), cases, tmp_path)
    assert not stopped.called
