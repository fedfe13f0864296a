"""What users see when they type the name of an object, print it, or leave it at the end of a notebook's cell."""

import copy
import io
import pickle
from contextlib import redirect_stdout

import pytest
import torch
from torch.utils._pytree import tree_map

import flatfold as ff
from flatfold.cli.bench import print_results
from flatfold.curvature import param_spectrum, param_trace
from flatfold.passes.extract import extract_features
from flatfold.scoring.calibrated import Verdict
from tests.four_classes import known, make_model

HOSTILE = "<img src=x onerror=alert(1)> [bold] & $x$"


@pytest.fixture(scope="module")
def guard():
    return ff.Guard.fit(make_model().eval(), known(400), method="ebo", fpr=0.05)


@pytest.fixture
def verdict(guard):
    return guard(torch.cat([known(40, seed=3)[0], 0.3 * torch.rand(24, 8, generator=torch.manual_seed(0))]))


def test_everything_that_a_user_gets_is_shown_in_one_short_line(guard, verdict):
    model, (x, y) = make_model().eval(), known(60)
    bank, head = ff.extract(model, (x, y))
    threshold = f"{float(guard.calibration.threshold[0]):.4g}"
    facts = {
        "Verdict": (verdict, ["64 inputs", f"{int(verdict.is_ood.sum())} alarms", "5 %"]),
        "Guard": (guard, ["ebo", "fpr=0.05", threshold, "200 calibration samples"]),
        "Calibration": (guard.calibration, ["fpr=0.05", threshold, "200"]),
        "FitResult": (guard.fit_result, ["ebo", "400 samples", "accuracy", threshold]),
        "Network": (guard.network, ["Sequential", "4 classes", "(8,)"]),
        "Extraction": (extract_features(model, [x]), ["60 rows", "Network"]),
        "ArrayRows": (ff.as_batches((x, y)), ["60 inputs", "4 classes"]),
        "Explanation": (guard.explain(x[:1])[0], ["p = "]),
        "Monitor": (guard.monitor(), ["0 inputs"]),
        "Histogram": (guard.monitor().histogram(), ["200 inputs"]),
        "Estimate": (param_trace(model, [(x, y)], level="sample"), ["60 values"]),
        "Spectrum": (param_spectrum(model, [(x, y)], steps=4, probes=2), ["eigenvalues"]),
        "Density": (param_spectrum(model, [(x, y)], steps=4, probes=2).density(), ["points"]),
        "FeatureBank": (bank, ["60 rows"]),
        "Head": (head, ["4 classes"]),
    }
    for name, (thing, parts) in facts.items():
        shown = repr(thing)
        assert shown.startswith(f"{name}("), shown
        assert "\n" not in shown
        assert len(shown) < 230, shown
        assert [part for part in parts if part not in shown] == [], shown


def test_thresholds_of_classes_and_a_confidence_are_shown():
    guard = ff.Guard.fit(make_model().eval(), known(800), method="ebo", fpr=0.1, per_class=True, confidence=0.5)
    low, high = (f"{float(end):.4g}" for end in guard.calibration.threshold.aminmax())
    assert f"thresholds {low} to {high} by class" in repr(guard)
    assert "confidence=0.5" in repr(guard)


def test_a_verdict_stays_a_tuple_of_tensors_that_graphs_and_other_processes_take(guard, verdict):
    logits, score, _, _ = verdict
    assert isinstance(verdict, Verdict)
    assert logits is verdict.logits
    assert verdict.fpr == copy.deepcopy(verdict).fpr == pickle.loads(pickle.dumps(verdict)).fpr == 0.05  # noqa: S301
    assert torch.equal(tree_map(lambda values: values, verdict).score, score)
    x = known(6)[0]
    compiled = torch.compile(guard.as_module(), backend="eager")(x)
    exported = torch.export.export(guard.as_module(), (x,)).module()(x)
    for other in (compiled, exported):
        assert type(other) is Verdict
        assert repr(other) == f"Verdict(6 inputs, {int(other.is_ood.sum())} alarms)"
        assert other.fpr is None
    assert repr(Verdict(*verdict)._replace(is_ood=torch.empty(64, device="meta"))).startswith("Verdict(tensor(")
    assert repr(Verdict(*(column[:1] for column in verdict))) == "Verdict(1 input, 0 alarms)"
    assert repr(guard.at(0.001 * 10)(x)).endswith("at 1 %)")


def test_explanations_are_sentences(guard):
    x = known(60)[0]
    explanations = ff.Guard.fit(make_model().eval(), known(400), method="fold").explain(x, ["a", HOSTILE, "c", "d"])
    assert isinstance(explanations, list)
    lines = repr(explanations).splitlines()
    assert lines[:50] == [f"{row}: {explanation}" for row, explanation in enumerate(explanations[:50])]
    assert lines[50:] == ["and 10 more inputs"]
    html = explanations._repr_html_()
    assert html.count("<tr") == 61
    assert "<img" not in html
    assert "&lt;img" in html
    assert repr(explanations[:0]) == "[]"


def test_a_verdict_in_a_notebook_is_a_table_of_its_first_rows(verdict):
    html = verdict._repr_html_()
    assert html.count("<tr") == 11
    assert "and 54 more inputs" in html
    assert "Verdict(64 inputs" in html
    assert f"{float(verdict.score[9]):.4g}" in html


def test_results_are_one_line_a_table_or_a_table_in_html(tmp_path):
    x, y = known(300)
    ood = {"near": {"shift": x[:50] + 1}, "far": {"noise": 9 * x[:60], "b": -x[:50]}}
    methods = ["msp", "autofold", "knn:k=5", "odin"]
    results = ff.benchmark(make_model().eval(), known(90, 1), ood, fit=(x, y), methods=methods, out=tmp_path)
    best = results.ranked[0].method
    assert repr(results).startswith("BenchmarkResults(")
    for part in ("3 methods", "3 OOD data sets", f"best: {best}", f"{100 * results.cells[best, 'all'].auroc:.2f} %"):
        assert part in repr(results)
    assert "\n" not in repr(results)
    text, html = str(results), results._repr_html_()
    assert max(map(len, text.splitlines()[:9])) <= 200
    for run in results.methods:
        for column in results.columns:
            cell = results.cells[run.method, column]
            figures = f"{100 * cell.auroc:.2f} / {100 * cell.fpr95_ood_positive:.2f}"
            assert figures in text
            assert figures in html
    for shown in (text, html):
        assert "odin was left out: " in shown
        assert "* chosen by AutoFold on ID validation data" in shown
    assert html.count("<b>") == sum(c.certainty.best for k, c in results.cells.items() if k[1] in results.columns)
    assert text.splitlines() == list(map(str.rstrip, printed(results).splitlines()))


def printed(results):
    """Return what the command prints of results when its output is not a terminal."""
    with redirect_stdout(io.StringIO()) as out:
        print_results(results)
    return out.getvalue()


def test_hostile_names_are_text(tmp_path):
    x, y = known(300)
    results = ff.benchmark(
        make_model().eval(), known(90, 1), {"noise": 9 * x[:60]}, fit=(x, y), methods=["msp"], bootstrap=0
    )
    results.suite["deviations"].append(HOSTILE)
    results.refused[HOSTILE] = HOSTILE
    assert str(results).count(HOSTILE) == 3
    assert "<img" not in results._repr_html_()
    assert results._repr_html_().count("&lt;img") == 3
