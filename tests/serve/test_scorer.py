"""`serve.scorer`: the verdict of the guard on each input, whatever the other inputs of its batch are."""

import json

import pytest
import torch

import flatfold as ff
from flatfold.serve.scorer import Asked, Input, Scorer
from tests.serve.small_service import CLASSES, TRANSFORM, WIDTH, make_guard, pixels

NAMES = ("ant", "bee", "cat")


def images(n, seed=3, **options):
    return [Input("image", TRANSFORM(x), f"image {i}", **options) for i, x in enumerate(pixels(n, seed)[0])]


def features(values):
    return [Input("features", row, f"row {i}") for i, row in enumerate(torch.as_tensor(values))]


def expected(guard, x):
    verdict = guard(x[None])
    predicted = int(verdict.logits.argmax())
    known = {"predicted": predicted, "class": NAMES[predicted], "score": float(verdict.score)}
    return {**known, "p_value": float(verdict.p_value), "is_ood": bool(verdict.is_ood)}


def test_rows_are_the_verdicts_of_the_guard_on_each_input_alone():
    for per_class in (False, True):
        guard, inputs = make_guard(per_class=per_class), images(40)
        rows = Scorer(guard, NAMES)(inputs)
        wanted = [expected(guard, each.values) for each in inputs]
        assert [row.pop("score") for row in rows] == pytest.approx([row.pop("score") for row in wanted], rel=1e-5)
        assert rows == wanted
        assert {row["is_ood"] for row in rows} == {True, False}


@pytest.mark.parametrize("method", ["fold", "msp", "knn"])
def test_features_are_judged_with_and_without_the_model(method):
    guard = make_guard(method)
    x = torch.rand(20, WIDTH, generator=torch.Generator().manual_seed(1))
    score, p_value, is_ood = guard.calibrated(x)
    for served in (guard, guard.calibrated):
        rows = Scorer(served)(features(x))
        assert [row["predicted"] for row in rows] == guard.network.found.head(x).argmax(-1).tolist()
        assert [row["score"] for row in rows] == pytest.approx(score.tolist(), rel=1e-5)
        assert [row["p_value"] for row in rows] == pytest.approx(p_value.tolist())
        assert [row["is_ood"] for row in rows] == is_ood.tolist()


def test_only_those_who_ask_get_an_explanation(guard):
    inputs = [each._replace(asked=Asked(i % 2 == 0)) for i, each in enumerate(images(5))]
    rows = Scorer(guard, NAMES)(inputs)
    texts = [str(text) for text in guard.explain(torch.stack([each.values for each in inputs]), NAMES)]
    assert [row.get("explanation", "absent") for row in rows] == [texts[0], "absent", texts[2], "absent", texts[4]]
    row = Scorer(make_guard("msp"))(images(1, asked=Asked(explain=True)))[0]  # which has neither pairs nor signs
    assert row["explanation"].endswith(f"score {row['score']:.4g}")
    assert row["signs"] == {}
    row = Scorer(make_guard("fourfold"))(images(1, asked=Asked(explain=True)))[0]
    assert list(row["signs"]) == ["direction", "length", "margin", "curvature", "doubt"]


def test_errors_are_blamed_on_the_input_only_where_it_is_its_fault(guard, monkeypatch):
    rows = Scorer(make_guard("fold-a"))(features([[-1.0] * WIDTH, [1.0] * WIDTH]))
    assert (rows[0].status_code, "row 0" in rows[0].detail) == (422, True)
    assert rows[1]["score"] is not None

    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr(guard.network, "run", fail)
    assert [type(row) for row in Scorer(guard)(images(2))] == [MemoryError, MemoryError]


def test_a_score_that_is_no_number_is_an_alarm_and_has_none(guard, monkeypatch):
    scorer = Scorer(guard)
    monkeypatch.setattr(guard.detector, "forward", lambda h, logits=None: torch.full((len(h),), torch.nan))
    row = scorer(features(torch.ones(1, WIDTH)))[0]
    assert (row["score"], row["is_ood"]) == (None, True)
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_the_facts_are_those_of_the_guard_and_its_monitor():
    guard = make_guard(per_class=True)
    scorer, monitor, inputs = Scorer(guard, NAMES), guard.monitor(), images(30)
    scorer(inputs)
    monitor.add(guard(torch.stack([each.values for each in inputs])))
    bins = monitor.histogram()
    assert scorer.facts() == {
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
        "edges": [None if abs(edge) == float("inf") else edge for edge in bins.edges.tolist()],
        "calibration": bins.calibration.tolist(),
        "live": bins.stream.tolist(),
        "width": WIDTH,
        "classes": CLASSES,
        "names": [*NAMES],
    }
    assert Scorer(make_guard("ebo")).facts()["edges"][0] is None  # infinite


def test_names_must_be_one_per_class_and_a_guard_must_know_its_transform(guard):
    with pytest.raises(ValueError, match="names"):
        Scorer(guard, ("a", "b"))
    with pytest.raises(ValueError, match="transform"):
        Scorer(ff.Guard(guard.network, guard.calibrated))
