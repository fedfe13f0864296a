"""Explanations: numbers of a verdict and of its pairs, and one line of text."""

from dataclasses import FrozenInstanceError

import pytest
import torch

import flatfold as ff
from flatfold.core.pairs import Pairs
from flatfold.scoring.explanation import Explanation, Pair, explain
from flatfold.scoring.verdict import Verdict

ANIMALS = ("cat", "dog", "deer", "frog")


def make_verdict():
    return Verdict(
        logits=torch.tensor([[1.0, 3.0, 2.0, 0.0], [5.0, 0.0, 0.0, 1.0]]),
        score=torch.tensor([2.5, 0.25]),
        p_value=torch.tensor([0.004, 0.62]),
        is_ood=torch.tensor([True, False]),
    )


def make_pairs(*rows):
    """Each row a list of (first, second, share)."""
    first, second, share = torch.tensor(rows, dtype=torch.float64).unbind(-1)
    return Pairs(first.long(), second.long(), share.float())


FOUND = make_pairs([(0, 1, 0.71), (0, 2, 0.12)], [(3, 2, 0.5), (1, 3, 0.25)])


def test_each_input_has_its_own_verdict_and_pairs():
    first, second = explain(make_verdict(), FOUND, ANIMALS)
    assert (first.predicted, first.score, first.is_ood) == (1, 2.5, True)
    assert (second.predicted, second.score, second.is_ood) == (0, 0.25, False)
    assert first.p_value == pytest.approx(0.004)
    assert second.pairs == (Pair(3, 2, 0.5), Pair(1, 3, 0.25))
    assert first.rest == pytest.approx(0.17)
    assert second.rest == 0.25
    assert first.names == ANIMALS
    assert all(
        type(value) is kind for value, kind in ((first.predicted, int), (first.score, float), (first.is_ood, bool))
    )


def test_as_text_it_is_one_line():
    unknown, known = map(str, explain(make_verdict(), FOUND, list(ANIMALS)))
    assert unknown == (
        "unknown (p = 0.004): 71 % of the curvature between cat and dog, 12 % between cat and deer, 17 % elsewhere"
    )
    assert known == (
        "known (p = 0.62): 50 % of the curvature between frog and deer, 25 % between dog and frog, 25 % elsewhere"
    )


def test_classes_without_names_are_numbered():
    assert "between class 0 and class 1, 12 % between class 0 and class 2" in str(explain(make_verdict(), FOUND)[0])


def test_a_name_may_say_between():
    names = ("the one between", "b", "c", "d")
    assert "71 % of the curvature between the one between and b, 12 % between the" in str(
        explain(make_verdict(), FOUND, names)[0]
    )


def test_where_all_pairs_are_named_nothing_is_elsewhere():
    pairs = [(0, 1, 0.7), (0, 2, 0.25), (0, 3, 0.05), (1, 2, 0.0), (1, 3, 0.0), (2, 3, 0.0)]
    explanation = explain(make_verdict(), make_pairs(pairs, pairs), ANIMALS)[0]
    assert sum(pair.share for pair in explanation.pairs) < 1  # in float32
    assert explanation.rest == 0
    assert "elsewhere" not in str(explanation)


def test_shares_that_round_above_one_leave_nothing_elsewhere():
    found = make_pairs([(0, 1, 1.0), (0, 2, 1e-7)], [(0, 1, 0.5), (0, 2, 0.5)])
    assert [explanation.rest for explanation in explain(make_verdict(), found)] == [0.0, 0.0]


def test_no_curvature_is_said_to_be_none():
    found = make_pairs([(0, 1, 0.0), (0, 2, 0.0)], [(0, 1, 0.0), (0, 2, 0.0)])
    unknown, known = explain(make_verdict(), found, ANIMALS)
    assert known.rest == 0
    assert str(known) == "known (p = 0.62): no curvature between any two classes"
    assert str(unknown) == "unknown (p = 0.004): no curvature between any two classes"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100 %"),
        (0.996, "100 %"),
        (0.0151, "2 %"),
        (0.0096, "1 %"),
        (0.0094, "0.9 %"),
        (0.0006, "0.1 %"),
        (0.0004, "under 0.1 %"),
    ],
)
def test_percentages_are_short(share, text):
    explanation = Explanation(0, 1.0, 0.5, False, (Pair(0, 1, share),), 0.0, ANIMALS)
    assert str(explanation) == f"known (p = 0.5): {text} of the curvature between cat and dog"


@pytest.mark.parametrize(
    ("names", "came"), [(ANIMALS[:3], "3"), ([*ANIMALS, "ship"], "5"), ((), "0"), ("cats", "one string")]
)
def test_a_wrong_number_of_names_is_refused(names, came):
    with pytest.raises(
        ValueError, match=rf"names must be one per class, 4 in all, got {came}\. Give them in the order"
    ):
        explain(make_verdict(), FOUND, names)


def test_pairs_of_other_inputs_are_refused():
    with pytest.raises(ValueError, match="zip"):
        explain(make_verdict(), make_pairs([(0, 1, 0.5)]))


def test_an_empty_batch_has_no_explanations():
    empty = Verdict(*(part[:0] for part in make_verdict()))
    assert explain(empty, Pairs(*(part[:0] for part in FOUND)), ANIMALS) == []


def test_it_is_a_value_without_a_thousand_names_in_its_repr():
    one, again = (explain(make_verdict(), FOUND, ANIMALS)[0] for _ in range(2))
    assert one == again
    assert "names" not in repr(one)
    assert "Pair(first=0, second=1, share=0.7" in repr(one)
    with pytest.raises(FrozenInstanceError):
        one.rest = 0.0


def test_a_detectors_pairs_can_be_explained(make_world):
    world = make_world()
    detector = ff.Fold(0.5).fit(world.bank, world.head)
    score = detector(world.unknown)
    verdict = Verdict(world.head(world.unknown), score, torch.ones_like(score), score > 1)
    explanations = explain(verdict, detector.pairs(world.unknown, 2))
    assert len(explanations) == len(world.unknown)
    for explanation in explanations:
        assert sum(pair.share for pair in explanation.pairs) + explanation.rest == pytest.approx(1)
