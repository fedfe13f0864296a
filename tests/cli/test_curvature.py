"""``flatfold curvature``: the table, the files, the sentences."""

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
from rich.console import Console

from flatfold.cli import curvature_table, main
from flatfold.cli.curvature import check_study_folder
from flatfold.evaluate.study.files import Detection, Statistic, Study, load_study
from tests.toy_study import draw_less, draw_nothing

FACTORY = """
import torch
from torch import nn

def small(width=6):
    torch.manual_seed(width)
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, width), nn.ReLU(), nn.Linear(width, 3))

def large():
    return small(9)
"""
SUITE = """
about = "Colours."
[[network]]
name = "small"
factory = "nets:small"
[[network]]
name = "large"
factory = "nets:large"
[val]
npz = "known.npz"
per_class = 20
[test]
npz = "known.npz"
rest_of = "val"
[[ood]]
name = "noise"
group = "near"
npz = "unknown.npz"
[[ood]]
name = "night"
group = "far"
npz = "night.npz"
"""
OPTIONS = ("--samples", 12, "--probes", 2, "--steps", 3, "--no-report")


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
        patch.setenv("COLUMNS", "80")
        patch.setattr(sys, "argv", ["flatfold", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
    return Done(left.value.code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A suite of somebody's own with two networks."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 40)
    x = rng.integers(0, 120, (120, 8, 8, 3))
    x[np.arange(120), :, :, y] += 120
    np.savez(folder / "known.npz", x=x.astype(np.uint8), y=y)
    np.savez(folder / "unknown.npz", x=rng.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8))
    np.savez(folder / "night.npz", x=rng.integers(0, 9, (30, 8, 8, 3), dtype=np.uint8))
    (folder / "nets.py").write_text(FACTORY)
    (folder / "mine.toml").write_text(SUITE)
    return folder


@pytest.fixture(scope="module")
def done(folder):
    """What the command says about both networks."""
    done = flatfold("curvature", "mine.toml", *OPTIONS, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def test_each_network_gets_a_table_and_files(folder, done):
    for network, size in (("small", 48 * 6 + 6 + 6 * 3 + 3), ("large", 48 * 9 + 9 + 9 * 3 + 3)):
        place = folder / "out" / "mine" / network
        title = f"mine, {network}: Hessian of the energy logsumexp(z) over {size} parameters"
        assert title in " ".join(done.stdout.split())
        for name in ("curvature.csv", "curvature.json", "curvature.safetensors"):
            assert (place / name).exists()
            assert str(place.relative_to(folder) / name) in done.stdout
        assert not (place / "curvature.html").exists()
        study = load_study(place)
        assert study.sizes["parameter"] == size
        assert study.provenance["command"].startswith("flatfold curvature mine.toml --samples 12")
        assert (study.provenance["probes"], study.provenance["steps"]) == (2, 3)


def test_the_table_has_every_data_set_and_the_means(folder, done):
    study = load_study(folder / "out" / "mine" / "small")
    table = done.stdout[: done.stdout.index("mine, large")]
    for name in ("id", "noise", "night", r"near \(mean\)", r"far \(mean\)"):
        (line,) = [line for line in table.splitlines() if re.match(rf"│ {name} +│", line)]
        assert len(re.findall(r" x[\d.e+-]+ ", line)) == (0 if name == "id" else 4)
    assert f"{study.cell('noise', 'feature', 'trace').value:.4g}"[:4] in table
    assert "Before you compare: at most 12 images of each data set were taken." in table


def test_a_second_run_says_the_same_and_a_restart_computes_again(folder, done):
    parts = sorted((folder / "out" / "mine" / "small" / "curvature").iterdir())
    stamps = [path.stat().st_mtime_ns for path in parts]
    arguments = ("curvature", "mine.toml", "--networks", "small", *OPTIONS)
    again = flatfold(*arguments, cwd=folder)
    assert again.stdout == done.stdout[: done.stdout.index("mine, large")].rstrip(" ")
    assert [path.stat().st_mtime_ns for path in parts] == stamps
    assert flatfold(*arguments, "--restart", cwd=folder).stdout == again.stdout
    assert all(path.stat().st_mtime_ns > stamp for path, stamp in zip(parts, stamps, strict=True))


def test_options_reach_the_study(folder):
    options = ("--matrix", "ggn", "--loss", "ce_pred", "--alpha", 0.25, "--out", "elsewhere", "--networks", "large")
    done = flatfold("curvature", "mine.toml", *OPTIONS, *options, "--seed", 4, "--batch-size", 5, cwd=folder)
    assert done.returncode == 0, done.stderr
    study = load_study(next((folder / "elsewhere").glob("**/curvature.json")).parent)
    assert study.alphas["partial"] == 0.25
    told = {"matrix": "ggn", "loss": "ce_pred", "seed": 4, "seed of the probes": 4}
    assert told.items() <= study.provenance.items()
    assert "Gauss-Newton matrix of the cross-entropy of the predicted class" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["digits", "--loss", "ce"], 1, "flatfold: the loss ce is the cross-entropy of the label, and unknown images"),
        (["digits", "--loss", "mse"], 1, "flatfold: loss must be energy or ce_pred, got 'mse'"),
        (["digits", "--matrix", "fisher"], 1, "flatfold: matrix must be one of hessian, ggn"),
        (["digits", "--device", "abacus"], 1, "flatfold: device 'abacus' cannot be used here"),
        (["digits", "--seed", "-1"], 1, "flatfold: --seed takes whole numbers from 0"),
        (["cifar11"], 1, "flatfold: no suite is called 'cifar11'"),
        (["digits", "--alpha", "2"], 2, "alpha"),
        (["digits", "--samples", "1"], 2, "samples"),
        ([], 2, "Missing argument 'suite'"),
    ],
)
def test_a_mistake_gets_a_sentence_and_no_traceback(arguments, code, message, tmp_path):
    result = flatfold("curvature", *arguments, cwd=tmp_path)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_teaches():
    def shown(*arguments):
        command = [sys.executable, "-m", "flatfold", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    text = " ".join(shown("curvature", "--help").split())
    assert "Example: flatfold curvature digits" in text
    assert "--networks resnet20 --samples 200" in text
    assert "bends more sharply on unknown images" in text
    assert "curvature" in shown("--help")


def test_a_study_does_not_come_to_lie_among_others(tmp_path):
    check_study_folder(tmp_path / "new", several=True)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "curvature.json").write_text("{}")
    check_study_folder(tmp_path / "one", several=False)
    with pytest.raises(ValueError, match=r"holds a study of a single network\. Give another --out for several"):
        check_study_folder(tmp_path / "one", several=True)
    check_study_folder(tmp_path, several=True)
    with pytest.raises(ValueError, match=r"holds studies of several networks\. Give another --out for this one"):
        check_study_folder(tmp_path, several=False)
    (tmp_path / "one" / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="holds the results of a single run"):
        check_study_folder(tmp_path / "one", several=True)


def test_an_interrupted_study_says_that_it_goes_on(tmp_path, monkeypatch, folder):
    from flatfold.evaluate.study import run

    def stop(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_study", stop)
    stopped = flatfold("curvature", folder / "mine.toml", "--networks", "small", cwd=tmp_path)
    assert stopped.returncode == 130
    assert "The same command goes on with what is already in" in stopped.stderr


@pytest.fixture
def study():
    values = {"id": 2.0, "pens": 6.0, "noise": 1.0}
    groups = {"id": "id", "pens": "near", "noise": "far"}
    return Study(
        suite={
            "name": "toy",
            "network": "[net]",
            "ood": [{"name": name, "group": group} for name, group in groups.items() if name != "id"],
            "deviations": ["it is made up"],
        },
        statistics=[
            Statistic(dataset, groups[dataset], space, name, value, None, f"{name} method", "ggn", "ce_pred", 3, 5)
            for dataset, value in values.items()
            for space in ("parameter", "feature", "logit")
            for name in ("lambda_max", "trace")
        ],
        detections=[
            Detection("parameter", 0.0, "all", 0.9, 0.8, 0.95),
            Detection("feature", 0.38, "all", 0.92345, 0.8, 0.95),
            Detection("feature", 0.38, "pens", 0.5, 0.4, 0.6),
        ],
        alphas={"none": 0.0, "partial": 0.38, "full": 1.0},
        traces={},
        trace_stderr={},
        nodes={},
        weights={},
        sizes={"parameter": 99, "feature": 4, "logit": 3},
        eigenvalues={},
        provenance={"loss": "ce_pred", "matrix": "ggn"},
    )


def printed(study, monkeypatch, width=160):
    text = io.StringIO()
    console = Console(file=text, color_system=None, force_terminal=True, width=width)
    monkeypatch.setattr("rich.console.Console", lambda: console)
    curvature_table.print_study(study)
    return text.getvalue()


def test_figures_stand_beside_their_factor(study, monkeypatch):
    text = printed(study, monkeypatch)
    assert re.search(r"│ id +│ +5 │ +2\.000 │", text)
    assert re.search(r"│ pens +│ +5 │ +6\.000 x3\.00 │", text)
    assert re.search(r"│ far \(mean\) +│ +5 │ +1\.000 x0\.500 │", text)
    title = (
        "toy, [net]: Gauss-Newton matrix of the cross-entropy of the predicted class over 99 parameters and 4 features."
    )
    assert title in " ".join(text.split())
    assert "logit" not in text


def test_a_narrow_terminal_gets_every_figure_whole(study, monkeypatch):
    long = [replace(s, value=-1.234e-10 if s.dataset == "id" else 123456.0, stderr=1e3) for s in study.statistics]
    text = printed(replace(study, statistics=long), monkeypatch, width=80)
    assert "…" not in text
    assert text.count("1.235e+05") == 16


def test_it_says_how_it_was_computed_and_what_traces_are_worth_as_scores(study, monkeypatch):
    text = printed(study, monkeypatch)
    assert "parameter lambda_max: lambda_max method." in text
    assert "parameter trace: trace method." in text
    assert re.search(r"mean AUROC in percent: parameters 90\.00, features \(alpha = 0\.38\) 92\.3[45]\.", text)
    assert "Before you compare: it is made up." in text


def test_it_says_where_the_claim_of_the_paper_does_not_hold(study, monkeypatch):
    text = printed(study, monkeypatch)
    assert "The paper's claim does not hold here for the parameter trace of noise: below id." in text
    assert text.count("The paper's claim") == 4
    higher = [replace(s, value=3.0) if s.dataset == "noise" else s for s in study.statistics]
    assert "The paper's claim" not in printed(replace(study, statistics=higher), monkeypatch)


def test_what_errors_leave_open_is_said_to_be_open(study, monkeypatch):
    wide = [replace(s, stderr=0.6) if (s.space, s.name) == ("parameter", "trace") else s for s in study.statistics]
    text = printed(replace(study, statistics=wide), monkeypatch)
    assert "The parameter trace of noise cannot be told apart from that of id." in text
    assert "for the parameter trace of" not in text
    assert "for the parameter lambda_max of noise: below id." in text


def test_a_trace_below_lambda_max_is_explained(study, monkeypatch):
    sentence = "A parameter trace below its lambda_max is no mistake: eigenvalues below zero count in it."
    assert sentence not in printed(study, monkeypatch)
    lower = [replace(s, value=1.9) if (s.dataset, s.name) == ("id", "trace") else s for s in study.statistics]
    assert sentence in printed(replace(study, statistics=lower), monkeypatch)


def test_scores_from_estimated_traces_are_called_estimates(study, monkeypatch):
    assert "estimate" not in printed(study, monkeypatch)
    traces = {f"parameter/{name}": np.array([2.0, 4.0]) for name in study.datasets}
    error = {"parameter/pens": np.array([1.0, 3.0])}
    text = " ".join(printed(replace(study, traces=traces, trace_stderr=error), monkeypatch).split())
    assert "Over parameters it is an estimate, typically ± 62 %, with errors that images of a batch share" in text


@pytest.mark.parametrize(
    ("value", "stderr", "figure"),
    [
        (631.63, None, "631.6"),
        (631.63, 0.001, "631.6"),
        (631.63, 3.21, "631.6 ± 3"),
        (-61.8, 2.0, "-61.80 ± 2"),
        (123456.0, None, "1.235e+05"),
        (4.2e-10, None, "4.200e-10"),
        (1234.0, None, "1234"),
    ],
)
def test_an_error_is_shown_where_it_can_change_a_digit(value, stderr, figure, study):
    assert curvature_table.rounded(replace(study.statistics[0], value=value, stderr=stderr)) == figure


def test_a_negative_figure_of_known_images_gets_no_factor(study, monkeypatch):
    negative = [replace(s, value=-1.0) if s.dataset == "id" else s for s in study.statistics]
    assert not re.search(r" x\d", printed(replace(study, statistics=negative), monkeypatch))


def test_the_page_is_written_where_the_study_is(folder, done, monkeypatch):
    draw_less(monkeypatch)
    options = ("--networks", "small", *OPTIONS[:-1])
    page = folder / "out" / "mine" / "small" / "curvature.html"
    done = flatfold("curvature", "mine.toml", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"curvature -> {page.relative_to(folder)}" in done.stdout
    assert "report.html" not in done.stdout
    assert "<html" in page.read_text()


def test_the_report_of_a_benchmark_in_the_same_folder_is_drawn_again(folder, done, monkeypatch):
    draw_nothing(monkeypatch)
    options = ("mine.toml", "--networks", "large")
    assert flatfold("bench", *options, "--methods", "msp", "--bootstrap", 0, "--no-report", cwd=folder).returncode == 0
    again = flatfold("curvature", *options, *OPTIONS[:-1], cwd=folder)
    assert again.returncode == 0, again.stderr
    report = folder / "out" / "mine" / "large" / "report.html"
    assert f"report -> {report.relative_to(folder)}" in again.stdout
    assert 'id="curvature-traces"' in report.read_text(encoding="utf8")
