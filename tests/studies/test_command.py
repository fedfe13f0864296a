"""``python -m studies.autofold`` on a tiny suite, and where its networks come from."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from flatfold.data.images import ArrayImages, Transform
from flatfold.evaluate.suites.suite import OodSet, Suite
from studies.autofold import cases, page, study
from studies.autofold.__main__ import main
from studies.autofold.store import key_of
from tests.studies.worlds import METHODS


def tiny_suite(name="tiny", seed=0):
    """Return three classes, each bright in a row of its own, before a network that looks at rows."""
    rng = np.random.default_rng(seed)

    def images(labels, known=True):
        x = rng.integers(0, 120, (len(labels), 6, 6))
        x[np.arange(len(labels)), 2 * labels] += 100 if known else 0
        plain = Transform(mode="L", mean=(0.5,), std=(0.25,))
        return ArrayImages(x.astype(np.uint8), labels if known else None, plain)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.AvgPool2d((1, 6)), nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    labels = np.arange(30) % 3
    ood = (OodSet("noise", "far", images(labels[:12], known=False), "Noise."),)
    return Suite(name, "Tiny.", model, None, images(labels), images(labels), ood, seed)


@pytest.fixture
def run(monkeypatch):
    """Run the study on a tiny suite, in both roles where there is data."""
    app = typer.Typer()
    app.command()(main)

    def suites(out, data, seeds):
        assert seeds == (0, 1)
        yield tiny_suite(), "development"
        if data is not None:
            yield tiny_suite("other", 1), "held out"

    def call(*arguments, data=None):
        if data is None:
            monkeypatch.delenv("FLATFOLD_DATA", raising=False)
        else:
            monkeypatch.setenv("FLATFOLD_DATA", str(data))
        return CliRunner().invoke(app, ["--replicates", "3", "--seeds", "2", *map(str, arguments)])

    monkeypatch.setattr(study, "suites_of", suites)
    return call


def test_a_run_writes_tables_figures_and_the_page_and_a_second_one_measures_nothing(run, monkeypatch, tmp_path):
    out, copy = tmp_path / "out", tmp_path / "docs" / "autofold.md"
    copy.parent.mkdir()
    copy.write_text(page.PAGE.read_text(encoding="utf8"), encoding="utf8")
    monkeypatch.setattr(page.update, "__defaults__", (copy,))
    result = run("--out", out, "--update-docs", data=tmp_path)
    assert result.exit_code == 0, result.output
    assert len((out / "autofold.csv").read_text().splitlines()) == 1 + 2 * 2 * len(METHODS)
    summary = json.loads((out / "study.json").read_text())
    assert [each["role"] for each in summary["networks"]] == ["development", "held out"]
    assert (summary["replicates"], len(summary["verdicts"])) == (3, 6)
    assert "Over 2 networks the median regret" in copy.read_text(encoding="utf8")
    first = {name: (out / name).read_bytes() for name in ("study.json", *page.FILES)}
    assert all(copy.with_name(name).read_bytes() == first[name] for name in page.FILES)
    monkeypatch.setattr(study, "measure", lambda *_: pytest.fail("measured again"))
    assert run("--out", out, data=tmp_path).exit_code == 0
    assert {name: (out / name).read_bytes() for name in first} == first


def test_without_data_nothing_is_judged_and_the_page_is_not_updated(run, tmp_path):
    refused = run("--out", tmp_path, "--update-docs")
    assert (refused.exit_code, "FLATFOLD_DATA" in refused.stderr) == (1, True)
    assert not list(tmp_path.iterdir())
    result = run("--out", tmp_path)
    assert (result.exit_code, "FLATFOLD_DATA" in result.stderr) == (0, True)
    assert json.loads((tmp_path / "study.json").read_text())["verdicts"] == []
    with pytest.raises(ValueError, match="2 replicates"):
        study.run(tmp_path, None, replicates=1)


def test_what_was_measured_belongs_to_network_images_and_replicates():
    suite, retrained, other = tiny_suite(), tiny_suite(), tiny_suite(seed=1)
    with torch.no_grad():
        retrained.model[2].weight += 1
    keys = {key_of(each, 5) for each in (suite, tiny_suite(), retrained, replace(suite, ood=other.ood), other)}
    assert len(keys) == 4
    assert key_of(suite, 6) not in keys


def test_roles_follow_from_where_a_suite_comes_from(monkeypatch, tmp_path):
    monkeypatch.setattr(cases, "load_suites", lambda name, *_: [f"{name.rpartition('/')[2]}"])
    monkeypatch.setattr(cases, "development_suites", lambda data, letters, out: [data, letters])
    letters = tmp_path / "digits" / "data" / "seed4" / "letters.npz"
    assert list(cases.suites_of(tmp_path, None, (4,))) == [("digits", "development")]
    development = [(suite, "development") for suite in ("digits", tmp_path / "data", letters)]
    assert list(cases.suites_of(tmp_path, tmp_path / "data", (4,))) == [*development, ("cifar10.toml", "held out")]
    assert cases.CIFAR.is_file()
