"""Every table and figure of the paper gets a verdict, in the paper's order, and the verdict follows the numbers."""

import re
from dataclasses import replace

import pytest

from flatfold.evaluate.reproduce.claims import exhibits, verdicts
from flatfold.evaluate.reproduce.claims.costs import ends, set_up
from flatfold.evaluate.reproduce.claims.exhibit import Exhibit, Found, for_each
from flatfold.evaluate.reproduce.verdict import Check
from tests.toy_ablations import make_ablations, make_costs, make_material, make_results, sensitivity
from tests.toy_study import SETS, make_study

NUMBERS = [
    "Figure 1",
    "Table 1",
    "Figure 2",
    "Table 2",
    "Figure 3",
    "Figure 4",
    "Table 3",
    "Figure 5",
    "Figure 6",
    "Table 4",
    "Figure 7",
    "Table 5",
    "Theorem 1",
    "Table 6",
    "Table 7",
    "Figures 8 and 10",
    "Figures 9 and 11",
    "Figures 12 to 15",
    "Tables 8 to 11",
]
EXHIBITS = {exhibit.number: exhibit for exhibit in exhibits()}


def verdict(number, **parts):
    return EXHIBITS[number].verdict([make_material(**parts)])


def holds(number, **parts):
    return [check.holds for check in verdict(number, **parts).checks]


@pytest.fixture(scope="module")
def found():
    return verdicts([make_material("one"), make_material("two")])


def test_every_exhibit_is_there_in_the_order_of_the_paper(found):
    assert [each.number for each in found] == NUMBERS


def test_the_numbers_cover_every_table_and_figure_of_the_paper():
    covered = {"Table": set(), "Figure": set(), "Theorem": set()}
    for number in NUMBERS:
        kind, *words = number.replace("s ", " ", 1).split()
        ends = [int(word) for word in words if word.isdigit()]
        covered[kind] |= set(range(ends[0], ends[-1] + 1)) if "to" in words else set(ends)
    assert covered == {"Table": set(range(1, 12)), "Figure": set(range(1, 16)), "Theorem": {1}}


def test_claim_and_finding_are_sentences(found):
    for each in found:
        assert re.fullmatch(r"[^.]*(\d\.\d[^.]*)*\.", each.claim), each.claim
        assert each.shows.endswith(".")
        assert re.search(r"\d", each.shows), each.shows
        assert each.note.endswith("."), each.number


def test_networks_are_looked_at_one_by_one_and_named(found):
    for each in found:
        named = {check.network for check in each.checks}
        assert named == {"Table 5": {"all"}, "Theorem 1": {"any"}}.get(each.number, {"one", "two"})
        if named == {"one", "two"}:
            assert each.shows.startswith("one: ")
            assert "; two: " in each.shows


def test_without_material_there_is_no_verdict():
    with pytest.raises(ValueError, match=r"at least one network, got none\. Name the networks"):
        verdicts([])


def test_a_finding_says_plainly_how_much_contradicts_and_how_much_is_open():
    def look(material):
        results = {"a": True, "b": False, "c": None}
        return Found("something is so", [Check(material.network, what, held) for what, held in results.items()])

    told = Exhibit("Table 0", "t", "c", for_each(look)).verdict([make_material()])
    assert told.shows == "Something is so; 1 of 3 checks contradicts the claim and 1 of 3 cannot be told."
    assert told.agreement == "partly"


def test_a_finding_without_doubts_has_none_to_tell():
    told = Exhibit("Table 0", "t", "c", lambda _: Found("All is open", [Check("", "", None)])).verdict(
        [make_material()]
    )
    assert told.shows == "All is open; the check cannot be told."
    no = Exhibit("Table 0", "t", "c", lambda _: Found("It is not", [Check("", "", False)])).verdict([make_material()])
    assert no.shows == "It is not; the check contradicts the claim."
    told = Exhibit("Table 0", "t", "c", lambda _: Found("All is so", [Check("", "", True)])).verdict([make_material()])
    assert (told.shows, told.agreement) == ("All is so.", "agrees")


@pytest.mark.parametrize(("number", "words"), {
    "Table 1": ["1147.9 is printed", "does not state of which loss"],
    "Table 2": ["14 baselines and prints 13"],
    "Table 3": ["88.14", "lowers the AUROC of EBO, ReAct and FOLD-R"],
    "Table 4": ["87.20", "92.52 to 92.46"],
    "Table 6": ["546.3, 1394.5, 1262.4"],
    "Theorem 1": ["wrong sign", "2S⁻¹μ", "c < 1"],
}.items())  # fmt: skip
def test_where_the_paper_contradicts_itself_a_note_says_so(found, number, words):
    note = next(each.note for each in found if each.number == number)
    assert [word for word in words if word not in note] == []


def test_a_better_family_agrees_a_worse_one_disagrees_and_an_equal_one_cannot_be_told():
    assert verdict("Table 2", results=make_results(better=1.0)).agreement == "agrees"
    assert verdict("Table 2", results=make_results(better=-1.0)).agreement == "disagrees"
    assert verdict("Table 2", results=make_results(methods=("msp", "fold"), better=0.0)).agreement == "cannot be told"


@pytest.mark.parametrize("methods", [("msp", "knn"), ("fold", "autofold")])
def test_without_rivals_nothing_is_tested(methods):
    results = make_results(methods=methods)
    assert verdict("Table 2", results=results).agreement == "not tested"
    two = [make_material(name, results=make_results(methods=methods, network=name)) for name in ("a", "b")]
    assert EXHIBITS["Table 5"].verdict(two).agreement == "not tested"


def test_one_network_says_nothing_of_several():
    told = verdict("Table 5")
    assert (told.agreement, told.checks) == ("not tested", [])
    assert "one architecture" in told.shows


def test_networks_that_differ_by_their_seed_are_one_architecture():
    seeds = [make_material(name, results=make_results(network=name, family="net")) for name in ("net-s0", "net-s1")]
    assert EXHIBITS["Table 5"].verdict(seeds).agreement == "not tested"
    other = make_material("wide", results=make_results(network="wide", family="wide"))
    assert "Over 3 networks" in EXHIBITS["Table 5"].verdict([*seeds, other]).shows


def test_a_sentence_begins_with_a_large_letter_but_not_with_a_large_lambda():
    assert verdict("Figures 8 and 10").shows.startswith("λmax exceeds")
    assert verdict("Figure 2").shows.startswith("Median trace")


def test_several_networks_are_judged_by_their_mean():
    good, bad = make_results(better=0.5, network="a"), make_results(better=-1.5, network="b")
    told = EXHIBITS["Table 5"].verdict([make_material("a", results=good), make_material("b", results=bad)])
    assert told.agreement == "disagrees"
    same = make_results(better=0.5, network="b")
    two = [make_material("a", results=good), make_material("b", results=same)]
    assert EXHIBITS["Table 5"].verdict(two).agreement == "agrees"


def test_competitive_is_two_points_behind_the_best_average():
    assert holds("Tables 8 to 11", results=make_results(better=1.0)) == [True]
    assert holds("Tables 8 to 11", results=make_results(better=-1.0)) == [False]
    results = make_results()
    bare = replace(results, averages=[replace(mean, certainty=None) for mean in results.averages])
    assert holds("Tables 8 to 11", results=bare) == [None]
    assert verdict("Tables 8 to 11", results=make_results(methods=("msp",))).agreement == "not tested"


def test_single_data_sets_are_told_and_no_test():
    ahead = verdict("Tables 8 to 11", results=make_results(better=1.0)).shows
    assert "has the best AUROC on 2 of 2 data sets, and is certainly more than 2 points behind on 0." in ahead
    behind = verdict("Tables 8 to 11", results=make_results(better=-1.0)).shows
    assert "on 0 of 2 data sets, and is certainly more than 2 points behind on 2; the check contradicts" in behind


@pytest.mark.parametrize(("regret", "expected"), [(0.002, True), (0.03, False), (0.0105, None)])
def test_near_optimal_is_a_regret_of_at_most_one_point(regret, expected):
    assert holds("Figure 4", ablations=make_ablations(regret=regret)) == [expected] * 3


def test_the_best_exponent_is_told_beside_the_chosen_one():
    assert "α 0.6, best 0.5" in verdict("Figure 4").shows
    assert "gives away: −0.20 for fold (" in verdict("Figure 4", ablations=make_ablations(regret=-0.002)).shows
    nothing = replace(make_ablations(), sensitivities=[])
    assert verdict("Figure 4", ablations=nothing).agreement == "not tested"
    assert sensitivity("fold", SETS, 0.0).grid[5] == 0.5


@pytest.mark.parametrize(("gain", "expected"), [(0.02, True), (-0.02, False), (0.005, None)])
def test_partial_normalisation_must_gain_in_every_method(gain, expected):
    assert holds("Table 3", ablations=make_ablations(gain=gain)) == [expected] * 7


def test_a_method_that_was_measured_in_part_is_not_counted():
    ablations = make_ablations()
    kept = [each for each in ablations.effects if (each.method, each.normalisation) != ("ash", "partial")]
    assert len(holds("Table 3", ablations=replace(ablations, effects=kept))) == 6


def test_the_side_of_full_normalisation_is_told():
    assert "costs 7 of 7 methods more than 2 points" in verdict("Table 3").shows
    assert "costs no method more than 2 points" in verdict("Table 3", ablations=make_ablations(gain=0.002)).shows


@pytest.mark.parametrize(("changed", "place", "expected"), [
    ({}, 0, True),
    ({"fold": (0.1, 30.0)}, 0, False),
    ({"fold": (0.1, 10.0)}, 0, None),
    ({"autofold": (9.0, 0.3)}, 1, False),
    ({"autofold": (9.0, 0.24)}, 1, True),
    ({"autofold": (9.0, 0.26)}, 1, None),
    ({"rmds": (90.0, 0.1)}, 6, False),
    ({"rmds": (90.0, 0.4)}, 6, None),
    ({"knn": (1.0, 0.1)}, 7, False),
    ({"fold": (60.0, 0.2)}, 8, True),
    ({"fold": (100.0, 0.2)}, 8, None),
    ({"fold": (500.0, 0.2)}, 8, False),
    ({"autofold": (70.0, 0.2)}, 11, True),
    ({"autofold": (120.0, 0.2)}, 11, None),
    ({"autofold": (500.0, 0.2)}, 12, False),
    ({"autofold": (500.0, 0.2)}, 13, False),
])  # fmt: skip
def test_costs_are_compared_with_room_for_doubt(changed, place, expected):
    found = holds("Figure 3", ablations=make_ablations(costs=make_costs(**changed)))
    assert len(found) == 14
    assert found[place] is expected
    untouched = holds("Figure 3")
    assert untouched == [True] * 14


def test_a_time_of_few_rounds_may_be_half_or_double_of_what_was_taken():
    few = [replace(cost, rounds=3) for cost in make_costs(autofold=(9.0, 0.3), rmds=(90.0, 1.0))]
    found = holds("Figure 3", ablations=make_ablations(costs=few))
    assert (found[1], found[6]) == (None, None)  # 0.3 to 0.2 ms and 1.0 to 0.2, which eleven rounds would tell
    assert [ends(replace(few[0], rounds=rounds)) for rounds in (3, 4)] == [(5.0, 20.0), (9.5, 10.5)]


def test_setting_up_counts_the_passes_over_the_images_that_a_method_learns_from():
    material = make_material()  # a pass of 256 takes 10 ms; 2560 images to learn from, 128 to validate
    costs = {cost.method: cost for cost in material.ablations.costs}
    expected = {"vim": 80.0 + 100.0, "knn@ood": 1.0 + 100.0, "autofold": 9.0 + 5.0, "fold-r": 0.1 + 5.0, "fold": 0.1}
    for method, milliseconds in expected.items():
        assert set_up(material, costs[method]) == pytest.approx(milliseconds)
    assert "vim sets up in 180 ms, autofold in 14.0, features included" in [
        check.what for check in EXHIBITS["Figure 3"].verdict([material]).checks
    ]


def test_a_network_that_is_its_last_layer_alone_has_no_forward_pass_to_compare_with():
    study = make_study()
    size = study.suite["n_classes"] * (study.suite["n_features"] + 1)
    bare = replace(study, suite={**study.suite, "n_parameters": size})
    told = verdict("Figure 3", study=bare)
    assert "ms with no network in front of it, 5 of 5 comparisons hold" in told.shows
    assert not any("forward passes" in check.what or "sets up" in check.what for check in told.checks)
    alone = make_ablations(costs=make_costs(methods=("msp", "fold")))
    assert verdict("Figure 3", study=bare, ablations=alone).shows.endswith(", and there is nothing to compare it with.")
    material = make_material(study=bare)
    assert [set_up(material, cost) for cost in material.ablations.costs if cost.method == "vim"] == [80.0]


def test_without_fold_costs_are_not_tested():
    told = verdict("Figure 3", ablations=make_ablations(costs=make_costs(methods=("msp", "vim"))))
    assert (told.agreement, told.shows) == ("not tested", "FOLD was not timed.")
    few = make_ablations(costs=make_costs(methods=("msp", "fold")))
    assert [check.what for check in verdict("Figure 3", ablations=few).checks] == [
        "a pass with fold takes 1.02 forward passes"
    ]


def test_high_auroc_at_low_cost_means_better_and_faster_than_the_mean():
    def corners(**parts):
        return [check for check in verdict("Figure 1", **parts).checks if "AUROC" in check.what]

    assert [check.holds for check in corners(results=make_results(better=1.5))] == [True] * 6
    slow = make_ablations(costs=make_costs(fold=(0.1, 50.0)))
    assert corners(results=make_results(better=1.5), ablations=slow)[0].holds is False
    assert {check.holds for check in corners(results=make_results(better=-1.5))} == {False}
    results = make_results(better=1.5)
    bare = replace(results, averages=[replace(mean, certainty=None) for mean in results.averages])
    assert {check.holds for check in corners(results=bare)} == {None}
    others = make_results(methods=("msp", "knn@ood"))
    assert corners(results=others) == []
    assert "and no variant of FOLD was timed" in verdict("Figure 1", results=others).shows


def test_without_near_data_a_claim_about_near_and_far_stays_open():
    far = {"far-set": "far"}
    material = make_material(sets=far, study=make_study(far))
    told = EXHIBITS["Table 1"].verdict([material])
    assert [check.what.partition(": ")[0] for check in told.checks] == [
        "λmax over parameters grows from known to far",
        "λmax over parameters, near and far",
        "trace over parameters grows from known to far",
        "trace over parameters, near and far",
    ]
    assert told.checks[1].what.endswith(": the suite has no near data")
    assert told.checks[1].holds is None
    open_ = [check for check in EXHIBITS["Table 7"].verdict([material]).checks if "no near data" in check.what]
    assert [check.holds for check in open_] == [None] * 4
    assert len(verdicts([material])) == len(NUMBERS)
