"""The page of a reproduction, from files on disk."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from flatfold.evaluate.paper_tables.benchmarks import OTHERS
from flatfold.evaluate.reproduce.claims import verdicts
from flatfold.evaluate.reproduce.verdict import Check, Verdict
from flatfold.report.drawing import Drawing, Panel
from flatfold.report.markup import Html
from flatfold.report.reproduction import exhibits
from flatfold.report.reproduction.effects import effects_table
from flatfold.report.reproduction.exhibits import SHOWS
from flatfold.report.reproduction.overview import finding, mark, overview, slug, told
from flatfold.report.reproduction.page import render_reproduction, write_reproduction
from flatfold.report.reproduction.paper_numbers import chosen, paper_lines, paper_table, why_not
from flatfold.report.reproduction.shown import Shown
from flatfold.report.reproduction.tables import methods_table, network_table, regime_table
from tests.report.conftest import parse
from tests.toy_ablations import make_ablations, make_material, make_results, save
from tests.toy_study import make_study

HOSTILE = "<img src=x onerror=alert(1)> $title"
CIFAR = {
    "protocol": "openood-1.5/cifar10",
    "architecture": "openood/resnet18_32x32",
    "network": "seed0",
    "family": "resnet18",
}
SETS = {
    name: "near" if name in ("cifar100", "tin") else "far"
    for name in ("cifar100", "tin", "mnist", "svhn", "texture", "places365")
}


INLINE = Drawing.inline


DRAWN = {}


def first_panels(drawing):
    """Draw the first panel of a figure, once: the others differ by their number."""
    if drawing.name not in DRAWN:
        DRAWN[drawing.name] = INLINE(replace(drawing, panels=drawing.panels[:1]))
    return [*DRAWN[drawing.name], *["<svg></svg>"] * (len(drawing.panels) - 1)]


def touch(drawing, folder):
    """Leave empty files in place of those for papers, which take long and are looked at elsewhere."""
    folder.mkdir(exist_ok=True)
    for kind in ("svg", "pdf"):
        (folder / f"{drawing.name}.{kind}").touch()


@pytest.fixture(scope="module")
def quick():
    """Draw little: the theorem, files for papers and most panels are looked at elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exhibits, "theorem_figure", lambda: Drawing("theorem", [Panel("empty", lambda axes: None)]))
        patch.setattr(Drawing, "inline", first_panels)
        patch.setattr(Drawing, "save", touch)
        yield


@pytest.fixture(scope="module")
def folder(quick, tmp_path_factory):
    place = tmp_path_factory.mktemp("reproduction")
    for name in ("one", "two"):
        save(make_material(name), place / name)
    assert write_reproduction(place, ["one", "two"]) == place / "reproduction.html"
    return place


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "reproduction.html").read_text(encoding="utf8")


def test_the_page_is_sound_html_without_anything_from_elsewhere(page):
    found = parse(page)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)


def test_every_exhibit_has_a_section_with_heading_claim_finding_and_verdict(page, folder):
    found = json.loads((folder / "reproduction.json").read_text(encoding="utf8"))
    assert (found["format"], found["version"], found["networks"]) == ("flatfold-reproduction", 1, ["one", "two"])
    text = "".join(parse(page).text)
    for each in found["verdicts"]:
        assert f'<section id="{slug(each["number"])}"><h2>' in page
        assert f"{each['number']}. {each['title']}" in text
        assert each["claim"] in text
    assert [each["number"] for each in found["verdicts"]] == list(SHOWS)
    assert (
        page.count("The paper claims") == page.count("This run shows</dt>") == page.count(">Verdict</dt>") == len(SHOWS)
    )


def test_both_networks_are_shown_in_every_figure_and_table(page):
    for section in page.split("<section ")[2:]:
        number = section[4 : section.index('"', 4)]
        if number not in ("theorem-1", "table-1", "table-6", "table-5"):
            assert section.count("<h3>one</h3>") == section.count("<h3>two</h3>") == 1, number


def test_tables_and_figures_are_files_too(folder):
    tables = {path.stem for path in (folder / "exhibits").glob("*.csv")}
    assert tables == {*(f"table-{number}" for number in range(1, 8)), "tables-8-11", "figure-3"}
    for kind in ("svg", "pdf"):
        figures = {path.stem for path in (folder / "exhibits").glob(f"*.{kind}")}
        stems = ["figure-1b", *(f"figure-{n}" for n in range(2, 8)), "figures-8-10", "figures-9-11", "figures-12-15"]
        assert figures == {"figure-1a", "theorem-1", *(f"{s}-{n}" for s in stems for n in ("one", "two"))}


def test_the_files_of_tables_hold_the_numbers(folder):
    material = make_material("one")
    lines = {
        path.stem: list(csv.DictReader(io.StringIO(path.read_text(encoding="utf8"))))
        for path in (folder / "exhibits").glob("*.csv")
    }
    assert {line["network"] for table in lines.values() for line in table} == {"one", "two"}
    first = lines["table-1"][0]
    assert (first["data"], float(first["trace"])) == ("known", material.study.cell("id", "parameter", "trace").value)
    far = next(line for line in lines["table-6"] if line["data"] == "far")
    assert float(far["lambda_max"]) == material.study.cell("far", "feature", "lambda_max").value
    assert {line["over"] for line in lines["table-2"]} == {"near", "far", "all"}
    assert {line["over"] for line in lines["table-5"]} == {"all"}
    assert len(lines["table-3"]) == 2 * len(material.ablations.effects)
    assert {line["space"] for line in lines["table-4"]} == {"feature", "logit"}
    assert {line["space"] for line in lines["table-7"]} == {"parameter", "feature"}
    row = lines["tables-8-11"][0]
    cell = material.results.rows[0]
    assert float(row["auroc"]) == cell.auroc
    assert float(row["auroc_low"]) == cell.certainty.intervals["auroc"][0]
    assert row["fpr95_ood_positive_low"] == ""


def test_the_same_files_give_the_same_bytes(folder, page):
    before = {path: path.read_bytes() for path in (*folder.glob("*.json"), *(folder / "exhibits").iterdir())}
    write_reproduction(folder, ["one", "two"])
    assert (folder / "reproduction.html").read_text(encoding="utf8") == page
    assert {path: path.read_bytes() for path in before} == before


def test_a_single_network_lies_in_the_folder_itself_and_needs_no_name(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(Drawing, "inline", lambda drawing: ["<svg></svg>"] * len(drawing.panels))
    save(make_material(), tmp_path)
    assert write_reproduction(tmp_path, [""]) == tmp_path / "reproduction.html"
    text = (tmp_path / "reproduction.html").read_text(encoding="utf8")
    assert "not tested" in text
    assert "<b>1</b> network</li>" in text
    assert not (tmp_path / "exhibits" / "table-5.csv").exists()


def test_without_a_network_there_is_no_page(tmp_path):
    with pytest.raises(ValueError, match=r"at least one network, got none\. Name its folder"):
        write_reproduction(tmp_path, [])


def empty(materials):
    """Return the page without content of its exhibits."""
    found = verdicts(materials)
    return render_reproduction(materials, found, {each.number: Shown(Html()) for each in found})


def test_hostile_names_are_text():
    results = make_results(about=HOSTILE, name=HOSTILE)
    text = empty([make_material(results=replace(results, refused={HOSTILE: HOSTILE}))])
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt; $title" in text


def test_what_makes_numbers_others_than_they_seem_is_said_once():
    study = make_study(deviations=["few images"])
    results = make_results(deviations=["less data"])
    refused = replace(make_ablations(), refused={"ash": "it needs <positive> features"})
    both = [make_material(name, results=results, study=study) for name in ("one", "two")]
    both[1] = both[1]._replace(ablations=refused)
    text = "".join(parse(empty(both)).text)
    assert text.count("less data") == text.count("curvature study: few images") == 1
    assert "two: ash was left out: it needs <positive> features" in text
    assert (
        "because the suite toy does not follow one of the paper's benchmarks; less data. Its claims are tested" in text
    )


def test_a_partial_normalisation_that_is_full_is_a_warning():
    assert "so that it is full normalisation" not in empty([make_material()])
    full = replace(make_ablations(), alphas={"none": 0.0, "partial": 1.0, "full": 1.0})
    assert "the exponent of partial normalisation is 1, so that it is full normalisation" in empty(
        [make_material(ablations=full)]
    )


def test_networks_of_one_architecture_have_no_table_of_architectures():
    seeds = [make_material(name, results=make_results(network=name, family="net")) for name in ("s0", "s1")]
    assert not SHOWS["Table 5"](seeds, "table-5").lines
    others = [make_material(name, results=make_results(network=name, family=name)) for name in ("s0", "s1")]
    assert len(SHOWS["Table 5"](others, "table-5").lines) > 0


def cifar(**changed):
    return make_material("seed0", sets=SETS, results=make_results(sets=SETS, **{**CIFAR, **changed}))


def test_numbers_of_the_paper_stand_beside_comparable_runs_alone():
    assert "does not follow" in why_not([make_material()])
    assert paper_lines([make_material()]) == []
    assert why_not([cifar()]) == ""
    lines = paper_lines([cifar()])
    fold = next(line for line in lines if (line.method, line.dataset, line.metric) == ("fold", "all", "auroc"))
    assert fold.reported == 92.46
    assert fold.measured == pytest.approx(100 * cifar().results.cells["fold", "all"].auroc)
    assert paper_lines([cifar(), cifar()]) == []  # the same weights twice


def test_numbers_of_the_paper_go_to_the_table_that_has_them():
    lines = paper_lines([cifar()])
    assert {line.dataset for line in chosen(lines, "Table 2")} == {"all"}
    assert {line.dataset for line in chosen(lines, "Tables 8 to 11")} == set(SETS)
    assert chosen(lines, "Table 5") == []
    others = [replace(line, table=OTHERS) for line in lines]
    assert chosen(others, "Table 5") == others
    assert chosen(others, "Table 2") == []


def test_numbers_of_the_paper_are_told_with_difference_and_interval():
    line = replace(
        paper_lines([cifar()])[0], reported=90.0, measured=88.5, difference=-1.5, low=87.0, high=91.0, inside=True
    )
    text = "".join(parse(paper_table([line, replace(line, low=None, high=None, inside=False)])).text)
    assert "90.00" in text
    assert "−1.50" in text
    assert text.count("87.00–91.00") == 1
    assert "1 of 2 lie in the 95 % interval" in text
    assert paper_table([]) == ""


def test_comparable_numbers_are_on_the_page():
    text = empty([cifar()])
    assert text.count("The paper's numbers:".replace("'", "&#x27;")) == 2
    assert "not put beside" not in text


CHECKS = [Check("a", "first", True), Check("b", "second", False), Check("b", "third", None)]


def make_verdict(agreement="partly", checks=CHECKS, number="Table 1", note="A note."):
    return Verdict(number, "A title", "A claim.", "a: one; b: two.", agreement, list(checks), note)


def test_the_finding_counts_every_kind_of_verdict():
    kinds = ["agrees", "agrees", "partly", "disagrees", "cannot be told", "not tested"]
    text = "".join(parse(finding([make_verdict(kind) for kind in kinds])).text)
    assert text == (
        "Of 6 claims, which cover every table and figure of the paper and its theorem, 2 agree with this run, 1 agree "
        "in part, 1 disagree, 1 cannot be told and 1 were not tested."
    )
    assert "".join(parse(finding([make_verdict("agrees")])).text).endswith("theorem, 1 agree with this run.")


def test_a_verdict_is_a_word_and_not_only_a_colour():
    assert mark("cannot be told") == '<span class="verdict-cannot-be-told">cannot be told</span>'
    assert ">partly</span>" in overview([make_verdict()])


def test_the_overview_links_to_every_exhibit():
    made = overview([make_verdict(number="Figures 8 and 10")])
    assert '<a href="#figures-8-10">Figures 8 and 10</a>' in made
    assert '<span class="line">a: one;</span><span class="line">b: two.</span>' in made


def test_checks_are_at_a_click_with_their_result():
    text = "".join(parse(told(make_verdict())).text)
    assert "1 of 3 checks hold" in text
    for words in ("afirstholds", "bsecondcontradicts", "bthirdcannot be told", "A note."):
        assert words in text
    assert "<details>" not in told(make_verdict(checks=[]))
    assert "network" not in told(make_verdict(checks=[Check("", "x", True)]))
    assert 'class="soft"' not in told(make_verdict(note=""))


def test_the_table_of_regimes_has_errors_and_factors():
    text = regime_table([make_material("one"), make_material("two")], "feature")
    found = parse(text)
    assert "".join(found.text).count("known") == 2
    assert text.count("×") == 8
    assert "exact" in text
    study = make_study()
    sharp = [replace(each, value=99.0) if each.dataset == "id" else each for each in study.statistics]
    assert "below known" in regime_table([make_material(study=replace(study, statistics=sharp))], "parameter")


def test_the_table_of_methods_marks_what_cannot_be_told_from_the_best():
    results = make_results()
    made = methods_table(results, ["near-set", "all"], "x")
    best = [results.cells[run.method, c].certainty.best for run in results.methods for c in ("near-set", "all")]
    assert made.count('class="best"') == sum(best) < len(best)
    order = re.findall(r'<th scope="row">([^<]*)</th>', made)
    assert order == [run.method for run in results.ranked]
    bare = replace(results, averages=[replace(mean, certainty=None) for mean in results.averages])
    assert 'class="best"' not in methods_table(bare, ["all"], "x")


def test_the_table_of_networks_has_means_and_gaps():
    one, two = make_results(), make_results(methods=("msp", "fold"), seed=1)
    made = network_table([make_material("one", results=one), make_material("two", results=two)])
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th>(.*?)</tr>', made)
    assert {name for name, _ in rows[:2]} == {"msp", "fold"}
    fold = dict(rows)["fold"]
    mean = 50 * (one.cells["fold", "all"].auroc + two.cells["fold", "all"].auroc)
    assert f"<b>{mean:.2f}</b>" in fold
    assert dict(rows)["vim"].count("<td></td>") == 2


def test_the_table_of_normalisations_marks_gains_and_losses():
    ablations = replace(make_ablations(), refused={"ash": "it cannot", "odin": "nor this"})
    made = effects_table(ablations)
    assert made.count('class="best"') == 7
    assert made.count("a loss") == 7
    assert "ash was left out: it cannot" in made
    assert "odin" not in made  # which the table does not have
    assert "+2.00 (+1.00 to +3.00)" in made
    few = replace(ablations, effects=[each for each in ablations.effects if each.normalisation != "full"])
    assert effects_table(few).count('data-sort=""') == 7
    flat = make_ablations(gain=0.0)
    assert 'class="best"' not in effects_table(flat)


def test_the_theorem_is_drawn_once_for_all_networks(quick):
    shown = SHOWS["Theorem 1"]([make_material("one"), make_material("two")], "theorem-1")
    assert [drawing.name for drawing in shown.drawings] == ["theorem-1"]
