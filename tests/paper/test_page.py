"""The page of a reproduction and its files, from what was measured on disk."""

import csv
import io
import json
from dataclasses import replace

import pytest

from flatfold.display.figure import Drawing, Panel
from flatfold.paper import comparison
from flatfold.paper import page as exhibits
from flatfold.paper.claims import CHECKS
from flatfold.paper.comparison import explain_missing_numbers, find_paper_numbers
from flatfold.paper.page import write_reproduction
from flatfold.paper.run import Reproduction
from flatfold.paper.tables import OTHERS
from flatfold.paper.verdicts import compute_verdicts, judge
from tests.report.conftest import Page
from tests.toy_ablations import make_ablations, make_network_run, make_results
from tests.toy_study import make_study

HOSTILE = "<img src=x onerror=alert(1)> $title"
CIFAR = {"protocol": "openood-1.5/cifar10", "architecture": "openood/resnet18_32x32", "network": "seed0"}
SETS = dict.fromkeys(("cifar100", "tin"), "near") | dict.fromkeys(("mnist", "svhn", "texture", "places365"), "far")


def conclude(*runs):
    return Reproduction(list(runs), compute_verdicts(runs), {})


def touch(drawing, folder):
    """Leave empty files in place of those for papers."""
    folder.mkdir(exist_ok=True)
    for kind in ("svg", "pdf"):
        (folder / f"{drawing.name}.{kind}").touch()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page of two networks; its figures are drawn in test_reproduction_figures."""
    place = tmp_path_factory.mktemp("reproduction")
    reproduction = conclude(make_network_run("one"), make_network_run("two"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            exhibits.figures, "theorem_figure", lambda name: Drawing(name, [Panel("empty", lambda axes: None)])
        )
        patch.setattr(Drawing, "inline", lambda drawing: ["<svg></svg>"] * len(drawing.panels))
        patch.setattr(Drawing, "save", touch)
        before = write_reproduction(place, reproduction).read_bytes()
        assert write_reproduction(place, reproduction).read_bytes() == before
    return place


def page_of(folder):
    return Page((folder / "reproduction.html").read_text(encoding="utf8"))


@pytest.fixture(scope="module")
def page(folder):
    return page_of(folder).check()


def test_every_exhibit_has_a_section_with_claim_verdict_and_both_networks(page, folder):
    found = json.loads((folder / "reproduction.json").read_text(encoding="utf8"))
    assert (found["format"], found["version"], found["networks"]) == ("flatfold-reproduction", 1, ["one", "two"])
    assert {each["number"] for each in found["verdicts"]} == {*CHECKS}
    names = [name for name in page.values("id", "section") if name.startswith(("table", "figure", "theorem"))]
    rows = page.sections["overview"][0][1:] if "overview" in page.sections else page.tables[0][1:]
    for each, name, row in zip(found["verdicts"], names, rows, strict=True):
        text = page.text(name)
        agree = sum(check["holds"] is True for check in each["checks"])
        for told in (f"{each['number']}. {each['title']}", each["claim"], each["agreement"]):
            assert " ".join(told.split()) in text, (name, told)
        assert f"{agree} of {len(each['checks'])} checks hold" in text or not each["checks"], name
        assert row[0].text.startswith(each["number"])
        assert row[1].text == " ".join(each["claim"].split()), name  # a verdict stands beside the claim it is about
        assert row[2].text.startswith(each["agreement"]), name
        assert ("one" in text and "two" in text) or name == "theorem-1", name


def test_tables_and_figures_are_files_with_the_numbers(folder):
    stems = ["figure-1b", *(f"figure-{n}" for n in range(2, 8)), "figures-8-10", "figures-9-11", "figures-12-15"]
    for kind in ("svg", "pdf"):
        figures = {path.stem for path in (folder / "exhibits").glob(f"*.{kind}")}
        assert figures == {"figure-1a", "theorem-1", *(f"{stem}-{n}" for stem in stems for n in ("one", "two"))}
    material = make_network_run("one")
    lines = {
        path.stem: list(csv.DictReader(io.StringIO(path.read_text(encoding="utf8"))))
        for path in (folder / "exhibits").glob("*.csv")
    }
    assert set(lines) == {*(f"table-{number}" for number in range(1, 8)), "tables-8-11", "figure-3", "figure-5"}
    assert {line["network"] for table in lines.values() for line in table} == {"one", "two"}
    first = lines["table-1"][0]
    assert (first["data"], float(first["trace"])) == ("ID", material.study.cells["id", "parameter", "trace"].value)
    far = next(line for line in lines["table-6"] if line["data"] == "far")
    assert float(far["lambda_max"]) == material.study.cells["far", "feature", "lambda_max"].value
    assert {line["over"] for line in lines["table-2"]} == {"near", "far", "all"}
    assert {line["over"] for line in lines["table-5"]} == {"all"}
    assert len(lines["table-3"]) == 2 * len(material.ablations.effects)
    assert {line["space"] for line in lines["table-4"]} == {"feature", "logit"}
    everything = {line["space"]: float(line["auroc"]) for line in lines["table-4"] if line["dataset"] == "all"}
    check = judge("Table 4", [material]).checks[0].what  # of the same images
    assert all(f"{100 * auroc:.2f} % over {space}s" in check for space, auroc in everything.items())
    fifth = next(line for line in lines["figure-5"] if (line["normalisation"], line["dataset"]) == ("partial", "all"))
    assert float(fifth["gap"]) > 0
    assert "gap of the means" in page_of(folder).text("figure-5")
    assert {line["space"] for line in lines["table-7"]} == {"parameter", "feature"}
    assert [line["method"] for line in lines["figure-3"]][: len(material.ablations.costs)] == [
        cost.method for cost in material.ablations.costs
    ]
    row, cell = lines["tables-8-11"][0], material.results.rows[0]
    assert (float(row["auroc"]), float(row["auroc_low"])) == (cell.auroc, cell.certainty.intervals["auroc"][0])
    assert row["fpr95_ood_positive_low"] == ""


def test_tables_show_what_was_measured(page):
    material = make_network_run("one")
    results, ablations = material.results, material.ablations
    rows = page.rows("tables-8-11", 1)
    assert list(rows) == [run.method for run in results.ranked]
    for name, (_, *cells) in rows.items():
        for cell, column in zip(cells, results.columns, strict=True):
            told = results.cells[name, column]
            assert cell.text.startswith(f"{100 * told.auroc:.2f}"), (name, column)
            assert (cell.attributes.get("class") == "best") == bool(told.certainty and told.certainty.best)
    costs = page.rows("figure-3", 1)
    times = {cost.method: cost.total_ms for cost in ablations.costs}
    shown = [name.split()[0] for name in costs]
    assert shown == sorted(times, key=times.get)
    fold = page.rows("table-5", 1)["fold"]
    assert fold[1].text.startswith(f"{100 * results.cells['fold', 'all'].auroc:.2f}")
    gains = page.rows("table-3", 1)
    marked = [cell.attributes.get("class") for row in gains.values() for cell in row]
    assert (marked.count("best"), marked.count("below")) == (7, 7)
    assert "+2.00 (+1.00 to +3.00)" in page.text("table-3")
    known, *others = page.sections["table-6"][1][1:4]
    assert "×" not in "".join(cell.text for cell in known)
    assert all(row[-1].text.count("×") == 1 for row in others)


def empty(*runs):
    """Return the page without the content of its exhibits."""
    return Page(exhibits.render_reproduction(conclude(*runs), {}))


def test_a_single_network_lies_in_the_folder_itself(tmp_path, undrawn, monkeypatch):
    monkeypatch.setattr(exhibits.figures, "theorem_figure", lambda name: Drawing(name, []))
    page = write_reproduction(tmp_path, conclude(make_network_run()))
    text = Page(page.read_text(encoding="utf8")).check().text()
    assert "1 network" in text
    assert "not tested" in text
    assert not (tmp_path / "exhibits" / "table-5.csv").exists()


def test_warnings_are_said_once_and_are_text():
    study, results = make_study(deviations=["few images"]), make_results(deviations=["less data"], about=HOSTILE)
    one, two = (make_network_run(name, results=results, study=study) for name in ("one", "two"))
    full = {"none": 0.0, "partial": 1.0, "full": 1.0}
    two = two._replace(ablations=replace(make_ablations(), refused={"ash": HOSTILE}, alphas=full))
    page = empty(one, two)
    assert "<img" not in page.html
    assert (page.text().count("less data"), page.text().count("curvature study: few images")) == (1, 1)
    assert f"two: ash was left out: {HOSTILE}" in page.text()
    assert "two: the exponent of partial normalisation is 1" in page.text()
    assert "partial normalisation is 1" not in empty(make_network_run()).text()


def cifar(**changed):
    return make_network_run("seed0", sets=SETS, results=make_results(sets=SETS, family="resnet18", **CIFAR, **changed))


def test_numbers_of_the_paper_are_compared_with_comparable_runs_alone(monkeypatch):
    material = cifar()
    assert explain_missing_numbers([make_network_run()])
    assert (
        find_paper_numbers([make_network_run()]) == find_paper_numbers([material, material]) == {}
    )  # the weights twice
    assert explain_missing_numbers([material]) == ""
    lines = find_paper_numbers([material])
    fold = next(line for line in lines["Table 2"] if (line.method, line.metric) == ("fold", "auroc"))
    assert fold.reported == 92.46
    assert fold.measured == pytest.approx(100 * material.results.cells["fold", "all"].auroc)
    assert {line.dataset for line in lines["Table 2"]} == {"all"}
    assert {line.dataset for line in lines["Tables 8 to 11"]} == set(SETS)
    assert "Table 5" not in lines
    assert empty(material).text().count("The paper's numbers:") == 7  # Tables 1 to 4 and 6 to 11
    line = replace(fold, reported=90.0, measured=88.5, difference=-1.5, low=87.0, high=91.0, inside=True)
    monkeypatch.setattr(comparison, "compare_with_paper", lambda _: [replace(line, table=OTHERS)])
    assert {"Table 2", "Tables 8 to 11"}.isdisjoint(others := find_paper_numbers([material]))
    assert [each.dataset for each in others["Table 5"]] == ["all"]
    monkeypatch.setattr(
        comparison, "compare_with_paper", lambda _: [line, replace(line, low=None, high=None, inside=False)]
    )
    text = empty(material).text("table-2")
    assert all(told in text for told in ("90.00", "−1.50", "87.00–91.00", "1 of 2 lie in the 95 % interval"))
