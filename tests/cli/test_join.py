"""`flatfold join`: tables of shards to that of one run."""

import json
import shutil

import pytest
from pyarrow.parquet import read_table

import flatfold as ff
from flatfold.cli.model import open_model
from flatfold.models.images import ArrayImages
from tests.cli.small_photos import GUARD, pixels, read_rows, run, words, write_folder, write_network

TRANSFORM = ff.Transform(mode="L", mean=(0.4,), std=(0.3,))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder: a guard, and forty photos."""
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path)
    model = open_model("nets:tiny", tmp_path / "tiny.pt")
    ff.Guard.fit(model, ArrayImages(*pixels(200), TRANSFORM), "fold", 0.1).save("guard.safetensors")
    write_folder(tmp_path / "photos", pixels(40, seed=1)[0])
    return tmp_path


def score(out, *arguments):
    return run("score", "photos", *GUARD, "--batch-size", 4, "--out", out, *arguments)


def shards(here, suffix="csv", n=3):
    """Score all shards; return what `part-*.csv` is in a shell."""
    for number in range(1, n + 1):
        score(f"part-{number}.{suffix}", "--shard", f"{number}/{n}")
    return sorted(path.name for path in here.glob(f"part-*.{suffix}"))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_whole_is_that_of_one_run(here, suffix):
    whole = score(f"whole.{suffix}")
    done = run("join", *reversed(shards(here, suffix)), "--out", f"deep/joined.{suffix}")
    assert done.exit_code == 0, (done.output, done.exception)
    lines = whole.stderr.replace("whole", "deep/joined").splitlines()
    assert done.stderr.splitlines() == lines[:3], "all but the seconds"
    assert done.stdout == ""
    one, joined = here / f"whole.{suffix}", here / "deep" / f"joined.{suffix}"
    if suffix == "parquet":
        assert read_table(joined).equals(read_table(one))
    else:
        assert joined.read_bytes() == one.read_bytes()
    left, right = (json.loads(path.with_name(f"{path.name}.summary.json").read_text()) for path in (one, joined))
    assert {**left, "table": ""} == {**right, "table": ""}


def test_images_that_could_not_be_scored_are_named_once_more(here):
    for row in (3, 38):
        (here / "photos" / f"{row:04d}.png").write_bytes(b"no image")
    tables = shards(here)
    assert "part-1.csv.unreadable.csv" in tables, "as a shell would give them"
    done = run("join", *tables, "--out", "joined.csv")
    assert done.exit_code == 3, done.exception
    lines = done.stderr.splitlines()
    assert lines[0] == "40 images, 38 scored -> joined.csv"
    assert lines[3] == "2 images could not be scored -> joined.csv.unreadable.csv"
    assert [line[:17] for line in lines[4:]] == ["  photos/0003.png", "  photos/0038.png"]
    listed = read_rows(here / "joined.csv.unreadable.csv")
    assert [row["path"] for row in listed] == ["photos/0003.png", "photos/0038.png"]


def test_what_does_not_belong_together_is_refused(here):
    shards(here)
    score("other.csv", "--shard", "3/3", "--fpr", 0.2)
    shutil.copy("part-1.csv", "lonely.csv")
    cases = [
        (["part-1.csv", "part-3.csv"], "1 of 3 shards are missing: 2. Score them first."),
        (["part-1.csv", "part-1.csv", "part-2.csv"], "shard 1/3 is there 2 times. Give each once."),
        (["part-1.csv", "part-2.csv", "other.csv"], "are not shards of one run."),
        (["part-1.csv", "part-2.csv", "none.csv"], "there is no table none.csv. Check the path."),
        (["part-1.csv", "part-2.csv", "lonely.csv"], "lonely.csv has no summary lonely.csv.summary.json beside it"),
        (["part-1.csv.unreadable.csv", "part-2.csv"], "there is no table part-1.csv.unreadable.csv."),
    ]
    for tables, sentence in cases:
        done = run("join", *tables, "--out", "joined.csv")
        assert isinstance(done.exception, (ValueError, OSError)), tables
        assert sentence in words(str(done.exception))
        assert not (here / "joined.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["part-1.csv", "--out", "joined.txt"], "Invalid value for --out: a table of rows is a file *.csv, *.jsonl,"),
        (["part-1.csv"], "Missing option '--out'"),
        (["--out", "joined.csv"], "Missing argument"),
    ],
)
def test_wrong_usage_is_said_in_a_sentence(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    done = run("join", *arguments)
    assert done.exit_code == 2
    assert sentence in words(done.stderr)


def test_the_help_teaches():
    text = words(run("join", "--help").stdout)
    assert "Example: flatfold join scores-1.csv scores-2.csv scores-3.csv --out scores.csv" in text
    assert "Exit codes: 0 all images are scored; 3 joined, but some images could not be scored;" in text
