"""Explanations: numbers of a verdict and of its pairs, and one line of text."""

import pytest
import torch

from flatfold.core.pairs import Pairs
from flatfold.core.signs import SIGNS
from flatfold.scoring.calibrated import Verdict
from flatfold.scoring.explanation import Pair, explain

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
    assert [type(value) for value in (first.predicted, first.score, first.is_ood)] == [int, float, bool]
    assert explain(make_verdict(), FOUND, ANIMALS)[0] == first
    assert "frog" not in repr(first), "a thousand names of classes would fill the screen"


def test_as_text_it_is_one_line_with_the_names_of_the_classes():
    first, second = map(str, explain(make_verdict(), FOUND, list(ANIMALS)))
    assert "\n" not in first + second
    for part in ("p = 0.004", "71 %", "between cat and dog", "12 % between cat and deer", "17 % elsewhere"):
        assert part in first
    for part in ("p = 0.62", "50 %", "between frog and deer", "25 % between dog and frog", "25 % elsewhere"):
        assert part in second
    assert first.split()[0] != second.split()[0]
    assert "between class 0 and class 1, 12 % between class 0 and class 2" in str(explain(make_verdict(), FOUND)[0])
    names = ("the one between", "b", "c", "d")
    assert "between the one between and b, 12 % between the" in str(explain(make_verdict(), FOUND, names)[0])


def test_signs_are_told_from_the_most_unusual_on_and_the_usual_ones_together():
    values = ([6.14, 1.0], [0.3, -0.5], [-1.0, 0.2], [2.31, 1.99], [2.0, 0.0])
    signs = dict(zip(SIGNS, map(torch.tensor, values), strict=True))
    first, second = explain(make_verdict(), FOUND, ANIMALS, signs)
    assert first.signs == pytest.approx(
        {"direction": 6.14, "length": 0.3, "margin": -1.0, "curvature": 2.31, "doubt": 2.0}
    )
    assert str(first) == (
        "OOD (p = 0.004): unusual direction for dog (z = 6.1); curvature between cat and dog (z = 2.3); "
        "low probability of dog (z = 2.0); usual length and margin"
    )
    assert str(second) == "ID (p = 0.62): usual direction, length, margin, curvature and doubt"
    together = explain(make_verdict(), None, None, {name: torch.tensor([1.5, 9.0]) for name in SIGNS})
    assert "together" in str(together[0])
    assert "usual" not in str(together[1]).replace("unusual", "")


def test_other_methods_have_a_score_and_a_p_value():
    assert [str(text) for text in explain(make_verdict())] == [
        "OOD (p = 0.004): score 2.5",
        "ID (p = 0.62): score 0.25",
    ]


def test_where_all_pairs_are_named_nothing_is_elsewhere():
    pairs = [(0, 1, 0.7), (0, 2, 0.25), (0, 3, 0.05), (1, 2, 0.0), (1, 3, 0.0), (2, 3, 0.0)]
    explanation = explain(make_verdict(), make_pairs(pairs, pairs), ANIMALS)[0]
    assert sum(pair.share for pair in explanation.pairs) < 1  # in float32
    assert explanation.rest == 0
    assert "elsewhere" not in str(explanation)
    above_one = make_pairs([(0, 1, 1.0), (0, 2, 1e-7)], [(0, 1, 0.5), (0, 2, 0.5)])
    assert [explanation.rest for explanation in explain(make_verdict(), above_one)] == [0.0, 0.0]


def test_a_wrong_number_of_names_or_pairs_is_refused():
    for names, came in ((ANIMALS[:3], "3"), ([*ANIMALS, "ship"], "5"), ((), "0"), ("cats", "one string")):
        with pytest.raises(ValueError, match=f"one per class.* got {came}"):
            explain(make_verdict(), FOUND, names)
    with pytest.raises(ValueError, match="zip"):
        explain(make_verdict(), make_pairs([(0, 1, 0.5)]))
    empty = Verdict(*(part[:0] for part in make_verdict()))
    assert explain(empty, Pairs(*(part[:0] for part in FOUND)), ANIMALS) == []
