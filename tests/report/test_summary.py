"""The page for several runs."""

import json
import re
from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from flatfold.evaluate.summary import summarise
from flatfold.report.summary import render_summary, write_summary


@pytest.fixture
def folder(make_run, tmp_path):
    """Three networks of two families, with a report each but the last."""
    for seed, family in enumerate(["small", "small", "large & <wide>"]):
        run = make_run(
            ("fold", "msp"), known=200 + seed, network=f"net{seed}", family=family, accuracy=0.9 + seed / 100
        )
        run.save(tmp_path / f"net {seed}")
        if seed < 2:
            (tmp_path / f"net {seed}" / "report.html").write_text("<p>here")
    return tmp_path


def test_the_page_is_well_formed_and_escapes_what_it_shows(folder, parsed):
    path = write_summary(folder)
    assert path == folder / "report.html"
    seen = parsed(path.read_text())
    assert seen.open == []
    assert len(seen.ids) == len(set(seen.ids))
    assert "<wide>" not in path.read_text()
    assert "large & <wide>" in " ".join(seen.text)


def test_means_and_spread_are_those_of_the_runs(folder, make_run, parsed):
    runs = [make_run(("fold", "msp"), known=200 + seed) for seed in range(2)]
    values = [run.cells["fold", "far"].auroc for run in runs]
    page = write_summary(folder).read_text()
    cells = [json.loads(told["data-metrics"]) for _, told in parsed(page).tags if "data-metrics" in told]
    (row,) = [row for row in summarise(runs) if (row.method, row.column) == ("fold", "far")]
    low, high = row.intervals["auroc"]
    below = f"± {100 * pstdev(values):.2f}\n{100 * low:.2f}–{100 * high:.2f}"
    assert [round(fmean(values), 7), f"{100 * fmean(values):.2f}", below] in [cell[0] for cell in cells]
    assert "Means over 2 runs" in page
    assert "<b>3</b> runs: networks or seeds" in page
    assert "<b>2</b> families" in page
    assert "Accuracy 90.50 % on average." in page


def test_a_single_run_of_a_family_has_its_interval(folder, make_run):
    page = write_summary(folder).read_text()
    cell = make_run(("fold", "msp"), known=202).cells["fold", "all"]
    low, high = cell.certainty.intervals["auroc"]
    assert f"{100 * low:.2f}–{100 * high:.2f}" in page
    assert "One run, accuracy 92.00 %." in page


def test_every_run_is_listed_and_leads_to_its_report_where_there_is_one(folder, parsed):
    seen = parsed(write_summary(folder).read_text())
    links = [told["href"] for tag, told in seen.tags if tag == "a"]
    assert links == ["#family-0", "#family-1", "#runs", "net%200/report.html", "net%201/report.html"]
    assert all(f"net {seed}" in seen.text for seed in range(3))


def test_methods_are_sorted_by_their_mean(folder):
    page = write_summary(folder).read_text()
    table = page[page.index('id="table-0"') : page.index('id="family-1"')]
    lasts = [
        json.loads(re.findall(r'data-metrics="([^"]*)"', line)[-1].replace("&quot;", '"'))[0][0]
        for line in re.findall(r"<tr data-groups.*?</tr>", table)
    ]
    assert len(lasts) == 2
    assert lasts == sorted(lasts, reverse=True)


def test_a_method_that_one_network_lacks_is_named_as_left_out(folder, make_run):
    make_run(("fold",), network="net3", family="small", deviations=["too few"]).save(folder / "net3")
    page = write_summary(folder).read_text()
    assert "small: msp is not in every run and left out here." in page
    assert "toy, net3: too few" in page


def test_a_method_that_runs_refused_is_named_as_left_out_with_the_reason(folder, make_run):
    page = write_summary(folder).read_text()
    told = "ash was left out: ASH is made for &lt;positive&gt; features."
    assert page.count(f"<li>small: {told}</li>") == 1
    assert page.count(f"<li>large &amp; &lt;wide&gt;: {told}</li>") == 1
    run = make_run(("fold", "msp", "ash"), network="net0", family="small")
    replace(run, refused={}).save(folder / "net 0")
    page = write_summary(folder).read_text()
    assert f"small: ash is not in every run and left out here. toy, net1 left it out: {told[18:]}" in page


def test_a_run_of_its_own_is_counted_as_one(make_run, tmp_path):
    make_run(("fold",), network="net0", certainty=False).save(tmp_path / "net0")
    page = write_summary(tmp_path).read_text()
    assert "<b>1</b> run<" in page
    assert "<b>1</b> family<" in page


def test_without_intervals_the_spread_stands_alone(make_run, parsed, tmp_path):
    for seed in range(2):
        make_run(("fold",), known=200 + seed, certainty=False, network=f"{seed}", family="f").save(tmp_path / f"{seed}")
    page = write_summary(tmp_path).read_text()
    cells = [json.loads(told["data-metrics"]) for _, told in parsed(page).tags if "data-metrics" in told]
    assert all(re.fullmatch(r"± \d+\.\d\d", below) for cell in cells for *_, below in cell)


def test_a_column_that_only_some_methods_have_leaves_their_cell_empty(make_run, tmp_path):
    run = make_run(("fold", "msp"), network="net0", family="small")
    rows = [row for row in run.rows if (row.method, row.dataset) != ("msp", "near-set")]
    page = render_summary({tmp_path / "net0": replace(run, rows=rows), tmp_path / "net1": run}, tmp_path)
    line = next(line for line in re.findall(r"<tr data-groups.*?</tr>", page) if ">msp<" in line)
    assert line.count("<td></td>") == 3  # the data set and the two averages that need it
    assert line.count("data-metrics") == 2


def test_the_folder_of_one_run_keeps_its_report(make_run, tmp_path):
    make_run().save(tmp_path)
    (tmp_path / "report.html").write_text("of the run")
    with pytest.raises(ValueError, match=r"needs a folder of several runs, but .* is a run itself. Use write_report"):
        write_summary(tmp_path)
    assert (tmp_path / "report.html").read_text() == "of the run"


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no results.json in .*, nor in a folder inside it"):
        write_summary(tmp_path)
