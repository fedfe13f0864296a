"""``flatfold fit``, ``score``, ``join`` and ``export`` on texts, with a model and a tokeniser in a folder."""

import json
import re
import shutil

import pytest
import torch
from pyarrow.parquet import read_table

import flatfold as ff
from flatfold.passes.local import run_local
from tests.cli.images import read_rows
from tests.cli.running import assert_mistakes, succeed
from tests.command import flatfold
from tests.tiny_texts import LONGEST, NEW, TOPICS, sentences, write_all, write_csv, write_transformer

pytest.importorskip("transformers")

MODEL = ("--model", "transformers/bert")
GUARD = ("--guard", "guard.safetensors", *MODEL)
pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a network of texts, a guard, and known and new texts in every format."""
    folder = tmp_path_factory.mktemp("texts")
    write_transformer(folder / "bert")
    write_csv(folder / "val.csv", sentences(120))
    write_all(folder, [*sentences(30, 1), *sentences(30, 2, NEW)])
    options = ("--method", "fold", "--fpr", "0.1", "--out", "guard.safetensors")
    succeed("fit", "val.csv", *MODEL, *options, cwd=folder)
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A copy of that folder, as the current one."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load():
    from transformers import AutoModelForSequenceClassification

    return ff.Guard.load("guard.safetensors", AutoModelForSequenceClassification.from_pretrained("bert").eval())


def test_a_guard_of_texts_is_fitted_and_its_table_holds_its_verdicts(here):
    texts = (here / "texts.txt").read_text().splitlines()
    verdict = load()(texts)
    tables = {}
    for kind in ("csv", "jsonl", "parquet", "txt"):
        done = flatfold("score", f"texts.{kind}", *GUARD, "--out", f"{kind}.csv")
        assert done.returncode == 0, done.stderr
        assert "60 texts, all scored" in done.stderr
        tables[kind] = read_rows(f"{kind}.csv")
        assert [row["path"] for row in tables[kind]] == [f"texts.{kind}:{row}" for row in range(60)]
        assert not any(row["truncated"] for row in tables[kind])
        scores = torch.tensor([float(row["score"]) for row in tables[kind]])
        torch.testing.assert_close(scores, verdict.score, rtol=1e-4, atol=1e-6)
        assert [row["is_ood"] for row in tables[kind]] == verdict.is_ood.tolist()


def test_fit_says_what_it_was_fitted_on_and_numbers_labels_by_the_config(here):
    done = succeed("fit", "val.csv", *MODEL, "--method", "msp", "--out", "b.safetensors", "--json")
    report = json.loads(done.stdout)
    assert (report["texts"], report["calibration_texts"]) == (120, 60)
    assert report["accuracy"] > 0.9
    assert "of val.csv" in succeed("fit", "val.csv", *MODEL, "--no-labels", "--method", "msp", "--out", "b").stdout


def test_unreadable_texts_are_listed_and_limited(here):
    rows = sentences(20)
    write_csv(here / "some.csv", [*rows[:5], (" ", "food"), *rows[5:]])
    done = flatfold("score", "some.csv", *GUARD, "--out", "t.csv")
    assert done.returncode == 3
    assert "1 text could not be scored" in done.stderr
    (listed,) = read_rows("t.csv.unreadable.csv")
    assert (listed["path"], "empty" in listed["reason"]) == ("some.csv:5", True)
    fit = ("fit", "some.csv", *MODEL, "--method", "msp", "--fpr", "0.2", "--out", "b.safetensors")
    assert "1 of 21 texts" in flatfold(*fit, cwd=here).stderr
    succeed(*fit, "--max-unreadable", "0.1")


def test_long_texts_are_truncated_and_the_table_says_so(here):
    (here / "long.txt").write_text(f"{'rain ' * LONGEST}\n{'rain ' * 40}\n")
    succeed("score", "long.txt", *GUARD, "--out", "t.jsonl")
    assert [row["truncated"] for row in read_rows("t.jsonl")] == [False, True]
    succeed("score", "long.txt", *GUARD, "--out", "t.parquet")
    assert read_table("t.parquet")["truncated"].to_pylist() == [False, True]


def test_explanations_and_words_behind_alarms_are_a_column(here):
    score = ("score", "texts.csv", *GUARD, "--batch-size", "8")
    succeed(*score, "--out", "plain.csv")
    for kind in ("csv", "jsonl", "parquet"):
        succeed(*score, "--explain", "--out", f"explained.{kind}")
    succeed(*score, "--tokens", "--out", "words.csv")
    plain, explained, words = (read_rows(f"{name}.csv") for name in ("plain", "explained", "words"))
    texts = (here / "texts.txt").read_text().splitlines()
    guard = load()
    told = guard.explain(texts, [*TOPICS], tokens=True)
    assert any(row["is_ood"] and each.tokens for row, each in zip(plain, told, strict=True))
    for row, more, most, each in zip(plain, explained, words, told, strict=True):
        assert more == row | {"explanation": more["explanation"]}
        assert more["explanation"].split(":")[0] in str(each)
        assert "without" not in more["explanation"]
        named = [token.text for token in each.tokens] if row["is_ood"] else []
        assert re.findall(r"without '(.*?)'", most["explanation"]) == named
    assert read_table("explained.parquet")["explanation"].to_pylist() == [row["explanation"] for row in explained]
    assert [row["explanation"] for row in read_rows("explained.jsonl")] == [row["explanation"] for row in explained]
    for number in (1, 2):
        succeed(*score, "--tokens", "--shard", f"{number}/2", "--out", f"part{number}.csv")
    succeed("join", "part1.csv", "part2.csv", "--out", "joined.csv")
    assert (here / "joined.csv").read_bytes() == (here / "words.csv").read_bytes()
    assert "--tokens" in flatfold("score", "--help").stdout


def test_a_tokeniser_without_a_limit_gets_that_of_the_network(here):
    write_transformer(here / "free", max_length=None)
    free = ("--model", "transformers/free")
    succeed("fit", "val.csv", *free, "--method", "msp", "--out", "free.safetensors")
    (here / "long.txt").write_text("rain " * 40)
    succeed("score", "long.txt", "--guard", "free.safetensors", *free, "--out", "t.csv")
    assert read_rows("t.csv")[0]["truncated"]
    succeed("fit", "val.csv", *free, "--method", "msp", "--max-length", "4", "--out", "free.safetensors")
    (here / "long.txt").write_text("rain rain rain rain rain")
    succeed("score", "long.txt", "--guard", "free.safetensors", *free, "--out", "t.csv")
    assert read_rows("t.csv")[0]["truncated"]


def test_a_stopped_run_resumes_with_the_same_bytes(here, monkeypatch):
    score = ("score", "texts.csv", *GUARD, "--batch-size", "4")
    succeed(*score, "--out", "whole.csv")
    done = []

    def stopping(*arguments, **options):
        for part in run_local(*arguments, **options):
            if len(done) == 5:
                raise KeyboardInterrupt
            done.append(part[0])
            yield part

    with monkeypatch.context() as patch:
        patch.setattr("flatfold.passes.local.run_local", stopping)
        assert flatfold(*score, "--out", "again.csv").returncode == 130
    assert len(done) == 5
    resumed = succeed(*score, "--out", "again.csv")
    assert "20 scored before, 40 now" in resumed.stderr
    assert (here / "again.csv").read_bytes() == (here / "whole.csv").read_bytes()


def test_shards_join_to_the_table_of_one_run(here):
    score = ("score", "texts.jsonl", *GUARD, "--batch-size", "4")
    succeed(*score, "--out", "whole.csv")
    for number in (1, 2, 3):
        succeed(*score, "--shard", f"{number}/3", "--out", f"part{number}.csv")
    done = succeed("join", "part1.csv", "part2.csv", "part3.csv", "--out", "joined.csv")
    assert "60 texts, all scored" in done.stderr
    assert (here / "joined.csv").read_bytes() == (here / "whole.csv").read_bytes()


def test_a_moved_model_brings_its_tokeniser_and_another_tokeniser_is_refused(here):
    shutil.move(here / "bert", here / "moved")
    moved = ("--guard", "guard.safetensors", "--model", "transformers/moved", "--out", "t.csv")
    succeed("score", "texts.csv", *moved)
    other = json.loads((here / "moved" / "tokenizer.json").read_text())
    words = other["model"]["vocab"]
    words["[UNK]"], words["rain"] = words["rain"], words["[UNK]"]
    (here / "moved" / "tokenizer.json").write_text(json.dumps(other))
    done = flatfold("score", "texts.csv", *moved, "--restart")
    assert done.returncode == 1
    assert "other tokens" in done.stderr


def test_a_model_in_pickle_files_is_not_loaded(here):
    weights = here / "bert" / "model.safetensors"
    from safetensors.torch import load_file

    torch.save(load_file(weights), here / "bert" / "pytorch_model.bin")
    weights.unlink()
    assert flatfold("score", "texts.csv", *GUARD, "--out", "t.csv").returncode == 1


def test_a_guard_of_texts_is_exported_for_one_length(here):
    pytest.importorskip("onnxruntime")
    done = succeed("export", *GUARD[1:], "--images", "texts.txt", "--out", "guard.pt2", "--max-length", "8")
    assert "validated on 60 texts" in done.stdout


def test_mistakes(here):
    score = ("texts.csv", *GUARD, "--out", "t.csv")
    cases = [
        ((*score, "--resize", "3"), 2, "--resize"),
        ((*score, "--max-length", "3"), 2, "--max-length"),
        ((*score, "--text-column", "review"), 1, "--text-column"),
        (("val.png", *GUARD, "--out", "t.csv"), 1, "no texts"),
        (("bert/config.json", *GUARD, "--out", "t.csv"), 1, ".jsonl"),
    ]
    assert_mistakes(("score",), cases, here)
    fit = ("--out", "b.safetensors")
    cases = [
        (("texts.txt", *MODEL, *fit, "--method", "mds"), 1, "labels"),
        (("val.csv", *MODEL, *fit, "--label-column", "topic"), 1, "--label-column"),
        (("val.csv", *MODEL, *fit, "--crop", "4"), 2, "--crop"),
        (("val.csv", *MODEL, *fit, "--tokenizer", "nowhere"), 1, "--tokenizer"),
    ]
    assert_mistakes(("fit",), cases, here)


def test_the_service_takes_texts_with_the_tokeniser_of_the_model(here, monkeypatch):
    served = []
    monkeypatch.setattr("flatfold.serve.server.run", lambda *arguments: served.append(arguments) or True)
    serve = ("serve", "guard.safetensors", "--port", 0)
    done = succeed(*serve, *MODEL, "--max-texts", 3, "--max-characters", 99)
    assert "for texts and features" in done.stdout
    service = served[0][0].state.service
    assert (service.settings.max_texts, service.settings.max_characters) == (3, 99)
    assert service.scorer.tokeniser.longest == LONGEST
    assert flatfold(*serve, *MODEL, "--crop", 4).returncode == 2
    assert flatfold(*serve, "--tokenizer", "bert").returncode == 1


@pytest.mark.slow
def test_a_suite_of_texts_is_evaluated(here):
    write_csv(here / "new.csv", sentences(40, 3, NEW))
    write_csv(here / "test.csv", sentences(60, 4))
    sections = ['[[network]]\nname = "bert"\nmodel = "transformers/bert"', '[val]\ntexts = "val.csv"\ny = "label"']
    sections += ['[test]\ntexts = "test.csv"', '[[ood]]\nname = "music"\ngroup = "far"\ntexts = "new.csv"']
    (here / "mine.toml").write_text("\n".join(sections))
    methods = ("--methods", "msp,fold", "--out", "out", "--bootstrap", "0")
    done = succeed("bench", "mine.toml", *methods)
    assert "music" in done.stdout
    assert "report ->" in done.stdout
    before = (here / "out" / "scores.safetensors").read_bytes()
    succeed("bench", "mine.toml", *methods)
    assert (here / "out" / "scores.safetensors").read_bytes() == before
    other = "\n".join(sections).replace("transformers/bert", "nets:none").replace("model", "factory")
    (here / "mine.toml").write_text(other)
    (here / "nets.py").write_text("from torch import nn\n\ndef none():\n    return nn.Linear(2, 2)\n")
    done = flatfold("bench", "mine.toml", "--out", "other")
    assert (done.returncode, "tokenizer" in done.stderr) == (1, True)
