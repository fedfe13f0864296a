"""``python -m studies.autofold`` from beginning to end on a tiny suite, and where its networks come from."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from flatfold.evaluate.suites.suite import OodSet, Suite
from flatfold.models.images import ArrayImages, Transform
from studies.autofold import cases, page, study
from studies.autofold.__main__ import main
from studies.autofold.measure import ORACLES, REFERENCES
from studies.autofold.rules import RULES
from studies.autofold.store import key_of

PLAIN = Transform(mode="L", mean=(0.5,), std=(0.25,))


def tiny_suite(name="tiny", seed=0):
    """Return three classes, each bright in a row of its own, before a network that looks at rows."""
    rng = np.random.default_rng(seed)

    def images(labels, known=True):
        x = rng.integers(0, 120, (len(labels), 6, 6))
        x[np.arange(len(labels)), 2 * labels] += 100 if known else 0
        return ArrayImages(x.astype(np.uint8), labels if known else None, PLAIN)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.AvgPool2d((1, 6)), nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    labels = np.arange(30) % 3
    ood = (OodSet("noise", "far", images(labels[:12], known=False), "Noise."),)
    return Suite(name, "Tiny.", model, None, images(labels), images(labels), ood, seed)


def run(monkeypatch, *arguments, data=None):
    app = typer.Typer()
    app.command()(main)
    if data is None:
        monkeypatch.delenv("FLATFOLD_DATA", raising=False)
    else:
        monkeypatch.setenv("FLATFOLD_DATA", str(data))
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def tiny(monkeypatch):
    """Let the study see a tiny suite in both roles, and tell which folder of data it was given."""
    seen = []

    def suites(out, data, seeds):
        seen.append((data, seeds))
        yield tiny_suite(), "development"
        if data is not None:
            yield tiny_suite("other", 1), "held out"

    monkeypatch.setattr(study, "suites_of", suites)
    return seen


def test_a_run_writes_tables_and_figures_and_updates_the_page_when_asked_to(monkeypatch, tmp_path, tiny):
    out, copy = tmp_path / "out", tmp_path / "docs" / "autofold.md"
    copy.parent.mkdir()
    copy.write_text(page.PAGE.read_text(encoding="utf8"), encoding="utf8")
    monkeypatch.setattr(page.update, "__defaults__", (copy,))
    result = run(monkeypatch, "--out", out, "--replicates", 5, "--seeds", 2, "--update-docs", data=tmp_path)
    assert result.exit_code == 0, result.output
    assert "2 networks measured" in result.stdout
    assert tiny == [(tmp_path, (0, 1))]
    rows = list(csv.DictReader((out / "autofold.csv").read_text().splitlines()))
    assert len(rows) == 2 * 2 * len([*RULES, *REFERENCES, *ORACLES])
    told = json.loads((out / "study.json").read_text())
    assert [each["role"] for each in told["networks"]] == ["development", "held out"]
    assert (told["replicates"], len(told["verdicts"])) == (5, 6)
    assert "Over 2 networks the median regret" in copy.read_text(encoding="utf8")
    for name in page.FILES:
        assert copy.with_name(name).read_bytes() == (out / name).read_bytes()


def test_a_second_run_measures_nothing_again_and_writes_the_same(monkeypatch, tmp_path, tiny):
    names = ("study.json", *page.FILES)
    first_run = run(monkeypatch, "--out", tmp_path, "--replicates", 3)
    assert "<svg" in (tmp_path / "autofold-gains.svg").read_text(encoding="utf8"), first_run.output
    first = [(tmp_path / name).read_bytes() for name in names]
    monkeypatch.setattr(study, "measure", lambda *_: pytest.fail("measured again"))
    assert run(monkeypatch, "--out", tmp_path, "--replicates", 3).exit_code == 0
    assert [(tmp_path / name).read_bytes() for name in names] == first


def test_what_was_measured_belongs_to_network_images_and_replicates():
    suite = tiny_suite()
    retrained, other = tiny_suite(), tiny_suite(seed=1)
    with torch.no_grad():
        retrained.model[2].weight += 1
    mixed = replace(suite, ood=other.ood)
    keys = {key_of(each, 5) for each in (suite, tiny_suite(), retrained, mixed, other)}
    assert len(keys) == 4
    assert key_of(suite, 6) not in keys


def test_without_data_it_says_that_nothing_can_be_judged(monkeypatch, tmp_path, tiny):
    result = run(monkeypatch, "--out", tmp_path, "--replicates", 3)
    assert result.exit_code == 0
    assert "FLATFOLD_DATA is not set: the study runs on the built-in suite alone" in result.stderr
    assert tiny == [(None, (0, 1, 2))]
    assert json.loads((tmp_path / "study.json").read_text())["verdicts"] == []


def test_the_page_is_not_updated_without_data(monkeypatch, tmp_path, tiny):
    result = run(monkeypatch, "--out", tmp_path, "--update-docs")
    assert result.exit_code == 1
    assert "Set FLATFOLD_DATA to update it" in result.stderr
    assert tiny == []


def test_one_replicate_is_no_interval(tmp_path):
    with pytest.raises(ValueError, match=r"at least 2 replicates, got 1\. 300 are the default"):
        study.run(tmp_path, None, replicates=1)


def test_a_rule_needs_labels():
    bank = cases.FeatureBank(torch.rand(4, 8))
    with pytest.raises(ValueError, match=r"validation bank has no labels\. Give them"):
        cases.Validation.of(bank, cases.Head(torch.rand(3, 8), None))


@pytest.mark.parametrize("with_data", [False, True])
def test_roles_follow_from_where_a_suite_comes_from(monkeypatch, tmp_path, with_data):
    monkeypatch.setattr(cases, "load_suites", lambda name, *_: [f"{name.rpartition('/')[2]}"])
    monkeypatch.setattr(cases, "development_suites", lambda data, letters, out: [data, letters])
    data = tmp_path / "data" if with_data else None
    letters = tmp_path / "digits" / "data" / "seed4" / "letters.npz"
    expected = [("digits", "development")]
    if with_data:
        expected += [(data, "development"), (letters, "development"), ("cifar10.toml", "held out")]
    assert list(cases.suites_of(tmp_path, data, (4,))) == expected


def test_the_file_of_the_held_out_networks_is_there():
    assert cases.CIFAR.is_file()
