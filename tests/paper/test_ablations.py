"""The paper's ablations (Table 3, Figures 4 and 5) against formulas, public detectors, scipy and a plain bootstrap."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import spearmanr, t

import flatfold as ff
from flatfold.core.bootstrap import draws
from flatfold.evaluate.results import MethodRun
from flatfold.paper import ablations as module
from flatfold.paper.ablations import GRID, cohens_d, load_ablations, logit_traces, score_all, spearman
from flatfold.paper.ablations import NORMALISED_METHODS as METHODS
from tests.paper.toys import make_banks
from tests.toy_ablations import cohens_d as textbook
from tests.toy_ablations import make_ablations
from tests.toy_study import refusal

pytestmark = pytest.mark.filterwarnings("ignore:AutoFold's curve is flat")
ALPHAS = {"none": 0.0, "partial": 0.4, "full": 1.0}
SETS = ("near-set", "far-set")
FOLD = ("fold", "fold-r", "fold-a")


@pytest.fixture(scope="module")
def negative(banks):
    """Banks on whose features ASH refuses to work."""
    return replace(banks, test=ff.FeatureBank(banks.test.features - 5, banks.test.labels))


def scores_of(method, banks, alpha):
    """Scores in float64, straight from the formulas; ReAct clips at the 90th percentile of the validation features."""
    weight, bias = banks.head.weight.double().numpy(), banks.head.bias.double().numpy()
    found = {}
    for name, bank in banks.test_sets.items():
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
            "logits": 1 - np.square(p).sum(1),
        }[method]
    return found


def agreement(known, unknown):
    """Whether each OOD score is above each ID score, ``(m, n)``."""
    return (unknown[:, None] > known) + 0.5 * (unknown[:, None] == known)


@pytest.fixture(scope="module")
def normalised(banks):
    found, refused = module.measure_effects(banks, ALPHAS)
    assert refused == {}
    assert [(e.method, e.normalisation, e.dataset) for e in found] == [
        (method, kind, dataset) for method in METHODS for kind in ALPHAS for dataset in (*SETS, "all")
    ]
    return {(each.method, each.normalisation, each.dataset): each for each in found}


@pytest.mark.parametrize("alpha", ALPHAS.values())
def test_traces_over_features_and_logits_are_those_of_the_formulas(alpha, banks):
    for found, method in ((score_all("fold", banks, alpha=alpha), "fold"), (logit_traces(banks, alpha), "logits")):
        expected = scores_of(method, banks, alpha)
        assert list(found) == list(expected) == ["id", *SETS]
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("normalisation", ALPHAS)
@pytest.mark.parametrize("method", ["msp", "react", "fold"])
def test_aurocs_and_fpr95_under_normalisation_are_those_of_the_formulas(method, normalisation, normalised, banks):
    scores = scores_of(method, banks, ALPHAS[normalisation])
    aurocs = {name: agreement(scores["id"], scores[name]).mean() for name in SETS}
    limits = {name: np.sort(scores[name])[-int(np.ceil(0.95 * len(scores[name])))] for name in SETS}
    rates = {name: np.mean(scores["id"] >= limit) for name, limit in limits.items()}
    aurocs["all"], rates["all"] = (np.mean(list(each.values())) for each in (aurocs, rates))
    for name in aurocs:
        effect = normalised[method, normalisation, name]
        assert effect.alpha == ALPHAS[normalisation]
        assert (effect.auroc, effect.fpr95) == pytest.approx((aurocs[name], rates[name]), abs=1e-9)


@pytest.mark.parametrize("column", ["near-set", "all"])
def test_the_interval_of_a_gain_is_paired_and_counts_that_data_sets_share_the_id_images(column, normalised, banks):
    for normalisation in ("partial", "full"):
        before, after = (scores_of("ebo", banks, ALPHAS[kind]) for kind in ("none", normalisation))
        members = SETS if column == "all" else (column,)
        change = [agreement(after["id"], after[m]) - agreement(before["id"], before[m]) for m in members]
        known = np.mean([each.mean(axis=0) for each in change], axis=0)  # gain of each ID image over all data sets
        variance = known.var(ddof=1) / len(known)
        variance += sum(each.mean(axis=1).var(ddof=1) / len(each) for each in change) / len(members) ** 2
        step = t.ppf(0.975, min(len(known), *map(len, change)) - 1) * np.sqrt(variance)
        gain, effect = np.mean([each.mean() for each in change]), normalised["ebo", normalisation, column]
        assert effect.gain == pytest.approx(gain, abs=1e-9)
        assert (effect.gain_low, effect.gain_high) == pytest.approx((gain - step, gain + step), rel=1e-4)
    none = normalised["ebo", "none", column]
    assert (none.gain, none.gain_low, none.gain_high) == (0.0, 0.0, 0.0)


def test_hyper_parameters_are_kept_but_an_exponent_is_not_and_refusals_are_reported(normalised, banks, negative):
    other, _ = module.measure_effects(banks, ALPHAS, {"react": {"percentile": 60}, "fold": {"alpha": 0.9}})
    changed = {new.method for new, old in zip(other, normalised.values(), strict=True) if new != old}
    assert changed == {"react"}
    some, refused = module.measure_effects(negative, ALPHAS)
    assert sorted(refused) == ["ash", "fold-a"]
    assert {e.method for e in some} == set(METHODS) - set(refused)


def run_of(method, **learnt):
    return MethodRun(method, method, {}, "val", "id", 0.0, 0.0, learnt=learnt)


def figures(detector, banks):
    """AUROC and FPR95 of a fitted detector by column."""
    known = detector(banks.test.features)
    aurocs = {name: ff.auroc(known, detector(banks.ood[name].features)) for name in SETS}
    rates = {name: ff.fpr_at_tpr(known, detector(banks.ood[name].features)) for name in SETS}
    return tuple({**each, "all": np.mean(list(each.values()))} for each in (aurocs, rates))


def test_the_curve_and_the_choice_are_those_of_the_public_detectors(banks):
    curves, refused = module.measure_sensitivities(banks)
    assert ([each.method for each in curves], refused) == (list(FOLD), {})
    assert GRID == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    for place, alpha in enumerate(GRID):
        aurocs, rates = figures(ff.Fold(alpha).fit(banks.val, banks.head), banks)
        assert {column: values[place] for column, values in curves[0].auroc.items()} == pytest.approx(aurocs)
        assert {column: values[place] for column, values in curves[0].fpr95.items()} == pytest.approx(rates)
    for each in curves:
        aurocs, rates = figures(ff.create(f"auto{each.method}").fit(banks.val, banks.head), banks)
        assert each.chosen_auroc == pytest.approx(aurocs)
        assert each.chosen_fpr95 == pytest.approx(rates)
        assert each.regret == pytest.approx(max(each.auroc["all"]) - each.chosen_auroc["all"])
        assert each.regret_low <= each.regret <= each.regret_high
        assert each.regret_high - each.regret_low < 0.2  # the two AUROCs by themselves are less certain
        assert each.grid == list(GRID)


def test_the_choice_of_a_benchmark_is_taken_and_methods_that_refuse_are_left_out(banks, negative):
    given = [run_of("autofold", alpha_=0.37), run_of("autofold-r", alpha_=0.11, percentile_=85.0)]
    given += [run_of("autofold-a", alpha_=0.2, percentile_=65.0)]
    found, _ = module.measure_sensitivities(banks, given)
    assert [each.chosen for each in found] == [0.37, 0.11, 0.2]
    clipped = ff.create("fold-r", alpha=1.0, percentile=85).fit(banks.val, banks.head)
    assert found[1].auroc["all"][-1] == pytest.approx(figures(clipped, banks)[0]["all"])
    assert module.measure_sensitivities(banks, given, grid=[0.37])[0][0].regret == 0
    found, refused = module.measure_sensitivities(negative, given)
    assert ([each.method for each in found], list(refused)) == (["fold", "fold-r"], ["fold-a"])
    found, refused = module.measure_sensitivities(make_banks(classes=2))
    assert (found, list(refused)) == ([], list(FOLD))


@given(n=st.integers(2, 30), m=st.integers(2, 30), shift=st.floats(-1e6, 1e6), seed=st.integers(0, 2**31))
def test_cohens_d_is_the_textbooks(n, m, shift, seed):
    rng = np.random.default_rng(seed)
    known, unknown = rng.normal(size=n), rng.normal(1, 3, size=m)
    assert cohens_d(known, unknown) == pytest.approx(textbook(known, unknown))
    assert cohens_d(known + shift, unknown + shift) == pytest.approx(textbook(known, unknown), rel=1e-4, abs=1e-6)
    same = np.full(n, 0.1)  # scores that do not vary
    assert [cohens_d(same, other) for other in (same[:3], same + 1, same - 1)] == [0, 1e6, -1e6]


def test_the_bootstrap_draws_images_again_however_many_are_worked_on_at_once(monkeypatch):
    rng = np.random.default_rng(3)
    known, unknown = rng.gamma(2, size=(2, 13)), rng.gamma(3, size=(2, 17))

    def rngs():
        return np.random.default_rng(1), np.random.default_rng(2)

    got = module.bootstrap_cohens_d(known, unknown, 50, rngs())
    ours, theirs = (draws(n, 50, g) for n, g in zip((13, 17), rngs(), strict=True))
    for row in range(2):
        pairs = zip(ours, theirs, strict=True)
        expected = [textbook(np.repeat(known[row], a), np.repeat(unknown[row], b)) for a, b in pairs]
        assert got[row] == pytest.approx(np.array(expected))
    monkeypatch.setattr(module, "CHUNK", 3 * 30)
    assert module.bootstrap_cohens_d(known, unknown, 50, rngs()) == pytest.approx(got)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=40))
def test_the_rank_correlation_is_scipys_ties_included(pairs):
    x, y = np.array(pairs, dtype=np.float64).T
    expected = 0 if len(set(x)) == 1 or len(set(y)) == 1 else spearmanr(x, y).statistic
    assert spearman(x, y) == pytest.approx(expected)


def test_separations_are_those_of_folds_scores_and_the_norms(banks):
    separations, scores, norms = module.measure_separations(banks, ALPHAS, seed=5)
    rows = [(row.normalisation, row.alpha, row.dataset) for row in separations]
    assert rows == [(kind, alpha, name) for kind, alpha in ALPHAS.items() for name in (*SETS, "all")]
    for name, bank in banks.test_sets.items():
        assert norms[name] == pytest.approx(bank.features.norm(dim=1).numpy())
        for kind, alpha in ALPHAS.items():
            expected = ff.Fold(alpha).fit(banks.val, banks.head)(bank.features).numpy()
            assert scores[f"{kind}/{name}"] == pytest.approx(expected)
    for row in separations:
        names = SETS if row.dataset == "all" else [row.dataset]
        known = scores[f"{row.normalisation}/id"].astype(np.float64)
        unknown = np.concatenate([scores[f"{row.normalisation}/{name}"] for name in names]).astype(np.float64)
        sizes = np.concatenate([norms[name] for name in ("id", *names)])
        assert row.cohens_d == pytest.approx(textbook(known, unknown))
        assert (row.gap, row.id_variance) == pytest.approx((unknown.mean() - known.mean(), known.var()))
        assert (row.ood_variance, row.fpr95) == pytest.approx((unknown.var(), ff.fpr_at_tpr(known, unknown)))
        assert row.correlation == pytest.approx(spearmanr(sizes, np.concatenate([known, unknown])).statistic)
        assert row.low < row.cohens_d < row.high
    assert module.measure_separations(banks, ALPHAS, seed=5)[0] == separations
    assert module.measure_separations(banks, ALPHAS, seed=6)[0][0].low != separations[0].low


def test_ablations_are_loaded_as_they_were_saved_and_a_mixture_of_two_is_refused(tmp_path):
    saved = make_ablations()
    saved.save(tmp_path)
    loaded = load_ablations(tmp_path)
    for name in ("alphas", "effects", "sensitivities", "separations", "costs", "refused", "provenance"):
        assert getattr(loaded, name) == getattr(saved, name)
    for name in ("scores", "logits", "norms"):
        np.testing.assert_equal(getattr(loaded, name), getattr(saved, name))
    arrays, text = tmp_path / "ablations.safetensors", (tmp_path / "ablations.json").read_text()
    whole = arrays.read_bytes()
    for data in (whole[:-4] + b"abcd", whole[:50], b""):
        arrays.write_bytes(data)
        assert "damaged" in refusal(load_ablations, tmp_path), len(data)
    arrays.write_bytes(whole)
    for damaged in ("{", "null", text.replace('"version": 5', '"version": 4'), text.replace('"costs"', '"prices"')):
        (tmp_path / "ablations.json").write_text(damaged)
        assert "damaged" in refusal(load_ablations, tmp_path), damaged[:40]
