"""`evaluate.reproduce.normalisation` against scores, AUROCs and intervals that are written out pair by pair."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import t

from flatfold.core.bank import FeatureBank
from flatfold.evaluate.reproduce.normalisation import METHODS, effects

ALPHAS = {"none": 0.0, "partial": 0.4, "full": 1.0}
SETS = ("near-set", "far-set")


def scores_of(method, banks, alpha):
    """Scores in float64, straight from the formulas; ReAct clips at the 90th percentile of the validation features."""
    weight, bias = banks.head.weight.double().numpy(), banks.head.bias.double().numpy()
    found = {}
    for name, bank in banks.judged.items():
        h = bank.features.double().numpy()
        if method == "react":
            h = np.minimum(h, np.percentile(banks.val.features.numpy(), 90))
        z = h / np.linalg.norm(h, axis=1, keepdims=True) ** alpha @ weight.T + bias
        p = softmax(z, axis=1)
        found[name] = {
            "msp": -p.max(axis=1),
            "ebo": -logsumexp(z, axis=1),
            "react": -logsumexp(z, axis=1),
            "fold": (p * np.square(weight).sum(1)).sum(1) - np.square(p @ weight).sum(1),
        }[method]
    return found


def agreement(known, unknown):
    """Whether each unknown score is above each known one, ``(m, n)``."""
    return (unknown[:, None] > known) + 0.5 * (unknown[:, None] == known)


def find(found, method, normalisation, dataset="all"):
    (effect,) = [e for e in found if (e.method, e.normalisation, e.dataset) == (method, normalisation, dataset)]
    return effect


@pytest.fixture(scope="module")
def found(banks):
    found, refused = effects(banks, ALPHAS)
    assert refused == {}
    return found


def test_every_method_has_every_normalisation_on_every_data_set_and_on_average(found):
    expected = [(m, kind, d) for m in METHODS for kind in ALPHAS for d in (*SETS, "all")]
    assert [(e.method, e.normalisation, e.dataset) for e in found] == expected
    assert all(e.alpha == ALPHAS[e.normalisation] for e in found)


@pytest.mark.parametrize("normalisation", ALPHAS)
@pytest.mark.parametrize("method", ["msp", "ebo", "react", "fold"])
def test_figures_are_those_of_the_formulas(method, normalisation, found, banks):
    scores = scores_of(method, banks, ALPHAS[normalisation])
    aurocs = {name: agreement(scores["id"], scores[name]).mean() for name in SETS}
    rates = {
        name: np.mean(scores["id"] >= np.sort(scores[name])[-int(np.ceil(0.95 * len(scores[name])))]) for name in SETS
    }
    for name in SETS:
        effect = find(found, method, normalisation, name)
        assert effect.auroc == pytest.approx(aurocs[name], abs=1e-9)
        assert effect.fpr95 == pytest.approx(rates[name], abs=1e-9)
    mean = find(found, method, normalisation)
    assert mean.auroc == pytest.approx(np.mean(list(aurocs.values())))
    assert mean.fpr95 == pytest.approx(np.mean(list(rates.values())))


@pytest.mark.parametrize("column", [*SETS, "all"])
@pytest.mark.parametrize("normalisation", ["partial", "full"])
def test_the_interval_of_a_gain_is_paired_and_counts_that_data_sets_share_the_known_images(
    normalisation, column, found, banks
):
    before, after = (scores_of("ebo", banks, ALPHAS[kind]) for kind in ("none", normalisation))
    members = SETS if column == "all" else (column,)
    change = [agreement(after["id"], after[m]) - agreement(before["id"], before[m]) for m in members]
    known = np.mean([each.mean(axis=0) for each in change], axis=0)  # what each known image gains, over all data sets
    variance = known.var(ddof=1) / len(known)
    variance += sum(each.mean(axis=1).var(ddof=1) / len(each) for each in change) / len(members) ** 2
    step = t.ppf(0.975, min(len(known), *map(len, change)) - 1) * np.sqrt(variance)
    gain, effect = np.mean([each.mean() for each in change]), find(found, "ebo", normalisation, column)
    assert effect.gain == pytest.approx(gain, abs=1e-9)
    assert (effect.gain_low, effect.gain_high) == pytest.approx((gain - step, gain + step), rel=1e-4)


def test_without_normalisation_nothing_is_gained(found):
    assert {(e.gain, e.gain_low, e.gain_high) for e in found if e.normalisation == "none"} == {(0.0, 0.0, 0.0)}


def test_hyper_parameters_are_kept_and_an_exponent_among_them_is_not(found, banks):
    other, _ = effects(banks, ALPHAS, {"react": {"percentile": 60}, "fold": {"alpha": 0.9}})
    assert find(other, "react", "none").auroc != find(found, "react", "none").auroc
    assert [e for e in other if e.method != "react"] == [e for e in found if e.method != "react"]


def test_a_method_that_refuses_is_left_out_with_its_reason(found, banks):
    negative = FeatureBank(banks.test.features - 5, banks.test.labels)
    some, refused = effects(replace(banks, test=negative), ALPHAS)
    assert sorted(refused) == ["ash", "fold-a"]
    assert all("negative" in reason for reason in refused.values())
    assert {e.method for e in some} == set(METHODS) - set(refused)
