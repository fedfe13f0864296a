"""Results of the AutoFold study: regrets, gains and verdicts that are known, and the tables and page made of them."""

import csv
import io
from dataclasses import fields

import numpy as np
import pytest

from studies.autofold.measure import Measured
from studies.autofold.page import FILES, PAGE, filled
from studies.autofold.results import as_csv, rows_of, with_interval
from studies.autofold.selection import best_rules, judge, limited_gains, mean_gain, redrawn_networks, verdicts
from studies.autofold.sentences import sections
from studies.autofold.store import load_measured, save_measured
from tests.studies.worlds import METHODS, invented


def held_out(gains, **settings):
    return invented(gains, role="held out", **settings)


def redrawn(found, method):
    return found.measured.redrawn[found.measured.methods.index(method)]


def test_rows_have_regret_gain_and_their_intervals():
    found = invented({"pooled": 0.02, "mixed": -0.04, "paired-cap50": 0.05}, spread=0.01, regret=0.03)
    rows = list(rows_of(found))
    by_rule = {row.rule: row for row in rows if row.ood == "mean"}
    assert len(rows) == len(METHODS) * 2
    assert [by_rule[name].regret for name in ("paired", "pooled", "paired-cap50")] == pytest.approx([3, 1, -2])
    assert [by_rule[name].gain for name in ("pooled", "mixed", "paired")] == pytest.approx([2, -4, 0])
    assert (by_rule["pooled"].gain_low, by_rule["pooled"].gain_high) == pytest.approx((1, 3))
    assert by_rule["paired"].auroc == pytest.approx(80)  # of the choice that was made, 10 points below the redrawn ones
    assert with_interval(np.array([5.0, *np.linspace(0, 10, 401)])) == pytest.approx((5, 0.25, 9.75))
    table = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert [line["rule"] for line in table] == [row.rule for row in rows]
    assert float(table[0]["regret"]) == rows[0].regret
    alphas = {line["rule"]: line["alpha"] for line in table}
    assert (alphas["paired"], alphas["ebo"]) == ("0.5", "")


def test_the_rule_with_the_largest_limited_gain_of_its_group_is_chosen():
    found = [invented({"pooled": 0.01, "mixed": 0.02, "paired-cap50": 0.01, "paired-T2": 0.001, "shrunk-cap50": 0.05})]
    # shrunk-cap50 is an afterthought, which is never chosen
    best = [best_rules(found, group)[0] for group in ("exponent", "temperature", "cap")]
    assert best == ["mixed", "paired-T2", "paired-cap50"]
    losing = dict.fromkeys(("one-vs-rest", "pooled"), -0.01)
    assert best_rules([invented(losing)], "exponent")[0] not in ("paired", "pooled", "one-vs-rest")
    one_is_lost = [invented({"mixed": 0.6}), *(invented({"mixed": -0.03, "pooled": 0.01}) for _ in range(3))]
    assert mean_gain(one_is_lost, "mixed")[0] == pytest.approx((60 - 9) / 4)
    assert limited_gains(one_is_lost, "mixed")[0] == pytest.approx((5 - 9) / 4)
    assert best_rules(one_is_lost, "exponent")[0] == "pooled"


def test_a_rule_is_judged_where_it_was_not_chosen():
    here, there = [invented({"pooled": 0.04, "mixed": 0.03})], [held_out({"pooled": 0.01, "mixed": 0.03})]
    redrawn(here[0], "mixed")[4] = 0.95  # in the last of four redraws
    verdict = judge(here, there, "exponent")
    assert (verdict.rule, verdict.chosen_on, verdict.judged_on) == ("pooled", "development", "held out")
    assert (verdict.choice, verdict.gain, verdict.worst, verdict.again) == pytest.approx((4, 1, 1, 0.75))
    both_ways = [(each.chosen_on, each.group, each.rule) for each in verdicts([*here, *there])]
    assert len(both_ways) == 6
    assert ("held out", "exponent", "mixed") in both_ways
    assert verdicts(here) == []


def test_a_rule_is_kept_if_it_is_certain_for_images_and_networks_and_confirmed_if_so_on_both_sides():
    sure, unsure = ({"gains": {"pooled": 0.02}, "spread": spread} for spread in (0.01, 0.03))
    for here, there, kept, confirmed in ((sure, sure, 1, 1), (unsure, sure, 1, 0), (sure, unsure, 0, 0)):
        verdict = judge([invented(**here)], [held_out(**there)], "exponent")
        assert (verdict.kept, verdict.confirmed) == (kept, confirmed)
    one_likes_it = [held_out({"pooled": gain}, replicates=200) for gain in (0.3, -0.02, -0.02, -0.02)]
    verdict = judge([invented({"pooled": 0.04})], one_likes_it, "exponent")
    assert verdict.low > 0 > verdict.wide_low
    assert not verdict.kept
    assert verdict.worst == pytest.approx(-2)
    drawn = redrawn_networks([invented({"pooled": gain}, replicates=50) for gain in (0.1, 0.02)], "pooled")
    assert drawn[0] == pytest.approx(6)
    assert set(np.round(drawn[1:], 6)) == {2.0, 6.0, 10.0}


def test_what_was_measured_is_read_again_and_what_cannot_be_read_is_not(tmp_path):
    path, measured = tmp_path / "case.npz", invented({"pooled": 0.02}).measured
    assert load_measured(path) is None
    save_measured(measured, path)
    again = load_measured(path)
    for field in fields(Measured):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(measured, field.name))
    for content in (b"", b"no such thing", b"PK\x03\x04 and then nothing"):
        path.write_bytes(content)
        assert load_measured(path) is None, content


def test_the_page_has_a_place_for_every_section_and_figure():
    text = PAGE.read_text(encoding="utf8")
    found = [invented({"paired-cap50": 0.02}, name="a"), held_out({"paired-cap50": 0.02}, name="b")]
    written = sections(found)
    line = "| suite a | 80.0 | 0.50 | 0.50 | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | 90.00 |"
    assert line in filled(text, written)
    assert written["answer"].count("**kept**") == 1
    assert all(f"]({name})" in text for name in FILES)
    old = "before\n<!-- begin a -->\nold | \\1\n<!-- end a -->\nafter"
    assert filled(old, {"a": "new \\1"}) == "before\n<!-- begin a -->\nnew \\1\n<!-- end a -->\nafter"
    with pytest.raises(ValueError, match="'b'"):
        filled(old, {"b": "new"})
