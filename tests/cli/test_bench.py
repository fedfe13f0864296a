"""``flatfold bench``, ``report`` and the table of results; most of it on the shared run of the digits suite."""

import csv
import errno
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

import flatfold as ff
from flatfold.cli.bench import print_results, print_summary
from flatfold.evaluate.results import METRICS, load_results
from flatfold.evaluate.summary import summarise
from flatfold.io.files import locked
from tests.cli.images import write_suite
from tests.cli.running import assert_mistakes, listing, succeed, words
from tests.command import flatfold
from tests.evaluate.runs import make_run
from tests.openood_tree import make_openood
from tests.toy_study import draw_nothing

SMALL = ("--limit", 150, "--limit-fit", 150, "--bootstrap", 100)


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def pages(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))


def stamps(folder):
    """Return when the network, the images and the features were written."""
    kept = ("network", "data", "banks")
    return {path: time for path, time in listing(folder).items() if path[len(str(folder)) + 1 :].startswith(kept)}


def test_the_files_of_a_run_are_whole_and_agree_and_fold_finds_other_images(digits):
    names = {path.name for path in digits.iterdir()}
    assert {"results.json", "results.csv", "averages.csv", "scores.safetensors", "banks", "data"} <= names
    assert not [path for path in digits.rglob("*") if "tmp" in path.name or "partial" in path.name]
    rows = results_of(digits)["rows"]
    with (digits / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], float(line["auroc"])) for line in lines] == [(row["method"], row["auroc"]) for row in rows]
    assert {row["method"] for row in rows} == set(ff.methods())
    assert len(rows) == 4 * len(ff.methods())
    assert results_of(digits)["suite"]["accuracy"] > 0.95
    assert min(row["auroc"] for row in rows if row["method"] in ("fold", "autofold")) > 0.9


def test_a_second_run_trains_and_extracts_nothing_and_gives_the_same_numbers(copy_digits):
    folder = copy_digits / "out" / "digits"
    before, written = load_results(folder), stamps(folder)
    assert len(written) > 5
    done = succeed("bench", "digits", "--methods", "fold,autofold", *SMALL, "--no-report", cwd=copy_digits)
    assert stamps(folder) == written
    was = {(row.method, row.dataset): row for row in before.rows}
    again = load_results(folder).rows
    assert len(again) == 8
    for row in again:
        old = was[row.method, row.dataset]
        assert replace(row, certainty=None) == replace(old, certainty=None)
        assert row.certainty.intervals == old.certainty.intervals  # whichever other methods are there
    for name in ("fold", "autofold"):
        (line,) = [line for line in done.stdout.splitlines() if re.match(rf"│ {name} +│", line)]
        assert len(re.findall(r"\d+\.\d\d / \d+\.\d\d", line)) == 6  # four data sets, far, average


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_whole_digits_suite_in_a_process_of_its_own(digits, tmp_path):
    """All images with the trained network, and the page with its figures."""
    folder = tmp_path / "out" / "digits"
    folder.mkdir(parents=True)
    shutil.copy(digits / "network-seed0.safetensors", folder)
    command = [sys.executable, "-m", "flatfold", "bench", "digits"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pruned" not in done.stderr  # what fontTools has to say of the figures
    results = load_results(folder)
    assert results.suite["accuracy"] > 0.97
    assert min(row.auroc for row in results.rows if row.method in ("fold", "autofold")) > 0.9
    assert all(re.search(rf"│ {name} +│", done.stdout) for name in ff.methods())
    assert (folder / "report.html").stat().st_size > 100_000


def test_report_draws_the_pages_of_whatever_a_folder_holds(digits, tmp_path, monkeypatch):
    draw_nothing(monkeypatch)
    expected = {"bench": ["report.html"], "study": ["curvature.html"], "both": ["curvature.html", "report.html"]}
    for name, left_out in (("bench", "curvature*"), ("study", "results*"), ("both", "none")):
        shutil.copytree(digits, tmp_path / name, ignore=shutil.ignore_patterns(left_out))
        if name != "study":
            content = results_of(tmp_path / name)
            content["suite"]["network"] = name
            (tmp_path / name / "results.json").write_text(json.dumps(content))
        printed = succeed("report", name, cwd=tmp_path).stdout
        assert pages(tmp_path / name) == expected[name]
        assert all(page in printed for page in expected[name]), name
    for name, holds in (("bench", False), ("both", True)):
        page = tmp_path / name / "report.html"
        assert ('id="curvature-traces"' in page.read_text(encoding="utf8")) is holds, name
    for page in tmp_path.rglob("*.html"):
        page.unlink()
    succeed("report", ".", cwd=tmp_path)
    every = [f"{name}/{page}" for name, of_one in expected.items() for page in of_one]
    assert pages(tmp_path) == sorted([*every, "report.html"])


def test_mistakes(tmp_path):
    (tmp_path / "file").touch()
    cases = [
        *((["bench", "digits", "--out", out], 1, "--out") for out in ("file", "file/inside")),
        (["bench", "digits", "--methods", "fould"], 1, "Did you mean fold"),
        (["bench", "digits", "--methods", ""], 1, "at least one method"),
        (["bench", "digits", "--methods", "msp@ood"], 1, "msp@ood"),
        (["bench", "digits", "--device", "abacus"], 1, "abacus"),
        (["bench", "digits", "--seed", "-1"], 1, "--seed"),
        (["bench", "cifar10", "--data", "nowhere"], 1, "nowhere"),
        (["report", "nowhere"], 1, "results.json"),
        (["report", "."], 1, "results.json"),
    ]
    assert_mistakes((), cases, tmp_path)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The folder and the output of a run with two networks."""
    world = write_suite(tmp_path_factory.mktemp("own"))
    methods = "msp,knn:k=5,odin,mds,ash@ood,fold@id,odin@ood,knn:k=500"
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        done = succeed("bench", "toy.toml", "--methods", methods, "--bootstrap", 50, cwd=world.folder)
    toml = world.path.read_text()
    (world.folder / "wrong.toml").write_text(toml.replace("per_class", "per_clas"))
    world.document["network"].pop()
    world.path = world.folder / "alone.toml"
    world.file()
    return world.folder, done


def bench(folder, *arguments, suite="toy.toml", methods="msp", **window):
    options = ("--methods", methods, "--bootstrap", 0, "--no-report", *arguments)
    return flatfold("bench", suite, *options, cwd=folder, **window)


def test_each_network_gets_a_folder_and_a_table_and_all_a_summary(own):
    """The table tells what a method was tuned on, and which ones were refused."""
    folder, done = own
    out = folder / "out" / "toy"
    tuned = {"msp": "", "knn:k=5": "", "odin": "", "mds": "", "ash@ood": "OOD", "fold@id": "ID", "odin@ood": "OOD"}
    for label, word in tuned.items():
        found = [line for line in done.stdout.splitlines() if re.match(rf"│ {re.escape(label)} +│", line)]
        assert len(found) == 2, label
        assert all(re.search(rf"│ {word} *│$", line) for line in found), label
    assert "knn:k=500 was left out" in done.stdout
    for network in ("tiny", "deep"):
        assert f"toy, {network}: " in done.stdout
        assert f"toy, {network}" in (out / network / "report.html").read_text()
        assert f'href="{network}/report.html"' in (out / "report.html").read_text()
        content = results_of(out / network)
        assert list(content["refused"]) == ["knn:k=500"]
        assert {row["method"] for row in content["rows"]} == {run["method"] for run in content["methods"]} == set(tuned)
    odin = next(run for run in content["methods"] if run["method"] == "odin")
    assert odin["hyper"]["std"] == [0.25]
    assert {"summary.csv", "summary.json"} <= {path.name for path in out.iterdir()}


def test_seeds_are_run_one_after_the_other_and_averaged(own):
    folder, _ = own
    done = bench(folder, "--networks", "tiny", "--seed", "1,2", "--out", "seeds", methods="msp,ebo")
    assert "over 2 runs" in words(done.stdout)
    runs = [results_of(folder / "seeds" / f"tiny-seed{seed}") for seed in (1, 2)]
    assert [run["suite"]["family"] for run in runs] == ["tiny", "tiny"]
    assert runs[0]["suite"]["fingerprints"]["test"] != runs[1]["suite"]["fingerprints"]["test"]
    values = [next(m["auroc"] for m in run["averages"] if (m["method"], m["over"]) == ("msp", "all")) for run in runs]
    summary = json.loads((folder / "seeds" / "summary.json").read_text())["rows"]
    row = next(row for row in summary if (row["method"], row["column"]) == ("msp", "all"))
    assert row["means"]["auroc"] == pytest.approx(np.mean(values))
    assert row["stds"]["auroc"] == pytest.approx(np.std(values))
    assert f"{100 * np.mean(values):.2f} ± {100 * np.std(values):.2f} / " in done.stdout


def test_limits_take_some_images_of_each_data_set_and_workers_change_nothing(own):
    folder, _ = own
    for workers in (0, 2):
        options = ("--limit", 6, "--limit-fit", 9, "--batch-size", 4, "--workers", workers, "--out", f"few{workers}")
        done = bench(folder, "--networks", "tiny", *options, methods="msp,knn:k=5,odin")
    suite = results_of(folder / "few0" / "tiny")["suite"]
    assert (suite["n_train"], suite["n_val"], suite["n_test"], suite["ood"][0]["n"]) == (9, 9, 6, 6)
    assert len(suite["deviations"]) == 2
    assert all(deviation in done.stdout for deviation in suite["deviations"])
    assert results_of(folder / "few0" / "tiny")["rows"] == results_of(folder / "few2" / "tiny")["rows"]


def test_one_network_of_several_is_resumed_or_restarted_and_the_summary_has_all(own):
    folder, _ = own
    assert bench(folder, "--out", "both").returncode == 0
    deep = folder / "both" / "deep"
    times = [stamps(deep)]
    for way in ("--resume", "--restart"):
        assert bench(folder, "--out", "both", "--networks", "deep", way).returncode == 0
        times.append(stamps(deep))
    assert times[0] == times[1]
    assert times[1].keys() == times[2].keys()
    assert all(times[2][path] > time for path, time in times[1].items())
    assert not (folder / "both" / "results.json").exists()
    assert json.loads((folder / "both" / "summary.json").read_text())["runs"] == ["tiny", "deep"]


def test_results_of_one_run_and_of_several_are_not_mixed_in_one_folder(own):
    folder, _ = own
    alone = {"suite": "alone.toml"}
    assert bench(folder, "--seed", "1,2", "--out", "runs", **alone).returncode == 0
    assert bench(folder, "--out", "single", **alone).returncode == 0
    cases = [
        (["alone.toml", "--methods", "msp", "--out", "runs"], 1, "several runs"),
        (["alone.toml", "--methods", "msp", "--seed", "1,2", "--out", "single"], 1, "single run"),
        (["toy.toml", "--networks", "tall"], 1, "tall"),
        (["wrong.toml"], 1, "per_clas"),
        (["alone.toml", "--out", "nets.py"], 1, "--out"),
    ]
    assert_mistakes(("bench",), cases, folder)


def test_a_method_that_fails_unexpectedly_ends_in_an_error_after_all_files_are_written(own, monkeypatch):
    monkeypatch.setattr(ff.detectors.Mls, "score", lambda self, h: h[:, 9999])
    done = bench(own[0], "--out", "failed", "--json", suite="alone.toml", methods="msp,mls")
    assert done.returncode == 1
    summary = json.loads(done.stdout)
    assert (list(summary["failed"]), {each["method"] for each in summary["runs"][0]["figures"]}) == (["mls"], {"msp"})
    assert "mls failed" in done.stderr
    results = results_of(own[0] / "failed")
    assert ({row["method"] for row in results["rows"]}, list(results["failed"])) == ({"msp"}, ["mls"])


def test_one_folder_is_written_by_one_run_at_a_time_and_checked_before_the_work(own, monkeypatch):
    monkeypatch.setattr("flatfold.evaluate.runner.run", lambda *_: pytest.fail("this is found before the work"))
    with locked(own[0] / "out" / "locked" / "tiny"):
        for command in ("bench", "curvature", "reproduce"):
            refused = flatfold(command, "toy.toml", "--networks", "tiny", "--out", "out/locked", cwd=own[0])
            assert (refused.returncode, "by another process" in refused.stderr) == (1, True), refused
    assert not (own[0] / "out" / "locked").exists()
    monkeypatch.setattr("os.mkdir", Mock(side_effect=OSError(errno.EROFS, "read-only")))
    refused = bench(own[0], "--out", "new")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused
    assert "Read-only file system" in refused.stderr


def test_a_full_disk_is_one_line(own, monkeypatch):
    for before in range(2):  # the warm-up, or a method: no other is tried
        evaluate = Mock(side_effect=[None] * before + [OSError("no space left")] * 9)
        monkeypatch.setattr("flatfold.evaluate.runner.evaluate_method", evaluate)
        full = bench(own[0], "--networks", "tiny", "--out", "full", methods="msp,fold")
        assert (full.returncode, evaluate.call_count) == (1, before + 1)
        assert full.stderr.splitlines()[-1] == "flatfold: no space left"
        assert "Traceback" not in full.stderr


def test_methods_are_added_to_finished_results_and_an_outdated_report_never_stays(own, monkeypatch):
    folder = own[0] / "added"
    single = {"suite": "alone.toml"}
    bench(own[0], "--out", "whole", methods="autofold,msp,ebo", **single)
    monkeypatch.setattr(ff.detectors.Ebo, "score", lambda self, h: h[:, 9999])
    assert bench(own[0], "--out", "added", methods="autofold,msp,ebo", **single).returncode == 1
    add = ("bench", "alone.toml", "--bootstrap", 0, "--no-report", "--out", "added", "--add")
    still = flatfold(*add, "ebo", cwd=own[0])
    assert (still.returncode, "test_bench.py" in still.stderr) == (1, True)
    assert_mistakes(add, [(["msp", "--limit", 5], 1, "images of test")], own[0])
    assert list(results_of(folder)["failed"]) == ["ebo"]
    monkeypatch.undo()
    pages = [folder / "report.html", folder / "figures" / "roc.pdf", folder / "figures" / "curvature-traces.pdf"]
    pages[1].parent.mkdir()
    for page in pages:
        page.touch()
    succeed(*add, "ebo,msp", cwd=own[0])
    whole, added = load_results(own[0] / "whole"), load_results(folder)
    assert [run.method for run in added.methods] == ["autofold", "msp", "ebo"]
    assert added.failed == {}
    assert {(row.method, row.dataset): row for row in added.rows} == {(r.method, r.dataset): r for r in whole.rows}
    assert {case.method for case in added.wrong} == {"autofold", "msp", "ebo"}
    assert added.thumbnails.keys() == {f"{case.dataset}/{case.row}" for case in added.wrong}
    assert added.provenance["command"].count("bench") == 2
    piped = succeed(*add, "ebo", "--latex", "-", cwd=own[0]).stdout
    assert piped == load_results(folder).to_latex() == succeed("report", "added", "--latex", "-", cwd=own[0]).stdout
    succeed("report", "out/toy", "--latex", "tables/toy.tex", cwd=own[0])
    assert (own[0] / "tables" / "toy.tex").read_text().count("toprule") == 2  # networks of two families
    assert [page.exists() for page in pages] == [False, False, True]  # another command draws the last
    assert_mistakes(
        add, [(["msp", "--methods", "msp"], 2, "--add"), (["msp", "--out", "no"], 1, "results.json")], own[0]
    )


def test_an_interrupted_run_says_how_to_go_on(own, interrupt):
    interrupt("flatfold.evaluate.runner.run")
    done = bench(own[0], "--networks", "tiny", "--out", "stopped")
    assert (done.returncode, "same command" in done.stderr) == (130, True)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_a_table_that_fits(own, monkeypatch):
    folder, _ = own
    options = {"methods": "msp,ebo,autofold,ash@ood,knn:k=500"}
    wide, narrow = (bench(folder, "--networks", "deep", columns=width, **options).stdout for width in (160, 60))
    content = results_of(folder / "out" / "toy" / "deep")
    means = {mean["method"]: mean for mean in content["averages"] if mean["over"] == "all"}
    ranked = sorted(means, key=lambda method: -means[method]["auroc"])
    for text, every in ((wide, True), (narrow, False)):
        lines = [line for line in text.splitlines() if re.match(r"│ \S+ +│ +\d", line)]
        assert [line.split()[1] for line in lines] == ranked
        for line, mean in zip(lines, map(means.get, ranked), strict=True):
            rates = f" / {100 * mean['fpr95_ood_positive']:.2f}"
            assert f"│ {100 * mean['auroc']:.2f}{rates if every else ''} │" in words(line)
        assert ("too narrow for FPR95:" in text) is not every
        assert max(len(line) for line in text.splitlines() if "─" in line or "│" in line) <= (160 if every else 60)
        assert "…" not in text
        assert "[0, 1]" in text, "words of the suite are no markup"
        assert re.search(r"ash@ood .*│ OOD +│\n", text)
        assert re.search(r"autofold .*│ +\d\.\d+\* │", text)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = bench(folder, "--networks", "deep", columns=160, **options).stdout.splitlines()
    best = {row["method"] for row in results_of(folder / "out" / "toy" / "deep")["rows"] if row["certainty"]["best"]}
    marked = {line.split()[1] for line in coloured if "\x1b[1;32m" in line}
    assert best <= marked <= set(means)


@pytest.mark.usefixtures("terminal")
def test_a_table_that_is_too_wide_loses_metrics_then_data_sets_but_no_cell_is_cut(printed):
    sets = {f"a-data-set-{k}": "near" if k < 3 else "far" for k in range(6)}
    run = make_run(0.9, sets=sets, about="", accuracy=0.9, n_test=9, network="")
    for width, datasets, both in ((200, 6, True), (140, 6, False), (75, 0, True), (40, 0, False), (10, 0, False)):
        text = printed(print_results, run, METRICS[:2], width=width)
        lines = text.splitlines()
        assert ("…" in text, sum(name in text for name in sets)) == (False, datasets), width
        assert ("90.00 / 45.00" in text) is both, width
        assert ("too narrow for" in words(text)) is (width < 200), width
        assert ("FPR95:" in words(text), "all data sets:" in words(text)) == (not both and datasets > 0, datasets == 0)
        assert max(map(len, lines)) <= max(width, 40), width
        rows = [line for line in lines if line.startswith(("│ msp", "│ ebo"))]
        assert len(rows) == 2, width


def test_metrics_and_columns_of_the_table_are_chosen(printed):
    sets = {"pens": "near", "ink": "near", "noise": "far"}
    run = make_run(0.9, sets=sets, about="", accuracy=0.9, n_test=9, network="")
    text = printed(print_results, run, ("aupr_in", "fpr95_id_positive", "auroc"), ["all", "near"])
    assert re.search(r"┃ method ┃ +average +┃ +near +┃", text)
    assert text.count("│ 13.00 / 11.00 / 90.00 │ 13.00 / 11.00 / 90.00 │") == 2
    assert "AUPR-in / FPR95 (ID positive) / AUROC in percent." in words(text)
    assert not {"alpha", "tuned"} & set(text.split()), "columns without an entry"
    worse = [replace(mean, fpr95_ood_positive=0.1) if mean.method == "ebo" else mean for mean in run.averages]
    run = replace(run, averages=worse)
    for metric, methods in (("auroc", ["msp", "ebo"]), ("fpr95_ood_positive", ["ebo", "msp"])):
        rows = summarise([run, run])
        for text in (printed(print_results, run, [metric]), printed(print_summary, [run, run], rows, [metric])):
            assert re.findall(r"^│ (\w+)", text, re.M) == methods, metric


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openood")
    make_openood(folder / "tree", "cifar10")
    yield folder
    shutil.rmtree(folder / "tree")  # three checkpoints of 45 MB


@pytest.mark.slow
def test_openood_checkpoints_are_judged_averaged_and_marked_as_not_comparable(tree):
    options = ("--data", "tree", "--any-counts", "--bootstrap", 50, "--no-report")
    succeed("bench", "cifar10", *options, "--methods", "msp,knn:k=2,react@ood,fold,odin", cwd=tree)
    folder = tree / "out" / "cifar10"
    near, far = {"cifar100", "tin"}, {"mnist", "svhn", "texture", "places365"}
    for seed in (0, 1, 2):
        content = results_of(folder / f"resnet18-s{seed}")
        assert {row["dataset"] for row in content["rows"] if row["group"] == "near"} == near
        assert {row["dataset"] for row in content["rows"] if row["group"] == "far"} == far
        assert content["provenance"]["seed"] == seed
    assert all(str(count) in str(content["suite"]["deviations"]) for count in (50000, 1000, 9000, 7793, 70000))
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    assert {(row["n"], row["family"]) for row in rows} == {(3, "resnet18")}
    assert_mistakes(("paper", "."), [([], 1, "7793")], folder)
    assert "NOT COMPARABLE" in succeed("paper", ".", "--anyway", cwd=folder).stdout


def test_wrong_openood_counts_are_refused_and_listed_by_the_doctor(tree):
    assert_mistakes(("bench", "cifar10", "--data", "tree"), [([], 1, "50000")], tree)
    done = flatfold("doctor", "cifar10", "--data", "tree", "--no-accuracy", cwd=tree)
    assert done.returncode == 1
    for count in (50000, 1000, 9000, 7793, 70000, 26032, 5640, 35195):
        assert f"{count} images" in done.stdout
    assert done.stdout.count("wrong") == 10
