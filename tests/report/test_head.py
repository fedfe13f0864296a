"""The top of the page."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flatfold.evaluate import record
from flatfold.report import head


def plain(html):
    return re.sub("<[^>]*>", "", html)


@pytest.mark.parametrize(("network", "title"), [("", "toy"), ("resnet", "toy, resnet")])
def test_the_title_names_suite_and_network(make_run, network, title):
    assert head.title(make_run(network=network)) == title


def test_the_finding_names_the_best_and_all_that_cannot_be_told_from_it(make_run):
    results = make_run(("a", "b", "c", "d"))
    names = [run.method for run in results.ranked]

    def told(best):
        marks = [
            replace(mean, certainty=replace(mean.certainty, best=mean.method in best)) for mean in results.averages
        ]
        return plain(head.finding(replace(results, averages=marks)))

    auroc = results.cells[names[0], "all"]
    low, high = auroc.certainty.intervals["auroc"]
    interval = f"(95 % interval {100 * low:.2f}–{100 * high:.2f})"
    start = f"{names[0]} has the best average AUROC, {100 * auroc.auroc:.2f} % {interval}"
    assert told(names) == f"{start}; {names[1]}, {names[2]} and {names[3]} cannot be told from it."
    assert told(names[:3]) == f"{start}; {names[1]} and {names[2]} cannot be told from it."
    assert told([names[0], names[2]]) == f"{start}; {names[2]} cannot be told from it."
    assert told(names[:1]) == f"{start}; every other is significantly behind."


def test_a_single_method_is_compared_with_none(make_run):
    text = plain(head.finding(make_run(("msp",))))
    assert text.startswith("msp has the best average AUROC")
    assert text.endswith(").")


def test_a_certainty_without_an_interval_is_told_without_one(make_run):
    results = make_run(("msp",))
    means = [replace(mean, certainty=replace(mean.certainty, intervals={})) for mean in results.averages]
    auroc = 100 * results.cells["msp", "all"].auroc
    assert plain(head.finding(replace(results, averages=means))) == f"msp has the best average AUROC, {auroc:.2f} %."


def test_the_finding_claims_no_certainty_that_was_not_computed(make_run):
    results = make_run(certainty=False)
    best = results.ranked[0].method
    assert plain(head.finding(results)) == (
        f"{best} has the best average AUROC, {100 * results.cells[best, 'all'].auroc:.2f} %."
    )


def test_facts_count_images_and_methods(make_run):
    text = plain(head.facts(make_run(known=1200, unknown=700)))
    for fact in (
        "90.00 % accuracy",
        "3 known classes",
        "1,200 known test images",
        "1,400 unknown images in 2 data sets",
    ):
        assert fact in text
    assert "2 methods" in text


def test_everything_to_know_before_a_comparison_is_in_the_box(make_run):
    results = make_run(deviations=["test has 5 images, 9000 were expected"])
    results = replace(results, unreadable={"far-set": {"a.png": "truncated"}, "near-set": {}})
    text = plain(head.warnings(results))
    assert "test has 5 images, 9000 were expected" in text
    assert "far-set: 1 image that could not be read was left out.a.png: truncated" in text
    assert "near-set" not in text
    assert "ash was left out: ASH is made for &lt;positive&gt; features." in text
    assert "autofold: take care" in text


def test_many_unreadable_images_are_counted_and_some_named(make_run):
    reasons = {f"{i}.png": "damaged" for i in range(25)}
    told = head.warnings(replace(make_run(), unreadable={"far-set": reasons}))
    line = "far-set: 25 images that could not be read were left out."
    assert f"<li><details><summary>{line}</summary><ul><li>0.png: damaged</li>" in told
    assert "<li>19.png: damaged</li><li>and 5 more, all in results.json</li></ul></details></li>" in told
    assert "20.png" not in told


def test_a_data_set_with_gaps_is_told_once(make_run):
    unreadable = {"far-set": {"a.png": "truncated", "b.png": "empty"}, "near-set": {"c.png": "truncated"}}
    sentences = record._gaps(SimpleNamespace(unreadable=unreadable))  # as a run writes them
    assert len(sentences) == 2
    results = make_run(deviations=["test has 5 images", *sentences])
    text = plain(head.warnings(replace(results, unreadable=unreadable)))
    assert text.count("far-set") == text.count("near-set") == 1
    assert "test has 5 images" in text
    assert all(sentence in plain(head.warnings(results)) for sentence in sentences)  # nothing else tells it here


def test_many_notes_come_at_a_click(make_run):
    few, many = (head.warnings(make_run(tuple(f"m{i}" for i in range(count)))) for count in (6, 7))
    assert "<details>" not in few
    assert "<details><summary>7 notes on methods</summary>" in many
    assert many.count("take care") == 7


def test_without_anything_to_say_there_is_no_box(make_run):
    results = make_run()
    quiet = [replace(run, warnings=[]) for run in results.methods]
    assert head.warnings(replace(results, methods=quiet, refused={})) == ""
