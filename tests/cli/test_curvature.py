"""``flatfold curvature``: the table, the files, and what is said about them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from flatfold.cli.curvature import format_value, print_study
from flatfold.evaluate.study_results import Detection, Statistic, Study, load_study
from tests.cli.images import write_suite
from tests.cli.running import assert_mistakes, listing, succeed, words
from tests.command import flatfold
from tests.toy_study import draw_nothing

OPTIONS = ("--samples", 7, "--probes", 2, "--steps", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_suite(tmp_path_factory.mktemp("own")).folder


@pytest.fixture(scope="module")
def done(folder):
    return succeed("curvature", "toy.toml", *OPTIONS, "--no-report", cwd=folder)


def test_each_network_gets_a_table_and_files(folder, done):
    for network, size in (("tiny", 16 * 3 + 3), ("deep", 16 * 8 + 8 + 8 * 3 + 3)):
        assert re.search(rf"toy, {network}: .* {size} parameters", words(done.stdout))
        study = load_study(folder / "out" / "toy" / network)
        assert study.sizes["parameter"] == size
        assert study.provenance["command"].startswith("flatfold curvature toy.toml --samples 7")
        assert (study.provenance["probes"], study.provenance["steps"]) == (2, 3)
        assert (folder / "out" / "toy" / network / "curvature.csv").exists()
    study = load_study(folder / "out" / "toy" / "tiny")
    table = done.stdout[: done.stdout.index("toy, deep")]
    for name in ("id", "strange", "dark", r"near \(mean\)", r"far \(mean\)"):
        (line,) = [line for line in table.splitlines() if re.match(rf"│ {name} +│", line)]
        assert len(re.findall(r" x[\d.e+-]+ ", line)) == (0 if name == "id" else 4)
    assert f"{study.cells['strange', 'feature', 'trace'].value:.4g}"[:4] in table
    assert "at most 7 images" in table


def test_a_second_run_reads_what_is_there_and_a_restart_computes_again(folder, done):
    arguments = ("curvature", "toy.toml", "--networks", "tiny", *OPTIONS, "--no-report")
    parts = folder / "out" / "toy" / "tiny" / "curvature"
    stamps = listing(parts)
    again = succeed(*arguments, cwd=folder)
    assert again.stdout == done.stdout[: done.stdout.index("toy, deep")].rstrip(" ")
    assert stamps
    (summary,) = json.loads(succeed(*arguments, "--json", cwd=folder).stdout)["runs"]
    assert {each["dataset"] for each in summary["statistics"]} == {"id", "dark", "strange"}
    assert listing(parts) == stamps
    assert succeed(*arguments, "--restart", cwd=folder).stdout == again.stdout
    assert all(listing(parts)[path] > stamp for path, stamp in stamps.items())


def test_options_reach_the_study(folder):
    options = ("--matrix", "ggn", "--loss", "ce_pred", "--alpha", 0.25, "--out", "elsewhere", "--networks", "deep")
    small = ("--seed", 4, "--batch-size", 5, "--no-report")
    done = succeed("curvature", "toy.toml", *OPTIONS, *options, *small, cwd=folder)
    study = load_study(next((folder / "elsewhere").glob("**/curvature.json")).parent)
    assert study.alphas["partial"] == 0.25
    told = {"matrix": "ggn", "loss": "ce_pred", "seed": 4, "seed of the probes": 4}
    assert told.items() <= study.provenance.items()
    assert "Gauss-Newton" in done.stdout


def test_pages_are_drawn_with_the_report_of_a_benchmark_in_the_same_folder(folder, done, monkeypatch):
    draw_nothing(monkeypatch)
    place = folder / "out" / "toy" / "deep"
    command = ("curvature", "toy.toml", "--networks", "deep", *OPTIONS)
    text = succeed(*command, cwd=folder).stdout
    assert ("curvature.html" in text, "report.html" in text) == (True, False)
    assert "<html" in (place / "curvature.html").read_text()
    bench = ("--networks", "deep", "--methods", "msp", "--bootstrap", 0, "--no-report")
    succeed("bench", "toy.toml", *bench, cwd=folder)
    assert "report.html" in succeed(*command, cwd=folder).stdout
    assert 'id="curvature-traces"' in (place / "report.html").read_text(encoding="utf8")


def test_mistakes(folder, tmp_path):
    cases = [
        (["digits", "--loss", "ce"], 1, "ce"),
        (["digits", "--loss", "mse"], 1, "'mse'"),
        (["digits", "--matrix", "fisher"], 1, "hessian"),
        (["cifar11"], 1, "cifar11"),
        (["digits", "--alpha", "2"], 2, "alpha"),
        (["digits", "--samples", "1"], 2, "samples"),
    ]
    for name in ("single/curvature.json", "bench/results.json", "several/one/curvature.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    one, two = folder / "one.toml", folder / "toy.toml"
    one.write_text(two.read_text().replace('[[network]]\nname = "deep"\nfactory = "nets:deep"\n', ""))
    cases += [
        ([two, "--out", "single"], 1, "single run"),
        ([two, "--out", "bench"], 1, "single run"),
        ([one, "--out", "several"], 1, "several runs"),
    ]
    assert_mistakes(("curvature",), cases, tmp_path)


def test_an_interrupted_study_says_that_it_goes_on(tmp_path, interrupt, folder):
    interrupt("flatfold.evaluate.study.run_study")
    stopped = flatfold("curvature", folder / "toy.toml", "--networks", "tiny", cwd=tmp_path)
    assert (stopped.returncode, "same command" in stopped.stderr) == (130, True)


PLACES = [("parameter", 0.0, "all", 0.9), ("feature", 0.38, "all", 0.9234), ("feature", 0.38, "pens", 0.5)]


@pytest.fixture
def study():
    values = {"id": 2.0, "pens": 6.0, "noise": 1.0}
    groups = {"id": "id", "pens": "near", "noise": "far"}
    ood = [{"name": name, "group": groups[name]} for name in ("pens", "noise")]
    return Study(
        suite={"name": "toy", "network": "[net]", "ood": ood, "deviations": ["it is made up"]},
        statistics=[
            Statistic(dataset, groups[dataset], space, name, value, None, f"{name} method", "ggn", "ce_pred", 3, 5)
            for dataset, value in values.items()
            for space in ("parameter", "feature", "logit")
            for name in ("lambda_max", "trace")
        ],
        detections=[Detection(*place, 0.8, 0.95) for place in PLACES],
        alphas={"none": 0.0, "partial": 0.38, "full": 1.0},
        **{name: {} for name in ("traces", "trace_stderr", "nodes", "weights", "eigenvalues")},
        sizes={"parameter": 99, "feature": 4, "logit": 3},
        provenance={"loss": "ce_pred", "matrix": "ggn"},
    )


@pytest.fixture
def shown(study, printed, terminal):
    """Print the study, with the statistics changed by a function of each."""

    def shown(change=lambda s: {}, width=160, **parts):
        changed = replace(study, statistics=[replace(s, **change(s)) for s in study.statistics], **parts)
        return printed(print_study, changed, width=width)

    return shown


def test_figures_stand_beside_their_ratio_to_id(shown):
    text = shown()
    assert re.search(r"│ id +│ +5 │ +2\.000 │", text)
    assert re.search(r"│ pens +│ +5 │ +6\.000 x3\.00 │", text)
    assert re.search(r"│ far \(mean\) +│ +5 │ +1\.000 x0\.500 │", text)
    assert re.search(r"toy, \[net\]: .* 99 parameters and 4 features", words(text))
    assert "parameter lambda_max: lambda_max method." in text
    assert re.search(r"parameters 90\.00, features \(alpha = 0\.38\) 92\.34", text)
    assert "it is made up" in text
    assert "logit" not in text
    negative = shown(lambda s: {"value": -1.0} if s.dataset == "id" else {})
    assert not re.search(r" x\d", negative), "there is no ratio to a negative figure"
    narrow = shown(lambda s: {"value": -1.234e-10 if s.dataset == "id" else 123456.0, "stderr": 1e3}, width=80)
    assert ("…" in narrow, narrow.count("1.235e+05")) == (False, 16)


def test_claims_of_the_paper_that_do_not_hold_or_are_open_are_named(shown):
    text = shown()
    assert text.count("claim") == 4
    assert "parameter trace of noise: below id" in text
    assert "claim" not in shown(lambda s: {"value": 3.0} if s.dataset == "noise" else {})
    text = shown(lambda s: {"stderr": 0.6} if (s.space, s.name) == ("parameter", "trace") else {})
    assert "parameter trace of noise: below id" not in text
    assert "parameter lambda_max of noise: below id" in text
    assert "parameter trace of noise is not significantly different" in text
    below = "eigenvalues below zero"
    assert below not in text
    assert below in shown(lambda s: {"value": 1.9} if (s.dataset, s.name) == ("id", "trace") else {})


def test_scores_from_estimated_traces_are_called_estimates(shown, study):
    assert "estimate" not in shown()
    traces = {f"parameter/{name}": np.array([2.0, 4.0]) for name in study.datasets}
    text = shown(traces=traces, trace_stderr={"parameter/pens": np.array([1.0, 3.0])})
    assert "± 62 %" in words(text)


def test_an_error_is_shown_where_it_can_change_a_digit(study):
    figures = {(631.63, 0.001): "631.6", (631.63, 3.21): "631.6 ± 3", (-61.8, 2.0): "-61.80 ± 2"}
    figures |= {(123456.0, None): "1.235e+05", (4.2e-10, None): "4.200e-10", (1234.0, None): "1234"}
    for (value, stderr), figure in figures.items():
        assert format_value(replace(study.statistics[0], value=value, stderr=stderr)) == figure
