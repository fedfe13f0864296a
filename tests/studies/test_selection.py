"""`studies.autofold.selection`: a rule is chosen here and judged there."""

import numpy as np
import pytest

from studies.autofold.rules import RULES
from studies.autofold.selection import best_rules, judge, limited_gains, mean_gain, redrawn_networks, verdicts
from tests.studies.invented import invented


def held_out(gains, **settings):
    return invented(gains, role="held out", **settings)


def test_the_rule_with_the_largest_gain_of_its_group_is_chosen():
    found = [invented({"pooled": 0.01, "mixed": 0.02, "paired-cap50": 0.03, "paired-T2": 0.001})]
    assert [best_rules(found, group)[0] for group in ("exponent", "temperature", "cap")] == [
        "mixed",
        "paired-T2",
        "paired-cap50",
    ]


def test_paired_itself_cannot_be_chosen():
    losing = dict.fromkeys(("one-vs-rest", "pooled"), -0.01)
    assert best_rules([invented(losing)], "exponent")[0] not in ("paired", "pooled", "one-vs-rest")


def test_one_network_that_is_lost_without_a_rule_does_not_decide_alone():
    found = [invented({"mixed": 0.6, "pooled": 0.0}), *(invented({"mixed": -0.03, "pooled": 0.01}) for _ in range(3))]
    assert mean_gain(found, "mixed")[0] == pytest.approx((60 - 9) / 4)
    assert limited_gains(found, "mixed")[0] == pytest.approx((5 - 9) / 4)
    assert limited_gains([invented({"mixed": -0.6})], "mixed")[0] == pytest.approx(-5)
    assert best_rules(found, "exponent")[0] == "pooled"


def test_the_gain_is_that_where_the_rule_was_not_chosen():
    here, there = [invented({"pooled": 0.04})], [held_out({"pooled": 0.01, "mixed": 0.03})]
    verdict = judge(here, there, "exponent")
    assert (verdict.rule, verdict.chosen_on, verdict.judged_on) == ("pooled", "development", "held out")
    assert (verdict.choice, verdict.gain, verdict.worst) == pytest.approx((4, 1, 1))


def test_it_is_told_how_often_the_rule_would_be_chosen_again():
    here = [invented({"pooled": 0.04, "mixed": 0.03})]
    here[0].measured.redrawn[here[0].measured.methods.index("mixed"), 4] = 0.95  # in the last of four redraws
    assert best_rules(here, "exponent") == ["pooled"] * 4 + ["mixed"]
    assert judge(here, [held_out({})], "exponent").again == 0.75


def test_a_rule_is_kept_if_both_intervals_lie_above_0():
    here = [invented({"pooled": 0.04})]
    sure, unsure = held_out({"pooled": 0.02}, spread=0.01), held_out({"pooled": 0.02}, spread=0.03)
    assert judge(here, [sure], "exponent").kept
    assert not judge(here, [unsure], "exponent").kept


def test_a_rule_that_only_one_of_many_networks_likes_is_not_kept():
    here = [invented({"pooled": 0.04})]
    there = [
        held_out({"pooled": 0.30}, replicates=200),
        *(held_out({"pooled": -0.02}, replicates=200) for _ in range(3)),
    ]
    verdict = judge(here, there, "exponent")
    assert verdict.low > 0 > verdict.wide_low
    assert not verdict.kept
    assert verdict.worst == pytest.approx(-2)


def test_a_rule_is_confirmed_if_it_is_certain_where_it_was_chosen_too():
    there = [held_out({"pooled": 0.02})]
    sure, unsure = ([invented({"pooled": 0.02}, spread=spread)] for spread in (0.01, 0.03))
    assert judge(sure, there, "exponent").confirmed
    assert judge(unsure, there, "exponent").kept
    assert not judge(unsure, there, "exponent").confirmed
    assert not judge(sure, [held_out({"pooled": 0.02}, spread=0.03)], "exponent").confirmed


def test_an_afterthought_is_never_chosen():
    assert RULES["shrunk-cap50"].afterthought
    assert best_rules([invented({"shrunk-cap50": 0.05, "paired-cap50": 0.01})], "cap")[0] == "paired-cap50"


def test_redrawn_networks_differ_between_replicates_but_not_in_the_first():
    found = [invented({"pooled": 0.10}, replicates=50), invented({"pooled": 0.02}, replicates=50)]
    redrawn = redrawn_networks(found, "pooled")
    assert redrawn[0] == pytest.approx(6)
    assert set(np.round(redrawn[1:], 6)) == {2.0, 6.0, 10.0}
    np.testing.assert_array_equal(redrawn, redrawn_networks(found, "pooled"))


def test_verdicts_go_both_ways_for_every_group():
    found = [invented({"pooled": 0.04}), held_out({"mixed": 0.04})]
    told = [(verdict.chosen_on, verdict.group, verdict.rule) for verdict in verdicts(found)]
    assert len(told) == 6
    assert ("development", "exponent", "pooled") in told
    assert ("held out", "exponent", "mixed") in told


def test_without_held_out_networks_there_is_no_verdict():
    assert verdicts([invented({})]) == []
