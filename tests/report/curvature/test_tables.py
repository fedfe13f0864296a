"""The tables of a curvature study: every figure, its error, and no more praise than the numbers bear."""

import re
from dataclasses import replace

import pytest

from flatfold.evaluate.study.files import Detection
from flatfold.report.curvature.compare import compare
from flatfold.report.curvature.detection import detection_table
from flatfold.report.curvature.numbers import quantity
from flatfold.report.curvature.table import statistics_table
from tests.toy_study import make_study

SETS = {"a": "near", "b": "near", "c": "far"}


@pytest.fixture(scope="module")
def study():
    return make_study(SETS, classes=3, width=4, known=10, unknown=8)


def lines(table):
    """Return the cells of each line below the head, by the name of the line."""
    body = table[table.index("<tbody>") :]
    rows = re.findall(r"<tr>(.*?)</tr>", body)
    return {
        re.search(r'scope="row"[^>]*>(.*?)<', row)[1]: re.findall(r"<td([^>]*)>(.*?)</td>", row)[1:] for row in rows
    }


def heads(table):
    return re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)


def with_detections(study, *told):
    found = [Detection(space, alpha, name, auroc, low, high) for space, alpha, name, auroc, low, high in told]
    return replace(study, detections=found)


def test_every_figure_is_there_with_its_error_and_its_factor(study):
    found = lines(statistics_table(study, compare(study)))
    assert list(found) == ["known", "a", "b", "c", "near"]
    columns = study.columns
    for name, line in (("known", "id"), ("a", "a"), ("b", "b"), ("c", "c"), ("near", "near")):
        for (_, text), column in zip(found[name], columns, strict=True):
            told = study.cell(line, *column)
            assert f"<b>{quantity(told.value)}</b>" in text
            assert (">exact<" in text) == (told.stderr is None)
            assert told.stderr is None or f"± {quantity(told.stderr, 2)}" in text
            ratio = f"<span>×\u00a0{quantity(told.value / study.cell('id', *column).value, 3)}</span>"
            assert (ratio in text) == (name != "known")


def test_inputs_are_counted(study):
    table = statistics_table(study, compare(study))
    assert re.findall(r'<td data-sort="(\d+)">\1</td>', table) == ["10", "8", "8", "8", "16"]


def test_what_does_not_exceed_the_known_images_is_marked_and_nothing_else(study):
    high = [replace(s, value=1.0 if s.dataset == "id" else 2.0, stderr=None) for s in study.statistics]
    assert "below" not in statistics_table(study, compare(replace(study, statistics=high)))
    low = [replace(s, value=0.5) if (s.dataset, s.space, s.name) == ("b", "feature", "trace") else s for s in high]
    low = [replace(s, stderr=1.0) if (s.dataset, s.space, s.name) == ("c", "logit", "trace") else s for s in low]
    changed = replace(study, statistics=low)
    found = lines(statistics_table(changed, compare(changed)))
    marked = [
        (name, column, re.search(r'verdict">(.*?)<', text)[1])
        for name, cells in found.items()
        for column, (attributes, text) in zip(study.columns, cells, strict=True)
        if 'class="below"' in attributes
    ]
    assert marked == [("b", ("feature", "trace"), "below known"), ("c", ("logit", "trace"), "not told apart")]


def test_a_cell_can_be_sorted_by_its_value_and_says_how_it_was_computed(study):
    table = statistics_table(study, compare(study))
    known = study.cell("id", "parameter", "trace")
    assert f'title="xtrace, 20 products" data-sort="{known.value}"' in table
    none = [replace(s, matvecs=0) for s in study.statistics]
    changed = replace(study, statistics=none)
    assert f'title="xtrace" data-sort="{known.value}"' in statistics_table(changed, compare(changed))


def test_heads_name_statistic_and_space(study):
    table = statistics_table(study, compare(study))
    assert heads(table)[2:] == [
        f"{name}<small>over {space}</small>"
        for space in ("parameters", "features", "logits")
        for name in ("λmax", "trace")
    ]
    assert 'title="About a."' in table


def test_every_auroc_is_there_with_its_interval(study):
    table = detection_table(study)
    found = lines(table)
    assert list(found) == ["parameters", "features", "logits"]
    assert [head.partition("<")[0] for head in heads(table)] == [
        "trace over",
        "α",
        "a",
        "b",
        "c",
        "near",
        "far",
        "average",
    ]
    for told in study.detections:
        cell = {"parameter": "parameters", "feature": "features", "logit": "logits"}[told.space]
        place = ["a", "b", "c", "near", "far", "all"].index(told.dataset)
        _, text = found[cell][place]
        assert f"<b>{100 * told.auroc:.2f}</b>" in text
        assert f"{100 * told.low:.2f}–{100 * told.high:.2f}" in text


def test_a_mean_that_repeats_the_average_has_no_column():
    table = detection_table(make_study({"c": "far"}, classes=3, width=4, known=10, unknown=8))
    assert [head.partition("<")[0] for head in heads(table)] == ["trace over", "α", "c", "average"]


def test_best_are_all_whose_interval_reaches_that_of_the_best(study):
    told = with_detections(
        study,
        ("logit", 0.0, "a", 0.90, 0.88, 0.92),
        ("feature", 0.0, "a", 0.86, 0.83, 0.88),
        ("feature", 0.5, "a", 0.87, 0.85, 0.879),
    )
    table = detection_table(told)
    classes = re.findall(r'<td(?: class="(\w+)")? data-sort="0', table)
    assert classes == ["best", "best", ""]
    assert re.findall(r"<td>([\d.]+)</td>", table) == ["0", "0", "0.5"]


def test_a_single_trace_has_no_rival_and_no_mark(study):
    assert "best" not in detection_table(with_detections(study, ("feature", 0.0, "a", 0.9, 0.8, 0.95)))


def test_what_is_certainly_worse_than_guessing_says_so_and_is_never_the_best(study):
    told = with_detections(
        study,
        ("logit", 0.5, "a", 0.40, 0.35, 0.49),
        ("feature", 0.0, "a", 0.42, 0.36, 0.51),
        ("logit", 0.0, "a", 0.30, 0.20, 0.35),
    )
    table = detection_table(told)
    assert re.findall(r'<td(?: class="(\w+)")? data-sort="0', table) == ["below", "best", "below"]
    assert table.count("worse than guessing") == 2


@pytest.mark.parametrize(("auroc", "low", "high"), [(0.99, 0.98, 1.0), (0.1, 0.05, 0.2)])
def test_estimated_traces_say_so_and_are_neither_the_best_nor_poor(study, auroc, low, high):
    rivals = ("feature", 0.0, "a", 0.9, 0.88, 0.92), ("feature", 0.5, "a", 0.8, 0.78, 0.82)
    table = detection_table(with_detections(study, ("parameter", 0.0, "a", auroc, low, high), *rivals))
    assert re.findall(r'<td(?: class="(\w+)")? data-sort="0', table) == ["", "best", ""]
    assert '<th scope="row">parameters<small>estimated, ± 10 %</small></th>' in table
    exact = replace(study, trace_stderr={})
    table = detection_table(with_detections(exact, ("parameter", 0.0, "a", auroc, low, high), *rivals))
    assert re.findall(r'<td(?: class="(\w+)")? data-sort="0', table)[0] == ("best" if auroc > 0.5 else "below")
    assert "estimated" not in table


def test_a_trace_that_was_not_judged_on_a_data_set_leaves_its_cell_empty(study):
    told = with_detections(study, ("parameter", 0.0, "a", 0.9, 0.8, 0.95), ("feature", 0.0, "b", 0.9, 0.8, 0.95))
    assert detection_table(told).count('<td data-sort=""></td>') == 2


def test_without_detections_there_is_no_table(study):
    assert detection_table(replace(study, detections=[])) == ""
