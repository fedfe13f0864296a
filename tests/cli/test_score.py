"""`flatfold score`, as a user meets it: a table on a pipe or in a file, and a sentence for what cannot be."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import typer
from pyarrow.parquet import read_table
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close
from typer.testing import CliRunner

import flatfold as ff
from flatfold.cli.score import score
from flatfold.cli.score_features import _write
from flatfold.detectors import METHODS
from flatfold.models.feature_files import open_features
from flatfold.scoring.verdict import Verdict
from tests.uncovered import environment

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(score)
ALONE = sorted(name for name, entry in METHODS.items() if entry.fits_on == "nothing" and entry.sees == "features")
LEARNING = sorted(name for name, entry in METHODS.items() if entry.fits_on != "nothing" and entry.sees == "features")
SMALL = {"knn": {"k": 5}, "vim": {"dim": 6}, "nnguide": {"k": 5}}  # for a bank of 360 rows with 24 features
pytestmark = [
    pytest.mark.filterwarnings("ignore:AutoFold's curve is flat"),
    pytest.mark.filterwarnings("ignore:every sample of this bank is classified correctly"),
]


def save(path, features, labels=None):
    save_file({"features": features} | ({} if labels is None else {"labels": labels}), path)


def save_head(path, head):
    save_file({"weight": head.weight} | ({} if head.bias is None else {"bias": head.bias}), path)


@pytest.fixture
def here(tmp_path, monkeypatch, world):
    """A folder with a head, unknown features to score, and two sets of known ones."""
    monkeypatch.chdir(tmp_path)
    known = world.bank
    save_head("head.safetensors", world.head)
    save("f.safetensors", world.unknown)
    save("known.safetensors", known.features, known.labels)
    held_out = (known.features * torch.linspace(0.3, 1, len(known))[:, None].to(known.features)).contiguous()
    save("held_out.safetensors", held_out)
    return tmp_path


def run(*arguments, head=True):
    start = ["--features", "f.safetensors", *(("--head", "head.safetensors") if head else ())]
    return CliRunner().invoke(app, [*start, *map(str, arguments)])


def table(text, dtype):
    """Return the columns of a CSV text; numbers with every digit that was written."""
    lines = list(csv.DictReader(io.StringIO(text)))
    columns = {name: [line[name] for line in lines] for name in lines[0]}
    kinds = {"score": dtype, "p_value": dtype}
    return {
        name: np.array(values) == "true" if name == "is_ood" else np.array(values).astype(kinds.get(name, int))
        for name, values in columns.items()
    }


def columns_of(result, world):
    assert result.exit_code == 0, result.output
    return table(result.stdout, world.unknown.numpy().dtype)


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", ALONE)
def test_methods_that_learn_nothing_need_the_head_alone(here, world, name):
    got = columns_of(run("--method", name), world)
    assert list(got) == ["row", "predicted", "score"]
    detector = ff.create(name).fit(world.bank, world.head)
    assert np.array_equal(got["score"], detector(world.unknown).numpy())
    assert np.array_equal(got["predicted"], world.head(world.unknown).argmax(1).numpy())
    assert np.array_equal(got["row"], np.arange(100))


@pytest.mark.parametrize("name", LEARNING)
def test_methods_that_learn_are_fitted_on_what_is_given(here, world, name):
    hyper = SMALL.get(name, {})
    word = name + "".join(f":{key}={value}" for key, value in hyper.items())
    got = columns_of(run("--method", word, "--fit", "known.safetensors"), world)
    detector = ff.create(name, **hyper).fit(world.bank, world.head)
    assert np.array_equal(got["score"], detector(world.unknown).numpy())


def test_the_default_is_fold_and_hyper_parameters_stand_behind_colons(here, world):
    default = ff.create("fold").fit(world.bank, world.head)
    assert np.array_equal(columns_of(run(), world)["score"], default(world.unknown).numpy())
    other = ff.create("fold", alpha=0.9).fit(world.bank, world.head)
    assert np.array_equal(columns_of(run("--method", "fold:alpha=0.9"), world)["score"], other(world.unknown).numpy())


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("fpr", [None, 0.2])
def test_decisions_are_those_of_a_guard_on_the_same_features(here, world, per_class, fpr):
    """The model of the guard is the head itself, so that its features are its inputs."""
    model = nn.Linear(24, 6).to(world.head.weight.dtype)
    model.load_state_dict({"weight": world.head.weight, "bias": world.head.bias})
    known, held_out = world.bank, ff.load_bank(bank_of("held_out.safetensors"))
    rate = 0.05 if fpr is None else fpr
    pairs = [(known.features, known.labels)], [held_out.features]
    guard = ff.Guard.fit(model, pairs[0], "autofold", rate, calibration=pairs[1], per_class=per_class)
    verdict = Verdict(guard(world.unknown).logits, *guard.judge(world.unknown))  # a model's logits may round otherwise
    assert_close(verdict, guard(world.unknown))
    arguments = ["--method", "autofold", "--fit", "known.safetensors", "--calibration", "held_out.safetensors"]
    arguments += ["--per-class"] * per_class + ([] if fpr is None else ["--fpr", fpr])
    result = run(*arguments)
    got = columns_of(result, world)
    assert list(got) == ["row", "predicted", "score", "p_value", "is_ood"]
    check(got, verdict)
    alarms = int(verdict.is_ood.sum())
    assert 0 < alarms <= 100
    assert f"100 rows, {alarms} alarms ({alarms}.00 %) at a false-alarm rate of {rate:g}; " in result.stderr
    guard.save("guard.safetensors")
    check(columns_of(run("--guard", "guard.safetensors", head=False), world), verdict)


def bank_of(name):
    ff.save_bank(open_features(name).bank(), f"{name}.bank")
    return f"{name}.bank"


def check(got, verdict):
    assert np.array_equal(got["score"], verdict.score.numpy())
    assert np.array_equal(got["p_value"], verdict.p_value.numpy())
    assert np.array_equal(got["is_ood"], verdict.is_ood.numpy())
    assert np.array_equal(got["predicted"], verdict.logits.argmax(1).numpy())


def test_a_guard_is_asked_at_another_rate(here, world):
    model = nn.Linear(24, 6).to(world.head.weight.dtype)
    guard = ff.Guard.fit(model, [(world.bank.features, world.bank.labels)], "ebo", 0.05)
    guard.save("guard.safetensors")
    for fpr in (0.02, 0.5):
        result = run("--guard", "guard.safetensors", "--fpr", fpr, head=False)
        got = columns_of(result, world)
        assert np.array_equal(got["is_ood"], guard.at(fpr)(world.unknown).is_ood.numpy())
        assert f"at a false-alarm rate of {fpr}; " in result.stderr


def test_labels_of_the_file_are_a_column(here, world):
    save("f.safetensors", world.unknown, torch.arange(100) - 1)
    got = columns_of(run(), world)
    assert list(got) == ["row", "predicted", "score", "label"]
    assert np.array_equal(got["label"], np.arange(100) - 1)


def test_a_mixture_of_types_is_judged_in_the_widest(here, world):
    save_head("head.safetensors", world.head.to(torch.float32))
    save("f.safetensors", world.unknown.half())
    save("known.safetensors", world.bank.features.double(), world.bank.labels)
    result = run("--method", "mds", "--fit", "known.safetensors")
    bank = ff.FeatureBank(world.bank.features.double(), world.bank.labels)
    detector = ff.create("mds").fit(bank, world.head.to(torch.float32).to(torch.float64))
    got = table(result.stdout, np.float64)
    assert np.array_equal(got["score"], detector(world.unknown.half().double()).numpy())


def test_a_file_that_is_not_used_does_not_matter(here, make_world):
    world = make_world(torch.float32)
    save_head("head.safetensors", world.head)
    save("f.safetensors", world.unknown)
    save("known.safetensors", world.bank.features.double())
    for fit in ("known.safetensors", "none.safetensors"):
        result = run("--method", "mls", "--fit", fit)
        assert result.stderr.startswith("note: mls learns nothing from data: --fit is not used\n")
        assert result.stdout == run("--method", "mls").stdout


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_file_has_the_rows_and_the_standard_output_nothing(here, world, suffix):
    plain = columns_of(run("--calibration", "held_out.safetensors"), world)
    result = run("--calibration", "held_out.safetensors", "--out", f"deep/down/scores.{suffix}")
    assert (result.exit_code, result.stdout) == (0, "")
    path = here / "deep" / "down" / f"scores.{suffix}"
    assert words(result.stderr).endswith(f"rows per second -> deep/down/scores.{suffix}")
    if suffix == "csv":
        got = table(path.read_text(), plain["score"].dtype)
    elif suffix == "jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        got = {name: np.array([line[name] for line in lines]).astype(plain[name].dtype) for name in lines[0]}
    else:
        found = read_table(path)
        got = {name: found.column(name).to_numpy() for name in found.column_names}
    assert list(got) == list(plain)
    for name, values in plain.items():
        assert np.array_equal(got[name], values), name
        assert got[name].dtype == values.dtype, name


def test_the_summary_without_a_calibration_counts_rows_only(here, world):
    line = run().stderr
    assert line.startswith("100 rows; ")
    assert line.endswith(" rows per second\n")
    assert "alarm" not in line
    save("f.safetensors", world.unknown[:1].clone())
    assert run().stderr.startswith("1 row; ")


def test_what_a_method_remarks_is_passed_on(here, world):
    save("known.safetensors", world.bank.features[:18].clone(), world.bank.labels[:18].clone())
    result = run("--method", "autofold", "--fit", "known.safetensors")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("note: AutoFold's curve is flat: ")


USAGE = [
    ([], "features are scored with --head, the model's last linear layer, or with --guard. Give one of them."),
    (["--head", "h", "--guard", "g"], "--guard has a head of its own, so --head cannot be given as well."),
    (
        ["--guard", "g", "--method", "fold"],
        "calibrated already, so --method cannot be given. Leave that out, or use --head",
    ),
    (["--guard", "g", "--fit", "x"], "--guard is fitted and calibrated already, so --fit cannot be given."),
    (
        ["--guard", "g", "--calibration", "x", "--per-class"],
        "already, so --calibration and --per-class cannot be given.",
    ),
    (
        ["--head", "h", "--fpr", "0.1"],
        "--fpr needs held-out known features to compare with. Give them as --calibration.",
    ),
    (["--head", "h", "--per-class"], "--per-class needs held-out known features to compare with."),
    (
        ["--head", "h", "--calibration", "c", "--fpr", "1.5"],
        "Invalid value for --fpr: fpr must lie between 0 and 1, got 1.5.",
    ),
    (["--guard", "g", "--fpr", "0"], "Invalid value for --fpr: fpr must lie between 0 and 1, got 0."),
    (["--head", "h", "--out", "x.txt"], "for --out: a table of rows is a file *.csv, *.jsonl, *.parquet, got 'x.txt'."),
    (["--head", "h", "--out", "."], "for --out: a table of rows is a file *.csv, *.jsonl, *.parquet, got ''."),
    (["--head", "h", "--method", "fild"], "Invalid value for --method: no method is called 'fild'. Did you mean fold"),
    (["--head", "h", "--method", "fold:beta=1"], "Invalid value for --method: fold has no hyper-parameter beta."),
    (["--head", "h", "--method", "fold:0.5"], "Invalid value for --method: 'fold:0.5' is not a method: after a colon"),
    (["--head", "h", "--method", "fold@ood"], "fold@ood asks for tuning, which is for benchmarks. Leave out the @,"),
    (["--head", "h", "--method", "knn@id"], "knn@id asks for tuning, which is for benchmarks."),
    (
        ["--head", "h", "--method", "odin"],
        "odin runs the network on images, but here features are scored. `flatfold methods`",
    ),
    (
        ["--head", "h", "--method", "knn"],
        "knn learns from known data (train). Give its features, and labels if it needs",
    ),
    (["--head", "h", "--method", "autofold"], "autofold learns from known data (val)."),
    (
        ["--head", "h", "--method", "knn", "--fit", "a/../x", "--calibration", "x"],
        "knn has seen what is in --fit, so --calibration must be other data, or its rate would mean nothing.",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), USAGE, ids=[" ".join(arguments) for arguments, _ in USAGE])
def test_options_that_do_not_go_together_are_wrong_usage(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, head=False)
    assert result.exit_code == 2
    assert sentence in words(result.stderr)
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_output_is_wrong_usage(here):
    (here / "scores.csv").mkdir()
    result = run("--out", "scores.csv")
    assert result.exit_code == 2
    assert "for --out: a table of rows is a file, but scores.csv is a folder. Choose another name." in words(
        result.stderr
    )


def test_a_method_that_learns_nothing_may_calibrate_on_what_it_did_not_learn_from(here):
    same = ["--fit", "held_out.safetensors", "--calibration", "held_out.safetensors"]
    assert run("--method", "mls", *same).exit_code == 0


def broken(here, world):
    """Inputs that are wrong, and the sentences that they get."""
    nan = world.unknown.clone()
    nan[77, 3] = torch.nan
    save("nan.safetensors", nan)
    save("wide.safetensors", torch.zeros(30, 25, dtype=nan.dtype))
    save("few.safetensors", world.unknown[:5].clone())
    save("bare.safetensors", world.bank.features)
    (here / "text.safetensors").write_text("hello")
    return [
        (["--features", "nan.safetensors"], "features of nan.safetensors must be finite, but row 77 has a NaN"),
        (["--features", "wide.safetensors"], "wide.safetensors: features have d=25 columns but the head expects d=24."),
        (["--features", "none.npy"], "there are no features at none.npy. Check the path."),
        (["--features", "text.safetensors"], "text.safetensors must be a safetensors file, but cannot be read: "),
        (["--head", "none.safetensors"], "there is no file none.safetensors. Check the path."),
        (["--head", "f.safetensors"], "f.safetensors must hold the tensors 'weight' and, if there is one, 'bias'"),
        (["--method", "mds", "--fit", "bare.safetensors"], "bare.safetensors: "),
        (["--method", "knn", "--fit", "wide.safetensors"], "wide.safetensors: features have d=25 columns"),
        (["--method", "knn", "--fit", "nan.safetensors"], "features of nan.safetensors must be finite, but row 77"),
        (["--calibration", "few.safetensors"], "few.safetensors: a false-alarm rate of 0.05 takes 19 calibration"),
        (["--calibration", "wide.safetensors"], "wide.safetensors: features have d=25 columns"),
        (["--calibration", "none.npz"], "there are no features at none.npz. Check the path."),
    ]


def test_wrong_input_gets_a_sentence_and_leaves_no_file(here, world):
    cases = broken(here, world)
    before = sorted(here.iterdir())
    for arguments, sentence in cases:
        result = run("--out", "scores.csv", *arguments)  # the later of two options counts
        assert isinstance(result.exception, (ValueError, TypeError, OSError)), arguments
        assert sentence in words(str(result.exception))
        assert result.stdout == ""
        assert sorted(here.iterdir()) == before


def test_features_with_more_digits_than_the_guard_are_not_rounded(here, make_world):
    narrow = make_world(torch.float32)
    ff.Guard.fit(nn.Linear(24, 6), [narrow.bank.features], "ebo").save("guard.safetensors")
    save("f.safetensors", narrow.unknown.double())
    result = run("--guard", "guard.safetensors", head=False)
    assert isinstance(result.exception, TypeError)
    assert "holds features in torch.float64, but what judges them was fitted in torch.float32" in str(result.exception)


def test_a_bar_is_not_drawn_where_the_table_goes(here, monkeypatch):
    tracked = []
    monkeypatch.setattr("flatfold.progress.track", lambda items, *about: tracked.append(about) or items)
    run()
    assert tracked == [("scoring", 1)]
    run("--out", "scores.csv")
    assert len(tracked) == 2

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    _write(iter([{"row": np.arange(2)}]), 2, None)
    assert len(tracked) == 2
    assert sys.stdout.getvalue() == "row\n0\n1\n"
    _write(iter([{"row": np.arange(2)}]), 9000, here / "scores.csv")
    assert tracked[2:] == [("scoring", 3)]


def test_the_help_teaches(here):
    result = CliRunner().invoke(app, ["--help"])
    text = words(result.stdout)
    assert text.count("Example: flatfold score --features") == 2
    assert "score (higher = more out-of-distribution)" in text


def flatfold(*arguments, **options):
    """Start the command in a process of its own."""
    code = [sys.executable, "-m", "flatfold", "score", "--features", "f.npy", "--head", "head.safetensors", *arguments]
    return subprocess.Popen(
        code,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
        **options,
    )


@pytest.fixture
def many(here, make_world):
    """Half a million rows, which take a while."""
    world = make_world(torch.float32)
    save_head("head.safetensors", world.head)
    np.save("f.npy", world.unknown.repeat(5000, 1).numpy())
    return here


only_once = pytest.mark.parametrize("world", [torch.float32], indirect=True, ids=str)


@only_once
def test_a_pipe_that_is_closed_early_ends_it_quietly(many):
    process = flatfold()
    assert process.stdout.readline() == "row,predicted,score\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


@only_once
def test_a_pipe_that_nobody_reads_ends_it_quietly_too(here, world):
    """A short table is still in memory when the pipe turns out to be closed, and must not be tried again at the end."""
    np.save("f.npy", world.unknown.numpy())
    process = flatfold()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


@only_once
@pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_run_that_is_stopped_leaves_nothing_half_written(many, how, old):
    out = many / "out" / "scores.csv"
    out.parent.mkdir()
    if old:
        out.write_text(old)
    process = flatfold("--out", str(out))
    while not any(path.stat().st_size for path in out.parent.glob("*.partial")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(how)
    _, errors = process.communicate()
    assert process.returncode == (130 if how == signal.SIGINT else -how), errors
    assert (out.read_text() if out.exists() else None) == old
    if how == signal.SIGINT:
        assert errors == f"flatfold: stopped: nothing was written to {out}\n"
        assert [path.name for path in out.parent.iterdir()] == ([] if old is None else ["scores.csv"])


@only_once
def test_the_program_ends_with_its_code_and_one_line(here, world):
    process = flatfold()
    out, errors = process.communicate()
    assert (process.returncode, out, errors) == (1, "", "flatfold: there are no features at f.npy. Check the path.\n")
    np.save("f.npy", world.unknown.numpy())
    process = flatfold("--method", "knn")
    assert process.communicate()[0] == ""
    assert process.returncode == 2
    process = flatfold()
    out, errors = process.communicate()
    assert (process.returncode, len(out.splitlines()), len(errors.splitlines())) == (0, 101, 1)
