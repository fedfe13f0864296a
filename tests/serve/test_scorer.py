"""`serve.scorer`: what the guard says, input by input, and sentences that give nothing away."""

import json

import pytest
import torch

import flatfold as ff
from flatfold.serve.batcher import Input
from flatfold.serve.refusal import Refusal
from flatfold.serve.scorer import Scorer
from tests.serve.small_service import CLASSES, TRANSFORM, WIDTH, make_guard, pixels


def images(n, seed=3, **options):
    return [Input("image", TRANSFORM(x), f"image {i}", **options) for i, x in enumerate(pixels(n, seed)[0])]


def features(values, **options):
    return [Input("features", row, f"row {i}", **options) for i, row in enumerate(torch.as_tensor(values))]


def expected(guard, x, names=None):
    verdict = guard(x[None])
    predicted = int(verdict.logits.argmax())
    name = None if names is None else names[predicted]
    known = {"predicted": predicted, "class": name, "score": float(verdict.score)}
    return {**known, "p_value": float(verdict.p_value), "is_ood": bool(verdict.is_ood)}


@pytest.mark.parametrize("per_class", [False, True])
def test_rows_are_what_the_guard_says_about_each_input_alone(per_class):
    guard, names = make_guard(per_class=per_class), ("ant", "bee", "cat")
    inputs = images(40)
    rows = Scorer(guard, names)(inputs)
    wanted = [expected(guard, each.values, names) for each in inputs]
    assert [row.pop("score") for row in rows] == pytest.approx([row.pop("score") for row in wanted], rel=1e-5)
    assert rows == wanted
    assert {row["is_ood"] for row in rows} == {True, False}


@pytest.mark.parametrize("method", ["fold", "msp", "knn"])
def test_features_are_judged_with_and_without_the_model(method):
    guard = make_guard(method)
    x = torch.rand(20, WIDTH, generator=torch.Generator().manual_seed(1))
    logits = guard.found.head(x)
    score, p_value, is_ood = guard.judge(x)
    for served in (guard, guard.judge):
        rows = Scorer(served)(features(x))
        assert [row["predicted"] for row in rows] == logits.argmax(-1).tolist()
        assert [row["score"] for row in rows] == pytest.approx(score.tolist(), rel=1e-5)
        assert [row["p_value"] for row in rows] == pytest.approx(p_value.tolist())
        assert [row["is_ood"] for row in rows] == is_ood.tolist()


def test_only_those_who_ask_get_an_explanation(guard):
    names = ("ant", "bee", "cat")
    inputs = [each._replace(explain=i % 2 == 0) for i, each in enumerate(images(5))]
    rows = Scorer(guard, names)(inputs)
    wanted = [str(text) for text in guard.explain(torch.stack([each.values for each in inputs]), names)]
    assert [row.get("explanation") for row in rows] == [wanted[0], None, wanted[2], None, wanted[4]]
    assert ["explanation" in row for row in rows] == [True, False, True, False, True]


def test_a_method_without_pairs_explains_nothing():
    scorer = Scorer(make_guard("msp"))
    assert scorer(images(1, explain=True))[0]["explanation"] is None
    assert scorer.facts()["explains"] is False
    assert Scorer(make_guard()).facts()["explains"] is True


def test_an_input_that_the_model_cannot_bear_spoils_no_other_and_its_words_stay_inside(guard):
    inputs = images(6)
    bad = inputs[2].values.clone()
    bad[0, 0, 0] = 2.0
    inputs[2] = Input("image", bad, "the image 'x.png'")
    scorer = Scorer(guard)
    rows = scorer(inputs)
    assert isinstance(rows[2], Refusal)
    assert rows[2].status == 422
    assert rows[2].sentence.startswith("the image 'x.png' cannot be judged: the model does not take it, 1 x 4 x 4 once")
    assert "secret" not in rows[2].sentence
    alone = [Scorer(guard)([each])[0] for i, each in enumerate(inputs) if i != 2]
    assert [row for i, row in enumerate(rows) if i != 2] == alone
    assert scorer.facts()["seen"] == 5


def test_what_is_no_fault_of_an_input_stays_an_error(guard, monkeypatch):
    scorer = Scorer(guard)

    def fail(*arguments):
        raise MemoryError("/secret/place")

    monkeypatch.setattr(guard, "look", fail)
    assert [type(row) for row in scorer(images(2))] == [MemoryError, MemoryError]


def test_what_the_detector_says_about_features_is_passed_on():
    rows = Scorer(make_guard("fold-a"))(features(torch.tensor([[-1.0] * WIDTH, [1.0] * WIDTH])))
    assert rows[0].status == 422
    assert rows[0].sentence.startswith("row 0 cannot be judged: ")
    assert rows[1]["score"] is not None


def test_a_score_that_is_no_number_is_an_alarm_and_has_none(guard, monkeypatch):
    scorer = Scorer(guard)
    monkeypatch.setattr(guard.detector, "forward", lambda h, logits=None: torch.full((len(h),), torch.nan))
    row = scorer(features(torch.ones(1, WIDTH)))[0]
    assert (row["score"], row["is_ood"]) == (None, True)
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_the_facts_are_those_of_the_guard_and_the_stream():
    guard = make_guard(per_class=True)
    scorer, monitor = Scorer(guard, ("a", "b", "c")), guard.monitor()
    facts = scorer.facts()
    assert (facts["seen"], facts["alarm_rate"], facts["drift"], facts["drift_p_value"]) == (0, None, None, 1.0)
    inputs = images(30)
    scorer(inputs)
    monitor.add(guard(torch.stack([each.values for each in inputs])))
    facts = scorer.facts()
    bins = monitor.histogram()
    ends = [None if abs(edge) == float("inf") else edge for edge in bins.edges.tolist()]
    assert facts == {
        "method": "fold",
        "fpr": 0.1,
        "thresholds": guard.calibration.threshold.tolist(),
        "calibrated": 150,
        "seen": 30,
        "alarms": monitor.alarms,
        "alarm_rate": monitor.alarm_rate,
        "alarm_p_value": monitor.alarm_p_value,
        "drift": monitor.drift,
        "drift_p_value": monitor.drift_p_value,
        "edges": ends,
        "calibration": bins.calibration.tolist(),
        "live": bins.stream.tolist(),
        "width": WIDTH,
        "classes": CLASSES,
        "names": ["a", "b", "c"],
        "explains": True,
    }
    assert len(facts["thresholds"]) == CLASSES
    assert sum(facts["live"]) == 30


def test_infinite_edges_are_none():
    assert Scorer(make_guard("ebo")).facts()["edges"][0] is None


def test_names_must_be_one_per_class_and_a_guard_must_know_its_transform(guard):
    with pytest.raises(ValueError, match=r"names must be one per class, 3 in all, got 2. Give them in the order"):
        Scorer(guard, ("a", "b"))
    blind = ff.Guard(guard.model, guard.found, guard.judge)
    with pytest.raises(
        ValueError, match=r"must know how they are prepared, .* Set guard.transform, or serve guard.judge"
    ):
        Scorer(blind)
